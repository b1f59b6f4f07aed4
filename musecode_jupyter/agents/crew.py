"""The agents that stand from the beginning and sleep until something wakes them: their turns, one at a time each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from pydantic import Field

from musecode_jupyter.agents import follow_ups
from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.agents.claims.retract import seeds
from musecode_jupyter.agents.claims.tools import CLAIM, claims_of
from musecode_jupyter.agents.crew_state import FILES, CrewState, Held
from musecode_jupyter.agents.loop import Loop
from musecode_jupyter.agents.mail.box import Mailbox
from musecode_jupyter.agents.mail.hearsay import OPINION, hearsay, standing_behind
from musecode_jupyter.agents.mail.state import Letter
from musecode_jupyter.agents.mind import Task
from musecode_jupyter.agents.prompts import LEAD
from musecode_jupyter.agents.roles import Role, offered
from musecode_jupyter.agents.roles.state import standing
from musecode_jupyter.agents.state import AgentRecord, AgentsState
from musecode_jupyter.log import EventLog
from musecode_jupyter.runtime.errors import LogError, MuseError, ToolProblem
from musecode_jupyter.runtime.process import to_the_end
from musecode_jupyter.tools.registry import Arguments, Outcome, Place, Tool, ToolContext

logger = logging.getLogger(__name__)

ASK = "ask"
MAX_STEPS = 30
"""Model calls of one turn of a standing agent."""
MOST_TOLD = 100
"""So many verified claims, the newest ones, are told to an agent that takes the name of another."""
CUT_OFF = "A restart cut the question off before it was answered. Ask again if you still need the answer."
NO_ANSWER = "it ended its turn without a word"


@dataclass
class Crew:
    """Owner of the turns of the standing agents; used on the runtime thread.

    `goal_of` gives the goal for which an agent works now, `outlived` why it is to give way to a new one, and the
    numbers of that decision, and `make` makes the one that takes its name. A turn is begun by mail alone: no cause, no
    model call. None is begun by a standing agent: they ask nobody.
    """

    log: EventLog
    loop: Loop
    mailbox: Mailbox
    goal_of: Callable[[str], int | None]
    outlived: Callable[[Task], tuple[str, dict[str, float]] | None] = lambda _task: None
    make: Callable[[str], Awaitable[None]] | None = None
    opened: bool = False
    """Whether turns may begin: not while a restart settles what was left open."""
    _turns: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _places: dict[int, Place] = field(default_factory=dict)
    _answers: dict[int, asyncio.Future[str]] = field(default_factory=dict)
    _limits: dict[str, tuple[int, int]] = field(default_factory=dict)
    _told: dict[str, int] = field(default_factory=dict)

    @property
    def busy(self) -> list[str]:
        """Who is in a turn."""
        return [name for name, task in self._turns.items() if not task.done()]

    async def ask(self, sender: str, to: str, question: str, place: Place, cause: int) -> str:
        """Put a question to a standing agent, which looks at `place`; returns its answer.

        Raises MuseError if its turn ended without one. Whoever stops asking ends the turn, unless others wait too.
        """
        if not self.opened:
            raise ToolProblem(CUT_OFF)
        sent = self.mailbox.send(
            sender, to, subject="question", topic=f"question {cause}", text=question, cause=(cause,)
        )
        self._places[sent.seq] = place
        answer = self._answers[sent.seq] = asyncio.get_running_loop().create_future()
        self._wake(to)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            await to_the_end(self._withdraw(sent.seq, to))
            raise
        finally:
            answer.cancel()
            self._answers.pop(sent.seq, None)
            self._places.pop(sent.seq, None)

    async def _withdraw(self, letter: int, to: str) -> None:
        """Take back a question that nobody waits for any more."""
        self._answers.pop(letter, None)
        known = self.mailbox.state.letters.get(letter)
        if known is not None and not known.delivered:
            self.mailbox.drop(letter, "whoever asked was stopped")
        elif letter in self.mailbox.state.unread(to):
            await self._end_turn(to)
            self._wake(to)

    async def rest(self) -> None:
        """End all turns, as other work begins or the session ends."""
        await asyncio.gather(*(self._end_turn(name) for name in list(self._turns)))
        for seq in self._answers:
            self._refuse(seq, "Other work has begun.")

    def settle(self) -> None:
        """After a restart: nobody waits any more for the answers to questions that were open."""
        for seq, letter in list(self.mailbox.state.letters.items()):
            if letter.asks and letter.delivered:
                self.log.post("mail.acknowledged", {"mail": seq}, agent=letter.to, cause=(seq,))
            elif letter.asks:
                self.mailbox.drop(seq, "whoever asked was cut off by a restart")

    def before_step(self, task: Task) -> None:
        """Bring mail to an agent that is about to take a step; notes only at the first step of a turn.

        Raises MuseError if a standing agent has come to the limit of model calls of a turn.
        """
        if task.agent in standing(self.log):
            end, most = self._limits.get(task.agent, (MAX_STEPS, MAX_STEPS))
            if self._steps(task.agent) >= end:
                raise MuseError(f"no answer after {most} model calls")
            self.mailbox.deliver(task.agent, digest=False, later=self._places)
            return
        state = self.log.state("agents")
        assert isinstance(state, AgentsState)
        turn = state.agents[task.agent].turn
        self.mailbox.deliver(task.agent, digest=self._told.get(task.agent) != turn)
        self._told[task.agent] = turn

    def _steps(self, name: str) -> int:
        """How many model calls the agent has made so far."""
        return self._record(name).steps

    def _record(self, name: str) -> AgentRecord:
        state = self.log.state("agents")
        assert isinstance(state, AgentsState)
        return state.agents[name]

    def _held(self, name: str) -> Held:
        state = self.log.state("crew")
        assert isinstance(state, CrewState)
        return state.agents[name]

    def _wake(self, name: str) -> None:
        task = self._turns.get(name)
        if task is None or task.done():
            self._turns[name] = asyncio.create_task(self._run(name), name=f"turns of {name}")

    async def _run(self, name: str) -> None:
        # What was delivered in a turn that a restart cut off is among them: it goes on.
        while asked := [
            seq for seq, each in self.mailbox.state.letters.items() if each.to == name and seq in self._places
        ]:
            try:
                await self._turn(name, asked[0])
            except LogError as problem:
                # The log cannot be written: nobody waits for what can never come.
                for seq in self._answers:
                    self._refuse(seq, str(problem))
                raise

    async def _turn(self, name: str, question: int) -> None:
        """One turn, in the place of whoever asked; other questions wait for turns of their own."""
        place, asked = self._places[question], self.mailbox.state.letters[question]
        goal = self.goal_of(asked.sender)
        why = f"asked by {asked.sender}" if asked.asks else f"{follow_ups.WHY} ({asked.topic})"
        if (found := self.outlived(Task(name, place, question, goal))) is not None:
            self.log.post("agent.retired", {"why": found[0], "numbers": found[1]}, agent=name, cause=(question,))
        if self._record(name).state == "retired" and self.make is not None:
            await self.make(name)
        woken = self.log.post(
            "agent.woken",
            {"why": why, "goal": goal, "place": str(place.root), "worktree": place.worktree},
            agent=name,
            cause=(question,),
        )
        self.log.post("agent.state", {"state": "running", "why": why}, agent=name)
        answer, problem = "", NO_ANSWER
        try:
            most = MAX_STEPS if asked.asks else follow_ups.MAX_STEPS
            self._limits[name] = (self._steps(name) + most, most)
            self.say_what_is_verified(name)
            self._say_what_changed(name)
            self.mailbox.deliver(name, digest=True, question=question, later=self._places)
            if asked.asks and question not in self.mailbox.state.unread(name):
                self._refuse(question, f"{name} was not asked: the question may not go to its model.")
                raise MuseError("the question may not go to its model")
            await self.log.flush()
            task = Task(name, place, woken.seq, goal)
            answer = (await self.loop.turn(task)).text
            if why := not_passed_on(self.log, name, woken.seq, answer):
                self.mailbox.send(HARNESS, name, subject="refusal", topic=asked.topic, text=why, cause=(question,))
                answer = (await self.loop.turn(task)).text
        except asyncio.CancelledError:
            problem = "it was stopped"
            raise
        except LogError:
            raise
        except MuseError as error:
            problem = str(error)
        except Exception as error:
            logger.exception("a turn of %s ended in an unexpected error", name)
            problem = f"unexpected {type(error).__name__}: {error}"
        finally:
            if not asked.asks:
                self._places.pop(question, None)
            if self.log.writable:
                self._close(name, woken.seq, question, answer, problem)

    def look_again(self, number: int, due: follow_ups.Due, place: Place, *, wake: bool) -> None:
        """Tell an agent that next step `number` of it has come due, in `place`; if `wake`, a turn of it begins.

        Else it reads it at the beginning of its next turn. Where no such agent stands any more, the lead is told.
        """
        name = due.step.agent
        if name not in standing(self.log):
            self._give_up_step(number, due.step, f"there is no {name} any more.")
            return
        before = self._held(name).before
        sent = self.mailbox.send(
            HARNESS,
            name,
            subject="follow-up",
            topic=follow_ups.topic_of(number),
            text=follow_ups.letter(due, inherited=before is not None and number < before),
            priority="next" if wake else "digest",
            cause=(number, due.by),
        )
        if wake:
            self._begin_step(name, sent.seq, place)

    def go_on_looking(self, place: Place, most: int) -> int:
        """After a restart: have agents take up the next steps of which they were told, and to whose end they did not
        come, `most` of them; returns how many that are."""
        letters = self.mailbox.state.letters
        left = [seq for seq in follow_ups.follow_ups_of(self.log).letters if letters[seq].priority != "digest"]
        for seq in left[: max(0, most)]:
            self._begin_step(letters[seq].to, seq, place)
        return len(left[: max(0, most)])

    def _begin_step(self, name: str, letter: int, place: Place) -> None:
        if self.opened:
            self._places[letter] = place
            self._wake(name)

    def _give_up_step(self, number: int, step: follow_ups.FollowUp, why: str) -> None:
        text = follow_ups.not_taken_up(step, why)
        topic = follow_ups.topic_of(number)
        self.mailbox.send(HARNESS, LEAD, subject="note", topic=topic, text=text, cause=(number,))

    def _give_up_steps(self, name: str, why: str) -> None:
        """Tell the lead of the next steps of an agent that is there no more; nobody else takes them up."""
        state = follow_ups.follow_ups_of(self.log)
        for number, step in state.of(name).items():
            self._give_up_step(number, step, why)
        for seq, number in list(state.letters.items()):
            if self.mailbox.state.letters[seq].to == name:
                set_by = self.log.get(number).data
                self._give_up_step(number, follow_ups.FollowUp(agent=name, **set_by), why)

    async def retire(self, name: str, why: str, numbers: dict[str, float], *, for_good: bool = False) -> None:
        """End an agent for which there is nothing to come: its turn, its calls, and what waits for it, first.

        Its next steps are those of the one that will have its name; the lead is told of them if it goes `for_good`.
        """
        await self._end_turn(name)
        if for_good:
            self._give_up_steps(name, f"{name} is retired, since {why}.")
        for call in list(self._record(name).open_calls):
            if call.requested is not None:
                closed = {"call": call.requested, "output": f"Not made: {name} is retired."}
                self.log.post("tool.cancelled", closed, agent=name, cause=(call.requested,))
        for seq, letter in list(self.mailbox.state.letters.items()):
            if letter.to == name:
                self.mailbox.drop(seq, f"{name} is retired")
                self._refuse(seq, f"{name} did not answer: {why}.")
        self.log.post("agent.retired", {"why": why, "numbers": numbers}, agent=name)

    def say_what_is_verified(self, name: str) -> None:
        """Tell one that has taken the name of another what is verified; all else it finds out anew."""
        before, known = self._held(name).before, seeds(claims_of(self.log))
        if before is None or self._record(name).view or not known:
            return
        kept = list(known.items())[-MOST_TOLD:]
        text = "\n".join(
            ["Verified so far, by claims that you may name:", *(f"- claim {n}: {text}" for n, text in kept)]
        )
        numbers = tuple(number for number, _ in kept)
        self.mailbox.send(
            HARNESS, name, subject="note", topic="verified", text=text, claims=numbers, cause=(before, *numbers)
        )

    def _say_what_changed(self, name: str) -> None:
        """Tell the agent which of the files that it has read are not as it read them any more."""
        changed = dict(self._held(name).changed)
        if changed:
            text = (
                f"Changed since you read them: {', '.join(sorted(changed))}. Read them again before you rely on them."
            )
            cause = tuple(sorted(set(changed.values())))
            self.mailbox.send(HARNESS, name, subject="note", topic=FILES, text=text, cause=cause)

    def _close(self, name: str, woken: int, began: int, answer: str, problem: str) -> None:
        """Acknowledge what the turn was about, and hand the answer, with what was claimed for it, to whoever asked.

        `began` is the letter with which the turn began: of others that it brought along the answer does not speak.
        """
        how = claims_of(self.log).standings()
        claimed = standing_behind(answer, claims_since(self.log, name, woken), how)
        if hearsay(answer, claimed, how):
            answer = OPINION + answer
        for seq, letter in self.mailbox.acknowledge(name).items():
            if seq == began and not letter.asks:
                self._tell_outcome(name, seq, letter, answer, claimed, problem)
            waiting = self._answers.get(seq)
            if waiting is None or waiting.done():
                continue
            if answer.strip():
                sent = self.mailbox.send(
                    name,
                    letter.sender,
                    subject="answer",
                    topic=letter.topic,
                    text=answer,
                    claims=claimed,
                    reply_to=seq,
                    cause=(seq,),
                )
                # It is in their conversation as the result of the call that asked.
                self.log.post("mail.acknowledged", {"mail": sent.seq}, agent=letter.sender, cause=(sent.seq,))
                waiting.set_result(answer)
            else:
                self._refuse(seq, f"{name} did not answer: {problem.removesuffix('.')}.")
        self.log.post("agent.state", {"state": "idle", "why": "" if answer.strip() else problem}, agent=name)

    def _tell_outcome(
        self, name: str, seq: int, letter: Letter, answer: str, claimed: tuple[int, ...], problem: str
    ) -> None:
        """Put what came of a next step into the lead's digest: also that nothing did: nobody takes it up again."""
        if follow_ups.tells(answer):
            self.mailbox.send(name, LEAD, subject="note", topic=letter.topic, text=answer, claims=claimed, cause=(seq,))
        elif not answer.strip():
            text = f"{name} wanted to look again, and did not come to its end ({problem.removesuffix('.')}): "
            text += follow_ups.wanted(self.log, seq)
            self.mailbox.send(HARNESS, LEAD, subject="note", topic=letter.topic, text=text, cause=(seq,))

    def _refuse(self, question: int, why: str) -> None:
        waiting = self._answers.get(question)
        if waiting is not None and not waiting.done():
            waiting.set_exception(ToolProblem(why))

    async def _end_turn(self, name: str) -> None:
        task = self._turns.get(name)
        if task is None or task.done():
            return
        task.cancel()
        await asyncio.wait([task])


