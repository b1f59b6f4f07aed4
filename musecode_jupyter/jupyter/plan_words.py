"""What `%plan` and its words do, and a plan as text in a cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from musecode_jupyter.jupyter.host import Host
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.grills import blocking
from musecode_jupyter.session.plans import NO_PLAN
from musecode_jupyter.session.visible import visible_text

if TYPE_CHECKING:
    from musecode_jupyter.session.plan_handle import PlanHandle

USE_GOAL = "`%goal --plan` runs the approved plan, with the limits that you give it: %goal --plan --budget 2usd."


def plan_word(host: Host, word: str, rest: str) -> None:
    """Do what a word after `%plan` says; none shows the plan."""
    if host.open is None and not word:
        print(NO_PLAN)
        return
    if word == "run":
        raise UsageProblem(USE_GOAL)
    if host.plan is None:
        host.plan = host.opened().newest_plan()
    _WORDS[word](host, host.plan, rest)


def start_plan(host: Host, text: str, verify: tuple[str, ...], *, wait: bool) -> PlanHandle:
    """Have a plan written; shows it live where somebody sits in front, else waits for it and prints it."""
    session = host.session_for_work()
    host.plan = handle = session.start_plan(text, verify)
    for notice in session.take_notices():
        print(notice)
    shown(host, handle, wait=wait)
    return handle


def shown(host: Host, handle: PlanHandle, *, wait: bool) -> None:
    """Show the plan that is being written."""
    live = host.interactive and host.in_kernel
    if live:
        from IPython.display import display

        display(host.plan_view(handle))
    if wait or not live:
        try:
            with host.questions_shown():
                handle.wait()
        except KeyboardInterrupt:
            raise KeyboardInterrupt("the wait was interrupted; the plan is written on (%plan shows it)") from None
        print(visible_text(handle.text(figures=False)), end="")


def _show(host: Host, handle: PlanHandle, rest: str) -> None:
    _nothing("", rest)
    text = handle.text()
    if host.interactive and host.in_kernel:
        from IPython.display import display

        display(host.plan_view(handle))
    else:
        print(visible_text(text), end="")


def _approve(_host: Host, handle: PlanHandle, rest: str) -> None:
    handle.approve(rest or None)
    found = handle.session.read(lambda core: blocking(core, handle.number))
    stand = f" Blocking findings of %grill stand: {', '.join(map(str, found))}." if found else ""
    print(f"The plan is approved. `%goal --plan` runs it.{stand}")


def _reject(_host: Host, handle: PlanHandle, rest: str) -> None:
    handle.reject(rest)
    print("The plan is rejected; it is kept in the log.")


def _edit(host: Host, handle: PlanHandle, rest: str) -> None:
    host.session_for_work()
    handle.edit(rest)
    shown(host, handle, wait=False)
    if handle.status != "writing" and (difference := handle.difference()):
        print(visible_text(difference))


def _answer(_host: Host, handle: PlanHandle, rest: str) -> None:
    number, _, text = rest.partition(" ")
    if not number.isdecimal():
        raise UsageProblem("%plan answer takes the number of a question and your answer: %plan answer 1 TEXT.")
    handle.answer(int(number), text)
    print("Noted. `%plan edit` has the plan changed by your answers; `%plan approve` approves it with them.")


def _cancel(_host: Host, handle: PlanHandle, rest: str) -> None:
    _nothing("cancel", rest)
    handle.cancel()
    print("The plan is cancelled; it is kept in the log.")


def _resume(host: Host, handle: PlanHandle, rest: str) -> None:
    _nothing("resume", rest)
    host.session_for_work()
    handle.resume()
    shown(host, handle, wait=False)


def _save(host: Host, handle: PlanHandle, rest: str) -> None:
    with host.questions_shown():
        print(f"Saved as {visible_text(handle.save(rest))}.")


def _diff(_host: Host, handle: PlanHandle, rest: str) -> None:
    _nothing("diff", rest)
    print(visible_text(handle.difference()) or "There is no version before this one.")


def _nothing(word: str, rest: str) -> None:
    if rest:
        raise UsageProblem(
            f"%plan {word} takes nothing more, not {rest!r}. A plan that begins with {word!r} needs the cell form."
        )


_WORDS: dict[str, Callable[[Any, Any, str], None]] = {
    "": _show,
    "approve": _approve,
    "reject": _reject,
    "edit": _edit,
    "answer": _answer,
    "cancel": _cancel,
    "resume": _resume,
    "save": _save,
    "diff": _diff,
}
