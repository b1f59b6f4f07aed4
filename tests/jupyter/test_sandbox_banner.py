"""In a notebook, that commands run without a sandbox is said where the first goal starts, and by the self-check."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from kernel import Kernel

BROKEN = "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
GOAL = '%goal "make the check pass" --verify "python -m pytest -q" --wait'


def test_the_first_goal_and_the_doctor_say_that_there_is_no_sandbox(
    tmp_path: Path, start_kernel: Callable[..., Kernel]
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "bwrap").write_text(BROKEN)
    (folder / "bwrap").chmod(0o755)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace", PATH=path)
    said = f"No sandbox ({folder}/bwrap does not work here: bwrap: No permissions to create new namespace)."
    assert said in kernel.run("%muse doctor").stdout
    first = kernel.run(GOAL)
    assert first.stderr.startswith(said)
    assert first.stdout.count("No sandbox") == 0
    assert "No sandbox" not in kernel.run("%goal").stderr
