"""A worktree whose work did not land is moved on to the target, and none of the work is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from git_repository import Repository
from hypothesis import given, settings
from hypothesis import strategies as st

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.rework import conflicts_onto, on_base, onto_rewritten, rework_on
from musecode_jupyter.workspace.worktrees import create_worktree

LINES = "".join(f"line {number}\n" for number in range(1, 21))


def worktree(repo: Repository, path: Path) -> Path:
    async def make() -> Path:
        git = await Git.discover(repo.root, LiveEffects())
        await create_worktree(git, path, "musecode/work", repo.git("rev-parse", "HEAD"))
        return path

    return asyncio.run(make())


def rework(inside: Path, target: str) -> list[str]:
    """Move the worktree on; what is committed is all that there is afterwards."""

    async def move() -> list[str]:
        git = await Git.at_worktree(inside, LiveEffects())
        again = await rework_on(git, target)
        assert await git.status() == []
        return again

    return asyncio.run(move())


def test_where_both_changed_the_same_lines_the_targets_stay(repo: Repository, tmp_path: Path) -> None:
    inside = worktree(repo, tmp_path / "w")
    work = repo.commit(
        {"a.txt": LINES.replace("line 3\n", "mine 3\n").replace("line 18\n", "mine 18\n"), "b.txt": "mine\n"},
        cwd=inside,
    )
    target = repo.commit({"a.txt": LINES.replace("line 3\n", "theirs 3\n"), "new.txt": "n\n"})
    assert rework(inside, target) == []
    text = (inside / "a.txt").read_text()
    assert "theirs 3" in text
    assert "mine 3\n" not in text
    assert "mine 18" in text, "what nobody else changed stays"
    assert (inside / "new.txt").read_text() == "n\n"
    head = repo.git("rev-parse", "musecode/work")
    for commit in (work, target):
        repo.git("merge-base", "--is-ancestor", commit, head)


def test_a_path_that_is_now_wholly_as_in_the_target_is_told(repo: Repository, tmp_path: Path) -> None:
    inside = worktree(repo, tmp_path / "w")
    repo.commit({"b.txt": "mine\n"}, cwd=inside)
    target = repo.commit({"b.txt": "theirs\n"})
    assert rework(inside, target) == ["b.txt"]
    assert (inside / "b.txt").read_text() == "theirs\n"


@pytest.mark.parametrize("gone", ["target", "work"])
def test_a_removal_against_a_change_ends_as_in_the_target(repo: Repository, tmp_path: Path, gone: str) -> None:
    """What else the work had changed was taken back with it, for its worker to do a second time."""
    inside = worktree(repo, tmp_path / "w")
    changed: dict[str, str | None] = {"dir/c.txt": "changed\n"}
    removed: dict[str, str | None] = {"dir/c.txt": None}
    mine, theirs = (changed, removed) if gone == "target" else (removed, changed)
    work = repo.commit({**mine, "b.txt": "mine\n", "new.txt": "mine\n"}, cwd=inside)
    target = repo.commit(theirs)
    assert rework(inside, target) == ["dir/c.txt"]
    assert (inside / "dir/c.txt").exists() == (gone == "work")
    assert [(inside / name).read_text() for name in ("b.txt", "new.txt")] == ["mine\n", "mine\n"]
    for commit in (work, target):
        repo.git("merge-base", "--is-ancestor", commit, repo.git("rev-parse", "musecode/work"))


def test_a_file_that_meets_a_folder_takes_all_files_from_the_target(repo: Repository, tmp_path: Path) -> None:
    inside = worktree(repo, tmp_path / "w")
    repo.commit({"b.txt": None, "b.txt/x": "mine\n", "new.txt": "mine\n"}, cwd=inside)
    target = repo.commit({"b.txt": "theirs\n"})
    assert rework(inside, target) == ["b.txt", "b.txt/x", "new.txt"]
    assert (inside / "b.txt").read_text() == "theirs\n"


def test_uncommitted_work_is_never_moved(repo: Repository, tmp_path: Path) -> None:
    inside = worktree(repo, tmp_path / "w")
    target = repo.commit({"b.txt": "theirs\n"})
    (inside / "b.txt").write_text("unsaved\n")
    with pytest.raises(GitError, match="not committed"):
        rework(inside, target)
    assert (inside / "b.txt").read_text() == "unsaved\n"


def test_a_worktree_without_work_of_its_own_moves_on(repo: Repository, tmp_path: Path) -> None:
    inside = worktree(repo, tmp_path / "w")
    target = repo.commit({"b.txt": "theirs\n"})
    assert rework(inside, target) == []
    assert repo.git("rev-parse", "musecode/work") == target


@pytest.mark.parametrize("setting", ["merge.verifySignatures", "rerere.enabled"])
def test_settings_of_the_user_do_not_change_what_a_merge_gives(repo: Repository, tmp_path: Path, setting: str) -> None:
    repo.git("config", setting, "true")
    inside = worktree(repo, tmp_path / "w")
    repo.commit({"b.txt": "mine\n"}, cwd=inside)
    target = repo.commit({"new.txt": "theirs\n"})
    assert rework(inside, target) == []
    assert ((inside / "b.txt").read_text(), (inside / "new.txt").read_text()) == ("mine\n", "theirs\n")


def follow(repo: Repository, inside: Path, base: str) -> tuple[list[str], list[str]]:
    """Put the worktree's work onto main, which was rewritten; what was foretold, and what is to be done again."""

    async def move() -> tuple[list[str], list[str]]:
        git = await Git.at_worktree(inside, LiveEffects())
        work, target = repo.git("rev-parse", "HEAD", cwd=inside), repo.git("rev-parse", "main")
        foretold = await conflicts_onto(git, base, work, target)
        again = await onto_rewritten(git, base, target, "refs/musecode/backup/work")
        assert await git.status() == []
        assert repo.git("rev-parse", "refs/musecode/backup/work", "musecode/work~1") == f"{work}\n{target}"
        return foretold, again

    return asyncio.run(move())


