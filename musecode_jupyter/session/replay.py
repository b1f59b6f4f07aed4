"""Proof from the journal alone: the chain, the fold, every prompt byte for byte, every command issued again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from musecode_jupyter.agents.context import SPEAKING, build_request, conversation, head_of, parse_items
from musecode_jupyter.agents.state import AgentsState
from musecode_jupyter.guard.gate import digest_of, request_bytes
from musecode_jupyter.guard.labels import ORDER, highest, label_of
from musecode_jupyter.guard.tiers import TiersState, error_of, held, refusal
from musecode_jupyter.log import EventLog, verify
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Fold
from musecode_jupyter.models.types import ModelRequest
from musecode_jupyter.runtime.errors import MuseError
from musecode_jupyter.session.reducers import all_reducers
from musecode_jupyter.session.rerun.run import CommandProof, check_commands

LABELLED_SINCE = 4
"""The version of the schema from which on events have labels that the gate goes by."""


@dataclass(frozen=True)
class Proof:
    """What was proved; `problem` is the first thing that does not hold, with the event and field it is in.

    `commands` counts what the code issued again, call for call; `unchecked` says why that could not be done.
    `note` says what of the recorded states was not compared, because another version of the program recorded it.
    """

    events: int
    digests: int
    prompts: int
    problem: str | None
    seq: int | None = None
    commands: int = 0
    unchecked: str = ""
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether everything holds."""
        return self.problem is None

    @property
    def words(self) -> str:
        """What was proved, in a sentence for each of the checks."""
        again = (
            f"The commands were not issued again ({self.unchecked})."
            if self.unchecked
            else f"{self.commands} commands issued again by the code, in the same order with the same arguments."
        )
        equal = f"{self.digests} state digests equal the fold; {self.prompts} prompts rebuilt byte for byte."
        return " ".join(filter(None, (equal, self.note, again)))


def prove(folder: Path, *, commands: bool = True) -> Proof:
    """Check the session in `folder`; reads only, repairs nothing. Without `commands` the code is not run again."""
    report = verify(folder, all_reducers())
    if report.first_problem is not None:
        problem = report.first_problem
        text = (
            f"event {problem.seq}, field {problem.field}, at byte {problem.offset} of {problem.segment}: {problem.text}"
        )
        return Proof(report.events, report.digests, 0, text, problem.seq)
    prompts = 0
    log = EventLog.read(folder)
    for seq, problem_text in check_prompts(log.events(), log.blob):
        if problem_text is not None:
            return Proof(report.events, report.digests, prompts, problem_text, seq)
        prompts += 1
    again = check_commands(log) if commands else CommandProof(0, unchecked="it was not asked for")
    whole = report.digests - report.partly
    return Proof(
        report.events, whole, prompts, again.problem, again.seq, again.commands, again.unchecked, report.not_compared
    )


def check_prompts(events: Iterator[Event], blob: Callable[[str], bytes]) -> Iterator[tuple[int, str | None]]:
    """For each prompt that was sent, in order: its seq, and None or how the rebuilt prompt differs from it.

    `blob` gives the bytes of a blob by its digest.
    """
    fold = Fold(all_reducers())
    kept: dict[int, Event] = {}
    asked: dict[int, Event] = {}
    for event in events:
        if event.kind == "model.requested":
            asked[event.seq] = event
            yield event.seq, _check_tier(fold, kept, event) or _check_prompt(fold, kept, event, blob)
        elif event.kind == "tier.blocked":
            if (problem := _check_blocked(fold, event)) is not None:
                yield event.seq, problem
        elif event.kind == "model.retried" and event.data.get("digest"):
            # The same request with other bytes: nothing joins a conversation while its request is open.
            request = asked[event.data["request"]]
            sent = replace(request, data={**request.data, **_sent(event.data)})
            yield event.seq, _check_prompt(fold, kept, sent, blob)
        elif event.kind in {"model.completed", "model.failed", "model.abandoned"}:
            asked.pop(event.data["request"], None)
        if event.kind in _CONTRIBUTING:
            kept[event.seq] = event
        fold.apply(event)


def _check_tier(fold: Fold, kept: dict[int, Event], event: Event) -> str | None:
    """What the gate decided, decided again: this model is the pinned one, and may get each part of the prompt."""
    state, agents = fold.state("tiers"), fold.state("agents")
    assert isinstance(state, TiersState)
    assert isinstance(agents, AgentsState)
    if event.v < LABELLED_SINCE or not state.model:
        return None
    if event.data["model"] != state.model:
        return f"event {event.seq}, field model: {event.data['model']} was asked, and {state.model} is pinned"
    view = event.data["view"]
    beside = view is not None and not kept[view].data.get("conversation")
    seqs = [*(() if beside else agents.agents[event.agent].view), *(() if view is None else (view,))]
    parts = [held(kept[seq]) for seq in seqs]
    if (found := refusal(state, lambda: parts)) is not None:
        return f"event {event.seq}, field items: {error_of(state.model, found, '')}"
    if ORDER[label_of(event.label)] < ORDER[highest("public", *(part.label for part in parts))]:
        return f"event {event.seq}, field label: it is below that of a part of the prompt"
    return None


def _check_blocked(fold: Fold, event: Event) -> str | None:
    """What the gate refused is refused again, by the same part."""
    state = fold.state("tiers")
    assert isinstance(state, TiersState)
    data = event.data
    if data["model"] == state.model and data["clearance"] == state.clearance():
        return None
    return f"event {event.seq}, field clearance: {data['clearance']!r} then, {state.clearance()!r} now"


_CONTRIBUTING = SPEAKING | {"agent.seeded", "agent.view", "context.masked"}


def _sent(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: data[name] for name in ("origin", "digest", "bytes")}


def _check_prompt(fold: Fold, kept: dict[int, Event], event: Event, blob: Callable[[str], bytes]) -> str | None:
    try:
        request = _rebuild(fold, kept, event, blob)
        body = request_bytes(event.data["api"], event.data["origin"], request)
    except (KeyError, MuseError, ValueError) as error:
        return f"event {event.seq}, field items: the prompt cannot be rebuilt ({type(error).__name__}: {error})"
    if len(body) != event.data["bytes"]:
        return f"event {event.seq}, field bytes: the rebuilt prompt has {len(body)} bytes, not {event.data['bytes']}"
    if digest_of(body) != event.data["digest"]:
        return f"event {event.seq}, field digest: the rebuilt prompt is not the one that was sent"
    return None


def _rebuild(fold: Fold, kept: dict[int, Event], event: Event, blob: Callable[[str], bytes]) -> ModelRequest:
    data = event.data
    asked = None if data["view"] is None else kept[data["view"]].data
    if asked is not None and not asked.get("conversation"):
        return build_request(
            data,
            instructions=asked["instructions"],
            items=parse_items(asked["items"]),
            tools=(),
            json_schema=asked["json_schema"],
        )
    state: Any = fold.state("agents")
    assert isinstance(state, AgentsState)
    record = state.agents[event.agent]
    assert record.seeded is not None
    instructions, tools = head_of(kept[record.seeded].data)
    items = conversation(record, kept.__getitem__, state.call_ids.get, blob)
    if asked is not None:
        items += parse_items(asked["items"])
    return build_request(data, instructions=instructions, items=items, tools=tools, json_schema=None)
