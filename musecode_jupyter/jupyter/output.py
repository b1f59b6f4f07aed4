"""What a cell or a piece of code puts out, in bounded memory: the beginning and the end of its text, its pictures."""

from __future__ import annotations

from collections import deque
from typing import Any

from musecode_jupyter.tools.pictures import KINDS, MOST_AT_ONCE, PictureFile, read_picture

HEAD, TAIL = 8_000, 24_000


class Output:
    """Text of any length, of which beginning and end are kept, and the newest pictures."""

    def __init__(self, head: int = HEAD, tail: int = TAIL) -> None:
        self._limits = head, tail
        self._head = ""
        self._tail = ""
        self._cut = 0
        self._count = 0
        self._pictures: deque[PictureFile] = deque(maxlen=MOST_AT_ONCE)

    def add(self, text: str) -> None:
        """Append text."""
        most, last = self._limits
        if not self._tail and len(self._head) < most:
            room = most - len(self._head)
            self._head, text = self._head + text[:room], text[room:]
        if text:
            whole = self._tail + text
            self._tail = whole[-last:]
            self._cut += len(whole) - len(self._tail)

    def add_display(self, bundle: Any) -> None:
        """Append a display: its text, and each picture, of which the text says kind, size and number."""
        text = bundle.get("text/plain", "") if isinstance(bundle, dict) else ""
        lines = [text if isinstance(text, str) else "".join(text)]
        lines += [self._picture(mime, data) for mime, data in bundle.items() if mime.startswith("image/")]
        self.add("\n".join(line for line in lines if line) + "\n")

    def pictures(self, of: str) -> tuple[PictureFile, ...]:
        """The pictures, with captions that say of what they are."""
        return tuple(
            PictureFile(f"{each.caption} of {of}", each.mime, each.width, each.height, each.data)
            for each in self._pictures
        )

    @property
    def picture_bytes(self) -> int:
        """Memory that the pictures take."""
        return sum(len(each.data) for each in self._pictures)

    def drop_pictures(self) -> None:
        """Forget the pictures; the text still names them."""
        self._pictures.clear()

    def __str__(self) -> str:
        gap = f"\n[... {self._cut} characters left out ...]\n" if self._cut else ""
        return f"{self._head}{gap}{self._tail}"

    def _picture(self, mime: str, data: Any) -> str:
        if mime not in KINDS:
            return f"[{mime}, {len(data):,} characters, not shown]"
        text = data if isinstance(data, str) else "".join(data)
        picture = read_picture(f"Picture {self._count + 1}", mime, text)
        if isinstance(picture, str):
            return f"[{mime}, {len(text):,} characters, not shown: {picture}]"
        self._count += 1
        self._pictures.append(picture)
        return f"[picture {self._count}: {mime}, {picture.width} x {picture.height} pixels]"
