"""Which of a repository's roles the user trusts, where no session is open: shown, given, taken back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from musecode_jupyter.guard.rule_file import RuleFile, StoredRule
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import MuseError
from musecode_jupyter.session.repository import root_and_place
from musecode_jupyter.session.roles import not_trusted, read_roles, rule_of, told, trusted_line, usable

REMEDY = "`jupyter musecode trust on` lets agents of these roles stand, `jupyter musecode trust off` takes that"


@dataclass(frozen=True)
class RoleTrust:
    """The roles below `root`, and the rules of its repository. Sessions that are opened later go by what is done here;
    one that is open keeps the agents that it has."""

    root: Path
    file: RuleFile
    effects: Effects

    @classmethod
    async def of(cls, workspace: Path, home: Path, effects: Effects) -> RoleTrust:
        """That of the repository to which the work of `workspace` goes, or of the folder itself if it is in none."""
        root, place = await root_and_place(workspace, home, effects)
        return cls(root, await effects.disk(RuleFile, home, place), effects)

    async def text(self) -> str:
        """What roles there are, and whether each is trusted; a line each."""
        trusted = await self._trusted()
        return told(await self.effects.disk(read_roles, self.root, trusted), trusted, {}, REMEDY)

    async def trust(self) -> str:
        """Trust the roles as their files are now; says so in lines. UsageProblem if there are none that can be used."""
        good, problems = await self.effects.disk(usable, self.root)
        names, since = {file.name for file in good}, self.effects.now().isoformat(timespec="seconds")
        before = {stored.rule: stored for stored in (await self._stored())}
        wanted = [before.get(rule_of(file)) or StoredRule(rule=rule_of(file), since=since) for file in good]
        await self.effects.disk(
            self.file.change,
            lambda rules: (*(each for each in rules if not (_is_role(each) and each.rule.text in names)), *wanted),
        )
        lines = [trusted_line(file) for file in good]
        return "\n".join([*lines, "Sessions that are opened or resumed from now on use them.", *problems])

    async def distrust(self) -> str:
        """Trust no role of the repository any more; says so in a line."""
        trusted = await self._trusted()
        if trusted:
            await self.effects.disk(self.file.change, lambda rules: tuple(each for each in rules if not _is_role(each)))
        return not_trusted(trusted)

    async def _stored(self) -> tuple[StoredRule, ...]:
        """The rules there are; MuseError says in a line why their file cannot be used."""
        stored, problem = await self.effects.disk(self.file.read)
        if problem:
            raise MuseError(problem)
        return stored

    async def _trusted(self) -> dict[str, str]:
        return {each.rule.text: each.rule.programs[0] for each in await self._stored() if _is_role(each)}


def _is_role(stored: StoredRule) -> bool:
    return stored.rule.form == "role"
