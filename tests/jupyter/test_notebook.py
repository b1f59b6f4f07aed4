"""The user's notebook as agents see it, in real kernels: consent, questions about a failing cell, code, proposals."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.model_server import Answer, Call, ModelServer, ParsedRequest
from fixtures.pictures import png
from journal import Record, records, sessions, wait_for, wait_for_kind
from kernel import Cell, Kernel, kernel_environment

from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.notebook import notebook_tools, refused_document
from musecode_jupyter.tools.registry import Place

FAILING = "total, count = 3, 0\ntotal / count"


def obey(request: ParsedRequest) -> Answer:
    """Makes the call that the user's last message names, and answers with its result."""
    last = max(n for n, item in enumerate(request.items) if item["type"] == "message" and item["role"] == "user")
    results = [
        re.sub(r"\A<data \w+>\n|\n?</data \w+>\Z", "", item["output"])
        for item in request.items[last:]
        if item["type"] == "tool_result"
    ]
    order = re.fullmatch(r"call (\w+) (.*)", request.items[last]["text"], re.DOTALL)
    if order is None or results:
        return Answer("result: " + "\n".join(results) if results else "It divides by zero.")
    return Answer("I look.", [Call(order[1], json.loads(order[2]))])


Start = Callable[..., Kernel]


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(obey) as server:
        yield server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, server: ModelServer) -> Iterator[Kernel]:
    """A kernel with the extension, in which agents may see the notebook."""
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "work").mkdir()
    with Kernel(folder / "work", kernel_environment(server.base_url, folder / "home")) as kernel:
        kernel.home = folder / "home"  # type: ignore[attr-defined]
        kernel.run("%load_ext musecode_jupyter")
        kernel.run("%muse cells on")
        yield kernel


@pytest.fixture
def start(tmp_path: Path, server: ModelServer) -> Iterator[Start]:
    opened: list[Kernel] = []

    def start(**environment: str) -> Kernel:
        (tmp_path / "work").mkdir(exist_ok=True)
        settings = kernel_environment(server.base_url, tmp_path / "home", **environment)
        opened.append(Kernel(tmp_path / "work", settings))
        return opened[-1]

    yield start
    for kernel in opened:
        kernel.close()


def sent_texts(server: ModelServer) -> list[str]:
    """The texts of the messages in the last request."""
    return [part["text"] for item in server.requests[-1].json["input"] if "content" in item for part in item["content"]]


def control(kernel: Kernel, **content: Any) -> dict[str, Any]:
    """One request on the control channel, as the page makes it; its answer."""
    message = kernel.client.session.msg("musecode_request", content)
    kernel.client.control_channel.send(message)
    while True:
        reply = kernel.client.get_control_msg(timeout=30)
        if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
            assert reply["header"]["msg_type"] == "musecode_reply"
            return dict(reply["content"])


# --- questions about a failing cell --------------------------------------------------------------------


def test_the_first_magic_after_a_failing_cell_knows_which_and_why(start: Start, server: ModelServer) -> None:
    """Nothing was recorded yet when the cell failed: the extension was loaded afterwards."""
    kernel = start()
    kernel.execute(FAILING)
    kernel.run("%load_ext musecode_jupyter")
    cell = kernel.run("%muse ask why is this wrong")
    assert cell.stdout == (
        "With the question goes the cell that failed (ZeroDivisionError), and its traceback.\nIt divides by zero.\n"
    )
    attached, question = sent_texts(server)[-2:]
    assert question == "why is this wrong"
    for text in ("cell In[1] failed: ZeroDivisionError", "total / count", "----> 2", "division by zero"):
        assert text in attached
    assert re.search(r"the chain is whole\.\n.*; 1 prompts rebuilt byte for byte", kernel.run("%muse verify").stdout)


