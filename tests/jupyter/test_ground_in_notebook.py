"""What a goal starts from, and what becomes of worktrees, asked and answered in a real kernel."""

from __future__ import annotations

from pathlib import Path

from journal import wait_for_kind
from kernel import StartKernel
from scripted import GOAL
from test_completion import complete


def test_uncommitted_files_and_worktrees_are_asked_about_beside_the_cells(
    tmp_path: Path, repository: Path, start_kernel: StartKernel
) -> None:
    """The cell of the goal returns at once: a question before the start must not block the notebook."""
    (repository / "mine.txt").write_text("mine\n")
    kernel = start_kernel()
    kernel.run("g = " + GOAL)
    asked = wait_for_kind(tmp_path / "home", "approval.requested")
    assert asked["data"]["action"] == "start from your uncommitted files"
    assert asked["data"]["shown"]["files"] == ["mine.txt"]
    assert kernel.run("%approve").stdout == f"Approved {asked['seq']}.\n"
    landing = wait_for_kind(tmp_path / "home", "approval.requested", 2)
    assert landing["data"]["shown"]["your uncommitted changes"] == ["mine.txt"]
    kernel.run("%deny")
    assert kernel.run("g.wait(60).status").result == "'blocked'"
    name = kernel.run("print(f'{g.session.id}-{g.number}')").stdout.strip()
    assert complete(kernel, f"%muse worktrees reclaim {name[:8]}") == [name]
    said = kernel.run("%muse worktrees reclaim").stdout
    assert f"{name}.check is removed.\n{name} is kept: " in said
    # The snapshot that it began with and the work on it.
    reclaim = kernel.run(f"%muse worktrees reclaim {name}")
    assert f"{name} holds something: 2 commits not merged" in reclaim.stdout
    assert len(reclaim.displays) == 1
    wait_for_kind(tmp_path / "home", "approval.requested", 3)
    kernel.run("%deny")
    assert "is set aside at" in kernel.run(f"%muse worktrees quarantine {name} not now").stdout
    wrong = kernel.execute("%muse worktrees remove").error
    assert wrong == "UsageError: %muse worktrees takes nothing, `reclaim [NAME]` or `quarantine NAME [WHY]`."
    assert (repository / "mine.txt").read_text() == "mine\n"
