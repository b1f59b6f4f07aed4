"""What the words after `%muse` do, and how goals, agents and costs are told as text."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError

from musecode_jupyter.agents.landing.tools import HARNESS
from musecode_jupyter.jupyter.budget_words import budget
from musecode_jupyter.jupyter.critique_words import critiques
from musecode_jupyter.jupyter.export_words import export
from musecode_jupyter.jupyter.host import Host
from musecode_jupyter.jupyter.kept import kept_of
from musecode_jupyter.jupyter.notebook_commands import ask, cells, run, variables
from musecode_jupyter.jupyter.rule_words import rules, trust
from musecode_jupyter.jupyter.tier_words import model, tier
from musecode_jupyter.runtime.errors import LogReadOnly, UsageProblem
from musecode_jupyter.session import GoalHandle, GoalResult, Session
from musecode_jupyter.session.agents_view import agents_lines
from musecode_jupyter.session.context import pin
from musecode_jupyter.session.fork import lineage_of
from musecode_jupyter.session.lines import events_table
from musecode_jupyter.session.summary import BEHIND, summarise
from musecode_jupyter.session.time_travel import before_fork_text, landings_after
from musecode_jupyter.session.visible import visible_text
from musecode_jupyter.skills.limits import duration

Command = Callable[[Host, str], Any]

# A landing that did not reach the files in front of the user is told, though the goal is met.
ELSEWHERE = re.compile(r"checked out nowhere|left as they are")


def queue_lines(session: Session) -> list[str]:
    """The goals that wait, a line each."""
    return [
        visible_text(f"{place}. {each.text} (queued as {each.number})")
        for place, each in enumerate(session.queued(), 1)
    ]


def goal_text(handle: GoalHandle) -> str:
    """How a goal stands, in full."""
    result = handle.result
    lines = [
        f"Goal {handle.number}: {handle.text}",
        f"  {result.status}" + (f": {result.why}" if result.why else ""),
    ]
    if result.more:
        lines.append(f"  {_give_more(result)}")
    if result.checkout:
        lines.append(f"  {result.checkout}")
    lines += [f"  {line}" for line in result.handover]
    lines.append(
        f"  {result.model_calls} model calls, {result.tool_calls} tool calls, {result.tokens} tokens, "
        f"{result.usd:.4f} USD, {duration(result.seconds)}"
    )
    return visible_text("\n".join(lines))


def finished_goal_text(handle: GoalHandle) -> str:
    """How a goal ended, without figures that differ from run to run."""
    result = handle.result
    if not result.met:
        more = f" {_give_more(result)}" if result.more else ""
        return visible_text(f"Goal not met ({result.status}): {result.why}{more}")
    if ELSEWHERE.search(result.checkout):
        return f"Goal met: {handle.text}\n{result.checkout}"
    return f"Goal met: {handle.text}"


def _give_more(result: GoalResult) -> str:
    return f"`%goal edit {result.more}` gives it more, then `%goal resume` goes on."


def show_root(session: Session) -> None:
    """Say where verify commands run if it is not the folder that the user is in."""
    root = session.repository()
    if root != session.workspace:
        print(f"Work and verify commands run in {root}, the root of the repository.")


def show_live(host: Host, handle: GoalHandle) -> None:
    """Show the live views below the cell; when the goal ends, what the notebook keeps is brought up to date."""
    from IPython.display import display

    shown = []
    for view in (host.timeline(), host.approvals_view()):
        shown.append((view, display(view, display_id=True)))
    # A front end that opens the saved notebook shows the widget's place, and there is no widget: so its last state
    # stands beside it, hidden by the widget's style as long as there is one.
    built = all(getattr(view, "built", False) for view, _ in shown)
    beside = display(kept_of([]), raw=True, display_id=True) if built else None

    def store() -> None:
        for view, output in shown:
            if hasattr(view, "flush"):
                view.flush()
            output.update(view)
        if beside is not None:
            beside.update(kept_of([view for view, _ in shown]), raw=True)

    # In the context of this cell, so that the message names it and not the cell that happens to run then.
    host.when_goal_ends(handle.number, partial(copy_context().run, store))


def show_static(host: Host) -> None:
    """Show the timeline as it is now, without a live view."""
    from IPython.display import display

    from musecode_jupyter.jupyter.views import timeline_html, timeline_text
    from musecode_jupyter.session.summary import summarise
    from musecode_jupyter.session.totals import Totals

    summaries = [summarise(event) for event in host.opened().events()]
    header = Totals(summaries).header()
    display(
        {
            "text/html": timeline_html(summaries, header),
            "text/plain": timeline_text(summaries, header),
        },
        raw=True,
    )


def _agents(host: Host, _rest: str) -> None:
    session = host.opened()
    for line in session.read(agents_lines):
        print(line)
    for number, question in session.approvals.pending.items():
        print(f"approval {number} waits, asked by {question.agent}: {question.rule}")


def _steer(host: Host, rest: str) -> None:
    now, rest = steering(rest)
    agent, _, text = rest.partition(" ")
    print(steered(agent, host.opened().call(lambda core: core.steer(text, agent, now=now))))


def steering(text: str) -> tuple[bool, str]:
    """Whether the text begins with --now, and what follows."""
    word, _, rest = text.strip().partition(" ")
    return (True, rest.strip()) if word == "--now" else (False, text.strip())


def steered(agent: str, ended: bool) -> str:
    """What is said of a message to `agent`, whose command was `ended` for it or not."""
    return f"{agent} reads it {'now: its command was ended' if ended else 'before its next step'}."


def _stop(host: Host, rest: str) -> None:
    print(host.opened().stop(rest))


def _timeline(host: Host, rest: str) -> None:
    words = rest.split()
    options = {"--agent": "", "--kind": "", "--since": "0"}
    for name, value in zip(words[::2], [*words[1::2], None], strict=False):
        if name not in options or value is None:
            raise UsageProblem("%muse timeline takes --agent A, --kind K and --since SEQ.")
        options[name] = value
    if not options["--since"].isdecimal():
        raise UsageProblem(f"--since takes the number of an event, not {options['--since']!r}.")
    if host.interactive and not words:
        from IPython.display import display

        display(host.timeline())
        return
    events = [
        event
        for event in host.opened().events(int(options["--since"]))
        if options["--agent"] in ("", event.agent or HARNESS)
        and event.kind.startswith(options["--kind"])
        and (options["--kind"] or event.kind not in BEHIND)
    ]
    print(events_table([summarise(event) for event in events]))


def _show(host: Host, rest: str) -> None:
    if not rest.isdecimal():
        raise UsageProblem("%muse show takes the number of an event: %muse show 12.")
    from musecode_jupyter.session.causes import story

    print(story(_written(host.opened()), int(rest)).text())


def _search(host: Host, rest: str) -> None:
    from musecode_jupyter.session.search import LIMIT, search

    words = rest.split(maxsplit=2)
    limit = LIMIT
    if words[:1] == ["--limit"]:
        if len(words) < 3 or not words[1].isdecimal():
            raise UsageProblem("%muse search takes --limit N before the text: %muse search --limit 200 TEXT.")
        limit, rest = int(words[1]), words[2]
    print(search(_written(host.opened()), rest, limit).text())


def _written(session: Session) -> Path:
    """The folder of the session, once all that happened so far is in it; it is read beside the agents' work."""
    # A log that cannot be written any more can be read all the same.
    with contextlib.suppress(LogReadOnly):
        session.call(lambda core: core.log.flush())
    return session.folder


