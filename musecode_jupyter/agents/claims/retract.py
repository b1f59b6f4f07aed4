"""What follows when a claim goes out: who is to be told, what rests on it, and which work is to be looked at again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from musecode_jupyter.agents.claims.labels import Standing
from musecode_jupyter.agents.claims.state import QUARANTINE, STRIKES, ClaimsState
from musecode_jupyter.log import EventLog


class Tell(Protocol):
    """Sends a message to an agent, who reads it as data before its next step."""

    def __call__(
        self,
        to: str,
        *,
        topic: str,
        text: str,
        priority: str,
        claims: tuple[int, ...] = (),
        cause: tuple[int, ...] = (),
    ) -> None: ...


@dataclass(frozen=True)
class Holder:
    """An agent that has a claim before it since event `since`; `requests` of its model calls carried it."""

    agent: str
    since: int
    requests: int


@dataclass(frozen=True)
class Fallout:
    """What a claim that went out touches.

    `dependents` are claims that rest on it, directly or not; `tasks` those under way whose worker relies on it;
    `queued` the merges that will not land as they are; `landed` merges with the commit that is to be checked again.
    """

    claim: int
    text: str
    author: str
    standing: Standing
    holders: tuple[Holder, ...]
    dependents: tuple[int, ...]
    tasks: tuple[int, ...]
    queued: tuple[int, ...]
    landed: tuple[tuple[int, str], ...]
    quarantined: bool

    def card(self) -> str:
        """All of it, for the user."""
        lines = [f"Claim {self.claim} of {self.author}: {self.text}", f"  {wording(self.standing)}"]
        told = [f"{each.agent} ({_many(each.requests, 'request')})" for each in self.holders]
        rows = [
            ("was before", told),
            ("claims that rest on it", [str(each) for each in self.dependents]),
            ("tasks that rest on it", [str(each) for each in self.tasks]),
            ("merges that do not land with it", [str(each) for each in self.queued]),
            ("landed with it, to be checked again", [f"{commit[:10]} (landing {n})" for n, commit in self.landed]),
        ]
        lines += [f"  {name}: {', '.join(values) or 'none'}" for name, values in rows]
        if self.quarantined:
            lines.append(f"  {STRIKES} claims of {self.author} were contradicted: its others count as hearsay.")
        return "\n".join(lines)


def wording(standing: Standing) -> str:
    """How a standing is told: what changed is not said to be wrong."""
    words = {
        "contradicted": f"found not to be so: {standing.why}",
        "retracted": standing.why,
        "stale": f"{standing.why}. That does not make it wrong",
    }
    said = words.get(standing.label, f"{standing.label}: {standing.why}")
    return f"{said[0].upper()}{said[1:].removesuffix('.')}."


def dependents(state: ClaimsState, claim: int) -> tuple[int, ...]:
    """The claims that name `claim` among what they rest on, or one that does."""
    found: set[int] = {claim}
    while True:
        more = {
            seq
            for seq, each in state.claims.items()
            if seq not in found and any(found & set(members) for members in each.supports)
        }
        if not more:
            return tuple(sorted(found - {claim}))
        found |= more


def fallout(log: EventLog, claim: int) -> Fallout:
    """What `claim` touches as things are; reads the log once for the requests that carried it."""
    state = _state(log)
    record = state.claims[claim]
    requests = dict.fromkeys(record.held, 0)
    for event in log.events(since=min(record.held.values(), default=claim)):
        if event.kind == "model.requested" and event.data["view"] is None and event.agent in requests:
            requests[event.agent] += event.seq > record.held[event.agent]
    relying = [n for n, merge in state.merges.items() if claim in merge.rests]
    return Fallout(
        claim,
        record.text,
        record.author,
        state.standing(claim),
        tuple(Holder(agent, since, requests[agent]) for agent, since in sorted(record.held.items())),
        dependents(state, claim),
        resting_tasks(state, claim),
        tuple(n for n in relying if state.merges[n].state == "queued"),
        tuple((n, state.merges[n].commit) for n in relying if state.merges[n].state == "landed"),
        bool(state.barred(record.author)),
    )


def resting_tasks(state: ClaimsState, claim: int) -> tuple[int, ...]:
    """Tasks under way whose worker relies on the claim."""
    tasks = ((seq, task) for seq, task in state.tasks.items() if not task.over)
    return tuple(seq for seq, task in tasks if state.relies(task.agent, claim, task.worktree))


@dataclass(frozen=True)
class Correction:
    """What an agent is to be told of a claim that it has before it."""

    to: str
    claim: int
    text: str


def due(state: ClaimsState, only: Iterable[int] | None = None) -> list[Correction]:
    """Corrections that nobody has sent yet, of all claims or `only` some; empty once all were sent.

    Of what is only stale its author is not told: it says so itself when it is asked; and nobody of what they found
    out, or were told at once, themselves.
    """
    found = []
    for seq, standing in sorted(state.standings().items()):
        if not standing.out or (only is not None and seq not in only):
            continue
        claim = state.claims[seq]
        for agent in sorted(claim.held):
            told = max(claim.told.get(agent, 0), state.sent.get(seq, {}).get(agent, 0))
            known = standing.label == "stale" or claim.refuted or claim.retracted_by == agent
            own = agent == claim.author and known
            own = own or (claim.doubted_by(agent) and standing.at == claim.contradicted)
            if told <= standing.at and not own and agent in _agents(state, seq):
                found.append(Correction(agent, seq, correction_text(state, seq, standing)))
    return found


def correction_text(state: ClaimsState, claim: int, standing: Standing) -> str:
    """What an agent is told of a claim that went out."""
    text = state.claims[claim].text
    rest = "Do not build on it; look again at what you did because of it."
    if standing.label == "stale":
        rest = "Look again before you build on it."
    return f"About claim {claim} ({text!r}): {wording(standing)} {rest}"


def correct(log: EventLog, tell: Tell, only: Iterable[int] | None = None, *, urgent: bool = False) -> list[Correction]:
    """Send the corrections that are due with `tell`, and return them. Nothing is sent twice, after a restart either.

    `urgent`: what an agent runs because of it is ended.
    """
    sent = due(_state(log), only)
    for each in sent:
        standing = _state(log).standing(each.claim)
        priority = "digest" if standing.label == "stale" else "interrupt" if urgent else "next"
        tell(
            each.to,
            topic=f"claim {each.claim}",
            text=each.text,
            priority=priority,
            claims=(each.claim,),
            cause=(standing.at,),
        )
    return sent


def quarantine(log: EventLog, tell: Tell) -> None:
    """Tell authors of whom too many claims were contradicted that what they say counts as hearsay from here on."""
    state = _state(log)
    for author in sorted({claim.author for claim in state.claims.values()} - {"user", "harness"}):
        since = state.barred(author)
        if since and author not in state.quarantined:
            text = (
                f"{STRIKES} of your claims were contradicted. What you claim from here on counts as hearsay until "
                "another agent verifies it, and your conversation begins anew from what is verified."
            )
            tell(author, topic=QUARANTINE, text=text, priority="next", cause=(since,))


def seeds(state: ClaimsState) -> dict[int, str]:
    """The claims from which an agent can be made anew: verified ones that nothing newer took the place of."""
    how = state.standings()
    return {
        seq: claim.text for seq, claim in state.claims.items() if how[seq].label == "verified" and not claim.replaced
    }


def _agents(state: ClaimsState, claim: int) -> set[str]:
    return set(state.claims[claim].held) - {"user", "harness"}


def _state(log: EventLog) -> ClaimsState:
    state = log.state("claims")
    assert isinstance(state, ClaimsState)
    return state


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
