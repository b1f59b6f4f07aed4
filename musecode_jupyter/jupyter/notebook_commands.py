"""What `%muse ask`, `cells`, `vars` and `run` do."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass
from typing import Any

from musecode_jupyter.jupyter.host import Host
from musecode_jupyter.jupyter.notebook import outcome_of
from musecode_jupyter.jupyter.user_code import CodeRequest, CodeResult
from musecode_jupyter.runtime.errors import ToolProblem, UsageProblem
from musecode_jupyter.session.core import SessionCore
from musecode_jupyter.tools.notebook import DEFAULT_CODE_S, RUN_IN_KERNEL, AttachedCell

USER = "user"
RUN_USAGE = "%muse run [--own] [--keep NAME,NAME] [--timeout SECONDS] CODE, or the code in the cell below %%muse run"


def ask(host: Host, rest: str) -> None:
    """One turn with the lead; a question about the cell that failed last takes it along."""
    if not rest:
        raise UsageProblem("What do you want to ask? Give the text: %muse ask TEXT.")
    session = host.session_for_work()
    cell, line = host.notebook.about(rest)
    if line:
        print(line)
    attached = None if cell is None else AttachedCell(cell.id, cell.text(), cell.pictures())
    try:
        with host.questions_shown():
            answer = session.call(lambda core: core.ask(rest, attached))
    except KeyboardInterrupt:
        # There is no handle by which the answer could be had later, so it is not waited for, nor paid for.
        with contextlib.suppress(UsageProblem):
            session.call(lambda core: core.stop_work("interrupted by the user"))
        raise KeyboardInterrupt("the question was ended") from None
    print(answer)
    while host.notebook.told:
        print(f"\nProposed: {host.notebook.told.pop(0)}")


def cells(host: Host, rest: str) -> None:
    """Show what agents see of the cells, or allow and forbid it."""
    notebook = host.notebook
    if rest in {"on", "off"}:
        notebook.allowed = rest == "on"
        print("Agents may see cells and variables." if notebook.allowed else "Agents see nothing of the notebook.")
        return
    try:
        text = notebook.seen(rest or None).output
    except ToolProblem as problem:
        raise UsageProblem(str(problem).replace("`cells` lists", "`%muse cells` lists")) from None
    if not rest:
        print("Agents may see this:" if notebook.allowed else "Agents may not see this (`%muse cells on` allows it):")
    print(text)


def variables(host: Host, rest: str) -> None:
    """Show what agents see of the variables."""
    allowed = host.notebook.allowed
    print("Agents may see this:" if allowed else "Agents may not see this (`%muse cells on` allows it):")
    print(host.notebook.variables_text(rest))


@dataclass
class _Options:
    own: bool = False
    keep: tuple[str, ...] = ()
    timeout: float = DEFAULT_CODE_S


def run(host: Host, rest: str) -> None:
    """Run code that the user typed, here and now; output and ending are an event that agents can be shown."""
    options, code = _parse(rest)
    session = host.session_for_work()
    request = CodeRequest(code, options.own, options.keep, options.timeout)
    call = session.call(lambda core: _begin(core, request))
    result = CodeResult("stopped", "", 0.0)
    try:
        result = host.notebook.code.typed(request)
    finally:
        outcome = outcome_of(result)
        text = session.call(lambda core: _end(core, call, outcome))
    print(text)


async def _begin(core: SessionCore, request: CodeRequest) -> int:
    arguments = {
        "code": request.code,
        "namespace": "own" if request.own else "copy",
        "keep": list(request.keep),
        "timeout": request.limit,
    }
    data = {"name": RUN_IN_KERNEL, "arguments": arguments, "origin": "harness", "purpose": "typed by the user"}
    call = core.log.post("tool.requested", data, agent=USER).seq
    decided = {"call": call, "decision": "allow", "rule": "typed by the user"}
    core.log.post("tool.decided", decided, agent=USER, cause=(call,))
    started = {"call": call, "effect": "process", "cwd": str(core.workspace)}
    await core.log.append("tool.started", started, agent=USER, cause=(call,))
    return call


async def _end(core: SessionCore, call: int, outcome: Any) -> str:
    finished = {"call": call, "output": outcome.output, "ok": outcome.ok, "seconds": outcome.seconds}
    event = await core.log.append("tool.finished", finished, agent=USER, cause=(call,))
    return str(event.data["output"])


def _parse(rest: str) -> tuple[_Options, str]:
    options = _Options()
    while rest.startswith("--"):
        word, _, after = rest.partition(" ") if " " in rest.split("\n", 1)[0] else rest.partition("\n")
        name, value = word.strip(), ""
        if name in {"--keep", "--timeout"}:
            value, _, after = _word(after)
        if name == "--own":
            options.own = True
        elif name == "--keep":
            options.keep = tuple(part for part in value.split(",") if part)
            if not options.keep or not all(part.isidentifier() for part in options.keep):
                raise UsageProblem(f"--keep takes names between commas, not {value!r}.")
        elif name == "--timeout":
            try:
                options.timeout = float(value)
            except ValueError:
                raise UsageProblem(f"--timeout takes seconds, not {value!r}.") from None
            if not 0 < options.timeout <= 86_400:
                raise UsageProblem("--timeout takes seconds above 0, at most 86400.")
        else:
            raise UsageProblem(f"There is no option {name}: {RUN_USAGE}.")
        rest = after.lstrip(" ")
        if rest.startswith("\n"):
            rest = rest.lstrip("\n")
            break
    if not rest.strip():
        raise UsageProblem(f"What is to run? {RUN_USAGE}.")
    return options, rest.strip("\n")


def _word(text: str) -> tuple[str, str, str]:
    """The first word of a text, and what follows with its line end."""
    line, newline, more = text.lstrip(" ").partition("\n")
    word, _, tail = line.partition(" ")
    try:
        word = "".join(shlex.split(word))
    except ValueError:
        raise UsageProblem(f"Cannot read {word!r}: {RUN_USAGE}.") from None
    return word, "", f"{tail}{newline}{more}" if tail else f"{newline}{more}"