def _tasks(host: Host, _rest: str) -> None:
    print(host.opened().tasks_text())


def _map(host: Host, rest: str) -> None:
    print(visible_text(host.map_text(rest)), end="")


def _claims(host: Host, rest: str) -> None:
    words = rest.split(maxsplit=2)
    session = host.opened()
    if not words:
        print(visible_text(session.claims_text()))
    elif words[0] == "--why" and len(words) == 2 and words[1].isdecimal():
        print(visible_text(session.claims_text(int(words[1]))))
    elif words[0] == "retract" and len(words) > 1 and words[1].isdecimal():
        print(visible_text(session.retract_claim(int(words[1]), " ".join(words[2:]))))
    else:
        raise UsageProblem("%muse claims takes nothing, `--why N` or `retract N [WHY]`, N the number of a claim.")


def _worktrees(host: Host, rest: str) -> None:
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise UsageProblem(f"{error}: close the quotation.") from None
    if not words:
        print(visible_text(host.opened().worktrees_text()))
    elif words[0] == "reclaim" and len(words) < 3:
        said = host.opened().reclaim_worktrees(*words[1:])
        print(visible_text(said))
        if host.interactive and "%approve" in said:
            from IPython.display import display

            display(host.approvals_view())
    elif words[0] == "quarantine" and len(words) > 1:
        print(visible_text(host.opened().quarantine_worktree(words[1], " ".join(words[2:]))))
    else:
        raise UsageProblem("%muse worktrees takes nothing, `reclaim [NAME]` or `quarantine NAME [WHY]`.")


def _diff(host: Host, rest: str) -> None:
    session = host.opened()
    if not rest and session.goals.active is not None:
        print(visible_text(session.newest_goal().diff()) or "No changes.")
        return
    from musecode_jupyter.session.differences import between, changes_text

    folder = _written(session)
    print(changes_text(folder, *between(folder, rest)))


def _merges(host: Host, _rest: str) -> None:
    print(host.opened().merges())


def _undo(host: Host, rest: str) -> None:
    if not rest.isdecimal():
        raise UsageProblem("%muse undo takes the number of a landing, which `%muse merges` shows: %muse undo 12.")
    print(host.opened().undo(int(rest)))


def _number(rest: str, word: str) -> int:
    if not rest.isdecimal():
        raise UsageProblem(f"%muse {word} takes the number of an event, which `%muse timeline` shows: %muse {word} 12.")
    return int(rest)


