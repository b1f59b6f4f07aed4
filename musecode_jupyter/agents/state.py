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
        *("tool.requested", *CLOSING),
    }
)
# Events of tasks that speak to a worker or the lead, by the field that holds what is said.
_OF_TASKS = {"task.leased": "text", "task.bounced": "report", "tasks.tried": "report"}


class OpenModelCall(Slice):
    """A call of the model without a result; `requested` is the seq of its tool.requested event, once there is one."""

    call_id: str
    name: str
    arguments: str
    requested: int | None = None


class AgentRecord(Slice):
    """One agent. `view` holds the seqs of the events that make up its conversation, in prompt order.

    Messages that arrive while a request or calls are open wait in `held`, so that calls and results stay paired and
    an answer follows what it answered. `unread` counts the messages that no request has carried yet.
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


class AgentsState(BaseModel):
    """`agents` by name; `call_ids` has the model's own id for the seq of each tool.requested of a model."""

    agents: dict[str, AgentRecord] = Field(default_factory=dict)
    call_ids: dict[int, str] = Field(default_factory=dict)


class AgentsReducer:
    """Folds agent.*, and what of user.*, model.*, tool.*, goal.*, task.* and mail.* concerns a conversation."""

    name = "agents"
    kinds = frozenset(
        {
            *("agent.created", "agent.woken", "user.message", "user.steer", "notebook.attached", "mail.delivered"),
            *("goal.set", "goal.judged", "goal.edited", *_OF_TASKS, *_OWN),
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
            state.agents[event.agent] = AgentRecord(
                role=data["role"], profile=data["profile"], model=data["model"], since=event.seq
            )
        elif kind in {"user.message", "user.steer", "notebook.attached"}:
            self._say(state, data["to"], event.seq, new_turn=kind == "user.message")
        elif kind == "goal.set" or (kind in _OF_TASKS and data[_OF_TASKS[kind]]):
            self._say(state, data["agent"], event.seq, new_turn=True)
        elif kind == "goal.judged" and data["report"]:
            self._say(state, event.agent, event.seq, new_turn=True)
        elif kind == "goal.edited" and data["text"] is not None:
            self._say(state, data["agent"], event.seq, new_turn=False)
        elif kind == "mail.delivered":
            self._say(state, event.agent, data["mail"], new_turn=False)
        elif kind == "agent.woken":
            state.agents[event.agent].turn += 1

    def _say(self, state: AgentsState, name: str, seq: int, *, new_turn: bool) -> None:
        record = state.agents.get(name)
        if record is None:
            return
        if new_turn:
            record.turn += 1
        record.unread += 1
        record.held.append(seq)
        self._release(record)

    def _own(self, state: AgentsState, record: AgentRecord, event: Event) -> None:
        data = event.data
        if event.kind == "agent.state":
            record.state, record.why, record.since = data["state"], data["why"], event.seq
        elif event.kind == "agent.seeded":
            record.seeded = event.seq
        elif event.kind == "model.requested":
            record.steps += 1
            record.unread = 0
            if data["view"] is None:
                record.open_request = event.seq
        elif event.kind in {"model.failed", "model.abandoned", "model.completed"}:
            if record.open_request == data["request"]:
                record.open_request = None
                if event.kind == "model.completed":
                    self._answered(record, event)
                self._release(record)
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
        record.open_calls = [open_call for open_call in record.open_calls if open_call.requested != call]
        self._release(record)

    def _release(self, record: AgentRecord) -> None:
        if record.open_request is None and not record.open_calls:
            record.view += record.held
            record.held = []
