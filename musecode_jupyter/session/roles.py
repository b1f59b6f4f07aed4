"""Roles that the repository brings: what there is, which of it the user trusts, and what a session takes over."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from musecode_jupyter.agents.claims.tools import CLAIM_TOOLS
from musecode_jupyter.agents.crew import ask_tool
from musecode_jupyter.agents.follow_ups import FOLLOW_UP_TOOL
from musecode_jupyter.agents.repomap.tool import MAP
from musecode_jupyter.agents.roles.state import role_of, roles_of, standing
from musecode_jupyter.agents.roles.users import FOLDER, MAX_BYTES, MAX_READ, MAX_ROLES, check_name, users_role
from musecode_jupyter.guard.rule_file import Rule
from musecode_jupyter.runtime.errors import ConfigurationError, MuseError, ToolProblem, UsageProblem
from musecode_jupyter.session.crew import make_agents, retire
from musecode_jupyter.session.summary import one_line
from musecode_jupyter.tools.builtin import BUILTIN
from musecode_jupyter.tools.files import digest_bytes, read_bytes, resolve_inside
from musecode_jupyter.tools.paths import real_root

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore

READERS = frozenset(
    tool.name for tool in (*BUILTIN, MAP, *CLAIM_TOOLS, FOLLOW_UP_TOOL) if tool.effect == "read" and tool.offered
)
"""The tools that an agent of such a role may have: those that only look, since it has no worktree of its own."""
ON = "%muse trust on"
_LINE = 400
NO_ROLES = f"This repository brings no roles: there is no {FOLDER}/NAME.md in it."


@dataclass(frozen=True)
class RoleFile:
    """A file of the repository's roles; `problem` says in a line why it cannot be used, if it was read."""

    name: str
    path: str
    digest: str = ""
    text: str = ""
    purpose: str = ""
    tools: tuple[str, ...] = ()
    problem: str = ""


def list_roles(root: Path) -> list[str]:
    """The names of the role files below `root`, sorted; nothing is read. Blocks.

    Raises UsageProblem if their folder leads out of `root`.
    """
    try:
        folder = resolve_inside(root, FOLDER)
        return sorted(each.name.removesuffix(".md") for each in os.scandir(folder) if each.name.endswith(".md"))
    except ToolProblem as problem:
        raise UsageProblem(str(problem)) from problem
    except OSError:
        return []


def read_role(root: Path, name: str, tools: Collection[str] = READERS) -> RoleFile:
    """One role file, read and looked at. Blocks; whatever is wrong with it is its `problem`."""
    path = f"{FOLDER}/{name}.md"
    try:
        check_name(name)
        real = str(resolve_inside(root, path).relative_to(real_root(root)))
        _, data = read_bytes(root, real, 64 * MAX_BYTES)
        if data is None:
            return RoleFile(name, path, problem=f"Role {name}: the file is not there any more.")
        found = users_role(name, data, tools)
    except ConfigurationError as problem:
        return RoleFile(name, path, problem=one_line(str(problem), _LINE))
    except ToolProblem as problem:
        return RoleFile(name, path, problem=one_line(f"Role {name}: {problem}", _LINE))
    text = data.decode("utf-8-sig")
    return RoleFile(name, path, digest_bytes(data), text, found.purpose, found.tools)


async def roles_text(core: SessionCore) -> str:
    """What roles there are, whether each is trusted, and whether this session uses it."""
    root = await core.repository()
    trusted = {name: digest for name, (_, digest) in _trusted(core).items()}
    used = {name: role.digest for name, role in roles_of(core.log).roles.items()}
    files = await core.effects.disk(read_roles, root, {*trusted, *used})
    return told(files, trusted, used, "`%muse trust on` lets agents of these roles stand, `%muse trust off` takes that")


def read_roles(root: Path, more: Collection[str] = ()) -> list[RoleFile]:
    """The role files below `root`, and those named in `more`, by name. Blocks; raises as `list_roles`."""
    return [read_role(root, name) for name in sorted({*list_roles(root), *more})]


def told(files: Sequence[RoleFile], trusted: Mapping[str, str], used: Mapping[str, str], remedy: str) -> str:
    """A line for each role: what it is for, whether it is trusted, as `trusted` has the digests of those that are, and
    whether it is in use, as `used` has them. `remedy` begins the last line."""
    lines = []
    for file in files:
        name = file.name
        if file.problem:
            lines.append(file.problem)
            continue
        how = "not trusted" if name not in trusted else "trusted"
        if name in trusted and trusted[name] != file.digest:
            how = "changed since you trusted it"
        uses = "" if name not in used else ", in use" if used[name] == file.digest else ", in use as it was"
        lines.append(f"{name}: {file.purpose} Tools: {', '.join(file.tools)}. {how}{uses} ({file.path})")
    return "\n".join([*lines, f"{remedy} back."]) if lines else NO_ROLES


