"""Which errors of a page's scripts are ours."""

from __future__ import annotations

import pytest
from lab import of_lab_alone

LAB = "at a (http://127.0.0.1:1/static/lab/12.ab.js:1:2)"


@pytest.mark.parametrize(
    ("frames", "theirs"),
    [
        ((LAB, "at http://127.0.0.1:1/lab/extensions/@jupyter-widgets/x.js?v=1:2:3"), True),
        ((LAB, "at b (blob:http://127.0.0.1:1/12-ab:1:2)"), False),
        ((LAB, "at http://127.0.0.1:1/lab/extensions/musecode-jupyter/static/x.js:1:2"), False),
        (("at file:///tmp/a.html:1:1",), False),
        ((), False),
    ],
)
def test_an_error_is_ours_if_a_script_of_ours_is_on_its_stack(frames: tuple[str, ...], theirs: bool) -> None:
    assert of_lab_alone("\n".join(("Error: x", *frames))) is theirs
