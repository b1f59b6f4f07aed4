"""Parsing files in a process beside the kernel: bounded in time and memory, whatever the files hold."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import musecode_jupyter
from musecode_jupyter.agents.repomap.facts import FileFacts
from musecode_jupyter.agents.repomap.languages import GRAMMARS
from musecode_jupyter.agents.repomap.parse_worker import FILE_TIMER, RUN_TIMER, from_json
from musecode_jupyter.runtime.command import Command
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.runtime.guardian import PYTHON

TOO_LONG = "takes too long to parse"
BREAKS = "cannot be parsed"
"""The parser breaks down over the file: it wants more memory than the process may have."""

_GRACE = 10.0
"""Seconds after which a worker is ended whose own timer could not: it waits for a disk."""
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR")
_WORKER = """
import sys
sys.path += sys.argv[1:]
from musecode_jupyter.agents.repomap.parse_worker import main
main()
"""

Key = tuple[str, str]
"""Language and digest: what they have in common, the same bytes say."""


@dataclass(frozen=True)
class Limits:
    """How long parsing may take. `seconds` by the clock for all files that one call of the map wants to know.

    `file` and `megabyte` are seconds of the processor, which other programs do not take away, for any file and for
    its size. Ordinary files take about one second a megabyte.
    """

    seconds: float = 60.0
    file: float = 1.0
    megabyte: float = 8.0

    def of(self, size: int) -> float:
        """The share of a file of `size` bytes."""
        return self.file + self.megabyte * size / 1e6


@dataclass(frozen=True)
class Wanted:
    """A file of which is to be known what it says."""

    path: str
    language: str
    size: int


@dataclass(frozen=True)
class Run:
    """What one worker found out, and with how many of the files it is done; the rest wants another worker."""

    found: dict[Key, FileFacts]
    done: int


async def parse(effects: Effects, root: Path, files: Sequence[Wanted], seconds: float, limits: Limits) -> Run:
    """Parse `files` below `root` in one worker, for at most `seconds`; a file that ends it is the last of the run.

    Such a file is known from then on as one without symbols; cancellation ends the worker.

    Raises
    ------
    ToolProblem
        No worker can be started.
    """
    listed = [(each.path, each.language, limits.of(each.size)) for each in files]
    request = {"root": str(root), "files": listed, "seconds": seconds}
    environ = effects.environ()
    command = Command(
        (PYTHON, "-I", "-S", "-c", _WORKER, *_folders()),
        cwd=Path("/"),
        env={name: environ[name] for name in _KEPT_VARIABLES if name in environ},
        input=json.dumps(request).encode(),
        timeout=seconds + _GRACE,
    )
    try:
        answer = await effects.ask(command)
    except TimeoutError:
        return Run({}, 0)
    except OSError as error:
        raise ToolProblem(f"The map cannot parse the files, no process can be started for it: {error}.") from error
    run, parsing = _read(files, answer.out)
    if answer.code in {0, -RUN_TIMER}:
        return run
    if parsing is None:
        said = answer.err.strip().rpartition("\n")[2] or f"exit status {answer.code}"
        raise ToolProblem(f"The map cannot parse the files, its process for it fails: {said}.")
    digest, size = parsing
    language = files[run.done].language
    note = TOO_LONG if answer.code == -FILE_TIMER else BREAKS
    return Run({**run.found, (language, digest): FileFacts(language, size, 0, note)}, run.done + 1)


def _read(files: Sequence[Wanted], out: bytes) -> tuple[Run, tuple[str, int] | None]:
    """What a worker answered; and digest and size of the file that it was parsing when it ended."""
    found: dict[Key, FileFacts] = {}
    done = 0
    parsing: tuple[str, int] | None = None
    for line in out.decode().splitlines():
        try:
            value: Any = json.loads(line)
        except ValueError:
            break  # cut off by a timer
        if parsing is not None:
            found[files[done].language, parsing[0]] = from_json(value)
            parsing, done = None, done + 1
        elif value is None:
            done += 1
        else:
            parsing = (value[0], value[1])
    return Run(found, done), parsing


def _folders() -> list[str]:
    """Where the worker finds this package and the parsers, without what else is installed."""
    found = [str(Path(musecode_jupyter.__file__).parent.parent)]
    for name in ("tree_sitter", *(each.module for each in GRAMMARS.values())):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            found.append(str(Path(spec.origin).parent.parent))
    return list(dict.fromkeys(found))