def _fork(host: Host, rest: str) -> None:
    seq = _number(rest, "fork")
    session = host.opened()
    forked = host.fork(seq)
    print(f"Session {forked} continues from event {seq} of session {session.id}, with the files as they were then.")
    print(f"`%muse resume {forked}` goes on with it; this session is as it was.")


def _rewind(host: Host, rest: str) -> None:
    seq = _number(rest, "rewind")
    before = host.opened()
    stay = before.read(lambda core: landings_after(core, seq))
    session = host.rewind(seq)
    print(f"Back at event {seq}. What came after it is kept in session {before.id}, with its files.")
    if stay:
        numbers = ", ".join(map(str, stay))
        print(
            f"What has landed on your branch stays there: landing {numbers}. `%muse resume {before.id}`, then "
            f"`%muse undo {stay[-1]}` takes it back."
        )
    if session.goals.to_resume() is not None:
        print("`%goal resume` goes on with the goal.")


def _cost(host: Host, _rest: str) -> None:
    report = host.opened().cost
    before = visible_text(host.opened().read(lambda core: before_fork_text(lineage_of(core))))
    text = "\n".join(filter(None, [visible_text(report.text()), before]))
    if host.in_kernel:
        from IPython.display import display

        table = report._repr_html_() + (f"<p>{escape(before)}</p>" if before else "")
        display({"text/plain": text, "text/html": table}, raw=True)
    else:
        print(text)


def _pin(host: Host, rest: str, *, pinned: bool = True) -> None:
    item = _number(rest, "pin" if pinned else "unpin")
    print(host.opened().call(lambda core: pin(core, item, pinned=pinned)))


def _resume(host: Host, rest: str) -> None:
    session = host.resume(rest or None)
    number = session.goals.to_resume()
    print(f"Session {session.id} goes on: {session.log.last_seq} events.")
    if number is None:
        return
    handle = session.handle(number)
    if handle.status == "paused":
        note = host.session_for_work().resume_goal(number)
        print(f"Goal {number} goes on: {handle.text}" + (f"\n{note}" if note else ""))
        if host.interactive:
            show_live(host, handle)
        else:
            handle.wait()
            print(finished_goal_text(handle))
            show_static(host)
    else:
        print(f"Goal {handle.number} is {handle.status}: `%goal resume` goes on with it.")


def _sessions(host: Host, rest: str) -> None:
    from musecode_jupyter.session.store import list_sessions, sessions_around, sessions_text

    option, _, folder = rest.partition(" ")
    if option not in ("", "--workspace"):
        raise UsageProblem("%muse sessions takes --workspace [DIR], and nothing else.")
    home = host.home()
    here = Path(os.path.expanduser(folder.strip() or host.workspace()))
    entries = sessions_around(home, here) if option else list_sessions(home)
    print(sessions_text(entries) or (f"No sessions of {here} in {home}." if option else f"No sessions yet in {home}."))


def _verify(host: Host, _rest: str) -> None:
    from musecode_jupyter.session.replay import prove

    session = host.opened()
    session.events(session.log.last_seq)
    proof = prove(session.folder)
    print(f"{proof.events} events: the chain is whole." if proof.ok else f"NOT verified: {proof.problem}")
    if proof.ok:
        print(proof.words)


def _doctor(host: Host, _rest: str) -> None:
    from musecode_jupyter.session.doctor import examine, report

    print(report(examine(host.settings())))


def _close(host: Host, _rest: str) -> None:
    if host.open is None:
        raise UsageError("No session is open.")
    host.close()
    print("The session is closed.")


COMMANDS: dict[str, Command] = {
    "ask": ask,
    "agents": _agents,
    "steer": _steer,
    "stop": _stop,
    "timeline": _timeline,
    "show": _show,
    "search": _search,
    "cells": cells,
    "vars": variables,
    "run": run,
    "tasks": _tasks,
    "claims": _claims,
    "diff": _diff,
    "map": _map,
    "merges": _merges,
    "critiques": critiques,
    "undo": _undo,
    "fork": _fork,
    "rewind": _rewind,
    "worktrees": _worktrees,
    "cost": _cost,
    "budget": budget,
    "pin": _pin,
    "unpin": partial(_pin, pinned=False),
    "model": model,
    "tier": tier,
    "rules": rules,
    "trust": trust,
    "resume": _resume,
    "sessions": _sessions,
    "verify": _verify,
    "export": export,
    "doctor": _doctor,
    "close": _close,
}
# These neither open a session nor offer a resume.
QUIET = frozenset({"cells", "map", "vars", "resume", "sessions", "doctor", "close"})
# These only show: where no session is open they say so, and it is no error.
SHOWING = frozenset(
    {
        "agents",
        "worktrees",
        "timeline",
        "show",
        "search",
        "tasks",
        "claims",
        "critiques",
        "diff",
        "merges",
        "cost",
        "verify",
        "export",
    }
)
# These take nothing more.
ALONE = frozenset({"agents", "tasks", "merges", "cost", "verify", "doctor", "close"})
