"""Keeps work from landing that relies on claims which do not hold any more."""

from __future__ import annotations

from pathlib import Path

from musecode_jupyter.agents.claims.labels import Standing
from musecode_jupyter.agents.claims.rechecks import MECHANICAL, cited_now, look_again
from musecode_jupyter.agents.claims.retract import wording
from musecode_jupyter.agents.claims.state import VALIDATOR, Claim, ClaimsState
from musecode_jupyter.agents.landing.checks import place_of
from musecode_jupyter.agents.landing.tools import LandingTools
from musecode_jupyter.agents.landing.work import Merged, Review, Validator, Work
from musecode_jupyter.log.claim_kinds import ClaimEvidence

MEASURED = frozenset({"test result", "measurement"})
"""Types that are of one tree only; on the merge the acceptance commands say what holds."""
REMEDY = "Look again: then change what was built on it, or claim, with evidence, that the work stands without it."


def claims_validator(tools: LandingTools, merged_at: Path) -> Validator:
    """A validator for the merge queue; `merged_at` is where the queue has checked the merge out."""

    async def review(work: Work, merged: Merged) -> Review | None:
        state = tools.log.state("claims")
        assert isinstance(state, ClaimsState)
        merge = state.merges[merged.merge]
        how = state.standings()
        wrong: list[tuple[int, Standing]] = []
        for number in merge.rests:
            claim, standing = state.claims[number], how[number]
            if not standing.out or _is_of_no_matter(claim, standing, work):
                continue
            if standing.label == "stale" and claim.type in MECHANICAL and await _stands(number, claim.type, merged):
                continue
            wrong.append((number, standing))
        if not wrong:
            return None
        told = [f"claim {n} ({state.claims[n].text!r}): {wording(standing)}" for n, standing in wrong]
        return Review(False, f"the work relies on {' And on '.join(told)} {REMEDY}")

    async def _stands(number: int, kind: str, merged: Merged) -> bool:
        place = place_of(tools, merged_at, None)
        cited = [each.model_dump(mode="json") for each in cited_now(tools.log, number)]
        if not cited:
            return False
        found = await look_again(tools.effects, merged_at, place.list_files, kind, cited, merged.tree)
        return all(ClaimEvidence.model_validate_json(each).holds for each in found)

    return Validator(VALIDATOR, review, again=True)


def _is_of_no_matter(claim: Claim, standing: Standing, work: Work) -> bool:
    """Whether it makes no difference here that the claim is out.

    What the worker's own claims rest on changes by its own work; what it cited and was told at once to be otherwise,
    nobody relied on.
    """
    own = claim.author == work.agent
    if standing.label == "stale":
        return own or claim.type in MEASURED
    return own and claim.refuted
