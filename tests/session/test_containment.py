"""What a model's own commands can do to branches, checks and secrets, and what the harness makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.model_scripts import Answer, Call, Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Repo, only, session_on, settings, start

from musecode_jupyter.session.api import fork_session
from musecode_jupyter.session.replay import prove

DEADLINE_S = 60.0


def run(command: str) -> Answer:
    return Answer("", [Call("run", {"command": command})])


@pytest.mark.parametrize("command", ["git checkout -q -b mine", "git checkout -q --detach", "git checkout -q -B main"])
def test_work_is_committed_on_our_branch_wherever_head_was_left(command: str, repo: Repo) -> None:
    """A model had checked out another branch: the harness's commit went there, unverified, the user's included."""
    base = repo.git("rev-parse", "main")
    with (
        ModelServer(Steps([run(command), EDIT, DONE])) as server,
        session_on(server.base_url, repo.root, approvals="allow-workspace", sandbox="plain") as session,
    ):
        handle = start(session, "grep -q never answer.txt", steps=3)
        handle.wait(timeout=DEADLINE_S)
        branch = f"musecode/{session.id}/{handle.number}"
    assert repo.git("rev-parse", "main") == base
    assert repo.git("show", f"{branch}:answer.txt") == "right"


def test_a_key_that_a_command_prints_is_nowhere_in_the_session_folder(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The event was redacted, the file with the whole output was not."""
    key = "k3y-" + "Zx81" * 6
    monkeypatch.setenv("MUSECODE_API_KEY", key)
    (repo.root / "config.txt").write_text(f"address=somewhere\nkey={key}\n")
    repo.commit({"config.txt": f"address=somewhere\nkey={key}\n"})
    with (
        ModelServer(Steps([run("cat config.txt"), EDIT, DONE])) as server,
        session_on(server.base_url, repo.root, approvals="allow-workspace") as session,
    ):
        assert start(session).wait(timeout=DEADLINE_S).met
        outputs = [event.data["output_path"] for event in only(session.events(), "tool.finished")]
        texts = [Path(path).read_text() for path in outputs if path]
        folder = session.folder
    assert any("address=somewhere" in text for text in texts)
    assert not [path for path in folder.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    assert prove(folder).ok, "the digest is of what is kept"


def test_whole_outputs_are_part_of_what_is_proved(repo: Repo) -> None:
    """A flipped byte in what a command printed was no fault to `verify`: the log had no digest of it."""
    with ModelServer(Steps([run("printf 'no newline'"), EDIT, DONE])) as server:
        with session_on(server.base_url, repo.root, approvals="allow-workspace") as session:
            assert start(session).wait(timeout=DEADLINE_S).met
            folder, met = session.folder, only(session.events(), "goal.met")[0].seq
        with fork_session(folder, met, settings=settings(server.base_url)) as forked:
            copied = forked.folder
    outputs = sorted((folder / "outputs").iterdir())
    assert [path.name for path in sorted((copied / "outputs").iterdir())] == [path.name for path in outputs]
    assert prove(folder).ok
    assert prove(copied).ok
    assert "no newline" in [path.read_text() for path in outputs]
    for path in outputs:
        content = path.read_bytes()
        for wrong in (content[:-1] + bytes([content[-1] ^ 1]) if content else b"x", content + b"\n"):
            path.write_bytes(wrong)
            proof = prove(folder)
            assert proof.problem is not None
            assert f"outputs/{path.name} is not what the command printed" in proof.problem
            assert proof.problem.startswith(f"event {proof.seq}, field data.output_digest")
        path.write_bytes(content)
    outputs[0].unlink()
    proof = prove(folder)
    assert proof.ok, "who removes it to save room has not changed what was seen"
    assert "whole output of 1 command" in proof.words


def test_a_pythonpath_into_the_checkout_leads_into_the_tree_that_is_judged(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PYTHONPATH set to the user's checkout, its files were judged in place of the tree that was to land."""
    repo.commit({"answer.py": "VALUE = 'wrong'\n"})
    monkeypatch.setenv("PYTHONPATH", str(repo.root))
    check = "cd / && python -c 'import answer; assert answer.VALUE == \"right\"'"
    edit = Answer("", [Call("edit", {"path": "answer.py", "old": "wrong", "new": "right"})])
    with (
        ModelServer(Steps([edit, DONE])) as server,
        session_on(server.base_url, repo.root, approvals="allow-workspace") as session,
    ):
        assert start(session, check).wait(timeout=DEADLINE_S).met
    assert repo.read("answer.py") == "VALUE = 'right'\n"


@pytest.mark.parametrize(
    "check",
    ["cd nosuch && true", "python -m pytset -q", "python -m pytest -q nosuch.py"],
    ids=["folder", "module", "path"],
)
def test_a_check_that_cannot_run_is_blocked_at_once(check: str, repo: Repo) -> None:
    with ModelServer(Steps([])) as server, session_on(server.base_url, repo.root) as session:
        result = start(session, check).wait(timeout=DEADLINE_S)
    assert result.status == "blocked"
    assert "cannot run" in result.why
    assert server.requests == []


def test_a_check_that_is_green_without_what_is_not_committed_says_so(repo: Repo) -> None:
    repo.write("answer.txt", "changed, and not committed\n")
    with ModelServer(Steps([])) as server, session_on(server.base_url, repo.root) as session:
        result = start(session, "grep -q wrong answer.txt").wait(timeout=DEADLINE_S)
    assert result.status == "blocked"
    assert "answer.txt" in result.why
    assert "not committed" in result.why
