"""What share of an agent's prompt tokens a real local server takes from its cache, with masking and shortening.

Run: python tests/bench/bench_context.py [CALLS] [CONTEXT]. The steps are scripted, so that each run asks the same;
every prompt goes to the embedded model's server, whose counts of prompt and cached tokens are what the session records
and what is printed. The model file must be there (`make model`); MUSECODE_HOME says where, else it is .data.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fixtures.long_talks import Reading, read_call
from fixtures.model_scripts import ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Repo, session_on, start

from musecode_jupyter.log.events import Event
from musecode_jupyter.models.local import LocalModel
from musecode_jupyter.models.model_file import LocalModelFile
from musecode_jupyter.session.replay import prove

ROOT = Path(__file__).resolve().parents[2]
LINES = 14


class Counted(ModelServer):
    """The scripted server, whose token counts are those of the real one at `real_url` for the same messages."""

    real_url: str = ""
    real_key: str = ""

    def count_tokens(self, request: ParsedRequest) -> tuple[int, int, int]:
        asked = {name: request.raw[name] for name in ("messages", "tools") if name in request.raw}
        body = json.dumps({**asked, "max_tokens": 1, "temperature": 0.0, "cache_prompt": True}).encode()
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.real_key}"}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        sent = urllib.request.Request(f"{self.real_url}/chat/completions", body, headers)
        with opener.open(sent, timeout=600) as answer:
            usage = json.loads(answer.read())["usage"]
        return usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0), 0


class Server(threading.Thread):
    """The embedded model's server on a loop of its own, until `end`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        home = Path(os.environ.get("MUSECODE_HOME", str(ROOT / ".data")))
        self.model = LocalModel(
            LocalModelFile(home), threads=int(os.environ.get("MUSECODE_BENCH_THREADS", "0")) or None
        )
        self.loop = asyncio.new_event_loop()
        self.start()

    def run(self) -> None:
        self.loop.run_forever()

    def begin(self) -> tuple[str, str]:
        return asyncio.run_coroutine_threadsafe(self.model.start(), self.loop).result(180)

    def end(self) -> None:
        asyncio.run_coroutine_threadsafe(self.model.aclose(), self.loop).result(60)
        self.loop.call_soon_threadsafe(self.loop.stop)


def share(usages: Sequence[dict[str, int]]) -> float:
    """Cached tokens in all tokens of the prompts."""
    return sum(each["cached"] for each in usages) / max(1, sum(each["input"] for each in usages))


def told(events: Sequence[Event]) -> None:
    """The figures of a session."""
    requests = {event.seq: event for event in events if event.kind == "model.requested"}
    answers = [event for event in events if event.kind == "model.completed"]
    usages: list[dict[str, Any]] = [dict(event.data["usage"]) for event in answers]
    cuts = [event for event in events if event.kind == "context.compacted"]
    masks = [event for event in events if event.kind == "context.masked"]
    print(f"{len(answers)} requests, {len(masks)} points of masking, {len(cuts)} shortenings")
    print(f"prompt tokens {sum(each['input'] for each in usages)}, largest {max(each['input'] for each in usages)}")
    print(f"cached from the third request on: {share(usages[2:]):.3f}")
    if cuts:
        after = [dict(event.data["usage"]) for event in answers if event.seq > cuts[0].seq]
        print(f"cached after the first shortening: {share(after):.3f}; from the third request after it: ", end="")
        print(f"{share(after[2:]):.3f}; of {len(after)} requests")
        asked = [e for e in answers if requests[e.data["request"]].data["purpose"] == "compact"]
        print(f"cached in the questions for a summary: {share([dict(e.data['usage']) for e in asked]):.3f}")
        changed = {max(e.seq for e in answers if e.seq < mark.seq) for mark in (*masks, *cuts)}
        rest = [dict(b.data["usage"]) for a, b in pairwise(answers) if a.seq not in changed]
        print(f"cached in requests that only extend the one before: {share(rest):.3f}")


def main(calls: int, context: str) -> None:
    server = Server()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MUSECODE_HOME"] = str(Path(folder) / "home")
        repo = Repo(Path(folder) / "repo")
        files = {
            f"f{n}.txt": f"file {n} says that a value is {n}, which a test may want to know\n" * LINES for n in range(8)
        }
        repo.commit(files)
        relay = Counted(Reading([read_call(f"f{n % 8}.txt") for n in range(calls)], [EDIT, DONE]), api="chat")
        try:
            relay.real_url, relay.real_key = server.begin()
            with relay, session_on(relay.base_url, repo.root, api="chat", context=context) as session:
                handle = start(session)
                result = handle.wait(3_600)
                print(f"{result.status} {result.why} {time.monotonic() - began:.0f} s")
                assert result.met
                told(session.events())
                session_folder = session.folder
            proof = prove(session_folder)
            print(proof.problem or proof.words)
        finally:
            server.end()


if __name__ == "__main__":
    main(int((sys.argv[1:2] or ["60"])[0]), (sys.argv[2:3] or ["16384"])[0])
