"""The fold of the agents: who there is, what each has in its conversation, which of its calls still lack a result."""

from __future__ import annotations

from pydantic import BaseModel, Field

from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Slice
from musecode_jupyter.tools.state import CLOSING

# What an agent does itself.
_OWN = frozenset(
    {
        *("agent.state", "agent.seeded", "model.requested", "model.completed", "model.failed", "model.abandoned"),
        *("tool.requested", *CLOSING, "agent.view", "context.masked", "context.compacted"),
    }
)
POOR = 0.9
"""A compaction that leaves more than this share of a conversation has saved too little."""

_MOST_SAID = 200

# Events that speak to a worker, the lead or a reviewer of what they are to do, by the field that holds what is said.
_OF_TASKS = {
    "task.leased": "text",
    "task.bounced": "report",
    "tasks.tried": "report",
    "critique.asked": "text",
    "plan.begun": "message",
    "plan.edited": "message",
    "plan.checked": "report",
    "draft.begun": "message",
    "draft.checked": "report",
}


class OpenModelCall(Slice):
    """A call of the model without a result; `requested` is the seq of its tool.requested event, once there is one."""

    call_id: str
    name: str
    arguments: str
    requested: int | None = None


class Counted(Slice):
    """What the server counted: tokens of a prompt, with the `bytes` of the request and the `seq` of its answer."""

    seq: int
    input: int
    bytes: int


class AgentRecord(Slice):
    """One agent. `view` holds the seqs of the events that make up its conversation, in prompt order.

    Messages that arrive while a request or calls are open wait in `held`, so that calls and results stay paired and
    an answer follows what it answered. `unread` counts the messages that no request has carried yet.

    `results` has, for each result in `view`, its call; `masked`, for each of them that is said in a line, the
    context.masked event with the line; `pinned` the events that stay word for word; `said` the newest of the user's
    messages since the goal. `asked` is the newest question beside the conversation (agent.view), and `aside` says that
    `open_request` carries it. `usage` has what the server counted for the newest request of the conversation.
    `compacted` is the newest context.compacted, `poor` how many in a row saved less than a tenth, and `reseeded` says
    that the conversation was begun anew since one last saved more. `refused` is the size in bytes of the smallest
    request that the server found too long.
    """

    role: str
    profile: str
    model: str
    state: str = "idle"
    why: str = ""
    since: int = 0
    seeded: int | None = None
    view: list[int] = Field(default_factory=list)
    held: list[int] = Field(default_factory=list)
    open_calls: list[OpenModelCall] = Field(default_factory=list)
    open_request: int | None = None
    unread: int = 0
    turn: int = 0
    steps: int = 0
    last_answer: int | None = None
    results: dict[int, int] = Field(default_factory=dict)
    masked: dict[int, int] = Field(default_factory=dict)
    pinned: list[int] = Field(default_factory=list)
    said: list[int] = Field(default_factory=list)
    asked: int | None = None
    aside: bool = False
    usage: Counted | None = None
    compacted: int | None = None
    poor: int = 0
    reseeded: bool = False
    refused: int | None = None
    request_bytes: int = 0


class AgentsState(BaseModel):
    """`agents` by name; `call_ids` has the model's own id for the seq of each tool.requested of a model."""

    agents: dict[str, AgentRecord] = Field(default_factory=dict)
    call_ids: dict[int, str] = Field(default_factory=dict)