def test_without_consent_only_a_question_about_the_failure_carries_the_cell(start: Start, server: ModelServer) -> None:
    kernel = start()
    kernel.run("%load_ext musecode_jupyter")
    kernel.run("%muse cells")
    kernel.run("print('before')")
    kernel.execute(FAILING)
    other = kernel.run("%muse ask Name a prime number")
    assert other.stdout == (
        "The last cell failed. `%muse cells on` lets agents see cells and variables.\nIt divides by zero.\n"
    )
    assert sent_texts(server) == ["Name a prime number"]
    asked = kernel.run("%%muse ask\nWhat does ZeroDivisionError mean?")
    assert asked.stdout.startswith("With the question goes the cell that failed (ZeroDivisionError)")
    assert "cell In[4] failed" in sent_texts(server)[-2]
    assert "before" not in sent_texts(server)[-2], "another cell went along"
    # What was said holds: off means not even that.
    kernel.run("%muse cells off")
    kernel.execute(FAILING)
    assert kernel.run("%muse ask why is this wrong").stdout == "It divides by zero.\n"
    assert kernel.run('%muse ask call cells {"cell": "In[4]"}').stdout.startswith(
        "result: The user has not allowed agents to see the notebook."
    )
    kernel.run("%muse cells on")
    kernel.run("1 + 1")
    assert kernel.run("%muse ask why is this wrong").stdout == "It divides by zero.\n", (
        "a cell that succeeded went along"
    )


def test_consent_can_be_given_in_the_configuration(start: Start) -> None:
    kernel = start()
    kernel.run("get_ipython().config.MuseCode.cells = 'on'")
    kernel.run("%load_ext musecode_jupyter")
    assert kernel.run('%muse ask call variables {"names": "nothing"}').stdout == "result: No variables.\n"


# --- what agents see -----------------------------------------------------------------------------------


def test_agents_see_cells_by_id_with_outputs_and_errors(shared: Kernel) -> None:
    def cell(code: str, cell_id: str) -> Cell:
        message = shared.client.session.msg(
            "execute_request",
            {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "stop_on_error": False},
        )
        message["metadata"] = {"cellId": cell_id}
        shared.client.shell_channel.send(message)
        sent = Cell(message["header"]["msg_id"])
        shared._cells[sent.msg_id] = sent
        return shared.finish(sent)

    cell("from IPython.display import display, HTML\nprint('printed')\ndisplay(HTML('<b>x</b>'))\n6 * 7", "abc-1")
    cell("import base64\ndisplay({'image/png': 'aGVsbG8='}, raw=True)", "abc-2")
    cell("import sys\nprint('progress 1\\rprogress 2', file=sys.stderr)\nraise KeyError('gone')", "abc-3")
    text = shared.run('%muse ask call cells {"cell": "abc-1"}').stdout
    for part in ("cell abc-1 In[", "done", "    printed", "HTML object", "    42"):
        assert part in text
    text = shared.run('%muse ask call cells {"cell": "abc-2"}').stdout
    assert "[image/png, 8 characters, not shown: damaged]" in text
    failed = shared.run('%muse ask call cells {"cell": "abc-3"}').stdout
    assert "failed: KeyError" in failed
    assert "output:\n    progress 2\n" in failed
    assert "----> 3 raise KeyError('gone')" in failed
    # Run again, a cell is there once, as it is now.
    cell("print('other')", "abc-3")
    listed = shared.run("%muse ask call cells {}").stdout
    assert len(re.findall(r"^(?:result: )?cell abc-3 .*\|", listed, re.M)) == 1
    assert "KeyError" not in listed.split("cell abc-3")[1]
    gone = shared.run('%muse ask call cells {"cell": "abc-9"}').stdout
    assert "There is no cell 'abc-9' any more" in gone


SHOW_PNG = (
    "import base64\nfrom IPython.display import Image, display\n"
    f"display(Image(base64.b64decode('{base64.b64encode(png(64, 48)).decode()}')))\n"
)


def pictures_in(server: ModelServer) -> list[bytes]:
    sent = re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", json.dumps(server.requests[-1].json))
    return [base64.b64decode(each) for each in sent]


def test_a_model_that_takes_pictures_is_shown_those_of_cells_and_of_its_code(start: Start, server: ModelServer) -> None:
    kernel = start()
    kernel.run("%load_ext musecode_jupyter")
    kernel.run("%muse cells on")
    kernel.run("%muse rules add session 'tool run_in_kernel'")
    kernel.run(SHOW_PNG)
    said = kernel.run('%muse ask call cells {"cell": "In[4]"}').stdout
    assert "[picture 1: image/png, 64 x 48 pixels]" in said
    assert pictures_in(server) == [png(64, 48)]
    assert "Picture 1 of cell In[4]" in json.dumps(server.requests[-1].json)
    # A cell that failed takes its pictures along.
    kernel.execute(f"{SHOW_PNG}\n1 / 0")
    kernel.run("%muse ask why is this wrong")
    assert pictures_in(server) == [png(64, 48)] * 2
    # What its own code shows.
    kernel.run("1 + 1")
    kernel.run(f"%muse ask {call_code(SHOW_PNG)}")
    assert pictures_in(server) == [png(64, 48)] * 3
    assert "Picture 1 of what the code showed" in json.dumps(server.requests[-1].json)
    assert re.search(r"the chain is whole\.\n.*; 5 prompts rebuilt byte for byte", kernel.run("%muse verify").stdout)


