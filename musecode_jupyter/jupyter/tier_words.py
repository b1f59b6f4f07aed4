"""`%muse tier` and `%muse model`: which model is pinned, what may go to it, and what the user says to that."""

from __future__ import annotations

import shlex

from musecode_jupyter.jupyter.host import Host
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.visible import visible_text

USAGE = (
    "%muse tier takes nothing, `standard`, `contributor`, `opt-in WORDS`, `withdraw`, or `label PATH LABEL` (public, "
    "standard or private)."
)


def tier(host: Host, rest: str) -> None:
    """Show the tier, what the contributor tier means and what it would have cost; switch, opt in, or label a path."""
    word, _, more = rest.strip().partition(" ")
    session = host.session()
    if not word:
        said = session.tier_text()
    elif word in {"standard", "contributor"} and not more:
        print(visible_text(session.tier_text()))
        _ask_below(host)
        said = session.set_tier(word)
    elif word == "opt-in":
        said = session.opt_in(more)
    elif word == "withdraw" and not more:
        said = session.withdraw()
    elif word == "label":
        said = session.label(*_path_and_label(more))
    else:
        raise UsageProblem(USAGE)
    print(visible_text(said))


def model(host: Host, rest: str) -> None:
    """Show the pinned model, or pin another one from here on."""
    session, name = host.session(), rest.strip()
    if not name:
        print(f"{session.model}, of the {session.tier} tier.")
        return
    if len(name.split()) > 1:
        raise UsageProblem("%muse model takes nothing, or the id of a model: %muse model muse-spark-1.2.")
    _ask_below(host)
    print(visible_text(session.set_model(name)))


def _ask_below(host: Host) -> None:
    """Have the question stand below the cell, which waits for its answer."""
    if host.interactive:
        from IPython.display import display

        display(host.approvals_view())


def _path_and_label(text: str) -> tuple[str, str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageProblem(f"{error}: close the quotation. {USAGE}") from None
    if len(words) != 2:
        raise UsageProblem(USAGE)
    return words[0], words[1]
