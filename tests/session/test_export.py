"""Exports of real and written sessions: each format as its own readers take it, and what users expect of the file."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from atif import Trajectory
from fixtures.crew_scripts import Crew, edit
from fixtures.model_scripts import Answer, Call
from fixtures.model_server import ModelServer
from fixtures.session_bench import Repo, end, session_on
from fixtures.trace_rules import check_trace
from fixtures.written_log import OPENED, Entry, completed, payload, requested, write_log
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from musecode_jupyter import cli
from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.kinds import KINDS
from musecode_jupyter.runtime.errors import LogError, UsageProblem
from musecode_jupyter.session import GoalSpec
from musecode_jupyter.session.export import FORMATS, export
from musecode_jupyter.session.export.clock import RisingClock
from musecode_jupyter.session.summary import summarise

NAMES = ("one", "two")
LONG = "a long line of the file\n" * 1000
LOOK = Answer("I look at both.", [Call("read", {"path": "one.txt"}), Call("read", {"path": "long.txt"})])


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a session in which two workers did two tasks side by side."""
    root = tmp_path_factory.mktemp("crew")
    repo = Repo(root / "repo")
    repo.commit({"long.txt": LONG, **{f"{name}.txt": "first\nwrong\n" for name in NAMES}})
    graph = [
        {"name": name, "goal": f"Mend {name}.txt.", "accept": [f"grep -q right {name}.txt"], "writes": [f"{name}.txt"]}
        for name in NAMES
    ]
    mend = edit("one.txt", "wrong", "right")
    # An answer for each result: the second one comes together with the first.
    script = {"one": [[LOOK, mend, mend]], "two": [[edit("two.txt", "wrong", "right")]]}
    verify = tuple(f"grep -q right {name}.txt" for name in NAMES)
    with (
        pytest.MonkeyPatch.context() as patch,
        ModelServer(Crew(script)) as server,
    ):
        patch.setenv("MUSECODE_HOME", str(root / "home"))
        with session_on(server.base_url, repo.root) as session:
            goal = session.start_goal(GoalSpec("mend both", verify, workers=2, tasks=parse_tasks(graph)))
            assert end(goal).met
        yield session.folder


def exported(folder: Path, format: str, **options: Any) -> Any:
    """What a format's reader makes of the export; also checks that a second one is equal."""
    path = folder.parent / f"out.{format}"
    export(folder, format, str(path), force=True, **options)
    content = path.read_bytes()
    export(folder, format, str(path), force=True, **options)
    assert path.read_bytes() == content
    text = content.decode("utf-8")
    if format == "jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return text if format == "html" else json.loads(text)


def embedded(page: str, name: str) -> list[Any]:
    """What stands in the page's blocks of this name."""
    found = re.findall(rf'<script [^>]*class="muse-page-{name}"[^>]*>(.*?)</script>', page, re.DOTALL)
    return [each for block in found for each in json.loads(block)]


def events_of(folder: Path) -> list[Any]:
    return list(EventLog.read(folder).events())


class TestJsonLines:
    def test_every_event_is_a_line_with_spilled_fields_in_place(self, crew: Path) -> None:
        lines = exported(crew, "jsonl")
        events = events_of(crew)
        journal = [
            json.loads(line) for path in sorted((crew / "journal").iterdir()) for line in path.read_text().splitlines()
        ]
        assert any(name.startswith("data.") for line in journal for name in line["blobs"]), "nothing was spilled"
        assert [line["data"] for line in lines] == [dict(event.data) for event in events]
        assert not any(name.startswith("data.") for line in lines for name in line["blobs"])
        for line, record in zip(lines, journal, strict=True):
            assert list(line) == list(record)
            rest = {name: value for name, value in record.items() if name not in {"data", "blobs"}}
            assert {name: line[name] for name in rest} == rest
            assert line["blobs"].items() <= record["blobs"].items()


