"""The budget of a day where several kernels ask at once: it is never exceeded, and its last room goes to somebody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from fixtures.model_scripts import Answer, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.session_bench import DEADLINE_S, Hurried, Repo, only, session_on

from musecode_jupyter.runtime.errors import BudgetExceeded
from musecode_jupyter.session import Session
from musecode_jupyter.session.budget import clear_budget, set_budget
from musecode_jupyter.session.day import Day
from musecode_jupyter.session.replay import prove

T = TypeVar("T")
KERNELS = 4


class AtOnce(Hurried):
    """The real world, in which every kernel has seen what the others used before any of them asks for more."""

    def __init__(self, seen: threading.Barrier) -> None:
        super().__init__()
        self.armed = False
        self._seen = seen

    async def disk(self, work: Callable[..., T], *args: Any) -> T:
        found = await super().disk(work, *args)
        if self.armed and getattr(work, "__func__", None) is Day._read:
            self.armed = False
            await asyncio.to_thread(self._seen.wait, DEADLINE_S)
        return found


def test_of_kernels_that_ask_at_once_one_has_the_last_room(tmp_path: Path) -> None:
    """Each looked at the others first and reserved then: all of them found the same room, and took it."""
    refused = threading.Semaphore(0)
    hold = threading.Event()

    def model(_request: ParsedRequest) -> Answer:
        if hold.is_set():
            for _ in range(KERNELS - 1):
                assert refused.acquire(timeout=DEADLINE_S)
        return Answer("So it is.")

    barrier = threading.Barrier(KERNELS)
    worlds = [AtOnce(barrier) for _ in range(KERNELS)]
    with ModelServer(model) as server, ExitStack() as stack:
        sessions = [
            stack.enter_context(session_on(server.base_url, Repo(tmp_path / f"repo{number}").root, effects=world))
            for number, world in enumerate(worlds)
        ]
        sessions[0].call(lambda core: core.ask("How is it?"))
        (first,) = only(sessions[0].events(), "model.requested")
        used, reserve = sessions[0].ledger.total.tokens, first.data["reserved_tokens"]
        limit = used + reserve * 3 // 2
        # Set in one of them, it is known to all at their next request.
        sessions[1].call(lambda core: set_budget(core, tokens=limit, day=True))
        sent = len(server.requests)
        hold.set()
        for world in worlds:
            world.armed = True

        def ask(session: Session) -> str:
            try:
                return session.call(lambda core: core.ask("And now?"))
            except BudgetExceeded as problem:
                refused.release()
                return str(problem)

        with ThreadPoolExecutor(KERNELS) as threads:
            said = list(threads.map(ask, sessions))
        assert len(server.requests) == sent + 1
        assert said.count("So it is.") == 1
        assert sum("(all sessions today)" in each for each in said) == KERNELS - 1
        hold.clear()
        # What the one answered did not use is room again, for whoever asks next.
        assert sessions[2].call(lambda core: core.ask("And then?")) == "So it is."
        for session in sessions:
            session.call(lambda core: core.day.refresh(always=True))
            total, tokens = session.read(lambda core: core.day.used())
            assert tokens == sum(each.ledger.total.tokens for each in sessions) <= limit
            assert total == sum(each.ledger.total.microusd for each in sessions)
        sessions[0].call(clear_budget)
        folders = [session.folder for session in sessions]
    for folder in folders:
        proof = prove(folder)
        assert proof.ok, proof.problem
