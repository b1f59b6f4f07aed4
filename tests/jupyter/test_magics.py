"""The magics in real kernels: goals in the background, waiting, approvals, the views, and bad input."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.make_repo import make_repo
from journal import records, sessions, wait_for_kind
from kernel import Cell, Kernel, StartKernel, kernel_environment
from scripted import CHECK, GOAL, REPO, ScriptedModel
from test_completion import complete

import musecode_jupyter
from musecode_jupyter.jupyter.host import NO_SESSION
from musecode_jupyter.session.core import NO_GOAL

WIDGET = "application/vnd.jupyter.widget-view+json"

SNAPSHOT = """
def snapshot():
    import gc, logging, threading, time
    shell = get_ipython()
    limit = time.monotonic() + 20
    # Threads that were told to end need a moment for it.
    ours = [t for t in threading.enumerate() if t.name.startswith(("musecode", "log ", "asyncio_"))]
    for thread in ours:
        thread.join(max(0.0, limit - time.monotonic()))
    return {
        "magics": {kind: {name: str(function) for name, function in table.items()}
                   for kind, table in shell.magics_manager.magics.items()},
        "registry": sorted(shell.magics_manager.registry),
        "configurables": [type(c).__name__ for c in shell.configurables],
        "hooks": {event: list(map(str, found)) for event, found in shell.events.callbacks.items()},
        "transformers": list(map(str, shell.input_transformers_post + shell.input_transformers_cleanup)),
        "matchers": list(map(str, shell.Completer.matchers)),
        "threads": sorted(t.name for t in threading.enumerate()),
        "handlers": {name: list(map(str, getattr(logger, "handlers", [])))
                     for name, logger in [("", logging.getLogger()), *logging.root.manager.loggerDict.items()]
                     if getattr(logger, "handlers", [])},
        # atexit cannot be listed; what it or anything else holds is alive.
        "hosts": gc.collect() * 0 + sum(type(o).__name__ in ("Host", "MuseMagics") for o in gc.get_objects()),
    }
def changed(one, other):
    return [name for name in one if one[name] != other[name]]
"""


def one_line(cell: Cell) -> str:
    """The message of a cell that failed with a one-line UsageError."""
    assert cell.error is not None
    assert cell.error.startswith("UsageError: "), cell.error
    assert cell.stderr.strip() == cell.error, "more than one line was shown"
    assert "\n" not in cell.error
    return cell.error


# --- loading -------------------------------------------------------------------------------------------


def test_loading_imports_nothing_heavy(start_kernel: StartKernel) -> None:
    kernel = start_kernel()
    heavy = "{'httpx', 'git', 'torch', 'triton', 'anywidget', 'ipywidgets', 'pydantic', 'xllamacpp'}"
    assert kernel.run(f"import sys; sorted({heavy} & set(sys.modules))").result == "[]"
    assert kernel.run("import threading; [t.name for t in threading.enumerate() if 'muse' in t.name]").result == "[]"


def test_load_use_unload_load_leaves_everything_as_before(tmp_path: Path, start_kernel: StartKernel) -> None:
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace")
    kernel.run("%unload_ext musecode_jupyter")
    kernel.run(SNAPSHOT)
    kernel.run("before = snapshot()")
    for _ in range(2):
        kernel.run("%load_ext musecode_jupyter")
        kernel.run(GOAL + " --wait")
        assert kernel.execute("%unload_ext musecode_jupyter").shown == []
    assert kernel.run("changed(before, snapshot())").result == "[]"
    kernel.run("%load_ext musecode_jupyter")
    kernel.run("%muse ask why")
    kernel.run("%reload_ext musecode_jupyter")
    kernel.run("%muse ask why")
    kernel.run("%unload_ext musecode_jupyter")
    assert kernel.run("changed(before, snapshot())").result == "[]"
    assert "not found" in one_line(kernel.execute("%goal"))
    for folder in sessions(tmp_path / "home"):
        assert records(folder)[-1]["kind"] in ("session.closed", "state.digest")


# --- a session with a goal that was met ----------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel in which a goal was set by the cell form, and met."""
    folder = tmp_path_factory.mktemp("finished")
    repository = make_repo(REPO, folder / "repository")
    with ScriptedModel(REPO) as model:
        environment = kernel_environment(model.base_url, folder / "home", MUSECODE_APPROVALS="allow-workspace")
        with Kernel(repository, environment) as kernel:
            kernel.run("%load_ext musecode_jupyter")
            kernel.run(
                f'%%goal --verify "{CHECK}" --budget 5usd --calls 50\n'
                'Make the check pass, says "the owner".\nIs that clear?'
            )
            kernel.run("g = _")
            assert kernel.run("g.wait(60).met").result == "True"
            yield kernel


