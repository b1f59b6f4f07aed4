"""Claims as text: the list of what is believed, and the evidence of one claim down to events, lines and commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.agents.claims.labels import Standing
from musecode_jupyter.agents.claims.rechecks import cited_now
from musecode_jupyter.agents.claims.retract import fallout, resting_tasks, wording
from musecode_jupyter.agents.claims.state import Claim, ClaimsState
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.claim_kinds import ClaimEvidence
from musecode_jupyter.runtime.errors import UsageProblem

NO_CLAIMS = "There are no claims yet: agents make them as they work."
_LINES = 12


def claims_text(state: ClaimsState) -> str:
    """All claims but those that a newer one took the place of, with how they stand and who relies on them."""
    how = state.standings()
    shown = {seq: claim for seq, claim in state.claims.items() if not claim.replaced}
    if not shown:
        return NO_CLAIMS
    lines = []
    for seq, claim in shown.items():
        lines.append(f"{seq}  {how[seq].label}  {claim.type}, {claim.author}, since event {seq}: {claim.text}")
        lines.append(f"   {how[seq].why}")
        relying = _relying(state, seq, how)
        if relying:
            lines.append(f"   relied on by {', '.join(relying)}")
    return "\n".join(lines)


def relied_lines(log: EventLog, agent: str, worktree: int | None) -> list[str]:
    """The claims of agents on which work of `agent` in `worktree` relies, a line each with how it stands."""
    state = log.state("claims")
    assert isinstance(state, ClaimsState)
    how = state.standings()
    return [
        f"claim {seq} of {claim.author}, {how[seq].label}: {claim.text}"
        for seq, claim in state.claims.items()
        if not claim.replaced and claim.author != HARNESS and state.relies(agent, seq, worktree)
    ]


def _relying(state: ClaimsState, number: int, how: dict[int, Standing]) -> list[str]:
    claim = state.claims[number]
    found = [agent for agent in sorted(claim.held) if agent != claim.author]
    found += [
        f"claim {seq}" for seq, each in state.claims.items() if any(number in members for members in each.supports)
    ]
    found += [f"task {seq}" for seq in resting_tasks(state, number)]
    found += [
        f"{'landing' if merge.state == 'landed' else 'merge'} {seq}"
        for seq, merge in state.merges.items()
        if number in merge.rests and merge.state != "over" and (merge.agent != claim.author or how[number].out)
    ]
    return found


def why_text(log: EventLog, number: int) -> str:
    """What claim `number` rests on, and what became of it.

    Raises
    ------
    UsageProblem
        There is no such claim.
    """
    state = log.state("claims")
    assert isinstance(state, ClaimsState)
    if number not in state.claims:
        raise UsageProblem(f"There is no claim {number}; `%muse claims` lists them.")
    lines = list(_why(log, state, state.standings(), number, 0, set()))
    if state.standing(number).out:
        lines += ["", fallout(log, number).card()]
    return "\n".join(lines)


def _why(
    log: EventLog, state: ClaimsState, how: dict[int, Standing], number: int, depth: int, seen: set[int]
) -> Iterator[str]:
    claim, pad = state.claims[number], "  " * depth
    yield f"{pad}claim {number} ({claim.type}) of {claim.author}: {claim.text}"
    if number in seen:
        yield f"{pad}  as above"
        return
    seen.add(number)
    yield f"{pad}  {how[number].label}. {wording(how[number])}"
    yield from _evidence(cited_now(log, number), claim, pad)
    for members in claim.supports:
        yield f"{pad}  rests on all of:" if len(claim.supports) == 1 else f"{pad}  rests on any of these sets, all of:"
        for member in sorted(members):
            if member in state.claims:
                yield from _why(log, state, how, member, depth + 2, seen)
            else:
                yield f"{pad}    claim {member}, which is not there"
    for word, proofs in (("verified", claim.verified), ("challenged", claim.challenged)):
        for proof in proofs:
            yield f"{pad}  {word} by {proof.agent} (event {proof.seq}): {proof.why}"
            raw = log.get(proof.seq).data["evidence"]
            yield from _evidence([ClaimEvidence.model_validate(each) for each in raw], claim, f"{pad}  ")
    held = [f"{agent} since event {since}" for agent, since in sorted(claim.held.items()) if agent != claim.author]
    if held:
        yield f"{pad}  told to {', '.join(held)}"


def _evidence(evidence: Sequence[ClaimEvidence], claim: Claim, pad: str) -> Iterator[str]:
    for each in evidence:
        seen = f" (event {each.event})" if each.event is not None else ""
        yield f"{pad}  {_what(each)}{seen}{'' if each.holds else f': {each.why}'}"
        if each.text:
            lines = each.text.split("\n")
            for offset, line in enumerate(lines[:_LINES]):
                yield f"{pad}    {f'{each.first + offset}  ' if each.first else ''}{line}"
            if len(lines) > _LINES:
                yield f"{pad}    ... {len(lines) - _LINES} more lines"
    if not evidence and not claim.supports:
        yield f"{pad}  nothing is cited"


def _what(each: ClaimEvidence) -> str:
    if each.kind == "file":
        lines = f":{each.first}" + (f"-{each.last}" if each.last > each.first else "")
        return f"{each.path}{lines if each.first else ''}"
    if each.kind == "command":
        where = f" on tree {each.tree[:10]}" if each.tree else ""
        return f"`{each.command}`{where}: exit {each.exit}"
    glob = f", {each.glob}" if each.glob else ""
    found = "" if each.count is None else f": {each.count} lines match"
    return f"search for {each.pattern!r} in {each.path or '.'}{glob}{found}"
