"""Export in the Agent Trajectory Interchange Format, version 1.8: one trajectory per agent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from musecode_jupyter._version import __version__
from musecode_jupyter.agents.context import items_of
from musecode_jupyter.log.events import Event, canonical
from musecode_jupyter.runtime.money import in_usd
from musecode_jupyter.session.export.source import EventSource
from musecode_jupyter.session.export.target import Spool
from musecode_jupyter.session.summary import summarise
from musecode_jupyter.tools.state import CLOSING

VERSION = "ATIF-v1.8"
LEAD = "lead"
# What the harness tells of the work as a whole; it stands in the lead's trajectory.
_NEWS = frozenset(
    {
        *("goal.judged", "goal.met", "goal.stopped", "goal.paused", "goal.resumed", "goal.claimed"),
        *("merge.landed", "merge.bounced", "merge.undone", "task.done", "task.abandoned", "budget.exceeded"),
    }
)
_OF_USER = frozenset({"user.message", "user.steer", "notebook.attached", "goal.set", "goal.edited", "task.leased"})
_ANSWERS = frozenset({"approval.granted", "approval.denied", "approval.expired"})
_MODEL_END = frozenset({"model.completed", "model.failed", "model.abandoned"})

Step = dict[str, Any]


def write(source: EventSource, out: BinaryIO, folder: Path | None) -> None:
    """One JSON document; the steps of each agent wait in a nameless file in `folder` until all events are read.

    A step of source `agent` is one answer of the model with its tool calls and their results, or, with
    `llm_call_count` 0, a call that the harness formed. `user` steps are what an agent was told, by the user or by the
    harness; `system` steps are its instructions and what became of its work. Token counts and money are the log's; what
    failed calls cost is in `final_metrics`. The root's `final_metrics` are the sum over all agents.
    """
    spool = Spool(folder)
    try:
        book = _Book(source.name, spool)
        for event in source.events():
            book.take(event)
        book.finish(out, source)
    finally:
        spool.close()


class _Trajectory:
    """The steps of one agent; in memory are only those whose calls still wait for results."""

    def __init__(self, name: str, spool: Spool) -> None:
        self.name = name
        self.model: str | None = None
        self.tools: list[dict[str, Any]] | None = None
        self.extra: dict[str, Any] = {}
        self.totals = dict.fromkeys(("prompt", "completion", "cached"), 0)
        self.microusd = 0
        self.failed_microusd = 0
        self.failed_calls = 0
        self._spool = spool
        self._waiting: dict[int, tuple[Step, set[str]]] = {}

    @property
    def steps(self) -> int:
        """How many there are."""
        return self._spool.count(self.name)

    def add(self, step: Step, waits: Iterable[str] = ()) -> None:
        """A step, complete once every call in `waits` has its result."""
        place = self._spool.reserve(self.name)
        if calls := set(waits):
            self._waiting[place] = (step, calls)
        else:
            self._write(place, step)

    def result(self, call_id: str, result: dict[str, Any]) -> None:
        """The result of a call, put to the newest step that waits for it."""
        for place in sorted(self._waiting, reverse=True):
            step, calls = self._waiting[place]
            if call_id in calls:
                calls.discard(call_id)
                step.setdefault("observation", {"results": []})["results"].append(result)
                if not calls:
                    del self._waiting[place]
                    self._write(place, step)
                return

    def release(self) -> None:
        """No result comes any more."""
        for place, (step, _) in self._waiting.items():
            self._write(place, step)
        self._waiting.clear()

    def _write(self, place: int, step: Step) -> None:
        numbered = canonical({"step_id": place + 1, **step}).encode("ascii")
        self._spool.fill(self.name, place, (b"," if place else b"") + numbered)

    def metrics(self) -> dict[str, Any]:
        return {
            "total_prompt_tokens": self.totals["prompt"],
            "total_completion_tokens": self.totals["completion"],
            "total_cached_tokens": self.totals["cached"],
            "total_cost_usd": in_usd(self.microusd),
            "total_steps": self.steps,
            "extra": {"failed_model_calls": self.failed_calls, "failed_cost_usd": in_usd(self.failed_microusd)},
        }


class _Book:
    def __init__(self, session: str, spool: Spool) -> None:
        self._session = session
        self._spool = spool
        self._agents = {LEAD: _Trajectory(LEAD, spool)}
        self._requests: dict[int, Mapping[str, Any]] = {}
        self._calls: dict[int, tuple[str, str]] = {}
        self._asked: dict[int, str] = {}
        self._version = ""
        self._referred: set[str] = set()

    def take(self, event: Event) -> None:
        data, kind = event.data, event.kind
        if kind in {"session.opened", "session.resumed"}:
            self._version = str(data["version"])
        elif kind == "agent.created":
            self._created(event)
        elif kind == "agent.seeded":
            self._seeded(event)
        elif kind == "agent.view":
            self._of(event.agent).add(_viewed(event))
        elif kind == "model.requested":
            self._requests[event.seq] = data
        elif kind in _MODEL_END or kind == "model.retried":
            self._answered(event)
        elif kind == "tool.requested":
            self._requested(event)
        elif kind in CLOSING:
            self._closed(event)
        elif kind == "approval.requested":
            self._asked[event.seq] = event.agent
        elif kind in _ANSWERS:
            agent = self._asked.pop(data["approval"], event.agent)
            self._of(agent).add(_step(event, "system", str(summarise(event)["text"])))
        else:
            self._told(event)

    def finish(self, out: BinaryIO, source: EventSource) -> None:
        for trajectory in self._agents.values():
            trajectory.release()
        lead = self._agents[LEAD]
        for name, trajectory in self._agents.items():
            if name != LEAD and name not in self._referred and trajectory.steps:
                lead.add(self._reference(name))
        notes = [
            "The conversation of each agent as the log of musecode_jupyter has it. Steps with extra.view are prompts "
            "that the harness made for one question; the answer after one saw that prompt only, not the steps before.",
            *source.notes,
        ]
        root = self._head(lead) | {"final_metrics": self._total(), "notes": " ".join(notes)}
        _write_document(out, root, self._spool, LEAD, last=False)
        out.write(b',"subagent_trajectories":[')
        others = [each for name, each in self._agents.items() if name != LEAD and each.steps]
        for at, trajectory in enumerate(others):
            out.write(b",\n" if at else b"\n")
            head = self._head(trajectory) | {"final_metrics": trajectory.metrics()}
            _write_document(out, head, self._spool, trajectory.name, last=True)
        out.write(b"]}\n")

    def _of(self, name: str) -> _Trajectory:
        """The trajectory of an agent; what the harness does itself stands in the lead's."""
        name = LEAD if name in {"", "harness", "user"} else name
        if name not in self._agents:
            self._agents[name] = _Trajectory(name, self._spool)
        return self._agents[name]

    def _created(self, event: Event) -> None:
        trajectory = self._of(event.agent)
        trajectory.model = event.data["model"]
        trajectory.extra = {"role": event.data["role"], "profile": event.data["profile"]}

    def _seeded(self, event: Event) -> None:
        trajectory = self._of(event.agent)
        tools = [
            {"type": "function", "function": {name: tool.get(name) for name in ("name", "description", "parameters")}}
            for tool in event.data["tools"] or ()
        ]
        trajectory.tools = tools or trajectory.tools
        if event.data["instructions"]:
            trajectory.add(_step(event, "system", event.data["instructions"]))

    def _answered(self, event: Event) -> None:
        data, trajectory = event.data, self._of(event.agent)
        if event.kind != "model.completed":
            trajectory.failed_microusd += data["cost_microusd"]
            trajectory.microusd += data["cost_microusd"]
            trajectory.failed_calls += event.kind != "model.retried"
            if event.kind != "model.retried":
                self._requests.pop(data["request"], None)
                trajectory.add(_step(event, "system", f"model call: {summarise(event)['text']}"))
            return
        requested = self._requests.pop(data["request"], {})
        usage = data["usage"] or {}
        for name, key in (("prompt", "input"), ("completion", "output"), ("cached", "cached")):
            trajectory.totals[name] += usage.get(key, 0)
        trajectory.microusd += data["cost_microusd"]
        items = data["items"] or []
        step = _step(event, "agent", _texts(items), request=data["request"], status=data["status"])
        step["llm_call_count"] = 1
        step["model_name"] = data.get("served_model") or requested.get("model") or trajectory.model or "unknown"
        if requested.get("effort"):
            step["reasoning_effort"] = requested["effort"]
        if thought := _reasoning(items):
            step["reasoning_content"] = thought
        step["metrics"] = _metrics(data, usage)
        if requested.get("view") is not None:
            step["extra"]["view"] = requested["view"]
        calls = [item for item in items if item.get("type") == "tool_call"]
        if calls:
            step["tool_calls"] = [_tool_call(item) for item in calls]
        trajectory.add(step, {call["tool_call_id"] for call in step.get("tool_calls", ())})

    def _requested(self, event: Event) -> None:
        data = event.data
        name = event.agent
        if data["origin"] == "model" and data["call_id"] is not None:
            self._calls[event.seq] = (name, data["call_id"])
            return
        call_id = f"event-{event.seq}"
        self._calls[event.seq] = (name, call_id)
        step = _step(event, "agent", "", purpose=data["purpose"], by=name or "harness")
        arguments = data["arguments"] or {}
        step["llm_call_count"] = 0
        step["tool_calls"] = [{"tool_call_id": call_id, "function_name": data["name"], "arguments": arguments}]
        self._of(name).add(step, {call_id})

    def _closed(self, event: Event) -> None:
        data = event.data
        name, call_id = self._calls.pop(data["call"], (event.agent, ""))
        result: dict[str, Any] = {"source_call_id": call_id, "content": _content(event), "extra": {"seq": event.seq}}
        for field in ("ok", "exit", "seconds"):
            if data.get(field) is not None:
                result["extra"][field] = data[field]
        if event.kind != "tool.finished":
            result["extra"]["outcome"] = event.kind
        self._of(name).result(call_id, result)

    def _told(self, event: Event) -> None:
        """What is said to an agent, and what became of its work."""
        data, kind = event.data, event.kind
        if kind == "task.leased":
            self._of(LEAD).add(self._reference(data["agent"], event))
        if kind in _OF_USER or kind == "task.bounced" or (kind == "goal.judged" and data["report"]):
            name = data.get("to") or data.get("agent") or event.agent
            # Pictures have no place here but their captions, which are in the text.
            event = replace(event, data={**data, "pictures": []})
            said = items_of(event, lambda _seq: None, lambda _digest: b"")
            if text := _texts(item.model_dump() for item in said):
                self._of(name).add(_step(event, "user", text))
        if kind in _NEWS:
            self._of(LEAD).add(_step(event, "system", str(summarise(event)["text"])))

    def _reference(self, name: str, event: Event | None = None) -> Step:
        self._referred.add(name)
        text = str(summarise(event)["text"]) if event is not None else f"{name} worked beside."
        step = _step(event, "system", text)
        ref = {"trajectory_id": f"{self._session}/{name}", "session_id": self._session}
        step["observation"] = {"results": [{"subagent_trajectory_ref": [ref]}]}
        return step

    def _head(self, trajectory: _Trajectory) -> dict[str, Any]:
        agent: dict[str, Any] = {"name": "musecode_jupyter", "version": self._version or __version__}
        if trajectory.model:
            agent["model_name"] = trajectory.model
        if trajectory.tools:
            agent["tool_definitions"] = trajectory.tools
        agent["extra"] = {"agent": trajectory.name, **trajectory.extra}
        return {
            "schema_version": VERSION,
            "session_id": self._session,
            "trajectory_id": f"{self._session}/{trajectory.name}",
            "agent": agent,
        }

    def _total(self) -> dict[str, Any]:
        each = [trajectory.metrics() for trajectory in self._agents.values()]
        total: dict[str, Any] = {
            name: sum(one[name] for one in each)
            for name in ("total_prompt_tokens", "total_completion_tokens", "total_cached_tokens")
        }
        total["total_cost_usd"] = in_usd(sum(trajectory.microusd for trajectory in self._agents.values()))
        total["total_steps"] = self._agents[LEAD].steps
        total["extra"] = {
            "lead": self._agents[LEAD].metrics(),
            "agents": sum(t.steps > 0 for t in self._agents.values()),
        }
        return total


