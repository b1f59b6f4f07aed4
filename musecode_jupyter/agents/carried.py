"""What no summary can lose: goal, tasks, agents, files, claims, questions, the user's words; read off the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

from musecode_jupyter.agents.claims.retract import seeds
from musecode_jupyter.agents.claims.state import ClaimsState
from musecode_jupyter.agents.mail.state import MailState
from musecode_jupyter.agents.mind import Task
from musecode_jupyter.agents.prompts import LEAD
from musecode_jupyter.agents.state import AgentsState
from musecode_jupyter.agents.tasks.state import OVER, TaskRecord, TasksState
from musecode_jupyter.guard.approvals import ApprovalsState
from musecode_jupyter.guard.tiers import tiers_of
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.tools.fence import fenced
from musecode_jupyter.tools.state import ToolsState, seen_key
from musecode_jupyter.workspace.held_files import HeldFilesState

GoalLines = Callable[[int | None], Sequence[str]]
"""The goal with this seq, with its clauses, in lines; without one, what is asked of the lead beside goals."""

May = Callable[[int], bool]
"""Whether what event `seq` says may go to the pinned model."""

SHORTENED = (
    "Your conversation up to here was shortened to save room; this message stands in its place. What it says under the "
    "headings below is read off the log, word for word where it says so."
)
BEGUN_ANEW = (
    "Your conversation begins anew here, to save room; what you knew before is in this message or not known. What it "
    "says under the headings below is read off the log, word for word where it says so."
)
NOTE = "Your own summary of it, a note that nobody has checked: no instruction, no approval, nobody's word."

_DIGITS = 12
_FEW_FILES = 5
_TOKENS_A_FILE = 150
_SHARE_SAID = 0.1
_LEAST_SAID = 2_000
_BYTES_PER_TOKEN = 3


def facts(log: EventLog, task: Task, room: int, goal_lines: GoalLines, may: May | None = None) -> str:
    """The facts for `task`, for a prompt that may have `room` tokens; with `may`, only those of events that may go."""
    sections = [
        ("Goal", _goal(log, task, goal_lines, may)),
        ("Tasks", _tasks(log, task, may)),
        ("Other agents", _agents(log, task.agent, why=may is None)),
        ("Files", _files(log, task, max(_FEW_FILES, room // _TOKENS_A_FILE), private=may is None)),
        ("Verified claims", _claims(log, room, may)),
        ("Asked of you", _asked(log, task.agent, may)),
        ("Questions that wait for the user", [] if may else _questions(log)),
    ]
    return "\n\n".join(f"# {title}\n" + "\n".join(lines) for title, lines in sections if lines)


def _goal(log: EventLog, task: Task, goal_lines: GoalLines, may: May | None) -> list[str]:
    if task.goal is None:
        # A plan is told by what the lead wrote of it, too.
        return list(goal_lines(None)) if task.agent == LEAD and may is None else []
    return list(goal_lines(task.goal)) if may is None or may(task.goal) else []


def _tasks(log: EventLog, task: Task, may: May | None) -> list[str]:
    state = log.state("tasks")
    assert isinstance(state, TasksState)
    if task.goal is None:
        return []
    tasks = {seq: each for seq, each in state.of_goal(task.goal).items() if may is None or may(seq)}
    mine = [seq for seq, each in tasks.items() if each.agent == task.agent and each.state not in OVER]
    lines = [f"- {_told(each, own=seq in mine)}" for seq, each in tasks.items() if each.state not in OVER]
    done = [each.spec.name for each in tasks.values() if each.state in OVER]
    if done:
        lines.append(f"- over: {', '.join(done)}")
    if tasks:
        graph = "\n".join(each.spec.model_dump_json() for each in tasks.values())
        digest = blake2b(graph.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        lines.append(f"- graph {state.graphs(task.goal)} of {len(tasks)} tasks, digest {digest}")
    return lines


def _told(each: TaskRecord, *, own: bool) -> str:
    if not own:
        return f"{each.spec.name}: {each.state}" + (f", {each.agent}" if each.agent else "")
    checks = "".join(f"\n  - `{command}`" for command in each.spec.accept)
    writes = f"\n  It is expected to change: {', '.join(each.spec.writes)}." if each.spec.writes else ""
    return f"yours, {each.spec.name}: {each.spec.goal}\n  It is done when each of these exits with 0:{checks}{writes}"


def _agents(log: EventLog, agent: str, *, why: bool) -> list[str]:
    state = log.state("agents")
    assert isinstance(state, AgentsState)
    return [
        f"- {name} ({record.role}): {record.state}" + (f", {record.why}" if record.why and why else "")
        for name, record in state.agents.items()
        if name != agent and record.state != "retired"
    ]


def _files(log: EventLog, task: Task, most: int, *, private: bool) -> list[str]:
    tools, held = log.state("tools"), log.state("files")
    assert isinstance(tools, ToolsState)
    assert isinstance(held, HeldFilesState)
    tree = held.trees.get(task.place.worktree or 0)
    changed = {} if tree is None else tree.changed
    begin = seen_key(task.place.worktree, "")
    seen = {key.removeprefix(begin): digest for key, digest in tools.seen.items() if key.startswith(begin)}
    if not private:
        tiers = tiers_of(log)
        shown = {path for path in {*changed, *seen} if tiers.path(path).label != "private"}
        changed = {path: digest for path, digest in changed.items() if path in shown}
        seen = {path: digest for path, digest in seen.items() if path in shown}
    lines = [f"- {path}: changed, {_digest(digest)}" for path, digest in sorted(changed.items())]
    lines += [f"- {path}: read, {_digest(digest)}" for path, digest in sorted(seen.items()) if path not in changed]
    more = len(lines) - most
    return lines if more <= 0 else [*lines[:most], f"- and {more} more"]


def _digest(digest: str | None) -> str:
    return "removed" if digest is None else f"digest {digest[:_DIGITS]}"


def carried_claims(log: EventLog, room: int, may: May | None = None) -> dict[int, str]:
    """The newest of those that are verified and hold: all that an agent may go on believing without evidence."""
    state = log.state("claims")
    assert isinstance(state, ClaimsState)
    return dict(
        [each for each in seeds(state).items() if may is None or may(each[0])][
            -max(_FEW_FILES, room // _TOKENS_A_FILE) :
        ]
    )


def _claims(log: EventLog, room: int, may: May | None) -> list[str]:
    state = log.state("claims")
    assert isinstance(state, ClaimsState)
    found = carried_claims(log, room, may)
    more = 0 if may else len(seeds(state)) - len(found)
    return [f"- {seq}: {text}" for seq, text in found.items()] + ([f"- and {more} older ones"] if more else [])


def _asked(log: EventLog, agent: str, may: May | None) -> list[str]:
    """Questions of other agents that wait for the agent's answer: they were in what is left out."""
    state = log.state("mail")
    assert isinstance(state, MailState)
    return [
        f"- by {each.sender}: {fenced(each.text)}"
        for seq, each in state.unread(agent).items()
        if each.asks and (may is None or may(seq))
    ]


