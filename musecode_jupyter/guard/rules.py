"""What the user allowed for a session or a repository: added, listed, removed, and matched against what is asked."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from musecode_jupyter.guard.commands import (
    Line,
    find_program,
    read_line,
    redirection_problem,
    words_of,
)
from musecode_jupyter.guard.rule_file import Rule, RuleFile, StoredRule
from musecode_jupyter.guard.wrappers import is_interpreter
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import UsageProblem

__all__ = ["HeldRule", "Look", "Rule", "Rules", "RulesReducer", "RulesState", "covering", "look", "shell_of"]

Scope = Literal["session", "workspace"]
LANDING = "land on "
TOOL = "tool "


class HeldRule(BaseModel):
    """A rule that is in force. `since` is for display."""

    rule: Rule
    scope: Scope
    since: str
    approval: int | None = None

    @property
    def name(self) -> str:
        """As decisions name it."""
        return self.rule.name


class RulesState(BaseModel):
    """`held` by seq of rule.added, which is also the number that the user sees."""

    held: dict[int, HeldRule] = Field(default_factory=dict)


class RulesReducer:
    """Folds rule.* events."""

    name = "rules"
    kinds = frozenset({"rule.added", "rule.removed", "session.forked"})

    def initial(self) -> RulesState:
        return RulesState()

    def apply(self, state: RulesState, event: Event) -> None:
        if event.kind == "rule.added":
            state.held[event.seq] = HeldRule(
                rule=rule_of(event.data),
                scope=event.data.get("scope", "session"),
                since=event.data.get("since") or event.ts,
                approval=event.data["approval"],
            )
        elif event.kind == "session.forked":
            # What the user allowed for a session was allowed for that one.
            state.held = {number: each for number, each in state.held.items() if each.scope == "workspace"}
        elif event.kind == "rule.removed":
            state.held.pop(event.data["rule"], None)


def rule_of(data: Mapping[str, Any]) -> Rule:
    """The rule that a rule.added event holds; one of the first version has a name only, and covers landings only."""
    name = str(data["rule"])
    if data.get("form"):
        return Rule.model_validate({field: data[field] for field in ("form", "text", "words", "programs", "place")})
    if name.startswith(LANDING):
        return Rule(form="landing", text=name.removeprefix(LANDING))
    return Rule(form="exact", text=name.removeprefix("run: "))


@dataclass(frozen=True)
class Look:
    """A command as it stands now: its parts, what its names lead to, and why no rule can cover it, if so.

    `programs` begins with the shell, then has one for each simple command.
    """

    line: Line
    programs: tuple[str, ...]
    problem: str
    place: Literal["worktree", "checkout"]

    def exact(self) -> Rule | None:
        """The rule that would cover just this line, here."""
        if self.problem:
            return None
        return Rule(form="exact", text=self.line.text, programs=self.programs, place=self.place)


def shell_of(path: str) -> str:
    """The shell that runs commands in a child with PATH `path`."""
    return shutil.which("bash", path=path) or "/bin/sh"


def look(command: str, *, path: str, root: Path, isolated: bool) -> Look:
    """Read a command that would run in `root`; blocks for a look at the programs' files."""
    line = read_line(command)
    place: Literal["worktree", "checkout"] = "worktree" if isolated else "checkout"
    programs = [_identity(find_program(shell_of(path), path=path, cwd=root), root)]
    problem = line.never or redirection_problem(line, root)
    for each in line.commands:
        name = each.words[0]
        program = find_program(name, path=path, cwd=root)
        if not program:
            problem = problem or f"there is no program {name!r} on the path of commands"
        elif line.moves and "/" in name and not os.path.isabs(name):
            problem = problem or f"{name} depends on the directory that it changes to"
        programs.append(_identity(program, root))
    return Look(line, tuple(programs), problem, place)