def _write_document(out: BinaryIO, head: dict[str, Any], spool: Spool, stream: str, *, last: bool) -> None:
    out.write(canonical(head).encode("ascii")[:-1] + b',"steps":[')
    for piece in spool.pieces(stream):
        out.write(piece)
    out.write(b"]}" if last else b"]")


def _step(event: Event | None, source: str, message: str, **extra: Any) -> Step:
    step: Step = {"source": source, "message": message}
    if event is not None:
        if event.ts:
            step["timestamp"] = event.ts
        step["extra"] = {
            "seq": event.seq,
            "kind": event.kind,
            **{k: v for k, v in extra.items() if v not in (None, "")},
        }
    return step


def _viewed(event: Event) -> Step:
    """A prompt that the harness made for one question."""
    step = _step(event, "user", _texts(event.data["items"]), view=event.seq, purpose=event.data["purpose"])
    step["extra"]["instructions"] = event.data["instructions"]
    if event.data["json_schema"] is not None:
        step["extra"]["json_schema"] = event.data["json_schema"]
    return step


def _texts(items: Any) -> str:
    """The words of messages; of a picture its caption."""
    parts = []
    for item in items or ():
        if item.get("type") == "message" and item.get("text"):
            parts.append(str(item["text"]))
        elif item.get("type") == "picture":
            parts.append(str(item.get("caption", "")))
    return "\n\n".join(parts)


