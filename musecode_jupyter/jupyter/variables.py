"""Summaries of the user's variables that never run the user's code: names, types, shapes, sizes; no secrets.

Only C-level reads of exact builtin types and of the exact array and table types of known libraries are made, so that a
summary may be taken from any thread, also while a cell runs. Whatever has a type of the user's own is told by its type.
Libraries are recognised by what is in `sys.modules`; nothing is imported.
"""

from __future__ import annotations

import fnmatch
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# So many variables are told at once; the rest is counted.
MOST = 100
# A table wider than this is told by its shape alone.
MOST_COLUMNS = 1000
SHOWN_COLUMNS = 12
TEXT = 80

_type_name = type.__dict__["__name__"].__get__
_type_module = type.__dict__["__module__"].__get__

# fmt: off
_SECRET_WORDS = frozenset({
    "pass", "passwd", "password", "passphrase", "pwd", "pw", "secret", "secrets", "token", "tokens", "key",
    "keys", "apikey", "credential", "credentials", "cred", "creds", "auth", "authorization", "bearer",
    "cookie", "cookies", "private", "pin", "otp", "totp", "salt", "jwt", "pat", "signature",
})
# fmt: on
_HIDDEN_NAMES = frozenset({"In", "Out", "exit", "quit", "open", "get_ipython"})
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_CONTAINERS: tuple[tuple[type, Callable[[Any], int]], ...] = (
    (list, list.__len__),
    (tuple, tuple.__len__),
    (dict, dict.__len__),
    (set, set.__len__),
    (frozenset, frozenset.__len__),
    (str, str.__len__),
    (bytes, bytes.__len__),
    (bytearray, bytearray.__len__),
)
_NUMBERS = frozenset({int, float, complex, bool, type(None)})
_SKIPPED = (types.ModuleType,)
_CALLABLE = frozenset({types.FunctionType, types.BuiltinFunctionType, types.MethodType})


@dataclass(frozen=True)
class Variable:
    """One variable as agents see it. `nbytes` is the memory of an array's data or of a table.

    `value` is told for plain numbers only; `detail` holds the columns of a table. `hidden` says that the name looks
    like that of a secret, of which nothing but the type is told.
    """

    name: str
    type: str
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    device: str = ""
    length: int | None = None
    nbytes: int | None = None
    value: str = ""
    detail: str = ""
    hidden: bool = False

    def line(self) -> str:
        """The summary as one line."""
        parts = [f"{self.name}: {self.type}"]
        if self.hidden:
            return f"{parts[0]} (hidden: the name looks like that of a secret)"
        if self.shape is not None:
            parts.append("shape (" + ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "") + ")")
        if self.dtype:
            parts.append(self.dtype)
        if self.device:
            parts.append(f"on {self.device}")
        if self.length is not None:
            parts.append(f"length {self.length}")
        if self.value:
            parts.append(f"= {self.value}")
        if self.nbytes is not None:
            parts.append(_bytes(self.nbytes))
        if self.detail:
            parts.append(self.detail)
        return " ".join(parts[:1]) + (" " + ", ".join(parts[1:]) if len(parts) > 1 else "")


def looks_secret(name: str) -> bool:
    """Whether a variable's name suggests that its value is a secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return any(word in _SECRET_WORDS for word in words)


def names_of(namespace: Mapping[str, Any], hidden: Iterable[str] = ()) -> list[str]:
    """The names that the user made, in the order of their making; without modules and IPython's own."""
    taken = _HIDDEN_NAMES | set(hidden)
    # One C call: the user's thread may add names meanwhile.
    items = dict(namespace).items()
    return [
        name
        for name, value in items
        if type(name) is str
        and name.isidentifier()
        and not name.startswith("_")
        and name not in taken
        and type(value) not in _SKIPPED
    ]


def summarise_variables(
    namespace: Mapping[str, Any], *, pattern: str = "", hidden: Iterable[str] = (), most: int = MOST
) -> tuple[list[Variable], int]:
    """The newest `most` variables whose name matches `pattern` (a shell pattern, or names between commas), and how
    many more there are. Only those that are returned are looked at."""
    copy = dict(namespace)
    names = names_of(copy, hidden)
    wanted = [part for part in re.split(r"[,\s]+", pattern) if part]
    if wanted:
        names = [name for name in names if any(fnmatch.fnmatchcase(name, part) for part in wanted)]
    chosen = names[-most:]
    return [summarise_variable(name, copy[name]) for name in chosen], len(names) - len(chosen)


def summarise_variable(name: str, value: Any) -> Variable:
    """The summary of one variable; never raises and never runs code of the value's own type."""
    kind = type(value)
    described = type_text(kind)
    if looks_secret(name):
        return Variable(name, described, hidden=True)
    try:
        found = _facts(kind, value)
    except Exception:
        # A library's object that is in no state to answer, for instance a table that another thread changes.
        found = {}
    return Variable(name, described, **found)


def type_text(kind: type) -> str:
    """`module.name` of a type, without the module for builtins; read past the metaclass."""
    name, module = _type_name(kind), _module(kind)
    text = name if module in {"builtins", "__main__", ""} else f"{module}.{name}"
    return "".join(char if char.isprintable() else "?" for char in text[:TEXT])


