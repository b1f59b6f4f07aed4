"""What an agent has in its prompt: which items each event contributes, in which order; pure functions."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter

from musecode_jupyter.agents.frames import Frames, frames_of
from musecode_jupyter.agents.state import AgentRecord
from musecode_jupyter.log.events import Event
from musecode_jupyter.models.types import Item, Message, ModelRequest, Picture, ToolResult, ToolSpec

REFUSALS = frozenset({"refusal", "content_filter"})
"""Reasons of an incomplete answer that is no answer."""

SPEAKING = frozenset(
    {
        *("user.message", "user.steer", "notebook.attached", "goal.set", "goal.edited", "goal.judged"),
        "goal.nudged",
        *("task.leased", "task.bounced", "tasks.tried", "model.completed", "mail.sent"),
        *("context.compacted", "critique.asked", "plan.begun", "plan.edited", "plan.checked"),
        *("draft.begun", "draft.checked"),
        *("tool.finished", "tool.failed", "tool.cancelled", "tool.unknown"),
    }
)
"""Kinds of events that can add to a conversation; no other does."""

Blob = Callable[[str], bytes]
"""The bytes of a blob by its digest."""

_ITEMS: TypeAdapter[tuple[Item, ...]] = TypeAdapter(tuple[Item, ...])


def parse_items(raw: Iterable[Any]) -> tuple[Item, ...]:
    """Items as an event holds them, validated."""
    return _ITEMS.validate_python(tuple(raw))


def task_message(data: Mapping[str, Any]) -> str:
    """How a task is put to the worker that has it; `data` is that of task.created."""
    checks = "\n".join(f"- `{command}`" for command in data["accept"])
    files = f"It is expected to change: {', '.join(data['writes'])}.\n\n" if data["writes"] else ""
    return (
        f"Task {data['name']}: {data['text']}\n\n"
        f"It is done when each of these commands exits with 0 in the root of the repository:\n{checks}\n\n{files}"
        "You work in your own git worktree; others work on other tasks at the same time, so change nothing that this "
        "task does not need. When you believe that it is done, answer without calling a tool; your work is then merged "
        "with what has landed meanwhile, the commands are run on that, and you are told if it does not land."
    )


def items_of(event: Event, call_ids: Callable[[int], str | None], blob: Blob) -> tuple[Item, ...]:
    """The items that `event` adds to its agent's conversation.

    `call_ids` gives the model's own id of a tool call by the seq of its tool.requested event (None: the harness's),
    `blob` the bytes of a blob by its digest.
    """
    if event.kind not in SPEAKING:
        return ()
    data = event.data
    frames = frames_of(event.v)
    if event.kind in {"user.message", "user.steer", "context.compacted"}:
        return (Message(role="user", text=data["text"]),)
    if event.kind == "notebook.attached":
        return (Message(role="user", text=frames.cell(data["text"])), *_pictures(event, frames, blob))
    if event.kind == "goal.set":
        message = frames.goal if data.get("workers", 1) == 1 else frames.graph
        return (Message(role="user", text=message(data)),)
    if event.kind in {"task.leased", "critique.asked"}:
        return (Message(role="user", text=data["text"]),)
    if event.kind == "mail.sent":
        return (Message(role="user", text=frames.mail(event.agent, data)),)
    if event.kind in {"plan.begun", "plan.edited", "draft.begun"}:
        return (Message(role="user", text=data["message"]),)
    if event.kind in {"task.bounced", "tasks.tried", "plan.checked", "draft.checked"}:
        return (Message(role="user", text=data["report"]),)
    if event.kind == "goal.edited" and (said := frames.edited(data)):
        return (Message(role="user", text=said),)
    if event.kind == "goal.nudged":
        return (Message(role="user", text=data["text"]),)
    if event.kind == "goal.judged" and data["report"]:
        return (Message(role="user", text=data["report"]),)
    if event.kind == "model.completed":
        # A refusal stays in the log only: a conversation that holds one goes on being refused.
        return () if data["reason"] in REFUSALS else parse_items(data["items"])
    if event.kind in {"tool.finished", "tool.failed", "tool.cancelled", "tool.unknown"}:
        call_id = call_ids(data["call"])
        if call_id is not None:
            output = frames.fence(data["output"]) if data.get("fenced") else data["output"]
            return (ToolResult(call_id=call_id, output=output), *_pictures(event, frames, blob))
    return ()


def items_shown(
    seq: int, record: AgentRecord, event: Callable[[int], Event], call_ids: Callable[[int], str | None], blob: Blob
) -> tuple[Item, ...]:
    """What event `seq` of the view of `record` says in a prompt now: its items, or the line in place of its output."""
    if seq not in record.masked:
        return items_of(event(seq), call_ids, blob)
    call_id = call_ids(record.results[seq])
    assert call_id is not None
    masked = event(record.masked[seq]).data["calls"]
    line = next(each["line"] for each in masked if each["result"] == seq)
    return (ToolResult(call_id=call_id, output=line),)


def conversation(
    record: AgentRecord, event: Callable[[int], Event], call_ids: Callable[[int], str | None], blob: Blob
) -> tuple[Item, ...]:
    """All items of an agent's conversation, in prompt order; `event` gives an event by its seq."""
    return tuple(item for seq in record.view for item in items_shown(seq, record, event, call_ids, blob))


def _pictures(event: Event, frames: Frames, blob: Blob) -> tuple[Picture, ...]:
    """The pictures of an event; one that was recorded before there were any has none."""
    return tuple(
        Picture(
            caption=said["caption"],
            mime=said["mime"],
            width=said["width"],
            height=said["height"],
            data=b64encode(blob(event.blobs[said["blob"]].digest)).decode("ascii"),
            instead=frames.picture(said["caption"]),
        )
        for said in event.data.get("pictures", ())
    )


def head_of(seeded: Mapping[str, Any]) -> tuple[str, tuple[ToolSpec, ...]]:
    """The fixed head of an agent's prompts from the data of agent.seeded: its instructions, and its tools by name."""
    tools = sorted((ToolSpec.model_validate(tool) for tool in seeded["tools"]), key=lambda tool: tool.name)
    return seeded["instructions"], tuple(tools)


def build_request(
    requested: Mapping[str, Any],
    *,
    instructions: str,
    items: tuple[Item, ...],
    tools: tuple[ToolSpec, ...],
    json_schema: dict[str, Any] | None,
) -> ModelRequest:
    """The request that a model.requested event speaks of; the same function forms it live and in a replay."""
    if not requested.get("pictures"):
        items = tuple(item.in_words() if isinstance(item, Picture) else item for item in items)
    return ModelRequest(
        model=requested["model"],
        instructions=instructions,
        items=items,
        tools=tools,
        json_schema=json_schema,
        max_output_tokens=requested["max_output_tokens"],
        effort=requested["effort"],
        temperature=requested["temperature"],
        seed=requested["seed"],
        cache_key=requested["cache_key"],
        pictures=requested.get("pictures", False),
    )
