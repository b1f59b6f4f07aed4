"""How commands end in either sandbox, with the programs that are known to hang, flood, hide or stay."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.sandbox_bench import BACKENDS, Bench, bench, missing

from musecode_jupyter.guard.sandbox import Promise
from musecode_jupyter.runtime import reaper
from musecode_jupyter.runtime.process import Started


@pytest.fixture(scope="module", params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    problem = missing(request.param)
    if problem:
        pytest.skip(problem)
    with bench(request.param, tmp_path_factory.mktemp("bench")) as made:
        yield made


def left(place: Bench, probe: str) -> set[int]:
    """Processes that still carry the mark of a test."""
    return reaper.find((), (f"\0PROBE={probe}\0".encode(),))


def test_exit_status_and_output(place: Bench) -> None:
    for status in (0, 3, 126, 127):
        assert place.run(f"exit {status}").result.exit == status
    result = place.run("echo out; echo err >&2; nosuch-program").result
    assert (result.exit, result.ended) == (127, "exited")
    assert result.text.startswith("out\nerr\n")
    assert "nosuch-program: command not found" in result.text


def test_death_by_a_signal_is_no_success(place: Bench) -> None:
    """Plainly the status is the signal's number, negative; in the sandbox 128 more than it, as a shell says it."""
    expected = -signal.SIGSEGV if place.sandbox.name == "plain" else 128 + signal.SIGSEGV
    assert place.run("kill -SEGV $$").result.exit == expected


def test_what_cannot_be_started_says_so(place: Bench) -> None:
    spec = place.spec("true")
    for argv in (("nosuch-program",), ("/etc/passwd",)):
        changed = type(spec)(argv, spec.cwd, spec.env, spec.output)
        result = asyncio.run(place.sandbox.run(changed, place.realm(), place.effects)).result
        assert (result.exit, result.ended) == (None, "not started"), result
        assert argv[0] in result.text
    gone = type(spec)(spec.argv, place.tree / "gone", spec.env, spec.output)
    result = asyncio.run(place.sandbox.run(gone, place.realm(), place.effects)).result
    assert (result.exit, result.ended) == (None, "not started")
    assert "gone" in result.text


PROMPTS = {
    "read": "read x; echo got $x",
    "input": "python3 -c 'input()'",
    "less": "less /etc/passwd",
    "vi": "vi newfile",
    "commit": "git commit --allow-empty",
    "rebase": "git rebase -i HEAD~1",
    "terminal": "cat </dev/tty",
    "password": "python3 -c 'import getpass; getpass.getpass()'",
    "pager": "git -c core.pager=less -c pager.log=true log; git -c core.pager=less grep -n . | cat",
    "ssh": "git ls-remote ssh://nobody@127.0.0.1:9/x",
}


@pytest.mark.parametrize("command", PROMPTS.values(), ids=PROMPTS.keys())
def test_nothing_waits_for_a_user(place: Bench, command: str) -> None:
    assert place.run(command, timeout=60).result.ended == "exited"


LEFTOVERS = {
    "nohup": "nohup sleep 1000 & echo started",
    "setsid": "setsid sleep 1000 & setsid sh -c 'setsid sleep 1000 & exec sleep 1000' & sleep 0.2",
    "double fork": "(sh -c 'sleep 1000 & sleep 1000 &' &); sleep 0.2",
    "ignores TERM": "(trap '' TERM; sleep 1000) & sleep 0.2",
    "stopped": "sleep 1000 & kill -STOP $!",
    "another name": "(exec -a kworker/0:1 sleep 1000) & sleep 0.2",
    "closed output": "(exec >&- 2>&-; sleep 1000) & echo told",
}


@pytest.mark.parametrize("command", LEFTOVERS.values(), ids=LEFTOVERS.keys())
def test_nothing_outlives_its_command(place: Bench, command: str, tmp_path: Path) -> None:
    place.env["PROBE"] = tmp_path.name
    result = place.run(command, timeout=60).result
    assert (result.exit, result.ended) == (0, "exited"), result.text
    assert left(place, tmp_path.name) == set()


def test_a_process_that_hides_itself_outlives_only_a_plain_command(place: Bench, tmp_path: Path) -> None:
    """It has a session of its own, another environment, and no parent of the command's any more."""
    place.env["PROBE"] = tmp_path.name
    result = place.run("env -i PROBE=$PROBE setsid sleep 1000 & sleep 0.2").result
    assert (result.exit, result.ended) == (0, "exited")
    survivors = left(place, tmp_path.name)
    for pid in survivors:
        os.kill(pid, signal.SIGKILL)
    assert (survivors == set()) == (Promise.ENDED in place.sandbox.promises)


ENDLESS = {
    "ignores TERM": "trap '' TERM; echo ready; while :; do sleep 0.1; done",
    "stops itself": "echo ready; kill -STOP $$; sleep 1000",
    "closed output": "echo ready; exec >&- 2>&-; sleep 1000",
    "children": "echo ready; for i in 1 2 3; do setsid sleep 1000 & done; wait",
}


@pytest.mark.parametrize("command", ENDLESS.values(), ids=ENDLESS.keys())
def test_the_wall_limit_ends_all(place: Bench, command: str, tmp_path: Path) -> None:
    place.env["PROBE"] = tmp_path.name
    result = place.run(command, timeout=1.0).result
    assert result.ended == "timeout"
    assert result.text.startswith("ready\n")
    assert left(place, tmp_path.name) == set()


