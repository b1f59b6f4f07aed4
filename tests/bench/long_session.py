"""Writes a long session for the benches, without the log: turns of an agent with tool calls, as a goal leaves them."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

from musecode_jupyter.log import Event, Fold
from musecode_jupyter.log.events import GENESIS, SCHEMA_VERSION, canonical, line_parts, seal
from musecode_jupyter.log.kinds import KINDS
from musecode_jupyter.session.reducers import all_reducers

OUTPUT = "ran the tests: 3 failed, 41 passed; the first failure is in tests/test_queue.py, line 88. " * 4
DIGEST_EVERY = 256
BATCH = 8


def write_long_session(folder: Path, events: int) -> None:
    """A session of `events` events, with a state.digest every 256, byte for byte as the log would write it."""
    (folder / "journal").mkdir(parents=True)
    (folder / "blobs").mkdir()
    fold = Fold(all_reducers())
    shapes = fold.shapes()
    said = _said()
    h, number, segment, last = GENESIS, 0, 0, None
    while number < events:
        segment += 1
        size = 0
        with (folder / "journal" / f"{segment:06d}.jsonl").open("wb") as file:
            while number < events and size < 64 << 20:
                number += 1
                if number % DIGEST_EVERY:
                    kind, data = said.send(last)
                    last = number
                else:
                    digest, slices = fold.digests()
                    kind = "state.digest"
                    data = {"digest": digest, "upto": number - 1, "slices": slices, "shapes": shapes}
                plain = KINDS[kind].model_validate(data).model_dump()
                ts = f"2026-01-02T03:{number // 60_000 % 60:02d}:{number // 1000 % 60:02d}.{number % 1000:03d}Z"
                event = Event(SCHEMA_VERSION, number, ts, 1, 0, "lead", 1, (), kind, "", plain)
                fold.apply(event)
                head, tail = line_parts(event, canonical(plain))
                h, line = seal(h, head + b"%d" % (1 + number // BATCH) + tail)
                size += file.write(line)


def _said() -> Generator[tuple[str, dict[str, Any]], int | None, None]:
    """Kinds and data, in order; is sent the seq of what it said last."""
    yield "agent.created", {"role": "lead", "profile": "driver", "model": "muse-spark-1.3"}
    yield "agent.seeded", {"instructions": "You mend.", "tools": []}
    turn = 0
    while True:
        turn += 1
        if turn % 50 == 1:
            yield "user.message", {"text": f"Go on with part {turn}.", "to": "lead"}
        request = yield (
            "model.requested",
            {
                "model": "muse-spark-1.3",
                "api": "responses",
                "view": None,
                "items": turn,
                "max_output_tokens": 4096,
                "digest": "0" * 32,
                "bytes": 90_000,
                "reserved_microusd": 200_000,
                "reserved_tokens": 9000,
                "purpose": "step",
            },
        )
        paths = [f"src/part{turn % 300}/module{side}.py" for side in (0, 1)]
        calls = [
            {"type": "tool_call", "call_id": f"c{turn}-{side}", "name": "read", "arguments": f'{{"path":"{path}"}}'}
            for side, path in enumerate(paths)
        ]
        yield (
            "model.completed",
            {
                "request": request,
                "status": "completed",
                "cost_microusd": 1_000,
                "estimated": False,
                "attempts": 1,
                "items": [{"type": "message", "role": "assistant", "text": "I look at both."}, *calls],
                "usage": {"input": 9000, "cached": 8500, "output": 60, "reasoning": 0},
                "ttft_s": 0.4,
                "seconds": 1.5,
            },
        )
        for side, path in enumerate(paths):
            call = yield (
                "tool.requested",
                {
                    "name": "read",
                    "arguments": {"path": path},
                    "origin": "model",
                    "call_id": f"c{turn}-{side}",
                },
            )
            yield "tool.decided", {"call": call, "decision": "allow", "rule": "reads are allowed"}
            yield "tool.started", {"call": call, "effect": "read", "cwd": "/w/1", "path": path}
            yield "file.observed", {"worktree": None, "path": path, "digest": "ab" * 32, "size": 4000, "call": call}
            yield "tool.finished", {"call": call, "output": OUTPUT, "ok": True, "seconds": 0.01, "fenced": True}
