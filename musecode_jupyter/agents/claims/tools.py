"""`claim` and `check_claim`: how an agent says that something is so, and how another one verifies or doubts it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from pydantic import Field

from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.agents.claims.evidence import Cited, calls_of, look_up
from musecode_jupyter.agents.claims.rechecks import recheck
from musecode_jupyter.agents.claims.state import Claim, ClaimsState, words_of
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.claim_kinds import ClaimEvidence, ClaimType
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.registry import Arguments, Outcome, Tool, ToolContext

CLAIM = "claim"
CHECK_CLAIM = "check_claim"
_SAID = frozenset({"claim.asserted", "claim.verified", "claim.challenged", "claim.retracted"})


class ClaimArguments(Arguments):
    """Arguments of `claim`."""

    text: str = Field(max_length=600, description="What is so, in one or two sentences")
    type: ClaimType = Field(description="What kind of thing is claimed")
    evidence: list[Cited] = Field(default_factory=list, max_length=12, description="What you saw that shows it")
    supports: list[list[int]] = Field(
        default_factory=list,
        description="Numbers of other claims that it rests on: sets, of which one is enough; else leave it out",
    )


class CheckArguments(Arguments):
    """Arguments of `check_claim`."""

    claim: int = Field(description="Number of the claim")
    verdict: Literal["verify", "challenge", "retract"] = Field(
        description="verify: it is so; challenge: it is not so; retract: you take back what you claimed yourself"
    )
    evidence: list[Cited] = Field(
        default_factory=list, max_length=12, description="What you saw yourself that shows it; not needed to retract"
    )
    why: str = Field(max_length=600, description="What you found, in one or two sentences")


def claims_of(log: EventLog) -> ClaimsState:
    """Claims as folded."""
    state = log.state("claims")
    assert isinstance(state, ClaimsState)
    return state


async def _claim(context: ToolContext, arguments: ClaimArguments) -> Outcome:
    log, state = context.log, claims_of(context.log)
    if not arguments.text.strip():
        raise ToolProblem("The claim is empty. Say what is so.")
    unknown = sorted({number for each in arguments.supports for number in each} - state.claims.keys())
    if unknown:
        raise ToolProblem(f"There is no claim {unknown[0]}: supports take numbers of claims that were made before.")
    if not arguments.supports and next(calls_of(log, context.agent), None) is None:
        raise ToolProblem("You have looked at nothing yet: no tool call stands behind this. Look first, then claim.")
    evidence = await look_up(context, arguments.evidence, arguments.text, arguments.type)
    echo = _echo(state, context.agent, arguments, evidence)
    if echo:
        raise ToolProblem(echo)
    data = {
        "type": arguments.type,
        "text": arguments.text.strip(),
        "evidence": [each.model_dump(mode="json") for each in evidence],
        "supports": [sorted(set(each)) for each in arguments.supports if each],
        "worktree": context.place.worktree,
        "call": context.call,
    }
    number = log.post("claim.asserted", data, agent=context.agent, cause=(context.call,)).seq
    await _look_now(context, number)
    return Outcome(_label(claims_of(log), number))


def _echo(state: ClaimsState, agent: str, arguments: ClaimArguments, evidence: list[ClaimEvidence]) -> str:
    """What an agent is told that says again what it said before, by what it saw before; else nothing."""
    for number, claim in reversed(state.claims.items()):
        if claim.author != agent or claim.type != arguments.type or words_of(claim.text) != words_of(arguments.text):
            continue
        standing = state.standing(number)
        # A query was run again just now.
        anew = standing.label == "stale" and any(each.kind == "search" for each in evidence)
        if anew or not set(_seen(evidence)) <= set(_seen(claim.evidence)):
            return ""
        more = "Look again at what changed, and cite what you see." if standing.label == "stale" else ""
        return f"You said this before: claim {number}, {standing.label} ({standing.why}). Saying it again raises " + (
            f"nothing. {more}".rstrip()
        )
    return ""


def _seen(evidence: Any) -> list[tuple[Any, ...]]:
    return [
        (e.kind, e.path, e.span, e.digest, e.command, e.exit, e.pattern, e.glob, e.count, e.event) for e in evidence
    ]


async def _look_now(context: ToolContext, number: int) -> None:
    """Files may have changed since the agent saw them, by other hands than agents': then it is stale, and no lie."""
    claim = claims_of(context.log).claims[number]
    kinds = {each.kind for each in claim.evidence}
    if kinds == {"file"} and all(each.holds for each in claim.evidence) and not claim.changed:
        place = context.place
        await recheck(
            context.log,
            context.effects,
            number,
            place.root,
            place.list_files,
            worktree=place.worktree,
            agent=context.agent,
            call=context.call,
        )


