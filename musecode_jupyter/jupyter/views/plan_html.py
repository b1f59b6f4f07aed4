"""A plan without JavaScript: HTML for notebooks that are read later, and one line of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from musecode_jupyter.jupyter.views.static_html import BOX, DIM, PRE
from musecode_jupyter.session.visible import visible_text
from musecode_jupyter.skills.plan_text import ENDED

Shown = Mapping[str, Any]
UNCOMMITTED = "Read with changes that are not committed, without which work starts:"


def plan_line(plan: Shown) -> str:
    """One deterministic line."""
    document = plan["document"]
    steps = 0 if document is None else len(document["steps"])
    return f"Plan(status={plan['status']!r}, steps={steps})"


def plan_html(plan: Shown) -> str:
    """The plan as it stands, without buttons; says how to answer by text."""
    document = plan["document"]
    if document is None:
        return f'<div style="{BOX}"><b>Plan: {_clean(plan["text"])}</b><div>{_clean(plan["standing"])}</div></div>'
    parts = [
        f"<div><b>Plan: {_clean(document['goal'])}</b></div>",
        f'<div style="{DIM}">Version {plan["version"]}. {_clean(plan["standing"])}</div>',
        f"<div>{_clean(document['summary'])}</div>",
        *(_step(place, step) for place, step in enumerate(document["steps"], 1)),
    ]
    if document["denied"]:
        parts.append(f"<div>The commands were not run: {_clean(document['denied'])}</div>")
    if document["questions"]:
        parts.append(
            _list("Open questions", [_question(plan, n) for n in range(1, len(document["questions"]) + 1)], "ol")
        )
    parts.append(_list("What it rests on", [_evidence(each) for each in document["evidence"]]))
    if document["ground"]["uncommitted"]:
        parts.append(f"<div>{UNCOMMITTED} {_codes(document['ground']['uncommitted'])}</div>")
    if plan["difference"]:
        parts.append(
            f"<details><summary>Changed since version {plan['version'] - 1}</summary>"
            f'<pre style="{PRE}">{_clean(plan["difference"])}</pre></details>'
        )
    return f'<div style="{BOX}">{"".join(parts)}</div>'


def _step(place: int, step: Shown) -> str:
    lines = [
        f"done when <code>{_clean(each['command'])}</code> passes: <b>{_clean(ENDED[each['ended']])}</b>"
        for each in step["trials"]
    ]
    lines += [f"{name} {_codes(step[name])}" for name in ("reads", "writes") if step[name]]
    if step["after"]:
        lines.append(f"after {_clean(', '.join(step['after']))}")
    lines.append(f"risk {_clean(step['risk']['level'])}: {_clean(step['risk']['why'])}")
    if step["tokens"]:
        lines.append(f"about {step['tokens']:,} tokens")
    head = f"<b>{place}. {_clean(step['name'])}</b> {_clean(step['goal'])}"
    return f'<div style="margin-top:6px">{head}{_list("", lines)}</div>'


def _question(plan: Shown, number: int) -> str:
    said = plan["answers"].get(str(number), "")
    question = _clean(plan["document"]["questions"][number - 1])
    return f"{question} <b>{_clean(said)}</b>" if said else f"{question} <code>%plan answer {number} TEXT</code>"


def _evidence(each: Shown) -> str:
    unread = "" if each["read"] else " <b>never read</b>"
    return f"<code>{_clean(each['path'])}</code>{unread}: {_clean(each['shows'])}"


def _list(title: str, items: Sequence[str], tag: str = "ul") -> str:
    if not items:
        return ""
    head = f'<div style="margin-top:6px"><b>{title}</b></div>' if title else ""
    return f'{head}<{tag} style="margin:0 0 0 18px;padding:0">{"".join(f"<li>{item}</li>" for item in items)}</{tag}>'


def _codes(paths: Sequence[str]) -> str:
    return ", ".join(f"<code>{_clean(path)}</code>" for path in paths)


def _clean(text: str) -> str:
    return escape(visible_text(text))
