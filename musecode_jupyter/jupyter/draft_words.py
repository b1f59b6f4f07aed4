"""`%goal TEXT` without what decides it: the lead proposes clauses, the user confirms, changes or cancels them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from musecode_jupyter.jupyter.host import Host
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.drafts import NO_DRAFT
from musecode_jupyter.session.preflight import GoalSpec, clause_options
from musecode_jupyter.session.visible import visible_text

if TYPE_CHECKING:
    from musecode_jupyter.session.api import GoalHandle
    from musecode_jupyter.session.drafts import DraftHandle


def start_draft(host: Host, spec: GoalSpec) -> DraftHandle:
    """Have the lead propose clauses, and show them; an interrupt ends the waiting only."""
    session = host.session_for_work()
    host.draft = handle = session.draft_goal(spec)
    for notice in session.take_notices():
        print(notice)
    print("You named nothing that decides the goal: the lead looks for checks, and you confirm them.")
    try:
        with host.questions_shown():
            handle.wait()
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the wait was interrupted; the lead goes on (%goal shows what it proposes)") from None
    print(visible_text(handle.text()), end="")
    return handle


def confirmed_draft(host: Host, arguments: Any) -> GoalHandle:
    """Set the goal with what was proposed, or with the user's own clauses in place of it."""
    handle = _open(host)
    host.session_for_work()
    with host.questions_shown():
        return handle.confirm(verify=tuple(arguments.verify), clauses=clause_options(arguments))


def cancel_draft(host: Host, arguments: Any) -> None:
    """Drop it."""
    if arguments.verify or clause_options(arguments).given:
        raise UsageProblem("%goal cancel takes nothing more.")
    _open(host).cancel()
    print("The goal is dropped; nothing was set.")


def _open(host: Host) -> DraftHandle:
    found = None if host.open is None else host.open.open_draft()
    if found is None:
        raise UsageProblem(NO_DRAFT)
    # Bound to what this notebook showed last.
    if host.draft is not None and host.draft.session is found.session and host.draft.number == found.number:
        return host.draft
    return found
