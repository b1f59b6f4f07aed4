"""Reading a log as a user: causes and effects, search, what changed, the list of sessions, and following one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from musecode_jupyter import cli
from musecode_jupyter.log import EventLog, Redactor
from musecode_jupyter.log.peek import Peek
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.causes import named_by, story
from musecode_jupyter.session.differences import between, changes_text
from musecode_jupyter.session.reducers import all_reducers
from musecode_jupyter.session.search import search
from musecode_jupyter.session.store import list_sessions, sessions_around, sessions_dir
from musecode_jupyter.session.tail import tail

DEADLINE_S = 60
NAME = "20260101-000000-aaaa"
OPENED = {"version": "0", "model": "m", "api": "chat", "profile": "driver", "approvals": "deny"}
BIG = "filler " * 4000


def new_log(folder: Path, **options: Any) -> EventLog:
    return EventLog.create(
        folder, reducers=all_reducers(), redactor=Redactor(), now=lambda: datetime.now(UTC), **options
    )


def requested(command: str) -> dict[str, Any]:
    return {"name": "run", "arguments": {"command": command}, "origin": "harness", "call_id": None}


def change(log: EventLog, path: str, before: str | None, after: str | None, worktree: int | None = None) -> None:
    sides = {"before": before, "after": after}
    refs = {name: None if text is None else log._blobs.put(text.encode()).digest for name, text in sides.items()}
    log.post("file.changed", {"worktree": worktree, "path": path, **refs}, agent="lead")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A session with a goal, three calls, changed files and a spilled output; events are numbered in the comments."""
    folder = sessions_dir(tmp_path / "home") / NAME

    async def write() -> None:
        log = new_log(folder, segment_bytes=6_000)
        log.post("session.opened", {"session": NAME, "workspace": str(tmp_path / "work"), **OPENED})  # 1
        log.post("agent.created", {"role": "lead", "profile": "driver", "model": "m"}, agent="lead")  # 2
        log.post(
            "goal.set",
            {"text": "mend", "verify": ["true"], "agent": "lead", "branch": "main", "base": "b" * 40},
            agent="user",
        )  # 3
        for number in range(3):
            await log.flush()
            base = log.last_seq + 1
            log.post("tool.requested", requested(f"make {number}"), agent="lead", cause=(3,))  # 4, 8, 12
            log.post("tool.decided", {"call": base, "decision": "allow", "rule": "r"}, agent="lead", cause=(base,))
            log.post("tool.started", {"call": base, "effect": "process", "cwd": "/w"}, agent="lead", cause=(base,))
            output = BIG + "Zebra" if number == 1 else f'Ångström "{number}"\n\tdone'
            log.post("tool.finished", {"call": base, "output": output, "ok": True}, agent="lead", cause=(base,))
        await log.flush()
        change(log, "b.txt", "old\n", "middle\n")  # 16
        change(log, "b.txt", "middle\n", "new\n")  # 17
        change(log, "a.txt", None, "made\n")  # 18
        change(log, "same.txt", "x\n", "y\n")  # 19
        change(log, "same.txt", "y\n", "x\n")  # 20
        log.post("goal.stopped", {"goal": 3, "state": "stalled", "why": "no idea"}, agent="lead", cause=(15,))  # 21
        log.post("session.closed", {"reason": "done"})  # 22
        await log.close()

    asyncio.run(write())
    return folder


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main(arguments)
    return code, *capsys.readouterr()


# --- show ----------------------------------------------------------------------------------------------