async def _check(context: ToolContext, arguments: CheckArguments) -> Outcome:
    log, state = context.log, claims_of(context.log)
    claim = state.claims.get(arguments.claim)
    if claim is None:
        raise ToolProblem(f"There is no claim {arguments.claim}.")
    if arguments.verdict == "retract":
        return _take_back(context, arguments, claim)
    if claim.author == HARNESS:
        raise ToolProblem(f"Claim {arguments.claim} is what this program found by running it; run it again yourself.")
    if claim.author == context.agent:
        raise ToolProblem("It is your own claim: another agent, or an executed check, has to look at it.")
    if claim.retracted or claim.contradicted or claim.refuted:
        raise ToolProblem(f"Claim {arguments.claim} does not stand any more: {state.standing(arguments.claim).why}.")
    if not arguments.evidence:
        raise ToolProblem("Without evidence it is an opinion. Cite what you saw yourself.")
    evidence = await look_up(context, arguments.evidence, arguments.why, "decision")
    wrong = [each.why for each in evidence if not each.holds]
    if wrong:
        raise ToolProblem(f"Your evidence is not as you cite it: {'; '.join(wrong)}. Nothing was written down.")
    data = {
        "claim": arguments.claim,
        "evidence": [each.model_dump(mode="json") for each in evidence],
        "why": arguments.why,
        "call": context.call,
    }
    kind = "claim.verified" if arguments.verdict == "verify" else "claim.challenged"
    log.post(kind, data, agent=context.agent, cause=(context.call, arguments.claim))
    return Outcome(_label(claims_of(log), arguments.claim))


def _take_back(context: ToolContext, arguments: CheckArguments, claim: Claim) -> Outcome:
    if claim.author != context.agent:
        raise ToolProblem("It is not your claim. Challenge it, with evidence.")
    if not claim.retracted:
        data = {"claim": arguments.claim, "why": arguments.why, "call": context.call}
        cause = (context.call, arguments.claim)
        context.log.post("claim.retracted", data, agent=context.agent, cause=cause)
    return Outcome(_label(claims_of(context.log), arguments.claim))


def _once(run: Callable[[ToolContext, Any], Awaitable[Outcome]]) -> Callable[[ToolContext, Any], Awaitable[Outcome]]:
    """The same, except that a call which a restart cut off says nothing a second time."""

    async def once(context: ToolContext, arguments: Any) -> Outcome:
        for event in context.log.events(since=context.call):
            if event.kind in _SAID and event.data.get("call") == context.call:
                number = event.seq if event.kind == "claim.asserted" else int(event.data["claim"])
                return Outcome(_label(claims_of(context.log), number))
        return await run(context, arguments)

    return once


def _label(state: ClaimsState, number: int) -> str:
    standing = state.standing(number)
    return f"Claim {number}: {standing.label} ({standing.why})."


CLAIM_TOOL = Tool(
    name=CLAIM,
    description="Write down for the others something that you found out, with what shows it. The answer says how far "
    "it is believed, and why.",
    arguments=ClaimArguments,
    effect="read",
    run=_once(_claim),
)
CHECK_CLAIM_TOOL = Tool(
    name=CHECK_CLAIM,
    description="Verify or challenge a claim of another agent, by what you saw yourself; or take your own back.",
    arguments=CheckArguments,
    effect="read",
    run=_once(_check),
)
CLAIM_TOOLS = (CLAIM_TOOL, CHECK_CLAIM_TOOL)
