"""The fold of plans: what each was asked for, its versions by digest, the answers, and how it stands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from musecode_jupyter.agents.roles import offered
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Slice
from musecode_jupyter.log.kinds import kinds_with
from musecode_jupyter.skills.draft_state import PROPOSE_GOAL, being_drafted
from musecode_jupyter.skills.plan_document import digest_of

Status = Literal["writing", "proposed", "approved", "rejected", "cancelled", "stopped"]
PROPOSE_PLAN = "propose_plan"
LOOKS = frozenset({"read", "search", "map", "ask", "claim", "check_claim"})
RESEARCH = LOOKS | {PROPOSE_PLAN}
"""The tools of whoever writes a plan: none of them changes anything or runs anything."""


class PlanRecord(Slice):
    """One plan. `versions` has the seqs of its plan.proposed events, oldest first; `digests` their digests.

    `since` is the event since which its author writes: the beginning, the newest edit, or the resumption. `answers`
    are those to the newest version's questions. `approved` is the digest that the user agreed to, empty if it is not
    the newest version's as it stands. `goals` were worked on from it.
    """

    text: str
    verify: list[str]
    agent: str
    commit: str
    branch: str | None = None
    status: Status = "writing"
    why: str = ""
    since: int = 0
    versions: list[int] = Field(default_factory=list)
    digests: list[str] = Field(default_factory=list)
    answers: dict[int, str] = Field(default_factory=dict)
    approved: str = ""
    goals: list[int] = Field(default_factory=list)

    @property
    def version(self) -> int:
        """The number of the newest version; 0 if there is none yet."""
        return len(self.versions)


class PlansState(Slice):
    """`plans` by seq of plan.begun; `active` is the newest one."""

    plans: dict[int, PlanRecord] = Field(default_factory=dict)
    active: int | None = None


class PlansReducer:
    """Folds plan.* events."""

    name = "plans"
    kinds = kinds_with("plan.")

    def initial(self) -> PlansState:
        return PlansState()

    def apply(self, state: PlansState, event: Event) -> None:
        data = event.data
        if event.kind == "plan.begun":
            state.plans[event.seq] = PlanRecord(
                text=data["text"],
                verify=list(data["verify"]),
                agent=data["agent"],
                commit=data["commit"],
                branch=data["branch"],
                since=event.seq,
            )
            state.active = event.seq
        elif event.kind in self.kinds:
            self._plan(state.plans[data["plan"]], event)

    def _plan(self, plan: PlanRecord, event: Event) -> None:
        data = event.data
        if event.kind in {"plan.edited", "plan.resumed"}:
            plan.status, plan.why, plan.since = "writing", "", event.seq
            plan.approved = ""
            plan.commit = data.get("commit", plan.commit)
        elif event.kind == "plan.proposed":
            plan.status, plan.why = "proposed", ""
            plan.versions.append(event.seq)
            plan.digests.append(data["digest"])
            plan.answers, plan.approved = {}, ""
        elif event.kind == "plan.answered":
            plan.answers[data["question"]] = data["text"]
            plan.status, plan.approved = "proposed", ""
        elif event.kind == "plan.approved":
            plan.status, plan.approved = "approved", data["digest"]
        elif event.kind == "plan.rejected":
            plan.status, plan.why = "rejected", data["why"]
        elif event.kind == "plan.cancelled":
            plan.status, plan.why = "cancelled", ""
        elif event.kind == "plan.stopped":
            plan.status, plan.why = "stopped", data["why"]
        elif event.kind == "plan.run":
            plan.goals.append(data["goal"])


def plans_of(log: EventLog) -> PlansState:
    """The plans as folded."""
    state = log.state("plans")
    assert isinstance(state, PlansState)
    return state


def document_of(log: EventLog, plan: int, version: int | None = None) -> Mapping[str, Any] | None:
    """A version of a plan as data, the newest if none is named; None if there is no such version."""
    text = document_text(log, plan, version)
    return None if text is None else json.loads(text)


def document_text(log: EventLog, plan: int, version: int | None = None) -> str | None:
    """As `document_of`, as the text of which the digest is."""
    versions = plans_of(log).plans[plan].versions
    number = len(versions) if version is None else version
    if not 1 <= number <= len(versions):
        return None
    return str(log.get(versions[number - 1]).data["document"])


def digest_now(log: EventLog, plan: int) -> str:
    """What an approval of the plan as it stands is bound to; empty if there is no version yet."""
    text = document_text(log, plan)
    return "" if text is None else digest_of(text, plans_of(log).plans[plan].answers)


def being_written(log: EventLog, agent: str) -> int | None:
    """The plan that `agent` writes now, if it does."""
    state = plans_of(log)
    if state.active is None:
        return None
    plan = state.plans[state.active]
    return state.active if plan.status == "writing" and plan.agent == agent else None


def offered_now(log: EventLog, agent: str) -> frozenset[str] | None:
    """The tools that the agent's model may call now: while it writes a plan or looks for clauses, only those that look.

    Its prompts name the others too, so that their beginning stays as it is and the server's cache of it holds.
    """
    names = offered(log, agent)
    if being_drafted(log, agent) is not None:
        now = LOOKS | {PROPOSE_GOAL}
    elif being_written(log, agent) is not None:
        now = RESEARCH
    else:
        return None if names is None else names - {PROPOSE_PLAN, PROPOSE_GOAL}
    return now if names is None else names & now
