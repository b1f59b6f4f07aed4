"""Keeps the conversation of an agent within its model's window, and cheaper than a new one: masks, compacts, re-seeds.

All of it happens between two steps, where every call has its result, and is recorded before the next request is made of
it. What is decided follows from the log alone: from what servers counted, and from the room and the price that the
session was opened with.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from musecode_jupyter.agents.carried import GoalLines, May, carried_claims, compose, facts, pinned_text, users_words
from musecode_jupyter.agents.claims.state import ClaimsState
from musecode_jupyter.agents.context import REFUSALS
from musecode_jupyter.agents.conversations import BYTES_PER_TOKEN, Conversations
from musecode_jupyter.agents.economy import CACHE_S, REQUESTS, Decision, EconomyState, Numbers, decide
from musecode_jupyter.agents.masking import SHARE, STANDING, Shown, due_at, line_for, to_mask
from musecode_jupyter.agents.mind import Task
from musecode_jupyter.agents.roles.state import standing
from musecode_jupyter.agents.state import POOR, AgentRecord
from musecode_jupyter.guard.gate import Gate
from musecode_jupyter.guard.tiers import error_of, held, refusal, tiers_of, withheld
from musecode_jupyter.log import EventLog
from musecode_jupyter.models.types import Message
from musecode_jupyter.runtime.errors import ContextFull, ModelError

COMPACT_AT = 0.75
"""A prompt above this share of the room is shortened."""
TAIL = 0.1
"""Of the newest steps, so much of the room stays word for word, ..."""
MOST_TAIL = 8_000
"""... and at most so many tokens; the last one stays whole."""
SUMMARY_TOKENS = 2_048
"""Most tokens of a summary, where the room is not small."""
LEAST_TO_SAVE = 10_000
"""Tokens of a conversation below which what it costs is not worth a thought."""
TOO_POOR = 2
"""So many compactions in a row may save less than a tenth."""

SUMMARIZE = """\
This conversation gets too long for what you can be shown, and goes on from a summary. Write that summary now, for \
yourself. Call no tool. Use these headings, and leave out those that have nothing:

## Done
## Found (with files, names and line numbers)
## Decided, and why
## Tried without success
## Next

