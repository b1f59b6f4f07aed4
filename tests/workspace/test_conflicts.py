"""Conflicts told with their regions: only what conflicts, with names for the sides, and bounded."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from git_repository import Repository

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.workspace.conflicts import LARGEST_BLOB, Conflict, conflicts_between
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.landing import MergeCheck, check_merge


def between(repo: Repository, target: str, source: str) -> dict[str, Conflict]:
    async def look() -> list[Conflict]:
        git = await Git.discover(repo.root, LiveEffects())
        return await conflicts_between(git, target, source, ours="main", theirs="your work")

    return {conflict.path: conflict for conflict in asyncio.run(look())}


def test_regions_have_both_sides_the_base_and_three_lines_around(repo: Repository) -> None:
    lines = repo.read("a.txt")
    _, source = repo.ahead({"a.txt": lines.replace("line 5\n", "mine\n").replace("line 19\n", "mine\n")})
    target = repo.commit({"a.txt": lines.replace("line 5\n", "theirs\n").replace("line 19\n", "theirs\n")})
    (conflict,) = between(repo, target, source).values()
    first, second = conflict.regions
    base = first.split("||||||| ")[1].split("\n")[0]
    assert first == (
        "line 2\nline 3\nline 4\n"
        f"<<<<<<< main\ntheirs\n||||||| {base}\nline 5\n=======\nmine\n>>>>>>> your work\n"
        "line 6\nline 7\nline 8"
    )
    assert second.startswith("line 16\nline 17\nline 18\n<<<<<<< main\n")
    assert conflict.said == ("CONFLICT (content): Merge conflict in a.txt",)


def test_regions_that_touch_are_one(repo: Repository) -> None:
    lines = repo.read("a.txt")
    _, source = repo.ahead({"a.txt": lines.replace("line 5\n", "mine\n").replace("line 8\n", "mine\n")})
    target = repo.commit({"a.txt": lines.replace("line 5\n", "theirs\n").replace("line 8\n", "theirs\n")})
    (conflict,) = between(repo, target, source).values()
    (region,) = conflict.regions
    assert region.count("<<<<<<< main") == 2
    assert region.endswith("line 9\nline 10\nline 11")


def test_lines_of_the_user_that_look_like_marks_are_none(repo: Repository) -> None:
    """A file about merges has such lines of its own."""
    text = "<<<<<<< HEAD\n=======\n>>>>>>> main\n" + repo.read("a.txt")
    repo.commit({"a.txt": text})
    _, source = repo.ahead({"a.txt": text.replace("line 15\n", "mine\n")})
    target = repo.commit({"a.txt": text.replace("line 15\n", "theirs\n")})
    (conflict,) = between(repo, target, source).values()
    (region,) = conflict.regions
    assert "HEAD" not in region


def test_what_has_no_regions_is_told_in_words(repo: Repository) -> None:
    odd = os.fsdecode(b"odd \xe9 name.txt")
    large = "x\n" * (LARGEST_BLOB // 2 + 1)
    repo.commit({"bin": "\0base", odd: "base\n", "large.txt": large})
    repo.git("mv", "dir/c.txt", "dir/theirs.txt")
    target = repo.commit({"b.txt": "theirs\n", "bin": "\0theirs", odd: "theirs\n", "large.txt": f"theirs\n{large}"})
    repo.git("checkout", "-q", "--detach", "HEAD^")
    repo.git("mv", "dir/c.txt", "dir/mine.txt")
    source = repo.commit({"b.txt": None, "bin": "\0mine", odd: "mine\n", "large.txt": f"mine\n{large}"})
    found = between(repo, target, source)
    assert set(found) == {"b.txt", "bin", odd, "large.txt", "dir/c.txt", "dir/mine.txt", "dir/theirs.txt"}
    assert [name for name, conflict in found.items() if conflict.regions] == [odd]
    assert "b.txt deleted in your work and modified in main" in found["b.txt"].said[0]
    assert "renamed to dir/theirs.txt in main and to dir/mine.txt in your work" in found["dir/c.txt"].said[0]
    assert "Merge conflict in bin" in found["bin"].said[-1]
    assert repo.git("status", "--porcelain") == ""


def test_a_file_that_meets_a_folder_is_called_by_its_own_name(repo: Repository) -> None:
    """Not `b.txt~COMMIT`, as git calls it: there is no such file, and what the target changed in it was not shown."""
    folder: dict[str, str | None] = {"b.txt": None, "b.txt/x": "mine\n"}
    for mine, theirs in ((folder, {"b.txt": "theirs\n"}), ({"b.txt": "mine\n"}, folder)):
        base = repo.git("rev-parse", "HEAD")
        _, source = repo.ahead(mine)
        target = repo.commit(theirs)
        (conflict,) = between(repo, target, source).values()
        assert conflict.path == "b.txt"
        assert conflict.said[0].startswith("CONFLICT (file/directory)")

        async def check(target: str = target, source: str = source) -> MergeCheck:
            return await check_merge(await Git.discover(repo.root, LiveEffects()), target, source)

        assert asyncio.run(check()).conflicts == ["b.txt"]
        repo.git("reset", "-q", "--hard", base)


def test_commits_that_merge_have_none(repo: Repository) -> None:
    _, source = repo.ahead({"b.txt": "mine\n"})
    target = repo.commit({"a.txt": "theirs\n"})
    assert between(repo, target, source) == {}
    assert not (Path(repo.root) / ".git" / "MERGE_HEAD").exists()