def test_an_event_is_shown_with_what_led_to_it_and_what_it_led_to(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = command(capsys, "show", str(folder), "7")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("7 20")
    at = lines.index("because of")
    assert lines[at + 1 : at + 3] == ["  4 lead tool.requested  run make 0", "    3 user goal.set  mend | verify: true"]
    assert 'output:\nÅngström "0"\n\tdone\n' in out
    shown = json.loads(command(capsys, "show", str(folder), "3", "--json")[1])
    tree = [(step["depth"], step["seq"], step["by"]) for step in shown["effects"]]
    assert tree == [
        *(
            (depth, seq, "")
            for first in (4, 8, 12)
            for depth, seq in ((1, first), *((2, first + n) for n in (1, 2, 3)))
        ),
        (1, 21, "goal"),
    ]
    assert (shown["causes"], shown["begin"], shown["more"]) == ([], None, 0)
    assert command(capsys, "show", str(folder), "24")[::2] == (
        2,
        "jupyter musecode: There is no event 24: the log holds 1 to 23.\n",
    )


def test_a_change_is_shown_as_a_diff_and_a_large_output_whole(folder: Path) -> None:
    assert "-middle\n+new" in story(folder, 17).text()
    assert "--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+made" in story(folder, 18).text()
    assert "Zebra" in story(folder, 11).text()


def test_a_long_chain_is_cut_and_where_it_begins_is_told(tmp_path: Path) -> None:
    async def write() -> None:
        log = new_log(tmp_path / "s")
        log.post("user.message", {"text": "begin", "to": "lead"})
        for n in range(1, 200):
            log.post("tool.requested", requested(f"step {n}"), cause=(n,))
        for _ in range(100):
            log.post("tool.requested", requested("after"), cause=(200,))
        await log.close()

    asyncio.run(write())
    told = story(tmp_path / "s", 200)
    assert [step.event.seq for step in told.causes] == list(range(199, 187, -1))
    assert told.begin is not None
    assert told.begin.seq == 1
    assert "and further back to 1 harness user.message  to lead: begin" in told.text()
    assert (len(told.effects), told.more) == (20, 80)
    assert len(told.text().splitlines()) < 60


@given(
    events=st.lists(
        st.tuples(st.lists(st.integers(0, 40), max_size=3), st.one_of(st.none(), st.integers(0, 40))), max_size=30
    )
)
@settings(max_examples=25, deadline=None)
def test_chains_end_whatever_events_name(tmp_path_factory: pytest.TempPathFactory, events: list[Any]) -> None:
    """Also where an event names itself, a later one, or none that there is; effects are the reverse of causes."""
    folder = tmp_path_factory.mktemp("chains") / "s"

    async def write() -> None:
        log = EventLog.create(folder, reducers=[], redactor=Redactor(), now=lambda: datetime.now(UTC))
        log.post("user.message", {"text": "begin", "to": "lead"})
        for cause, call in events:
            if call is None:
                log.post("user.message", {"text": "t", "to": "lead"}, cause=cause)
            else:
                log.post("kernel.running", {"call": call}, cause=cause)
        await log.close()

    asyncio.run(write())
    everything = list(EventLog.read(folder).events())
    for event in everything:
        told = story(folder, event.seq)
        assert all(0 < step.event.seq < event.seq for step in told.causes)
        direct = {each.seq for each in everything if event.seq in named_by(each)}
        shown = {step.event.seq for step in told.effects}
        assert {step.event.seq for step in told.effects if step.depth == 1} <= direct <= shown or told.more


# --- search --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ZEBRA", [11]),
        ("zebra", [11]),
        ("ångström", [7, 15]),
        ('ÅNGSTRÖM "2"\n\tDONE', [15]),
        ('"0"', [7]),
        ("goal.s", [3, 21]),
        ("No Idea", [21]),
        ("\\", []),
        ("data.output", []),
        ("tool.requested", [4, 8, 12]),
    ],
)
def test_texts_are_found_as_they_are_whatever_their_case(folder: Path, text: str, found: list[int]) -> None:
    assert [event.seq for event in search(folder, text).events] == found


def test_the_newest_are_shown_and_the_others_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "search", str(folder), "tool.", "--limit", "2")
    assert code == 0
    *rows, note = out.splitlines()
    assert [row.split()[0] for row in rows] == ["14", "15"]
    assert note == "10 earlier events match as well: --limit 12 shows all."
    shown = json.loads(command(capsys, "search", str(folder), "make", "0", "--json")[1])
    assert ([event["seq"] for event in shown["events"]], shown["more"]) == ([4], 0)
    assert command(capsys, "search", str(folder), " ")[0] == 2
    assert command(capsys, "search", str(folder), "x", "--limit", "0")[0] == 2


@given(text=st.text(min_size=1, max_size=30), cut=st.tuples(st.integers(0, 29), st.integers(1, 30)))
@settings(max_examples=60, deadline=None)
def test_any_part_of_a_text_is_found(tmp_path_factory: pytest.TempPathFactory, text: str, cut: tuple[int, int]) -> None:
    folder = tmp_path_factory.mktemp("search") / "s"

    async def write() -> None:
        log = EventLog.create(folder, reducers=[], redactor=Redactor(), now=lambda: datetime.now(UTC))
        log.post("user.message", {"text": text, "to": "lead"})
        await log.close()

    asyncio.run(write())
    part = text[cut[0] : cut[0] + cut[1]]
    for needle in (part, part.upper() if part.upper().lower() in text.lower() else part):
        if needle.strip():
            assert [event.seq for event in search(folder, needle).events][:1] == [1]


# --- what changed --------------------------------------------------------------------------------------


