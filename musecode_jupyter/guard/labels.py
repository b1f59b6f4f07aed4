"""Labels of data, and how high a label a model may get: the order of both; pure.

A label says how far something may go, as in access control by lattice (Denning 1976): what is made of several parts has
the highest label among them. A clearance is the highest label that may go to a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, cast

from musecode_jupyter.models.catalogue import Tier

Label = Literal["public", "standard", "private"]
Clearance = Literal["", "public", "standard", "private"]

ORDER: Final[Mapping[str, int]] = {"public": 0, "standard": 1, "private": 2}
MEANING: Final[Mapping[str, str]] = {
    "public": "may go to any model that may be used here",
    "standard": "goes to a model of the contributor tier only if the repository's owner opted in",
    "private": "never goes to a model of the contributor tier",
}


def label_of(written: str) -> Label:
    """The label that an event has whose envelope says `written`: the empty one stands for standard.

    One that this version does not know counts as the highest.
    """
    label = written or "standard"
    return cast(Label, label) if label in ORDER else "private"


def written(label: str) -> str:
    """How the envelope of an event says `label`."""
    return "" if label == "standard" else label


def highest(*labels: str) -> Label:
    """The highest of the labels; of none, public."""
    return max((label_of(each) for each in labels), key=ORDER.__getitem__, default="public")


def above(label: str, clearance: Clearance) -> bool:
    """Whether what has `label` may not go where `clearance` is the highest that may."""
    return not clearance or ORDER[label_of(label)] > ORDER[clearance]


def clearance_of(tier: Tier, *, remote: bool, opted: bool, standard: Clearance = "private") -> Clearance:
    """The highest label that a model of `tier` may get.

    `remote`: its prompts leave this machine. `opted`: the repository's owner opted in to the contributor tier.
    `standard` is what the owner lets go to a model of the standard tier on another machine.
    """
    if tier == "contributor":
        return "standard" if opted else ""
    return standard if remote else "private"
