"""Keeps work from landing that relies on claims which do not hold any more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from musecode_jupyter.agents.claims.labels import Standing
from musecode_jupyter.agents.claims.rechecks import MECHANICAL, cited_now, look_again
from musecode_jupyter.agents.claims.retract import wording
from musecode_jupyter.agents.claims.state import VALIDATOR, Claim, ClaimsState
from musecode_jupyter.agents.landing.checks import place_of
from musecode_jupyter.agents.landing.tools import LandingTools
from musecode_jupyter.agents.landing.work import Merged, Review, Validator, Work
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.claim_kinds import ClaimEvidence

MEASURED = frozenset({"test result", "measurement"})
"""Types that are of one tree only; on the merge the acceptance commands say what holds."""
_OWN_WORK = frozenset({"file.changed", "worktree.snapshotted"})
REMEDY = "Look again: then change what was built on it, or claim, with evidence, that the work stands without it."


def claims_validator(tools: LandingTools, merged_at: Path) -> Validator:
    """A validator for the merge queue; `merged_at` is where the queue has checked the merge out."""

    async def there() -> Path:
        return merged_at

    async def review(work: Work, merged: Merged) -> Review | None:
        why = await objection(tools, merged.merge, work.agent, merged.tree, there)
        return Review(False, why) if why else None

    return Validator(VALIDATOR, review, again=True)


async def objection(
    tools: LandingTools, merge: int, agent: str, tree: str, merged_at: Callable[[], Awaitable[Path]]
) -> str:
    """Why the work of `agent` does not land: claims on which it relies do not hold; empty if all do.

    `tree` is what would land, and `merged_at` gives a checkout of it, if files have to be looked at.
    """
    state = tools.log.state("claims")
    assert isinstance(state, ClaimsState)
    record, how = state.merges[merge], state.standings()
    wrong: list[tuple[int, Standing]] = []
    for number in record.rests:
        claim, standing = state.claims[number], how[number]
        if not standing.out or _is_of_no_matter(claim, standing, agent):
            continue
        if standing.label == "stale":
            if changed_by_itself(tools.log, state, how, number, record.worktree):
                continue
            if claim.type in MECHANICAL and await _stands(tools, number, claim.type, tree, await merged_at()):
                continue
        wrong.append((number, standing))
    if not wrong:
        return ""
    told = [f"claim {n} ({state.claims[n].text!r}): {wording(standing)}" for n, standing in wrong]
    return f"the work relies on {' And on '.join(told)} {REMEDY}"


async def _stands(tools: LandingTools, number: int, kind: str, tree: str, merged_at: Path) -> bool:
    place = place_of(tools, merged_at, None)
    cited = [each.model_dump(mode="json") for each in cited_now(tools.log, number)]
    if not cited:
        return False
    found = await look_again(tools.effects, merged_at, place.list_files, kind, cited, tree)
    return all(ClaimEvidence.model_validate_json(each).holds for each in found)


def changed_by_itself(
    log: EventLog, state: ClaimsState, how: Mapping[int, Standing], number: int, worktree: int | None
) -> bool:
    """Whether what a stale claim rests on was changed by nothing but the work in `worktree`.

    Whoever was told how a file is, and then changed it, does not rely on its being as it was.
    """
    claim = state.claims[number]
    changes = [each.changed for each in claim.evidence if each.changed] + ([claim.stale] if claim.stale else [])
    if changes:
        events = [log.get(seq) for seq in changes]
        return all(event.kind in _OWN_WORK and event.data["worktree"] == worktree for event in events)
    # A claim's supports were made before it, so this ends.
    stale = {each for members in claim.supports for each in members if each in how and how[each].label == "stale"}
    return bool(stale) and all(each < number and changed_by_itself(log, state, how, each, worktree) for each in stale)


def _is_of_no_matter(claim: Claim, standing: Standing, agent: str) -> bool:
    """Whether it makes no difference here that the claim is out.

    What the worker's own claims rest on changes by its own work; what it cited and was told at once to be otherwise,
    nobody relied on.
    """
    own = claim.author == agent
    if standing.label == "stale":
        return own or claim.type in MEASURED
    return own and claim.refuted
