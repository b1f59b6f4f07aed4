"""What the user sees of a session: live views (anywidget), and the same content as static HTML and text.

Nothing here knows the session: views are made from plain data and callables. The views' JavaScript is built
from `labextension/` into `musecode_jupyter/static/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from musecode_jupyter.jupyter.views.approvals import ApprovalsView, pending_card
    from musecode_jupyter.jupyter.views.critiques import CritiquesView
    from musecode_jupyter.jupyter.views.findings_html import critiques_text
    from musecode_jupyter.jupyter.views.grill import GrillView
    from musecode_jupyter.jupyter.views.live import restore_subshell_choice
    from musecode_jupyter.jupyter.views.plan import PlanView
    from musecode_jupyter.jupyter.views.static_html import (
        approvals_html,
        approvals_table,
        approvals_text,
        timeline_html,
        timeline_text,
    )
    from musecode_jupyter.jupyter.views.timeline import EventSource, TimelineView

__all__ = [
    "ApprovalsView",
    "CritiquesView",
    "EventSource",
    "GrillView",
    "PlanView",
    "TimelineView",
    "approvals_html",
    "approvals_table",
    "approvals_text",
    "critiques_text",
    "pending_card",
    "restore_subshell_choice",
    "timeline_html",
    "timeline_text",
]

_HOME = {
    "ApprovalsView": "approvals",
    "CritiquesView": "critiques",
    "EventSource": "timeline",
    "GrillView": "grill",
    "PlanView": "plan",
    "TimelineView": "timeline",
    "approvals_html": "static_html",
    "approvals_table": "static_html",
    "approvals_text": "static_html",
    "critiques_text": "findings_html",
    "pending_card": "approvals",
    "restore_subshell_choice": "live",
    "timeline_html": "static_html",
    "timeline_text": "static_html",
}


def __getattr__(name: str) -> Any:
    # anywidget and ipywidgets are heavy: the static forms and the summaries must not import them.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
