"""What the map answers: ranked and budgeted text, a file, a symbol and who uses it; the same bytes each time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from musecode_jupyter.agents.repomap.answer import Question, answer, understood
from musecode_jupyter.agents.repomap.map import RepoMap
from musecode_jupyter.agents.repomap.rank import Focus, rank, words_of
from musecode_jupyter.agents.repomap.render import render
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.workspace.history import History

FILES = {
    "shop/__init__.py": b"",
    "shop/errors.py": b'"""All errors."""\nclass ShopError(Exception): pass\n',
    "shop/cart.py": b'"""A customer\'s cart."""\nfrom shop.errors import ShopError\n\nclass Cart:\n    items: list\n'
    b"\n    def add(self, item):\n        raise ShopError(item)\n\n    def total(self):\n        ...\n",
    "shop/till.py": b'"""Takes the money."""\nfrom shop.cart import Cart\nfrom shop.errors import ShopError\n\n\n'
    b"def pay(cart: Cart):\n    if not cart.total():\n        raise ShopError()\n",
    "tests/test_till.py": b"from shop.till import pay\nfrom shop.cart import Cart\n\ndef test_pay(): pay(Cart())\n",
    "docs/guide.md": b"# Paying\n## Returns\n",
    "data.bin": b"\0\1",
}
REPO = RepoMap.of(FILES)
ROOT = Path(__file__).resolve().parents[3]


def order(text: str) -> list[str]:
    """The files of a rendering, in order."""
    lines = [line for line in text.splitlines() if " lines" in line and not line.startswith((" ", "["))]
    return [line.partition(" (")[0] for line in lines]


def test_what_most_is_built_on_comes_first() -> None:
    text = render(REPO, Focus())
    assert order(text)[:3] == ["shop/errors.py", "shop/cart.py", "shop/till.py"]
    assert "7 files: 5 python, 1 prose" in text
    assert "shop/errors.py (2 lines, imported by 2): All errors.\n    2 class ShopError(Exception)\n" in text


def test_a_question_brings_what_it_names_to_the_front() -> None:
    assert order(render(REPO, Focus(words="where is the money taken, who does pay?")))[0] == "shop/till.py"
    assert order(render(REPO, Focus(paths=("docs",)))) == ["docs/guide.md"]
    assert words_of("readHTTPHeaders_now of the") == ["read", "http", "header", "now"]
    assert words_of("reserved") == words_of("reserve") == words_of("Reserves")


@given(st.integers(min_value=0, max_value=900), st.sampled_from(["", "cart total", "nothing of it"]))
@settings(deadline=None, max_examples=40)
def test_a_text_keeps_to_its_budget_and_is_a_function_of_what_it_is_made_of(budget: int, words: str) -> None:
    text = render(REPO, Focus(words=words), budget)
    assert len(text) <= budget
    assert text == render(RepoMap.of(dict(reversed(FILES.items()))), Focus(words=words), budget)


def test_more_room_never_shows_less() -> None:
    shown = [len(order(render(REPO, Focus(), budget))) for budget in range(100, 1_500, 50)]
    assert shown == sorted(shown)
    assert shown[-1] == 5


def test_weights_add_up() -> None:
    for focus in (Focus(), Focus(words="cart"), Focus(paths=("shop/till.py",))):
        weights = rank(REPO, focus).files
        assert sum(weights.values()) == pytest.approx(1.0)
        assert min(weights.values()) >= 0


def test_the_same_bytes_under_any_hash_seed() -> None:
    program = (
        "from test_repomap_answers import REPO; from musecode_jupyter.agents.repomap.render import render, Focus;"
        "from musecode_jupyter.agents.repomap.answer import *;"
        "print(render(REPO, Focus()), render(REPO, Focus(words='cart total')),"
        "answer(REPO, Question(symbol='Cart')).text, answer(REPO, Question('shop/cart.py')).text)"
    )
    env = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": f"{Path(__file__).parent}:{ROOT}"}
    told = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout
    here = (
        render(REPO, Focus()),
        render(REPO, Focus(words="cart total")),
        answer(REPO, Question(symbol="Cart")).text,
        answer(REPO, Question("shop/cart.py")).text,
    )
    assert told == " ".join(here) + "\n"