def covering(held: Mapping[int, HeldRule], seen: Look) -> tuple[int, ...]:
    """The numbers of the rules that together cover every simple command of a line; empty if they do not."""
    if seen.problem:
        return ()
    for number, each in held.items():
        rule = each.rule
        if rule.form == "exact" and (rule.text, rule.programs, rule.place) == (
            seen.line.text,
            seen.programs,
            seen.place,
        ):
            return (number,)
    if seen.line.exact_only or seen.place != "worktree":
        return ()
    prefixes = [(number, each.rule) for number, each in held.items() if each.rule.form == "prefix"]
    used: dict[int, None] = {}
    for command, program in zip(seen.line.commands, seen.programs[1:], strict=True):
        ours = (seen.programs[0], program)
        found = next(
            (
                number
                for number, rule in prefixes
                if rule.programs == ours and command.words[: len(rule.words)] == rule.words
            ),
            None,
        )
        if found is None:
            return ()
        used[found] = None
    return tuple(used)


class Rules:
    """The rules in force, used on the runtime thread. `file` holds those of the repository, once it is known."""

    def __init__(self, log: EventLog, effects: Effects, path: str) -> None:
        self._log = log
        self._effects = effects
        self._path = path
        self._file: RuleFile | None = None

    @property
    def state(self) -> RulesState:
        """Rules by number."""
        state = self._log.state("rules")
        assert isinstance(state, RulesState)
        return state

    async def open(self, home: Path, repository: Path) -> str:
        """Take over the repository's rules as they are now; returns one line if their file cannot be used.

        What another session adds later counts from the next opening on; what is removed counts at once.
        """
        self._file = await self._effects.disk(RuleFile, home, repository)
        stored, problem = await self._effects.disk(self._file.read)
        await self._drop_missing(stored)
        known = [each.rule for each in self.state.held.values() if each.scope == "workspace"]
        for each in stored:
            if each.rule not in known:
                await self._log.append("rule.added", _data(each.rule, "workspace", "opening", since=each.since))
        return problem

    async def look(self, command: str, *, root: Path, isolated: bool) -> Look:
        """Read a command that would run in `root` now."""
        return await self._effects.disk(look, command, path=self._path, root=root, isolated=isolated)

    @answered
    async def covers_command(self, command: str, *, root: Path, isolated: bool) -> str | None:
        """The rules that cover a command, in words for the log, or None."""
        if not self.state.held:
            return None
        await self._refresh()
        return self._told(covering(self.state.held, await self.look(command, root=root, isolated=isolated)))

    async def covers(self, form: Literal["tool", "landing"], text: str) -> str | None:
        """The rule that covers a tool or a landing on a branch, in words for the log, or None."""
        await self._refresh()
        held = self.state.held
        return self._told(
            tuple(number for number, each in held.items() if (each.rule.form, each.rule.text) == (form, text))[:1]
        )

    async def add(self, rule: Rule, scope: Scope, *, by: str, action: str = "", approval: int | None = None) -> int:
        """Put a rule in force; returns its number, which is that of the same rule if there is one already.

        Raises UsageProblem if it cannot be kept for the workspace.
        """
        for number, each in self.state.held.items():
            if each.rule == rule and each.scope == scope:
                return number
        since = self._effects.now().isoformat(timespec="seconds")
        if scope == "workspace":
            file = self._file
            if file is None:
                raise UsageProblem("There is no repository here whose rules could be kept: use session rules.")
            stored = StoredRule(rule=rule, since=since)
            await self._effects.disk(
                file.change, lambda rules: (*(each for each in rules if each.rule != rule), stored)
            )
        event = await self._log.append(
            "rule.added",
            _data(rule, scope, by, since=since, action=action, approval=approval),
            agent="user",
            cause=() if approval is None else (approval,),
        )
        return event.seq

    async def add_typed(self, text: str, scope: Scope, *, by: str) -> int:
        """Put a rule in force that the user typed: `land on BRANCH`, `tool NAME`, or the first words of a command.

        Raises UsageProblem if it is none.
        """
        return await self.add(await self._effects.disk(typed_rule, text, path=self._path), scope, by=by)

    async def remove(self, number: int, *, by: str) -> HeldRule:
        """Take a rule out of force, for the workspace too if it is the workspace's; UsageProblem if there is none."""
        held = self.state.held.get(number)
        if held is None:
            known = ", ".join(map(str, self.state.held)) or "none"
            raise UsageProblem(f"There is no rule {number} (rules: {known}). `%muse rules` lists them.")
        if held.scope == "workspace" and self._file is not None:
            rule = held.rule
            await self._effects.disk(
                self._file.change, lambda rules: tuple(each for each in rules if each.rule != rule)
            )
        await self._removed(number, by)
        return held

    async def forget(self, form: Literal["role"], but: tuple[Rule, ...] | None = None) -> list[str]:
        """Take all rules of this form out of force, for the workspace too, also those that another session has added.

        With `but` only those about what these rules are about, and none of these. Returns what they were about.
        """

        def goes(rule: Rule) -> bool:
            return rule.form == form and (
                but is None or (rule not in but and any(each.text == rule.text for each in but))
            )

        texts = {each.rule.text for each in self.state.held.values() if goes(each.rule)}
        if self._file is not None:
            # Of a file that is damaged nothing counts.
            stored, _ = await self._effects.disk(self._file.read)
            texts |= {each.rule.text for each in stored if goes(each.rule)}
            if texts:
                await self._effects.disk(
                    self._file.change, lambda rules: tuple(each for each in rules if not goes(each.rule))
                )
        for number, each in list(self.state.held.items()):
            if goes(each.rule) and number in self.state.held:
                await self._removed(number, "trust")
        return sorted(texts)

    async def _refresh(self) -> None:
        if self._file is not None and any(each.scope == "workspace" for each in self.state.held.values()):
            stored, _ = await self._effects.disk(self._file.read)
            await self._drop_missing(stored)

    async def _drop_missing(self, stored: tuple[StoredRule, ...]) -> None:
        rules = [each.rule for each in stored]
        for number, each in list(self.state.held.items()):
            if each.scope == "workspace" and each.rule not in rules and number in self.state.held:
                await self._removed(number, "no longer in the workspace's rules")

    async def _removed(self, number: int, by: str) -> None:
        await self._log.append("rule.removed", {"rule": number, "by": by}, agent="user", cause=(number,))

    def _told(self, numbers: tuple[int, ...]) -> str | None:
        held = self.state.held
        return "; ".join(f"{held[each].scope} rule {each}: {held[each].name}" for each in numbers) or None


