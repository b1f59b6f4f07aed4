"""Writes a long session for the benches: turns of an agent with tool calls, as a goal's work leaves them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from musecode_jupyter.log import EventLog, Redactor
from musecode_jupyter.log.journal import Disk
from musecode_jupyter.session.reducers import all_reducers

OUTPUT = "ran the tests: 3 failed, 41 passed; the first failure is in tests/test_queue.py, line 88. " * 4


class Unsynced(Disk):
    """For files that need not survive anything: nothing is synced."""

    def sync(self, descriptor: int) -> None:
        pass


async def write_long_session(folder: Path, events: int, *, batch: int = 512) -> None:
    """About `events` events, of which one in 256 is a state.digest: per turn a request, its answer, two tool calls."""
    begin = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    times = (begin + timedelta(milliseconds=n) for n in range(2 * events))
    log = EventLog.create(
        folder, reducers=all_reducers(), redactor=Redactor(), now=lambda: next(times), disk=Unsynced()
    )

    def say(kind: str, **data: Any) -> int:
        return log.post(kind, data, agent="lead", turn=1).seq

    say("agent.created", role="lead", profile="driver", model="muse-spark-1.3")
    say("agent.seeded", instructions="You mend.", tools=[])
    turn = 0
    while log.last_seq < events:
        turn += 1
        if turn % 50 == 1:
            log.post("user.message", {"text": f"Go on with part {turn}.", "to": "lead"})
        _turn(say, turn)
        if turn % (batch // 16) == 0:
            await log.flush()
    await log.close()


def _turn(say: Any, turn: int) -> None:
    request = say(
        "model.requested",
        model="muse-spark-1.3",
        api="responses",
        view=None,
        items=turn,
        max_output_tokens=4096,
        digest="0" * 32,
        bytes=90_000,
        reserved_usd=0.2,
        reserved_tokens=9000,
        purpose="step",
    )
    paths = [f"src/part{turn % 300}/module{side}.py" for side in (0, 1)]
    items = [
        {"type": "tool_call", "call_id": f"c{turn}-{side}", "name": "read", "arguments": f'{{"path":"{path}"}}'}
        for side, path in enumerate(paths)
    ]
    say(
        "model.completed",
        request=request,
        status="completed",
        items=[{"type": "message", "role": "assistant", "text": "I look at both."}, *items],
        usage={"input": 9000, "cached": 8500, "output": 60, "reasoning": 0},
        cost_usd=0.001,
        estimated=False,
        ttft_s=0.4,
        seconds=1.5,
        attempts=1,
    )
    for side, path in enumerate(paths):
        call = say("tool.requested", name="read", arguments={"path": path}, origin="model", call_id=f"c{turn}-{side}")
        say("tool.decided", call=call, decision="allow", rule="reads are allowed")
        say("tool.started", call=call, effect="read", cwd="/w/1", path=path)
        say("file.observed", worktree=None, path=path, digest="ab" * 32, size=4000, call=call)
        say("tool.finished", call=call, output=OUTPUT, ok=True, seconds=0.01, fenced=True)
