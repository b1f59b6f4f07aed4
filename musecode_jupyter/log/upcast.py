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


UPCASTERS: dict[tuple[str, int], Upcaster] = {
    ("state.digest", 1): _state_digest_1,
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
