"""Next steps that standing agents set for themselves: the tool, the fold, and the letters by which they come due."""

from __future__ import annotations

from pydantic import BaseModel, Field

from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.agents.tasks.graph import bad_path, expand
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.globs import BadGlob
from musecode_jupyter.tools.registry import Arguments, Outcome, Tool, ToolContext

FOLLOW_UP = "follow_up"
MOST_WAITING = 3
"""So many next steps of one agent may wait."""
MOST_TURNS = 5
"""So many turns of all agents begin by themselves while one goal is worked on; what comes due beyond waits as mail."""
MAX_STEPS = 10
"""Model calls of such a turn."""


WANTED = "You wanted to look again once this changed: "
NEXT_STEP = "next step"
"""Begins the topic of letters about them."""
WHY = "its own next step"
"""Begins the reason of turns that agents have set for themselves."""


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

    `turns` counts those that began by themselves since a goal was set or resumed.
    """

    waiting: dict[int, FollowUp] = Field(default_factory=dict)
    due: dict[int, Due] = Field(default_factory=dict)
    landing: dict[int, list[str]] = Field(default_factory=dict)
    turns: int = 0


class FollowUpsReducer:
    """Folds follow_up.set, landings, and the letters that tell of what has come due."""

    name = "follow_ups"
    kinds = frozenset(
        {
            *("follow_up.set", "merge.landing", "merge.landed", "mail.sent", "agent.woken", "agent.retired"),
            *("goal.set", "goal.resumed"),
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
            state.due.pop(event.cause[0], None)
        elif event.kind == "agent.woken" and data["why"].startswith(WHY):
            state.turns += 1
        elif event.kind == "agent.retired":
            for steps in (state.waiting, state.due):
                for seq in [seq for seq, each in steps.items() if _agent(each) == event.agent]:
                    del steps[seq]
        elif event.kind in {"goal.set", "goal.resumed"}:
            state.turns = 0

    def _landed(self, state: FollowUpsState, by: int, files: list[str]) -> None:
        for seq, step in list(state.waiting.items()):
            try:
                touched = sorted(expand(step.paths, files) & set(files))
            except BadGlob:
                # Logs from before such were refused may hold one: it means no file.
                continue
            if touched:
                state.due[seq] = Due(step=state.waiting.pop(seq), by=by, files=touched)


def _agent(step: FollowUp | Due) -> str:
    return step.agent if isinstance(step, FollowUp) else step.step.agent


def follow_ups_of(log: EventLog) -> FollowUpsState:
    """Next steps as folded."""
    state = log.state("follow_ups")
    assert isinstance(state, FollowUpsState)
    return state


def topic_of(number: int) -> str:
    """The topic of the letter by which next step `number` comes due, and of what comes of it."""
    return f"{NEXT_STEP} {number}"


def letter(due: Due) -> str:
    """What an agent is told as its next step comes due."""
    files = ", ".join(due.files[:20]) + (f" and {len(due.files) - 20} more" if len(due.files) > 20 else "")
    return (
        f"{WANTED}{due.step.what}\nIt has landed: {files}. Look at it now. If "
        "others should know of what you find, answer in a few sentences, which go to the lead with the digest; if "
        "there is nothing to tell, answer with nothing but: nothing."
    )


def wanted(text: str) -> str:
    """What the agent had set itself, from the letter that told it."""
    return text.removeprefix(WANTED).split("\nIt has landed: ")[0]


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
