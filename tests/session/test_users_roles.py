"""Roles that the repository brings: only once trusted, only what looks, kept in the log as they were."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from fixtures.crew_scripts import ask
from fixtures.landing_bench import NOWHERE
from fixtures.model_scripts import Answer, Call, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Repo, end, kinds, only, session_on, start

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session import Session
from musecode_jupyter.session.agents_view import agents_lines
from musecode_jupyter.session.replay import prove
from musecode_jupyter.session.role_trust import RoleTrust
from musecode_jupyter.session.roles import list_roles, read_role, usable

T = TypeVar("T")

PURPOSE = "Knows which data sets there are and what is in them."
ROLE = f"---\npurpose: {PURPOSE}\ntools: read search\nwakes: mail\n---\nAnswer with the file and the column.\n"
FOLDER = Path(".musecode/roles")


def put(repo: Repo, name: str, text: str | bytes) -> Path:
    path = repo.root / FOLDER / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
    return path


def run_aside(work: Coroutine[Any, Any, T]) -> T:
    """What another terminal does."""
    return asyncio.run(work)


def home_of(session: Session) -> Path:
    return session.read(lambda core: core.home)


def trusted_in(trust: RoleTrust) -> list[str]:
    """The rules about roles that the repository's file has."""
    return sorted(each.rule.text for each in trust.file.read()[0] if each.rule.form == "role")


def script(request: ParsedRequest) -> Answer:
    """A lead that asks the agent of the repository's role, which reads, and tries to edit."""
    done = sum(item["type"] == "tool_result" for item in request.items)
    if request.instructions.startswith("You are the librarian"):
        return [EDIT, Answer("", [Call("read", {"path": "answer.txt"})]), Answer("Column 1 of it.")][min(done, 2)]
    return [ask("Which column?", agent="librarian"), EDIT, DONE][min(done, 2)]


