"""A made-up session for the views: events of a goal run, fed from a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from musecode_jupyter.jupyter.views import ApprovalsView, TimelineView, pending_card
from musecode_jupyter.log.events import Event
from musecode_jupyter.session.summary import summarise

START = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
DIFF = """--- a/inventory/stock.py
+++ b/inventory/stock.py
@@ -18,7 +18,7 @@ class Stock:
     def reserve(self, sku: str, count: int) -> bool:
         free = self.on_hand[sku] - self.reserved[sku]
-        if count >= free:
+        if count > free:
             return False
         self.reserved[sku] += count
         return True
"""


class Script:
    """Writes events with growing seq and time."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = START

    def put(
        self,
        kind: str,
        data: Mapping[str, Any],
        agent: str = "lead",
        after: float = 0.05,
        cause: tuple[int, ...] = (),
        turn: int = 0,
    ) -> int:
        self.now += timedelta(seconds=after)
        seq = len(self.events) + 1
        ts = self.now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.events.append(Event(1, seq, ts, 1, seq, agent, turn, cause, kind, "private", data))
        return seq

    def ask_model(
        self,
        agent: str,
        seconds: float,
        calls: tuple[str, ...] = (),
        text: str = "",
        cause: tuple[int, ...] = (),
    ) -> int:
        request = self.request(agent, cause)
        items: list[dict[str, Any]] = [
            {"type": "tool_call", "call_id": "c", "name": n, "arguments": "{}"} for n in calls
        ]
        if text:
            items.append({"type": "message", "role": "assistant", "text": text})
        usage = {
            "input": 9000 + 37 * request,
            "cached": 8000 + 30 * request,
            "output": 180 + request,
            "reasoning": 0,
        }
        return self.put(
            "model.completed",
            {
                "request": request,
                "status": "completed",
                "reason": None,
                "items": items,
                "usage": usage,
                "cost_microusd": 2_100,
                "estimated": False,
                "ttft_s": seconds / 4,
                "seconds": seconds,
                "attempts": 1,
            },
            agent,
            seconds,
            (request,),
        )

    def request(self, agent: str, cause: tuple[int, ...] = ()) -> int:
        return self.put(
            "model.requested",
            {
                "model": "spark-1.1",
                "api": "responses",
                "view": None,
                "items": 12,
                "max_output_tokens": 16384,
                "digest": "ab" * 16,
                "bytes": 41_203,
                "reserved_microusd": 20_000,
                "reserved_tokens": 26_000,
                "purpose": "",
            },
            agent,
            cause=cause,
        )

    def call(self, agent: str, name: str, arguments: dict[str, Any], cause: int) -> int:
        return self.put(
            "tool.requested",
            {"name": name, "arguments": arguments, "origin": "model", "call_id": "c", "purpose": ""},
            agent,
            cause=(cause,),
        )

    def start(self, agent: str, call: int, effect: str, path: str | None = None) -> int:
        self.put(
            "tool.decided",
            {"call": call, "decision": "allow", "rule": "reads are allowed"},
            agent,
            cause=(call,),
        )
        data = {
            "call": call,
            "effect": effect,
            "cwd": "/home/ada/inventory",
            "path": path,
            "before": "b",
            "after": "a",
        }
        return self.put("tool.started", data, agent, cause=(call,))

    def finish(
        self, agent: str, call: int, seconds: float, output: str, ok: bool = True, exit: int | None = None
    ) -> int:
        data = {"call": call, "output": output, "ok": ok, "exit": exit, "seconds": seconds}
        return self.put("tool.finished", data, agent, seconds, (call,))

    def tool(
        self,
        agent: str,
        name: str,
        arguments: dict[str, Any],
        effect: str,
        seconds: float,
        output: str,
        cause: int,
        ok: bool = True,
        exit: int | None = None,
    ) -> int:
        call = self.call(agent, name, arguments, cause)
        self.start(agent, call, effect, arguments.get("path"))
        return self.finish(agent, call, seconds, output, ok, exit)