def typed_rule(text: str, *, path: str) -> Rule:
    """The rule that `text` means; UsageProblem says why it is none. Blocks for a look at the program's file."""
    text = text.strip()
    if text.startswith(LANDING) and len(text.split()) == 3:
        return Rule(form="landing", text=text.removeprefix(LANDING).strip())
    if text.startswith(TOOL) and len(text.split()) == 2:
        return Rule(form="tool", text=text.removeprefix(TOOL).strip())
    try:
        words = words_of(text)
    except ValueError as error:
        raise UsageProblem(
            f"{text!r} is no rule: {error}. A rule is the first words of one plain command, or 'land on BRANCH'."
        ) from None
    if is_interpreter(words[0]) and (len(words) == 1 or words[-1] == "-m"):
        raise UsageProblem(f"{text!r} would allow any code: name the script or module too.")
    if "/" in words[0] and not os.path.isabs(words[0]):
        raise UsageProblem(
            f"{words[0]} lies in the repository, where agents can change it: name a program by name or absolute path."
        )
    root = Path("/")
    program = find_program(words[0], path=path, cwd=root)
    if not program:
        raise UsageProblem(f"There is no program {words[0]!r} on the path of commands, so no rule can name it.")
    shell = find_program(shell_of(path), path=path, cwd=root)
    return Rule(form="prefix", text=shlex.join(words), words=words, programs=(shell, program))


def _identity(program: str, root: Path) -> str:
    """A program by its path, and by its content too if it lies where an agent can change it."""
    real = program.rpartition(" -> ")[2]
    if not real.startswith(os.path.realpath(root) + os.sep):
        return program
    try:
        with open(real, "rb") as file:
            return f"{program} {blake2b(file.read(), digest_size=16).hexdigest()}"
    except OSError:
        return f"{program} unread"


def _data(
    rule: Rule, scope: Scope, by: str, *, since: str, action: str = "", approval: int | None = None
) -> dict[str, Any]:
    return {
        "rule": rule.name,
        "action": action or {"landing": "land", "role": "role", "tier": "tier", "label": "label"}.get(rule.form, "run"),
        "approval": approval,
        "scope": scope,
        **rule.model_dump(mode="json"),
        "by": by,
        "since": since,
    }
