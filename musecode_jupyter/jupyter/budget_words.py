"""`%muse budget`: the limits of the whole session, of its agents and its tasks."""

from __future__ import annotations

import re
from typing import Any

from musecode_jupyter.jupyter.host import Host
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.budget import budget_text, clear_budget, set_budget
from musecode_jupyter.session.settings import parse_usd

USAGE = (
    "%muse budget takes nothing, `none`, or limits of the whole session: %muse budget 5usd --tokens 1000000 "
    "(--calls N, --steps N, --hours H, --processes N, --disk 2GB); with --agent NAME or --task N they are its own, "
    "with --day all sessions' of a day."
)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(MB|GB|TB)", re.IGNORECASE)
_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12}
_NUMBERS = {"--tokens", "--calls", "--steps", "--processes", "--task"}


def budget(host: Host, rest: str) -> None:
    """Show the limits with what is used of them, set some, or take all away."""
    words = rest.split()
    if words == ["none"]:
        host.session().call(clear_budget)
    elif words:
        limits = _limits(words)
        host.session().call(lambda core: set_budget(core, **limits))
    print((host.session() if words else host.opened()).read(budget_text))


def _limits(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        name, value = word.removeprefix("--"), left[0] if left else ""
        if word == "--day":
            found["day"] = True
        elif word in _NUMBERS and value.isdecimal() and name not in found:
            found[name] = int(left.pop(0))
        elif word == "--agent" and value and name not in found:
            found[name] = left.pop(0)
        elif word == "--disk" and name not in found and (size := _SIZE.fullmatch(value)):
            left.pop(0)
            found[name] = int(float(size[1]) * _UNITS[size[2].upper()])
        elif word == "--hours" and name not in found and _is_number(value):
            found[name] = float(left.pop(0))
        elif not word.startswith("-") and "usd" not in found:
            try:
                found["usd"] = parse_usd(word)
            except UsageProblem:
                raise UsageProblem(f"Cannot read {word!r} as money. {USAGE}") from None
        else:
            raise UsageProblem(USAGE)
    return found


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()
