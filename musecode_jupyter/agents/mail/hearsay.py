"""What one agent may tell another as certain: what claims stand for, or what it marks as an opinion; pure.

Whether a text states facts of the code is read off its words, so that no model is asked: it names a file, a line, a
piece of code, or how tests came out. A question states nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from musecode_jupyter.agents.claims.labels import Label, Standing

OPINION = "Opinion, with no claim to show for it: "
"""Stands before what is passed on all the same."""

STANDS: frozenset[Label] = frozenset({"supported", "verified", "stale"})
"""Labels of claims that can stand behind a text; whoever relies on a stale one is told that it is."""

_SUFFIXES = (
    "py|pyi|pyx|ipynb|js|jsx|ts|tsx|rs|go|c|h|cc|cpp|hpp|cu|java|kt|rb|sh|sql|md|rst|txt|toml|ya?ml|json|jsonl|cfg|ini|csv|"
    "html|css|lock"
)
_FACT = re.compile(
    rf"`[^`\n]+`|[\w/-]\.(?:{_SUFFIXES})\b|\w:\d+\b|\blines? \d+"
    r"|\btests? (?:\w+ ){0,3}(?:pass|fail|succeed|are green|are red)",
    re.IGNORECASE,
)
_OPINION = re.compile(
    r"\W*(?:opinion\b|in my opinion|i (?:think|guess|believe|suspect|assume)\b|(?:not|un)[ -]?(?:checked|verified)\b"
    r"|perhaps\b|probably\b|maybe\b|i am not sure)",
    re.IGNORECASE,
)
_NAMED = re.compile(r"\bclaims? (\d+(?:(?:, | and |, and )\d+)*)", re.IGNORECASE)


def named_claims(text: str) -> tuple[int, ...]:
    """The numbers of the claims that a text names, in its order."""
    return tuple(dict.fromkeys(int(n) for found in _NAMED.finditer(text) for n in re.findall(r"\d+", found[1])))


def standing_behind(text: str, carried: Iterable[int], how: Mapping[int, Standing]) -> tuple[int, ...]:
    """The claims that stand behind a text: those that it names, or that go with it, as far as they can be relied on."""
    found = dict.fromkeys((*named_claims(text), *carried))
    return tuple(n for n in found if n in how and how[n].label in STANDS)


def hearsay(text: str, carried: Iterable[int], how: Mapping[int, Standing]) -> str:
    """Why a text is not passed on as it is, for its writer; empty if it is. `carried` are claims that go with it."""
    fact = _FACT.search(text)
    if fact is None or _OPINION.match(text) or standing_behind(text, carried, how):
        return ""
    fallen = [f"claim {n} is {how[n].label} ({how[n].why})" for n in named_claims(text) if n in how]
    missing = [f"there is no claim {n}" for n in named_claims(text) if n not in how]
    why = "; ".join([*fallen, *missing]) or "no claim stands behind it"
    # The whole word, up to what was recognised.
    place = (text[: fact.start()].rpartition(" ")[2].rpartition("\n")[2] + fact[0])[-80:]
    return (
        f"Not passed on: it says something of {place} as certain, and {why}. Write down what you found "
        "with `claim`, with what you saw as evidence, and answer again with its number (claim N); or begin with "
        "`Opinion:`."
    )
