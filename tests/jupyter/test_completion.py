"""Completion and help of the magics, and that loading and unloading leave nothing behind, in real kernels."""

from __future__ import annotations

import pytest
from journal import wait_for_kind
from kernel import Kernel, StartKernel
from scripted import GOAL

from musecode_jupyter.jupyter.completion import (
    EXPORT_FORMATS,
    GOAL_WORDS,
    GRILL_OPTIONS,
    GRILL_WORDS,
    MUSE_WORDS,
    PLAN_WORDS,
    MuseMatcher,
)


def complete(kernel: Kernel, line: str) -> list[str]:
    """What the front end is offered at the end of `line`."""
    message = kernel.client.complete(line, len(line))
    while True:
        reply = kernel.client.get_shell_msg(timeout=30)
        if reply["parent_header"].get("msg_id") == message:
            content = reply["content"]
            start = content["cursor_start"]
            return [match for match in content["matches"] if match.startswith(line[start:])]


@pytest.fixture
def loaded(start_kernel: StartKernel) -> Kernel:
    kernel = start_kernel()
    # Reads all that is imported when it is used first, which takes long on a busy machine.
    kernel.run("%config IPCompleter.use_jedi = False")
    return kernel


def test_words_and_options_are_completed_before_anything_is_started(loaded: Kernel) -> None:
    assert sorted(complete(loaded, "%muse ")) == sorted(MUSE_WORDS)
    assert complete(loaded, "%muse ve") == ["verify"]
    assert complete(loaded, "%%muse a") == ["agents", "ask"] or complete(loaded, "%%muse a") == ["ask", "agents"]
    assert sorted(complete(loaded, "%goal ")) == sorted(GOAL_WORDS)
    assert sorted(complete(loaded, "%plan ")) == sorted(PLAN_WORDS)
    assert complete(loaded, "%plan text --v") == ["--verify"]
    assert complete(loaded, "g = %goal text --ver") == ["--verify"]
    assert "--hours" not in complete(loaded, "%goal --hours 3 --")
    assert complete(loaded, "%muse rules add s") == ["session"]
    assert sorted(complete(loaded, "%muse export ")) == sorted(EXPORT_FORMATS)
    assert complete(loaded, "%muse export html a.html --force --") == ["--redacted"]
    assert complete(loaded, "%muse timeline --kind goal.m") == ["goal.met"]
    assert complete(loaded, "%goal text --base d") == ["dirty"]
    assert sorted(complete(loaded, "%muse worktrees ")) == ["quarantine", "reclaim"]
    assert complete(loaded, "%muse run --k") == ["--keep"]
    assert set(complete(loaded, "%approve --")) == {"--session", "--workspace"}
    loaded.run("interesting_name = 1")
    assert complete(loaded, "%muse vars interest") == ["interesting_name"]
    assert complete(loaded, "interesting_n") == ["interesting_name"], "other completions are gone"
    started = (
        "import threading, sys; [t.name for t in threading.enumerate() if 'muse' in t.name], 'httpx' in sys.modules"
    )
    assert loaded.run(started).result == "([], False)"


def test_numbers_of_questions_and_ids_of_sessions_are_completed(loaded: Kernel, tmp_path: object) -> None:
    loaded.run("g = " + GOAL)
    asked = wait_for_kind(tmp_path / "home", "approval.requested")  # type: ignore[operator]
    assert str(asked["seq"]) in complete(loaded, "%approve ")
    assert str(asked["seq"]) in complete(loaded, "%deny ")
    assert complete(loaded, "%muse steer ") == ["lead"]
    assert {"on", "off"} < set(complete(loaded, "%muse cells "))
    loaded.run("%goal stop")
    name = loaded.run("print(g.session.id)").stdout.strip()
    loaded.run("%muse close")
    assert complete(loaded, "%muse resume ") == [name]