Say only what you have seen. The goal, your tasks, the names of the files and the user's words are kept without you.
"""

_NEW_WORK = frozenset({"goal.set", "task.leased", "user.message", "critique.asked"})


def choose_cut(
    view: Sequence[int], results: Container[int], weights: Mapping[int, int], newest: int | None, tail: float
) -> int | None:
    """The seq at which what stays word for word begins: never a result, so that calls and results stay paired.

    `results` are those of `view` that are results of calls, `newest` the newest answer. That, what came of it and what
    was said since always stays, and as much before as fits in `tail` bytes. None where there is nothing to leave out.
    """
    steps = [place for place, seq in enumerate(view) if seq not in results]
    begin = next((place for place in steps if view[place] == newest), steps[-1])
    size = sum(weights[seq] for seq in view[begin:])
    for place in reversed([place for place in steps if place < begin]):
        size += sum(weights[seq] for seq in view[place:begin])
        if size > tail:
            break
        begin = place
    return view[begin] if begin > 1 else None


@dataclass
class ContextKeeper:
    """Used by the mind before each of its requests. `goal_lines` gives what the floors above know of goals."""

    log: EventLog
    gate: Gate
    talks: Conversations
    goal_lines: GoalLines = field(default=lambda _goal: ())

    async def before_request(self, task: Task) -> None:
        """Shorten the conversation if it is time to.

        Raises
        ------
        ContextFull
            It cannot be made short enough; says why and what helps.
        TierBlocked
            What the user said last may not go to the pinned model.
        ModelError, BudgetExceeded
            The question for a summary failed; nothing was changed, and the next attempt begins anew.
        """
        if self._not_for_model(task.agent):
            await self.release(task)
            return
        if self._quarantined(task.agent):
            await self.reseed(task, "its claims were contradicted too often: it begins anew from what is verified")
            return
        if self._answers_since_compaction(task.agent):
            decision = self._weigh(task)
            if decision is not None:
                await self._act_on(task, *decision)
                return
        await self._mask(task)
        agent = task.agent
        tokens, limit = self.talks.tokens(agent), COMPACT_AT * self.talks.room(agent)
        if tokens <= limit or not self._answers_since_compaction(agent):
            return
        if self.talks.record(agent).poor >= TOO_POOR:
            await self._give_up(task, tokens)
            return
        await self._compact(task, f"{tokens} tokens, more than {int(limit)} of {self.talks.room(agent)}")

    async def too_long(self, task: Task, error: ModelError) -> None:
        """Shorten a conversation that the server found too long, so that it can go on; raises `error` if it cannot be.

        It cannot be where it was shortened already and nothing was said since.
        """
        if not self._answers_since_compaction(task.agent):
            raise error
        masked = await self._mask(task, force=True)
        why = "the server found the request too long"
        if self.talks.record(task.agent).poor >= TOO_POOR:
            await self._give_up(task, self.talks.tokens(task.agent))
            return
        # The question for a summary is longer than what was refused, unless something could be masked.
        await self._compact(task, why, ask=masked > 2 * self._summary_tokens(task.agent))

    async def reseed(self, task: Task, why: str, numbers: dict[str, float] | None = None) -> None:
        """Begin a new conversation from facts alone: instructions, goal, tasks, files and verified claims.

        What the user said since the last answer stays; so does what is pinned. The old one stays in the log.
        """
        agent = task.agent
        record = self.talks.record(agent)
        assert record.seeded is not None
        seeded = self.log.get(record.seeded).data
        # Another key for the provider's cache: nothing of the old prompt comes again.
        self.log.post("agent.seeded", dict(seeded), agent=agent, cause=(record.seeded,))
        cut = self._unanswered(record)
        await self._write(task, "reseed", why, cut, summary="", answered=None, numbers=numbers or {})

    # --- the data tier ---------------------------------------------------------------------------------------

    def _may(self, seq: int) -> bool:
        """Whether what event `seq` says may go to the pinned model."""
        tiers = tiers_of(self.log)
        return not withheld(tiers, held(self.log.get(seq)), tiers.clearance())

    def _not_for_model(self, agent: str) -> bool:
        """Whether the conversation holds something that the pinned model may not get, and it may get anything."""
        if tiers_of(self.log).clearance() in {"", "private"}:
            return False
        return not all(map(self._may, self.talks.record(agent).view))

    async def release(self, task: Task) -> None:
        """Begin the conversation anew from what the pinned model may get: facts, claims and the user's words.

        Raises TierBlocked if it may not get what the user said last.
        """
        agent = task.agent
        record = self.talks.record(agent)
        assert record.seeded is not None
        first = self._unanswered(record)
        tail = [] if first is None else record.view[record.view.index(first) :]
        if tail and self.log.get(tail[-1]).agent == "user" and not self._may(tail[-1]):
            tiers = tiers_of(self.log)
            found = refusal(tiers, lambda: [held(self.log.get(tail[-1]))])
            assert found is not None
            raise error_of(tiers.model, found, "")
        seeded = self.log.get(record.seeded).data
        self.log.post("agent.seeded", dict(seeded), agent=agent, cause=(record.seeded,), label="standard")
        left_out = sum(not self._may(seq) for seq in record.view)
        why = f"{left_out} parts of it may not go to {tiers_of(self.log).model}"
        whole = bool(tail) and all(map(self._may, tail))
        told = [] if whole else [seq for seq in tail if self._may(seq)]
        cut = first if whole else None
        await self._write(task, "reseed", why, cut, summary="", answered=None, numbers={}, may=self._may, told=told)

    # --- when ------------------------------------------------------------------------------------------------

    def _answers_since_compaction(self, agent: str) -> bool:
        """Whether the model has said something since the conversation was shortened last, or ever."""
        record = self.talks.record(agent)
        return (record.last_answer or 0) > (record.compacted or 0)

    def _quarantined(self, agent: str) -> bool:
        """Whether the agent has read that its claims count as hearsay, and holds what it believed before still."""
        state = self.log.state("claims")
        assert isinstance(state, ClaimsState)
        known = state.quarantined.get(agent)
        return known is not None and known.read > (self.talks.record(agent).compacted or 0)

    def _weigh(self, task: Task) -> tuple[Decision, Numbers] | None:
        """What the ledger says at the beginning of a piece of work, if that is not to keep the agent as it is."""
        record = self.talks.record(task.agent)
        if not record.unread or record.last_answer is None or self.talks.tokens(task.agent) < LEAST_TO_SAVE:
            return None
        new = next((e for seq in record.view[-record.unread :] if (e := self.log.get(seq)).kind in _NEW_WORK), None)
        if new is None:
            return None
        numbers = self.numbers(task, datetime.fromisoformat(new.ts), begun=True)
        # Somebody talks to the lead: a summary keeps the talk, facts would not.
        decision = decide(numbers, ("keep", "compact") if record.role == "lead" else ("keep", "compact", "reseed"))
        return None if decision.action == "keep" else (decision, numbers)

    def outlived(self, task: Task, now: datetime) -> tuple[Decision, Numbers] | None:
        """What the ledger says of an agent that is to begin another piece of work, if a new one costs less; else None.

        Asked before the agent hears of the work. Never of one that was cut off amid a step: its calls have no results
        yet.
        """
        record = self.talks.record(task.agent)
        if record.last_answer is None or record.open_calls or self.talks.tokens(task.agent) < LEAST_TO_SAVE:
            return None
        numbers = self.numbers(task, now)
        decision = decide(numbers, ("keep", "retire"))
        return (decision, numbers) if decision.action == "retire" else None

    def numbers(self, task: Task, now: datetime, *, begun: bool = False) -> Numbers:
        """What a decision about the agent is made from, at the beginning of another piece of work.

        With `begun` the agent has been given that work already.
        """
        agent = task.agent
        record, rate = self.talks.record(agent), self.talks.rate(agent)
        economy = self.log.state("economy")
        assert isinstance(economy, EconomyState)
        use = economy.agents[agent]
        head = int(self.talks.head(agent)[2] / rate)
        carried = head + int(len(self._facts(task).encode("utf-8", "surrogatepass")) / rate)
        # A new one that only answers questions is told no facts.
        least = head if agent in standing(self.log) else carried
        idle = 0.0
        if record.last_answer is not None:
            before = datetime.fromisoformat(self.log.get(record.last_answer).ts)
            idle = (now - before).total_seconds()
        return Numbers(
            held=self.talks.tokens(agent),
            cold=max(use.needed(begun), least),
            head=head,
            carried=carried,
            kept=min(self.talks.tokens(agent), carried + self._summary_tokens(agent) + self._tail_tokens(agent)),
            requests=record.steps / (use.begins - begun) if use.begins > begun else REQUESTS,
            warm=0.0 <= idle < CACHE_S,
            price=self.gate.price,
        )

    async def _act_on(self, task: Task, decision: Decision, numbers: Numbers) -> None:
        kept, cold = decision.keep, decision.retire
        why = f"keeping it would cost {kept:.4f} USD for the work to come, a new agent {cold:.4f} USD"
        if decision.action == "reseed":
            await self.reseed(task, why, decision.told(numbers))
        else:
            await self._compact(task, why, numbers=decision.told(numbers), must=False)

    # --- masking ---------------------------------------------------------------------------------------------

    async def _mask(self, task: Task, *, force: bool = False) -> int:
        """Mask old output if that is due; returns how many tokens that saves."""
        agent = task.agent
        record, rate = self.talks.record(agent), self.talks.rate(agent)
        weights = self.talks.weights(agent)
        newest = record.last_answer or 0
        shown = [
            Shown(seq, int(weights[seq] / rate), seq > newest or seq in record.pinned)
            for seq in record.view
            if seq in record.results and seq not in record.masked
        ]
        # Who stands is asked for the sake of what it has read.
        share = STANDING if agent in standing(self.log) else SHARE
        chosen = to_mask(shown, self.talks.room(agent), share, force=force)
        if not chosen:
            return 0
        calls = [{"call": record.results[m.result], "result": m.result, "line": self._line(m.result)} for m in chosen]
        saved = sum(m.tokens for m in chosen) - int(sum(len(str(each["line"])) for each in calls) / rate)
        point = due_at(self.talks.room(agent), share)
        total = sum(each.tokens for each in shown)
        await self.log.append(
            "context.masked",
            {"calls": calls, "output": total, "saved": saved, "point": point},
            agent=agent,
            turn=record.turn,
            cause=(newest,),
        )
        return saved

    def _line(self, result: int) -> str:
        ended = self.log.get(result)
        called = self.log.get(ended.data["call"]).data
        pictures = len(ended.data.get("pictures", ()))
        return line_for(
            called["name"], called["arguments"], str(ended.data["output"]), ended.data.get("exit"), pictures
        )

    # --- compaction ------------------------------------------------------------------------------------------

    async def _compact(
        self, task: Task, why: str, *, ask: bool = True, numbers: dict[str, float] | None = None, must: bool = True
    ) -> None:
        agent = task.agent
        # What came in meanwhile is in the conversation by now.
        await self.gate.ready(agent)
        record = self.talks.record(agent)
        tail = self._tail_tokens(agent) * self.talks.rate(agent)
        cut = choose_cut(record.view, record.results, self.talks.weights(agent), record.last_answer, tail)
        if cut is None:
            if must:
                await self._give_up(task, self.talks.tokens(agent))
            return
        answered, summary = (await self._summary(task)) if ask else (None, "")
        await self._write(task, "compact", why, cut, summary=summary, answered=answered, numbers=numbers or {})

    async def _summary(self, task: Task) -> tuple[int | None, str]:
        """Ask the model for a summary: the seq of its answer and the text; no text where it gives none."""
        agent = task.agent
        view = await self.log.append(
            "agent.view",
            {
                "purpose": "compact",
                "instructions": "",
                "items": [Message(role="user", text=SUMMARIZE).model_dump(mode="json")],
                "conversation": True,
            },
            agent=agent,
            cause=(self.talks.record(agent).view[-1],),
        )
        await self.gate.ready(agent)
        request = self.talks.request(agent, after=(Message(role="user", text=SUMMARIZE),))
        most = min(self._summary_tokens(agent), request.max_output_tokens)
        request = request.model_copy(update={"max_output_tokens": most})
        turn = self.talks.record(agent).turn
        try:
            done = await self.gate.complete(
                request, agent=agent, turn=turn, view=view.seq, purpose="compact", cause=(view.seq,)
            )
        except ModelError as error:
            if error.kind != "context_too_long":
                raise
            return None, ""
        text = "" if done.final.reason in REFUSALS else done.text.strip()
        return (done.seq, text) if text else (None, "")

    def _tail_tokens(self, agent: str) -> int:
        return min(MOST_TAIL, int(TAIL * self.talks.room(agent)))

    def _summary_tokens(self, agent: str) -> int:
        return min(SUMMARY_TOKENS, self.talks.room(agent) // 8)

    async def _write(
        self,
        task: Task,
        how: str,
        why: str,
        cut: int | None,
        *,
        summary: str,
        answered: int | None,
        numbers: dict[str, float],
        may: May | None = None,
        told: Sequence[int] = (),
    ) -> None:
        agent = task.agent
        record, rate = self.talks.record(agent), self.talks.rate(agent)
        text = self._text(task, cut, summary, anew=how == "reseed", may=may, told=told)
        weights = self.talks.weights(agent)
        left = 0 if cut is None else sum(weights[seq] for seq in record.view[record.view.index(cut) :])
        size = self.talks.head(agent)[2] + len(text.encode("utf-8", "surrogatepass")) + left
        await self.log.append(
            "context.compacted",
            {
                "how": how,
                "why": why,
                "cut": cut,
                "text": text,
                "summary": answered,
                "before": self.talks.tokens(agent),
                "after": int(size / rate),
                "numbers": numbers,
                "claims": list(carried_claims(self.log, self.talks.room(agent), may)),
            },
            agent=agent,
            turn=record.turn,
            # All that is in it may go to the model; what led to it is not in it.
            label="" if may is None else "standard",
            cause=(record.view[-1],) if answered is None else (record.view[-1], answered),
        )
        self.talks.forget(agent)

    def _facts(self, task: Task, may: May | None = None) -> str:
        return facts(self.log, task, self.talks.room(task.agent), self.goal_lines, may)

    def _text(
        self,
        task: Task,
        cut: int | None,
        summary: str,
        *,
        anew: bool,
        may: May | None = None,
        told: Sequence[int] = (),
    ) -> str:
        record, room = self.talks.record(task.agent), self.talks.room(task.agent)
        kept = set() if cut is None else set(record.view[record.view.index(cut) :])
        said = [seq for seq in record.said if seq not in kept | set(record.held) and (may is None or may(seq))]
        words = [str(self.log.get(seq).data["text"]) for seq in said]
        pins = [seq for seq in record.pinned if seq not in kept and (may is None or may(seq))]
        news = [self.talks.words(task.agent, seq) for seq in told if seq not in said]
        return compose(
            self._facts(task, may),
            users_words(words, room),
            pinned_text(self.log, pins, self._called),
            "\n\n".join(["# What you were told last, word for word", *news]) if news else "",
            summary=summary[: int(self._summary_tokens(task.agent) * 2 * BYTES_PER_TOKEN)],
            anew=anew,
        )

    def _called(self, result: int) -> str:
        data = self.log.get(self.log.get(result).data["call"]).data
        path = data["arguments"].get("path") or data["arguments"].get("command") or ""
        return f"{data['name']} {path}".strip()

    def _unanswered(self, record: AgentRecord) -> int | None:
        """The first of the messages that came after all that was answered or called, if there are any."""
        first = None
        for seq in reversed(record.view):
            if seq in record.results or self.log.get(seq).kind in {"model.completed", "context.compacted"}:
                break
            first = seq
        return first

    # --- no way on -------------------------------------------------------------------------------------------

    async def _give_up(self, task: Task, tokens: int) -> None:
        """Begin anew if that helps and was not done for the same trouble; else say what would help."""
        agent = task.agent
        record, rate, room = self.talks.record(agent), self.talks.rate(agent), self.talks.room(agent)
        text = self._text(task, self._unanswered(record), "", anew=True)
        anew = int((self.talks.head(agent)[2] + len(text.encode("utf-8", "surrogatepass"))) / rate)
        if not record.reseeded and anew < POOR * COMPACT_AT * room:
            await self.reseed(task, f"shortening saves too little: {tokens} of {room} tokens are taken")
            return
        pinned = (
            f" Pinned are the events {', '.join(map(str, record.pinned))}: `%muse unpin N`." if record.pinned else ""
        )
        raise ContextFull(
            f"The conversation of {agent} takes {tokens} of {room} tokens, and shortening it saves too little."
            f"{pinned} Make room or choose a model with a larger window, then resume."
        )
