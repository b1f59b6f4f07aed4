"""%grill as a state machine over events: what is proven, then each angle by a reviewer; what is one thing made one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from musecode_jupyter.agents.context import build_request, items_of, parse_items
from musecode_jupyter.agents.landing.tools import HARNESS
from musecode_jupyter.agents.tasks.graph import Files
from musecode_jupyter.guard.gate import Completion, Gate
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.models.types import Message, ModelRequest
from musecode_jupyter.runtime.answers import Answers, answering
from musecode_jupyter.runtime.errors import BudgetExceeded, LogError, ModelError
from musecode_jupyter.runtime.process import to_the_end
from musecode_jupyter.skills.grill_angles import (
    ANGLES,
    INSTRUCTIONS,
    QUESTIONS,
    not_of,
    put,
    reviewer_of,
    schema,
    shown,
)
from musecode_jupyter.skills.grill_checks import ANGLES as PROVEN
from musecode_jupyter.skills.grill_checks import flaws_of, looks_secret
from musecode_jupyter.skills.grill_review import (
    Draft,
    file_part,
    find_same,
    of_flaw,
    of_given,
    read_answer,
    still_there,
    unchanged,
)
from musecode_jupyter.skills.grill_state import GRILL, STANDS, GrillFindingRecord, GrillRecord, GrillsState, grills_of
from musecode_jupyter.skills.grill_target import Target, target_of
from musecode_jupyter.tools.executor import Executor, FormedCall
from musecode_jupyter.tools.files import digest_bytes
from musecode_jupyter.tools.registry import Place

MOST_FILES = 12
SHARE_OF_ROOM = 0.4
"""Of what a prompt may have that the files in it may take; small models are asked with less than they could read."""
MOST_CHARS = 60_000
MOST_CHARS_SMALL = 6_000
ANSWER_TOKENS = 8_192
ANSWER_TOKENS_SMALL = 500
_CHARS_PER_TOKEN = 2.5
_ONE_ANSWER = frozenset({"context_too_long", "incomplete", "refused", "content_filter"})
"""Kinds of failures that are of one question, and not of the model or the server."""


@dataclass(frozen=True)
class GrillTools:
    """What the runner is handed.

    `ask` sends the question of a view (agent.view) for a purpose and raises ModelError or BudgetExceeded; `files` lists
    the repository's files; `place` is the user's own checkout. `small` says that the model is a `guided` one: it is
    asked one thing at a time, and what it says blocks nothing. `room` is how many tokens a prompt may have.
    """

    log: EventLog
    executor: Executor
    place: Place
    files: Callable[[], Awaitable[list[str]]]
    ask: Callable[[Event, str], Awaitable[Completion]]
    answers: Callable[[str], Answers | None]
    small: bool
    room: int


@dataclass(frozen=True)
class _Said:
    """What came of asking from one angle: the answer and its event; or why there is none."""

    text: str = ""
    seq: int | None = None
    failed: str = ""
    not_tried: str = ""


class GrillRunner:
    """One attack, from wherever the log says it is; used on the runtime thread.

    What it posts is a function of the log: reviewers are asked side by side, and what they say is taken up in the order
    of the angles, whoever answers first.
    """

    def __init__(self, tools: GrillTools, grill: int) -> None:
        self._t = tools
        self.grill = grill
        begun = tools.log.get(grill)
        self.target: Target = target_of(tools.log, begun)
        self._moved: Sequence[str] = begun.data.get("moved", ())
        self._actor = GRILL if begun.data.get("reviewed") else HARNESS
        # What was there before it: of that the user may settle some meanwhile.
        self._before = {n: each for n, each in self._state.of_scope(self.target.scope).items() if n < grill}
        self._known = dict(self._before)
        self._stood = {number: each.state for number, each in self._known.items()}

    @property
    def _state(self) -> GrillsState:
        return grills_of(self._t.log)

    @property
    def record(self) -> GrillRecord:
        """The attack as folded."""
        return self._state.grills[self.grill]

    async def run(self) -> None:
        """Until every angle was tried, or could not be."""
        with answering(self._t.answers(f"grill {self.grill}")):
            files = await self._t.files()
            keys = await self._prove(files)
            resolved: set[int] = set()
            if self.record.reviewed:
                sources = await self._material(files)
                resolved = await self._review(sources)
            await self._end(keys, resolved)

    async def _prove(self, files: Sequence[str]) -> set[str]:
        flaws = {flaw.key: flaw for flaw in flaws_of(self.target, files, self._moved)}
        known = {each.key for number, each in self._known.items() if self._stood[number] != "resolved"}
        mine = self._mine()
        for key, flaw in flaws.items():
            if key not in known and key not in {each.key for each in mine.values()}:
                await self._post("grill.finding", of_flaw(flaw).said())
        return set(flaws)

    # --- what reviewers are shown ------------------------------------------------------------------------

    async def _material(self, files: Sequence[str]) -> dict[str, str]:
        """The files that are shown, with the numbers of their lines, as `read` gives them."""
        known = Files.of(files)
        patterns = [path for name in self.target.patterns for path in sorted(known.meant(name) & known.known)]
        wanted = list(dict.fromkeys([*patterns, *(name for name in self.target.names if name in known.known)]))
        room = int(SHARE_OF_ROOM * self._t.room * _CHARS_PER_TOKEN)
        most = min(MOST_CHARS_SMALL if self._t.small else MOST_CHARS, room)
        sources: dict[str, str] = {}
        left_out, used = [path for path in wanted if looks_secret(path)], 0
        for path in wanted:
            if looks_secret(path):
                continue
            if len(sources) == MOST_FILES or used >= most:
                left_out.append(path)
                continue
            text = await self._read(path)
            if text is None or used + len(text) > most:
                left_out.append(path)
                continue
            sources[path] = text
            used += len(text)
        if not self.record.parts:
            files_shown = {file_part(path): digest_bytes(_bytes(text)) for path, text in sources.items()}
            parts = self.target.parts | files_shown
            await self._post("grill.shown", {"parts": parts, "left_out": left_out[:MOST_FILES]})
        return sources

    async def _read(self, path: str) -> str | None:
        purpose = f"grill {self.grill}"
        asked: set[int] = set()
        for event in self._t.log.events(since=self.grill):
            data = event.data
            if event.kind == "tool.requested" and data["purpose"] == purpose and data["arguments"].get("path") == path:
                asked.add(event.seq)
            elif event.kind == "tool.finished" and data["call"] in asked:
                return str(data["output"])
        result = await self._t.executor.run_one(
            FormedCall("read", {"path": path}, "harness", purpose=purpose),
            agent=HARNESS,
            turn=0,
            place=self._t.place,
            typed=frozenset(),
            cause=self.grill,
        )
        return result.output if result.ok else None

    # --- the angles --------------------------------------------------------------------------------------

    async def _review(self, sources: Mapping[str, str]) -> set[int]:
        """Have each angle tried; the findings of before that reviewers say are resolved."""
        everything = shown(self.target, sources, self.record.left_out)
        left = [angle for angle in QUESTIONS if not _tried(self.record, angle)]
        loop = asyncio.get_running_loop()
        waiting: dict[str, asyncio.Future[_Said]] = {angle: loop.create_future() for angle in left}
        lanes: dict[str, list[str]] = {}
        for angle in left:
            if not_of(angle, self.target):
                continue
            # One server of one small model gains nothing by being asked several things at once.
            lanes.setdefault("" if self._t.small else reviewer_of(angle), []).append(angle)
        tasks = [asyncio.create_task(self._lane(angles, everything, waiting)) for angles in lanes.values()]
        try:
            for angle in left:
                why = not_of(angle, self.target)
                if why:
                    await self._angle(angle, "does not apply", why=why)
                    continue
                said = await _first(waiting[angle], tasks)
                await self._take(angle, said, sources)
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await to_the_end(_ended(tasks))
        return {number for each in self.record.angles.values() for number in each.resolved}

    async def _lane(self, angles: Sequence[str], everything: str, waiting: Mapping[str, asyncio.Future[_Said]]) -> None:
        """Ask from some angles, one after the other; what ends one for good ends those that follow."""
        over: _Said | None = None
        for angle in angles:
            said = over or self._answered(angle)
            if said is None:
                try:
                    said = await self._ask(angle, everything)
                except BudgetExceeded as problem:
                    said = over = _Said(not_tried=str(problem))
                except ModelError as problem:
                    said = _Said(failed=str(problem))
                    if problem.kind not in _ONE_ANSWER:
                        over = _Said(not_tried=f"the model cannot be asked: {problem}")
            waiting[angle].set_result(said)

    def _answered(self, angle: str) -> _Said | None:
        """What was answered from this angle before the attack was cut off: nobody is asked, or paid, twice."""
        purpose = self._purpose(angle)
        views: set[int] = set()
        asked: set[int] = set()
        taken = {
            event.data["completion"] for event in self._t.log.events(since=self.grill) if event.kind == "grill.angle"
        }
        for event in self._t.log.events(since=self.grill):
            if event.kind == "agent.view" and event.data["purpose"] == purpose:
                views.add(event.seq)
            elif event.kind == "model.requested" and event.data["view"] in views:
                asked.add(event.seq)
            elif event.kind == "model.completed" and event.data["request"] in asked and event.seq not in taken:
                return _Said(_text(self._t.log, event), event.seq)
        return None

    def _purpose(self, angle: str) -> str:
        return f"grill {self.grill} {angle}"

    async def _ask(self, angle: str, everything: str) -> _Said:
        earlier = {
            number: each
            for number, each in self._before.items()
            if self._stood[number] in STANDS and each.by and angle in each.angles
        }
        texts = (everything, put(angle, earlier))
        items = [Message(role="user", text=text).model_dump(mode="json") for text in texts]
        asked = {
            "purpose": self._purpose(angle),
            "instructions": INSTRUCTIONS,
            "items": items,
            "json_schema": schema(small=self._t.small),
        }
        view = await self.append("agent.view", asked, reviewer_of(angle), self.grill)
        completion = await self._t.ask(view, angle)
        return _Said(completion.text, completion.seq)

    async def _take(self, angle: str, said: _Said, sources: Mapping[str, str]) -> None:
        """Write down what came of an angle: its findings, new or as others', then that it was tried."""
        if said.not_tried or said.failed:
            state = "not tried" if said.not_tried else "failed"
            await self._angle(angle, state, why=said.not_tried or said.failed)
            return
        answer = read_answer(said.text)
        if answer is None:
            why = "its answer has not the form that was asked for"
            await self._angle(angle, "failed", why=why, completion=said.seq)
            return
        found: list[int] = []
        joined: list[int] = []
        again = kept_back = 0
        seen = self._seen(angle)
        for given in answer.findings:
            draft = of_given(given, angle, reviewer_of(angle), self.target, sources, may_block=not self._t.small)
            already = find_same(draft, self._mine())
            if already is not None:
                if await self._join(already, draft):
                    joined.append(already)
                elif already not in found and already not in joined:
                    found.append(already)
            elif (known := find_same(draft, self._known)) is not None and self._stood[known] != "resolved":
                again += 1
            elif not draft.proven and unchanged(draft.place, self.record.parts, seen):
                kept_back += 1
            else:
                found.append(await self._post("grill.finding", draft.said()))
        state = "found" if found or joined else "nothing"
        await self._angle(
            angle,
            state,
            found=found,
            joined=joined,
            again=again,
            kept_back=kept_back,
            unreadable=answer.unreadable,
            completion=said.seq,
            resolved=[n for n in answer.resolved if n in self._before and angle in self._before[n].angles],
        )

    async def _join(self, number: int, draft: Draft) -> bool:
        """Add an angle to a finding that another one raised; False if it is this angle's own."""
        finding = self._mine()[number]
        if draft.angle in finding.angles and (draft.key == finding.key or draft.by == finding.by):
            return draft.angle != finding.angles[0]
        joined = {
            "finding": number,
            "angle": draft.angle,
            "severity": draft.severity,
            "evidence": draft.evidence,
            "by": draft.by,
        }
        await self._post("grill.joined", joined, number)
        return True

    def _seen(self, angle: str) -> Mapping[str, str] | None:
        """What was shown when this angle was last tried on an earlier state; None if it never was."""
        grills = [
            each
            for number, each in self._state.grills.items()
            if number < self.grill and each.scope == self.target.scope and _tried(each, angle)
        ]
        return grills[-1].parts if grills else None

    async def _angle(self, angle: str, state: str, **more: Any) -> None:
        await self._post("grill.angle", {"angle": angle, "by": reviewer_of(angle), "state": state, **more})

    async def _end(self, keys: set[str], resolved: set[int]) -> None:
        record = self.record
        stood = {number: each for number, each in self._before.items() if self._stood[number] in STANDS}
        remain = []
        for number, each in stood.items():
            before = self._state.grills[each.grill].parts
            if (each.by and not record.reviewed) or still_there(number, each, resolved, keys, record.parts, before):
                remain.append(number)
        tried = [angle for angle in ANGLES if angle in PROVEN or _tried(record, angle)]
        missing = [angle for angle, each in record.angles.items() if each.state in {"failed", "not tried"}]
        ended = {
            "angles": tried,
            "found": list(self._mine()),
            "resolved": [number for number in stood if number not in remain],
            "remain": remain,
            "not_tried": missing,
        }
        await self._post("grill.ended", ended)

    def _mine(self) -> dict[int, GrillFindingRecord]:
        """The findings of this attack so far."""
        return {number: each for number, each in self._state.findings.items() if each.grill == self.grill}

    async def _post(self, kind: str, data: Mapping[str, Any], *cause: int) -> int:
        return (await self.append(kind, {"grill": self.grill, **data}, self._actor, self.grill, *cause)).seq

    async def append(self, kind: str, data: Mapping[str, Any], agent: str, *cause: int) -> Event:
        """Write down what `agent` does of the attack."""
        return await self._t.log.append(kind, data, agent=agent, cause=cause)


