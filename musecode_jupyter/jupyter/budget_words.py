"""`%muse budget`: the limits of the whole session."""

from __future__ import annotations

from musecode_jupyter.jupyter.host import Host
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.budget import budget_text, clear_budget, set_budget
from musecode_jupyter.session.settings import parse_usd

USAGE = "%muse budget takes nothing, `none`, or limits of the whole session: %muse budget 5usd --tokens 1000000."


def budget(host: Host, rest: str) -> None:
    """Show the limits of the session with what is used of them, set some, or take all away."""
    words = rest.split()
    if words == ["none"]:
        host.session().call(clear_budget)
    elif words:
        usd, tokens = _limits(words)
        host.session().call(lambda core: set_budget(core, usd, tokens))
    print((host.session() if words else host.opened()).read(budget_text))


def _limits(words: list[str]) -> tuple[float | None, int | None]:
    usd = tokens = None
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--tokens" and left and left[0].isdecimal() and tokens is None:
            tokens = int(left.pop(0))
        elif not word.startswith("-") and usd is None:
            try:
                usd = parse_usd(word)
            except UsageProblem:
                raise UsageProblem(f"Cannot read {word!r} as money. {USAGE}") from None
        else:
            raise UsageProblem(USAGE)
    return usd, tokens
