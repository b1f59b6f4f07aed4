"""Pictures that a tool's result or a question carries to the model: which are taken, and how an event names them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

MOST_BYTES = 3_500_000
"""Largest picture that is sent: base64 makes a third more of it, and the strictest known server takes 5 MB."""

MOST_PIXELS_A_SIDE = 8_000
"""Longest side that is sent, in pixels: the strictest known server's limit."""

MOST_AT_ONCE = 4
"""Most pictures of one result."""

KINDS = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What every model that sees takes."""


@dataclass(frozen=True)
class PictureFile:
    """A picture as a file: `mime` is what its own bytes say, `width` and `height` are pixels."""

    caption: str
    mime: str
    width: int
    height: int
    data: bytes


def read_picture(caption: str, mime: str, text: str) -> PictureFile | str:
    """The picture of a display, where `text` is its base64; or why it cannot be shown to a model."""
    if mime not in KINDS:
        return "of a kind that models do not take"
    if len(text) > MOST_BYTES * 4 // 3 + 1_000_000:
        return f"larger than {MOST_BYTES:,} bytes"
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return "damaged"
    if len(data) > MOST_BYTES:
        return f"larger than {MOST_BYTES:,} bytes"
    import imagesize

    try:
        width, height = imagesize.get(BytesIO(data), exif_rotation=False)
    except Exception:
        # A header that is cut or made up fails in as many ways as there are formats.
        return "damaged"
    if _form(data) != mime or width < 1 or height < 1:
        return "damaged"
    if max(width, height) > MOST_PIXELS_A_SIDE:
        return f"more than {MOST_PIXELS_A_SIDE:,} pixels along a side"
    return PictureFile(caption, mime, width, height, data)


def recorded(pictures: Sequence[PictureFile]) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """What an event says of `pictures`, and the blobs that it names."""
    listed: list[dict[str, Any]] = [
        {
            "blob": f"picture-{place}",
            "caption": each.caption,
            "mime": each.mime,
            "width": each.width,
            "height": each.height,
        }
        for place, each in enumerate(pictures, 1)
    ]
    return listed, {said["blob"]: each.data for said, each in zip(listed, pictures, strict=True)}


def _form(data: bytes) -> str:
    """The MIME type that the first bytes name (a server compares them with what it is told)."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ""
