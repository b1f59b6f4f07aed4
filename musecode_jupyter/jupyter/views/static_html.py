"""The views without JavaScript: HTML for notebooks that are read later, text for terminals and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from musecode_jupyter.session.lines import clock
from musecode_jupyter.session.summary import BEHIND

ROWS = 200

# Inline styles only: front ends drop <style> from outputs that are not trusted. Colours come from the page's
# theme.
_MONO = "font-family:var(--jp-code-font-family,monospace);font-size:11px"
DIM = "color:var(--jp-content-font-color2,#666)"
_CELL = "padding:0 8px 0 0;text-align:left;vertical-align:top"
BOX = "font-size:12px;line-height:1.5;font-variant-numeric:tabular-nums;max-width:100%"
PRE = f"{_MONO};margin:4px 0;padding:4px 6px;border:1px solid var(--jp-border-color2,#ccc);white-space:pre-wrap"

Summary = Mapping[str, Any]


def money(usd: float, estimated: bool = False) -> str:
    """USD, to the cent from ten cents on; `~` marks a sum that is in part an estimate."""
    digits = 4 if usd and abs(usd) < 0.1 else 2
    return f"{'~' if estimated else ''}${usd:.{digits}f}"


def timeline_text(summaries: Sequence[Summary], header: Mapping[str, Any]) -> str:
    """One deterministic line, without times, ids or costs; the count is the header's if it has one."""
    return f"Timeline(events={header.get('events', len(summaries))})"


def header_text(header: Mapping[str, Any]) -> str:
    """The header of the timeline as one line."""
    goal = header.get("goal")
    parts = []
    if goal:
        parts.append(f"goal {goal['state']}{': ' + goal['why'] if goal['why'] else ''}")
    if header.get("pending"):
        parts.append(f"{header['pending']} to approve")
    read, cached = header.get("input_tokens", 0), header.get("cached_tokens", 0)
    share = f" ({100 * cached // read}% cached)" if read and cached else ""
    parts += [
        f"{header.get('events', 0):,} events",
        f"{header.get('model_calls', 0):,} model calls",
        f"{header.get('tool_runs', 0):,} tool runs",
        f"{header.get('errors', 0):,} failed",
        f"{read:,} tokens in{share}, {header.get('output_tokens', 0):,} out",
        f"{money(header.get('usd', 0.0), header.get('estimated', False))} spent",
    ]
    return " · ".join(parts)


def timeline_html(summaries: Sequence[Summary], header: Mapping[str, Any]) -> str:
    """Header and the last 200 events as a table."""
    shown = [summary for summary in summaries if summary["kind"] not in BEHIND][-ROWS:]
    goal = header.get("goal")
    title = f"<div><b>{escape(goal['text'])}</b></div>" if goal else ""
    total = header.get("events", len(summaries))
    note = f'<div style="{DIM}">the last {len(shown)} of {total:,} events</div>' if total > len(shown) else ""
    rows = "".join(
        f'<tr><td style="{_CELL};text-align:right;{DIM}">{s["seq"]}</td>'
        f'<td style="{_CELL};{DIM}">{clock(s["ts"])}</td>'
        f'<td style="{_CELL}">{escape(s["agent"] or "harness")}</td>'
        f'<td style="{_CELL};white-space:nowrap">{_mark(s)}{escape(s["kind"])}</td>'
        f'<td style="{_CELL};overflow-wrap:anywhere">{escape(s["text"])}</td></tr>'
        for s in shown
    )
    table = (
        f'<details><summary style="cursor:pointer">Events (times in UTC)</summary>{note}'
        f'<div style="max-height:320px;overflow:auto"><table style="border-collapse:collapse;margin:0">'
        f"<tbody>{rows}</tbody></table></div></details>"
        if shown
        else f'<div style="{DIM}">No events.</div>'
    )
    return f'<div style="{BOX}">{title}<div>{escape(header_text(header))}</div>{table}</div>'


def approvals_text(cards: Sequence[Mapping[str, Any]]) -> str:
    """One deterministic line."""
    return f"Approvals(pending={sum(card['state'] == 'pending' for card in cards)})"


def approvals_table(cards: Sequence[Mapping[str, Any]]) -> str:
    """Each question that waits: what would run, where, and how to answer."""
    blocks = []
    for card in cards:
        if card["state"] != "pending":
            continue
        lines = [f"{card['approval']}: {card['action']}, asked by {card['agent'] or 'harness'}"]
        lines += _indented(card["what"])
        if card["cwd"]:
            lines.append(f"    in {card['cwd']}")
        lines += _indented(card["diff"])
        for name, value in card["more"].items():
            lines += _indented(f"{name}: {_listed(value)}")
        number = card["approval"]
        lines.append(
            f"    rule {card['rule']}\n    answer with %approve {number}, %approve {number} --session or %deny {number}"
        )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) or "No approval is pending."


def _listed(value: Any) -> str:
    """A value as it is read: of a list, the parts, with a line for each if one of them is more than a word."""
    if not isinstance(value, list):
        return str(value)
    parts = [str(part) for part in value]
    return ("\n" if any(" " in part for part in parts) and len(parts) > 1 else ", ").join(parts)


def _lines_html(text: str) -> str:
    return escape(text).replace("\n", "<br>")


def approvals_html(cards: Sequence[Mapping[str, Any]]) -> str:
    """All cards, without buttons; says how to answer by text."""
    return f'<div style="{BOX}">{"".join(map(_card_html, cards)) or "No approval is pending."}</div>'


def _card_html(card: Mapping[str, Any]) -> str:
    head = f"<b>{escape(card['action'])}</b> ({escape(str(card['approval']))}"
    head += f", asked by {escape(card['agent'])})" if card["agent"] else ")"
    if card["state"] != "pending":
        why = f": {escape(card['why'])}" if card["why"] else ""
        return f"<div>{head} {escape(card['state'])}{why}</div>"
    parts = [f"<div>{head}</div>"]
    parts += [f'<pre style="{PRE}">{escape(text)}</pre>' for text in (card["what"], card["diff"]) if text]
    facts = {"in": card["cwd"], "rule": card["rule"], "digest": card["digest"][:12], **card["more"]}
    parts += [
        f'<div><span style="{DIM}">{escape(k)}</span> {_lines_html(_listed(v))}</div>' for k, v in facts.items() if v
    ]
    number = card["approval"]
    parts.append(f"<div>Answer with <code>%approve {number}</code> or <code>%deny {number} WHY</code>.</div>")
    return "".join(parts)


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]


def _mark(summary: Summary) -> str:
    return "&times; " if summary["ok"] is False else ""
