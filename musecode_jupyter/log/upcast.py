"""Upgrades data of events that older versions of the schema wrote: pure functions, applied as events are read.

The bytes of the journal, its chain and the event's `v` stay as they were written. To change a payload: raise
`events.SCHEMA_VERSION`, register here what turns the data of the version before into that of the new one, and write a
golden journal (`tests/fixtures/golden_story.py`). Words that are put around events in a prompt go by `v` in the same
way, see `agents/frames.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from musecode_jupyter.log.events import SCHEMA_VERSION, Event
from musecode_jupyter.runtime.money import limit_microusd, spent_microusd

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

# Version 1 did not record the shapes of the slices: these are those that it had.
_SHAPES_OF_1 = {
    "agents": "172cdb321ad54ebf",
    "goals": "6a9a8a213f57c7c2",
    "grounds": "064be7a2c5b4d612",
    "ledger": "cc9f945af0965a0c",
    "merges": "91b881bac467ac82",
    "questions": "6edc784b121683e6",
    "rules": "d98761ae46cfc8fb",
    "tasks": "f7e4e34d3e7bff39",
    "tools": "555d25efbcce33b7",
    "workspace": "5341775069622de1",
}


def _state_digest_1(data: dict[str, Any]) -> dict[str, Any]:
    slices = data.get("slices", {})
    return {**data, "shapes": {name: form for name, form in _SHAPES_OF_1.items() if name in slices}}


# Up to version 2 money was dollars with a fraction.
def _spent_2(*names: str) -> Upcaster:
    """What was spent, or reserved, or asked for, under these names."""

    def upgraded(data: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in data.items() if name not in names}
        return kept | {_micro(name): spent_microusd(data[name]) for name in names if name in data}

    return upgraded


def _limits_2(data: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in data.items() if name != "usd"}
    if "usd" in data:
        kept["microusd"] = None if data["usd"] is None else limit_microusd(data["usd"])
    return kept


def _edited_2(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "old": _limits_2(data["old"]), "new": _limits_2(data["new"])}


def _exceeded_2(data: dict[str, Any]) -> dict[str, Any]:
    money = data["scope"].endswith("usd") and data.get("needed") is not None
    return {**data, "needed": spent_microusd(data["needed"])} if money else data


# Up to version 3 a warning said dollars with a fraction.
def _warned_3(data: dict[str, Any]) -> dict[str, Any]:
    if data["limit"] != "usd":
        return data
    return {**data, "limit": "microusd", "used": spent_microusd(data["used"]), "of": limit_microusd(data["of"])}


def _micro(name: str) -> str:
    return f"{name.removesuffix('usd')}microusd"


UPCASTERS: dict[tuple[str, int], Upcaster] = {
    ("state.digest", 1): _state_digest_1,
    ("model.requested", 2): _spent_2("reserved_usd"),
    **{
        (kind, 2): _spent_2("cost_usd")
        for kind in ("model.completed", "model.failed", "model.retried", "model.abandoned")
    },
    ("session.forked", 2): _spent_2("usd"),
    **{(kind, 2): _limits_2 for kind in ("goal.set", "budget.set")},
    ("goal.edited", 2): _edited_2,
    ("budget.exceeded", 2): _exceeded_2,
    ("goal.warned", 3): _warned_3,
}
"""By kind and version of the schema: from the data of that version to that of the next, without changing its argument.

Kinds that are not named stayed the same.
"""


def upcast(event: Event) -> Event:
    """The event with its data in today's form; one of a newer version is left as it is."""
    steps = [UPCASTERS[key] for v in range(event.v, SCHEMA_VERSION) if (key := (event.kind, v)) in UPCASTERS]
    if not steps:
        return event
    data = dict(event.data)
    for step in steps:
        data = step(data)
    return replace(event, data=data)