def test_a_trusted_role_stands_is_asked_and_is_read_from_the_log_afterwards(repo: Repo) -> None:
    path = put(repo, "librarian", ROLE)
    with ModelServer(script) as server:
        with session_on(server.base_url, repo.root, crew="on") as session:
            (told,) = session.take_notices()
            assert told.startswith("This repository brings a role for agents: librarian. Not used until you trust it")
            assert "librarian" not in session.read(lambda core: core.agents.agents)
            assert "not trusted" in session.roles_text()
            assert session.trust_roles().startswith(f"Trusted: librarian: {PURPOSE} Tools: read, search.")
            assert end(start(session)).met
            events, folder, name = session.events(), session.folder, session.id
            (line,) = [line for line in session.read(agents_lines) if line.startswith("librarian: ")]
            assert f"the repository's role: {PURPOSE}" in line
        (taken,) = only(events, "role.taken")
        assert taken.data["text"] == ROLE
        leads = [event.data for event in only(events, "agent.seeded") if event.agent == "lead"]
        told = next(tool["description"] for tool in leads[-1]["tools"] if tool["name"] == "ask")
        assert told.endswith(f"librarian: {PURPOSE}")
        (seeded,) = [event.data for event in only(events, "agent.seeded") if event.agent == "librarian"]
        assert [tool["name"] for tool in seeded["tools"]] == ["read", "search"]
        assert "Answer with the file and the column." in seeded["instructions"]
        assert "never an approval" in seeded["instructions"]
        assert [event.agent for event in only(events, "file.changed")] == ["lead"], "it only looks"
        assert any(event.data["output"] == "Column 1 of it." for event in only(events, "tool.finished"))
        proof = prove(folder)
        assert proof.ok, proof.problem
        assert not proof.unchecked
        path.unlink()
        assert prove(folder).problem is None, "the file was read again"
        put(repo, "librarian", ROLE.replace("column", "row"))
        with session_on(server.base_url, repo.root, resume=name, crew="on") as session:
            assert session.take_notices() == [
                "Role librarian changed since you trusted it. It is used as it was; `%muse trust` shows it."
            ]
            assert "changed since you trusted it, in use as it was" in session.roles_text()
            assert session.read(lambda core: core.agents.agents["librarian"].state) == "suspended"
        with session_on(server.base_url, repo.root, crew="on") as session:
            (told,) = session.take_notices()
            assert told == "Role librarian changed since you trusted it. It is not used; `%muse trust` shows it."
            assert "role.taken" not in kinds(session.events())
            session.trust_roles()
            assert len(session.rules.held) == 1
            assert session.distrust_roles() == "Not trusted any more: librarian."
            assert not session.rules.held
            assert session.read(lambda core: core.agents.agents["librarian"].state) == "retired"
            (retired,) = only(session.events(), "agent.retired")
            assert (retired.agent, retired.data["why"]) == ("librarian", "its role is not trusted any more")
            repo.commit({"answer.txt": "wrong\n"})
            assert end(start(session)).met
            failed = [event.data["output"] for event in only(session.events(), "tool.failed")]
            assert "There is no 'librarian' to ask. There are: explorer." in failed
            session.trust_roles()
            assert session.read(lambda core: core.agents.agents["librarian"].state) == "idle"
            # What somebody trusts in another terminal meanwhile is not trusted any more either, and one digest is.
            put(repo, "reader", ROLE)
            put(repo, "librarian", ROLE.replace("file", "name"))
            aside = run_aside(RoleTrust.of(repo.root, home_of(session), LiveEffects()))
            assert run_aside(aside.trust()).count("Trusted: ") == 2
            session.trust_roles()
            assert len(trusted_in(aside)) == 2
            assert session.distrust_roles() == "Not trusted any more: librarian, reader."
            assert trusted_in(aside) == []
            folder = session.folder
    proof = prove(folder)
    assert proof.ok, proof.problem


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("writer", ROLE.replace("search", "edit"), "Role writer: it cannot have edit. An agent of a role only looks"),
        ("runner", ROLE.replace("search", "run"), "Role runner: it cannot have run."),
        ("wild", ROLE.replace("read search", "*"), "Role wild: it cannot have *."),
        ("typo", ROLE.replace("search", "serach"), "Role typo: it cannot have serach."),
        ("none", ROLE.replace("read search", ""), "Role none: tools names at least one of"),
        ("lead", ROLE, "Role lead: there is an agent of ours by that name."),
        ("worker-9", ROLE, "Role worker-9: there is an agent of ours by that name."),
        ("reviewer-tests", ROLE, "Role reviewer-tests: there is an agent of ours by that name."),
        ("user", ROLE, "Role user: there is an agent of ours by that name."),
        ("Upper", ROLE, "Role 'Upper': the name of the file, before .md, is up to 31 small letters"),
        ("large", ROLE + "x" * 16_000, "Role large: the file has "),
        ("huge", ROLE + "x" * 2_000_000, "Role huge: "),
        ("latin", ROLE.encode("utf-8") + b"caf\xe9", "is not UTF-8. Save the file as UTF-8."),
        ("nul", ROLE + "\0", "Role nul: the file holds a NUL character."),
        ("bare", "Just text.\n", "Role bare: the file begins with a head between two lines of three dashes."),
        ("esc", ROLE.replace(PURPOSE, "Nice\x1b[2J"), "Role esc: the purpose holds a character that cannot be seen."),
        ("turn", ROLE.replace(PURPOSE, "Nice\u202e"), "Role turn: the purpose holds a character that cannot be seen."),
        ("dup", ROLE.replace("wakes: mail", "wakes: mail\nwakes: mail"), "Role dup: the head has purpose, tools"),
        ("woken", ROLE.replace("wakes: mail", "wakes: user"), "Role woken: wakes takes mail"),
        ("long", ROLE.replace(PURPOSE, "p" * 201), "Role long: the purpose is a sentence of 1 to 200 characters."),
        ("empty", ROLE.partition("Answer")[0], "Role empty: after the head comes what its agents are told."),
    ],
)
def test_what_cannot_be_used_is_said_in_a_line(tmp_path: Path, name: str, text: str | bytes, told: str) -> None:
    path = tmp_path / FOLDER / f"{name}.md"
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
    file = read_role(tmp_path, name)
    assert told in file.problem
    assert "\n" not in file.problem
    assert (file.text, file.digest, file.tools) == ("", "", ())


def test_a_link_out_of_the_repository_is_not_followed(repo: Repo, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "spy.md").write_text(ROLE)
    put(repo, "librarian", ROLE)
    os.symlink(outside / "spy.md", repo.root / FOLDER / "spy.md")
    with session_on(NOWHERE, repo.root, crew="on") as session:
        said = session.trust_roles().splitlines()
        assert said[-1].startswith("Role spy: .musecode/roles/spy.md leads out of the worktree.")
        assert list(session.read(lambda core: core.agents.agents)) == ["lead", "explorer", "verifier", "librarian"]
        assert [event.data["name"] for event in only(session.events(), "role.taken")] == ["librarian"]
    for each in (repo.root / FOLDER).iterdir():
        each.unlink()
    (repo.root / FOLDER).rmdir()
    os.symlink(outside, repo.root / FOLDER)
    with pytest.raises(UsageProblem, match="leads out of the worktree"):
        list_roles(repo.root)


def test_names_that_hold_orders_or_no_text_are_told_in_a_line(repo: Repo) -> None:
    put(repo, "librarian", ROLE)
    odd = ["new\nline\x1b[2J", "\udcff", *(f"z{number}" + "z" * 100 for number in range(20))]
    for name in odd:
        put(repo, name, ROLE)
    with session_on(NOWHERE, repo.root, crew="on") as session:
        (told,) = session.take_notices()
        said = session.trust_roles().splitlines()
    for line in (told, *said):
        assert line.isprintable()
        assert len(line) < 600
    # None of those takes the place of one that can be used.
    assert said[0].startswith("Trusted: librarian: ")
    for number in range(9):
        put(repo, f"also-{number}", ROLE)
    good, problems = usable(repo.root)
    assert len(good) == 8
    assert problems[-1] == "At most 8 roles are taken; left out: also-8, librarian."