def usable(root: Path) -> tuple[list[RoleFile], list[str]]:
    """The role files below `root` that can be trusted, and a line for each that cannot. Blocks.

    Raises UsageProblem if there are none, or none that can be used.
    """
    names = list_roles(root)
    found = [read_role(root, name) for name in names[:MAX_READ]]
    good = [file for file in found if not file.problem]
    problems = [file.problem for file in found if file.problem]
    beyond = [*(file.name for file in good[MAX_ROLES:]), *names[MAX_READ:]]
    if beyond:
        problems.append(f"At most {MAX_ROLES} roles are taken; left out: {_listed(beyond)}.")
    if not good:
        raise UsageProblem("\n".join(problems) or NO_ROLES)
    return good[:MAX_ROLES], problems


def _listed(names: Sequence[str]) -> str:
    """Names of files, which can hold anything, in a line."""
    return one_line(", ".join(name if name.isprintable() else ascii(name) for name in names), _LINE)


def rule_of(file: RoleFile) -> Rule:
    """The rule by which the user trusts this file as it is."""
    return Rule(form="role", text=file.name, programs=(file.digest,), place="checkout")


def trusted_line(file: RoleFile) -> str:
    """That the role is trusted now."""
    return f"Trusted: {file.name}: {file.purpose} Tools: {', '.join(file.tools)}."


async def trust(core: SessionCore) -> str:
    """Trust the repository's roles as their files are now, and use them at once if nothing runs; says so in lines.

    Raises UsageProblem if there are none, or none that can be used.
    """
    good, problems = await core.effects.disk(usable, await core.repository())
    await core.rules.forget("role", but=tuple(rule_of(file) for file in good))
    for file in good:
        await core.rules.add(rule_of(file), "workspace", by="trust")
    lines = [trusted_line(file) for file in good]
    if not core.with_crew:
        lines.append("No agents stand in this session (MUSECODE_CREW, profile), so nobody asks them.")
    elif core.busy or core.asking or core.starting:
        lines.append("Something runs: they are used once this session is resumed, or a new one is opened.")
    else:
        await take_roles(core)
        await make_agents(core)
        lines.append(f"The lead can ask them from now on. A file that changes counts after another `{ON}`.")
    return "\n".join([*lines, *problems])


async def distrust(core: SessionCore) -> str:
    """Trust no role of the repository any more, whoever trusted it; none of their agents is asked from now on.

    Says so in a line.
    """
    trusted = await core.rules.forget("role")
    await _drop(core, roles_of(core.log).roles, "not trusted any more")
    return not_trusted(trusted)


def not_trusted(names: Collection[str]) -> str:
    """That these roles are not trusted any more."""
    return f"Not trusted any more: {', '.join(sorted(names))}." if names else "No role of this repository is trusted."


async def take_roles(core: SessionCore) -> None:
    """Take over what the user trusts, as the session opens; tells the user of what is not used, and why.

    Nothing is read of a repository of which the user trusts nothing. What the log has is not read again.
    """
    if core.with_crew:
        try:
            await _take(core, await core.repository())
        except MuseError as problem:
            core.notices.append(f"The repository's roles are not used: {problem}")
    _offer(core)


async def _take(core: SessionCore, root: Path) -> None:
    trusted = _trusted(core)
    names = await core.effects.disk(list_roles, root)
    new = [name for name in names if name not in trusted]
    if new:
        told = f"This repository brings {'a role' if len(new) == 1 else 'roles'} for agents: {_listed(new)}. "
        core.notices.append(f"{told}Not used until you trust it: `%muse trust` shows it, `{ON}` uses it.")
    used = roles_of(core.log).roles
    await _drop(core, [name for name in used if name not in trusted], "not trusted any more")
    for name, (_, digest) in sorted(trusted.items()):
        file = await core.effects.disk(read_role, root, name)
        held = name in used and used[name].digest == digest
        if not file.problem and file.digest == digest:
            if not held:
                said = {"name": name, "path": file.path, "digest": digest, "text": file.text}
                await core.log.append("role.taken", said)
            continue
        if not held:
            await _drop(core, [name] if name in used else [], "its file is another one now")
        why = file.problem or f"Role {name} changed since you trusted it."
        core.notices.append(f"{why} {'It is used as it was' if held else 'It is not used'}; `%muse trust` shows it.")


async def _drop(core: SessionCore, names: Collection[str], why: str) -> None:
    for name in sorted(names):
        await core.log.append("role.dropped", {"name": name, "why": why}, cause=(roles_of(core.log).roles[name].seq,))
        await retire(core, name, f"its role is {why}" if why.startswith("not") else f"its role is used no more: {why}")


def _offer(core: SessionCore) -> None:
    """Let the tool by which standing agents are asked name those that there are."""
    if core.with_crew:
        tool = ask_tool(lambda: core.crew, [role_of(core.log, name) for name in standing(core.log)])
        core.executor.registry = core.executor.registry.over([tool])


def _trusted(core: SessionCore) -> dict[str, tuple[int, str]]:
    """The roles that the user trusts in this repository: the rule's number, and the digest of the file."""
    held = core.rules.state.held.items()
    return {each.rule.text: (number, each.rule.programs[0]) for number, each in held if each.rule.form == "role"}
