"""`%muse critiques`: what reviews found, live or as text, and the user's word on a finding."""

from __future__ import annotations

from contextvars import copy_context
from functools import partial

from musecode_jupyter.agents.critiques.text import critiques_of
from musecode_jupyter.jupyter.host import Host
from musecode_jupyter.jupyter.kept import kept_of
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.critiques import WORDS, findings_shown, settle
from musecode_jupyter.session.visible import visible_text

USAGE = "%muse critiques takes nothing, or `answer N TEXT`, `accept N [TEXT]`, `withdraw N [WHY]`."


def critiques(host: Host, rest: str) -> None:
    """Show the findings, or take what the user says of one."""
    session = host.opened()
    if rest:
        word, number, text = [*rest.split(maxsplit=2), "", ""][:3]
        said = next((each for each in WORDS if each == ("withdraw" if word == "reject" else word)), None)
        if said is None or not number.isdecimal():
            raise UsageProblem(USAGE)
        print(visible_text(session.call(lambda core: settle(core, int(number), said, text))))
    elif host.interactive:
        _show_live(host)
    else:
        from musecode_jupyter.jupyter.views import critiques_text

        print(critiques_text(session.read(lambda core: findings_shown(critiques_of(core.log)))))


def _show_live(host: Host) -> None:
    """Show the live critiques below the cell; whenever a goal ends, what the notebook keeps is brought up to date."""
    from IPython.display import display

    view = host.critiques_view()
    shown = display(view, display_id=True)
    beside = display(kept_of([view]), raw=True, display_id=True) if getattr(view, "built", False) else None

    def store() -> None:
        view.flush()
        shown.update(view)
        if beside is not None:
            beside.update(kept_of([view]), raw=True)

    # In the context of this cell, so that the message names it and not the cell that happens to run then.
    host.when_goals_end(partial(copy_context().run, store))