def goal_run() -> Script:
    """A run that repairs a fault: parallel reads, a failed test run, an edit, a lost connection, a merge."""
    s = Script()
    opened = {"session": "s", "workspace": "/home/ada/inventory", "version": "0.1.0", "model": "spark-1.1"}
    s.put("session.opened", {**opened, "api": "responses", "profile": "driver", "approvals": "ask"}, "")
    s.put("agent.created", {"role": "lead", "profile": "driver", "model": "spark-1.1"})
    text = "Make the reservation tests pass without changing the public interface"
    verify = ["python -m pytest -q"]
    goal = s.put(
        "goal.set",
        {"text": text, "verify": verify, "agent": "lead", "branch": "main", "base": "4c1e", "microusd": 5_000_000},
        "",
    )
    s.put(
        "worktree.creating",
        {"goal": goal, "path": "/w", "branch": "musecode/goal-3", "base": "4c1e9d27aa"},
        "",
    )
    s.put("worktree.created", {"worktree": 4, "path": "/home/ada/.musecode/w/4"}, "", 0.4, (4,))
    answer = s.ask_model("lead", 2.4, ("run", "search"), cause=(goal,))
    one = s.call("lead", "run", {"command": "python -m pytest -q"}, answer)
    two = s.call("lead", "search", {"pattern": "def reserve", "path": "."}, answer)
    three = s.call("lead", "read", {"path": "inventory/stock.py", "start_line": 1, "end_line": 80}, answer)
    for call, effect in ((one, "process"), (two, "read"), (three, "read")):
        s.start("lead", call, effect)
    s.finish("lead", two, 0.3, "inventory/stock.py:18: def reserve(self, sku: str, count: int) -> bool:")
    s.put(
        "file.observed",
        {"worktree": 4, "path": "inventory/stock.py", "digest": "d", "size": 2210, "call": three},
    )
    s.finish("lead", three, 0.2, "1: class Stock:")
    failed = "FAILED tests/test_stock.py::test_reserve_last_piece\n1 failed, 41 passed in 1.92s"
    ran = s.finish("lead", one, 2.1, failed, False, 1)
    s.put("agent.created", {"role": "reviewer", "profile": "driver", "model": "spark-1.1"}, "reviewer")
    answer = s.ask_model("lead", 3.1, ("edit",), cause=(ran,))
    request = s.request("reviewer")
    edit = s.call("lead", "edit", {"path": "inventory/stock.py", "old": "count >= free", "new": "count > free"}, answer)
    s.start("lead", edit, "write", "inventory/stock.py")
    s.put(
        "file.changed",
        {"worktree": 4, "path": "inventory/stock.py", "before": "b", "after": "a", "call": edit},
        cause=(edit,),
    )
    done = s.finish("lead", edit, 0.1, "replaced 1 line")
    s.put("user.steer", {"text": "keep the docstring of reserve as it is", "to": "lead"}, "user", 0.8)
    error = {"request": request, "error": "connection reset by peer", "error_kind": "network", "attempts": 3}
    s.put("model.failed", {**error, "seconds": 3.9}, "reviewer", 2.0, (request,))
    answer = s.ask_model("lead", 1.8, ("run",), cause=(done,))
    ran = s.tool(
        "lead",
        "run",
        {"command": "python -m pytest -q"},
        "process",
        2.2,
        "42 passed in 1.88s",
        answer,
        exit=0,
    )
    s.ask_model("reviewer", 2.6, text="The boundary is right now; no other caller relies on it.", cause=(done,))
    answer = s.ask_model("lead", 1.4, text="All 42 tests pass.", cause=(ran,))
    claim = s.put("goal.claimed", {"goal": goal, "text": "all tests pass"}, cause=(answer,))
    check = {"command": "python -m pytest -q", "call": 1, "passed": True, "exit": 0, "seconds": 2.0}
    judged = {
        "goal": goal,
        "tree": "7a",
        "commit": "9e2b",
        "where": "baseline",
        "passed": True,
        "checks": [check],
    }
    s.put("goal.judged", judged, "", 2.0, (claim,))
    merge = s.put(
        "merge.enqueued",
        {"goal": goal, "commit": "9e2b41c077", "tree": "7a", "ref": "refs/heads/main"},
        "",
        cause=(claim,),
    )
    clean = {"merge": merge, "target": "4c1e9d27aa", "tree": "7a", "commit": "9e2b41c077", "conflicts": []}
    s.put("merge.checked", clean, "", 0.2, (merge,))
    s.request("reviewer", (merge,))
    s.start("lead", s.call("lead", "run", {"command": "python -m pytest -q tests/integration"}, merge), "process")
    return s