class AgentsReducer:
    """Folds agent.* and context.*, and what of user, model, tool, goal, task and mail events is of a conversation."""

    name = "agents"
    kinds = frozenset(
        {
            *(
                "agent.created",
                "agent.retired",
                "agent.woken",
                "user.message",
                "user.steer",
                "notebook.attached",
                "mail.delivered",
            ),
            *(
                "goal.set",
                "goal.judged",
                "goal.edited",
                "goal.nudged",
                "goal.resumed",
                "context.pinned",
                *_OF_TASKS,
                *_OWN,
            ),
        }
    )

    def initial(self) -> AgentsState:
        return AgentsState()

    def apply(self, state: AgentsState, event: Event) -> None:
        data = event.data
        kind = event.kind
        if kind in _OWN:
            if event.agent in state.agents:
                self._own(state, state.agents[event.agent], event)
        elif kind == "agent.created":
            # One that takes the name of another counts on: turns and steps are of the name.
            before = state.agents.get(event.agent)
            state.agents[event.agent] = AgentRecord(
                role=data["role"],
                profile=data["profile"],
                model=data["model"],
                since=event.seq,
                turn=0 if before is None else before.turn,
                steps=0 if before is None else before.steps,
            )
        elif kind == "agent.retired" and event.agent in state.agents:
            self._retired(state, state.agents[event.agent], event)
        elif kind in {"user.message", "user.steer", "notebook.attached"}:
            self._say(state, data["to"], event.seq, new_turn=kind == "user.message")
            self._heard(state, data["to"], event)
        elif kind == "goal.set" or (kind in _OF_TASKS and data[_OF_TASKS[kind]]):
            if kind in {"goal.set", "task.leased"} and data["agent"] in state.agents:
                state.agents[data["agent"]].said = []
            self._say(state, data["agent"], event.seq, new_turn=True)
            if kind.startswith("plan."):
                self._heard(state, data["agent"], event)
        elif kind == "goal.judged" and data["report"]:
            self._say(state, event.agent, event.seq, new_turn=True)
        elif kind == "goal.nudged" or (
            kind == "goal.edited" and (data["text"] is not None or data.get("verify") is not None)
        ):
            self._say(state, data["agent"], event.seq, new_turn=False)
        elif kind == "mail.delivered":
            self._say(state, event.agent, data["mail"], new_turn=False)
        elif kind == "agent.woken":
            state.agents[event.agent].turn += 1
        elif kind == "goal.resumed":
            # Whoever lets it go on has made room, or wants it tried again.
            for record in state.agents.values():
                record.poor, record.reseeded = 0, False
        elif kind == "context.pinned" and data["to"] in state.agents:
            self._pin(state.agents[data["to"]], data["item"], pinned=data["pinned"])

    def _retired(self, state: AgentsState, record: AgentRecord, event: Event) -> None:
        for call in record.results.values():
            state.call_ids.pop(call, None)
        state.agents[event.agent] = AgentRecord(
            role=record.role,
            profile=record.profile,
            model=record.model,
            state="retired",
            why=event.data["why"],
            since=event.seq,
            seeded=record.seeded,
            turn=record.turn,
            steps=record.steps,
        )

    def _say(self, state: AgentsState, name: str, seq: int, *, new_turn: bool) -> None:
        record = state.agents.get(name)
        if record is None:
            return
        if new_turn:
            record.turn += 1
        record.unread += 1
        record.held.append(seq)
        self._release(record)

    def _heard(self, state: AgentsState, name: str, event: Event) -> None:
        if name in state.agents and event.agent == "user":
            said = state.agents[name].said
            said.append(event.seq)
            del said[:-_MOST_SAID]

    def _pin(self, record: AgentRecord, item: int, *, pinned: bool) -> None:
        if pinned and item not in record.pinned:
            record.pinned.append(item)
            record.masked.pop(item, None)
        elif not pinned and item in record.pinned:
            record.pinned.remove(item)

    def _own(self, state: AgentsState, record: AgentRecord, event: Event) -> None:
        data = event.data
        if event.kind == "agent.state":
            record.state, record.why, record.since = data["state"], data["why"], event.seq
        elif event.kind == "agent.seeded":
            record.seeded = event.seq
        elif event.kind == "agent.view" and data.get("conversation"):
            record.asked = event.seq
        elif event.kind == "model.requested":
            record.steps += 1
            record.aside = data["view"] is not None
            if not record.aside or data["view"] != record.asked:
                record.unread = 0
            if not record.aside or data["view"] == record.asked:
                record.open_request, record.request_bytes = event.seq, data["bytes"]
        elif event.kind in {"model.failed", "model.abandoned", "model.completed"}:
            if record.open_request == data["request"]:
                record.open_request = None
                if event.kind == "model.completed" and not record.aside:
                    self._answered(record, event)
                elif event.kind == "model.failed" and data["error_kind"] == "context_too_long" and not record.aside:
                    record.refused = min(record.refused or record.request_bytes, record.request_bytes)
                self._release(record)
        elif event.kind == "context.masked":
            record.masked |= {each["result"]: event.seq for each in data["calls"]}
        elif event.kind == "context.compacted":
            self._compacted(state, record, event)
        elif event.kind == "tool.requested" and data["call_id"] is not None:
            state.call_ids[event.seq] = data["call_id"]
            for call in record.open_calls:
                if call.call_id == data["call_id"] and call.requested is None:
                    call.requested = event.seq
                    break
        elif event.kind in CLOSING:
            self._closed(record, event)

    def _answered(self, record: AgentRecord, event: Event) -> None:
        record.last_answer = event.seq
        if event.data["items"]:
            record.view.append(event.seq)
        if record.refused is not None and record.request_bytes >= record.refused:
            # It takes more than it did.
            record.refused = None
        usage = event.data["usage"]
        if usage is not None:
            record.usage = Counted(seq=event.seq, input=usage["input"], bytes=record.request_bytes)
        for item in event.data["items"]:
            if item["type"] == "tool_call":
                record.open_calls.append(
                    OpenModelCall(call_id=item["call_id"], name=item["name"], arguments=item["arguments"])
                )

    def _closed(self, record: AgentRecord, event: Event) -> None:
        call = event.data["call"]
        if all(open_call.requested != call for open_call in record.open_calls):
            return
        record.view.append(event.seq)
        record.results[event.seq] = call
        record.open_calls = [open_call for open_call in record.open_calls if open_call.requested != call]
        self._release(record)

    def _compacted(self, state: AgentsState, record: AgentRecord, event: Event) -> None:
        """What is left out is out of the state too: it stays in the log only."""
        data = event.data
        begin = len(record.view) if data["cut"] is None else record.view.index(data["cut"])
        for seq in record.view[:begin]:
            record.masked.pop(seq, None)
            state.call_ids.pop(record.results.pop(seq, 0), None)
        record.view = [event.seq, *record.view[begin:]]
        record.compacted = event.seq
        if data["how"] == "reseed":
            record.poor, record.reseeded = 0, True
        elif data["after"] > POOR * data["before"]:
            record.poor += 1
        else:
            record.poor, record.reseeded = 0, False

    def _release(self, record: AgentRecord) -> None:
        if record.open_request is None and not record.open_calls:
            record.view += record.held
            record.held = []
