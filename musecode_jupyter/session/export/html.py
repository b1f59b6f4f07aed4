"""Export as one HTML page that needs nothing else: the timeline's own views, with the events inside."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any, BinaryIO

from musecode_jupyter._version import __version__
from musecode_jupyter.log.events import Event, canonical
from musecode_jupyter.runtime.errors import ConfigurationError, LogError
from musecode_jupyter.session.changes import unified
from musecode_jupyter.session.export.jsonl import as_json
from musecode_jupyter.session.export.mask import Mask
from musecode_jupyter.session.export.source import EventSource
from musecode_jupyter.session.export.target import Spool
from musecode_jupyter.session.summary import summarise
from musecode_jupyter.session.totals import Totals
from musecode_jupyter.session.visible import visible_text

STATIC = Path(__file__).resolve().parents[2] / "static"
MOST_EVENTS = 100_000
"""The views stay smooth up to so many."""
MOST_DETAIL_BYTES = 64 << 20
LONG_TEXT = 20_000
LARGE_FILE = 256 << 10
_BLOCK_BYTES = 1 << 20


def write(
    source: EventSource, out: BinaryIO, folder: Path | None, clean: Callable[[str], str], *, redacted: bool
) -> None:
    """The page. It shows the newest 100,000 events, and of them the data of the newest, up to 64 MiB in all.

    Texts over 20,000 characters are cut, and so are diffs of files over 256 KiB; `clean` takes secrets out of the
    diffs, which are made from contents that the log keeps as they are. The page's policy lets nothing but its own
    script run, and nothing be loaded or sent.

    Raises
    ------
    ConfigurationError
        The views are not built.
    """
    script, style = _asset("page.js"), _asset("page.css")
    spool = Spool(folder)
    try:
        totals = Totals()
        facts = {"Session": source.name}
        first = last = ""
        for event in source.events():
            summary = summarise(event)
            totals.add(summary)
            _learn(facts, event)
            first, last = first or event.ts, event.ts or last
            spool.add("events", _embedded(summary))
            detail: dict[str, Any] = {"seq": event.seq, "event": _cut(as_json(event))}
            if event.kind == "file.changed" and not redacted:
                detail["diff"] = _diff(source, event, clean)
            spool.add("details", _embedded(detail))
        notes = list(source.notes)
        if redacted:
            notes.insert(0, "Redacted: texts, paths and digests of the session are replaced; sizes and times are real.")
        _head(out, script, style, facts, (first, last), notes)
        _body(out, spool, {"header": totals.header()})
        out.write(b"<script>" + script + b"</script>\n</body>\n</html>\n")
    finally:
        spool.close()


def _asset(name: str) -> bytes:
    try:
        content = (STATIC / name).read_bytes().strip()
    except OSError:
        raise ConfigurationError(
            "The page's views are not built: run make frontend in the repository, or export another format."
        ) from None
    # Whatever the build made of it, it must not end its own element.
    return re.sub(rb"</(?=script|style)", rb"<\\/", content, flags=re.IGNORECASE)


def _learn(facts: dict[str, str], event: Event) -> None:
    data = event.data
    if event.kind in {"session.opened", "session.resumed"}:
        if data.get("workspace") and data["workspace"] != Mask.WORKSPACE:
            facts["Workspace"] = str(data["workspace"])
        facts["Model"] = f"{data['model']} ({data['profile']})"
        facts["Version"] = str(data["version"])


def _embedded(value: Any) -> bytes:
    """JSON that cannot end the element in which it stands, nor begin a comment in it."""
    return canonical(value).replace("<", "\\u003c").encode("ascii")


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > LONG_TEXT:
        return f"{value[:LONG_TEXT]}\n... {len(value) - LONG_TEXT} more characters are in the log"
    if isinstance(value, list):
        return [_cut(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _cut(each) for name, each in value.items()}
    return value


def _diff(source: EventSource, event: Event, clean: Callable[[str], str]) -> str:
    sides: list[bytes | None] = []
    for name in ("before", "after"):
        digest = event.data[name]
        try:
            sides.append(None if digest is None else source.blobs.get(digest))
        except LogError:
            return "The content of the file is not in the log's blobs any more."
    if any(side is not None and len(side) > LARGE_FILE for side in sides):
        return f"The file is larger than {LARGE_FILE >> 10} KiB; `%muse show {event.seq}` shows the diff."
    return str(_cut(clean(unified(event.data["path"], sides[0], sides[1]))))


def _head(
    out: BinaryIO, script: bytes, style: bytes, facts: Mapping[str, str], times: tuple[str, str], notes: list[str]
) -> None:
    def allowed(content: bytes) -> str:
        return f"'sha256-{b64encode(sha256(content).digest()).decode('ascii')}'"

    policy = (
        f"default-src 'none'; script-src {allowed(script)}; style-src {allowed(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    rows = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts.items())
    # In the time zone of whoever looks at it, as the axis is; without the script in UTC.
    said_times = " to ".join(
        f'<time datetime="{escape(ts)}">{_text(ts[:16].replace("T", " "))} UTC</time>' for ts in times
    )
    rows += f"<div><dt>Time</dt><dd>{said_times}</dd></div>"
    said = "".join(f"<li>{_text(note)}</li>" for note in notes)
    html = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f'<meta name="generator" content="musecode_jupyter {__version__}">\n'
        f"<title>{_text(facts['Session'])}</title>\n<style>"
    )
    body = (
        '</style>\n</head>\n<body data-jp-theme-light="true">\n<div class="muse-page">\n'
        f'<header class="muse-page-head"><dl>{rows}</dl></header>\n'
        + (f'<ul class="muse-page-notes">{said}</ul>\n' if said else "")
        + "<noscript><p>This page draws the session with its own script; allow scripts for it. It loads nothing.</p>"
        '</noscript>\n<main id="muse-page-timeline"></main>\n</div>\n'
    )
    out.write(html.encode("utf-8", "replace") + style + body.encode("utf-8", "replace"))


def _text(text: str) -> str:
    return escape(visible_text(text))


def _body(out: BinaryIO, spool: Spool, page: dict[str, Any]) -> None:
    sizes = spool.sizes("details")
    total = len(sizes)
    first = max(0, total - MOST_EVENTS)
    detailed, left = total, MOST_DETAIL_BYTES
    while detailed > first and left >= sizes[detailed - 1]:
        detailed -= 1
        left -= sizes[detailed]
    _blocks(out, spool, "events", first)
    _blocks(out, spool, "details", detailed)
    out.write(_mark("facts", 1, 1) + b"[" + _embedded(page) + b"]</script>\n")


def _blocks(out: BinaryIO, spool: Spool, stream: str, first: int) -> None:
    """Blocks of about 1 MiB, each an array: the browser reads them one at a time, details only when asked for."""
    sizes = spool.sizes(stream)
    left = 0
    for at, piece in enumerate(spool.pieces(stream, first), first):
        if not left:
            # How many pieces the block holds stands at its head.
            room = _BLOCK_BYTES
            while room > 0 and at + left < len(sizes):
                room -= sizes[at + left]
                left += 1
            out.write(_mark(stream, at + 1, left) + b"[")
        left -= 1
        out.write(piece + (b",\n" if left else b"]</script>\n"))


def _mark(name: str, first: int, count: int) -> bytes:
    # Events are numbered from 1 without a gap, so the first number and the count say which are inside.
    return (
        f'<script type="application/json" class="muse-page-{name}" data-first="{first}" data-count="{count}">'
    ).encode("ascii")