def test_a_model_that_takes_none_is_told_of_pictures_in_words(start: Start, server: ModelServer) -> None:
    kernel = start(MUSECODE_PICTURES="no")
    kernel.run("%load_ext musecode_jupyter")
    kernel.run("%muse cells on")
    kernel.run(SHOW_PNG)
    kernel.run('%muse ask call cells {"cell": "In[3]"}')
    assert pictures_in(server) == []
    assert "Picture 1 of cell In[3] (not shown: this model takes no pictures)" in sent_texts(server)[-1]
    assert "2 prompts rebuilt byte for byte" in kernel.run("%muse verify").stdout


def test_output_that_comes_after_the_cell_is_still_its_own(shared: Kernel) -> None:
    first = shared.run("import threading\ndef late():\n    flag.wait(30); print('late')\nflag = threading.Event()")
    shared.run("thread = threading.Thread(target=late); thread.start()")
    number = int(shared.run("len(In) - 2").result or 0)
    shared.run("flag.set(); thread.join()")
    assert first.error is None
    text = shared.run(f"%muse cells {number}").stdout
    assert "thread.start()" in text


def test_agents_see_variables_by_summary_and_no_secrets(shared: Kernel) -> None:
    shared.run("loss, names, api_key, nothing = 0.25, ['a', 'b'], 'abcdefgh', None")
    text = shared.run('%muse ask call variables {"names": "loss, names, api_*, nothing"}').stdout
    assert text == (
        "result: loss: float = 0.25\n"
        "names: list length 2\n"
        "api_key: str (hidden: the name looks like that of a secret)\n"
        "nothing: NoneType = None\n"
    )
    assert shared.run("%muse vars loss").stdout == "Agents may see this:\nloss: float = 0.25\n"


def test_hostile_objects_are_told_by_their_type(shared: Kernel) -> None:
    shared.run(
        "class Meta(type):\n"
        "    def __getattribute__(cls, name): raise SystemExit(name)\n"
        "class Hostile(metaclass=Meta):\n"
        "    def __getattribute__(self, name): raise SystemExit(name)\n"
        "    def __repr__(self): raise SystemExit\n"
        "    __len__ = __sizeof__ = __repr__\n"
        "hostile = Hostile()\n"
        "class Long(list):\n"
        "    def __len__(self): raise SystemExit\n"
        "long = Long([1, 2, 3])"
    )
    assert shared.run("%muse vars hostile,long").stdout.endswith("\nhostile: Hostile\nlong: Long length 3\n")
    shared.run("for n in range(10_000): globals()[f'many_{n}'] = hostile")
    text = shared.run("%muse vars many_*").stdout
    assert text.count("\n") == 102
    assert "and 9900 older ones" in text


# --- code in the kernel --------------------------------------------------------------------------------


def call_code(code: str, **more: object) -> str:
    return "call run_in_kernel " + json.dumps({"code": code, **more})


def approve_next(kernel: Kernel, home: Path, count: int = 1, decision: str = "approve") -> Record:
    """Answer a question on the control channel, while a cell waits or blocks."""
    wait_for_kind(home, "approval.requested", count)
    limit = time.monotonic() + 30
    while not (cards := control(kernel, type="state")["pending"]):
        # On disk a moment before the host is told of it.
        assert time.monotonic() < limit
    (card,) = cards
    wrong = control(kernel, type="answer", approval=card["approval"], digest="0" * 32, decision=decision)
    assert wrong["ok"] is False
    answer = control(
        kernel, type="answer", approval=card["approval"], digest=card["digest"], decision=decision, why="no"
    )
    assert answer == {"ok": True}
    return card


