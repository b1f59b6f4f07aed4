"""The session of one kernel: opened by the first magic, shown in live views, offered for resume."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from musecode_jupyter.agents.critiques.text import critiques_of
from musecode_jupyter.jupyter.control import Control
from musecode_jupyter.jupyter.views import pending_card
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import MuseError, UsageProblem
from musecode_jupyter.runtime.loop import RuntimeThread
from musecode_jupyter.session import GoalSpec, Session, Settings, open_session
from musecode_jupyter.session.changes import unified
from musecode_jupyter.session.critiques import (
    finding_of,
    finding_shown,
    findings_shown,
    findings_since,
    newest_change,
    settle,
    to_settle,
)
from musecode_jupyter.session.grill_text import grill_shown
from musecode_jupyter.session.looks import map_text
from musecode_jupyter.session.store import SessionEntry, list_sessions
from musecode_jupyter.session.summary import summarise
from musecode_jupyter.tools.notebook import notebook_tools

if TYPE_CHECKING:
    from musecode_jupyter.jupyter.notebook import NotebookAccess
    from musecode_jupyter.jupyter.views import ApprovalsView, CritiquesView, GrillView, PlanView, TimelineView
    from musecode_jupyter.session.drafts import DraftHandle
    from musecode_jupyter.session.grill_handle import GrillHandle
    from musecode_jupyter.session.plan_handle import PlanHandle

logger = logging.getLogger(__name__)

NO_SESSION = "No session is open here: `%goal` and `%muse ask` begin one, `%muse resume` goes on with an earlier one."
FILE_CHANGE = "file.changed"
ENDINGS = {"approval.granted": "granted", "approval.denied": "denied", "approval.expired": "expired"}


class Host:
    """Holds the runtime thread, the session and its views for one shell. Owner of all of them.

    `interactive` says whether somebody sits in front of the magic that runs now.
    """

    def __init__(self, settings: Settings, notebook: NotebookAccess, kernel: Any = None) -> None:
        self._settings = settings
        self.notebook = notebook
        self._control = None if kernel is None else Control(self, kernel)
        self._showing: int | None = None
        self.interactive = False
        self._pid = os.getpid()
        self._runtime: RuntimeThread | None = None
        self._session: Session | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._timelines: list[TimelineView] = []
        self._approvals: list[ApprovalsView] = []
        self._critiques: list[CritiquesView] = []
        self._plans: list[PlanView] = []
        self._grills: list[GrillView] = []
        self.plan: PlanHandle | None = None
        """The plan that was begun here last: an approval by the magic is bound to what it showed."""
        self.draft: DraftHandle | None = None
        """The goal whose clauses were proposed here last, likewise."""
        self._cards: dict[int, dict[str, Any]] = {}
        self._on_end: list[tuple[int | None, Callable[[], None]]] = []
        self._offered = False

    def attach(self) -> None:
        """Begin to follow the notebook, and to serve the control channel; undone by `shutdown`."""
        self.notebook.attach()
        if self._control is not None:
            self.notebook.control = self._control
            self._control.attach()

    @property
    def open(self) -> Session | None:
        """The session, if one is open."""
        return self._session

    def settings(self) -> Settings:
        """The settings that the next session will have."""
        return self._settings.over(os.environ)

    def home(self) -> Path:
        """Where sessions live."""
        return self.settings().home_or_default()

    def workspace(self) -> Path:
        """The repository or folder that the kernel is in now."""
        try:
            return Path.cwd().resolve()
        except FileNotFoundError:
            raise UsageProblem("The kernel's working directory is not there any more: %cd to a folder first.") from None

    def unfinished(self) -> SessionEntry | None:
        """The newest session of this workspace that no process has open, if it ended without closing."""
        entries = list_sessions(self.home(), self.workspace())
        ended = (entry for entry in entries if entry.state not in {"live", "half made"})
        newest = next(ended, None)
        return newest if newest is not None and newest.state == "open" else None

    def offer(self) -> str:
        """The line that offers a resume, once; empty if there is nothing to offer."""
        if self._offered:
            return ""
        self._offered = True
        entry = self.unfinished()
        if entry is None:
            return ""
        return (
            f"Session {entry.id} of this workspace ended without closing ({entry.events} events). "
            "`%muse resume` goes on with it; anything else starts a new one."
        )

    def opened(self) -> Session:
        """The open session; UsageProblem if there is none, since what asks for it would find nothing in a new one."""
        if self._session is None:
            raise UsageProblem(NO_SESSION)
        return self._session

    def session_for_work(self, goal: GoalSpec | None = None) -> Session:
        """The session in which whoever is in front now wants work done; opened for `goal` if there is none."""
        session = self.session(goal)
        session.call(lambda core: core.set_interactive(self.interactive))
        return session

    def session(self, goal: GoalSpec | None = None) -> Session:
        """The open session; opens a new one if there is none, unless it is for a `goal` that cannot start."""
        if self._session is not None:
            return self._session
        session = open_session(
            self.workspace(),
            settings=self._settings,
            interactive=self.interactive,
            goal=goal,
            runtime=self._thread(),
            effects=LiveEffects(),
            tools=notebook_tools(self.notebook),
        )
        self._adopt(session)
        return session

    def resume(self, name: str | None) -> Session:
        """Go on with session `name`, or the newest that ended without closing; the open one is closed."""
        self._offered = True
        if name is None:
            entry = self.unfinished()
            name = "last" if entry is None else entry.id
        if self._session is not None and name in {"last", self._session.id}:
            return self._session
        # Opened before the other one is closed: a name that cannot be resumed costs nothing.
        session = open_session(
            self.workspace(),
            resume=name,
            settings=self._settings,
            interactive=self.interactive,
            runtime=self._thread(),
            effects=LiveEffects(),
            tools=notebook_tools(self.notebook),
        )
        try:
            self.close("another session was resumed")
        finally:
            self._adopt(session)
        return session

    def fork(self, seq: int) -> str:
        """Make a session that continues from event `seq` of the open one, which goes on; returns its id."""
        forked = self.opened().fork(seq)
        forked.close("forked")
        return forked.id

    def rewind(self, seq: int) -> Session:
        """Go back to event `seq`, if the user agrees; the open session ends, and the one that goes on is returned."""
        session = self.opened()
        with self.questions_shown():
            rewound = session.rewind(seq, tools=notebook_tools(self.notebook))
        try:
            self.close(f"rewound to event {seq}")
        finally:
            self._adopt(rewound)
        return rewound

    def close(self, reason: str = "closed by the user") -> None:
        """Close the session and its views; the runtime thread goes on for the next one."""
        if os.getpid() != self._pid:
            return
        atexit.unregister(self._at_exit)
        if self._session is None:
            return
        session, self._session = self._session, None
        # Whoever keeps a handle of a goal keeps the session, and must not keep us.
        session.while_waiting = None
        session.post(self._leave)
        try:
            session.close(reason)
        finally:
            for view in [*self._timelines, *self._approvals, *self._critiques, *self._plans, *self._grills]:
                with contextlib.suppress(Exception):
                    view.close()
            self._timelines, self._approvals, self._critiques, self._on_end = [], [], [], []
            self._plans, self._grills, self.plan, self.draft = [], [], None, None

    def shutdown(self) -> None:
        """Close the session, leave the notebook alone, and end the runtime thread."""
        try:
            self.close()
        finally:
            self.notebook.detach()
            if self._control is not None:
                self._control.detach()
                self.notebook.control = None
            if self._runtime is not None and os.getpid() == self._pid:
                self._runtime.stop()
                self._runtime = None

    def timeline(self) -> TimelineView:
        """A new live timeline of the session."""
        from musecode_jupyter.jupyter.views import TimelineView

        session = self.session()
        loop = self._thread().loop
        view = TimelineView(
            _Source(session),
            lambda action: self._timeline_says(session, action["type"]),
            post=loop.call_soon_threadsafe,
            call_later=loop.call_later,
            initial=[summarise(event) for event in session.events()],
        )
        session.post(lambda: self._timelines.append(view))
        return view

    def approvals_view(self) -> ApprovalsView:
        """A new live view of the questions that wait for the user."""
        from musecode_jupyter.jupyter.views import ApprovalsView

        session = self.session()
        loop = self._thread().loop
        view = ApprovalsView(
            lambda action: self._answer_from_view(session, action),
            post=loop.call_soon_threadsafe,
            call_later=loop.call_later,
            pending=session.read(lambda _core: list(self._cards.values())),
        )
        session.post(lambda: self._approvals.append(view))
        return view

    def critiques_view(self) -> CritiquesView:
        """A new live view of what reviews found."""
        from musecode_jupyter.jupyter.views import CritiquesView

        session = self.session()
        loop = self._thread().loop
        view = CritiquesView(
            lambda action: self._settle_from_view(session, action),
            post=loop.call_soon_threadsafe,
            call_later=loop.call_later,
            findings=session.read(lambda core: findings_shown(critiques_of(core.log))),
        )
        session.post(lambda: self._critiques.append(view))
        return view

    @property
    def in_kernel(self) -> bool:
        """Whether a front end shows what is displayed, and not a terminal."""
        return self._control is not None

    def plan_view(self, handle: PlanHandle) -> PlanView:
        """A new live view of a plan, with its buttons."""
        from musecode_jupyter.jupyter.views import PlanView

        session = handle.session
        loop = self._thread().loop
        view = PlanView(
            lambda action: self._plan_says(session, view, action),
            post=loop.call_soon_threadsafe,
            call_later=loop.call_later,
            shown=session.read(lambda core: core.plans.shown(handle.number)),
        )

        def follow() -> None:
            self._plans.append(view)
            view.update(session.core.plans.shown(handle.number))

        session.post(follow)
        return view

    def _plan_says(self, session: Session, view: PlanView, action: dict[str, Any]) -> None:
        async def do() -> None:
            plans, number = session.core.plans, view.number
            try:
                if action["type"] == "approve":
                    await plans.approve(number, action["digest"])
                elif action["type"] == "edit":
                    await plans.edit(number, action["text"])
                elif action["type"] == "answer":
                    plans.answer(number, action["question"], action["text"])
                else:
                    await plans.cancel(number)
            except MuseError as problem:
                view.refused(str(problem))

        self._thread().submit(do())

    def grill_view(self, handle: GrillHandle) -> GrillView:
        """A new live view of an attack, with its buttons."""
        from musecode_jupyter.jupyter.views import GrillView

        session = handle.session
        loop = self._thread().loop
        view = GrillView(
            lambda action: self._grill_says(session, view, action),
            post=loop.call_soon_threadsafe,
            call_later=loop.call_later,
            shown=session.read(lambda core: grill_shown(core.log, handle.number)),
        )

        def follow() -> None:
            self._grills.append(view)
            view.update(grill_shown(session.core.log, handle.number))

        session.post(follow)
        return view

    def _grill_says(self, session: Session, view: GrillView, action: dict[str, Any]) -> None:
        async def do() -> None:
            grills = session.core.grills
            try:
                if action["type"] == "settle":
                    await grills.answer(action["number"], action["word"], action["text"])
                elif action["type"] == "stop":
                    await grills.stop()
                else:
                    await grills.resume(view.number)
            except MuseError as problem:
                view.refused(str(problem))

        self._thread().submit(do())

    def when_goal_ends(self, goal: int, action: Callable[[], None]) -> None:
        """Run `action` on the runtime thread each time that `goal` is met, stopped or paused."""
        session = self.session()

        def register() -> None:
            self._on_end.append((goal, action))
            if session.core.goals.goals[goal].status != "running":
                action()

        session.post(register)

    def when_goals_end(self, action: Callable[[], None]) -> None:
        """Run `action` on the runtime thread each time that a goal, whichever it is, is met, stopped or paused."""
        self.session().post(lambda: self._on_end.append((None, action)))

    def pending_cards(self) -> list[dict[str, Any]]:
        """The questions that wait for the user; on the runtime thread."""
        return [card for card in self._cards.values() if card["state"] == "pending"]

    def working(self) -> bool:
        """Whether a goal runs or a question is being answered; on the runtime thread."""
        session = self._session
        return session is not None and (session.core.busy or session.core.asking)

    def standing(self) -> dict[str, Any]:
        """What pages are told of the session in a few words; on the runtime thread."""
        session = self._session
        return {
            "session": None if session is None else session.id,
            "pending": len(self.pending_cards()),
            "running": self.working(),
            "findings": 0 if session is None else newest_change(critiques_of(session.core.log)),
            "settle": 0 if session is None else to_settle(session.core),
        }

    def findings_since(self, since: int) -> dict[str, Any]:
        """The findings that have changed after event `since`; on the runtime thread."""
        if self._session is None:
            return {"since": since, "upto": since, "findings": []}
        return findings_since(critiques_of(self._session.core.log), since)

    @contextlib.contextmanager
    def questions_shown(self) -> Iterator[None]:
        """While this thread waits, a question to the user is shown in its cell: there is no other view of it yet."""
        self._showing = threading.get_ident()
        try:
            yield
        finally:
            self._showing = None

    def _meanwhile(self) -> None:
        """What a thread that waits for the session does: run code that waits for its cell, show a question."""
        if self._showing == threading.get_ident() and any(c["state"] == "pending" for c in list(self._cards.values())):
            self._showing = None
            if self.interactive:
                from IPython.display import display

                display(self.approvals_view())
        self.notebook.code.serve()

    def map_text(self, asked: str) -> str:
        """The map of the repository that the kernel is in, or of the open session's; no session is opened for it."""
        if self._session is not None:
            return self._session.map_text(asked)
        return self._thread().call(map_text(self.workspace(), LiveEffects(), asked))

    def thread(self) -> RuntimeThread:
        """The runtime thread, started by the first who asks."""
        return self._thread()

    def _thread(self) -> RuntimeThread:
        if self._runtime is None:
            self._runtime = RuntimeThread.start()
        return self._runtime

    def _adopt(self, session: Session) -> None:
        self._session = session
        if session.core.sandbox.banner:
            # Not among what a notebook's outputs are compared by: it depends on the machine.
            print(session.core.sandbox.banner, file=sys.stderr)
        session.while_waiting = self._meanwhile
        session.core.open_documents = self.notebook.open_documents

        def subscribe() -> None:
            for event in session.log.events():
                self._card(session, event)
            self._unsubscribe = session.log.on_durable(lambda event: self._feed(session, event))

        session.post(subscribe)
        atexit.register(self._at_exit)

    def _leave(self) -> None:
        # Closing takes a while, in which a page may ask how things stand: nobody waits for its user any more.
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        self._cards.clear()
        if self._control is not None:
            self._control.quiet()

    def _feed(self, session: Session, event: Event) -> None:
        summary = summarise(event)
        for timeline in self._timelines:
            timeline.feed([summary])
        if self._critiques and (number := finding_of(event)) is not None:
            shown = finding_shown(critiques_of(session.core.log).findings[number])
            for critiques in self._critiques:
                critiques.feed([shown])
        if event.kind.startswith("plan."):
            for plan in self._plans:
                if plan.number == event.data.get("plan"):
                    plan.update(session.core.plans.shown(plan.number))
        if event.kind.startswith("grill.") or event.kind == "plan.answered":
            for grill in self._grills:
                grill.update(grill_shown(session.core.log, grill.number))
        if self._card(session, event):
            for approvals in self._approvals:
                approvals.update(list(self._cards.values()))
        if self._control is not None and self.interactive:
            self._control.changed()
        if event.kind in {"goal.met", "goal.stopped", "goal.paused"}:
            for goal, action in self._on_end:
                if goal in (None, event.data["goal"]):
                    action()

    def _card(self, session: Session, event: Event) -> bool:
        if event.kind == "approval.requested":
            self._cards[event.seq] = pending_card(
                event.seq, event.data, agent=event.agent, ts=event.ts, usd=session.core.ledger.total.usd
            )
            return True
        if event.kind in ENDINGS and event.data["approval"] in self._cards:
            card = self._cards[event.data["approval"]]
            card.update(
                state=ENDINGS[event.kind],
                **{k: event.data[k] for k in ("by", "scope", "why") if k in event.data},
            )
            # Answered questions make room: the log has them.
            for seq in [seq for seq, old in self._cards.items() if old["state"] != "pending"][:-3]:
                del self._cards[seq]
            return True
        return False

    def _answer_from_view(self, session: Session, action: dict[str, Any]) -> None:
        async def answer() -> None:
            try:
                await session.core.approvals.answer(
                    action["approval"],
                    action["decision"],
                    by="widget",
                    why=action.get("why") or "",
                    digest=action.get("digest"),
                )
            except MuseError as problem:
                logger.warning("an answer from the widget was not taken: %s", problem)

        self._thread().submit(answer())

    def _settle_from_view(self, session: Session, action: dict[str, Any]) -> None:
        async def settled() -> None:
            try:
                await settle(session.core, action["number"], action["word"], action["text"])
            except MuseError as problem:
                for view in self._critiques:
                    view.refused(action["number"], str(problem))

        self._thread().submit(settled())

    def _timeline_says(self, session: Session, what: str) -> None:
        if what == "stop":
            self._stop_from_view(session)
        elif what == "lost":
            # What the notebook keeps of goals that have ended may be lost as well.
            for goal, action in self._on_end:
                if goal is None or session.core.goals.goals[goal].status != "running":
                    action()

    def _stop_from_view(self, session: Session) -> None:
        async def stop() -> None:
            # What ended by itself meanwhile needs no stop.
            with contextlib.suppress(UsageProblem):
                await session.core.stop_work("stopped from the timeline")

        self._thread().submit(stop())

    def _at_exit(self) -> None:
        # A goal that still runs is left open, so that the next kernel offers to go on with it.
        session = self._session
        if session is None or os.getpid() != self._pid:
            return
        with contextlib.suppress(Exception):
            if not session.read(lambda core: core.busy):
                self.close("the kernel ended")


class _Source:
    """What a timeline asks for, answered from the log."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def summaries(self, since: int) -> Sequence[dict[str, Any]]:
        log = self._session.log
        return [summarise(event) for event in log.events(since) if event.seq <= log.durable_seq]

    def detail(self, seq: int) -> dict[str, Any]:
        log = self._session.log
        if not 1 <= seq <= log.last_seq:
            raise KeyError(seq)
        event = log.get(seq)
        detail: dict[str, Any] = {"event": event_as_json(event)}
        if event.kind == FILE_CHANGE:
            detail["diff"] = change_diff(self._session, event)
        return detail


def event_as_json(event: Event) -> dict[str, Any]:
    """All of an event as JSON values."""
    return {**asdict(event), "cause": list(event.cause), "data": dict(event.data)}


def change_diff(session: Session, event: Event) -> str:
    """Unified diff of a file.changed event."""
    sides = [None if event.data[name] is None else session.log.blob(event.data[name]) for name in ("before", "after")]
    return unified(event.data["path"], sides[0], sides[1])
