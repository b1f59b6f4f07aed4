"""What share of an agent's prompt tokens a real local server takes from its cache, with all that changes prompts.

Run: python tests/bench/bench_context.py [CALLS] [CONTEXT] [--real]. The steps are scripted, so that each run asks the
same: files are read, one claim is made, and it is taken back after a third of them; old output is masked, the
conversation is shortened. Every prompt goes to the embedded model's server, whose counts of prompt and cached tokens
are what the session records and what is printed: on a tiny model with the same tokens (see tiny_model.py), with --real
on the embedded one. Its file must be there (`make model`); MUSECODE_HOME says where, else it is .data.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Container, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fixtures.long_talks import Reading, read_call
from fixtures.model_scripts import Answer, Call, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Repo, session_on, start
from tiny_model import post, serving

from musecode_jupyter.log.events import Event
from musecode_jupyter.models.local import CONTEXT
from musecode_jupyter.session import Session
from musecode_jupyter.session.replay import prove

LINES = 14
EVIDENCE = {"kind": "file", "path": "other.txt", "first_line": 1, "text": "other"}
CLAIM = {"text": "other.txt says other", "type": "location", "evidence": [EVIDENCE]}
CLAIMED = (read_call("other.txt"), Call("claim", CLAIM))


class Counted(ModelServer):
    """The scripted server, whose token counts are those of the real one at `real_url` for the same messages."""

    real_url: str = ""
    real_key: str = ""

    def count_tokens(self, request: ParsedRequest) -> tuple[int, int, int]:
        asked = {name: request.raw[name] for name in ("messages", "tools") if name in request.raw}
        body = {**asked, "max_tokens": 1, "temperature": 0.0, "cache_prompt": True}
        usage = post(f"{self.real_url}/chat/completions", self.real_key, body)["usage"]
        return usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0), 0


def share(usages: Sequence[dict[str, int]]) -> float:
    """Cached tokens in all tokens of the prompts."""
    return sum(each["cached"] for each in usages) / max(1, sum(each["input"] for each in usages))


def told(events: Sequence[Event]) -> None:
    """The figures of a session."""
    requests = {event.seq: event for event in events if event.kind == "model.requested"}
    answers = [event for event in events if event.kind == "model.completed"]
    usages: list[dict[str, Any]] = [dict(event.data["usage"]) for event in answers]
    marks = {kind: [e.seq for e in events if e.kind == f"context.{kind}"] for kind in ("masked", "compacted")}
    print(f"{len(answers)} requests, {len(marks['masked'])} points of masking, {len(marks['compacted'])} shortenings")
    print(f"prompt tokens {sum(each['input'] for each in usages)}, largest {max(each['input'] for each in usages)}")
    print(f"cached from the third request on: {share(usages[2:]):.3f}")
    for name, since in {"shortening": marks["compacted"][:1], "correction": corrections(events)[:1]}.items():
        after = [dict(event.data["usage"]) for event in answers if since and event.seq > since[0]]
        if after:
            print(
                f"after the {name}: {share(after):.3f}; from the third request after it: {share(after[2:]):.3f}", end=""
            )
            print(f"; in the first {share(after[:1]):.3f}; of {len(after)} requests")
    asked = [e for e in answers if requests[e.data["request"]].data["purpose"] == "compact"]
    if asked:
        print(f"in the questions for a summary: {share([dict(e.data['usage']) for e in asked]):.3f}")
    for name, pairs in kinds_of(answers, marks, {event.seq for event in asked}).items():
        fresh = sum(each["input"] - each["cached"] for _, each in pairs)
        most = sum(min(before["input"], each["input"]) for before, each in pairs)
        print(f"{len(pairs)} requests {name}: {fresh} tokens not cached, ", end="")
        print(f"{sum(each['cached'] for _, each in pairs) / max(1, most):.4f} of what the one before had was")


def corrections(events: Sequence[Event]) -> list[int]:
    """When an agent was told that a claim went out."""
    sent = {event.seq for event in events if event.kind == "mail.sent" and event.data["claims"]}
    return [event.seq for event in events if event.kind == "mail.delivered" and event.data["mail"] in sent]


def kinds_of(
    answers: Sequence[Event], marks: dict[str, list[int]], asked: Container[int]
) -> dict[str, list[tuple[dict[str, int], dict[str, int]]]]:
    """Usage of each request and of the one before it, by what was done to the conversation in between."""
    found: dict[str, list[tuple[dict[str, int], dict[str, int]]]] = {}
    for one, other in pairwise(answers):
        name = "that only extend the one before"
        for kind, seqs in marks.items():
            if any(one.seq < seq < other.seq for seq in seqs):
                name = {"masked": "after masking", "compacted": "after a shortening"}[kind]
        if one.seq in asked and name.startswith("that"):
            name = "after a question that is not in the conversation"
        found.setdefault(name, []).append((dict(one.data["usage"]), dict(other.data["usage"])))
    return found


class Corrected(Reading):
    """Reads on, and has the claim taken back before call `at`."""

    def __init__(self, calls: Sequence[Call], at: int) -> None:
        super().__init__(calls, [EDIT, DONE])
        self._at = at
        self.session: Session | None = None
        self.items: list[Any] = []
        self.kept: list[bool] = []

    def __call__(self, request: ParsedRequest) -> Answer:
        self.kept.append(request.items[: len(self.items)] == self.items)
        self.items = list(request.items)
        if self.asked == self._at and self.session is not None:
            session, self.session = self.session, None
            number = next(seq for seq, claim in session.claims.claims.items() if claim.author == "lead")
            print(f"taken back before request {len(self.kept)}: {session.retract_claim(number, 'it was read amiss')!r}")
        return super().__call__(request)


def main(calls: int, context: str, *, tiny: bool) -> None:
    began = time.monotonic()
    # The embedded model's own context is its most.
    wider = int(context) if tiny and int(context) > CONTEXT else None
    with serving(tiny=tiny, context=wider) as server, tempfile.TemporaryDirectory() as folder:
        os.environ["MUSECODE_HOME"] = str(Path(folder) / "home")
        repo = Repo(Path(folder) / "repo")
        files = {
            f"f{n}.txt": f"file {n} says that a value is {n}, which a test may want to know\n" * LINES for n in range(8)
        }
        repo.commit(files)
        model = Corrected([*CLAIMED, *(read_call(f"f{n % 8}.txt") for n in range(calls))], len(CLAIMED) + calls // 3)
        relay = Counted(model, api="chat")
        relay.real_url, relay.real_key = server.url, server.key
        with relay, session_on(relay.base_url, repo.root, api="chat", context=context) as session:
            model.session = session
            handle = start(session)
            handle.edit(steps=3 * calls + 100)
            result = handle.wait(3_600)
            if result.status == "paused":
                # Its work relies on what was taken back: it has been told that, and goes on as the user says so.
                handle.resume()
                result = handle.wait(3_600)
            print(f"{result.status} {result.why} {time.monotonic() - began:.0f} s")
            assert result.met
            told(session.events())
            session_folder = session.folder
        proof = prove(session_folder)
        print(proof.problem or proof.words)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--real"]
    main(int((words[:1] or ["60"])[0]), (words[1:2] or ["16384"])[0], tiny="--real" not in sys.argv)
