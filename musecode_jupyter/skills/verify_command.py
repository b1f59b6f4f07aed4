"""Whether a verify command can decide anything: before it is run, and by how its run ended."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.tools.executor import CallResult

NOT_FOUND_EXITS = frozenset({126, 127})
BUILTINS = frozenset({"cd", "test", "[", "exit", "true", "false", "!"})
# The shell's cd, `python -m`, and pytest with a wrong path.
CANNOT_RUN = re.compile(
    r"^(?:\S*sh: line \d+: cd: .*"
    r"|\S*python[\d.]*: No module named \S+"
    r"|ERROR: file or directory not found: .*)$",
    re.MULTILINE,
)


def check_command(command: str, root: Path, path: str, task: str = "") -> None:
    """Raise UsageProblem if `command` plainly cannot run: empty, unbalanced quotes, or a program that is not there.

    It is a verify command, or an acceptance command of `task`; a program inside the repository that such a one names
    may still be made by the tasks.
    """
    what, where = (f"acceptance command of task {task}", "the task") if task else ("verify command", "--verify")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageProblem(f"The {what} {command!r} cannot be parsed: {error}.") from None
    while words and "=" in words[0] and words[0].split("=")[0].isidentifier():
        words.pop(0)
    if not words and task:
        raise UsageProblem(f"The {what} is empty: give one that passes once it is done.")
    if not words:
        raise UsageProblem("The verify command is empty: give one, for example --verify 'python -m pytest -q'.")
    if any(mark in command for mark in "|&;<>()$`") or words[0] in BUILTINS:
        return
    program = words[0]
    if "/" in program:
        found = bool(task) or (root / program).exists()
    else:
        found = shutil.which(program, path=path) is not None
    if not found:
        raise UsageProblem(f"The {what} cannot run: there is no {program!r} here. Install it or correct {where}.")


def cannot_run(result: CallResult) -> bool:
    """Whether a check failed because it cannot run at all: no such program, folder or module, or no tests."""
    if result.exit in NOT_FOUND_EXITS:
        return True
    return not result.ok and CANNOT_RUN.search(result.output) is not None


def last_line(output: str) -> str:
    """The last line that a command said, without its full stop; that it was not found if it said nothing."""
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("[exit")]
    return lines[-1].rstrip(".") if lines else "it was not found"
