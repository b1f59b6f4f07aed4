"""Approved code in real kernels: between cells and never amid one, its output and names apart, always endable."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel import Cell, Kernel, kernel_environment

# Submits code as an agent does: from another thread, while the kernel is free or busy.
HELPERS = """
import asyncio, threading, time
from musecode_jupyter.jupyter.user_code import CodeRequest, UserCode
user_code = UserCode(get_ipython())
user_code.attach()
states, results = [], []
def submit(code, **more):
    def work():
        future = user_code.submit(CodeRequest(code, **more), states.append)
        submitted.append(future)
        results.append(future.result(60))
    thread = threading.Thread(target=work)
    thread.start()
    return thread
submitted = []
def answer():
    "Waits with the main thread free: for cells that await it."
    async def wait():
        while not results:
            await asyncio.sleep(0.01)
        return results.pop(0)
    return wait()
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    folder = tmp_path_factory.mktemp("user-code")
    with Kernel(folder, kernel_environment("http://127.0.0.1:1/v1", folder / "home")) as kernel:
        kernel.run(HELPERS)
        yield kernel


@pytest.fixture
def fresh(kernel: Kernel) -> Kernel:
    kernel.run("states.clear(); results.clear(); submitted.clear()")
    return kernel


def wait_for_result(kernel: Kernel, timeout: float = 30.0) -> None:
    """Until the code that was submitted has ended; looks from one cell after another."""
    limit = time.monotonic() + timeout
    while kernel.run("len(results)").result == "0":
        assert time.monotonic() < limit, kernel.run("states, submitted").result


def ran(kernel: Kernel, code: str, **more: object) -> Cell:
    """Submit code while no cell blocks; the cell that prints its result."""
    kernel.run(f"t = submit({code!r}, **{more!r})")
    wait_for_result(kernel)
    return kernel.run("r = results.pop(0); print(r.ended); print(r.output, end='')")


def test_code_runs_in_a_copy_or_in_the_users_own_namespace(fresh: Kernel) -> None:
    fresh.run("x, items = 1, [1]")
    code = "x = x + 41\nitems.append(2)\nnew = x\nprint('seen', x)\nx"
    assert ran(fresh, code).stdout == "finished\nseen 42\n42\n"
    # Names stay apart, objects are shared.
    assert fresh.run("x, items, 'new' in globals()").result == "(1, [1, 2], False)"
    assert ran(fresh, "new = x + 1\nother = 5", keep=("new", "missing")).stdout == (
        "finished\n[missing was not kept: the code did not define it]\n"
    )
    assert fresh.run("new, 'other' in globals(), r.kept").result == "(2, False, ('new',))"
    assert ran(fresh, "x = 7", own=True).stdout == "finished\n"
    assert fresh.run("x").result == "7"


def test_history_and_the_last_results_of_the_user_stay_as_they_are(fresh: Kernel) -> None:
    fresh.run("'mine'")
    fresh.run("before = len(In), _, get_ipython().execution_count")
    fresh.run("t = submit('99', own=True)")
    wait_for_result(fresh)
    seen = fresh.run("_ if False else (before[1], 99 in Out.values(), any('99' == text for text in In))").result
    assert seen == "('mine', False, False)"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f():\n    raise KeyError('gone')\nf()", "line 2, in f\n    raise KeyError('gone')\nKeyError: 'gone'"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("if True", "SyntaxError"),
        ("await something()", "SyntaxError: 'await' outside function"),
        ("%nosuchmagic", "UsageError: Line magic function"),
    ],
)
def test_errors_are_answers_with_a_traceback(fresh: Kernel, code: str, says: str) -> None:
    cell = ran(fresh, code)
    assert says in cell.stdout
    assert cell.stdout.startswith("failed\n")
    assert "user_code.py" not in cell.stdout
    assert "captured.py" not in cell.stdout


def test_output_goes_to_the_answer_and_into_no_cell(fresh: Kernel) -> None:
    code = (
        "import sys, threading, os\n"
        "from IPython.display import display, HTML\n"
        "print('out'); print('err', file=sys.stderr); display(HTML('<b>rich</b>'))\n"
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
        "os.write(1, b'descriptor')\n"
        "None"
    )
    cells = len(fresh.cells)
    shown = ran(fresh, code).stdout
    for text in ("out\n", "err\n", "HTML object", "thread\n"):
        assert text in shown
    for cell in fresh.cells[cells:-1]:
        assert cell.shown == [], "the code's output went into a cell"
        assert cell.displays == []


def test_threads_of_the_user_print_where_they_did(fresh: Kernel) -> None:
    fresh.run(
        "go, done = threading.Event(), threading.Event()\ndef mine():\n    go.wait(30); print('mine'); done.set()"
    )
    owner = fresh.run("user_thread = threading.Thread(target=mine); user_thread.start()")
    shown = ran(fresh, "go.set(); done.wait(30); print('code')").stdout
    assert shown == "finished\ncode\n"
    fresh.wait_until(lambda: any("mine" in cell.stdout for cell in fresh.cells), 30, "the thread's text is lost")
    assert "mine" not in shown
    assert owner.error is None


def test_a_blocking_cell_holds_the_code_up_and_it_says_so(fresh: Kernel) -> None:
    cell = fresh.run(
        "order = []\n"
        "t = submit('order.append(\"code\")')\n"
        "while not submitted: time.sleep(0.01)\n"
        "time.sleep(0.3); order.append('cell')\n"
        "print(states, len(results))"
    )
    assert cell.stdout == "['waiting'] 0\n"
    wait_for_result(fresh)
    assert fresh.run("order, states").result == "(['cell', 'code'], ['waiting', 'running'])"


