"""Carries tool calls out: requested, decided, started, the effect, finished - each durable before the next."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from musecode_jupyter.guard.approvals import Answer, Approvals
from musecode_jupyter.guard.labels import written
from musecode_jupyter.guard.policy import Policy
from musecode_jupyter.guard.rules import Rule
from musecode_jupyter.guard.sandbox import Sandbox
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.redaction import MARK
from musecode_jupyter.runtime.answers import answering
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import LogError, MuseError, ToolProblem
from musecode_jupyter.runtime.process import to_the_end
from musecode_jupyter.tools.binding import bound, changed
from musecode_jupyter.tools.files import write_atomic
from musecode_jupyter.tools.pictures import recorded
from musecode_jupyter.tools.registry import Outcome, Place, Registry, Tool, ToolContext, Write, no_such_tool
from musecode_jupyter.tools.release import NOTHING, Release, Shown
from musecode_jupyter.tools.state import OpenCall, ToolsState
from musecode_jupyter.tools.underway import BrokenOff, Underway

logger = logging.getLogger(__name__)

MAX_PARALLEL_READS = 8
# Bytes of output that all calls of one answer may show together, for each token of room in a prompt: a third of it.
BATCH_BYTES = 1.0
LEAST_SHOWN = 1_000

USERS = "the user's answer"
"""What decided a call about which the user was asked."""
CUT_OUT = (
    "The arguments hold what looks like a secret. It was cut out before they were written down, so the call was not "
    "made. Let the program take it from its environment or from a file, or use a placeholder."
)
BROKEN_OFF = "Ended before its time, by a message that comes next. What it did to files stays."
NOT_BEGUN = "Not made: a message ended the call before it. Read that first."
MARKED = (
    "The new text holds [redacted:...], which stands for a secret that you were not shown; it would be written in the "
    "secret's place. Edit around it, in smaller pieces."
)


@dataclass(frozen=True)
class FormedCall:
    """A call about to be made: by the model (`arguments` is its text) or by the harness (`arguments` is a mapping)."""

    name: str
    arguments: str | Mapping[str, Any]
    origin: Literal["model", "harness"]
    call_id: str | None = None
    purpose: str = ""
    together: int = 1
    """How many calls the answer has that this one is of."""


@dataclass(frozen=True)
class CallResult:
    """The one result of a call. `ended` is finished, failed, cancelled or unknown; `broken_off`: by a message."""

    call: int
    ended: str
    output: str
    ok: bool
    exit: int | None = None
    seconds: float = 0.0
    broken_off: bool = False


class KeepFiles(Protocol):
    """Records what a process did to the files of a worktree; says whether that is nothing, kept or unknown."""

    async def __call__(
        self, worktree: int, root: Path, call: int | None, *, ended: bool = True, label: str = ""
    ) -> Literal["same", "kept", "unknown"]: ...


class Executor:
    """Runs calls of agents in their places. Owner of nothing that outlives a call.

    `keep_files` is asked after each process in a worktree, before the call has its result. `offered` gives the names of
    the tools that an agent's model may call; None: all. `room` is the tokens that a prompt may have: what a model is
    shown of its calls is cut to what fits; 0: it is not. `release` says which labels results have, and what of them is
    not for the pinned model.
    """

    def __init__(
        self,
        *,
        log: EventLog,
        effects: Effects,
        registry: Registry,
        policy: Policy,
        approvals: Approvals,
        outputs: Path,
        child_env: Mapping[str, str],
        sandbox: Sandbox,
        keep_files: KeepFiles | None = None,
        offered: Callable[[str], frozenset[str] | None] = lambda _agent: None,
        room: int = 0,
        release: Release | None = None,
    ) -> None:
        self._log = log
        self._effects = effects
        self.registry = registry
        self.policy = policy
        self._approvals = approvals
        self._outputs = outputs
        self._child_env = dict(child_env)
        self._sandbox = sandbox
        self.keep_files = keep_files
        self.offered = offered
        self.room = room
        self._release = release
        self._shown: dict[int, Shown] = {}
        self._together: dict[int, int] = {}
        self.underway = Underway()

    @property
    def state(self) -> ToolsState:
        """Open calls and seen files."""
        state = self._log.state("tools")
        assert isinstance(state, ToolsState)
        return state

    async def run_all(
        self,
        calls: Sequence[FormedCall],
        *,
        agent: str,
        turn: int,
        place: Place,
        typed: frozenset[str],
        cause: int,
    ) -> list[CallResult]:
        """Make the calls in order, neighbouring reads in parallel; results come in the order of the calls.

        Behind one that a message broke off no further ones are made, and have no result here.
        """
        results: list[CallResult] = []
        batch: list[FormedCall] = []
        for call in [replace(each, together=len(calls)) for each in calls]:
            if results and results[-1].broken_off:
                self.leave(call, NOT_BEGUN, agent=agent, turn=turn, cause=cause)
                continue
            if not self._is_read(call):
                results += await self._parallel(batch, agent, turn, place, typed, cause)
                batch = []
                results.append(await self.run_one(call, agent=agent, turn=turn, place=place, typed=typed, cause=cause))
            else:
                batch.append(call)
        return results + await self._parallel(batch, agent, turn, place, typed, cause)

    async def run_one(
        self, formed: FormedCall, *, agent: str, turn: int, place: Place, typed: frozenset[str], cause: int
    ) -> CallResult:
        """Make one call. Never raises for what goes wrong in the call: that is its result."""
        tool, arguments, problem = self._parse(formed)
        offered = self.offered(agent) if formed.origin == "model" else None
        if offered is not None and formed.name not in offered:
            tool, problem = None, no_such_tool(formed.name, offered)
        # Not waited for: what comes next is durable after it, and a call that is logged must not be left by a stop.
        requested = self._request(formed, arguments, agent, turn, cause)
        self._together[requested.seq] = formed.together
        if tool is None:
            return await self._fail(requested.seq, agent, turn, problem)
        clean = dict(requested.data["arguments"])
        if (tool.effect != "read" and clean != arguments) or (tool.effect == "process" and _holds_mark(clean)):
            return await self._fail(requested.seq, agent, turn, CUT_OUT)
        return await self._carry_out(tool, clean, requested.seq, agent, turn, place, typed)

    def leave(self, formed: FormedCall, why: str, *, agent: str, turn: int, cause: int) -> None:
        """Write down that a call is not made; `why` is its result."""
        _, arguments, _ = self._parse(formed)
        requested = self._request(formed, arguments, agent, turn, cause)
        self._post("tool.cancelled", {"call": requested.seq, "output": why}, agent, turn, requested.seq)

    def _request(self, formed: FormedCall, arguments: dict[str, Any], agent: str, turn: int, cause: int) -> Event:
        return self._log.post(
            "tool.requested",
            {
                "name": formed.name,
                "arguments": arguments,
                "origin": formed.origin,
                "call_id": formed.call_id,
                "purpose": formed.purpose,
            },
            agent=agent,
            turn=turn,
            cause=(cause,),
        )

    async def go_on(
        self, seq: int, call: OpenCall, *, agent: str, turn: int, place: Place, typed: frozenset[str]
    ) -> CallResult:
        """Carry out a call that was requested, but not started, before a restart; what was denied stays denied."""
        if (denied := self._denied_before(seq)) is not None:
            return await self._fail(seq, agent, turn, denied)
        try:
            tool = self.registry.get(call.name)
            arguments = self.registry.validate(tool, call.arguments)
        except ToolProblem as error:
            return await self._fail(seq, agent, turn, str(error))
        return await self._carry_out(tool, arguments, seq, agent, turn, place, typed)

    def _denied_before(self, seq: int) -> str | None:
        """What is said of a call that was denied and had no result before a restart: nobody is asked again."""
        question, denied = 0, None
        for event in self._log.events(since=seq):
            if event.kind == "approval.requested" and event.data["call"] == seq:
                question = event.seq
            elif event.kind == "approval.denied" and event.data["approval"] == question:
                denied = _denied(USERS, event.data["why"])
            elif event.kind == "tool.decided" and event.data["call"] == seq:
                if event.data["decision"] == "allow":
                    denied = None
                elif denied is None:
                    denied = _denied(event.data["rule"], "")
        return denied

    async def finish_read(self, seq: int, call: OpenCall, place: Place) -> CallResult:
        """Run a read again that a restart cut off after its tool.started, and give it its one result."""
        context = self._context(call.agent, seq, place)
        self._post("tool.reconciled", {"call": seq, "finding": "a read; run again"}, call.agent, 0, seq)
        try:
            tool = self.registry.get(call.name)
            assert tool.run is not None
            await self._look(tool, call.arguments, context)
            outcome = await tool.run(context, tool.arguments.model_validate(call.arguments))
            await self._look_again(outcome, context)
        except LogError:
            raise
        except Exception as error:
            return await self._fail(seq, call.agent, 0, _why(call.name, error))
        self.observe(seq, call.agent, 0, place, outcome)
        return await self._finish(seq, call.agent, 0, outcome)

    def _context(self, agent: str, seq: int, place: Place) -> ToolContext:
        return ToolContext(
            agent=agent,
            call=seq,
            place=place if self._release is None else self._release.listing(place),
            log=self._log,
            effects=self._effects,
            outputs=self._outputs,
            child_env=self._child_env,
            sandbox=self._sandbox,
            most_shown=self._most_shown(seq),
        )

    def _most_shown(self, seq: int) -> int | None:
        """Bytes of its output that a model is shown of call `seq`, so that the next prompt has room for all calls."""
        call = self.state.open.get(seq)
        if not self.room or call is None or call.origin != "model":
            return None
        return max(LEAST_SHOWN, int(BATCH_BYTES * self.room) // self._together.get(seq, MAX_PARALLEL_READS))

    async def _parallel(
        self,
        calls: Sequence[FormedCall],
        agent: str,
        turn: int,
        place: Place,
        typed: frozenset[str],
        cause: int,
    ) -> list[CallResult]:
        if not calls:
            return []
        limit = asyncio.Semaphore(MAX_PARALLEL_READS)

        async def one(call: FormedCall) -> CallResult:
            async with limit:
                return await self.run_one(call, agent=agent, turn=turn, place=place, typed=typed, cause=cause)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(call)) for call in calls]
        except BaseExceptionGroup as errors:
            # What is raised here is the log's failure, or that a record ends here, which all of them met.
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    def _is_read(self, call: FormedCall) -> bool:
        tool = self.registry.tools.get(call.name)
        return tool is not None and tool.effect == "read"

    def _parse(self, formed: FormedCall) -> tuple[Tool | None, dict[str, Any], str]:
        try:
            if isinstance(formed.arguments, str):
                tool, arguments = self.registry.parse(formed.name, formed.arguments)
            else:
                tool = self.registry.get(formed.name)
                arguments = self.registry.validate(tool, formed.arguments)
        except ToolProblem as error:
            raw = formed.arguments if isinstance(formed.arguments, str) else dict(formed.arguments)
            return None, {"unparsed": raw}, str(error)
        return tool, arguments, ""

    async def _carry_out(
        self,
        tool: Tool,
        arguments: dict[str, Any],
        seq: int,
        agent: str,
        turn: int,
        place: Place,
        typed: frozenset[str],
    ) -> CallResult:
        # What a tool asks the world is in the call's result.
        with answering(None):
            return await self._act(tool, arguments, seq, agent, turn, place, typed)

    async def _act(
        self,
        tool: Tool,
        arguments: dict[str, Any],
        seq: int,
        agent: str,
        turn: int,
        place: Place,
        typed: frozenset[str],
    ) -> CallResult:
        context = self._context(agent, seq, place)
        try:
            await self._look(tool, arguments, context)
            refusal = await self._decide(tool, arguments, seq, agent, turn, place, typed)
            if refusal is not None:
                return await self._fail(seq, agent, turn, refusal)
            parsed = tool.arguments.model_validate(arguments)
            if tool.plan is not None:
                return await self._write(tool, parsed, context, turn)
            outcome = await self._run(tool, parsed, context, turn)
            files = await self._files_after(tool, context)
        except asyncio.CancelledError:
            if seq in self.state.open:
                started = self.state.open[seq].started
                self._post("tool.cancelled", {"call": seq, "output": "Stopped before the end."}, agent, turn, seq)
                if started:
                    await to_the_end(self._files_after(tool, context, ended=False))
            raise
        except BrokenOff as broken:
            return await to_the_end(self._failed(tool, context, turn, BROKEN_OFF, broken.by))
        except LogError:
            raise
        except Exception as error:
            return await to_the_end(self._failed(tool, context, turn, _why(tool.name, error)))
        return await self._finish(seq, agent, turn, outcome, files)

    async def _failed(
        self, tool: Tool, context: ToolContext, turn: int, why: str, broken_off: int | None = None
    ) -> CallResult:
        """What a call that did not come to its end leaves behind, and its result.

        Not to be stopped in between: a call that began and has no result would be carried out again.
        """
        call = self.state.open.get(context.call)
        if call is not None and call.started:
            await self._files_after(tool, context, ended=False)
        return await self._fail(context.call, context.agent, turn, why, broken_off=broken_off)

    async def _files_after(
        self, tool: Tool, context: ToolContext, *, ended: bool = True
    ) -> Literal["", "same", "kept", "unknown"]:
        place = context.place
        if tool.effect != "process" or place.worktree is None or self.keep_files is None:
            return ""
        shown = self._shown.get(context.call, NOTHING)
        return await self.keep_files(place.worktree, place.root, context.call, ended=ended, label=written(shown.label))

    async def _look(self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> None:
        """Say which label the result of a call will have, as far as that is known before it is made."""
        if self._release is not None:
            self._shown[context.call] = await self._release.before(tool, arguments, context.place, context.agent)

    async def _look_again(self, outcome: Outcome, context: ToolContext) -> None:
        """Say which label the result has, now that it is there."""
        if self._release is not None:
            shown = self._shown.get(context.call, NOTHING)
            self._shown[context.call] = await self._release.after(shown, outcome, context.place)

    async def _decide(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        seq: int,
        agent: str,
        turn: int,
        place: Place,
        typed: frozenset[str],
    ) -> str | None:
        verdict = self.policy.tool(
            tool.effect,
            arguments=arguments,
            isolated=place.worktree is not None and tool.where == "place",
            typed=typed,
            covered=await self._covered(tool, arguments, place, typed),
        )
        decision, why, approval = verdict.decision, verdict.rule, None
        said = ""
        if verdict.decision == "ask":
            answer, void = await self._ask(tool, arguments, seq, agent, place)
            decision, approval = ("allow" if answer.granted and not void else "deny"), answer.approval
            why, said = USERS, answer.why
            if answer.granted and void:
                why = f"approval {approval} is void: changed since the question: {', '.join(void)}"
        await self._log.append(
            "tool.decided",
            {"call": seq, "decision": decision, "rule": why, "approval": approval},
            agent=agent,
            turn=turn,
            cause=(seq,) if approval is None else (seq, approval),
        )
        if decision == "allow":
            return None
        return _denied(why, said)

    async def _covered(
        self, tool: Tool, arguments: Mapping[str, Any], place: Place, typed: frozenset[str]
    ) -> str | None:
        """The user's rules that cover a call, in words, or None."""
        command = arguments.get("command")
        if tool.effect != "process" or command in typed:
            return None
        if tool.harmless is not None and (why := await tool.harmless()):
            return why
        rules = self._approvals.rules
        if isinstance(command, str):
            return await rules.covers_command(command, root=place.root, isolated=place.worktree is not None)
        return await rules.covers("tool", tool.name)

    async def _ask(
        self, tool: Tool, arguments: Mapping[str, Any], seq: int, agent: str, place: Place
    ) -> tuple[Answer, list[str]]:
        """The user's answer, and what has changed between the question and now: any of it voids a yes."""
        command = arguments.get("command")
        rule, no_rule = tool.name, ""
        offer: Rule | None = Rule(form="tool", text=tool.name)
        if tool.where == "kernel":
            offer, no_rule = None, f"`%muse rules add session 'tool {tool.name}'` allows it whatever its arguments are"
        if isinstance(command, str):
            seen = await self._approvals.rules.look(command, root=place.root, isolated=place.worktree is not None)
            rule, offer, no_rule = f"{tool.name}: {command}", seen.exact(), seen.problem
        shown = await self._bound(tool, arguments, place)
        answer = await self._approvals.ask(tool.name, rule, shown, agent=agent, call=seq, offer=offer, no_rule=no_rule)
        if not answer.granted:
            return answer, []
        return answer, changed(shown, await self._bound(tool, arguments, place))

    async def _bound(self, tool: Tool, arguments: Mapping[str, Any], place: Place) -> dict[str, Any]:
        if tool.shown is not None:
            return dict(await tool.shown(tool.arguments.model_validate(arguments)))
        command = arguments.get("command")
        programs: tuple[str, ...] = ()
        if isinstance(command, str):
            isolated = place.worktree is not None
            programs = (await self._approvals.rules.look(command, root=place.root, isolated=isolated)).programs
        files = await place.list_files()
        facts = await self._effects.disk(bound, tool.name, arguments, place.root, self._child_env, files, programs)
        return facts if tool.effect != "process" else {**facts, "sandbox": self._sandbox.words}

    async def _run(self, tool: Tool, parsed: Any, context: ToolContext, turn: int) -> Outcome:
        assert tool.run is not None
        await self._started(tool, context, turn)
        running = tool.run(context, parsed)
        if tool.effect == "process":
            outcome = await self.underway.run(context.call, context.agent, running)
        else:
            outcome = await running
        await self._look_again(outcome, context)
        self.observe(context.call, context.agent, turn, context.place, outcome)
        return outcome

    async def _write(self, tool: Tool, parsed: Any, context: ToolContext, turn: int) -> CallResult:
        assert tool.plan is not None
        write = await tool.plan(context, parsed)
        if _marks(write.data) > _marks(write.before_data or b""):
            raise ToolProblem(MARKED)
        blobs = (
            {"after": write.data} if write.before_data is None else {"before": write.before_data, "after": write.data}
        )
        started = await self._started(tool, context, turn, path=write.path, before=write.before, blobs=blobs)
        # A thread that writes cannot be stopped half way, so neither is the record of what it does.
        return await to_the_end(self._make(write, started.data["after"], context, turn, blobs))

    async def _make(
        self, write: Write, after: str, context: ToolContext, turn: int, blobs: Mapping[str, bytes]
    ) -> CallResult:
        await context.effects.disk(write_atomic, context.place.root, write.path, write.data, write.before)
        self._log.post(
            "file.changed",
            {
                "worktree": context.place.worktree,
                "path": write.path,
                "before": write.before,
                "after": after,
                "call": context.call,
            },
            agent=context.agent,
            turn=turn,
            cause=(context.call,),
            blobs=blobs,
        )
        return await self._finish(context.call, context.agent, turn, write.outcome)

    async def _started(
        self,
        tool: Tool,
        context: ToolContext,
        turn: int,
        *,
        path: str | None = None,
        before: str | None = None,
        blobs: Mapping[str, bytes] | None = None,
    ) -> Event:
        from musecode_jupyter.tools.files import digest_bytes

        after = digest_bytes(blobs["after"]) if blobs else None
        return await self._log.append(
            "tool.started",
            {
                "call": context.call,
                "effect": tool.effect,
                "cwd": str(context.place.root),
                "path": path,
                "before": before,
                "after": after,
            },
            agent=context.agent,
            turn=turn,
            cause=(context.call,),
            blobs=blobs or {},
        )

    def observe(self, call: int, agent: str, turn: int, place: Place, outcome: Outcome) -> None:
        """Record which contents of which files the agent has seen."""
        for path, digest, size in outcome.observed:
            self._post(
                "file.observed",
                {"worktree": place.worktree, "path": path, "digest": digest, "size": size, "call": call},
                agent,
                turn,
                call,
            )

    async def _finish(
        self,
        seq: int,
        agent: str,
        turn: int,
        outcome: Outcome,
        files: Literal["", "same", "kept", "unknown"] = "",
    ) -> CallResult:
        call = self.state.open.get(seq)
        most = self._most_shown(seq)
        self._together.pop(seq, None)
        shown = self._shown.pop(seq, NOTHING)
        if self._release is not None:
            outcome, shown = self._release.fitting(shown, outcome)
        pictures, blobs = recorded(outcome.pictures)
        event = await self._log.append(
            "tool.finished",
            {
                "call": seq,
                "output": outcome.output if most is None else fitting(outcome.output, most),
                "ok": outcome.ok,
                "exit": outcome.exit,
                "seconds": outcome.seconds,
                "output_path": outcome.output_path,
                "output_digest": outcome.output_digest,
                # What a model asked for is shown to it as data; the harness reads its own results as they are.
                "fenced": call is not None and call.origin == "model",
                "pictures": pictures,
                "files": files,
            },
            agent=agent,
            turn=turn,
            cause=(seq,),
            blobs=blobs,
            label=written(shown.label),
        )
        return CallResult(seq, "finished", event.data["output"], outcome.ok, outcome.exit, outcome.seconds)

    async def _fail(self, seq: int, agent: str, turn: int, why: str, *, broken_off: int | None = None) -> CallResult:
        self._together.pop(seq, None)
        shown, call = self._shown.pop(seq, NOTHING), self.state.open.get(seq)
        # Before it began, a process has shown nothing.
        if call is not None and not call.started and call.name in self.registry.tools:
            shown = NOTHING if self.registry.tools[call.name].effect == "process" else shown
        if self._release is not None and (said := self._release.withholds(shown)):
            why, shown = said, NOTHING
        data = {"call": seq, "output": why, "broken_off": broken_off is not None}
        cause = (seq,) if broken_off is None else (seq, broken_off)
        label = written(shown.label)
        event = await self._log.append("tool.failed", data, agent=agent, turn=turn, cause=cause, label=label)
        return CallResult(seq, "failed", event.data["output"], False, broken_off=broken_off is not None)

    def _post(self, kind: str, data: dict[str, Any], agent: str, turn: int, cause: int) -> Event:
        return self._log.post(kind, data, agent=agent, turn=turn, cause=(cause,))