class TestTrajectories:
    def test_workers_are_trajectories_of_their_own_to_which_the_lead_refers(self, crew: Path) -> None:
        document = exported(crew, "atif")
        root = Trajectory.model_validate(document)
        assert root.schema_version == "ATIF-v1.8"
        assert root.subagent_trajectories is not None
        workers = {each.trajectory_id: each for each in root.subagent_trajectories}
        assert {each.agent.extra["agent"] for each in workers.values()} == {"worker-1", "worker-2"}
        refs = [
            ref.trajectory_id
            for step in root.steps
            for result in (step.observation.results if step.observation else ())
            for ref in result.subagent_trajectory_ref or ()
        ]
        assert set(refs) == set(workers)
        assert any("goal met" in str(step.message) for step in root.steps)

    def test_calls_have_their_results_and_money_and_tokens_are_the_logs(self, crew: Path) -> None:
        root = Trajectory.model_validate(exported(crew, "atif"))
        events = events_of(crew)
        answers = [event.data for event in events if event.kind == "model.completed"]
        assert root.final_metrics is not None
        assert root.final_metrics.total_prompt_tokens == sum(answer["usage"]["input"] for answer in answers)
        assert root.final_metrics.total_cached_tokens == sum(answer["usage"]["cached"] for answer in answers)
        assert root.final_metrics.total_cost_usd == sum(answer["cost_microusd"] for answer in answers) / 1e6
        every = [step for each in (root, *(root.subagent_trajectories or ())) for step in each.steps]
        assert sum(step.llm_call_count or 0 for step in every) == len(answers)
        asked = [event.data for event in events if event.kind == "tool.requested"]
        calls = [call for step in every for call in step.tool_calls or ()]
        assert len(calls) == len(asked)
        results = [result for step in every if step.tool_calls for result in step.observation.results]  # type: ignore[union-attr]
        assert {result.source_call_id for result in results} == {call.tool_call_id for call in calls}
        (both,) = [step for step in every if len(step.tool_calls or ()) == 2]
        assert both.message == "I look at both."
        assert {call.function_name for call in both.tool_calls or ()} == {"read"}
        outputs = [event.data["output"] for event in events if event.kind == "tool.finished"]
        assert sorted(str(result.content) for result in results) == sorted(outputs)

    def test_each_worker_is_told_its_task_before_its_first_answer(self, crew: Path) -> None:
        root = Trajectory.model_validate(exported(crew, "atif"))
        for worker in root.subagent_trajectories or ():
            sources = [step.source for step in worker.steps]
            assert sources.index("user") < sources.index("agent")
            assert worker.agent.tool_definitions
            assert {tool["type"] for tool in worker.agent.tool_definitions} == {"function"}

    def test_failed_calls_are_paid_but_are_no_step_of_the_model(self, tmp_path: Path) -> None:
        failed = {"request": 3, "error": "reset", "error_kind": "connect", "attempts": 2, "seconds": 1.0}
        entries = [
            Entry("session.opened", OPENED, ""),
            Entry("agent.created", {"role": "lead", "profile": "driver", "model": "muse-spark-1.3"}),
            Entry("model.requested", requested()),
            Entry("model.retried", {"request": 3, "attempt": 1, "error": "x", "wait_s": 1.0, "cost_microusd": 125_000}),
            Entry("model.failed", {**failed, "cost_microusd": 500_000}),
            Entry("model.requested", requested()),
            Entry("model.completed", completed(6, ("c", "read", "no object"), ("d", "run", '{"command":"ls"}'))),
            # The kernel was killed: no result will come.
        ]
        write_log(tmp_path / "s", entries)
        root = Trajectory.model_validate(exported(tmp_path / "s", "atif"))
        assert root.final_metrics is not None
        assert root.final_metrics.total_cost_usd == 0.875
        (answer,) = [step for step in root.steps if step.source == "agent"]
        assert [call.arguments for call in answer.tool_calls or ()] == [{"text": "no object"}, {"command": "ls"}]
        assert answer.observation is None


