"""The kernel's control channel as a second door: pending questions, answers and Stop, also while a cell blocks.

The JupyterLab extension sends `musecode_request` on the control channel, which the kernel serves on a thread of its
own, and gets one `musecode_reply`:

- `{type: state, document?, since?}`: `{ok, at, session, pending, running, findings, settle}` as below, but for
  `pending`, the cards of the questions that wait, and `findings`, those that changed after event `since`, as `{since,
  upto, findings}`
- `{type: answer, approval, digest, decision, why}`: `{ok, problem?}`
- `{type: settle, number, word, text}`: `{ok, problem?}`; what the user says of a finding
- `{type: stop}`: `{ok, problem?}`
- `{type: applied, proposal, ok, problem}`: what became of a proposal

The kernel says on IOPub, with no cell as parent, how things stand: `musecode_state` with `{at, session, pending,
running, findings, settle, answer}`: how many questions wait, the newest event that changed a finding, how many findings
a goal waits for. It does so at each change, when a front end introduces itself, and every two seconds while something
runs or waits. A page asks where there is something that it does not know, and if it is to `answer`, so that the kernel
knows of it. What was said or answered at a later `at` is newer. And it says `musecode_proposal` with `{proposal, cell,
after, before, source}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from musecode_jupyter.jupyter.views.approvals import DECISIONS
from musecode_jupyter.jupyter.views.critiques import settlement
from musecode_jupyter.runtime.errors import MuseError, ToolProblem
from musecode_jupyter.session.critiques import settle
from musecode_jupyter.tools.notebook import Proposal

if TYPE_CHECKING:
    from musecode_jupyter.jupyter.host import Host
    from musecode_jupyter.session import Session

logger = logging.getLogger(__name__)

REQUEST, REPLY = "musecode_request", "musecode_reply"
STATE, PROPOSAL = "musecode_state", "musecode_proposal"
# With it a front end begins to speak with a kernel.
INTRODUCTION = "kernel_info_request"
BEAT_S = 2.0
SOON_S = 0.05
# A front end that was not heard of for so long is gone, or its page is.
PRESENT_S = 10.0
# So long a page has to answer, which the browser and the server between are slow to do at times.
HEARD_S = 3.0
APPLY_S = 20.0
ANSWER_S = 5.0


class Control:
    """The door of one kernel. What changes state is used on the runtime thread only."""

    def __init__(self, host: Host, kernel: Any) -> None:
        self._host = host
        self._kernel = kernel
        self._documents: dict[str, float] = {}
        self._proposals: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = 0
        self._introduction: Callable[..., Any] = lambda *_message: None
        self._answered = asyncio.Event()
        self._asked = float("-inf")
        self._soon = False
        self._was_on = False
        self._timer: asyncio.TimerHandle | None = None

    def attach(self) -> None:
        """Serve our requests on the control channel; undone by `detach`."""
        self._kernel.control_handlers[REQUEST] = self._serve
        self._introduction = self._kernel.shell_handlers[INTRODUCTION]
        self._kernel.shell_handlers[INTRODUCTION] = self._introduced

    def detach(self) -> None:
        """Take back `attach`."""
        if self._kernel.control_handlers.get(REQUEST) == self._serve:
            del self._kernel.control_handlers[REQUEST]
        if self._kernel.shell_handlers.get(INTRODUCTION) == self._introduced:
            self._kernel.shell_handlers[INTRODUCTION] = self._introduction

    def _introduced(self, *message: Any) -> Any:
        # A page that was loaded while nothing runs or waits is told how things stand, and shows it.
        if self._host.open is not None:
            self._host.thread().loop.call_soon_threadsafe(self.changed)
        return self._introduction(*message)

    async def front_end(self) -> bool:
        """Whether there is a page with the extension.

        One that was not heard of just now is spoken to and has a few seconds to answer: nothing may have been told to
        it since it was loaded. Where none has answered, the next question of this kind does not wait.
        """
        if self._heard() or not self._host.interactive or time.monotonic() - self._asked < PRESENT_S:
            return self._heard()
        self._asked = time.monotonic()
        self._answered.clear()
        self.beat(answer=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEARD_S):
                await self._answered.wait()
        return self._heard()

    def _heard(self) -> bool:
        return any(time.monotonic() - heard < PRESENT_S for heard in self._documents.values())

    def documents(self) -> list[Path]:
        """The notebooks that pages have open on this kernel, by the path that the page knows."""
        return [Path(name) for name in self._documents if name.endswith(".ipynb")]

    def beat(self, *, answer: bool = False) -> None:
        """Tell pages now, and every two seconds while something runs or waits; with `answer` they ask in any case."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._soon = False
        standing = self._host.standing()
        self._say(standing, answer=answer)
        on = bool(standing["pending"] or standing["running"] or standing["settle"])
        if on or self._was_on:
            # Once more after the end: the last event is written before its task has ended.
            self._timer = asyncio.get_running_loop().call_later(BEAT_S, self.beat)
        self._was_on = on

    def changed(self) -> None:
        """Something happened: pages are told soon, once for many events."""
        if not self._soon:
            if self._timer is not None:
                self._timer.cancel()
            self._soon = True
            self._timer = asyncio.get_running_loop().call_later(SOON_S, self.beat)

    def quiet(self) -> None:
        """The session is closed: tell pages a last time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._soon = self._was_on = False
        self._say({"session": None, "pending": 0, "running": False, "findings": 0, "settle": 0})

    async def apply(self, proposal: Proposal) -> str:
        """Let the page change the cell; ToolProblem if it cannot, for instance because the cell is gone."""
        self._numbers += 1
        number = self._numbers
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._proposals[number] = future
        content = {
            "proposal": number,
            "cell": proposal.cell,
            "after": proposal.after,
            "before": proposal.before,
            "source": proposal.source,
        }
        try:
            self._publish(PROPOSAL, content)
            async with asyncio.timeout(APPLY_S):
                answer = await future
        except TimeoutError:
            raise ToolProblem("The notebook's page did not answer; nothing was changed.") from None
        finally:
            del self._proposals[number]
        if not answer.get("ok"):
            raise ToolProblem(f"The cell was not changed: {answer.get('problem') or 'no reason given'}.")
        return "The user agreed, and the notebook has the new source. It has not been run."

    async def _serve(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        # On the control thread: everything is posted to the runtime thread.
        try:
            future = self._post(self._answer(parent["content"]))
            answer = await asyncio.wait_for(asyncio.wrap_future(future), ANSWER_S)
        except Exception as error:
            logger.warning("a request on the control channel was not answered: %s", error)
            answer = {"ok": False, "problem": f"The kernel could not answer ({type(error).__name__})."}
        self._kernel.session.send(stream, REPLY, answer, parent, ident=ident)

    def _post(self, work: Coroutine[Any, Any, dict[str, Any]]) -> Future[dict[str, Any]]:
        return self._host.thread().submit(work)

    async def _answer(self, content: dict[str, Any]) -> dict[str, Any]:
        kind = content.get("type")
        document = content.get("document")
        if isinstance(document, str):
            self._documents[document] = time.monotonic()
            self._answered.set()
        session = self._host.open
        try:
            if kind == "state":
                since = content.get("since")
                return {
                    "ok": True,
                    "at": time.monotonic(),
                    **self._host.standing(),
                    "pending": self._host.pending_cards(),
                    "findings": self._host.findings_since(since if type(since) is int else 0),
                }
            if kind == "applied":
                future = self._proposals.get(content.get("proposal", 0))
                if future is not None and not future.done():
                    future.set_result(content)
                return {"ok": future is not None}
            if session is None:
                return {"ok": False, "problem": "No session is open."}
            if kind == "stop":
                await session.core.stop_work("stopped from the page")
                return {"ok": True}
            if kind == "answer":
                return await self._decide(content)
            if kind == "settle":
                return await self._settle(session, content)
        except MuseError as problem:
            return {"ok": False, "problem": str(problem)}
        return {"ok": False, "problem": f"There is no request {kind!r}."}

    async def _decide(self, content: dict[str, Any]) -> dict[str, Any]:
        approval, decision = content.get("approval"), content.get("decision")
        digest, why = content.get("digest"), content.get("why")
        if type(approval) is not int or decision not in DECISIONS or not isinstance(digest, str):
            return {"ok": False, "problem": "Not an answer: approval, digest and decision are needed."}
        session = self._host.open
        assert session is not None
        await session.core.approvals.answer(
            approval, decision, by="page", why=why if isinstance(why, str) else "", digest=digest
        )
        return {"ok": True}

    async def _settle(self, session: Session, content: dict[str, Any]) -> dict[str, Any]:
        said = settlement(content)
        if said is None:
            return {"ok": False, "problem": "Not a word on a finding: number, word and text are needed."}
        await settle(session.core, said["number"], said["word"], said["text"])
        return {"ok": True}

    def _say(self, standing: dict[str, Any], *, answer: bool = False) -> None:
        self._publish(STATE, {"at": time.monotonic(), **standing, "answer": answer})

    def _publish(self, kind: str, content: dict[str, Any]) -> None:
        # A page that is not there is no reason for work to fail.
        with contextlib.suppress(Exception):
            self._kernel.session.send(self._kernel.iopub_socket, kind, content, parent={})
