"""The last state of live views, as the notebook keeps it for the day when there is no kernel any more."""

from __future__ import annotations

from typing import Any


def kept_of(views: list[Any]) -> dict[str, str]:
    """What the notebook keeps of the views: hidden by the style of the widget as long as there is one."""
    html = "".join(view.static_html() for view in views)
    return {
        "text/html": f'<div class="muse-kept">{html}</div>',
        "text/plain": "\n".join(view.static_text() for view in views),
    }
