"""Marks text from outside as data: a frame around it that the text itself cannot close."""

from __future__ import annotations

from hashlib import blake2b


def fenced(text: str) -> str:
    """`text` between two marks that hold its digest, so that nothing within it can look like the end of the frame.

    The same text gives the same bytes, so that prompts stay equal from turn to turn and in a replay.
    """
    mark = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    end = "" if text.endswith("\n") else "\n"
    return f"<data {mark}>\n{text}{end}</data {mark}>"
