"""A day in small: a thousand tool calls, a fifth of them failures, in a small window, with kills in between."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from fixtures.crash_world import check_calls
from fixtures.long_talks import asks_for_summary
from fixtures.model_scripts import Answer, Call, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.session_bench import CHECK, Repo
from test_killed_runs import Run

from musecode_jupyter.agents.state import AgentsState
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.session.reducers import all_reducers
from musecode_jupyter.session.replay import prove

LONG = "MUSECODE_CRASH_POINTS" in os.environ
CALLS = 1_000 if LONG else 60
WINDOW = 32_768 if LONG else 9_216
FAILS_EVERY = 5
DEADLINE_S = 900
LOOK_EVERY = 20

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600)]


class Watched(Run):
    """A run whose memory is looked at now and then: `memory` has its own resident bytes by the newest event."""

    def __init__(self, arguments: list[str], env: dict[str, str], memory: dict[int, int]) -> None:
        super().__init__(arguments, env)
        self.memory = memory

    def events(self) -> Iterator[int]:
        for seq in super().events():
            if seq % LOOK_EVERY == 0:
                self._look(seq)
            yield seq

    def _look(self, seq: int) -> None:
        # It may have ended by now: then nothing is known of it.
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{self.process.pid}/statm").read_text().split()
            # What is resident, without what is shared with files.
            own = int(words[1]) - int(words[2])
            if own:
                # A process that goes on tells what was before it too.
                self.memory.setdefault(seq, own * resource.getpagesize())


class Worker:
    """Reads piece after piece, each fifth time one that is not there; knows from the prompt alone how far it is.

    Only what the prompt says tells it what comes next: a step that was lost or done twice shows in the calls.
    """

    def __call__(self, request: ParsedRequest) -> Answer:
        done = max((int(n) for n in re.findall(r"piece (\d+)\b", str(request.items))), default=0)
        if asks_for_summary(request):
            return Answer(f"## Done\nI have been as far as piece {done}.")
        if done < CALLS:
            number = done + 1
            path = f"missing/{number}.txt" if number % FAILS_EVERY == 0 else f"part{number % 7}.txt"
            return Answer(f"This is piece {number}.", [Call("read", {"path": path, "start_line": number % 40 + 1})])
        edited = any(item["type"] == "tool_call" and item["name"] == "edit" for item in request.items)
        edit = Call("edit", {"path": "answer.txt", "old": "wrong", "new": "right"})
        return Answer("It is corrected.") if edited else Answer("I correct it.", [edit])


@pytest.mark.skipif(not LONG, reason="minutes: run by make crash")
def test_a_long_run_with_kills_repeats_nothing_loses_nothing_and_stays_small(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    text = "".join(f"line {n} has a few words\n" for n in range(60))
    repo.commit({f"part{n}.txt": text for n in range(7)})
    memory: dict[int, int] = {}
    with ModelServer(Worker()) as server:
        env = {
            **os.environ,
            "MUSECODE_HOME": str(tmp_path / "home"),
            "MUSECODE_BASE_URL": server.base_url,
            "MUSECODE_API": "responses",
            "MUSECODE_MODEL": "muse-spark-1.3",
            "MUSECODE_CONTEXT": str(WINDOW),
            "MUSECODE_API_KEY": "sk-test",
            "MUSECODE_APPROVALS": "allow-workspace",
        }
        goal = ["run", "--goal", "say right", "--verify", CHECK, "--repo", str(repo.root), "--steps", str(2 * CALLS)]
        run = Watched(goal, env, memory)
        events_of_a_call = 8
        assert run.kill_after(CALLS // 3 * events_of_a_call, 0.0)
        (folder,) = (tmp_path / "home" / "sessions").iterdir()
        run = Watched(["resume", folder.name], env, memory)
        assert run.kill_after(CALLS * 2 // 3 * events_of_a_call, 0.0)
        code, errors = Watched(["resume", folder.name], env, memory).finish(DEADLINE_S)
        assert code == 0, errors
        sent = server.requests
    log = EventLog.read(folder)
    events = list(log.events())
    check_calls(events, ended={"lead"})
    names = {e.seq: e.data for e in events if e.kind == "tool.requested" and e.data["origin"] == "model"}
    reads = [str(data["arguments"]) for data in names.values() if data["name"] == "read"]
    assert len(reads) == CALLS, "no call was lost, and none was made twice"
    failed = [e for e in events if e.kind == "tool.failed" and e.data["call"] in names]
    assert len(failed) == CALLS // FAILS_EVERY
    assert Counter(e.kind for e in events)["goal.met"] == 1
    cuts = [event for event in events if event.kind == "context.compacted"]
    assert len(cuts) >= 3
    assert all("# Goal\nGoal: say right" in cut.data["text"] for cut in cuts)
    assert sum(event.kind == "session.resumed" for event in events) == 2
    # What a prompt may have is never exceeded, and neither state nor log grow with what is behind.
    usage = [e.data["usage"]["input"] for e in events if e.kind == "model.completed" and e.data["usage"]]
    assert max(usage) <= WINDOW - WINDOW // 4
    fold = EventLog.read(folder, reducers=all_reducers()).state("agents")
    assert isinstance(fold, AgentsState)
    assert len(fold.call_ids) < CALLS // 3
    assert len(fold.agents["lead"].results) < CALLS // 3
    fifths = [bytes_per_call(folder, names, n / 5, (n + 1) / 5) for n in range(5)]
    assert fifths[-1] < 1.1 * fifths[0]
    peaks = most_memory(memory, names)
    assert peaks[-1] < 1.3 * peaks[0]
    print(f"\n{len(names)} calls, {len(failed)} failed, {len(cuts)} shortenings, {len(events)} events, ", end="")
    print(f"bytes a call by fifths {[round(each) for each in fifths]}, most memory by fifths ", end="")
    print(f"{[each >> 20 for each in peaks]} MiB, ", end="")
    print(f"{len(sent)} requests, cached {cached_share(events):.3f}")
    proof = prove(folder)
    assert proof.problem is None, proof.problem


def bytes_per_call(folder: Path, calls: dict[int, object], begin: float, end: float) -> float:
    """Bytes of the journal for each call, between two shares of the calls."""
    seqs = sorted(calls)
    first, last = seqs[int(begin * len(seqs))], seqs[min(int(end * len(seqs)), len(seqs) - 1)]
    lines = [line for path in sorted((folder / "journal").iterdir()) for line in path.read_bytes().splitlines()]
    return sum(map(len, lines[first:last])) / (int(end * len(seqs)) - int(begin * len(seqs)))


def most_memory(memory: dict[int, int], calls: dict[int, object]) -> list[int]:
    """The most resident bytes in each fifth of the calls."""
    seqs = sorted(calls)
    ends = [*(seqs[n * len(seqs) // 5] for n in range(1, 5)), max(memory) + 1]
    return [max(size for seq, size in memory.items() if a <= seq < b) for a, b in pairwise([0, *ends])]


def cached_share(events: list[Event]) -> float:
    """Of the prompts' tokens from the third on, the share that the server had."""
    found = [e.data["usage"] for e in events if e.kind == "model.completed" and e.data["usage"]][2:]
    return sum(each["cached"] for each in found) / sum(each["input"] for each in found)