def test_what_changed_between_two_events(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "diff", str(folder), "15..21")
    assert code == 0
    assert out == (
        "What changed after event 15 up to event 21 (6 events):\n"
        "Goals:\n  goal 3 (mend): running, preparing -> stalled\n"
        "Files in the checkout:\n"
        "--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+made\n"
        "--- a/b.txt\n+++ b/b.txt\n@@ -1 +1 @@\n-old\n+new\n"
    )
    assert command(capsys, "diff", str(folder), "15..21")[1] == out
    assert "-middle\n+new\n" in command(capsys, "diff", str(folder), "16..17")[1]
    assert "b.txt" not in command(capsys, "diff", str(folder), "17..")[1]
    whole = command(capsys, "diff", str(folder), "..3")[1]
    assert "goal 3 (mend): new, running" in whole
    assert "lead: new, " in whole
    assert command(capsys, "diff", str(folder), "4..6")[1].endswith("\n  nothing that is counted here\n")


def test_a_range_that_is_none_is_one_line(folder: Path) -> None:
    assert between(folder, "..") == between(folder, "") == (0, 23)
    for text, says in [("5", "12..40"), ("a..b", "12..40"), ("9..3", "3..9 is what"), ("1..99", "holds 1 to 23")]:
        with pytest.raises(UsageProblem, match=says):
            between(folder, text)


def test_a_change_of_megabytes_is_bounded(tmp_path: Path) -> None:
    async def write() -> None:
        log = new_log(tmp_path / "s")
        change(log, "large.txt", "".join(f"{n}\n" for n in range(2_000)), "".join(f"{n}.\n" for n in range(2_000)))
        change(log, "huge.txt", None, "x" * 2_000_000)
        change(log, "binary", None, "\0")
        await log.close()

    asyncio.run(write())
    text = changes_text(tmp_path / "s", 0, 3)
    assert len(text.splitlines()) < 260
    assert "--- a/huge.txt\n+++ b/huge.txt\n0 bytes became 2,000,000" in text
    assert "--- a/binary\n+++ b/binary\n0 bytes became 1" in text
    assert "more lines)" in text


# --- places in a journal -------------------------------------------------------------------------------


def test_every_event_is_reached_in_a_journal_of_several_segments(folder: Path) -> None:
    assert len(list((folder / "journal").iterdir())) > 1
    peek = Peek(folder)
    everything = list(EventLog.read(folder).events())
    assert [peek.event(event.seq) for event in everything] == everything
    assert [event.seq for event in peek.backwards()] == list(range(23, 0, -1))
    for seq in (0, -1, 24):
        assert peek.event(seq) is None


@pytest.mark.parametrize("cut", [1, 700])
def test_damage_is_passed_over_by_those_who_only_look(folder: Path, cut: int) -> None:
    segment = sorted((folder / "journal").iterdir())[0]
    content = segment.read_bytes()
    lines = content.splitlines(keepends=True)
    segment.write_bytes(b"".join([*lines[:4], b"\xff" * cut + b"\n", *lines[5:]]))
    assert [event.seq for event in Peek(folder).events()] == [*range(1, 5), *range(6, 24)]
    assert [event.seq for event in search(folder, "make").events] == [4, 8, 12]
    assert story(folder, 7).event.seq == 7
    with pytest.raises(UsageProblem, match="no event 5"):
        story(folder, 5)


# --- the list ------------------------------------------------------------------------------------------