class TestTrace:
    def test_a_real_session_keeps_the_rules_of_the_format(self, crew: Path) -> None:
        trace = exported(crew, "chrome")
        check_trace(trace)
        events = trace["traceEvents"]
        names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
        assert {"lead", "worker-1", "worker-2", "harness"} <= set(names)
        # The two reads ran side by side: no more than one of them can be on the track itself.
        assert {event["ph"] for event in events if event["name"] == "read"} == {"X", "b", "e"}
        arrows = {event["name"] for event in events if event["ph"] == "f"}
        assert arrows == {"handed in", "merge.landed"}
        assert {event["cat"] for event in events if event["ph"] == "b"} >= {"merge", "task", "goal"}
        spent = [event["args"]["spent"] for event in events if event["name"] == "money, USD"]
        assert spent == sorted(spent)
        costs = [event.data["cost_microusd"] for event in events_of(crew) if event.kind == "model.completed"]
        assert spent[-1] == sum(costs) / 1e6

    def test_an_approval_leads_to_what_it_let_run(self, tmp_path: Path) -> None:
        asked = {"action": "run", "rule": "run: make", "digest": "d", "shown": {"command": "make"}, "call": 2}
        entries = [
            Entry("session.opened", OPENED, ""),
            Entry("tool.requested", {"name": "run", "arguments": {"command": "make"}, "origin": "harness"}),
            Entry("approval.requested", asked),
            Entry("approval.granted", {"approval": 3, "by": "widget", "scope": "once"}, "user", 60.0),
            Entry("tool.decided", {"call": 2, "decision": "allow", "rule": "the user", "approval": 3}),
            Entry("tool.started", {"call": 2, "effect": "process", "cwd": "/w"}),
            Entry("tool.finished", {"call": 2, "output": "built", "ok": True, "exit": 0}, after=5.0),
        ]
        write_log(tmp_path / "s", entries)
        trace = exported(tmp_path / "s", "chrome")
        check_trace(trace)
        by_phase = {event["ph"]: event for event in trace["traceEvents"] if event["name"] in {"run", "approved"}}
        # It runs from its start on; the minute before is the question's.
        assert (by_phase["X"]["ts"], by_phase["X"]["dur"]) == (64_000_000, 5_000_000)
        assert by_phase["f"]["ts"] == by_phase["X"]["ts"]
        (waited,) = [event for event in trace["traceEvents"] if event["ph"] == "b"]
        assert waited["name"] == "approval: run"
        assert [e["args"]["count"] for e in trace["traceEvents"] if e["name"] == "approvals waiting"] == [1, 0]

    @given(
        steps=st.lists(
            st.tuples(st.sampled_from(["ask", "answer", "call", "start", "result", "close"]), st.integers(0, 3)),
            max_size=40,
        ),
        waits=st.lists(st.integers(-100_000, 2_000), min_size=1),
    )
    @hypothesis_settings(max_examples=15)
    def test_whatever_overlaps_and_however_the_clock_is_set(
        self, steps: list[tuple[str, int]], waits: list[int], tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """Calls and results in any order, by agents side by side, with a clock that jumps."""
        entries = [Entry("session.opened", OPENED, "")]
        asks: list[int] = []
        calls: list[int] = []
        for word, pick in steps:
            agent = f"worker-{pick % 2 + 1}"
            if word == "ask":
                asks.append(len(entries) + 1)
                entries.append(Entry("model.requested", requested(), agent))
            elif word == "answer" and asks:
                entries.append(Entry("model.completed", completed(asks.pop(pick % len(asks))), agent))
            elif word == "call":
                calls.append(len(entries) + 1)
                entries.append(Entry("tool.requested", {"name": "read", "arguments": {}, "origin": "harness"}, agent))
            elif word == "start" and calls:
                call = calls[pick % len(calls)]
                entries.append(Entry("tool.started", {"call": call, "effect": "read", "cwd": "/"}, agent))
            elif word == "result" and calls:
                call = calls.pop(pick % len(calls))
                entries.append(Entry("tool.finished", {"call": call, "output": "", "ok": True}, agent))
            elif word == "close":
                entries.append(Entry("session.closed", {"reason": "done"}, ""))
        timed = [
            Entry(entry.kind, entry.data, entry.agent, waits[at % len(waits)] / 1000)
            for at, entry in enumerate(entries)
        ]
        folder = tmp_path_factory.mktemp("trace") / "s"
        write_log(folder, timed)
        check_trace(exported(folder, "chrome"))
        Trajectory.model_validate(exported(folder, "atif"))

    def test_time_stands_still_where_the_clock_was_set_back_and_goes_on_at_its_pace(self, tmp_path: Path) -> None:
        hours = 7 * 3600.0
        after = (0, 10, -hours, 5, 0, 2)
        write_log(tmp_path / "s", [Entry("user.interrupt", {"scope": "all"}, "user", each) for each in after])
        clock = RisingClock()
        times = [clock.at(event) for event in events_of(tmp_path / "s") if event.kind != "state.digest"]
        second = 1_000_000
        passed = [b - a for a, b in pairwise(times)]
        assert passed == [10 * second, 1, 5 * second - 1, 1, 2 * second - 1]
        assert clock.setbacks == [{"seq": 3, "microseconds": int(hours) * second}]
        assert exported(tmp_path / "s", "chrome")["otherData"]["clock_set_back"] == clock.setbacks


class TestSpans:
    def test_spans_carry_the_conventions_of_generative_ai(self, crew: Path) -> None:
        (resource_spans,) = exported(crew, "otel")["resourceSpans"]
        (scope,) = resource_spans["scopeSpans"]
        spans = {span["spanId"]: span for span in scope["spans"]}
        assert len(spans) == len(scope["spans"])
        assert len({span["traceId"] for span in spans.values()}) == 1
        roots = [span for span in spans.values() if "parentSpanId" not in span]
        assert len(roots) == 1
        for span in spans.values():
            assert re.fullmatch("[0-9a-f]{16}", span["spanId"])
            assert re.fullmatch("[0-9a-f]{32}", span["traceId"])
            assert span.get("parentSpanId", roots[0]["spanId"]) in spans
            assert 0 < int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
        values = [{each["key"]: each["value"] for each in span["attributes"]} for span in spans.values()]
        chats = [each for each in values if each.get("gen_ai.operation.name") == {"stringValue": "chat"}]
        answers = [event.data for event in events_of(crew) if event.kind == "model.completed"]
        tokens = [int(each["gen_ai.usage.input_tokens"]["intValue"]) for each in chats]
        assert sorted(tokens) == sorted(answer["usage"]["input"] for answer in answers)
        tools = [each["gen_ai.tool.name"]["stringValue"] for each in values if "gen_ai.tool.name" in each]
        assert set(tools) == {"read", "edit", "run"}


class TestPage:
    def test_the_page_holds_every_event_with_its_data_and_diff(self, crew: Path) -> None:
        page = exported(crew, "html")
        events = events_of(crew)
        assert embedded(page, "events") == json.loads(json.dumps([summarise(event) for event in events]))
        details = embedded(page, "details")
        assert [detail["seq"] for detail in details] == [event.seq for event in events]
        assert [detail["event"]["kind"] for detail in details] == [event.kind for event in events]
        diffs = [detail["diff"] for detail in details if "diff" in detail]
        assert len(diffs) == 2
        assert all("-wrong\n+right\n" in diff for diff in diffs)
        (facts,) = embedded(page, "facts")
        assert facts["header"]["events"] == len(events)

    @pytest.mark.parametrize(
        "evil", ["</script><script>alert(1)</script>", "<!--<script>", "\u2028</style>", "\ud800<"]
    )
    def test_no_text_can_leave_its_place(self, evil: str, tmp_path: Path) -> None:
        opened = {**OPENED, "workspace": evil, "model": evil}
        entries = [Entry("session.opened", opened, ""), Entry("user.message", {"text": evil, "to": evil}, evil)]
        write_log(tmp_path / "s", entries)
        page = exported(tmp_path / "s", "html")
        assert page.lower().count("<script") == page.lower().count("</script>") == 4
        assert page.count("<!--") == 0
        assert page.lower().count("</style") == 1
        (said,) = [detail["event"] for detail in embedded(page, "details") if detail["event"]["kind"] == "user.message"]
        assert said["data"]["text"] == evil

    def test_long_texts_are_cut_and_secrets_in_files_are_not_shown(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MODEL_API_KEY", "a-key-of-the-environment")
        after = b"key = 'a-key-of-the-environment'\ntoken: ghp_0123456789abcdefghijklmnopqrstuvwxyz\n"
        entries = [
            Entry("session.opened", OPENED, ""),
            Entry("user.message", {"text": "x" * 50_000, "to": "lead"}, "user"),
        ]
        write_log(tmp_path / "s", entries)
        store = EventLog.read(tmp_path / "s")._blobs
        digest = store.put(after).digest
        changed = {"worktree": None, "path": "a.py", "before": None, "after": digest}
        big = {**changed, "after": store.put(b"y\n" * 200_000).digest}
        gone = {**changed, "after": "0" * 64}
        kinds = [Entry("file.changed", each) for each in (changed, big, gone)]
        write_log(tmp_path / "t", [*entries, *kinds])
        (tmp_path / "s" / "blobs").rename(tmp_path / "moved")
        for folder in (tmp_path / "moved").iterdir():
            target = tmp_path / "t" / "blobs" / folder.name
            if not target.exists():
                folder.rename(target)
        out = tmp_path / "t.html"
        assert cli.main(["export", str(tmp_path / "t"), "--format", "html", "-o", str(out)]) == 0
        capsys.readouterr()
        details = embedded(out.read_text(), "details")
        assert details[1]["event"]["data"]["text"].endswith("x\n... 30000 more characters are in the log")
        told, large, lost = (detail["diff"] for detail in details[2:5])
        assert "[redacted:secret]" in told
        assert "[redacted:github-token]" in told
        assert "a-key-of-the-environment" not in out.read_text()
        assert "larger than 256 KiB" in large
        assert "not in the log's blobs" in lost


def every_kind() -> list[Entry]:
    """An event of each kind there is."""
    return [
        Entry("session.opened", OPENED, ""),
        *(Entry(kind, payload(kind, lambda name: f"<{name}>")) for kind in KINDS),
    ]


@pytest.mark.parametrize("format", FORMATS)
class TestAnyLog:
    def test_every_kind_of_event_can_be_exported(self, format: str, tmp_path: Path) -> None:
        write_log(tmp_path / "s", every_kind())
        for key in (None, b"k" * 32):
            document = exported(tmp_path / "s", format, key=key)
            if format == "atif":
                Trajectory.model_validate(document)
            elif format == "chrome":
                check_trace(document)

    def test_a_damaged_log_is_exported_up_to_the_damage(
        self, format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_log(tmp_path / "s", [Entry("user.interrupt", {"scope": "all"}, "user") for _ in range(40)])
        journal = tmp_path / "s" / "journal" / "000001.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        lines[20] = lines[20].replace(b'"scope":"all"', b'"scope":"ALL"')
        journal.write_bytes(b"".join(lines))
        out = tmp_path / "out"
        assert cli.main(["export", str(tmp_path / "s"), "--format", format, "-o", str(out)]) == 1
        said = capsys.readouterr()
        assert "20 events in" in said.out
        assert "damaged at byte" in said.err
        text = out.read_text()
        if format == "jsonl":
            assert len(text.splitlines()) == 20
        else:
            assert "The log is damaged at byte" in text
            assert str(tmp_path) not in text

    def test_a_torn_end_is_left_out_and_said(self, format: str, tmp_path: Path) -> None:
        write_log(tmp_path / "s", [Entry("user.interrupt", {"scope": "all"}, "user") for _ in range(4)])
        journal = tmp_path / "s" / "journal" / "000001.jsonl"
        whole = journal.read_bytes()
        journal.write_bytes(whole[:-9])
        torn = export(tmp_path / "s", format, str(tmp_path / "torn"))
        journal.write_bytes(whole[:-9] + b"\0" * 9)
        filled = export(tmp_path / "s", format, str(tmp_path / "filled"))
        for done in (torn, filled):
            assert (done.events, done.damaged) == (4, False)
            assert "left out" in done.notes[0]

    def test_a_lost_field_is_said_and_the_rest_is_there(self, format: str, tmp_path: Path) -> None:
        items = [{"type": "message", "role": "user", "text": "z" * 30_000}]
        view = {"purpose": "ask", "instructions": "i" * 20_000, "items": items, "json_schema": None}
        write_log(tmp_path / "s", [Entry("session.opened", OPENED, ""), Entry("agent.view", view)])
        for blob in (tmp_path / "s" / "blobs").glob("??/*"):
            blob.unlink()
        done = export(tmp_path / "s", format, str(tmp_path / "out"))
        assert done.damaged
        assert done.notes[0].startswith("Event 2 lacks ")
        assert done.events == 3

    def test_a_file_that_is_there_is_kept_unless_forced(
        self, format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_log(tmp_path / "s", [Entry("session.opened", OPENED, "")])
        out = tmp_path / "out"
        out.write_text("mine")
        command = ["export", str(tmp_path / "s"), "--format", format, "-o", str(out)]
        assert cli.main(command) == 2
        assert capsys.readouterr().err == f"jupyter musecode: {out} exists; --force replaces it.\n"
        assert out.read_text() == "mine"
        assert cli.main([*command, "--force", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {
            "session": "s",
            "path": str(out),
            "format": format,
            "events": 2,
            "redacted": False,
            "damaged": False,
            "notes": [],
        }
        assert out.read_text() != "mine"
        assert out.stat().st_mode & 0o777 == 0o600
        assert sorted(each.name for each in tmp_path.iterdir()) == ["out", "s"]

    def test_memory_does_not_grow_with_the_log(self, format: str, tmp_path: Path) -> None:
        peaks = []
        for count in (20, 120):
            request = {"name": "read", "arguments": {"path": "a"}, "origin": "harness"}
            result = lambda call: {"call": call, "output": "y" * 12_000, "ok": True}  # noqa: E731
            pairs = [Entry("tool.requested", request), Entry("tool.finished", result)]
            write_log(tmp_path / str(count), [Entry("session.opened", OPENED, ""), *(pairs * count)])
            tracemalloc.start()
            try:
                export(tmp_path / str(count), format, str(tmp_path / f"{count}.out"))
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
        # What is read is 1.2 MB more.
        assert peaks[1] - peaks[0] < 300_000


def test_a_live_session_is_exported_up_to_now(repo: Repo, tmp_path: Path) -> None:
    with ModelServer(lambda _request: Answer("Fine.")) as server, session_on(server.base_url, repo.root) as session:
        asyncio.run(session.ask("how is it?"))
        for format in FORMATS:
            done = export(session.folder, format, str(tmp_path / format))
            assert (done.events, done.damaged, done.notes) == (session.log.last_seq, False, ())


class TestFile:
    @pytest.mark.parametrize(
        ("path", "says"),
        [
            ("", "is a folder"),
            ("none/out", "There is no folder"),
            ("s/out", "inside the session itself"),
            ("s/journal/000002.jsonl", "inside the session itself"),
        ],
    )
    def test_a_path_that_cannot_be_is_one_line(
        self, path: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_log(tmp_path / "s", [Entry("session.opened", OPENED, "")])
        command = ["export", str(tmp_path / "s"), "--format", "jsonl", "-o", str(tmp_path / path), "--force"]
        assert cli.main(command) == 2
        said = capsys.readouterr().err
        assert says in said
        assert len(said.splitlines()) == 1

    def test_nothing_is_left_when_the_disk_is_full(self, tmp_path: Path) -> None:
        write_log(tmp_path / "s", [Entry("user.message", {"text": "x" * 9000, "to": "lead"}) for _ in range(30)])

        def small_files() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

        command = [sys.executable, "-m", "musecode_jupyter.cli", "export", str(tmp_path / "s"), "--format", "jsonl"]
        (tmp_path / "mine").write_text("mine")
        done = subprocess.run(
            [*command, "-o", str(tmp_path / "mine"), "--force"],
            capture_output=True,
            text=True,
            preexec_fn=small_files,
            check=False,
            timeout=60,
        )
        assert done.returncode == 1, done.stderr
        assert "cannot be written (File too large); nothing was left there" in done.stderr
        assert (tmp_path / "mine").read_text() == "mine"
        assert sorted(each.name for each in tmp_path.iterdir()) == ["mine", "s"]

    def test_a_dash_is_standard_output(self, tmp_path: Path) -> None:
        write_log(tmp_path / "s", [Entry("session.opened", OPENED, "")])
        command = [sys.executable, "-m", "musecode_jupyter.cli", "export", str(tmp_path / "s"), "--format"]
        done = subprocess.run([*command, "jsonl", "-o", "-"], capture_output=True, text=True, check=True, timeout=60)
        assert [json.loads(line)["kind"] for line in done.stdout.splitlines()] == ["session.opened", "state.digest"]
        assert done.stderr == ""

    def test_a_journal_that_cannot_be_read_is_not_taken_for_a_full_disk(self, tmp_path: Path) -> None:
        write_log(tmp_path / "s", [Entry("user.interrupt", {"scope": "all"}) for _ in range(4)])
        (tmp_path / "s" / "journal" / "000002.jsonl").mkdir()
        with pytest.raises(LogError, match="journal of session s cannot be read after event 5"):
            export(tmp_path / "s", "jsonl", str(tmp_path / "out"))
        assert os.listdir(tmp_path) == ["s"]

    def test_what_cannot_be_exported_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "empty" / "journal").mkdir(parents=True)
        with pytest.raises(UsageProblem, match="nothing to export from session empty"):
            export(tmp_path / "empty", "jsonl", str(tmp_path / "out"))
        with pytest.raises(UsageProblem, match="no format 'pdf': take jsonl, atif, chrome, otel, html"):
            export(tmp_path / "empty", "pdf", str(tmp_path / "out"))
        assert os.listdir(tmp_path) == ["empty"]
