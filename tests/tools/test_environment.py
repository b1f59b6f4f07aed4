"""What of the kernel's environment commands get: an allow-list, and no secret under any name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fixtures.model_scripts import Answer, Call, Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Repo, only, session_on, start
from hypothesis import given
from hypothesis import strategies as st

from musecode_jupyter.tools.environment import ALLOWED, FIXED, child_environment, without_values

KEY = "k3y-" + "Zx81" * 6
SECRET_NAMES = ["MODEL_API_KEY", "META_API_KEY", "MUSECODE_API_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY"]
SECRET_NAMES += ["GH_TOKEN", "DB_PASSWORD", "SLURM_JWT", "HF_TOKEN"]


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_no_key_passes_under_its_own_name(name: str) -> None:
    assert KEY not in "".join(child_environment({name: KEY, "PATH": "/bin"}).values())


@given(
    st.sampled_from(sorted(ALLOWED)) | st.from_regex(r"(LC|SLURM)_[A-Z]{1,8}", fullmatch=True),
    st.text(max_size=5),
    st.text(max_size=5),
)
def test_no_key_passes_as_a_part_of_another_value(name: str, before: str, after: str) -> None:
    child = child_environment({"MODEL_API_KEY": KEY, name: before + KEY + after})
    assert not any(KEY in value for value in child.values())
    assert child["PATH"]


def test_what_is_allowed_passes_and_the_rest_does_not() -> None:
    given = {"PATH": "/bin", "LANG": "C.UTF-8", "LC_TIME": "C", "SLURM_JOB_ID": "7", "DISPLAY": ":0", "EDITOR": "vi"}
    child = child_environment(given)
    assert {name: child[name] for name in ("LANG", "LC_TIME", "SLURM_JOB_ID")} == {
        "LANG": "C.UTF-8",
        "LC_TIME": "C",
        "SLURM_JOB_ID": "7",
    }
    assert "DISPLAY" not in child
    assert {name: child[name] for name in FIXED} == FIXED
    assert without_values({"A": "xyz", "B": "y"}, ["xy", ""][:1]) == {"B": "y"}


@pytest.mark.parametrize("sandbox", ["auto", "plain"])
def test_a_key_that_is_set_after_the_session_began_reaches_no_command(
    sandbox: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment of commands was made once, when the session was opened."""
    monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLURM_COMMENT", f"run with {KEY}")
    repo = Repo(tmp_path / "repo")
    look = Answer("", [Call("run", {"command": "env | cut -c1-60; echo looked"})])
    with (
        ModelServer(Steps([look, EDIT, DONE])) as server,
        session_on(server.base_url, repo.root, sandbox=sandbox) as session,
    ):
        monkeypatch.setenv("META_API_KEY", KEY)
        os.environ["LC_LATE"] = KEY
        try:
            assert start(session).wait(timeout=60).met
        finally:
            del os.environ["LC_LATE"]
        outputs = [event.data["output"] for event in only(session.events(), "tool.finished")]
    (looked,) = [text for text in outputs if "looked" in text]
    assert "PATH=" in looked
    assert "SLURM_COMMENT" not in looked
    assert "k3y-" not in looked