def test_cell_form_takes_the_text_as_it_is(finished: Kernel) -> None:
    text = 'Make the check pass, says "the owner".\nIs that clear?'
    assert finished.run("print(g.text)").stdout == text + "\n"
    assert finished.run("g").result == f"Goal({text!r}, status='met')"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "agents",
            r"^lead: lead, driver, muse-spark-1\.3: idle, \d+ model calls, \d+ tokens, 0\.\d{4} USD.*\n"
            r"  conversation: about \d+ of 1032192 tokens, \d+ things seen\n"
            r"  its next work: 0\.\d{4} USD as it is, .* by a new agent: (keep|compact|reseed|retire)\n$",
        ),
        ("timeline --kind goal", r"(?s)^ *\d+ .*goal\.set .*goal\.met "),
        ("timeline --agent harness", r"(?s)^ *1 .* harness +session\.opened .* harness +merge\.landed"),
        ("timeline --since 12", r"^ *13 "),
        ("timeline --kind goal.paused", r"^$|No events"),
        ("show 1", r"^1 \S+ harness session\.opened  .*\n(.*\n)*workspace: /"),
        ("diff", r"(?s)^diff --git .*\n\+        return self\.start < other\.end"),
        ("merges", r"^Ended:\n  \d+  Make the check pass, says \"the owner\"\.: landed on main: \w{10} to \w{10}\n"),
        (
            "claims",
            r"^\d+  verified  test result, harness, since event \d+: `[^`]+` passed on tree \w{10}\n   this program",
        ),
        ("sessions", r"^\S+  live +\d+ events  met +/"),
        ("sessions --workspace", r"^\S+  live +\d+ events  met +/"),
        ("sessions --workspace /nowhere", r"^No sessions of /nowhere in /"),
        ("search --limit 1 INTERVAL.PY", r"^ *\d+ .*\n[\d,]+ earlier events match as well: --limit \d+ shows all\.\n$"),
        ("search no such text at all", r"^No events\.\n$"),
        ("diff 4..", r"(?s)^What changed after event 4 .*\+        return self\.start < other\.end"),
        ("show 5", r"(?s)because of\n.*led to\n  "),
        ("verify", r"^\d+ events: the chain is whole\.\n\d+ state digests equal the fold; [1-9]\d* prompts"),
        ("doctor", r"(?m)^ok +git: "),
        ("ask What is a check? Say it briefly", r"^The fault is repaired in scheduler/interval\.py\.\n$"),
    ],
)
def test_words_after_muse_print_text(finished: Kernel, line: str, expected: str) -> None:
    cell = finished.run(f"%muse {line}")
    assert re.search(expected, cell.stdout), cell.stdout
    assert cell.stderr == ""
    assert cell.result is None


def test_costs_are_a_table_and_text(finished: Kernel) -> None:
    expected = (
        r"(?m)^lead: .*\ntotal: \d+\.\d{6} of \d+\.\d{6} USD reserved, \d+ calls, \d+ tokens in \(\d+% cached\), "
        r"\d+ out\nby goal:\n  goal \d+ \(.*\): .*\nby tier:\n  standard, muse-spark-1\.3: .*\n"
    )
    assert re.search(expected, _cost_text(finished))


def test_show_of_a_file_change_holds_its_diff(finished: Kernel) -> None:
    table = finished.run("%muse timeline --kind file.changed").stdout
    shown = finished.run(f"%muse show {table.split()[0]}").stdout
    assert "+        return self.start < other.end" in shown
    assert "because of" in shown


def test_the_open_session_is_exported_and_kept_from_being_written_over(finished: Kernel, tmp_path: Path) -> None:
    out = tmp_path / "what it did.jsonl"
    assert re.fullmatch(rf"\d+ events in {re.escape(str(out))}\.\n", finished.run(f"%muse export jsonl '{out}'").stdout)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert "goal.met" in {line["kind"] for line in lines}
    assert "scheduler/interval.py" in out.read_text()
    assert "--force replaces it" in one_line(finished.execute(f"%muse export jsonl '{out}'"))
    finished.run(f"%muse export jsonl '{out}' --force --redacted")
    assert "scheduler/interval.py" not in out.read_text()
    assert [json.loads(line)["seq"] for line in out.read_text().splitlines()][: len(lines)] == [x["seq"] for x in lines]


def test_ask_in_the_cell_form_takes_a_question(finished: Kernel) -> None:
    """In the line form a final "?" is IPython's help."""
    cell = finished.run("%%muse ask\nWhat is a check?")
    assert cell.stdout
    assert cell.of_type("stream") == [{"name": "stdout", "text": cell.stdout}]


