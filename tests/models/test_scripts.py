"""The scripted models: they repair every fixture repository, also after bad results; the server is strict."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fixtures.model_scripts import REPOS, ParsedRequest, RepairModel, load_repairs
from fixtures.model_server import ModelServer

from musecode_jupyter.models.chat import ChatClient
from musecode_jupyter.models.messages import MessagesClient
from musecode_jupyter.models.responses import ResponsesClient
from musecode_jupyter.models.types import Final, Item, Message, ModelRequest, ToolCall, ToolResult, ToolSpec
from musecode_jupyter.runtime.errors import ModelError

CLIENTS = {"responses": ResponsesClient, "chat": ChatClient, "messages": MessagesClient}
NAMES = sorted(path.parent.name for path in REPOS.glob("*/repair.json"))
VERIFY = "python -m pytest -q"
TOOLS = tuple(
    ToolSpec(name=name, description=name, parameters={"type": "object"}) for name in ("edit", "read", "run", "search")
)
GOAL = Message(role="user", text=f"Make the tests pass.\nverify: {VERIFY}")

Twist = Callable[[str, int, str], str]
"""Changes a tool's result: name of the tool, how many calls of it came before, result."""


class Repository:
    """The files of a fixture repository in memory, and plain tools on them."""

    def __init__(self, name: str) -> None:
        root = REPOS / name / "repo"
        self.files = {
            str(path.relative_to(root)): path.read_text("utf-8") for path in root.rglob("*.py") if path.is_file()
        }

    def run_tool(self, name: str, arguments: dict[str, Any]) -> str:
        if name == "run":
            assert arguments == {"command": VERIFY}
            return "exit 1\n1 failed"
        if name == "search":
            found = re.compile(arguments["pattern"])
            return "\n".join(
                f"{path}:{number}: {line}"
                for path, text in self.files.items()
                for number, line in enumerate(text.splitlines(), 1)
                if found.search(line)
            )
        text = self.files[arguments["path"]]
        if name == "read":
            return "\n".join(text.splitlines()[arguments["start_line"] - 1 : arguments["end_line"]])
        if text.count(arguments["old"]) != 1:
            return "error: old text not found once"
        self.files[arguments["path"]] = text.replace(arguments["old"], arguments["new"])
        return "1 line changed"


def drive(api: str, base_url: str, repository: Repository, twist: Twist = lambda *given: given[2]) -> list[ToolCall]:
    """A plain agent loop: ask, do what is called for, until an answer has no calls."""
    made: list[ToolCall] = []

    async def loop() -> None:
        items: list[Item] = [GOAL]
        async with httpx.AsyncClient(verify=False, trust_env=False) as http:
            client = CLIENTS[api](http, base_url, None)
            for _ in range(20):
                request = ModelRequest(model="scripted", instructions="Mend.", items=tuple(items), tools=TOOLS)
                final = [part async for part in client.stream(request)][-1]
                assert isinstance(final, Final)
                items += final.items
                calls = [item for item in final.items if isinstance(item, ToolCall)]
                if not calls:
                    return
                for call in calls:
                    before = sum(earlier.name == call.name for earlier in made)
                    output = twist(call.name, before, "")
                    output = output or repository.run_tool(call.name, json.loads(call.arguments))
                    made.append(call)
                    items.append(ToolResult(call_id=call.call_id, output=output))
            raise AssertionError("the scripted model did not come to an end")

    asyncio.run(loop())
    return made


def mended(repository: Repository, name: str) -> bool:
    return all(edit["new"] in repository.files[edit["path"]] for edit in load_repairs(name)[0])


@pytest.mark.parametrize("api", CLIENTS)
@pytest.mark.parametrize("name", NAMES)
def test_driver_repairs_every_fixture_knowing_all_repairs(api: str, name: str) -> None:
    repository = Repository(name)
    with ModelServer(RepairModel(load_repairs())) as server:
        made = drive(api, server.base_url, repository)
        assert all(seen.status == 200 for seen in server.requests)
    assert mended(repository, name)
    names = [call.name for call in made]
    assert names[0] == "run"
    assert names[-3:] == ["read", "read", "edit"]
    assert len({call.call_id for call in made}) == len(made)


@pytest.mark.parametrize(
    ("twist", "succeeds"),
    [
        (
            lambda tool, before, _: "outcome unknown: the process was killed" if (tool, before) == ("run", 0) else "",
            True,
        ),
        (
            lambda tool, before, _: "outcome unknown: killed during the write" if (tool, before) == ("edit", 0) else "",
            True,
        ),
        (lambda tool, before, _: "error: the file changed" if (tool, before) == ("edit", 0) else "", True),
        (lambda tool, before, _: "error: disk full" if tool == "edit" else "", False),
        (lambda tool, before, _: "denied by the user" if tool == "edit" else "", False),
        (lambda tool, before, _: "denied by the user" if tool == "run" else "", True),
    ],
    ids=["run unknown", "edit unknown", "edit failed once", "edit always fails", "edit denied", "run denied"],
)
def test_driver_goes_on_sensibly_after_bad_results(twist: Twist, succeeds: bool) -> None:
    repository = Repository(NAMES[0])
    with ModelServer(RepairModel(load_repairs(NAMES[0]))) as server:
        made = drive("responses", server.base_url, repository, twist)
    assert mended(repository, NAMES[0]) is succeeds
    assert sum(call.name == "edit" for call in made) <= 3
    assert sum(call.name == "run" for call in made) == 1


