"""What the events of data tiers hold: how paths are labelled, what was refused, which model is pinned from then on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from musecode_jupyter.log.payload import Payload


class PathLabel(Payload):
    """What lies at paths that match has a label. `why` names where that stands: file and line, or a licence file."""

    pattern: str = Field(description="glob of paths from the root of the repository; of a folder: all below it")
    label: Literal["public", "standard", "private"]
    why: str
    raises: bool = Field(default=False, description="whether it can only raise what other rules say")


class TierLabelled(Payload):
    """The labels of paths, as the repository's files say them now; takes the place of what was said before."""

    rules: list[PathLabel]
    standard: Literal["standard", "private"] = Field(
        description="the highest label that goes to a model of the standard tier on another machine"
    )
    digest: str = Field(description="of .musecode/tiers.toml; empty where there is none. An opt-in is bound to it")


class TierBlocked(Payload):
    """The gate refused to send: a part of the prompt is above what the model may get, or nothing may go to it."""

    model: str
    clearance: str = Field(description="the highest label that the model may get; empty: nothing")
    part: int | None = Field(description="the event in the prompt that is above it; none where nothing may go")
    label: str
    rule: str = Field(description="why the part has its label, with the path if it is one of a file")
    error: str = Field(description="what the user is told")


class TierSwitched(Payload):
    """The user pinned a model in mid-session, or the same again after a mismatch; every context is checked again."""

    model: str
    before: str
    api: str
    remote: bool = Field(description="whether prompts leave this machine")
    room: int
    price: list[float]
    approval: int | None = None


TIER_KINDS: dict[str, type[Payload]] = {
    "tier.labelled": TierLabelled,
    "tier.blocked": TierBlocked,
    "tier.switched": TierSwitched,
}