def test_sessions_are_found_from_inside_their_workspace_and_through_links(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    monkeypatch.setenv("MUSECODE_HOME", str(home))
    (work / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(work)
    monkeypatch.chdir(tmp_path)
    for place in (work, work / "inner", Path("link"), tmp_path / "link" / "inner"):
        assert [entry.id for entry in sessions_around(home, place)] == [NAME]
    assert [entry.id for entry in list_sessions(home, tmp_path / "link")] == [NAME]
    assert list_sessions(home, work / "inner") == []
    for place in (tmp_path, tmp_path / "wor"):
        assert sessions_around(home, place) == []
    assert command(capsys, "sessions", "--workspace", "link/inner")[1] == (
        f"{NAME}  closed  23 events  stalled  {work}\n"
    )
    (row,) = json.loads(command(capsys, "sessions", "--json")[1])
    assert (row["id"], row["state"], row["events"], row["goal"]) == (NAME, "closed", 23, "stalled")
    assert command(capsys, "sessions", "--workspace", str(tmp_path))[1] == f"No sessions of {tmp_path} in {home}.\n"


def test_a_list_reads_a_few_bytes_of_each_session(folder: Path, tmp_path: Path) -> None:
    """Of a log of 2 GB, too: counted in a process of its own."""
    (segment,) = sorted((folder / "journal").iterdir())[-1:]
    size = 2 << 30
    last = segment.read_bytes()
    with segment.open("r+b") as file:
        file.truncate(size)
        file.seek(size - len(last) - 1)
        file.write(b"\n" + last)
    code = (
        "import sys; from pathlib import Path; from musecode_jupyter.session.store import list_sessions\n"
        "def read(): return int(Path('/proc/self/io').read_text().split()[1])\n"
        "list_sessions(Path('/nowhere')); before = read(); entries = list_sessions(Path(sys.argv[1]))\n"
        "print([(e.state, e.events, e.goal) for e in entries], read() - before)"
    )
    out = subprocess.check_output([sys.executable, "-c", code, str(tmp_path / "home")], text=True)
    said, _, count = out.strip().rpartition(" ")
    assert said == "[('closed', 23, 'stalled')]"
    assert int(count) < 100_000


# --- following -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def following(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`jupyter musecode tail FOLDER` as a process of its own."""
    arguments = [sys.executable, "-m", "musecode_jupyter.cli", "tail", str(folder), *options]
    with subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def seqs(lines: list[str]) -> list[int]:
    return [int(line.split()[0]) for line in lines]


def lines_of(stream: IO[str] | None, count: int) -> list[str]:
    assert stream is not None
    return [stream.readline() for _ in range(count)]


def test_a_live_session_is_followed_to_its_end_without_its_lock(tmp_path: Path) -> None:
    folder = tmp_path / "s"

    async def write() -> None:
        log = new_log(folder)
        for text in ("one", "two", "three"):
            await log.append("user.message", {"text": text, "to": "lead"}, agent="user")
        with following(folder, "-f", "-n", "2") as process:
            assert seqs(await asyncio.to_thread(lines_of, process.stdout, 2)) == [2, 3]
            for text in ("four", BIG, "six"):
                await log.append("user.message", {"text": text, "to": "lead"}, agent="user")
                (line,) = await asyncio.to_thread(lines_of, process.stdout, 1)
                assert line.split()[2:4] == ["user", "user.message"]
                assert f"to lead: {text[:5]}" in line
            log.post("session.closed", {"reason": "done"})
            await log.close()
            rest, problems = await asyncio.to_thread(process.communicate, timeout=DEADLINE_S)
            assert (seqs(rest.splitlines()), problems, process.returncode) == ([7, 8], "", 0)

    asyncio.run(write())


def test_a_tail_without_following_shows_the_last_and_ends(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = [json.loads(line) for line in command(capsys, "tail", str(folder), "--json")[1].splitlines()]
    assert [event["seq"] for event in shown] == list(range(14, 24))
    code, out, err = command(capsys, "tail", str(folder), "-n", "3")
    assert (code, err) == (0, "")
    assert [line.replace("!", "").split()[3] for line in out.splitlines()] == [
        "goal.stopped",
        "session.closed",
        "state.digest",
    ]
    assert len(command(capsys, "tail", str(folder), "-n", "1000")[1].splitlines()) == 23
    assert command(capsys, "tail", str(folder), "-n", "0", "-f")[:2] == (0, "")
    assert command(capsys, "tail", str(folder), "-n", "-1")[0] == 2


def test_a_session_that_nobody_writes_any_more_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed: no session.closed, and a line that was cut off."""
    folder = tmp_path / "s"
    program = (
        "import asyncio, os, sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from test_reading import new_log\n"
        "async def write():\n"
        "    log = new_log(Path(sys.argv[1]))\n"
        "    await log.append('user.message', {'text': 'last words', 'to': 'lead'})\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(write())"
    )
    paths = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([sys.executable, "-c", program, str(folder), paths[0]], env=environment, check=False)
    with (folder / "journal" / "000001.jsonl").open("ab") as file:
        file.write(b'{"v":1,"seq":2,')
    code, out, err = command(capsys, "tail", str(folder), "-f")
    assert (code, err) == (0, "")
    assert [line.split()[3] for line in out.splitlines()] == ["user.message"]


def test_a_tail_stops_at_damage_and_says_where(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = sorted((folder / "journal").iterdir())[-1]
    content = segment.read_bytes()
    segment.write_bytes(content.replace(b'"reason":"done"', b'"reason":"dome"'))
    code, out, err = command(capsys, "tail", str(folder), "-f", "-n", "4")
    assert code == 1
    assert "goal.stopped" in out
    assert "session.closed" not in out
    assert "damaged after event 21, byte" in err
    found = list(tail(folder, 1000))
    assert [getattr(each, "seq", 0) for each in found] == [*range(1, 22), 0]