def test_the_words_are_those_that_there_are() -> None:
    from musecode_jupyter.jupyter.commands import COMMANDS
    from musecode_jupyter.jupyter.completion import BASES as COMPLETED
    from musecode_jupyter.jupyter.grill_words import OPTIONS as GRILL_COMMAND_OPTIONS
    from musecode_jupyter.jupyter.grill_words import WORDS as GRILL_COMMANDS
    from musecode_jupyter.jupyter.magics import GOAL_WORDS as GOAL_COMMANDS
    from musecode_jupyter.jupyter.magics import PLAN_WORDS as PLAN_COMMANDS
    from musecode_jupyter.session.export import FORMATS
    from musecode_jupyter.session.preflight import BASES

    assert set(MUSE_WORDS) == set(COMMANDS)
    assert COMPLETED == BASES
    assert EXPORT_FORMATS == FORMATS
    assert set(GOAL_COMMANDS) <= set(GOAL_WORDS)
    # `run` is a word that only says what runs a plan.
    assert {*PLAN_WORDS, "run"} == set(PLAN_COMMANDS)
    assert (GRILL_WORDS, GRILL_OPTIONS) == (GRILL_COMMANDS, GRILL_COMMAND_OPTIONS)
    assert MuseMatcher.match.matcher_api_version == 2


def test_help_names_every_word(loaded: Kernel) -> None:
    cell = loaded.run("%muse?")
    assert cell.reply is not None
    (page,) = cell.reply["content"]["payload"]
    text = page["data"]["text/plain"]
    for word in MUSE_WORDS:
        assert word in text, f"{word} is not in the help"


@pytest.mark.parametrize("rounds", [2])
def test_unloading_takes_back_handlers_hooks_matchers_and_comm_targets(loaded: Kernel, rounds: int) -> None:
    loaded.run("%unload_ext musecode_jupyter")
    loaded.run(
        "def found(patience=20):\n"
        "    import linecache, signal, sys, threading, time\n"
        "    from concurrent.futures import Future\n"
        "    shell = get_ipython()\n"
        "    for thread in threading.enumerate():\n"
        "        if thread.name.startswith('musecode'): thread.join(patience)\n"
        "    def on_sender():\n"
        "        counts, streams = Future(), (sys.stdout, sys.stderr)\n"
        "        sys.stdout.pub_thread.schedule(lambda: counts.set_result([len(each._hooks) for each in streams]))\n"
        "        return counts.result(20)\n"
        "    return {\n"
        "        'control': sorted(shell.kernel.control_handlers),\n"
        "        'shell': {k: str(v) for k, v in shell.kernel.shell_handlers.items()},\n"
        "        'events': {k: list(map(str, v)) for k, v in shell.events.callbacks.items()},\n"
        "        'matchers': list(map(str, shell.Completer.custom_matchers)),\n"
        "        'streams': on_sender(), 'displays': len(shell.display_pub._hooks),\n"
        "        'results': len(getattr(shell.displayhook, '_hooks', ())),\n"
        "        'targets': sorted(shell.kernel.comm_manager.targets),\n"
        "        'signal': str(signal.getsignal(signal.SIGINT)),\n"
        "        'threads': sorted(t.name for t in threading.enumerate() if 'muse' in t.name),\n"
        "        'sources': [name for name in linecache.cache if 'musecode ' in name],\n"
        "    }"
    )
    loaded.run("import ipywidgets")  # registers a comm target of its own when first used
    loaded.run("before = found()")
    for _ in range(rounds):
        loaded.run("%load_ext musecode_jupyter")
        loaded.run("%muse run 1 / 1")
        during = loaded.run("now = found(0); sorted(name for name in now if now[name] != before[name])").result
        assert during is not None
        for name in ("control", "shell", "events", "matchers", "streams", "displays", "threads", "sources"):
            assert f"'{name}'" in during
        assert loaded.execute("%unload_ext musecode_jupyter").shown == []
        assert loaded.run("now = found(); {n: (before[n], now[n]) for n in now if now[n] != before[n]}").result == "{}"