def fitting(text: str, most: int) -> str:
    """`text` if it has at most `most` bytes; else its head and tail, with a line between that says what is missing."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= most:
        return text
    head = data[: most * 2 // 3].decode("utf-8", "ignore")
    tail = data[len(data) - most // 3 :].decode("utf-8", "ignore")
    left = len(data) - len(head.encode()) - len(tail.encode())
    return f"{head}\n[{left:,} bytes left out here: more does not fit. Ask for less at once.]\n{tail}"


def _denied(rule: str, said: str) -> str:
    """What a model is told of a call that `rule` denied; `said` is the user's reason, if there is one."""
    return f"Denied ({rule}).{f' The user says: {said}' if said else ''} Go on without this, or say what you need."


def _holds_mark(arguments: Mapping[str, Any]) -> bool:
    """Whether a secret was cut out of them, here or in the model's answer before."""
    return any(isinstance(value, str) and MARK.search(value) for value in arguments.values())


def _marks(data: bytes) -> int:
    return len(MARK.findall(data.decode("utf-8", "replace")))


def _why(name: str, error: Exception) -> str:
    """What the model is told of an error in a call."""
    if isinstance(error, MuseError):
        return str(error)
    if isinstance(error, OSError):
        return f"{name} failed: {error.strerror or error}."
    logger.error("%s failed unexpectedly", name, exc_info=error)
    return f"{name} failed unexpectedly ({type(error).__name__}: {error}). Go on without this call."
