"""The driver forms its step from the log: what the model has said already is not asked for again."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from musecode_jupyter.agents.driver import Driver
from musecode_jupyter.agents.mind import Step, Task
from musecode_jupyter.guard.gate import Gate
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.redaction import Redactor
from musecode_jupyter.models.catalogue import lookup
from musecode_jupyter.models.endpoint import resolve_endpoint
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import ModelError
from musecode_jupyter.session.reducers import all_reducers
from musecode_jupyter.tools.registry import Place

MODEL = "muse-spark-1.3"
REQUESTED = {
    "model": MODEL,
    "api": "messages",
    "view": None,
    "items": 1,
    "max_output_tokens": 100,
    "digest": "",
    "bytes": 0,
    "reserved_microusd": 0,
    "reserved_tokens": 0,
}
COMPLETED = {"usage": None, "cost_microusd": 0, "estimated": True, "ttft_s": None, "seconds": 0.0, "attempts": 1}
SAID = {"type": "message", "role": "assistant", "text": "It is done."}
CALL = {"type": "tool_call", "call_id": "c", "name": "read", "arguments": "{}"}


def step_after(
    folder: Path, *, items: list[dict[str, Any]], status: str = "completed", reason: str | None = None, then: str = ""
) -> Step | str:
    """The driver's step when the log ends with that answer (and `then` from the user), or the kind of its error."""

    async def run() -> Step | str:
        effects = LiveEffects()
        log = EventLog.create(
            folder / "session", reducers=all_reducers(), redactor=Redactor([]), now=lambda: datetime.now(UTC)
        )
        endpoint = resolve_endpoint({}, model=MODEL, api="messages", base_url="http://127.0.0.1:9/v1")
        gate = Gate(log=log, effects=effects, endpoint=endpoint, info=lookup(MODEL), scopes=lambda _: [])
        log.post("agent.created", {"role": "lead", "profile": "driver", "model": MODEL}, agent="lead")
        log.post("agent.seeded", {"instructions": "Be brief.", "tools": []}, agent="lead")
        said = log.post("user.message", {"text": "do it", "to": "lead"}, agent="user")
        request = log.post("model.requested", REQUESTED, agent="lead")
        answer = {"request": request.seq, "status": status, "reason": reason, "items": items, **COMPLETED}
        log.post("model.completed", answer, agent="lead")
        if then:
            log.post("user.steer", {"text": then, "to": "lead"}, agent="user")

        async def no_files() -> list[str]:
            return []

        task = Task("lead", Place(folder, None, no_files), said.seq)
        # Nobody listens there: a question to the model fails.
        gate._effects.sleep = _at_once  # type: ignore[method-assign]
        try:
            return await Driver(log, gate).next_step(task)
        except ModelError as error:
            return error.kind
        finally:
            await log.close()
            await effects.aclose()

    return asyncio.run(asyncio.wait_for(run(), 60))


async def _at_once(seconds: float) -> None:
    """Waits between attempts pass."""


def test_a_last_word_before_a_restart_is_the_last_word_after_it(tmp_path: Path) -> None:
    """It was asked for again and paid for twice, and one API took it for the beginning of its next answer."""
    step = step_after(tmp_path, items=[SAID])
    assert isinstance(step, Step)
    assert (step.calls, step.text, step.cause, step.answered) == ((), "It is done.", 5, True)


@pytest.mark.parametrize(
    "given",
    [
        {"items": [SAID], "then": "no, it is not"},
        {"items": []},
        {"items": [SAID], "status": "incomplete", "reason": "pause_turn"},
        {"items": [SAID], "status": "incomplete", "reason": "refusal"},
        {"items": [{"type": "reasoning", "origin": "", "payload": {}}]},
    ],
    ids=["the user spoke", "nothing said", "a pause", "a refusal", "only thought"],
)
def test_everything_else_is_asked_again(tmp_path: Path, given: dict[str, Any]) -> None:
    assert step_after(tmp_path, **given) == "connect"