def test_driver_sees_that_an_unknown_edit_had_been_applied() -> None:
    """Killed between write and result: the edit must not be made twice."""
    repository = Repository(NAMES[0])

    def twist(tool: str, before: int, _: str) -> str:
        if tool != "edit":
            return ""
        edit = load_repairs(NAMES[0])[0][0]
        repository.run_tool("edit", dict(edit))
        return "outcome unknown"

    with ModelServer(RepairModel(load_repairs(NAMES[0]))) as server:
        made = drive("chat", server.base_url, repository, twist)
    assert [call.name for call in made].count("edit") == 1


def parsed(schema: dict[str, Any]) -> ParsedRequest:
    return ParsedRequest("chat", "scripted", "", (), (), schema, {})


def test_guided_model_chooses_the_known_line_or_leaves_the_first_as_it_is() -> None:
    edit = load_repairs(NAMES[0])[0][0]
    model = RepairModel(load_repairs())

    def answer(*choices: str) -> dict[str, str]:
        schema = {"properties": {"thought": {}, "old_line": {"enum": list(choices)}, "new_line": {}}}
        reply: dict[str, str] = json.loads(model(parsed(schema)).text)
        assert list(reply) == ["thought", "old_line", "new_line"]
        return reply

    chosen = answer("import os", edit["old"].strip())
    assert (chosen["old_line"], chosen["new_line"]) == (edit["old"].strip(), edit["new"].strip())
    other = answer("import os", "x = 1")
    assert (other["old_line"], other["new_line"]) == ("import os", "import os")


def test_server_as_a_program_tells_its_address_and_what_it_was_sent() -> None:
    script = Path(REPOS).parent / "model_server.py"
    command = [
        sys.executable,
        str(script),
        "--script",
        "repair",
        "--api",
        "chat",
        "--port",
        "0",
        "--key",
        "k",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            base_url = process.stdout.readline().strip()
            with httpx.Client(verify=False, trust_env=False) as http:
                models = http.get(f"{base_url}/models").json()
                assert "muse-spark-1.3" in [model["id"] for model in models["data"]]
                http.post(f"{base_url}/responses", json={})
                http.post(f"{base_url}/chat/completions", json={"model": "x"})
                seen = http.get(base_url.removesuffix("/v1") + "/_requests").json()
            assert [(one["path"], one["status"]) for one in seen] == [
                ("/v1/responses", 404),
                ("/v1/chat/completions", 401),
            ]
            assert json.loads(seen[1]["body"]) == {"model": "x"}
        finally:
            process.kill()


GOOD: dict[str, Any] = {
    "model": "scripted",
    "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}],
    "max_output_tokens": 16,
}
CALL = {"type": "function_call", "call_id": "c", "name": "run", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": ""}
TOOL = {"type": "function", "name": "run", "description": "", "parameters": {}}


@pytest.mark.parametrize(
    "change",
    [
        {"stop": ["x"]},
        {"n": 2},
        {"response_format": {}},
        {"tool_choice": "required"},
        {"truncation": "auto"},
        {"max_output_tokens": 15},
        {"max_output_tokens": True},
        {"reasoning": {"effort": "none"}},
        {"reasoning": {"effort": "max"}},
        {"include": ["reasoning.encrypted_content"], "previous_response_id": "r"},
        {"tools": [{"type": "function", "function": {"name": "run", "parameters": {}}}]},
        {"tools": [{**TOOL, "name": "a.b.c"}]},
        {"input": [CALL]},
        {"input": [OUTPUT]},
        {"input": [CALL, OUTPUT, OUTPUT]},
        {"input": [CALL, CALL, OUTPUT]},
        {"input": [{**CALL, "arguments": "{"}, OUTPUT]},
        {"input": [{**CALL, "call_id": "c" * 65}, {**OUTPUT, "call_id": "c" * 65}]},
        {"input": [{**CALL, "status": "completed"}, OUTPUT]},
        {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "enc.other"}, CALL, OUTPUT]},
        {"input": [{"type": "message", "role": "assistant", "content": [{"type": "input_text", "text": "x"}]}]},
    ],
)
def test_server_refuses_what_the_api_refuses(change: dict[str, Any]) -> None:
    with (
        ModelServer(RepairModel(load_repairs())) as server,
        httpx.Client(verify=False, trust_env=False) as http,
    ):
        assert http.post(f"{server.base_url}/responses", json=GOOD).status_code == 200
        answer = http.post(f"{server.base_url}/responses", json={**GOOD, **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_unknown_model_is_named() -> None:
    with ModelServer(RepairModel(load_repairs())) as server:

        async def run() -> None:
            async with httpx.AsyncClient(verify=False, trust_env=False) as http:
                request = ModelRequest(model="muse-spark-9", instructions="", items=(GOAL,))
                async for _ in ChatClient(http, server.base_url, None).stream(request):
                    raise AssertionError("the server must refuse this")

        with pytest.raises(ModelError, match="muse-spark-9") as caught:
            asyncio.run(run())
    assert caught.value.kind == "not_found"
