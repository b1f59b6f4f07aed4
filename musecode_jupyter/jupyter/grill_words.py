"""What `%grill` and its words do, and an attack as text in a cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from musecode_jupyter.jupyter.host import Host
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.visible import visible_text

if TYPE_CHECKING:
    from musecode_jupyter.session.grill_handle import GrillHandle

WORDS = ("accept", "reject", "answer", "skip", "show", "stop", "resume")
OPTIONS = ("--ask", "--goal", "--tasks", "--wait")
NUMBERED = "%grill {word} takes the number of a finding, or nothing but its text where one is asked of (%grill --ask)."


@dataclass(frozen=True)
class Wanted:
    """What a line asks to be attacked: a text, a goal or the tasks of one (0: the newest), or else the plan."""

    text: str | None = None
    goal: int | None = None
    tasks: int | None = None
    ask: bool = False
    wait: bool = False


def parse_wanted(line: str, cell: str | None) -> Wanted:
    """What a line that begins with no word of `WORDS` asks for; UsageProblem says what it cannot be."""
    words = line.split()
    given: dict[str, int] = {}
    flags: set[str] = set()
    while words and words[0].startswith("--"):
        option = words.pop(0)
        if option not in OPTIONS:
            raise UsageProblem(f"%grill knows {', '.join(OPTIONS)}, not {option}.")
        if option in {"--goal", "--tasks"}:
            given[option] = int(words.pop(0)) if words and words[0].isdecimal() else 0
        flags.add(option)
    text = " ".join(words) if cell is None else cell.strip()
    if cell is not None and words:
        raise UsageProblem("In the cell form the text is the cell's; the first line takes options only.")
    return Wanted(
        text if text or cell is not None else None,
        given.get("--goal"),
        given.get("--tasks"),
        ask="--ask" in flags,
        wait="--wait" in flags,
    )


def grill_word(host: Host, line: str, cell: str | None = None) -> GrillHandle | None:
    """Attack what is named, show what was found, or take what the user says of it."""
    word, _, rest = line.partition(" ")
    if cell is None and word in WORDS:
        _say(host, word, rest.strip())
        return None
    wanted = parse_wanted(line, cell)
    session = host.session_for_work()
    named: dict[str, Any] = {"text": wanted.text, "goal": wanted.goal, "tasks": wanted.tasks}
    if wanted.ask and (known := session.read(lambda core: core.grills.attacked(**named))) is not None:
        print(visible_text(session.call(lambda core: core.grills.ask(known))))
        return None
    handle = session.start_grill(**named)
    for notice in session.take_notices():
        print(notice)
    _shown(host, handle, wait=wanted.wait or wanted.ask)
    if wanted.ask:
        print(visible_text(session.call(lambda core: core.grills.ask(handle.number))))
    return handle


def _shown(host: Host, handle: GrillHandle, *, wait: bool) -> None:
    live = _view(host, handle)
    if wait or not live:
        try:
            handle.wait()
        except KeyboardInterrupt:
            raise KeyboardInterrupt("the wait was interrupted; the attack goes on (%grill show, %grill stop)") from None
        print(visible_text(handle.text()))


def _view(host: Host, handle: GrillHandle) -> bool:
    """Display a live view where somebody sits in front; whether it was."""
    if not (host.interactive and host.in_kernel):
        return False
    from IPython.display import display

    display(host.grill_view(handle))
    return True


def _say(host: Host, word: str, rest: str) -> None:
    session = host.opened()
    if word in {"accept", "reject", "answer"}:
        first, _, after = rest.partition(" ")
        number = int(first) if first.isdecimal() else None
        text = rest if number is None else after
        if word == "accept" and text.strip():
            raise UsageProblem(NUMBERED.format(word=word))
        said = session.call(lambda core: core.grills.answer(number, word, text))
        print(visible_text(said))
        return
    if rest:
        raise UsageProblem(f"%grill {word} takes nothing more. A text that begins with {word!r} needs the cell form.")
    if word == "skip":
        print(visible_text(session.call(lambda core: core.grills.skip())))
        return
    handle = session.newest_grill()
    if word == "show":
        if not _view(host, handle):
            print(visible_text(handle.text()))
    elif word == "stop":
        handle.stop()
        print("The attack is stopped. `%grill resume` goes on with it.")
    else:
        host.session_for_work()
        handle.resume()
        _shown(host, handle, wait=False)
