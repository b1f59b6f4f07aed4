"""Summaries of variables: nothing of the user's runs, nothing is imported to recognise a library, costs are bounded."""

from __future__ import annotations

import array
import collections
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musecode_jupyter.jupyter.variables import (
    MOST,
    looks_secret,
    names_of,
    summarise_variable,
    summarise_variables,
    variables_text,
)


class Loud(type):
    """A metaclass that fails at every touch."""

    def __getattribute__(cls, name: str) -> Any:
        raise AssertionError(f"the metaclass was asked for {name}")

    def __instancecheck__(cls, instance: object) -> bool:
        raise AssertionError("the metaclass was asked about an instance")


def loud(*bases: type) -> Any:
    def touched(self: object, *_: object) -> Any:
        raise AssertionError("code of the value's own type ran")

    names = ("__getattribute__", "__repr__", "__str__", "__len__", "__iter__", "__sizeof__", "__bool__", "__format__")
    made = type.__call__(Loud, "Touchy", bases, {name: touched for name in names})
    return type.__call__(made)


@pytest.mark.parametrize("base", [object, list, dict, set, str, bytes, tuple, int, float, collections.OrderedDict])
def test_no_code_of_the_value_runs(base: type) -> None:
    summary = summarise_variable("value", loud(base))
    assert summary.type.rpartition(".")[2] == "Touchy"
    assert summary.value == ""
    assert summary.length in {None, 0}


@given(
    st.dictionaries(st.text(), st.one_of(st.integers(), st.floats(), st.text(), st.lists(st.integers()), st.binary()))
)
def test_a_line_for_each_name_and_no_text_of_a_value(namespace: dict[str, Any]) -> None:
    found, more = summarise_variables({**namespace, "marked": "MARK" * 3})
    text = variables_text(found, more)
    assert text.count("\n") + 1 == len(found) == len(names_of(namespace)) + 1
    assert "MARK" not in text


def test_ten_thousand_names_are_bounded() -> None:
    touchy = loud(object)
    found, more = summarise_variables({f"n{number}": touchy for number in range(10_000)})
    assert (len(found), more) == (MOST, 10_000 - MOST)
    assert found[-1].name == "n9999"
    assert [
        v.name for v in summarise_variables({"loss_a": 1, "loss_b": 2, "other": 3}, pattern="loss_*, other")[0]
    ] == [
        "loss_a",
        "loss_b",
        "other",
    ]


@pytest.mark.parametrize(
    "name", ["api_key", "myToken", "PASSWORD", "db_passwd", "AUTH", "sshKey", "user_pin", "x_secret"]
)
def test_a_name_like_that_of_a_secret_hides_all_but_the_type(name: str) -> None:
    assert looks_secret(name)
    assert summarise_variable(name, 1234).line() == f"{name}: int (hidden: the name looks like that of a secret)"


@pytest.mark.parametrize("name", ["keyboard", "monkey", "tokenizer", "passed", "authors", "compass", "n_heads"])
def test_other_names_hide_nothing(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (3, "v: int = 3"),
        (2**500, "v: int 501 bits"),
        (None, "v: NoneType = None"),
        (0.5, "v: float = 0.5"),
        ("hello", "v: str length 5"),
        (b"ab", "v: bytes length 2"),
        ([1, 2], "v: list length 2"),
        ({1: 2}, "v: dict length 1"),
        (collections.Counter("aab"), "v: collections.Counter length 2"),
        (range(7), "v: range length 7"),
        (range(10**30), "v: range"),
        (array.array("d", [1, 2]), "v: array.array shape (2,), d, 16 bytes"),
        (memoryview(b"abcd"), "v: memoryview shape (4,), B, 4 bytes"),
        (len, "v: builtin_function_or_method"),
        (int, "v: type"),
    ],
)
def test_lines_of_the_builtin_types(value: Any, line: str) -> None:
    assert summarise_variable("v", value).line() == line


def test_names_of_ipython_and_modules_are_left_out() -> None:
    space = {"In": [], "_": 1, "_private": 2, "sys": sys, "x": 3, "a b": 4, "hidden": 5, 7: 8}
    assert names_of(space, hidden=["hidden"]) == ["x"]


def test_a_type_that_calls_itself_numpy_is_not_believed() -> None:
    fake = type("ndarray", (), {"__module__": "numpy", "shape": property(lambda self: 1 / 0)})
    assert summarise_variable("v", fake()).line() == "v: numpy.ndarray"


def test_numpy_arrays() -> None:
    np = pytest.importorskip("numpy")
    assert (
        summarise_variable("v", np.zeros((3, 4), np.float32)).line()
        == "v: numpy.ndarray shape (3, 4), float32, 48 bytes"
    )
    assert summarise_variable("v", np.float64(1)).line() == "v: numpy.float64 float64, 8 bytes"
    own = type("Own", (np.ndarray,), {"shape": property(lambda self: 1 / 0)})
    assert summarise_variable("v", np.zeros(3).view(own)).shape is None


def test_pandas_tables() -> None:
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"a": [1, 2], "password": ["x", "y"]})
    line = summarise_variable("v", table).line()
    assert "shape (2, 2)" in line
    assert "a int64" in line
    assert "password" not in line
    assert summarise_variable("v", table["a"]).line().endswith("shape (2,), int64")


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(2, 3, requires_grad=True)
    assert summarise_variable("v", tensor).line() == (
        "v: torch.Tensor shape (2, 3), float32, on cpu, 24 bytes, requires grad"
    )
    assert summarise_variable("v", torch.nn.Parameter(torch.zeros(2))).shape == (2,)


def test_jax_arrays() -> None:
    jnp = pytest.importorskip("jax.numpy")
    line = summarise_variable("v", jnp.zeros((2, 3))).line()
    assert "shape (2, 3), float32" in line
    assert "24 bytes" in line
