"""Findings without JavaScript: HTML for notebooks that are read later, text for terminals and tests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from musecode_jupyter.jupyter.views.static_html import BOX, DIM, PRE
from musecode_jupyter.session.visible import visible_text

Shown = Mapping[str, Any]
_ORDER = {"blocking": 0, "major": 1, "minor": 2, "note": 3}
_HEAD = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)")


def ranked(findings: Sequence[Shown]) -> list[Shown]:
    """Open ones first, those that stop the work before the others, by severity, then as they came."""
    return sorted(findings, key=_rank)


def _rank(finding: Shown) -> tuple[bool, bool, int, int]:
    return finding["state"] != "open", not finding["blocks"], _ORDER[finding["severity"]], finding["number"]


def most_pressing(findings: Sequence[Shown], most: int) -> list[Shown]:
    """The `most` that are least to be missed: those that stop the work, other open ones, then the newest."""
    return sorted(findings, key=lambda each: (not each["blocks"], each["state"] != "open", -each["seq"]))[:most]


def critiques_line(findings: Sequence[Shown]) -> str:
    """One deterministic line."""
    opened = sum(each["state"] == "open" for each in findings)
    return f"Critiques(findings={len(findings)}, open={opened}, blocking={sum(each['blocks'] for each in findings)})"


def state_words(finding: Shown) -> str:
    """How a finding stands, in words."""
    if finding["state"] != "open":
        return f"{finding['state']}: {finding['said']}" if finding["said"] else str(finding["state"])
    if finding["accepted"]:
        return "accepted: to be done before the work lands"
    if finding["blocks"]:
        return f"open: stops landing {finding['merge']}" if finding["merge"] is not None else "open: stops the landing"
    return "open: an opinion, stops nothing" if finding["opinion"] else "open: stops nothing"


def whose(finding: Shown) -> str:
    """Who raised it, about what."""
    passes = finding["passes"]
    who = "proven without a model" if passes == ["mechanical"] else f"raised by {', '.join(passes)}"
    return f"{who}; about {finding['work']}"


def rows(hunk: str, place: Mapping[str, Any]) -> list[str]:
    """The rows of a hunk with the line numbers of both sides; `>` marks the place."""
    lines = hunk.split("\n") if hunk else [f" {line}" for line in str(place["text"]).split("\n")]
    head = _HEAD.match(hunk)
    before, after = (int(head[1]), int(head[2])) if head else (place["start"], place["start"])
    width = len(str(max(before, after) + len(lines)))
    shown = [f"  {'':{2 * width + 1}} {lines.pop(0)}"] if head else []
    for line in lines:
        old, new = ("" if line[:1] == "+" else before), ("" if line[:1] == "-" else after)
        number = new if place["side"] == "new" else old
        marked = isinstance(number, int) and place["start"] <= number <= place["end"]
        shown.append(f"{'>' if marked else ' '} {old:>{width}} {new:>{width}} {line}")
        before += line[:1] != "+"
        after += line[:1] != "-"
    return shown


def critiques_text(findings: Sequence[Shown]) -> str:
    """Every finding in full, with how to settle those that are open."""
    if not findings:
        return "No findings."
    blocks = []
    for finding in ranked(findings):
        head = f"{finding['number']} {finding['severity']} {finding['check']} at {finding['where']}"
        lines = [f"{head} [{state_words(finding)}]", f"    {finding['text']}"]
        if finding["state"] == "open":
            lines += [f"    {each}" for each in (finding["why"],) if each]
            if finding["hunk"] or finding["place"]["text"]:
                lines += [f"    {row}" for row in rows(finding["hunk"], finding["place"])]
            lines += [f"    {line}" for each in _more_evidence(finding) for line in each.split("\n")]
            lines += [f"    Suggested: {finding['suggestion']}"] if finding["suggestion"] else []
        lines.append(f"    {whose(finding)}")
        blocks.append("\n".join(lines))
    stops = [finding["number"] for finding in ranked(findings) if finding["blocks"]]
    if stops:
        blocks.append(
            f"To settle one: `%muse critiques answer {stops[0]} TEXT`, `accept {stops[0]}` or `withdraw {stops[0]}`."
        )
    return visible_text("\n\n".join(blocks))


def critiques_html(findings: Sequence[Shown]) -> str:
    """All findings, without buttons; says how to answer by text."""
    if not findings:
        return f'<div style="{BOX}">No findings.</div>'
    opened = sum(each["state"] == "open" for each in findings)
    head = f"<div><b>{len(findings)} findings</b>: {opened} open</div>"
    return f'<div style="{BOX}">{head}{"".join(map(_card, ranked(findings)))}</div>'


def _card(finding: Shown) -> str:
    is_open = finding["state"] == "open"
    parts = [
        f'<details{" open" if is_open else ""}><summary style="cursor:pointer">'
        f'<span style="{DIM}">#{finding["number"]}</span> <b>{escape(finding["severity"])}</b> '
        f"{escape(finding['check'])} <code>{_clean(finding['where'])}</code> <b>{_clean(state_words(finding))}</b>"
        "</summary>",
        f"<div>{_clean(finding['text'])}</div>",
    ]
    if finding["why"]:
        parts.append(f'<div style="{DIM}">{_clean(finding["why"])}</div>')
    if finding["hunk"] or finding["place"]["text"]:
        parts.append(f'<pre style="{PRE}">{_clean(chr(10).join(rows(finding["hunk"], finding["place"])))}</pre>')
    parts += [f'<pre style="{PRE}">{_clean(each)}</pre>' for each in _more_evidence(finding)]
    if finding["suggestion"]:
        parts.append(f"<div><b>Suggested:</b> {_clean(finding['suggestion'])}</div>")
    parts.append(f'<div style="{DIM}">{_clean(whose(finding))}</div>')
    if finding["blocks"]:
        number = finding["number"]
        parts.append(
            f"<div>Settle it with <code>%muse critiques answer {number} TEXT</code>, accept or withdraw.</div>"
        )
    return "".join([*parts, "</details>"])


def _more_evidence(finding: Shown) -> list[str]:
    """What it rests on beyond what the hunk shows."""
    more = []
    for each in finding["evidence"]:
        if each["form"] == "command":
            more.append(f"Command {each['call']} printed:\n{each['text']}")
        elif each["text"] and each["text"].strip() != finding["place"]["text"].strip():
            if each["text"] not in finding["hunk"]:
                more.append(f"{each['path']}{':' + str(each['start']) if each['start'] else ''}:\n{each['text']}")
    return more


def _clean(text: str) -> str:
    return escape(visible_text(text))
