"""The repair model over HTTP on loopback, with a gate that holds its answers and a command it runs."""

from __future__ import annotations

import threading
from typing import Any

from fixtures.model_server import Answer, Call, ModelServer, ParsedRequest, RepairModel, load_repairs

HOLD_S = 120.0

REPO = "intervals"
# Decides as the repository's tests do, and takes no time.
CHECK = "grep -q 'self.start < other.end' scheduler/interval.py"
GOAL = f'%goal "make the check pass" --verify "{CHECK}"'


class ScriptedModel:
    """Repairs one fixture repository; questions outside a goal get a plain answer.

    Clear `go` to hold every answer to a goal until it is set again. With `command`, it runs that first.
    """

    ANSWER = "A check says no."

    def __init__(self, repo: str, *, command: str = "") -> None:
        self.go = threading.Event()
        self.go.set()
        self.command = command
        self._repair = RepairModel(load_repairs(repo))
        self._server = ModelServer(self._answer)

    def __enter__(self) -> ScriptedModel:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self._server.__exit__()

    @property
    def base_url(self) -> str:
        return self._server.base_url

    def wait_for(self, requests: int) -> None:
        """Wait until so many requests have arrived."""
        self._server.wait_for(requests, timeout=60)

    def bodies(self) -> list[Any]:
        """All requests so far."""
        return [request.json for request in self._server.requests]

    def _answer(self, request: ParsedRequest) -> Answer:
        if not any(item["type"] == "message" and item["text"].startswith("Goal: ") for item in request.items):
            return Answer(self.ANSWER)
        self.go.wait(HOLD_S)
        if self.command and not any(item["type"] == "tool_call" for item in request.items):
            return Answer("I look around.", [Call("run", {"command": self.command})])
        return self._repair(request)