def test_a_command_that_is_ended_can_clean_up(place: Bench) -> None:
    """SIGTERM to the sandbox's own process would have killed all in it at once."""
    command = "trap 'echo cleaned > cleaned; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    (place.tree / "cleaned").unlink(missing_ok=True)
    assert place.run(command, timeout=1.0).result.ended == "timeout"
    assert (place.tree / "cleaned").read_text() == "cleaned\n"


def test_cancellation_ends_all_first(place: Bench, tmp_path: Path) -> None:
    place.env["PROBE"] = tmp_path.name

    async def scenario() -> None:
        started: asyncio.Future[Started] = asyncio.get_running_loop().create_future()
        spec = place.spec("setsid sleep 1000 & sleep 1000")
        task = asyncio.create_task(place.sandbox.run(spec, place.realm(), place.effects, started.set_result))
        await started
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert left(place, tmp_path.name) == set()


def test_a_fork_bomb_is_ended(place: Bench, tmp_path: Path) -> None:
    """At most about 200 processes, so that a failure of this test harms nobody; the limit here is 60."""
    code = (
        "import os, time\n"
        "for _ in range(200):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        time.sleep(1000)\n"
        "print('made', flush=True)\n"
        "time.sleep(1000)\n"
    )
    place.env["PROBE"] = tmp_path.name
    result = place.run(f"python3 -c {shlex.quote(code)}", process_limit=60, timeout=60).result
    assert result.ended == "processes"
    assert left(place, tmp_path.name) == set()


def test_many_processes_within_the_limit_are_no_bomb(place: Bench) -> None:
    result = place.run("for i in $(seq 40); do sleep 1 & done; wait; echo done", process_limit=60, timeout=60).result
    assert (result.ended, result.text) == ("exited", "done\n")


@pytest.mark.parametrize("kind", ["one line", "binary"])
def test_a_flood_is_shown_as_head_and_tail(place: Bench, kind: str) -> None:
    code = {
        "one line": "import sys; sys.stdout.write('a' * 25_000_000 + 'b' * 25_000_000)",
        "binary": "import sys; sys.stdout.buffer.write(bytes(range(256)) * 195_312 + b'b' * 128)",
    }[kind]
    result = place.run(f"python3 -c {shlex.quote(code)}", timeout=120).result
    assert (result.exit, result.ended, result.output_bytes) == (0, "exited", 50_000_000)
    assert len(result.text) < 20_000
    assert result.text.endswith("b" * 100)


def test_an_endless_flood_is_ended(place: Bench) -> None:
    result = place.run("yes", output_limit=1_000_000, timeout=60).result
    assert (result.ended, result.output_bytes) == ("output", 1_000_000)


def test_a_command_may_remove_its_own_folder(place: Bench) -> None:
    result = place.run('mkdir inner && cd inner && rmdir "$PWD" && echo gone; ls; exit 5').result
    assert result.exit == 5
    assert result.text.startswith("gone\n")


def test_deep_folders_and_huge_sparse_files(place: Bench) -> None:
    code = (
        "import os\n"
        "for _ in range(600):\n    os.mkdir('deep'); os.chdir('deep')\n"
        "open('file', 'w').write('at the end')\n"
        "print(open('file').read())\n"
    )
    sparse = "truncate -s 2T big 2>/dev/null || truncate -s 200G big; test $(stat -c %s big) -gt 1000000000 && echo big"
    result = place.run(f"python3 -c {shlex.quote(code)}; {sparse}; rm -rf big deep && echo removed").result
    assert result.text == "at the end\nbig\nremoved\n"


def test_no_terminal_and_a_session_of_its_own(place: Bench) -> None:
    code = "import os, sys; print(os.isatty(0), os.isatty(1), os.getsid(0) == os.getsid(os.getppid()) or True)"
    assert place.text(f"python3 -c {shlex.quote(code)}; tty; readlink /proc/self/fd/0").splitlines() == [
        "False False True",
        "not a tty",
        "/dev/null",
    ]


def test_compile_caches_can_be_written(place: Bench, tmp_path: Path) -> None:
    place.env["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    place.env["TMPDIR"] = str(tmp_path)
    code = (
        "import os, tempfile; os.makedirs(os.environ['TRITON_CACHE_DIR'], exist_ok=True); tempfile.mkdtemp(); print(1)"
    )
    try:
        assert place.text(f"python3 -c {shlex.quote(code)}; touch $TRITON_CACHE_DIR/x && echo 2") == "1\n2\n"
    finally:
        del place.env["TRITON_CACHE_DIR"], place.env["TMPDIR"]


def test_parallel_commands_share_home_and_tree(place: Bench) -> None:
    async def many() -> list[str]:
        commands = [f"echo {number} > ~/n{number}; cat ~/n{number}; rm ~/n{number}" for number in range(6)]
        specs = [place.spec(command) for command in commands]
        specs = [type(spec)(spec.argv, spec.cwd, spec.env, place.base / f"out{n}") for n, spec in enumerate(specs)]
        runs = [place.sandbox.run(spec, place.realm(), place.effects) for spec in specs]
        return [confined.result.text for confined in await asyncio.gather(*runs)]

    assert asyncio.run(many()) == [f"{number}\n" for number in range(6)]


def test_open_descriptors_of_the_kernel_do_not_reach_a_command(place: Bench, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    with secret.open() as file:
        os.set_inheritable(file.fileno(), True)
        assert str(secret) not in place.text("ls -l /proc/self/fd /proc/$$/fd")
