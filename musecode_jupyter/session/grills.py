"""Attacks as a session does them: begun, looked at by reviewers beside the user's cells, answered, gone on with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from musecode_jupyter.agents.answers import NotedAnswers
from musecode_jupyter.agents.critiques.batch_state import REVIEWER
from musecode_jupyter.agents.landing.tools import HARNESS
from musecode_jupyter.agents.prompts import REVIEWERS
from musecode_jupyter.guard.gate import Completion
from musecode_jupyter.guard.scopes import check_step
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import BudgetExceeded, LogError, ModelError, MuseError, NoRepository, UsageProblem
from musecode_jupyter.session.grill_text import grill_text, question_text
from musecode_jupyter.session.preflight import check_model
from musecode_jupyter.skills.grill import GrillRunner, GrillTools, request_of
from musecode_jupyter.skills.grill_state import STANDS, GrillFindingRecord, GrillRecord, asked_key, grills_of
from musecode_jupyter.skills.grill_target import Target, document_text, of_goal, of_graph, of_plan, of_text
from musecode_jupyter.skills.plan_state import document_of, plans_of
from musecode_jupyter.tools.registry import Place

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore

NONE_YET = "Nothing was attacked yet: %grill"
UNDER_WAY = "An attack is under way: wait for it (%grill show), or end it with `%grill stop`."
NOT_ASKED = "Nothing is asked now. `%grill --ask` asks the next thing, or name a finding: %grill {word} N."
SMALL = "{model} is small, and takes minutes for all angles; MUSECODE_REVIEW=full has it look all the same"
BUSY = "goal {goal} runs, and its reviewers are busy with it: attack again once it rests"
CHOSEN = "MUSECODE_REVIEW={mode}"
NOT_CONNECTED = "not_connected"


class Grills:
    """Owner of the tasks in which things are attacked; used on the runtime thread."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._one = asyncio.Lock()

    @property
    def running(self) -> int | None:
        """The attack that reviewers are at now."""
        return next((grill for grill, task in self._tasks.items() if not task.done()), None)

    def newest(self) -> int:
        """The newest attack; UsageProblem if there is none."""
        number = grills_of(self._core.log).newest
        if number is None:
            raise UsageProblem(NONE_YET)
        return number

    def record(self, grill: int) -> GrillRecord:
        """An attack of this session; UsageProblem if there is none of this number."""
        record = grills_of(self._core.log).grills.get(grill)
        if record is None:
            raise UsageProblem(f"There is no attack {grill} in this session.")
        return record

    def target(self, *, text: str | None = None, goal: int | None = None, tasks: int | None = None) -> Target:
        """What is to be attacked: the given text, a goal, the tasks of one, or else the newest plan.

        0 stands for the goal that was set or resumed last. Raises UsageProblem where there is no such thing.
        """
        log = self._core.log
        if sum(each is not None for each in (text, goal, tasks)) > 1:
            raise UsageProblem("One thing is attacked at a time: a text, a goal, or the tasks of one.")
        if text is not None:
            return of_text(text)
        if goal is not None:
            return of_goal(log, goal or self._core.active_goal())
        if tasks is not None:
            return of_graph(log, tasks or self._core.active_goal())
        return of_plan(log, self._core.plans.active())

    async def begin(self, *, text: str | None = None, goal: int | None = None, tasks: int | None = None) -> int:
        """Attack something, at once by what can be proven, then by reviewers; returns its number.

        Raises UsageProblem or GitError if it cannot be.
        """
        core = self._core
        if self.running is not None:
            raise UsageProblem(UNDER_WAY)
        why = self._unreviewed()
        if why:
            async with self._one:
                begun = await self._post(self.target(text=text, goal=goal, tasks=tasks), why)
                await self._run(begun)
            return begun
        async with core.exclusive():
            self.target(text=text, goal=goal, tasks=tasks)
            await self._ready()
            begun = await self._post(self.target(text=text, goal=goal, tasks=tasks))
            self._start(begun)
        return begun

    async def resume(self, grill: int) -> None:
        """Go on with an attack that was stopped, cut off, or has angles that could not be tried."""
        core, record = self._core, self.record(grill)
        if self.running is not None:
            raise UsageProblem(UNDER_WAY)
        missing = [angle for angle, each in record.angles.items() if each.state in {"failed", "not tried"}]
        if record.status != "stopped" and not missing:
            raise UsageProblem(f"Attack {grill} is over: every angle was tried. %grill attacks anew.")
        if not record.reviewed:
            async with self._one:
                await self._go_on(grill, reviewed=False)
                await self._run(grill)
            return
        async with core.exclusive():
            await self._ready()
            await self._go_on(grill, reviewed=True)
            self._start(grill)

    async def _go_on(self, grill: int, *, reviewed: bool) -> None:
        resumed = {"grill": grill, "reviewed": reviewed}
        await self._core.log.append("grill.resumed", resumed, agent="user", cause=(grill,))

    async def stop(self, why: str = "stopped by the user") -> None:
        """End the attack that is under way; `resume` goes on with it."""
        if self.running is None:
            raise UsageProblem("No attack is under way.")
        grill = self.running
        await self._core.questions.stop(why)
        await self.wait(grill)

    async def wait(self, grill: int) -> GrillRecord:
        """Wait until an attack is not under way any more; cancelling ends the wait only."""
        task = self._tasks.get(grill)
        if task is not None:
            await asyncio.wait([task])
        return self.record(grill)

    def _unreviewed(self) -> str:
        """Why no model looks at what is attacked now; empty if one does."""
        core = self._core
        chosen, profile = (core.settings.review or "").strip(), core.gate.info.profile
        # It says if it is none.
        core.settings.review_mode(profile)
        if not chosen and profile == "guided":
            return SMALL.format(model=core.gate.model)
        mode = chosen or "full"
        if mode != "full":
            return CHOSEN.format(mode=mode)
        return BUSY.format(goal=core.goals.active) if core.busy else ""

    async def _ready(self) -> None:
        """Have the model and the reviewers there."""
        # Of the floor above the skills, which makes agents by what plans and goals are under way.
        from musecode_jupyter.session.crew import ensure_agent

        core = self._core
        await check_model(core.settings, core.effects)
        await core.crew.rest()
        for name in REVIEWERS:
            await ensure_agent(core, name, REVIEWER)

    async def _post(self, target: Target, why: str = "") -> int:
        core = self._core
        moved = [] if target.plan is None else await core.plans.moved(target.plan)
        data = {
            "plan": target.plan,
            "version": target.version,
            "digest": target.digest,
            "target": target.kind,
            "goal": target.goal,
            "scope": target.scope,
            "document": document_text(target),
            "moved": moved,
            "reviewed": not why,
            "why": why,
        }
        cause = tuple(each for each in (target.plan, target.goal) if each is not None)
        return (await core.log.append("grill.begun", data, agent="user", cause=cause)).seq

    def _start(self, grill: int) -> None:
        self._tasks[grill] = self._core.questions.start(self._reviewed(grill), f"attack {grill}")

    async def _reviewed(self, grill: int) -> None:
        log = self._core.log
        try:
            for name in REVIEWERS:
                await log.append("agent.state", {"state": "running", "why": f"attack {grill}"}, agent=name)
            await self._run(grill)
        finally:
            for name in REVIEWERS:
                if log.writable:
                    log.post("agent.state", {"state": "idle", "why": ""}, agent=name)

    async def _run(self, grill: int) -> None:
        core = self._core
        with core.questions.noting("grill", grill, lambda: self.record(grill).status == "running"):
            await GrillRunner(await self._tools(), grill).run()

    async def _tools(self) -> GrillTools:
        core = self._core
        place, files = core.own_place(), no_files
        try:
            git = await core.git()
            place, files = Place(git.root, None, git.list_files), git.list_files
        except NoRepository:
            # Files of a folder without one are named by the user alone.
            pass
        return GrillTools(
            log=core.log,
            executor=core.executor,
            place=place,
            files=files,
            ask=self._ask,
            answers=partial(NotedAnswers, core.log),
            small=core.gate.info.profile == "guided",
            room=core.gate.info.room,
        )

    async def _ask(self, view: Event, _angle: str) -> Completion:
        core, gate = self._core, self._core.gate
        check_step(core.ledger, view.agent, core.now())
        small = gate.info.profile == "guided"
        try:
            await gate.ready(view.agent)
        except (ModelError, BudgetExceeded, LogError):
            raise
        except MuseError as problem:
            raise ModelError(str(problem), kind=NOT_CONNECTED) from problem
        return await gate.complete(
            request_of(gate, view, small=small, effort=core.settings.effort or "medium"),
            agent=view.agent,
            turn=0,
            view=view.seq,
            purpose=view.data["purpose"],
            cause=(view.seq,),
        )

    # --- what the user says ------------------------------------------------------------------------------

    async def answer(self, number: int | None, word: str, text: str = "") -> str:
        """Accept, reject or answer a finding, or what is asked now; says what follows.

        Raises UsageProblem if there is none, or it is settled.
        """
        state = grills_of(self._core.log)
        asked = state.asked
        if number is None:
            if asked is None:
                raise UsageProblem(NOT_ASKED.format(word=word))
            if asked["question"] is not None:
                return await self._of_plan(asked, word, text)
            number = asked["finding"]
        in_turn = asked is not None and asked["finding"] == number
        said = await self._finding(number, word, text)
        return f"{said}\n\n{await self.ask()}" if in_turn else said

    async def _of_plan(self, asked: dict[str, Any], word: str, text: str) -> str:
        plan = self.record(asked["grill"]).plan
        assert plan is not None
        if word != "answer":
            raise UsageProblem("This is a question of the plan's: answer it (%grill answer TEXT), or %grill skip.")
        self._core.plans.answer(plan, asked["question"], text)
        return f"Noted.\n\n{await self.ask()}"

    async def _finding(self, number: int, word: str, text: str) -> str:
        core = self._core
        finding = grills_of(core.log).findings.get(number)
        if finding is None:
            there = ", ".join(map(str, grills_of(core.log).findings)) or "none yet"
            raise UsageProblem(f"There is no finding {number}. There are: {there}.")
        if finding.state != "open":
            raise UsageProblem(f"Finding {number} is {finding.state} already.")
        if word == "answer" and not text.strip():
            raise UsageProblem(f"What do you answer? Give the text: %grill answer {number} TEXT.")
        said = self._decision(finding, word, text.strip())
        claim = None
        if said:
            claim = core.log.post(
                "claim.asserted", {"type": "decision", "text": said, "evidence": []}, agent="user"
            ).seq
        answer = {"accept": "accepted", "reject": "rejected", "answer": "answered"}[word]
        data = {"finding": number, "answer": answer, "text": text.strip(), "claim": claim}
        cause = (number,) if claim is None else (number, claim)
        await core.log.append("grill.answered", data, agent="user", cause=cause)
        return f"Finding {number} is {answer}.{self._follows(finding, answer)}"

    def _decision(self, finding: GrillFindingRecord, word: str, text: str) -> str:
        """What the user has decided by a word on a finding, for agents; empty: it goes to a plan's author."""
        if word == "answer":
            return f"The user decided, of {finding.text!r}: {text}"
        if word == "accept" and finding.plan is None:
            return f"The user agrees that this is a flaw: {finding.text} {finding.change}".strip()
        return ""

    def _follows(self, finding: GrillFindingRecord, answer: str) -> str:
        if answer != "accepted":
            return ""
        if finding.plan is not None:
            return " `%plan edit` has the plan changed by it."
        if finding.scope.startswith(("goal ", "tasks ")):
            return " It is a decision that agents can rely on; `%goal edit` changes the goal by it."
        return ""

    async def ask(self, grill: int | None = None) -> str:
        """Ask the user the next thing: what is asked already, a question of the plan, or the gravest open finding."""
        core, state = self._core, grills_of(self._core.log)
        if state.asked is not None and (grill is None or state.asked["grill"] == grill):
            return question_text(core.log, state.asked, len(self._open(state.asked["grill"])) - 1)
        number = self.newest() if grill is None else grill
        left = self._open(number)
        if not left:
            return "Nothing is left to ask."
        await core.log.append("grill.asked", left[0], agent=HARNESS, cause=(number,))
        return question_text(core.log, left[0], len(left) - 1)

    def attacked(self, *, text: str | None = None, goal: int | None = None, tasks: int | None = None) -> int | None:
        """The attack on this very thing as it stands, if there is one that is over: it is not attacked again to ask.

        With nothing named, what is asked now says which.
        """
        state = grills_of(self._core.log)
        if text is None and goal is None and tasks is None and state.asked is not None:
            return int(state.asked["grill"])
        target = self.target(text=text, goal=goal, tasks=tasks)
        over = (
            number
            for number, each in state.grills.items()
            if each.status == "ended" and (each.scope, each.digest) == (target.scope, target.digest)
        )
        return max(over, default=None)

    async def skip(self) -> str:
        """Leave what is asked now open, and ask the next thing."""
        asked = grills_of(self._core.log).asked
        if asked is None:
            raise UsageProblem(NOT_ASKED.format(word="accept"))
        data = {name: asked[name] for name in ("grill", "finding", "question")}
        await self._core.log.append("grill.skipped", data, agent="user", cause=(asked["grill"],))
        return await self.ask()

    def _open(self, grill: int) -> list[dict[str, Any]]:
        """What is left to ask of an attack, in order."""
        log, record, state = self._core.log, self.record(grill), grills_of(self._core.log)
        found: list[dict[str, Any]] = []
        if record.plan is not None:
            plan, document = plans_of(log).plans[record.plan], document_of(log, record.plan)
            questions = [] if document is None or plan.status in {"rejected", "cancelled"} else document["questions"]
            found += [
                {"grill": grill, "finding": None, "question": number, "text": question}
                for number, question in enumerate(questions, 1)
                if number not in plan.answers
            ]
        mine = [(number, each) for number, each in state.of_scope(record.scope).items() if each.state == "open"]
        found += [
            {"grill": grill, "finding": number, "question": None, "text": each.question or each.text}
            for number, each in sorted(mine, key=lambda pair: (pair[1].rank, pair[0]))
        ]
        return [each for each in found if asked_key(each) not in state.skipped]

    def text(self, grill: int) -> str:
        """How an attack stands, in lines."""
        return grill_text(self._core.log, grill)


async def settle_grills(core: SessionCore, why: str) -> None:
    """After a restart or in a fork: what was attacked rests; `%grill resume` goes on, and asks nothing twice."""
    for grill, record in grills_of(core.log).grills.items():
        if record.status == "running":
            stopped = {"grill": grill, "state": "interrupted", "why": why}
            await core.log.append("grill.stopped", stopped, agent=HARNESS, cause=(grill,))


def accepted(core: SessionCore, plan: int) -> list[str]:
    """What the user has accepted of the attacks on a plan, as wishes for its next version."""
    found = grills_of(core.log).of_plan(plan).values()
    return [f"{each.text} {each.change}".strip() for each in found if each.state == "accepted"]


def blocking(core: SessionCore, plan: int) -> Sequence[int]:
    """The findings of a plan that are proven, blocking, and not settled."""
    found = grills_of(core.log).of_plan(plan)
    return [number for number, each in found.items() if each.blocks and each.state in STANDS]


async def no_files() -> list[str]:
    """The files of no repository."""
    return []
