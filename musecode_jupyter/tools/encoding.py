"""Bytes of a file as text and back: whatever is not changed encodes to the bytes that it came from."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

# CR CR LF is one ending: it is what text-mode writing of CRLF text leaves behind.
ENDING = re.compile(r"\r*\n|\r")
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True)
class Decoded:
    """A file's text without its byte order mark, and how to get the bytes back.

    `codec` is "latin-1" for bytes in an encoding that is not known (GBK and others too): each byte is a
    character.
    """

    text: str
    codec: str
    errors: str
    bom: bytes

    def encode(self, text: str) -> bytes:
        """`text` in this encoding, without the mark; UnicodeEncodeError if it has no such characters."""
        return text.encode(self.codec, self.errors)


def bom_of(start: bytes) -> tuple[bytes, str | None]:
    """The byte order mark that `start` (4 bytes suffice) begins with, and its codec; or `b""` and None."""
    for bom, codec in _BOMS:
        if start.startswith(bom):
            return bom, codec
    return b"", None


def is_binary(start: bytes) -> bool:
    """Whether the first bytes of a file are not those of a text: a NUL, and no mark of UTF-16 or UTF-32."""
    return b"\0" in start and bom_of(start)[1] in (None, "utf-8")


def decode(data: bytes) -> Decoded | None:
    """Decode a whole file; None for a binary one."""
    if is_binary(data):
        return None
    bom, codec = bom_of(data)
    body = data[len(bom) :]
    if codec is not None and codec != "utf-8":
        try:
            decoded = Decoded(body.decode(codec, "surrogatepass"), codec, "surrogatepass", bom)
        except UnicodeDecodeError:
            return None
        return decoded if decoded.encode(decoded.text) == body else None
    try:
        return Decoded(body.decode("utf-8"), "utf-8", "strict", bom)
    except UnicodeDecodeError:
        pass
    text = body.decode("utf-8", "surrogateescape")
    if bom or _mostly_utf8(text):
        return Decoded(text, "utf-8", "surrogateescape", bom)
    return Decoded(body.decode("latin-1"), "latin-1", "strict", bom)


def _mostly_utf8(text: str) -> bool:
    # A UTF-8 file with a few broken bytes keeps its characters; in one of another encoding few sequences are
    # valid.
    special = re.findall(r"[^\x00-\x7f]", text)
    broken = sum(1 for character in special if "\udc80" <= character <= "\udcff")
    return len(special) - broken > 2 * broken


def shown(text: str) -> str:
    """`text` with line endings as LF and without lone surrogates, as a model sees it."""
    if "\r" in text:
        text = ENDING.sub("\n", text)
    return text if text.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", text)
