"""The `map` tool in a session: offered, answered from the agent's worktree, observed only where content is shown."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from fixtures.model_scripts import Answer, Call, Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Repo, end, only, session_on, start

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.session.looks import map_text
from musecode_jupyter.session.replay import prove


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / "home"))
    made = Repo(tmp_path / "repo")
    for folder in ("shop", "tests"):
        (made.root / folder).mkdir()
    made.commit(
        {
            "shop/__init__.py": "",
            "shop/cart.py": '"""The cart."""\n\n\ndef total(items):\n    return sum(items)\n',
            "shop/till.py": "from shop.cart import total\n\n\ndef pay(items):\n    return total(items)\n",
            "tests/test_cart.py": "from shop.cart import total\n",
        }
    )
    return made


def test_an_agent_asks_the_map_and_the_session_is_proved(repo: Repo) -> None:
    asked = [
        Call("map", {}),
        Call("map", {"path": "shop/cart.py"}),
        Call("map", {"symbol": "total"}),
        Call("map", {"query": "who pays"}),
        Call("map", {"path": "shop/gone.py"}),
    ]
    model = Steps([Answer("", asked), EDIT, DONE])
    with ModelServer(model) as server, session_on(server.base_url, repo.root) as session:
        assert end(start(session)).met
        offered = [tool["name"] for tool in json.loads(server.requests[0].body)["tools"]]
        events, folder = list(session.events()), session.folder
    assert "map" in offered
    calls = {
        event.seq: event.data["arguments"] for event in only(events, "tool.requested") if event.data["name"] == "map"
    }
    told = {event.data["call"]: event.data["output"] for event in only(events, "tool.finished")}
    whole, file, symbol, words = (told[seq] for seq in calls if seq in told)
    assert "shop/cart.py (5 lines, imported by 1 and 1 of the tests): The cart.\n    4 def total(items)\n" in whole
    assert "imported by: shop/till.py\ntests: tests/test_cart.py\n" in file
    assert "  shop/till.py: 1; pay 5\n" in symbol
    assert "4\tdef total(items):\n5\t    return sum(items)\n" in symbol
    assert words.startswith("shop/till.py")
    failed = [event.data["output"] for event in only(events, "tool.failed") if event.data["call"] in calls]
    assert ["no file or folder shop/gone.py" in why for why in failed] == [True]
    observed = {
        seq: [event.data["path"] for event in only(events, "file.observed") if event.data["call"] == seq]
        for seq in calls
    }
    assert list(observed.values()) == [[], ["shop/cart.py"], ["shop/cart.py"], [], []]
    proof = prove(folder)
    assert proof.ok, proof.problem
    assert not proof.unchecked


def test_the_user_sees_the_map_with_a_session_and_without_one_or_a_repository(repo: Repo, tmp_path: Path) -> None:
    with session_on("http://127.0.0.1:9/v1", repo.root) as session:
        assert session.map_text("shop/till.py").startswith("shop/till.py (5 lines)\n    4 def pay(items)\n")
        with pytest.raises(ToolProblem, match="no file or folder shop/tilt"):
            session.map_text("shop/tilt.py")
        told = session.map_text()
    assert asyncio.run(map_text(repo.root / "shop", LiveEffects(), "")) == told, (
        "it is not that of the whole repository"
    )
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "notes.py").write_text("def remember(): pass\n")
    assert "def remember()" in asyncio.run(map_text(bare, LiveEffects(), "remember"))
