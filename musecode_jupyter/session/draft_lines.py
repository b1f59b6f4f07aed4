"""One line for a person from each event of goals whose clauses the lead proposes; pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Data = Mapping[str, Any]


def _proposed(data: Data) -> str:
    try:
        found = json.loads(data["document"])
        said = [each.get("command") for each in found.get("verify", [])] + list(found.get("metric", []))
        by, decides = found.get("by"), ", ".join(map(str, said))
    except (ValueError, AttributeError, TypeError):
        by, decides = "somebody", "what cannot be read"
    return f"{by} proposes what decides the goal: {decides}"


def _checked(data: Data) -> str:
    if data["denied"]:
        return f"the proposed commands were not run: {data['denied']}"
    return "the proposed commands were tried" + (f": {data['report']}" if data["report"] else "")


def _confirmed(data: Data) -> str:
    changed = f", with {', '.join(map(str, data['changed']))} of their own" if data["changed"] else ""
    return f"the user confirms what decides the goal{changed}: {', '.join(map(str, data['verify']))}"


DRAFT_TEXTS: dict[str, Callable[[Data], str]] = {
    "draft.begun": lambda d: f"a goal is wanted, and nothing named that decides it: {d['text']}",
    "draft.checked": _checked,
    "draft.proposed": _proposed,
    "draft.confirmed": _confirmed,
    "draft.cancelled": lambda d: f"draft {d['draft']} is wanted no more",
    "draft.stopped": lambda d: f"looking for what decides the goal ended ({d['state']}): {d['why']}",
}
