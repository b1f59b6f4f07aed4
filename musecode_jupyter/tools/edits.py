"""Replacing text in a file's bytes: encoding, mark and line endings stay; only touched lines change."""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.encoding import ENDING, Decoded, decode, shown

_SHOWN_LINE = 200
_COMPARED_LINES = 5_000
_COMPARED_CHARACTERS = 400
_ALIGNED_LINES = 1_000


@dataclass(frozen=True)
class EditOutcome:
    """The new content, how often `old` was replaced, and the touched lines (from 1, in the new content)."""

    data: bytes
    count: int
    first_line: int
    last_line: int


def apply_edit(data: bytes, old: str, new: str, *, replace_all: bool = False) -> EditOutcome:
    """Replace `old` by `new` in the content `data` of an existing file.

    `old` and `new` may have any line endings; those of the file are matched and kept. A new line takes the
    ending of the line that it replaces or follows.

    Raises
    ------
    ToolProblem
        `old` is empty, equal to `new`, not in the file, or there more than once without `replace_all`; the
        file is binary; `new` has characters that the file's encoding has not.
    """
    decoded = decode(data)
    if decoded is None:
        raise ToolProblem("The file is binary; it cannot be edited as text.")
    old, new = (_as_lf(text, decoded) for text in (old, new))
    if not old:
        raise ToolProblem("`old` is empty, which creates a new file, but the file exists. Send the text to replace.")
    if old == new:
        raise ToolProblem("`old` and `new` are equal: nothing would change. Send the changed text as `new`.")
    source = _Source(decoded.text)
    starts = list(_occurrences(source.text, old, overlapping=not replace_all))
    if not starts:
        raise ToolProblem(_not_found(source.text, old))
    if len(starts) > 1 and not replace_all:
        lines = ", ".join(str(source.line_of(start)) for start in starts[:10])
        more = ", ..." if len(starts) > 10 else ""
        raise ToolProblem(
            f"`old` is in the file {len(starts)} times, at lines {lines}{more}. "
            "Send more of the lines around the place that you mean, so that it is unique."
        )
    pieces: list[bytes] = [decoded.bom]
    done = 0
    for start in starts:
        first, last = source.original(start), source.original(start + len(old))
        pieces += [
            decoded.encode(decoded.text[done:first]),
            _encode(source.replacement(start, old, new), decoded),
        ]
        done = last
    pieces.append(decoded.encode(decoded.text[done:]))
    line_shift = (len(starts) - 1) * (new.count("\n") - old.count("\n"))
    first_line = source.line_of(starts[0])
    touched = new[: len(new) - 1] if new.endswith("\n") else new
    last_line = source.line_of(starts[-1]) + line_shift + touched.count("\n")
    return EditOutcome(b"".join(pieces), len(starts), first_line, last_line)


def _as_lf(text: str, decoded: Decoded) -> str:
    if decoded.bom:
        text = text.removeprefix("\ufeff")
    return ENDING.sub("\n", text)


def _encode(text: str, decoded: Decoded) -> bytes:
    try:
        return decoded.encode(text)
    except UnicodeEncodeError as error:
        raise ToolProblem(
            f"The file is not UTF-8 and {text[error.start]!a} in `new` cannot be written in its encoding. "
            "Use ASCII characters, or change the file with a command that knows its encoding."
        ) from None


def _occurrences(text: str, old: str, *, overlapping: bool) -> Iterator[int]:
    at = text.find(old)
    while at >= 0:
        yield at
        at = text.find(old, at + (1 if overlapping else len(old)))


class _Source:
    """A file's text with LF endings, and the way from a position in it to one in the text as it is."""

    def __init__(self, original: str) -> None:
        self.text = original
        self.endings: list[str] = []
        self._newlines: list[int] = []
        self._extra = [0]
        self._uniform = "\r" not in original
        if self._uniform:
            self._newlines += _occurrences(original, "\n", overlapping=False)
            return
        self.text = ENDING.sub("\n", original)
        for match in ENDING.finditer(original):
            self._newlines.append(match.start() - self._extra[-1])
            self._extra.append(self._extra[-1] + len(match.group()) - 1)
            self.endings.append(match.group())

    def line_of(self, position: int) -> int:
        """The line, from 1, that `position` is in."""
        return bisect_left(self._newlines, position) + 1

    def original(self, position: int) -> int:
        """Where `position` of `text` is in the original text."""
        return position if self._uniform else position + self._extra[bisect_left(self._newlines, position)]

    def replacement(self, start: int, old: str, new: str) -> str:
        """`new`, with line endings, for the `old` found at `start`."""
        if self._uniform or "\n" not in new:
            return new
        first = bisect_left(self._newlines, start)
        replaced = self.endings[first : first + old.count("\n")]
        return _with_endings(old.split("\n"), new.split("\n"), replaced, self._ending_at(first))

    def _ending_at(self, index: int) -> str:
        """The ending of line `index`; of a last line without one, that of the line before."""
        if index < len(self.endings):
            return self.endings[index]
        return self.endings[-1] if self.endings else "\n"