def _reasoning(items: list[Any]) -> str:
    """What of the model's reasoning can be read: summaries, or thinking that came as text."""
    return "\n\n".join(
        text for item in items if item.get("type") == "reasoning" for text in _thoughts(item.get("payload"))
    )


def _thoughts(payload: Any) -> Iterator[str]:
    if not isinstance(payload, Mapping):
        return
    if isinstance(payload.get("thinking"), str):
        yield payload["thinking"]
    for name in ("summary", "content"):
        for part in payload.get(name) or ():
            if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                yield part["text"]


def _tool_call(item: Mapping[str, Any]) -> dict[str, Any]:
    """A call as an object; arguments that are no JSON object, as a model may write them, stay text."""
    text = str(item.get("arguments") or "{}")
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {"text": text}
    return {
        "tool_call_id": str(item.get("call_id")),
        "function_name": str(item.get("name")),
        "arguments": arguments,
    }


def _metrics(data: Mapping[str, Any], usage: Mapping[str, int]) -> dict[str, Any]:
    metrics: dict[str, Any] = {"cost_usd": in_usd(data["cost_microusd"])}
    if usage:
        metrics["prompt_tokens"] = usage.get("input", 0)
        metrics["completion_tokens"] = usage.get("output", 0)
        metrics["cached_tokens"] = usage.get("cached", 0)
    extra = {"reasoning_tokens": usage.get("reasoning"), "cache_write_tokens": usage.get("written")}
    extra |= {name: data[name] for name in ("ttft_s", "seconds", "attempts")}
    extra |= {"estimated": True} if data["estimated"] else {}
    metrics["extra"] = {name: value for name, value in extra.items() if value is not None}
    return metrics


def _content(event: Event) -> str:
    """The output of a call as the model saw it, and a line for each picture."""
    text = str(event.data["output"] or "")
    captions = [str(picture["caption"]) for picture in event.data.get("pictures") or ()]
    return "\n".join([text, *captions]) if captions else text