def request_of(gate: Gate, view: Event, *, small: bool, effort: str | None) -> ModelRequest:
    """The question of a view as a request: reviewers have no conversation with each other, and none of before."""
    info = gate.info
    return build_request(
        {
            "model": gate.model,
            "max_output_tokens": ANSWER_TOKENS_SMALL if small else min(ANSWER_TOKENS, info.answer_tokens),
            "effort": effort if info.reasoning_items else None,
            "temperature": 0.0 if small else None,
            "seed": 1 if small else None,
            "cache_key": None if small else f"grill-{view.cause[0]}",
        },
        instructions=view.data["instructions"],
        items=parse_items(view.data["items"]),
        tools=(),
        json_schema=view.data["json_schema"],
    )


def _tried(grill: GrillRecord, angle: str) -> bool:
    return angle in grill.angles and grill.angles[angle].state in {"found", "nothing", "does not apply"}


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(log: EventLog, completed: Event) -> str:
    items = items_of(completed, lambda _: None, log.blob)
    return "".join(item.text for item in items if item.type == "message")


async def _first(wanted: asyncio.Future[_Said], tasks: Sequence[asyncio.Task[None]]) -> _Said:
    """What is wanted, once it is there; raises what ended a task that was to bring it."""
    while not wanted.done():
        waits: set[asyncio.Future[Any]] = {wanted, *(task for task in tasks if not task.done())}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        errors = [task.exception() for task in tasks if task.done() and not task.cancelled()]
        for error in sorted(filter(None, errors), key=lambda each: not isinstance(each, LogError)):
            raise error
        if not wanted.done() and any(task.cancelled() for task in tasks):
            raise asyncio.CancelledError
    return wanted.result()


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)
