"""An attack without JavaScript: HTML for notebooks that are read later, and one line of text."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from musecode_jupyter.jupyter.views.static_html import BOX, DIM
from musecode_jupyter.session.visible import visible_text

Shown = Mapping[str, Any]


def grill_line(grill: Shown) -> str:
    """One deterministic line."""
    findings = grill["findings"]
    blocking = sum(each["blocks"] for each in findings)
    return f"Grill(status={grill['status']!r}, findings={len(findings)}, blocking={blocking})"


def grill_html(grill: Shown) -> str:
    """The attack as it stands, without buttons; says how to answer by text."""
    parts = [f"<div><b>Attack on {_clean(grill['title'])}</b>: {_clean(grill['status'])}</div>"]
    if grill["standing"]:
        parts.append(f'<div style="{DIM}">{_clean(grill["standing"])}</div>')
    parts += [_finding(each) for each in grill["findings"]]
    if not grill["findings"] and grill["status"] == "ended":
        parts.append("<div>Nothing was found.</div>")
    angles = "".join(f"<li><b>{_clean(angle)}</b>: {_clean(came)}</li>" for angle, came in grill["angles"].items())
    parts.append(f"<details><summary>{len(grill['angles'])} angles</summary><ul>{angles}</ul></details>")
    return f'<div style="{BOX}">{"".join(parts)}</div>'


def _finding(each: Shown) -> str:
    weight = "opinion" if each["opinion"] else each["severity"]
    place = f" <code>{_clean(each['place'])}</code>" if each["place"] else ""
    state = f"{each['state']}: {each['said']}" if each["said"] else each["state"]
    head = f'<span style="{DIM}">#{each["number"]}</span> <b>{_clean(weight)}</b> {_clean(", ".join(each["angles"]))}'
    lines = [f"<div>{head}{place} <b>{_clean(state)}</b></div><div>{_clean(each['text'])}</div>"]
    if each["state"] in {"open", "accepted"}:
        lines.append(f'<div style="{DIM}">{_clean(each["proof"])}</div>')
        lines += [f"<div><b>Instead:</b> {_clean(each['change'])}</div>"] if each["change"] else []
    if each["state"] == "open":
        lines.append(f"<div>Settle it with <code>%grill answer {each['number']} TEXT</code>, accept or reject.</div>")
    return f'<div style="margin-top:6px">{"".join(lines)}</div>'


def _clean(text: str) -> str:
    return escape(visible_text(text))