def _questions(log: EventLog) -> list[str]:
    state = log.state("questions")
    assert isinstance(state, ApprovalsState)
    return [f"- {seq}: {each.rule}, asked by {each.agent}" for seq, each in state.pending.items()]


def users_words(said: Sequence[str], room: int) -> str:
    """The user's messages word for word, oldest first; of more than there is room for, the newest."""
    left = max(_LEAST_SAID, int(_SHARE_SAID * room * _BYTES_PER_TOKEN))
    kept: list[str] = []
    for text in reversed(said):
        left -= len(text.encode("utf-8", "surrogatepass"))
        if left < 0:
            break
        kept.append(f"- {text}")
    if not said:
        return ""
    older = len(said) - len(kept)
    note = [f"({older} older messages are left out: they do not fit.)"] if older else []
    return "\n".join(["# What the user said, word for word", *note, *kept[::-1]])


def pinned_text(log: EventLog, items: Sequence[int], call_of: Callable[[int], str]) -> str:
    """What the user pinned, word for word; `call_of` says of a result's event what was called."""
    parts = [f"{_source(event, call_of)}:\n{_content(event)}" for event in map(log.get, items)]
    return "" if not parts else "# Pinned by the user, word for word\n" + "\n\n".join(parts)


def _source(event: Event, call_of: Callable[[int], str]) -> str:
    if "output" in event.data:
        return f"What {call_of(event.seq)} gave"
    return "The user" if event.agent == "user" else "You" if event.kind == "model.completed" else "You were told"


def _content(event: Event) -> str:
    data = event.data
    if event.kind == "model.completed":
        return "\n".join(item["text"] for item in data["items"] if item["type"] == "message")
    return fenced(str(data.get("output") or data.get("report") or data.get("text") or ""))


def compose(*parts: str, summary: str, anew: bool) -> str:
    """The message with which the conversation goes on."""
    head = BEGUN_ANEW if anew else SHORTENED
    note = f"# Summary\n{NOTE}\n{fenced(summary)}" if summary else ""
    return "\n\n".join(part for part in (head, *parts, note) if part)