def claims_since(log: EventLog, name: str, seq: int) -> list[int]:
    """What the agent has claimed since event `seq`."""
    return [number for number, claim in claims_of(log).claims.items() if number > seq and claim.author == name]


def not_passed_on(log: EventLog, name: str, woken: int, answer: str) -> str:
    """Why a standing agent is to answer again, in the turn that began with event `woken`; empty if it need not.

    Follows from the log alone. Who cannot claim is not asked to: what it says goes out as an opinion.
    """
    tools = offered(log, name)
    if tools is None or CLAIM not in tools:
        return ""
    return hearsay(answer, claims_since(log, name, woken), claims_of(log).standings())


class AskArguments(Arguments):
    """Arguments of `ask`."""

    agent: str = Field(description="who is asked")
    question: str = Field(description="all that is needed to answer it; the agent sees nothing of this conversation")


def ask_tool(crew: Callable[[], Crew], roles: Sequence[Role] = ()) -> Tool:
    """`ask`: a question to a standing agent, one of each of `roles`, whose answer is the call's result."""
    return Tool(
        name=ASK,
        description=" ".join(
            [
                "Ask a standing agent of the crew, which keeps what it has read.",
                *(f"{each.name}: {each.purpose}" for each in roles),
            ]
        ),
        arguments=AskArguments,
        effect="read",
        run=partial(_ask, crew),
    )


async def _ask(crew: Callable[[], Crew], context: ToolContext, arguments: AskArguments) -> Outcome:
    there = standing(context.log)
    if arguments.agent not in there:
        raise ToolProblem(f"There is no {arguments.agent!r} to ask. There are: {', '.join(there)}.")
    if not arguments.question.strip():
        raise ToolProblem("The question is empty.")
    return Outcome(await crew().ask(context.agent, arguments.agent, arguments.question, context.place, context.call))