def test_a_waiting_question_lends_its_cell_to_the_code(start: Start, tmp_path: Path) -> None:
    """Both would wait for ever if the code waited for the end of the cell that waits for the agent."""
    kernel = start()
    kernel.run("%load_ext musecode_jupyter")
    kernel.run("x = 41")
    asking = kernel.send(f"%muse ask {call_code('x = x + 1; print(x)', keep=['x'])}")
    kernel.wait_until(lambda: asking.displays, 30, "the question is not shown in the cell that waits")
    card = approve_next(kernel, tmp_path / "home")
    assert card["what"] == "x = x + 1; print(x)"
    assert kernel.finish(asking).stdout == "result: 42\n[finished; kept: x]\n"
    (views,) = asking.displays
    assert views["text/plain"].startswith("Approvals(")
    assert kernel.run("x").result == "42"
    asking = kernel.send(f"%muse ask {call_code('x = 0', namespace='own')}")
    approve_next(kernel, tmp_path / "home", 2, "deny")
    assert "Denied (the user's answer). The user says: no" in kernel.finish(asking).stdout
    assert kernel.run("x").result == "42"


def test_code_waits_for_a_blocking_cell_and_says_so(start: Start, tmp_path: Path) -> None:
    kernel = start()
    home, flag = tmp_path / "home", tmp_path / "flag"
    kernel.run("%load_ext musecode_jupyter")
    kernel.run("import asyncio, pathlib, time; order = []")
    kernel.run("%muse rules add session 'tool run_in_kernel'")
    # A question that does not hold a cell: asked from Python, awaited by nobody.
    kernel.run("session = get_ipython().magics_manager.registry['MuseMagics']._host.open")
    order = call_code("order.append('code'); len(order)")
    blocking = kernel.send(
        f"asked = session._runtime.submit(session.core.ask({order!r}))\n"
        f"while not pathlib.Path({str(flag)!r}).exists(): await asyncio.sleep(0.01)\n"
        "order.append('cell')"
    )
    waiting = wait_for_kind(home, "kernel.waiting")
    assert waiting["data"]["why"] == "waits for the running cell"
    seen = wait_for(
        home, lambda seen: any(r["kind"] == "agent.state" and r["data"]["state"] == "waiting" for r in seen)
    )
    assert "kernel.running" not in {record["kind"] for record in seen}
    flag.touch()
    kernel.finish(blocking)
    wait_for_kind(home, "kernel.running")
    done = wait_for_kind(home, "tool.finished")
    assert done["data"]["output"] == "2\n[finished]"
    assert kernel.run("order").result == "['cell', 'code']"
    seen = wait_for(home, lambda seen: any(r["data"].get("state") == "idle" for r in seen))
    states = [r["data"]["state"] for r in seen if r["kind"] == "agent.state"]
    assert states == ["running", "waiting", "running", "idle"]


def test_allow_workspace_does_not_reach_into_the_kernel(start: Start) -> None:
    kernel = start(MUSECODE_APPROVALS="allow-workspace")
    kernel.run("%load_ext musecode_jupyter")
    denied = kernel.run(f"%muse ask {call_code('touched = 1', namespace='own')}").stdout
    assert "Denied (allow-workspace covers an agent's own worktree, not your checkout or kernel)" in denied
    assert kernel.run("'touched' in globals()").result == "False"
    kernel.run("%muse rules add session 'tool run_in_kernel'")
    assert "[finished]" in kernel.run(f"%muse ask {call_code('touched = 1', namespace='own')}").stdout
    assert kernel.run("touched").result == "1"


