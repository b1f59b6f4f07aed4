"""A small repository with a quick check, sessions on it, and waiting for events; for the tests of this floor."""

from __future__ import annotations

import os
import select
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fixtures.model_scripts import Answer, Call, ParsedRequest

from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.session import GoalHandle, Session, Settings, open_session
from musecode_jupyter.session.core import GoalSpec

MODEL = "muse-spark-1.3"
CHECK = "grep -q right answer.txt"
DEADLINE_S = 60.0
CLOSING = {"tool.finished", "tool.failed", "tool.cancelled", "tool.unknown"}

EDIT = Answer("I correct it.", [Call("edit", {"path": "answer.txt", "old": "wrong", "new": "right"})])
DONE = Answer("It is corrected.")


class Hurried(LiveEffects):
    """The real world, except that waits between attempts pass at once; `waits` has their seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


class Repo:
    """A git repository in which `answer.txt` says wrong."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit({"answer.txt": "wrong\n", "other.txt": "other\n"})

    def git(self, *args: str) -> str:
        identity = {
            f"GIT_{role}_{key}": value
            for role in ("AUTHOR", "COMMITTER")
            for key, value in (("NAME", "User"), ("EMAIL", "user@example.org"))
        }
        done = subprocess.run(
            ["git", *args],
            cwd=self.root,
            env=os.environ | identity,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def commit(self, files: dict[str, str]) -> str:
        for name, text in files.items():
            self.write(name, text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "change")
        return self.git("rev-parse", "HEAD")

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def read(self, name: str) -> str:
        return (self.root / name).read_text()

    @property
    def branches(self) -> list[str]:
        return self.git("branch", "--format=%(refname:short)").split()

    @property
    def worktrees(self) -> int:
        return self.git("worktree", "list").count("\n") + 1


class Watch:
    """The durable events of a session as they come; `until` waits for one."""

    def __init__(self, session: Session) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()
        session.read(lambda core: core.log.on_durable(self._saw))

    def _saw(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def until(self, kind: str, **data: Any) -> Event:
        def found() -> Event | None:
            return next(
                (
                    event
                    for event in self.events
                    if event.kind == kind and all(event.data[name] == data[name] for name in data)
                ),
                None,
            )

        with self._changed:
            event = self._changed.wait_for(found, DEADLINE_S)
        assert event is not None, f"no {kind} came; the last events were {[e.kind for e in self.events[-6:]]}"
        return event


class Held:
    """Answers in order; the answer number `hold` (from 0) waits until `release`, and `asked` is set before."""

    def __init__(self, answers: list[Answer], hold: int) -> None:
        self.asked = threading.Event()
        self._answers = answers
        self._hold = hold
        self._go = threading.Event()
        self._given = 0
        self._lock = threading.Lock()

    def __call__(self, request: ParsedRequest) -> Answer:
        with self._lock:
            number, self._given = self._given, self._given + 1
        if number == self._hold:
            self.asked.set()
            assert self._go.wait(DEADLINE_S)
        return self._answers[min(number, len(self._answers) - 1)]

    def wait(self) -> None:
        assert self.asked.wait(DEADLINE_S), "the request did not come"

    def release(self) -> None:
        self._go.set()


class Doing:
    """Answers in order, the last one again and again; before answer number `at`, `deed` is done once."""

    def __init__(self, answers: list[Answer], at: int, deed: Callable[[], object]) -> None:
        self._answers = answers
        self._at = at
        self._deed = deed
        self._given = 0

    def __call__(self, request: ParsedRequest) -> Answer:
        number, self._given = self._given, self._given + 1
        if number == self._at:
            self._deed()
        return self._answers[min(number, len(self._answers) - 1)]


def settings(base_url: str, **chosen: Any) -> Settings:
    """Settings for a scripted server; the embedded catalogue's model unless another is chosen."""
    return Settings(
        **{"model": MODEL, "api": "responses", "base_url": base_url, "approvals": "allow-workspace", **chosen}
    )


@contextmanager
def session_on(
    base_url: str,
    workspace: Path,
    *,
    interactive: bool = False,
    resume: str | None = None,
    effects: LiveEffects | None = None,
    **chosen: Any,
) -> Iterator[Session]:
    """An open session, closed at the end."""
    session = open_session(
        workspace,
        resume=resume,
        settings=settings(base_url, **chosen),
        interactive=interactive,
        effects=effects or Hurried(),
    )
    try:
        yield session
    finally:
        session.close()


def start(session: Session, *verify: str, **limits: Any) -> GoalHandle:
    """Start the goal that all these tests have."""
    return session.start_goal(GoalSpec("say right", verify or (CHECK,), **limits))


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def only(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if event.kind == kind]


def results(body: Any) -> list[str]:
    """Outputs of the tool calls in a request of the responses API."""
    return [item["output"] for item in body["input"] if item["type"] == "function_call_output"]


def said(body: Any) -> list[str]:
    """Texts of the user's messages in a request of the responses API."""
    return [
        "".join(part["text"] for part in item["content"])
        for item in body["input"]
        if item.get("role") == "user"
    ]


class Signal:
    """A named pipe on which a command says its process ids when it runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def read(self) -> list[int]:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        assert poll.poll(DEADLINE_S * 1000), "the command did not start"
        text = os.read(self._descriptor, 4096).decode()
        os.close(self._descriptor)
        return [int(word) for word in text.split()]


def runs(pid: int) -> bool:
    """Whether process `pid` runs; one that has ended and was not collected yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
