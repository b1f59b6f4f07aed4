"""Which pictures can be shown to a model, and what is said of the others."""

from __future__ import annotations

import base64

import pytest
from fixtures.pictures import GIF, JPEG_HEAD, WEBP_HEAD, png
from hypothesis import given
from hypothesis import strategies as st

from musecode_jupyter.tools.pictures import KINDS, MOST_BYTES, PictureFile, read_picture, recorded

STARTS = [b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8\xff", b"RIFF0000WEBP"]


def read(data: bytes, mime: str = "image/png") -> PictureFile | str:
    return read_picture("A", mime, base64.encodebytes(data).decode())


@pytest.mark.parametrize(
    ("mime", "data", "size"),
    [
        ("image/png", png(30, 20), (30, 20)),
        ("image/gif", GIF, (2, 3)),
        ("image/jpeg", JPEG_HEAD, (7, 5)),
        ("image/webp", WEBP_HEAD, (9, 4)),
    ],
)
def test_pictures_that_models_take(mime: str, data: bytes, size: tuple[int, int]) -> None:
    picture = read(data, mime)
    assert isinstance(picture, PictureFile)
    assert (picture.mime, picture.width, picture.height, picture.data) == (mime, *size, data)


@pytest.mark.parametrize(
    ("mime", "data", "why"),
    [
        ("image/svg+xml", b"<svg/>", "of a kind that models do not take"),
        ("image/png", GIF, "damaged"),
        ("image/png", b"", "damaged"),
        ("image/png", png(30, 20)[:14], "damaged"),
        ("image/png", png(8_001, 1), "more than 8,000 pixels along a side"),
        ("image/png", png(3, 2) + b"x" * MOST_BYTES, "larger than 3,500,000 bytes"),
        ("image/png", png(3, 2) + b"x" * 9_000_000, "larger than 3,500,000 bytes"),
    ],
)
def test_why_a_picture_is_not_shown(mime: str, data: bytes, why: str) -> None:
    assert read(data, mime) == why


def test_text_that_is_no_base64() -> None:
    assert read_picture("A", "image/png", "not base64 at all!") == "damaged"


@given(st.binary(max_size=200), st.sampled_from(sorted(KINDS)), st.sampled_from(STARTS))
def test_any_bytes_are_a_picture_or_a_reason(data: bytes, mime: str, start: bytes) -> None:
    picture = read(start + data, mime)
    assert isinstance(picture, str) or (picture.data == start + data and picture.width > 0 and picture.height > 0)


def test_an_event_names_its_pictures_by_blobs() -> None:
    picture = read(png(3, 2))
    assert isinstance(picture, PictureFile)
    listed, blobs = recorded([picture, picture])
    assert [said["blob"] for said in listed] == ["picture-1", "picture-2"] == list(blobs)
    assert listed[0] == {"blob": "picture-1", "caption": "A", "mime": "image/png", "width": 3, "height": 2}
    assert set(blobs.values()) == {png(3, 2)}