def test_typed_code_runs_in_its_cell_and_is_an_event(shared: Kernel) -> None:
    shared.run("a = {'b': 1}")
    assert shared.run("%muse run c = {'b': a['b'] + 1}; print(c)").stdout == "{'b': 2}\n[finished]\n"
    assert shared.run("'c' in globals()").result == "False"
    kept = shared.run("%%muse run --keep c --timeout 5\nc = a\nf\"{c['b']}\"")
    assert kept.stdout == "'1'\n[finished; kept: c]\n"
    assert shared.run("c is a").result == "True"
    assert shared.run("%muse run --own a = 2").stdout == "[finished]\n"
    assert shared.run("a").result == "2"
    assert "NameError: name 'nowhere' is not defined\n[failed]" in shared.run("%muse run nowhere").stdout
    assert "ended after the limit of 0.2 s" in shared.run("%muse run --timeout 0.2 while True: pass").stdout
    finished = [r for r in records(sessions(shared.home)[0]) if r["kind"] == "tool.finished" and r["agent"] == "user"]  # type: ignore[attr-defined]
    assert finished[0]["data"]["output"] == "{'b': 2}\n[finished]"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("%muse run", "What is to run?"),
        ("%muse run --own", "What is to run?"),
        ("%muse run --keep a-b x", "--keep takes names between commas, not 'a-b'"),
        ("%muse run --timeout soon x", "--timeout takes seconds, not 'soon'"),
        ("%muse run --timeout 0 x", "above 0"),
        ("%muse run --fast x", "There is no option --fast"),
        ("%muse cells nowhere", "There is no cell 'nowhere' any more"),
    ],
)
def test_bad_input_gets_one_clear_line(shared: Kernel, code: str, says: str) -> None:
    cell = shared.execute(code)
    assert cell.error is not None
    assert cell.error.startswith("UsageError: ")
    assert says in cell.error
    assert "\n" not in cell.error


# --- proposals and open notebooks ----------------------------------------------------------------------


def test_a_page_that_was_not_heard_of_yet_is_asked_before_a_proposal_becomes_a_new_cell(
    start: Start, tmp_path: Path
) -> None:
    """A page asks how things stand once it is told that something changes. Where the model was faster than that, the
    proposal became a cell of its own, and the page waited for a question that nobody had put."""
    kernel = start()
    kernel.run("%load_ext musecode_jupyter")
    kernel.run("%muse cells on")
    kernel.run("value = 1")
    order = json.dumps({"cell": f"In[{kernel.run('len(In) - 2').result}]", "source": "value = 2", "why": "More."})
    kernel.run("from musecode_jupyter.jupyter import control; control.HEARD_S = 60")
    asking = kernel.send(f"%muse ask call propose_cell {order}")
    wait_for_kind(tmp_path / "home", "tool.requested")
    limit = time.monotonic() + 60
    while not (cards := control(kernel, type="state", document="work/page.ipynb")["pending"]):
        assert time.monotonic() < limit
    (card,) = cards
    assert "+value = 2" in card["diff"]
    decided = {"approval": card["approval"], "digest": card["digest"], "decision": "deny", "why": "no"}
    assert control(kernel, type="answer", **decided) == {"ok": True}
    assert kernel.finish(asking).reply["content"]["payload"] == []  # type: ignore[index]


def test_without_a_page_a_proposal_becomes_a_new_cell(shared: Kernel) -> None:
    shared.run("value = 1")
    number = int(shared.run("len(In) - 2").result or 0)
    order = json.dumps({"cell": f"In[{number}]", "source": "value = 2", "why": "One is too little."})
    asked = shared.run(f"%muse ask call propose_cell {order}")
    assert "Proposed: One is too little." in asked.stdout
    assert "-value = 1\n+value = 2" in asked.stdout
    assert asked.reply is not None
    assert asked.reply["content"]["payload"] == [{"source": "set_next_input", "text": "value = 2", "replace": False}]
    assert shared.run("value").reply["content"]["payload"] == []  # type: ignore[index]
    gone = shared.run('%muse ask call propose_cell {"cell": "abc-99", "source": "x"}')
    assert "There is no cell 'abc-99' any more" in gone.stdout
    assert gone.reply is not None
    assert gone.reply["content"]["payload"] == []


def test_an_open_notebook_is_not_edited_behind_its_back(tmp_path: Path) -> None:
    """Where the front end has it open, its next save would overwrite the change, or lose its own."""
    kept = tmp_path / "checkout" / "open.ipynb"
    other = tmp_path / "checkout" / "other.ipynb"
    tree = tmp_path / "worktree"
    for folder in (tree, tmp_path / "checkout"):
        folder.mkdir()
        for name in ("open.ipynb", "other.ipynb"):
            (folder / name).write_text('{"cells": []}')

    class Documents:
        def open_documents(self) -> list[Path]:
            return [kept, Path("elsewhere/other.ipynb")]

    notebook: Any = Documents()
    edit = next(tool for tool in notebook_tools(notebook) if tool.name == "edit")
    assert edit.plan is not None
    context: Any = SimpleNamespace(place=Place(tree, 1, no_files, tmp_path / "checkout"))
    for path in ("open.ipynb", "./open.ipynb"):
        arguments = edit.arguments.model_validate({"path": path, "old": "[]", "new": "[1]"})
        with pytest.raises(ToolProblem, match=r"is open in the user's notebook.*propose_cell"):
            asyncio.run(edit.plan(context, arguments))
    assert refused_document(notebook, tree, tmp_path / "checkout", "other.ipynb") is None
    assert refused_document(notebook, tree, None, "elsewhere/other.ipynb") is not None
    assert other.read_text() == kept.read_text() == '{"cells": []}'