def test_a_landing_is_undone_by_its_number(repository: Path, start_kernel: StartKernel) -> None:
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace")
    before = (repository / "scheduler" / "interval.py").read_text()
    kernel.run(GOAL + " --wait")
    assert (repository / "scheduler" / "interval.py").read_text() != before
    shown = re.match(r"Ended:\n  (\d+)  make the check pass: landed on main: ", kernel.run("%muse merges").stdout)
    assert shown is not None
    kernel.run("%config IPCompleter.use_jedi = False")
    assert complete(kernel, "%muse undo ") == [shown[1]]
    undone = kernel.run(f"%muse undo {shown[1]}").stdout
    assert re.match(
        rf"Landing {shown[1]} is undone: main is at \w{{10}} now\. .* was updated to .*: 1 path\.\n$", undone
    )
    assert (repository / "scheduler" / "interval.py").read_text() == before
    assert f"{shown[1]}  make the check pass: undone: main went to " in kernel.run("%muse merges").stdout
    assert "it was undone already" in one_line(kernel.execute(f"%muse undo {shown[1]}"))


def test_timeline_alone_is_a_live_view(finished: Kernel) -> None:
    (bundle,) = finished.run("%muse timeline").displays
    assert {WIDGET, "text/html", "text/plain"} <= set(bundle)


def test_going_back_in_time(repository: Path, start_kernel: StartKernel) -> None:
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace")
    kernel.run(GOAL + " --wait")
    changed_at = kernel.run("%muse timeline --kind file.changed").stdout.split()[0]
    before = kernel.run("%muse timeline --since 0").stdout
    landed = (repository / "scheduler" / "interval.py").read_text()
    told = kernel.run(f"%muse fork {changed_at}").stdout
    fork = re.match(rf"Session (\S+) continues from event {changed_at} of session (\S+), with the files as they", told)
    assert fork is not None, told
    listed = kernel.run("%muse sessions").stdout.splitlines()
    assert listed[0].startswith(f"{fork[1]}  closed")
    assert listed[0].endswith(f"(fork of {fork[2]} at {changed_at})")
    assert kernel.run("%muse timeline --since 0").stdout == before
    told = kernel.run(f"%muse rewind {changed_at}").stdout
    assert re.match(
        rf"Back at event {changed_at}\. What came after it is kept in session {fork[2]}, with its files\.\n"
        rf"What has landed on your branch stays there: landing \d+\. `%muse resume {fork[2]}`, then `%muse undo \d+` ",
        told,
    ), told
    assert (repository / "scheduler" / "interval.py").read_text() == landed
    assert re.search(
        rf"rewound to event {changed_at} of session {fork[2]}", kernel.run("%muse timeline --kind session").stdout
    )
    assert re.search(rf"(?m)^of this before the fork, and spent by session {fork[2]}: ", _cost_text(kernel))
    assert "the chain is whole" in kernel.run("%muse verify").stdout
    assert re.search(rf"(?m)^{fork[2]} .*\(rewound, goes on in \S+\)$", kernel.run("%muse sessions").stdout)
    assert "\n  paused: the session was forked\n" in kernel.run("%goal").stdout


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("%muse", "needs one of: ask, agents"),
        ("%muse frobnicate", "Not 'frobnicate'"),
        ("%muse agents now", "%muse agents takes nothing more"),
        ("%muse ask", "Give the text"),
        ("%muse show", "number of an event"),
        ("%muse show ²", "number of an event"),
        ("%muse show 99999", "There is no event 99999"),
        ("%muse show 0", "There is no event 0"),
        ("%muse search", "Give the text to search for"),
        ("%muse search --limit many x", "--limit N before the text"),
        ("%muse search --limit 0 x", "from 1 on"),
        ("%muse diff the last one", "12..40, 12.. or ..40"),
        ("%muse diff 9..3", "Event 9 comes after event 3"),
        ("%muse diff 3..99999", "There is no event 99999"),
        ("%muse sessions here", "--workspace [DIR]"),
        ("%muse undo", "number of a landing, which `%muse merges` shows"),
        ("%muse undo it", "number of a landing, which `%muse merges` shows"),
        ("%muse undo 99999", "There is no landing 99999 in this session"),
        ("%muse export", "takes FORMAT PATH [--redacted] [--force]; formats: jsonl, atif, chrome, otel, html"),
        ("%muse export pdf out.pdf", "no format 'pdf'"),
        ("%muse export html out.html --public", "takes FORMAT PATH"),
        ("%muse export html 'out.html", "close the quotation"),
        ("%muse export html nowhere/out.html", "There is no folder nowhere"),
        ("%muse fork", "number of an event, which `%muse timeline` shows"),
        ("%muse fork here", "number of an event, which `%muse timeline` shows"),
        ("%muse fork 99999", "There is no event 99999"),
        ("%muse rewind", "number of an event, which `%muse timeline` shows"),
        ("%muse rewind 99999", "There is no event 99999"),
        ("%muse merges all", "%muse merges takes nothing more"),
        ("%muse timeline --colour red", "--agent A, --kind K and --since SEQ"),
        ("%muse timeline --since", "--agent A, --kind K and --since SEQ"),
        ("%muse timeline --since soon", "number of an event"),
        ("%muse timeline it's", "--agent A, --kind K and --since SEQ"),
        ("%muse claims all", "takes nothing, `--why N` or `retract N [WHY]`"),
        ("%muse claims --why 1", "There is no claim 1"),
        ("%muse claims retract 1 it is wrong", "There is no claim 1"),
        ("%muse steer nobody hurry", "no agent 'nobody'"),
        ("%muse steer lead", "Give the text"),
        ("%muse stop nobody", "no running agent 'nobody'"),
        ("%muse stop", "ended already: met"),
        ("%muse resume nonsense", "no session 'nonsense'"),
        ("%goal --fast", "unrecognized arguments: --fast"),
        ("%goal x --tokens many", "invalid int value: 'many'"),
        ("%goal 'make the check pass", "No closing quotation"),
        ("%goal x --verify no-such-program", "no 'no-such-program'"),
        ("%goal x --verify true --budget lots", "Cannot read 'lots' as money"),
        ("%goal stop", "ended already: met"),
        ("%goal pause", "not running: it is met"),
        ("%goal resume", "is met"),
        ("%goal pause it", "%goal pause takes nothing more"),
        ("%goal steer", "Give the text"),
        ("%goal edit", "is met"),
        ("%goal edit more --tokens 5", "is met"),
        ("%goal edit --workers 2", "takes a text, limits, and what decides the goal"),
        ("%goal --tokens 5", "`%goal edit` changes the goal that there is"),
        ("%goal stop --wait", "%goal stop takes nothing more"),
        ("%goal clear it", "%goal clear takes nothing more"),
        ("%%goal more words\ntext", "first line takes options only"),
        ("%approve", "No approval is pending"),
        ("%approve 3", "Approval 3 is not pending any more"),
        ("%approve three", "invalid int value: 'three'"),
        ("%deny it's wrong", "No approval is pending"),
        ("%deny --later", "unrecognized arguments: --later"),
    ],
)
def test_bad_input_gets_one_clear_line(finished: Kernel, code: str, says: str) -> None:
    assert says in one_line(finished.execute(code))


