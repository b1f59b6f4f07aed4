"""`--redacted`: whatever of the user's stands anywhere in a log, no export shows it, and its shape stays."""

from __future__ import annotations

import json
import re
import string
from pathlib import Path
from typing import Any

import pytest
from fixtures.written_log import OPENED, Entry, completed, payload, requested, write_log
from hypothesis import given, settings
from hypothesis import strategies as st

from musecode_jupyter.log import EventLog
from musecode_jupyter.log.kinds import KINDS
from musecode_jupyter.session.export import FORMATS, export
from musecode_jupyter.session.export.mask import Mask

KEY = b"k" * 32
# What nobody else writes: neither a digest, nor a word of this program.
WORDS = st.text(string.ascii_letters + string.digits, min_size=6, max_size=12).map(lambda word: f"q{word}z")
SHAPES = (
    "{}",
    "/home/{}/work/{}.py",
    "{}/sub/model.ipynb",
    "refs/heads/{}",
    "line\n{}\n",
    '{{"{}": "{}"}}',
    "{}@example.org",
    "lead-{}",
    "1.2.{}",
    "\u00e4 {} \U0001f40d",
    "<b>{}</b>",
)


@given(
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=8),
    words=st.lists(WORDS, min_size=1, max_size=4),
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=5),
)
@settings(max_examples=15)
def test_nothing_that_was_planted_survives_in_any_format(
    kinds: list[str], words: list[str], shapes: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every text of every kind, keys of free data, the agent, the label, blobs and the folder's name are planted."""
    planted = 0

    def text(_field: str) -> str:
        nonlocal planted
        planted += 1
        shape, word = shapes[planted % len(shapes)], words[planted % len(words)]
        return shape.format(*(word,) * shape.count("{}"))

    folder = tmp_path_factory.mktemp("planted") / words[0]
    entries = [
        Entry(
            kind,
            payload(kind, text),
            text("agent"),
            label=text("label"),
            blobs={text("name"): text("blob").encode(), "after": text("blob").encode()},
        )
        for kind in (*kinds, "session.opened", "agent.seeded", "worktree.creating", *kinds)
    ]
    write_log(folder, entries)
    for format in FORMATS:
        out = folder.parent / format
        export(folder, format, str(out), key=KEY)
        content = out.read_text()
        found = [word for word in words if word in content]
        assert not found, f"{format} has {found}"
    # The test can see: without a mask they are there.
    export(folder, "jsonl", str(folder.parent / "plain"))
    assert any(word in (folder.parent / "plain").read_text() for word in words)


def test_a_name_of_a_tool_that_the_model_made_up_is_masked_and_known_ones_stay(tmp_path: Path) -> None:
    tools = [{"name": "read", "description": "reads", "parameters": {}}]
    entries = [
        Entry("agent.seeded", {"instructions": "be brief", "tools": tools}),
        Entry("model.requested", requested()),
        Entry("model.completed", completed(2, ("a", "read", "{}"), ("b", "tell_adas_secret", "{}"))),
        Entry("tool.requested", {"name": "read", "arguments": {}, "origin": "model", "call_id": "a"}),
        Entry("tool.requested", {"name": "tell_adas_secret", "arguments": {}, "origin": "model", "call_id": "b"}),
        Entry("tool.requested", {"name": "locate", "arguments": {"check": 1}, "origin": "harness"}),
    ]
    events = masked(tmp_path, entries)
    assert [event["data"]["name"] for event in events[3:6]] == ["read", events[4]["data"]["name"], "locate"]
    assert events[4]["data"]["name"].startswith("[redacted 16 characters ")
    calls = events[2]["data"]["items"]
    assert [call["name"] for call in calls] == ["read", events[4]["data"]["name"]]
    # A result can still be told from which call it is.
    assert [call["call_id"] for call in calls] == [event["data"]["call_id"] for event in events[3:5]]


def test_paths_keep_their_place_and_depth(tmp_path: Path) -> None:
    places = [
        "/home/ada/inventory/pkg/stock.py",
        "/home/ada/.musecode/w/4/pkg/stock.py",
        "/etc/ada.secret",
        "pkg/stock.py",
        "/home/ada/inventory",
    ]
    entries = [
        Entry("session.opened", OPENED, ""),
        Entry("worktree.creating", {"goal": None, "path": "/home/ada/.musecode/w/4", "branch": "b", "base": "ab" * 20}),
        *(Entry("tool.started", {"call": 1, "effect": "process", "cwd": place}) for place in places),
    ]
    events = masked(tmp_path, entries)
    inside, worktree, outside, relative, root = (event["data"]["cwd"] for event in events[2:7])
    assert re.fullmatch(r"workspace/[0-9a-f]{8}/[0-9a-f]{8}\.py", inside)
    assert worktree == inside.replace("workspace", "worktree-2")
    assert re.fullmatch(r"outside/[0-9a-f]{8}/[0-9a-f]{8}", outside)
    assert inside == f"workspace/{relative}"
    assert root == "workspace"
    # Equal digests stay equal and keep their length.
    assert len(events[1]["data"]["base"]) == 40
    assert events[1]["data"]["base"] != "ab" * 20


def test_shape_times_numbers_and_outcomes_stay(tmp_path: Path) -> None:
    entries = [Entry(kind, payload(kind, lambda name: f"the {name}"), cause=(1,)) for kind in sorted(KINDS)]
    events = masked(tmp_path, entries)
    originals = list(EventLog.read(tmp_path / "s").events())
    assert len(events) == len(originals)
    for event, original in zip(events, originals, strict=True):
        for name in ("seq", "ts", "gen", "b", "turn", "kind"):
            assert event[name] == getattr(original, name)
        assert event["cause"] == list(original.cause)
        assert event["data"].keys() == original.data.keys()
        assert "h" not in event
        for name, value in original.data.items():
            if isinstance(value, bool | int | float) or value is None or name == "usage":
                assert event["data"][name] == value
            elif isinstance(value, str) and value.startswith("the "):
                assert event["data"][name] != value


def test_without_the_key_a_guess_cannot_be_checked_and_with_another_nothing_is_equal() -> None:
    one, same, other = Mask(KEY), Mask(KEY), Mask(b"x" * 32)
    assert one.text("ada") == same.text("ada") != other.text("ada")
    assert one.text("ada") != one.text("eve")
    assert one.digest("ab" * 32) == same.digest("ab" * 32) != other.digest("ab" * 32)
    assert other.path("pkg/a.py") != one.path("pkg/a.py")


def masked(tmp_path: Path, entries: list[Entry]) -> list[dict[str, Any]]:
    write_log(tmp_path / "s", entries)
    export(tmp_path / "s", "jsonl", str(tmp_path / "out"), key=KEY)
    return [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