async def no_files() -> list[str]:
    return []


# --- the control channel and subshells -----------------------------------------------------------------


def test_requests_on_the_control_channel_are_answered_while_a_cell_blocks(start: Start, tmp_path: Path) -> None:
    kernel, flag = start(), tmp_path / "flag"
    kernel.run("%load_ext musecode_jupyter")
    kernel.run("%muse cells on")
    nothing = {"session": None, "pending": [], "running": False, "settle": 0}
    nothing["findings"] = {"since": 0, "upto": 0, "findings": []}
    state = control(kernel, type="state")
    assert state == {"ok": True, "at": state["at"], **nothing}
    assert control(kernel, type="stop") == {"ok": False, "problem": "No session is open."}
    kernel.run("%muse ask hello")
    kernel.run("import pathlib, time")
    blocking = kernel.send(f"while not pathlib.Path({str(flag)!r}).exists(): time.sleep(0.01)")
    assert control(kernel, type="state")["session"] == sessions(tmp_path / "home")[0].name
    assert control(kernel, type="stop") == {
        "ok": False,
        "problem": "Nothing is running: there is no goal and no question.",
    }
    assert control(kernel, type="dance") == {"ok": False, "problem": "There is no request 'dance'."}
    assert control(kernel, type="answer", approval="1")["ok"] is False
    missing = control(kernel, type="answer", approval=1, digest="0" * 32, decision="approve")
    assert "Approval 1" in missing["problem"]
    assert control(kernel, type="settle", number="1", word="answer", text="")["ok"] is False
    unknown = control(kernel, type="settle", number=1, word="withdraw", text="")
    assert unknown == {"ok": False, "problem": "There is no finding 1. There are: none yet."}
    assert not blocking.idle
    flag.touch()
    kernel.finish(blocking)


ASKED_WHILE_IT_CLOSES = """
import threading, time
host = get_ipython().magics_manager.registry["MuseMagics"].host
handlers, arrived = get_ipython().kernel.control_handlers, threading.Event()
serve = handlers["musecode_request"]
handlers["musecode_request"] = lambda *message: (serve(*message), arrived.set())[0]
session, answered = host.open, []
session.post(lambda: session.core.log.on_durable(
    lambda event: event.kind == "session.closed" and (flag.touch(), answered.append(arrived.wait(30)))
))
arrived.clear()
"""


def test_who_asks_while_the_session_closes_is_told_of_no_question(start: Start, tmp_path: Path) -> None:
    """The page asks whenever the kernel says that something has changed, and showed the question for good: the session
    takes a while to close, and the extension that is being unloaded says nothing afterwards."""
    kernel, flag = start(), tmp_path / "closing"
    kernel.run("%load_ext musecode_jupyter")
    kernel.run("%muse ask hello")
    kernel.run(f"import pathlib; flag = pathlib.Path({str(flag)!r})")
    kernel.run(ASKED_WHILE_IT_CLOSES)
    call = call_code("never = 1", namespace="own")
    kernel.run(f"import asyncio; asking = asyncio.ensure_future(session.ask({call!r}))")
    wait_for_kind(tmp_path / "home", "approval.requested")
    limit = time.monotonic() + 30
    while not control(kernel, type="state")["pending"]:
        assert time.monotonic() < limit
    kernel.run("arrived.clear()")
    closing = kernel.send("%muse close")
    kernel.wait_until(flag.exists, 30, "the session does not close")
    state = control(kernel, type="state")
    assert (state["pending"], state["running"]) == ([], False)
    kernel.finish(closing)
    assert kernel.run("answered").result == "[True]"