def test_a_verify_command_that_is_green_already_blocks_the_goal(finished: Kernel) -> None:
    cell = finished.run(f'h = %goal again --verify "{CHECK}" --wait')
    assert "already green" in cell.stdout
    assert finished.run("h.status").result == "'blocked'"


def test_texts_that_a_notebook_keeps_do_not_differ_from_run_to_run(finished: Kernel) -> None:
    launch = finished.cells[1]
    texts = [bundle["text/plain"] for bundle in launch.displays]
    texts += [finished.run(code).result or "" for code in ("g", "g.session", "g.status")]
    assert launch.result is not None
    texts.append(launch.result)
    for text in texts:
        assert not re.search(r"0x[0-9a-f]+|\d\d:\d\d|\d{8}-\d{6}|USD|\$|/tmp|[0-9a-f]{10}", text), text


# --- goals in the background ---------------------------------------------------------------------------


def test_a_goal_runs_beside_other_cells(tmp_path: Path, model: ScriptedModel, start_kernel: StartKernel) -> None:
    model.go.clear()
    kernel = start_kernel()
    launch = kernel.run("g = " + GOAL)
    *views, beside = launch.displays
    for bundle in views:
        assert set(bundle) == {WIDGET, "text/html", "text/plain"}
    assert [bundle["text/plain"].split("(")[0] for bundle in views] == ["Timeline", "Approvals"]
    assert beside == {"text/html": '<div class="muse-kept"></div>', "text/plain": ""}
    model.wait_for(1)
    assert kernel.run("sum(range(10))").result == "45"
    assert kernel.run("g").result == "Goal('make the check pass', status='running')"
    assert "TimeoutError" in str(kernel.execute("g.wait(0.05)").error)
    assert "A goal is running with the lead" in one_line(kernel.execute("%muse ask now"))
    assert "this one is queued, number 1 in the queue" in kernel.run("q = " + GOAL).stdout
    assert "\n1. " in kernel.run("%goal").stdout
    assert kernel.run("q.clear()\nq").result == "Goal('make the check pass', status='cleared')"
    assert "  running" in kernel.run("%goal").stdout
    kernel.run("%goal steer don't touch --the tests")
    kernel.run("%muse steer lead be quick")
    kernel.run("%goal pause")
    model.go.set()
    assert kernel.run("g.wait(60).status").result == "'paused'"
    kernel.run("%goal resume")
    asked = wait_for_kind(tmp_path / "home", "approval.requested")
    assert kernel.run("%approve").stdout == f"Approved {asked['seq']}.\n"
    assert kernel.run("r = await g; r.met, r is not g.result, r == g.result").result == "(True, True, True)"
    said = [item for body in model.bodies()[1:2] for item in body["input"] if item.get("role") == "user"]
    assert [item["content"][0]["text"] for item in said[-2:]] == ["don't touch --the tests", "be quick"]
    assert "ended already: met" in one_line(kernel.execute("%goal stop"))
    # The views were brought up to date at the pause, and again at the end.
    kernel.wait_until(lambda: len(kernel.updates) >= 6, 30, "the outputs were not updated")
    paused, _, _, met, _, _ = (update["data"]["text/html"] for update in kernel.updates)
    assert "paused" in paused
    assert "met" in met