def _with_endings(old: list[str], new: list[str], replaced: list[str], default: str) -> str:
    """Join the lines of `new`: one that stays keeps its ending, a new one takes that of what it replaces."""
    endings = [""] * (len(new) - 1)
    if len(old) <= _ALIGNED_LINES and len(new) <= _ALIGNED_LINES:
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        blocks: list[tuple[int, int, int, int]] = [code[1:] for code in matcher.get_opcodes()]
    else:
        blocks = _common_ends(old, new)
    last = replaced[0] if replaced else default
    for old_from, old_to, new_from, new_to in blocks:
        for offset in range(new_to - new_from):
            index = old_from + offset
            if index < old_to and index < len(replaced):
                last = replaced[index]
            if new_from + offset < len(endings):
                endings[new_from + offset] = last
    return "".join(line + ending for line, ending in zip(new, [*endings, ""], strict=True))


def _common_ends(old: list[str], new: list[str]) -> list[tuple[int, int, int, int]]:
    shorter = min(len(old), len(new))
    head = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    tail = next((i for i in range(shorter - head) if old[-1 - i] != new[-1 - i]), shorter - head)
    old_mid, new_mid = len(old) - tail, len(new) - tail
    return [(0, head, 0, head), (head, old_mid, head, new_mid), (old_mid, len(old), new_mid, len(new))]


def _not_found(text: str, old: str) -> str:
    lines = text.split("\n")
    count = old.rstrip("\n").count("\n") + 1
    message = "`old` is not in the file."
    if old.endswith("\n") and not text.endswith("\n") and text.endswith(old.rstrip("\n")):
        return f"{message} The file has no line ending at its end: leave out the last one of `old`."
    same = _same_but_for_spaces(lines, old.rstrip("\n").split("\n"))
    if same is not None:
        return f"{message} These lines differ in spaces only; copy exactly.\n{_numbered(lines, same, count)}"
    near = _nearest(lines, old)
    if near is None:
        return f"{message} No line is like it: read the file and copy the lines exactly, without line numbers."
    return f"{message} The nearest lines are below; copy the lines exactly.\n{_numbered(lines, near, count)}"


def _numbered(lines: list[str], first: int, count: int) -> str:
    indices = range(first, min(first + min(count, 10), len(lines)))
    width = len(str(indices.stop))
    return "\n".join(f"{index + 1:>{width}}\t{shown(lines[index][:_SHOWN_LINE])}" for index in indices)


def _same_but_for_spaces(lines: list[str], wanted: list[str]) -> int | None:
    if len(lines) > 200_000 or sum(map(len, wanted)) > 100_000:
        return None
    target = ["".join(line.split()) for line in wanted]
    if not any(target):
        return None
    bare = ["".join(line[:10_000].split()) for line in lines]
    for first in range(len(bare) - len(target) + 1):
        if bare[first : first + len(target)] == target:
            return first
    return None


def _nearest(lines: list[str], old: str) -> int | None:
    """The index of the first of the lines most like `old`, judged by the longest line of `old`."""
    wanted = old.split("\n")
    offset, key = max(enumerate(wanted), key=lambda pair: len(pair[1].strip()))
    key = key.strip()[:_COMPARED_CHARACTERS]
    if not key:
        return None
    letters = Counter(key)
    best, best_ratio = None, 0.6
    matcher = difflib.SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(key)
    for index, line in enumerate(lines[:_COMPARED_LINES]):
        candidate = line.strip()[:_COMPARED_CHARACTERS]
        total = len(candidate) + len(key)
        if not candidate or 2 * sum((letters & Counter(candidate)).values()) / total <= best_ratio:
            continue
        matcher.set_seq1(candidate)
        ratio = matcher.ratio()
        if ratio > best_ratio:
            best, best_ratio = index, ratio
    return None if best is None else max(best - offset, 0)
