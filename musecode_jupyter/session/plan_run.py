"""A plan without a notebook: written, shown as text or as JSON, and approved by nobody."""

from __future__ import annotations

import json
from typing import Any

from musecode_jupyter.session.api import Session
from musecode_jupyter.session.plan_handle import PlanHandle, PlanResult
from musecode_jupyter.session.visible import visible, visible_text


def plan_told(session: Session, handle: PlanHandle, result: PlanResult, *, as_json: bool) -> str:
    """What is printed of a plan that is not written any more."""
    if not as_json:
        return visible_text(f"{handle.text()}log: {session.folder}")
    told: dict[str, Any] = {
        "session": session.id,
        "plan": handle.number,
        "status": result.status,
        "why": result.why,
        "version": result.version,
        "digest": result.digest,
        "document": result.document,
        "files": str(session.folder / "plans"),
    }
    return json.dumps(visible(told))