def test_what_is_stored_at_the_end_is_the_final_summary(model: ScriptedModel, start_kernel: StartKernel) -> None:
    """The widget of a dead kernel shows nothing; the text and HTML beside it are what a reader finds."""
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace")
    launch = kernel.run("g = " + GOAL)
    kernel.run("await g")
    kernel.wait_until(lambda: len(kernel.updates) >= 3, 30, "the outputs were not updated")
    events = int(kernel.run("next(e.seq for e in g.session.events() if e.kind == 'goal.met')").result or 0)
    shown = {content["transient"]["display_id"]: content for content in launch.of_type("display_data")}
    timeline, approvals, beside = kernel.updates
    assert {update["transient"]["display_id"] for update in kernel.updates} == set(shown)
    # A front end without the widget shows this in its place.
    assert beside["data"]["text/plain"] == f"Timeline(events={events})\nApprovals(pending=0)"
    assert timeline["data"]["text/html"] in beside["data"]["text/html"]
    assert timeline["data"]["text/plain"] == f"Timeline(events={events})"
    assert "met" in timeline["data"]["text/html"]
    assert approvals["data"]["text/plain"] == "Approvals(pending=0)"
    assert timeline["data"][WIDGET] == shown[timeline["transient"]["display_id"]]["data"][WIDGET]


def test_output_of_the_work_lands_in_no_other_cell(model: ScriptedModel, start_kernel: StartKernel) -> None:
    model.go.clear()
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace")
    kernel.run("g = " + GOAL)
    model.wait_for(1)
    busy = kernel.send(
        "import time\n"
        "while g.status == 'running' or time.monotonic() < ended + 0.3:\n"
        "    if g.status == 'running': ended = time.monotonic()\n"
        "    print('mine'); time.sleep(0.05)\n"
    )
    model.go.set()
    kernel.finish(busy)
    assert set(busy.stdout.split()) == {"mine"}
    allowed = {"status", "execute_input", "stream", "comm_msg"}
    if kernel.run("import ipykernel; ipykernel.version_info[0]").result == "6":
        # There a message names the cell that runs, whoever sends it. An update goes to the output with its display id.
        allowed.add("update_display_data")
    assert {m["header"]["msg_type"] for m in busy.messages} <= allowed
    assert busy.stderr == ""
    assert kernel.run("(await g).met").result == "True"


