"""What the words after `%muse` do, and how goals, agents and costs are told as text."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from IPython.core.error import UsageError

from musecode_jupyter.jupyter.host import Host, change_diff, event_as_json
from musecode_jupyter.jupyter.views import timeline_table
from musecode_jupyter.log.events import canonical
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session import GoalHandle
from musecode_jupyter.session.summary import summarise
from musecode_jupyter.skills.goal import HARNESS

Command = Callable[[Host, str], Any]


def goal_text(handle: GoalHandle) -> str:
    """How a goal stands, in full."""
    result = handle.result
    lines = [
        f"Goal {handle.number}: {handle.text}",
        f"  {result.status}" + (f": {result.why}" if result.why else ""),
    ]
    lines.append(
        f"  {result.model_calls} model calls, {result.tool_calls} tool calls, {result.tokens} tokens, "
        f"{result.usd:.4f} USD, {result.seconds:.0f} s"
    )
    return "\n".join(lines)


def finished_goal_text(handle: GoalHandle) -> str:
    """How a goal ended, without figures that differ from run to run."""
    result = handle.result
    if not result.met:
        return f"Goal not met ({result.status}): {result.why}"
    return f"Goal met: {handle.text}"


def show_live(host: Host, handle: GoalHandle) -> None:
    """Show the live views below the cell; when the goal ends, what the notebook keeps is brought up to date."""
    from IPython.display import display

    shown = []
    for view in (host.timeline(), host.approvals_view()):
        shown.append((view, display(view, display_id=True)))

    def store() -> None:
        # What the notebook keeps: without a kernel the widget is dead, its text and HTML are not.
        for view, output in shown:
            if hasattr(view, "flush"):
                view.flush()
            output.update(view)

    # In the context of this cell, so that the message names it and not the cell that happens to run then.
    host.when_goal_ends(handle.number, partial(copy_context().run, store))


def show_static(host: Host) -> None:
    """Show the timeline as it is now, without a live view."""
    from IPython.display import display

    from musecode_jupyter.jupyter.views import Totals, timeline_html, timeline_text
    from musecode_jupyter.session.summary import summarise

    summaries = [summarise(event) for event in host.session().events()]
    header = Totals(summaries).header()
    display(
        {
            "text/html": timeline_html(summaries, header),
            "text/plain": timeline_text(summaries, header),
        },
        raw=True,
    )


def _ask(host: Host, rest: str) -> None:
    print(host.session().call(lambda core: core.ask(rest)))


def _agents(host: Host, _rest: str) -> None:
    session = host.session()
    agents = session.read(lambda core: core.agents.model_copy(deep=True)).agents
    ledger = session.ledger
    for name, record in agents.items():
        spent = ledger.by_agent.get(name)
        cost = "" if spent is None else f", {spent.calls} model calls, {spent.tokens} tokens, {spent.usd:.4f} USD"
        why = f" ({record.why})" if record.why else ""
        print(f"{name}: {record.role}, {record.profile}, {record.model}: {record.state}{why}{cost}")


def _steer(host: Host, rest: str) -> None:
    agent, _, text = rest.partition(" ")
    host.session().call(lambda core: core.steer(text, agent))
    print(f"{agent} reads it before its next step.")


def _stop(host: Host, rest: str) -> None:
    handle = host.session().newest_goal()
    if rest and rest != "lead":
        raise UsageProblem(f"There is no running agent {rest!r}; `%muse agents` lists them.")
    handle.stop()
    print("Stopped; what was done so far is kept.")


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
        for event in host.session().events(int(options["--since"]))
        if options["--agent"] in ("", event.agent or HARNESS) and event.kind.startswith(options["--kind"])
    ]
    print(timeline_table([summarise(event) for event in events]))


def _show(host: Host, rest: str) -> None:
    if not rest.isdecimal():
        raise UsageProblem("%muse show takes the number of an event: %muse show 12.")
    session = host.session()
    event = session.event(int(rest))
    record = event_as_json(event)
    print(f"{event.seq} {event.ts} {event.agent or HARNESS} {event.kind}  {summarise(event)['text']}")
    if event.cause:
        print("because of " + ", ".join(map(str, event.cause)))
    for name, value in record["data"].items():
        text = value if isinstance(value, str) else canonical(value)
        print(f"{name}: {text}" if "\n" not in text else f"{name}:\n{text}")
    if event.kind == "file.changed":
        print(session.read(lambda _core: change_diff(session, event)))


def _diff(host: Host, _rest: str) -> None:
    print(host.session().newest_goal().diff() or "No changes.")


def _cost(host: Host, _rest: str) -> None:
    ledger = host.session().ledger
    for name, spent in [*ledger.by_agent.items(), ("total", ledger.total)]:
        cached = 100 * spent.cached / spent.input if spent.input else 0
        notes = [f"{spent.failed} failed"] if spent.failed else []
        notes += [f"{spent.estimated_calls} estimated"] if spent.estimated_calls else []
        print(
            f"{name}: {spent.usd:.4f} USD, {spent.calls} calls, "
            f"{spent.input} tokens in ({cached:.0f}% cached), {spent.output} out"
            + (f" ({', '.join(notes)})" if notes else "")
        )


def _resume(host: Host, rest: str) -> None:
    session = host.resume(rest or None)
    unfinished = [number for number, goal in session.goals.goals.items() if goal.status != "met"]
    print(f"Session {session.id} goes on: {session.log.last_seq} events.")
    if not unfinished:
        return
    handle = GoalHandle(session, unfinished[-1], session.goals.goals[unfinished[-1]].text)
    if handle.status == "paused":
        handle.resume()
        print(f"Goal {handle.number} goes on: {handle.text}")
        if host.interactive:
            show_live(host, handle)
        else:
            handle.wait()
            print(finished_goal_text(handle))
            show_static(host)
    else:
        print(f"Goal {handle.number} is {handle.status}: `%goal resume` goes on with it.")


def _sessions(host: Host, _rest: str) -> None:
    from musecode_jupyter.session.store import list_sessions

    home = host.home()
    entries = list_sessions(home)
    if not entries:
        print(f"No sessions yet in {home}.")
    for entry in entries:
        print(f"{entry.id}  {entry.state:7}  {entry.events:>7} events  {entry.workspace}")


def _verify(host: Host, _rest: str) -> None:
    from musecode_jupyter.session.replay import prove

    session = host.session()
    session.events(session.log.last_seq)
    proof = prove(session.folder)
    print(f"{proof.events} events: the chain is whole." if proof.ok else f"NOT verified: {proof.problem}")
    if proof.ok:
        print(f"{proof.digests} state digests equal the fold; {proof.prompts} prompts rebuilt byte for byte.")


def _doctor(host: Host, _rest: str) -> None:
    from musecode_jupyter.session.doctor import examine, report

    print(report(examine(host.settings())))


def _close(host: Host, _rest: str) -> None:
    if host.open is None:
        raise UsageError("No session is open.")
    host.close()
    print("The session is closed.")


COMMANDS: dict[str, Command] = {
    "ask": _ask,
    "agents": _agents,
    "steer": _steer,
    "stop": _stop,
    "timeline": _timeline,
    "show": _show,
    "diff": _diff,
    "cost": _cost,
    "resume": _resume,
    "sessions": _sessions,
    "verify": _verify,
    "doctor": _doctor,
    "close": _close,
}
# These neither open a session nor offer a resume.
QUIET = frozenset({"resume", "sessions", "doctor", "close"})
# These take nothing more.
ALONE = frozenset({"agents", "diff", "cost", "sessions", "verify", "doctor", "close"})
