"""A real repository, driven by git as its user would."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


class Repository:
    """A repository at `root`, driven as by its user."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def git(self, *args: str, cwd: Path | None = None, check: bool = True, input: str = "") -> str:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        environment |= {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "User",
            "GIT_AUTHOR_EMAIL": "user@example.org",
            "GIT_COMMITTER_NAME": "User",
            "GIT_COMMITTER_EMAIL": "user@example.org",
        }
        place, given = cwd or self.root, os.fsencode(input)
        done = subprocess.run(["git", *args], cwd=place, env=environment, capture_output=True, check=check, input=given)
        return os.fsdecode(done.stdout).strip("\n")

    def write(self, name: str, text: str, root: Path | None = None) -> Path:
        file = (root or self.root) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def commit(self, files: dict[str, str | None], cwd: Path | None = None) -> str:
        """Commit these contents (None deletes) and return the commit."""
        for name, text in files.items():
            if text is None:
                self.git("rm", "-q", name, cwd=cwd)
            else:
                self.write(name, text, cwd)
                self.git("add", "-f", "--", name, cwd=cwd)
        self.git("commit", "-q", "-m", "change", cwd=cwd)
        return self.git("rev-parse", "HEAD", cwd=cwd)

    def ahead(self, files: dict[str, str | None]) -> tuple[str, str]:
        """Commit on a side branch and come back: (commit now, commit ahead)."""
        old = self.git("rev-parse", "HEAD")
        self.git("checkout", "-q", "--detach")
        new = self.commit(files)
        self.git("checkout", "-q", "main")
        return old, new

    def read(self, name: str) -> str:
        return (self.root / name).read_text()