def test_a_file_with_all_that_belongs_to_it() -> None:
    history = History({"shop/cart.py": 6, "shop/till.py": 9}, {("shop/cart.py", "shop/till.py"): 5})
    subjects = ["1a2b3c4 2026-01-05 Start", "0 2026-01-04 " + "long " * 40 + "\x1b[31m"]
    told = answer(REPO, Question("./shop/cart.py"), history, commits=subjects).text.partition("last changed by:\n")[2]
    assert told == f"  {subjects[0]}\n  {subjects[1][:100]}\n"
    found = answer(REPO, Question("./shop/cart.py"), history)
    assert found.text == (
        "shop/cart.py (11 lines, imported by 1 and 1 of the tests): A customer's cart.\n"
        "    4 class Cart: items\n"
        "    7   def add(self, item)\n"
        "   10   def total(self)\n"
        "imports: shop/errors.py\n"
        "imported by: shop/till.py\n"
        "tests: tests/test_till.py\n"
        "changes together with: shop/till.py (5 of 6 commits)\n"
    )
    assert found.shown == ("shop/cart.py",)


def test_where_a_symbol_is_defined_and_used() -> None:
    found = answer(REPO, Question(symbol="Cart.total"))
    assert found.text.splitlines() == [
        "shop/cart.py:10-11 method Cart.total: def total(self)",
        "mentions, by name:",
        "  shop/till.py: pay 7",
        "tests of shop/cart.py: tests/test_till.py",
    ]
    assert found.place is not None
    assert found.place.path == "shop/cart.py"
    used = answer(REPO, Question(symbol="shop/errors.py:ShopError")).text
    assert "  shop/cart.py: 2; Cart.add 8\n  shop/till.py: 3; pay 8\n" in used


def test_what_is_not_there_is_said_with_what_comes_near() -> None:
    with pytest.raises(ToolProblem, match=r"no file or folder shop/tils.py. Is it shop/till.py"):
        answer(REPO, Question("shop/tils.py"))
    with pytest.raises(ToolProblem, match=r"no definition of 'ErrorShop'. Is it ShopError"):
        answer(REPO, Question(symbol="ErrorShop"))
    with pytest.raises(ToolProblem, match="no files"):
        answer(RepoMap.of({}), Question())


def test_the_user_types_a_path_a_symbol_or_words() -> None:
    assert understood(REPO, "shop/") == Question(path="shop")
    assert understood(REPO, "./shop/till.py") == Question(path="shop/till.py")
    assert understood(REPO, "Cart.add") == Question(symbol="Cart.add")
    assert understood(REPO, "who takes money") == Question(words="who takes money")
    assert understood(REPO, "gone/away.py") == Question(path="gone/away.py")
    assert understood(REPO, "") == Question()


def test_this_repository_is_mapped_as_its_authors_know_it() -> None:
    """Only what stays true while it grows: what all is built on, a class by the name of its file, a test by its own."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "musecode_jupyter/log", "musecode_jupyter/runtime", "tests/log"],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout.decode().split("\0")  # fmt: skip
    repo = RepoMap.of({name: (ROOT / name).read_bytes() for name in names if name and (ROOT / name).is_file()})
    sources = [name for name in repo.facts if name.startswith("musecode_jupyter/")]
    errors = "musecode_jupyter/runtime/errors.py"
    users = {name: [user for user in repo.importers.get(name, ()) if user in sources] for name in sources}
    assert len(users[errors]) >= 5
    ranked = rank(repo, Focus()).files
    unused = [name for name in sources if not users[name]]
    assert unused
    assert all(ranked[errors] > ranked[name] for name in unused), "what all import comes before what nothing does"
    assert "musecode_jupyter/log/eventlog.py" in [place.path for place in repo.defined("EventLog")]
    assert "musecode_jupyter/log/eventlog.py" in repo.importers["musecode_jupyter/log/journal.py"]
    assert "tests/log/test_blobs.py" in repo.tests["musecode_jupyter/log/blobs.py"]