def test_user_code_does_not_break_a_running_goal(
    tmp_path: Path, model: ScriptedModel, start_kernel: StartKernel
) -> None:
    """Folder removed, environment emptied, signal handler and loop policy set, a fork, the GIL held."""
    model.go.clear()
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace")
    kernel.run("g = " + GOAL)
    model.wait_for(1)
    kernel.run(
        "import os, tempfile, signal, asyncio\n"
        "gone = tempfile.mkdtemp(); os.chdir(gone); os.rmdir(gone)\n"
        "os.environ.clear(); os.environ['GIT_DIR'] = '/nowhere'\n"
        "signal.signal(signal.SIGCHLD, lambda *_: None)\n"
        "asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    model.go.set()
    kernel.run("import ctypes; ctypes.PyDLL(None).usleep(8_000_000)")
    assert kernel.run("r = g.wait(60); r.status, r.why").result == "('met', '')"
    kernel.run("%muse close")
    assert "working directory" in one_line(kernel.execute("%muse ask why"))


def test_a_reload_of_the_extension_pauses_the_goal_and_it_goes_on_when_it_is_resumed(
    tmp_path: Path, model: ScriptedModel, start_kernel: StartKernel
) -> None:
    model.go.clear()
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace")
    kernel.run("g = " + GOAL)
    model.wait_for(1)
    assert kernel.execute("%reload_ext musecode_jupyter").error is None
    model.go.set()
    assert "goes on: make the check pass" in kernel.run("%muse resume").stdout
    wait_for_kind(tmp_path / "home", "goal.met")
    assert len(sessions(tmp_path / "home")) == 1


# --- waiting and interrupting --------------------------------------------------------------------------


def test_interrupting_a_cell_that_waits_ends_the_waiting_only(
    tmp_path: Path, model: ScriptedModel, start_kernel: StartKernel
) -> None:
    flag = tmp_path / "flag"
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace", MUSECODE_SANDBOX="plain")
    # A process of the harness runs while the cells are interrupted: the signal must not reach it.
    check = f"until test -e {flag}; do sleep 0.02; done; {CHECK}"
    waiting = kernel.send(f'%goal "make the check pass" --verify "{check}" --wait')
    wait_for_kind(tmp_path / "home", "tool.started")
    kernel.interrupt()
    assert kernel.finish(waiting).error == (
        "KeyboardInterrupt: the wait was interrupted; the goal goes on (%goal shows it)"
    )
    assert kernel.run("%muse stop").stdout == "Stopped; what was done so far is kept.\n"
    kernel.run(f'g = %goal "make the check pass" --verify "{check}"')
    wait_for_kind(tmp_path / "home", "tool.started", count=2)
    for code in ("print('waits', flush=True); g.wait()", "print('waits', flush=True); await g"):
        waiting = kernel.send(code)
        kernel.wait_until(lambda cell=waiting: cell.stdout, 30, "the cell did not begin")
        kernel.interrupt()
        error = kernel.finish(waiting).error
        assert error is not None
        assert error.startswith(("KeyboardInterrupt", "CancelledError")), error
        assert kernel.run("g.status").result == "'running'"
    flag.touch()
    assert kernel.run("(await g).met").result == "True"


def test_stop_keeps_what_was_done_and_the_goal_can_go_on(
    tmp_path: Path, model: ScriptedModel, start_kernel: StartKernel
) -> None:
    model.go.clear()
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace")
    kernel.run("g = " + GOAL)
    model.wait_for(1)
    kernel.run("g.stop()")
    assert kernel.run("g.result.status, g.result.why").result == "('stopped', 'stopped by the user')"
    model.go.set()
    kernel.run("g.resume()")
    assert kernel.run("g.wait(60).met").result == "True"


# --- approvals -----------------------------------------------------------------------------------------


def test_a_command_asks_and_runs_once_approved(tmp_path: Path, model: ScriptedModel, start_kernel: StartKernel) -> None:
    home, trace = tmp_path / "home", tmp_path / "trace"
    model.command = f"echo ran >> {trace}"
    kernel = start_kernel(MUSECODE_SANDBOX="plain")
    kernel.run("g = " + GOAL)
    asked = wait_for_kind(home, "approval.requested")
    wrong = one_line(kernel.execute("%approve 1"))
    assert wrong == f"UsageError: Approval 1 is not pending any more (pending: {asked['seq']})."
    assert not trace.exists()
    assert kernel.run(f"%approve {asked['seq']}").stdout == f"Approved {asked['seq']}.\n"
    landing = wait_for_kind(home, "approval.requested", count=2)
    assert trace.read_text() == "ran\n"
    assert kernel.run("%deny it's too early").stdout == f"Denied {landing['seq']}.\n"
    assert kernel.run("r = g.wait(60); r.status").result == "'blocked'"
    assert "it's too early" in kernel.run("print(r.why)").stdout
    assert kernel.run("%goal resume").stdout == "The goal goes on.\n"
    again = wait_for_kind(home, "approval.requested", count=3)
    assert kernel.run(f"%approve {again['seq']} --session").stdout == f"Approved {again['seq']}.\n"
    assert kernel.run("(await g).met").result == "True"
    assert kernel.run("[held.name for held in g.session.rules.held.values()]").result == "['land on main']"
    assert trace.read_text() == "ran\n"


def test_a_command_that_was_denied_does_not_run_and_the_agent_is_told_why(
    tmp_path: Path, model: ScriptedModel, start_kernel: StartKernel
) -> None:
    trace = tmp_path / "trace"
    model.command = f"echo ran >> {trace}"
    kernel = start_kernel(MUSECODE_SANDBOX="plain")
    kernel.run("g = " + GOAL)
    asked = wait_for_kind(tmp_path / "home", "approval.requested")
    kernel.run(f"%deny {asked['seq']} not on this machine")
    wait_for_kind(tmp_path / "home", "approval.requested", count=2)
    kernel.run("%approve")
    assert kernel.run("(await g).met").result == "True"
    assert not trace.exists()
    outputs = [item["output"] for item in model.bodies()[-1]["input"] if item["type"] == "function_call_output"]
    assert "not on this machine" in outputs[0]


# --- more for a goal, and goals that are forgotten -------------------------------------------------------


def test_a_goal_that_a_budget_stopped_says_how_to_give_it_more_and_goes_on(
    model: ScriptedModel, start_kernel: StartKernel
) -> None:
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace")
    told = kernel.run(f"g = {GOAL} --steps 1 --wait").stdout
    assert "1 of 1 model calls are used" in told
    first, second = re.findall(r"`(%goal [^`]+)`", told)
    assert (first, second) == ("%goal edit --steps 2", "%goal resume")
    assert f"`{first}`" in kernel.run("%goal").stdout
    assert "--steps 1 is used up already (1 of 1 model calls)" in one_line(kernel.execute("%goal edit --steps 1"))
    assert "Give a text, or a new limit" in one_line(kernel.execute("%goal edit"))
    assert kernel.run("%goal edit --steps 50").stdout == "The goal is changed. `%goal resume` goes on with it.\n"
    assert "gives it more" not in kernel.run("%goal").stdout
    kernel.run(second)
    assert kernel.run("g.wait(60).met").result == "True"


def test_a_running_goal_takes_another_text_and_other_limits(model: ScriptedModel, start_kernel: StartKernel) -> None:
    model.go.clear()
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace")
    kernel.run("g = " + GOAL)
    model.wait_for(1)
    assert kernel.run("%goal edit make the check pass, soon --budget 5usd").stdout == "The goal is changed.\n"
    kernel.run("%%goal edit\nIsn't it?\nMake the check pass.")
    assert kernel.run("print(g.session.newest_goal().text)").stdout == "Isn't it?\nMake the check pass.\n"
    model.go.set()
    assert kernel.run("g.wait(60).met").result == "True"
    said = [item["content"][0]["text"] for item in model.bodies()[1]["input"] if item.get("role") == "user"]
    assert said[-2:] == [
        "The goal is now: make the check pass, soon",
        "The goal is now: Isn't it?\nMake the check pass.",
    ]


def test_a_goal_that_was_cleared_is_gone(tmp_path: Path, model: ScriptedModel, start_kernel: StartKernel) -> None:
    model.go.clear()
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace")
    kernel.run("g = " + GOAL)
    model.wait_for(1)
    assert "is running: end it with `%goal stop`" in one_line(kernel.execute("%goal clear"))
    kernel.run("%goal stop")
    branch = kernel.run("print(f'musecode/{g.session.id}/{g.number}')").stdout.strip()
    assert kernel.run("%goal clear").stdout == f"The goal is forgotten. Its work is kept on branch {branch}.\n"
    assert kernel.run("%goal").stdout == f"{NO_GOAL}\n"
    for word in ("resume", "stop", "clear", "edit --steps 9", "steer on", "pause"):
        assert one_line(kernel.execute(f"%goal {word}")) == f"UsageError: {NO_GOAL}"
    assert "was cleared" in str(kernel.execute("g.resume()").error)
    kernel.run("%muse close")
    resumed = kernel.run("%muse resume").stdout
    assert re.fullmatch(r"Session \S+ goes on: \d+ events\.\n", resumed)
    assert kernel.run("%goal").stdout == f"{NO_GOAL}\n"


# --- a fresh kernel -------------------------------------------------------------------------------------


def test_what_finds_nothing_in_a_fresh_kernel_says_so_and_opens_no_session(
    tmp_path: Path, repository: Path, start_kernel: StartKernel
) -> None:
    kernel = start_kernel()
    for line in ("timeline", "show 1", "diff", "merges", "claims", "cost", "agents", "verify", "export html x"):
        assert kernel.run(f"%muse {line}").stdout == f"{NO_SESSION}\n"
    assert kernel.run("%goal").stdout == f"{NO_GOAL}\n"
    for word in ("pause", "resume", "stop", "clear", "edit --steps 9", "steer on"):
        assert one_line(kernel.execute(f"%goal {word}")) == f"UsageError: {NO_GOAL}"
    for line in (
        "%approve",
        "%deny",
        "%muse stop",
        "%muse steer lead on",
        "%muse undo 12",
        "%muse fork 1",
        "%muse rewind 1",
    ):
        assert one_line(kernel.execute(line)) == f"UsageError: {NO_SESSION}"
    assert "Give the text" in one_line(kernel.execute("%muse ask"))
    # A goal that cannot start leaves nothing either.
    for line, says in [
        ("%goal x --verify no-such-program", "no 'no-such-program'"),
        ("%goal x --verify true --steps 0", "--steps 0 is no limit"),
        ('%goal "" --verify true', "What is the goal?"),
    ]:
        assert says in one_line(kernel.execute(line))
    # Where nobody sits in front, nobody could confirm what the lead would propose.
    assert "--verify" in one_line(kernel.execute("%goal x", allow_stdin=False))
    subprocess.run(["git", "checkout", "--quiet", "--detach"], cwd=repository, check=True)
    assert "git switch -c NAME" in one_line(kernel.execute(GOAL))
    assert not (tmp_path / "home").exists()


def test_where_the_checks_run_is_said_in_a_subfolder(
    repository: Path, model: ScriptedModel, start_kernel: StartKernel
) -> None:
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace")
    kernel.run("%cd -q scheduler")
    told = kernel.run(GOAL + " --wait").stdout.splitlines()
    assert told == [
        f"Work and verify commands run in {repository}, the root of the repository.",
        "Goal met: make the check pass",
    ]


def test_whether_somebody_can_be_asked_is_decided_by_each_magic(
    tmp_path: Path, model: ScriptedModel, start_kernel: StartKernel
) -> None:
    """The first magic of a kernel decided it for all: a headless cell at the top made the rest deny everything."""
    kernel = start_kernel()
    first = kernel.run("g = " + GOAL, allow_stdin=False)
    assert first.stdout.startswith("Goal not met (blocked): Verified, but landing on main was denied")
    assert WIDGET not in first.displays[0]
    kernel.run("%goal resume")
    wait_for_kind(tmp_path / "home", "approval.requested")
    # Looking on from a headless cell changes nothing for the goal that runs.
    kernel.run("%muse agents", allow_stdin=False)
    kernel.run("%approve")
    assert kernel.run("g.wait(60).met").result == "True"
    again = kernel.run("%muse timeline").displays
    assert WIDGET in again[0]
    assert kernel.run("%muse timeline", allow_stdin=False).displays == []
    mode = wait_for_kind(tmp_path / "home", "session.mode")
    assert mode["data"] == {"approvals": "ask", "interactive": True}


# --- headless, without bundles, two kernels ------------------------------------------------------------


def test_headless_cells_wait_and_keep_a_static_summary(repository: Path, start_kernel: StartKernel) -> None:
    kernel = start_kernel()
    cell = kernel.run("g = " + GOAL, allow_stdin=False)
    assert cell.stdout.startswith("Goal not met (blocked): Verified, but landing on main was denied")
    kernel.run("%muse close", allow_stdin=False)
    kernel.run("import os; os.environ['MUSECODE_APPROVALS'] = 'allow-workspace'", allow_stdin=False)
    cell = kernel.run("g = " + GOAL, allow_stdin=False)
    assert cell.stdout == "Goal met: make the check pass\n"
    (bundle,) = cell.displays
    assert set(bundle) == {"text/html", "text/plain"}
    assert re.fullmatch(r"Timeline\(events=\d+\)", bundle["text/plain"])
    assert "met" in bundle["text/html"]
    assert kernel.updates == []
    assert "self.start < other.end" in (repository / "scheduler/interval.py").read_text()


def test_without_the_bundles_the_view_says_how_to_build_them(tmp_path: Path, start_kernel: StartKernel) -> None:
    package = Path(musecode_jupyter.__file__).parent
    shutil.copytree(package, tmp_path / "source" / package.name, ignore=shutil.ignore_patterns("static", "__pycache__"))
    kernel = start_kernel(PYTHONPATH=str(tmp_path / "source"), MUSECODE_APPROVALS="allow-workspace")
    assert kernel.run("import musecode_jupyter as m; print(m.__file__)").stdout.startswith(str(tmp_path))
    launch = kernel.run("g = " + GOAL)
    for bundle in launch.displays:
        assert set(bundle) == {"text/html", "text/plain"}
        assert "make frontend" in bundle["text/html"]
    assert kernel.run("(await g).met").result == "True"


def test_two_notebooks_work_on_one_repository(
    tmp_path: Path, repository: Path, model: ScriptedModel, start_kernel: StartKernel
) -> None:
    model.go.clear()
    one = start_kernel(MUSECODE_APPROVALS="allow-workspace")
    one.run("g = " + GOAL)
    model.wait_for(1)
    two = start_kernel(MUSECODE_APPROVALS="allow-workspace")
    # The first one is alive: nothing is offered.
    assert two.run("%muse ask why").stdout == f"{ScriptedModel.ANSWER}\n"
    first, second = sessions(tmp_path / "home")
    # What is open there cannot be resumed here, and asking for it leaves the own session open.
    assert "open" in one_line(two.execute(f"%muse resume {first.name}"))
    assert sessions(tmp_path / "home") == [first, second]
    two.run("g = " + GOAL)
    model.wait_for(3)
    model.go.set()
    for kernel in (one, two):
        assert kernel.run("r = g.wait(90); r.status, r.why").result == "('met', '')"
    assert "self.start < other.end" in (repository / "scheduler/interval.py").read_text()
    # The older one dies; the newer one, which is alive, must not hide that.
    one.kill9()
    assert f"Session {first.name} of this workspace ended" in start_kernel().run("%muse agents").stdout


def test_settings_of_ipython_are_overridden_by_the_environment(tmp_path: Path, start_kernel: StartKernel) -> None:
    kernel = start_kernel()
    kernel.run("get_ipython().config.MuseCode.model = 'muse-spark-1.2'")
    kernel.run("%muse ask why")
    assert "muse-spark-1.3" in kernel.run("%muse agents").stdout
    kernel.run("%muse close")
    kernel.run("%reload_ext musecode_jupyter")
    kernel.run("import os; del os.environ['MUSECODE_MODEL']")
    kernel.run("%muse ask why")
    assert "muse-spark-1.2" in kernel.run("%muse agents").stdout


def _cost_text(kernel: Kernel) -> str:
    """The costs as text; the same is shown as a table, and both say the same every time."""
    (shown,) = kernel.run("%muse cost").displays
    (again,) = kernel.run("%muse cost").displays
    assert shown == again
    assert set(shown) == {"text/plain", "text/html"}
    total = re.search(r"total: ~?([\d.]+) of", shown["text/plain"])
    assert total is not None
    assert f"<td>total</td><td>{total[1]}</td>" in shown["text/html"]
    return str(shown["text/plain"])
