"""%plan: looked around for, handed in, tried, approved by digest, and only then run as a goal's tasks."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path

import pytest
from fixtures.crew_scripts import Crew, edit, read
from fixtures.model_server import ModelServer
from fixtures.plan_scripts import PLANNED, RIGHT, Author, proposing, step
from fixtures.session_bench import Repo, end, only, said, session_on

from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.replay import prove

MEND = Crew({name: [[edit(f"{name}.txt", "wrong", "right")]] for name in ("one", "two")})
DEADLINE_S = 60.0


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "repo")
    repo.commit({f"{name}.txt": "wrong\n" for name in ("one", "two")})
    return repo


def snapshot(root: Path) -> dict[str, bytes]:
    """All files below a folder, but for what git keeps of worktrees that come and go."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in {"musecode.lock"}
    }


def test_from_a_sentence_to_a_landed_change(repo: Repo) -> None:
    evidence = [{"path": "one.txt", "shows": "it says wrong"}, {"path": "two.txt", "shows": "so does this"}]
    first = proposing(step("one"), questions=["Which word?"], evidence=evidence)
    second = proposing(step("one"), step("two", after=["one"]), evidence=evidence)
    author = Author([read("one.txt"), first, PLANNED], [read("two.txt"), second, PLANNED], work=MEND)
    before = snapshot(repo.root)
    with ModelServer(author) as server, session_on(server.base_url, repo.root) as session:
        plan = session.start_plan("mend the files")
        result = plan.wait(DEADLINE_S)
        assert (result.status, result.version) == ("proposed", 1), result.why
        assert result.document is not None
        assert [each["read"] for each in result.document["evidence"]] == [True, False]
        assert "NEVER READ" in plan.text()
        assert result.document["steps"][0]["trials"] == [
            {"command": f"{RIGHT} one.txt", "ended": "fails", "exit": 1},
        ]
        with pytest.raises(UsageProblem, match="not approved: look at it"):
            plan.run()
        plan.answer(1, "right")
        shown = plan.result.digest
        plan.edit("both files")
        assert plan.wait(DEADLINE_S).version == 2
        assert "+## 2. two" in plan.difference()
        with pytest.raises(UsageProblem, match="Not approved: the plan has changed since"):
            plan.approve(shown)
        assert plan.text().count("NEVER READ") == 0
        assert snapshot(repo.root) == before
        digest = plan.approve()
        folder = session.folder / "plans"
        assert sorted(path.name for path in folder.iterdir()) == [
            f"{plan.number}-v{version}.{kind}" for version in (1, 2) for kind in ("json", "md")
        ]
        document = (folder / f"{plan.number}-v2.json").read_text().rstrip("\n")
        assert digest == blake2b(document.encode(), digest_size=16).hexdigest()
        assert json.loads(document) == plan.result.document
        handle = plan.run()
        result = end(handle)
        assert result.met, result.why
        events = list(session.events())
        folder = session.folder
    assert [event.data["name"] for event in only(events, "task.created")] == ["one", "two"]
    assert only(events, "goal.set")[0].data["verify"] == [f"{RIGHT} one.txt", f"{RIGHT} two.txt"]
    assert repo.read("one.txt") + repo.read("two.txt") == "right\nright\n"
    (claim,) = [event for event in only(events, "claim.asserted") if event.agent == "user"]
    assert claim.data["type"] == "decision"
    told = [text for seen in server.requests for text in said(seen.json) if text.startswith("Change the plan")]
    assert "- Which word? right" in told[0]
    proof = prove(folder)
    assert proof.ok, proof.problem
    assert "commands" in proof.words