def test_a_cell_that_awaits_is_not_interrupted_in_the_middle(fresh: Kernel) -> None:
    """A callback on the kernel's loop runs while a cell awaits: that is why cells are watched."""
    cell = fresh.run(
        "order = []\n"
        "t = submit('order.append(\"code\")')\n"
        "while not submitted: await asyncio.sleep(0.01)\n"
        "for n in range(20):\n"
        "    await asyncio.sleep(0.01)\n"
        "    order.append(n)\n"
        "print(states)"
    )
    assert cell.stdout == "['waiting']\n"
    wait_for_result(fresh)
    assert fresh.run("order == [*range(20), 'code']").result == "True"


def test_the_cell_that_attaches_is_not_interrupted_either(tmp_path: Path) -> None:
    with Kernel(tmp_path, kernel_environment("http://127.0.0.1:1/v1", tmp_path / "home")) as kernel:
        cell = kernel.run(
            HELPERS + "order = []\n"
            "t = submit('order.append(\"code\")')\n"
            "while not submitted: await asyncio.sleep(0.01)\n"
            "for n in range(20):\n"
            "    await asyncio.sleep(0.01)\n"
            "    order.append(n)\n"
            "print(states)"
        )
        assert cell.stdout == "['waiting']\n"
        wait_for_result(kernel)
        assert kernel.run("order == [*range(20), 'code']").result == "True"
        kernel.run("user_code.detach()")
        assert kernel.run("get_ipython().kernel.shell_handlers['execute_request'].__qualname__").result == (
            "'IPythonKernel.execute_request'"
        )


def test_no_cell_begins_amid_the_code_and_the_next_one_is_not_hit(fresh: Kernel) -> None:
    fresh.run("order = []; t = submit('order.append(1); import time; time.sleep(0.3); order.append(2)')")
    queued = [fresh.send(f"order.append('cell {n}')") for n in range(3)]
    for cell in queued:
        assert fresh.finish(cell).error is None
    wait_for_result(fresh)
    order = fresh.run("order").result or ""
    assert "1, 2" in order


def test_a_cell_that_waits_for_us_lends_its_wait(fresh: Kernel) -> None:
    cell = fresh.run(
        "t = submit('print(6 * 7)')\n"
        "while not results:\n"
        "    user_code.serve(); time.sleep(0.01)\n"
        "print(results[0].output, end='')"
    )
    assert cell.stdout == "42\n"


@pytest.mark.parametrize("body", ["while True: pass", "import time; time.sleep(60)"])
def test_a_time_limit_ends_the_code(fresh: Kernel, body: str) -> None:
    assert ran(fresh, f"print('begun')\n{body}", limit=0.3).stdout == (
        "timeout\nbegun\n\n[ended after the limit of 0.3 s]\n"
    )
    # The signal that ended the code hits nothing else.
    assert fresh.run("sum(range(1000))").result == "499500"


def test_code_that_swallows_the_limit_is_told_again(fresh: Kernel) -> None:
    code = (
        "import time\ntimes = 0\nwhile times < 2:\n    try: time.sleep(60)\n    except BaseException: times += 1\ntimes"
    )
    assert ran(fresh, code, limit=0.2).stdout == "finished\n2\n"


def test_the_interrupt_key_ends_the_code(fresh: Kernel, tmp_path: Path) -> None:
    flag = tmp_path / "running"
    code = f"import pathlib, time; pathlib.Path({str(flag)!r}).touch(); time.sleep(60)"
    fresh.run(f"t = submit({code!r})")
    limit = time.monotonic() + 30
    while not flag.exists():
        assert time.monotonic() < limit
        time.sleep(0.01)
    # This cell is queued behind the code, which holds the main thread.
    queued = fresh.send("print('next')")
    fresh.interrupt()
    assert fresh.finish(queued).stdout == "next\n"
    wait_for_result(fresh)
    assert fresh.run("results[0].ended, results[0].output").result == (
        "('interrupted', '\\n[interrupted by the user]\\n')"
    )


def test_a_stop_withdraws_or_ends_the_code(fresh: Kernel) -> None:
    # From another thread, since the code holds the main one.
    fresh.run(
        "def stopper():\n"
        "    while 'running' not in states: time.sleep(0.01)\n"
        "    user_code.stop(submitted[0])\n"
        "threading.Thread(target=stopper).start()\n"
        "t = submit('import time; time.sleep(60)')"
    )
    wait_for_result(fresh)
    assert fresh.run("results[0].ended").result == "'stopped'"
    fresh.run(
        "results.clear(); order = []\n"
        "future = user_code.submit(CodeRequest('order.append(\"never\")'), states.append)\n"
        "user_code.stop(future)"
    )
    assert fresh.run("future.cancelled(), 'never' in order").result == "(True, False)"


def test_code_that_swallows_a_stop_is_told_again(fresh: Kernel) -> None:
    """An interrupt that is raised in a finalizer is lost, and the code ran on until its limit."""
    fresh.run(
        "def stopper():\n"
        "    while not hold: time.sleep(0.01)\n"
        "    user_code.stop(submitted[0])\n"
        "hold = []\n"
        "threading.Thread(target=stopper).start()\n"
        "t = submit('import time\\ntry:\\n    hold.append(1); time.sleep(30)\\n"
        "except BaseException: pass\\ntime.sleep(60)')"
    )
    wait_for_result(fresh)
    assert fresh.run("results[0].ended").result == "'stopped'"


def test_much_output_is_bounded(fresh: Kernel) -> None:
    shown = ran(fresh, "print('a' * 3_000_000)").stdout
    assert len(shown) < 40_000
    assert "characters left out" in shown
