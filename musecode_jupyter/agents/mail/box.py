"""Sends mail under the reporting policy, brings it into conversations between two steps, and acknowledges it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.agents.claims.labels import Standing
from musecode_jupyter.agents.mail.hearsay import hearsay
from musecode_jupyter.agents.mail.policy import Subject, judge
from musecode_jupyter.agents.mail.state import Letter, MailState, Priority
from musecode_jupyter.guard.tiers import held, tiers_of, withheld
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import ToolProblem


@dataclass(frozen=True)
class Mailbox:
    """All mail of a session; used on the runtime thread. What it knows is in the log.

    `interrupt` ends the commands that an agent runs, because of an event: what cannot wait for its next step.
    `claims` says how each claim stands.
    """

    log: EventLog
    interrupt: Callable[[str, int], object] = lambda _to, _letter: None
    claims: Callable[[], Mapping[int, Standing]] = dict

    @property
    def state(self) -> MailState:
        """Letters as folded."""
        state = self.log.state("mail")
        assert isinstance(state, MailState)
        return state

    def send(
        self,
        sender: str,
        to: str,
        *,
        subject: Subject,
        topic: str,
        text: str,
        priority: Priority = "next",
        claims: tuple[int, ...] = (),
        reply_to: int | None = None,
        cause: tuple[int, ...] = (),
        evident: bool = False,
    ) -> Event:
        """Send a letter; how soon it is delivered is decided by the policy.

        `evident`: its text is made of what the log has with evidence, as findings of reviews are.
        Raises ToolProblem, for its writer, if it says of the code as certain what no claim stands for: see `hearsay`.
        """
        if (
            not evident
            and sender != HARNESS
            and subject != "question"
            and (why := hearsay(text, claims, self.claims()))
        ):
            raise ToolProblem(why)
        verdict = judge(self.state.waiting(to), sender, subject, topic, priority)
        sent = self.log.post(
            "mail.sent",
            {
                "to": to,
                "priority": verdict.priority,
                "topic": topic,
                "text": text,
                "reason": verdict.reason,
                "claims": list(claims),
                "asks": subject == "question",
                "reply_to": reply_to,
            },
            agent=sender,
            cause=cause,
        )
        for seq, why in verdict.dropped.items():
            self.drop(seq, why, cause=(sent.seq,))
        if verdict.priority == "interrupt":
            self.interrupt(to, sent.seq)
        return sent

    def deliver(self, to: str, *, digest: bool, question: int | None = None, later: Container[int] = ()) -> list[int]:
        """Bring what waits into the conversation of `to`, notes too if `digest`; returns the letters.

        Of those that wait for an answer, and those named in `later`, only `question`: each has a turn of its own. What
        the pinned model may not get is taken back instead.
        """
        tiers = tiers_of(self.log)
        for seq in list(self.state.waiting(to)) if tiers.clearance() != "private" else ():
            if why := withheld(tiers, held(self.log.get(seq)), tiers.clearance()):
                self.drop(seq, f"not for {tiers.model}: {why}")
        ready = [
            seq
            for seq, each in self.state.waiting(to).items()
            if (seq == question if each.asks or seq in later else digest or each.priority != "digest")
        ]
        for seq in ready:
            self.log.post("mail.delivered", {"mail": seq}, agent=to, cause=(seq,))
        return ready

    def acknowledge(self, to: str) -> dict[int, Letter]:
        """The turn of `to` has ended: what was delivered in it is not delivered again. Returns those letters."""
        read = dict(self.state.unread(to))
        for seq in read:
            self.log.post("mail.acknowledged", {"mail": seq}, agent=to, cause=(seq,))
        return read

    def drop(self, seq: int, why: str, cause: Iterable[int] = ()) -> None:
        """Take back what was not delivered."""
        self.log.post("mail.dropped", {"mail": seq, "why": why}, agent=self.state.letters[seq].to, cause=(seq, *cause))