def test_only_the_change_goes_onto_a_branch_that_was_reset(repo: Repository, tmp_path: Path) -> None:
    base = repo.commit({"secret.txt": "taken out by the user\n"})
    inside = worktree(repo, tmp_path / "w")
    repo.commit({"b.txt": "mine\n", "new.txt": "new\n"}, cwd=inside)
    repo.git("reset", "-q", "--hard", "HEAD~1")
    assert follow(repo, inside, base) == ([], [])
    assert repo.git("diff", "--name-only", "main", "musecode/work").split() == ["b.txt", "new.txt"]
    assert base not in repo.git("rev-list", "musecode/work")


def test_a_conflict_with_a_rewritten_branch_is_foretold_and_told(repo: Repository, tmp_path: Path) -> None:
    base = repo.git("rev-parse", "HEAD")
    inside = worktree(repo, tmp_path / "w")
    repo.commit({"b.txt": "mine\n", "dir/c.txt": "mine\n"}, cwd=inside)
    repo.write("b.txt", "theirs\n")
    repo.git("commit", "-q", "-a", "--amend", "-m", "amended")
    assert follow(repo, inside, base) == (["b.txt"], ["b.txt"])
    assert ((inside / "b.txt").read_text(), (inside / "dir/c.txt").read_text()) == ("theirs\n", "mine\n")


@pytest.mark.parametrize("rewrite", [("commit", "-q", "--amend", "-m", "mine"), ("update-ref", "-d", "HEAD")])
def test_work_on_a_history_of_its_own_comes_back_onto_its_base(
    repo: Repository, tmp_path: Path, rewrite: tuple[str, ...]
) -> None:
    base = repo.git("rev-parse", "HEAD")
    inside = worktree(repo, tmp_path / "w")
    repo.git(*rewrite, cwd=inside)
    work = repo.commit({"b.txt": "mine\n"}, cwd=inside)

    async def back() -> str:
        git = await Git.at_worktree(inside, LiveEffects())
        made = await on_base(git, base, work)
        assert (await git.status(), await on_base(git, base, made)) == ([], made)
        return made

    made = asyncio.run(back())
    assert repo.git("rev-parse", "musecode/work") == made
    assert repo.git("diff", "--name-only", base, made) == "b.txt"
    for commit in (base, work):
        repo.git("merge-base", "--is-ancestor", commit, made)


EDITS = st.dictionaries(
    st.sampled_from(["a.txt", "b.txt", "dir/c.txt", "new.txt", "d/e.txt"]),
    st.none() | st.text("xy\n", max_size=6),
    min_size=1,
    max_size=4,
)


@settings(max_examples=15, deadline=None)
@given(mine=EDITS, theirs=EDITS)
def test_any_two_edits_end_with_both_reachable_and_nothing_uncommitted(
    mine: dict[str, str | None], theirs: dict[str, str | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rework")
    (folder / "repo").mkdir()
    repo = Repository(folder / "repo")
    repo.git("init", "-q", "-b", "main")
    repo.commit({"a.txt": LINES, "b.txt": "b\n", "dir/c.txt": "c\n"})
    inside = worktree(repo, folder / "w")
    for root, edits in ((inside, mine), (repo.root, theirs)):
        for name, text in edits.items():
            if text is None:
                (root / name).unlink(missing_ok=True)
            else:
                repo.write(name, text, root)
        repo.git("add", "-A", cwd=root)
        repo.git("commit", "-q", "--allow-empty", "-m", "change", cwd=root)
    work, target = repo.git("rev-parse", "musecode/work"), repo.git("rev-parse", "main")
    again = rework(inside, target)
    for commit in (work, target):
        repo.git("merge-base", "--is-ancestor", commit, "musecode/work")
    for name in again:
        assert repo.git("diff", "--name-only", target, "musecode/work", "--", name) == ""
