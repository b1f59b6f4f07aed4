"""Next steps that standing agents set for themselves: the tool, the fold, and the letters by which they come due."""

from __future__ import annotations

from pydantic import BaseModel, Field

from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.agents.tasks.graph import bad_path, expand
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.runtime.globs import BadGlob
from musecode_jupyter.tools.registry import Arguments, Outcome, Tool, ToolContext

FOLLOW_UP = "follow_up"
MOST_WAITING = 3
"""So many next steps of one agent may wait."""
MOST_TURNS = 5
"""So many turns of all agents begin by themselves while one goal is worked on; what comes due beyond waits as mail."""
MAX_STEPS = 10
"""Model calls of such a turn."""


WHY = "its own next step"
"""What is said to have woken an agent, for people: what woke it is told by the cause of agent.woken."""


class FollowUp(BaseModel):
    """One follow_up.set that has not come due."""

    agent: str
    what: str
    paths: list[str]


class Due(BaseModel):
    """A next step that has come due: `by` the landing that touched `files` of it."""

    step: FollowUp
    by: int
    files: list[str]


class FollowUpsState(BaseModel):
    """`waiting` and `due` by seq of follow_up.set; `landing` has the files of merges that are about to land.

    `letters` has the number of the step of each letter that told its agent that it has come due, until the agent has
    read it in a turn that has ended. `turns` counts those that began by themselves since a goal was set or resumed.
    """

    waiting: dict[int, FollowUp] = Field(default_factory=dict)
    due: dict[int, Due] = Field(default_factory=dict)
    landing: dict[int, list[str]] = Field(default_factory=dict)
    letters: dict[int, int] = Field(default_factory=dict)
    turns: int = 0

    def of(self, agent: str) -> dict[int, FollowUp]:
        """The steps of `agent` of which it was not told that they have come due."""
        steps = {**self.waiting, **{number: due.step for number, due in self.due.items()}}
        return {number: step for number, step in sorted(steps.items()) if step.agent == agent}


class FollowUpsReducer:
    """Folds follow_up.set, landings, and the letters that tell of what has come due.

    The steps of an agent that gives way to another of its name are that one's; those of one that is retired for good
    are told to the lead.
    """

    name = "follow_ups"
    kinds = frozenset(
        {
            *("follow_up.set", "merge.landing", "merge.landed", "mail.sent", "mail.acknowledged", "mail.dropped"),
            *("agent.woken", "goal.set", "goal.resumed"),
        }
    )

    def initial(self) -> FollowUpsState:
        return FollowUpsState()

    def apply(self, state: FollowUpsState, event: Event) -> None:
        data = event.data
        if event.kind == "follow_up.set":
            state.waiting[event.seq] = FollowUp(agent=event.agent, what=data["what"], paths=data["paths"])
        elif event.kind == "merge.landing":
            state.landing[data["merge"]] = list(data["files"])
        elif event.kind == "merge.landed":
            self._landed(state, event.seq, state.landing.pop(data["merge"], []))
        elif event.kind == "mail.sent" and event.agent == HARNESS and event.cause:
            self._told(state, event)
        elif event.kind in {"mail.acknowledged", "mail.dropped"}:
            state.letters.pop(data["mail"], None)
        elif event.kind == "agent.woken":
            state.turns += bool(event.cause) and event.cause[0] in state.letters
        elif event.kind in {"goal.set", "goal.resumed"}:
            state.turns = 0

    def _told(self, state: FollowUpsState, event: Event) -> None:
        number = event.cause[0]
        state.waiting.pop(number, None)
        due = state.due.pop(number, None)
        if due is not None and due.step.agent == event.data["to"]:
            state.letters[event.seq] = number

    def _landed(self, state: FollowUpsState, by: int, files: list[str]) -> None:
        for seq, step in list(state.waiting.items()):
            try:
                touched = sorted(expand(step.paths, files) & set(files))
            except BadGlob:
                # Logs from before such were refused may hold one: it means no file.
                continue
            if touched:
                state.due[seq] = Due(step=state.waiting.pop(seq), by=by, files=touched)


def follow_ups_of(log: EventLog) -> FollowUpsState:
    """Next steps as folded."""
    state = log.state("follow_ups")
    assert isinstance(state, FollowUpsState)
    return state


def topic_of(number: int) -> str:
    """The topic of the letter by which next step `number` comes due, and of what comes of it."""
    return f"next step {number}"


def letter(due: Due, *, inherited: bool = False) -> str:
    """What an agent is told as its next step comes due; `inherited`: one that had its name before has set it."""
    who = "The one that had your name before you" if inherited else "You"
    files = ", ".join(due.files[:20]) + (f" and {len(due.files) - 20} more" if len(due.files) > 20 else "")
    return (
        f"{who} wanted to look again once this changed: {due.step.what}\nIt has landed: {files}. Look at it now. If "
        "others should know of what you find, answer in a few sentences, which go to the lead with the digest; if "
        "there is nothing to tell, answer with nothing but: nothing."
    )


def wanted(log: EventLog, told: int) -> str:
    """What the agent had set itself, of whose step letter `told` tells."""
    return str(log.get(log.get(told).cause[0]).data["what"])


def not_taken_up(step: FollowUp, why: str) -> str:
    """What the lead is told of a step that nobody takes up any more."""
    return (
        f"{step.agent} wanted to look again once one of {', '.join(step.paths)} had landed, and does not: {why} "
        f"It was: {step.what}"
    )


def tells(answer: str) -> bool:
    """Whether an answer to such a letter says anything."""
    return answer.strip().rstrip(".").casefold() not in {"", "nothing"}


class FollowUpArguments(Arguments):
    """Arguments of `follow_up`."""

    what: str = Field(max_length=600, description="What you will look at then, and why; you are told it again")
    paths: list[str] = Field(
        min_length=1, max_length=20, description="Files, or patterns such as src/*.py: you are woken once one lands"
    )


async def _follow_up(context: ToolContext, arguments: FollowUpArguments) -> Outcome:
    if not arguments.what.strip():
        raise ToolProblem("Say what you will look at.")
    for path in arguments.paths:
        if why := bad_path(path):
            raise ToolProblem(f"{path[:100]!a} {why}.")
    for event in context.log.events(since=context.call):
        if event.kind == "follow_up.set" and event.cause == (context.call,):
            # A restart cut the call off before it had its result.
            return _is_set(event.seq)
    mine = [seq for seq, each in follow_ups_of(context.log).waiting.items() if each.agent == context.agent]
    if len(mine) >= MOST_WAITING:
        raise ToolProblem(f"{MOST_WAITING} next steps of yours wait already: {', '.join(map(str, mine))}.")
    said = {"what": arguments.what, "paths": list(dict.fromkeys(arguments.paths))}
    event = context.log.post("follow_up.set", said, agent=context.agent, cause=(context.call,))
    return _is_set(event.seq)


def _is_set(number: int) -> Outcome:
    return Outcome(f"Next step {number} is set: you are woken once one of these lands.")


FOLLOW_UP_TOOL = Tool(
    name=FOLLOW_UP,
    description="Set a next step for yourself: look again once changes of certain files have landed.",
    arguments=FollowUpArguments,
    effect="read",
    run=_follow_up,
)