def variables_text(variables: Iterable[Variable], more: int) -> str:
    """The summaries as text, a line each."""
    lines = [variable.line() for variable in variables]
    if more:
        lines.append(f"... and {more} older ones; name a pattern to see them")
    return "\n".join(lines) or "No variables."


def _module(kind: type) -> str:
    try:
        module = _type_module(kind)
    except AttributeError:
        return ""
    return module if type(module) is str else ""


def _bytes(count: int) -> str:
    size, unit = float(count), "bytes"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, bigger
    return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def _facts(kind: type, value: Any) -> dict[str, Any]:
    if kind in _NUMBERS:
        if kind is int and int.bit_length(value) > 128:
            return {"detail": f"{int.bit_length(value)} bits"}
        return {"value": repr(value)}
    if kind is range:
        return {"length": len(value) if abs(value.stop - value.start) < 2**62 else None}
    if kind in _CALLABLE or kind is type:
        return {}
    if kind is memoryview:
        return {"shape": tuple(value.shape), "dtype": value.format, "nbytes": value.nbytes}
    root = _module(kind).partition(".")[0]
    look = _LIBRARIES.get(root)
    if look is not None and (module := sys.modules.get(root)) is not None:
        found = look(kind, value, vars(module))
        if found is not None:
            return found
    for base, length in _CONTAINERS:
        if issubclass_past_meta(kind, base):
            return {"length": length(value)}
    return {}


def issubclass_past_meta(kind: type, base: type) -> bool:
    """`issubclass` that asks no metaclass."""
    return base in type.__dict__["__mro__"].__get__(kind)


def _exact(names: Mapping[str, Any], kind: type, *wanted: str) -> bool:
    """Whether `kind` is one of the library's own classes of these names, and no subclass of them."""
    return any(names.get(name) is kind for name in wanted)


def _numpy(kind: type, value: Any, names: Mapping[str, Any]) -> dict[str, Any] | None:
    if _exact(names, kind, "ndarray", "memmap"):
        return {"shape": tuple(value.shape), "dtype": str(value.dtype)[:TEXT], "nbytes": int(value.nbytes)}
    generic = names.get("generic")
    if isinstance(generic, type) and issubclass_past_meta(kind, generic) and _exact(names, kind, _type_name(kind)):
        return {"dtype": str(value.dtype)[:TEXT], "nbytes": int(value.nbytes)}
    return None


def _torch(kind: type, value: Any, names: Mapping[str, Any]) -> dict[str, Any] | None:
    nn = names.get("nn")
    parameter = vars(nn).get("Parameter") if isinstance(nn, types.ModuleType) else None
    if not _exact(names, kind, "Tensor") and kind is not parameter:
        return None
    facts: dict[str, Any] = {
        "shape": tuple(value.shape),
        "dtype": str(value.dtype).removeprefix("torch."),
        "device": str(value.device),
    }
    facts["nbytes"] = int(value.numel()) * int(value.element_size())
    if value.requires_grad:
        facts["detail"] = "requires grad"
    return facts


def _known_dtype(dtype: Any) -> bool:
    """Whether a column's dtype is one of the libraries' own; others come with code of somebody else."""
    return _module(type(dtype)).partition(".")[0] in {"numpy", "pandas"}


def _pandas(kind: type, value: Any, names: Mapping[str, Any]) -> dict[str, Any] | None:
    if _exact(names, kind, "Series", "Index", "RangeIndex", "DatetimeIndex", "MultiIndex"):
        dtype = value.dtype
        return {"shape": tuple(value.shape), "dtype": str(dtype)[:TEXT] if _known_dtype(dtype) else ""}
    if not _exact(names, kind, "DataFrame"):
        return None
    rows, columns = value.shape
    facts: dict[str, Any] = {"shape": (rows, columns)}
    if columns <= MOST_COLUMNS and all(map(_known_dtype, value.dtypes)):
        facts["nbytes"] = int(value.memory_usage(index=True, deep=False).sum())
        shown = [
            f"{label} {dtype}"
            for label, dtype in zip(
                list(value.columns[:SHOWN_COLUMNS]), list(value.dtypes[:SHOWN_COLUMNS]), strict=False
            )
            if type(label) is str and not looks_secret(label)
        ]
        rest = columns - len(shown)
        facts["detail"] = f"columns: {', '.join(shown)}{f' and {rest} more' if rest else ''}" if shown else ""
    return facts


def _jax(kind: type, value: Any, _names: Mapping[str, Any]) -> dict[str, Any] | None:
    home = sys.modules.get(_module(kind))
    if home is None or vars(home).get("ArrayImpl") is not kind:
        return None
    devices = sorted(map(str, value.devices()))
    return {
        "shape": tuple(value.shape),
        "dtype": str(value.dtype),
        "device": devices[0] if len(devices) == 1 else f"{len(devices)} devices",
        "nbytes": int(value.nbytes),
    }


def _array(_kind: type, value: Any, names: Mapping[str, Any]) -> dict[str, Any] | None:
    if not _exact(names, _kind, "array"):
        return None
    return {"shape": (len(value),), "dtype": value.typecode, "nbytes": len(value) * value.itemsize}


_LIBRARIES: dict[str, Callable[[type, Any, Mapping[str, Any]], dict[str, Any] | None]] = {
    "numpy": _numpy,
    "torch": _torch,
    "pandas": _pandas,
    "jax": _jax,
    "jaxlib": _jax,
    "array": _array,
}