RUN_SHOWN = {
    "tool": "run",
    "command": "pip install -e . && python -m pytest -q tests/integration",
    "timeout": 600.0,
    "cwd": "/home/ada/.musecode/w/4",
    "environment": ["HOME", "LANG", "PATH"],
}
LAND_SHOWN = {
    "branch": "main",
    "from": "4c1e9d27aa",
    "to": "9e2b41c077",
    "files": ["inventory/stock.py"],
    "diff": DIFF,
    "checks": ["python -m pytest -q: passed"],
    "usd": 0.0127,
}


class Source:
    """An EventSource over a script."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def summaries(self, since: int) -> list[dict[str, Any]]:
        return [summarise(event) for event in self.script.events[since:]]

    def detail(self, seq: int) -> dict[str, Any]:
        if not 1 <= seq <= len(self.script.events):
            raise KeyError(seq)
        event = self.script.events[seq - 1]
        whole = {"seq": seq, "kind": event.kind, "agent": event.agent, "data": dict(event.data)}
        return {"event": whole, "diff": DIFF} if event.kind == "file.changed" else {"event": whole}


class Demo:
    """Both views over a made-up run; `actions` gets what the user did, on the loop's thread."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or goal_run()
        self.source = Source(self.script)
        self.actions: list[dict[str, Any]] = []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="synthetic", daemon=True)
        self.thread.start()
        self.cards = [
            pending_card(
                61,
                {"action": "run", "rule": "run: pip", "digest": "5f1c" * 8, "shown": RUN_SHOWN},
                agent="lead",
            ),
            pending_card(
                64,
                {"action": "land", "rule": "land on main", "digest": "90ab" * 8, "shown": LAND_SHOWN},
                agent="lead",
            ),
        ]
        post, later = self.loop.call_soon_threadsafe, self.loop.call_later
        self.timeline = TimelineView(self.source, self.actions.append, post=post, call_later=later)
        self.approvals = ApprovalsView(self._answered, post=post, call_later=later, pending=self.cards)

    def write(self, change: Callable[[Script], object]) -> None:
        """Let the run go on, on the loop's thread."""

        def go() -> None:
            before = len(self.script.events)
            change(self.script)
            self.timeline.feed(self.source.summaries(before))

        self.loop.call_soon_threadsafe(go)

    def ask(self, approval: int, command: str) -> None:
        """One more question, from the loop's thread."""

        def go() -> None:
            shown = {**RUN_SHOWN, "command": command}
            data = {"action": "run", "rule": "run", "digest": "c0de" * 8, "shown": shown}
            self.cards.append(pending_card(approval, data, agent="lead"))
            self.approvals.update(self.cards)

        self.loop.call_soon_threadsafe(go)

    def _answered(self, action: dict[str, Any]) -> None:
        self.actions.append(action)
        state = "denied" if action["decision"] == "deny" else "granted"
        scope = action["decision"].partition("_")[2] or "once"
        for i, card in enumerate(self.cards):
            if card["approval"] == action["approval"]:
                self.cards[i] = {**card, "state": state, "scope": scope, "by": "you", "why": action["why"]}
        self.approvals.update(self.cards)