@pytest.mark.parametrize("door", ["page", "interrupt"])
def test_a_stop_ends_the_question_that_a_cell_waits_for(start: Start, tmp_path: Path, door: str) -> None:
    """It ended goals only: the page said that no goal was running, and nothing ended an answer that went astray."""
    kernel = start()
    kernel.run("%load_ext musecode_jupyter")
    asking = kernel.send(f"%muse ask {call_code('never = 1', namespace='own')}")
    kernel.wait_until(lambda: asking.displays, 30, "the question is not shown in the cell that waits")
    if door == "page":
        assert control(kernel, type="stop") == {"ok": True}
        assert kernel.finish(asking).error == "UsageError: The question was ended: stopped from the page."
    else:
        kernel.interrupt()
        assert kernel.finish(asking).error == "KeyboardInterrupt: the question was ended"
    state = control(kernel, type="state")
    assert (state["pending"], state["running"]) == ([], False)
    again = kernel.run("%muse ask hello")
    assert (again.stdout, again.stderr) == ("It divides by zero.\n", "")
    assert kernel.run("'never' in globals()").result == "False"


@pytest.mark.parametrize("door", ["timeline", "magic"])
def test_a_stop_ends_a_question_that_no_cell_waits_for(start: Start, tmp_path: Path, door: str) -> None:
    kernel, home = start(), tmp_path / "home"
    kernel.run("%load_ext musecode_jupyter")
    (bundle,) = kernel.run("%muse ask hello\n%muse timeline").displays
    kernel.run("session = get_ipython().magics_manager.registry['MuseMagics'].host.open")
    kernel.run(f"asked = session._runtime.submit(session.core.ask({call_code('never = 1')!r}))")
    wait_for_kind(home, "approval.requested")
    if door == "magic":
        assert kernel.run("%muse stop").stdout.endswith("Stopped; what was done so far is kept.\n")
    else:
        data = {"method": "custom", "content": {"type": "stop"}}
        comm = bundle["application/vnd.jupyter.widget-view+json"]["model_id"]
        message = kernel.client.session.msg("comm_msg", {"comm_id": comm, "data": data})
        kernel.client.shell_channel.send(message)
    wait_for_kind(home, "user.interrupt")
    assert kernel.run("import concurrent.futures as f; len(f.wait([asked], 30).done)").result == "1"
    assert "Stopped: The question was ended" in str(kernel.execute("asked.result()").error)


def test_a_subshell_console_answers_and_its_code_waits(start: Start, tmp_path: Path) -> None:
    kernel, flag, home = start(), tmp_path / "flag", tmp_path / "home"
    info = kernel.client.kernel_info(reply=True, timeout=30)["content"]
    if "kernel subshells" not in info.get("supported_features", ()):
        pytest.skip("this ipykernel has no subshells")
    kernel.run("%load_ext musecode_jupyter")
    kernel.run("import pathlib, time; order = []; x = 20")

    def new_subshell() -> str:
        kernel.client.control_channel.send(kernel.client.session.msg("create_subshell_request", {}))
        return str(kernel.client.get_control_msg(timeout=30)["content"]["subshell_id"])

    def in_subshell(subshell: str, code: str) -> Cell:
        content = {"code": code, "silent": False, "allow_stdin": True, "stop_on_error": False}
        message = kernel.client.session.msg("execute_request", content)
        message["header"]["subshell_id"] = subshell
        kernel.client.shell_channel.send(message)
        sent = Cell(message["header"]["msg_id"])
        kernel._cells[sent.msg_id] = sent
        return sent

    one, other = new_subshell(), new_subshell()
    blocking = kernel.send(f"while not pathlib.Path({str(flag)!r}).exists(): time.sleep(0.01)\norder.append('cell')")
    asking = in_subshell(one, f"%muse ask {call_code('order.append(x)')}")
    asked = wait_for_kind(home, "approval.requested")
    answered = kernel.finish(in_subshell(other, f"%approve {asked['seq']}"))
    assert answered.stdout.startswith(f"Approved {asked['seq']}."), answered.shown
    wait_for_kind(home, "kernel.waiting")
    assert not blocking.idle
    assert not asking.idle
    flag.touch()
    kernel.finish(blocking)
    assert "[finished]" in kernel.finish(asking).stdout
    typed = kernel.finish(in_subshell(other, "%muse run order.append('typed')"))
    assert typed.stdout.endswith("[finished]\n")
    assert kernel.run("order").result == "['cell', 20, 'typed']"
