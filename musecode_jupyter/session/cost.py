"""What a session cost, by agent, task, goal and tier, against what was reserved and what other ways would have cost."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from html import escape
from pathlib import Path
from typing import Any

from musecode_jupyter.agents.economy import EconomyReducer, EconomyState
from musecode_jupyter.guard.ledger import LedgerReducer, LedgerState
from musecode_jupyter.guard.settlement import ENDS, PAID, settled
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Fold
from musecode_jupyter.models.catalogue import contributor_price, cost, tier_of
from musecode_jupyter.models.types import Usage
from musecode_jupyter.runtime.money import in_usd, spent_microusd
from musecode_jupyter.session.export.source import EventSource
from musecode_jupyter.session.visible import visible_text
from musecode_jupyter.skills.goal_state import GoalsReducer, GoalsState

_FILES_TOLD = 5
_TITLE = 60
_GRILL = re.compile(r"grill (\d+) ")


@dataclass
class Sum:
    """What model calls come to. `reserved` is their worst case, `estimated` of `microusd` what no usage confirmed.

    `calls` were answered, `failed` were not; `input` counts the cached tokens too.
    """

    microusd: int = 0
    reserved: int = 0
    estimated: int = 0
    calls: int = 0
    failed: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0

    def add(self, other: Sum) -> None:
        """Count what `other` counts."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def text(self) -> str:
        """All of it in a line, with money to the micro-dollar; ~ marks a sum that is in part an estimate."""
        share = 100 * self.cached / self.input if self.input else 0
        parts = [
            f"{'~' if self.estimated else ''}{usd(self.microusd)} of {usd(self.reserved)} USD reserved",
            f"{self.calls} calls",
            f"{self.input} tokens in ({share:.0f}% cached)",
            f"{self.output} out",
        ]
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{usd(self.estimated)} USD estimated"] if self.estimated else []
        return ", ".join(parts)


@dataclass
class Given:
    """What went to the server in prompts: tokens of prompts and answers, and each content of a file that agents saw."""

    tokens: int = 0
    bytes: int = 0
    files: dict[str, int] = field(default_factory=dict)


@dataclass
class CostReport:
    """The costs of a session. Money in micro-dollars; each of the groups but `grills` adds up to `total`.

    `agents` by name, with `roles`; `tasks` by number (0: none), with `titles`; `goals` by number (0: none); `grills` by
    number of the attack for which reviewers were asked; `tiers` by tier and model. `spawn_tokens` and `spawn_microusd`
    are what new agents for each piece of work would have read again, and paid for it, on top; an estimate.
    `contributor` is what the same usage would have cost in the contributor tier, None where a call was made for which
    there is none; `given` is what would have gone to training there.
    """

    session: str
    workspace: str = ""
    total: Sum = field(default_factory=Sum)
    agents: dict[str, Sum] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    tasks: dict[int, Sum] = field(default_factory=dict)
    goals: dict[int, Sum] = field(default_factory=dict)
    titles: dict[int, str] = field(default_factory=dict)
    grills: dict[int, Sum] = field(default_factory=dict)
    tiers: dict[str, Sum] = field(default_factory=dict)
    spawn_tokens: int = 0
    spawn_microusd: int = 0
    contributor: int | None = 0
    given: Given = field(default_factory=Given)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        return asdict(self)

    @property
    def groups(self) -> list[tuple[str, list[tuple[str, Sum]]]]:
        """Heading and named sums of each table; tables with one unnamed line are left out."""
        found = [
            ("by agent", [(self._agent(name), each) for name, each in self.agents.items()]),
            ("by task", [(self._numbered("task", number), each) for number, each in self.tasks.items()]),
            ("by goal", [(self._numbered("goal", number), each) for number, each in self.goals.items()]),
            ("by attack", [(f"attack {number}", each) for number, each in self.grills.items()]),
            ("by tier", list(self.tiers.items())),
        ]
        names = {"by task": self.tasks, "by goal": self.goals}
        return [(head, rows) for head, rows in found if rows and set(names.get(head, {1: 0})) != {0}]

    @property
    def notes(self) -> list[str]:
        """What other ways would have cost, a sentence each."""
        lines = []
        if self.spawn_tokens:
            lines.append(
                f"a new agent for each piece of work would have read about {self.spawn_tokens} tokens again, for about "
                f"{usd(self.spawn_microusd)} USD more"
            )
        if self.given.tokens and self.contributor is not None:
            files = self.given.files
            told = ", ".join(list(files)[:_FILES_TOLD]) + (
                f" and {len(files) - _FILES_TOLD} more" * (len(files) > _FILES_TOLD)
            )
            held = (
                f", with {len(files)} files ({sum(files.values())} bytes) of {self.workspace}: {told}" if files else ""
            )
            lines.append(
                f"in the contributor tier the same calls would have cost {usd(self.contributor)} USD, and "
                f"{self.given.tokens} tokens of prompts and answers could have been used for training{held}"
            )
        return lines

    def text(self) -> str:
        """All of it in lines."""
        groups = dict(self.groups)
        lines = [f"{name}: {each.text}" for name, each in groups.pop("by agent", [])]
        lines.append(f"total: {self.total.text}")
        for heading, rows in groups.items():
            lines += [f"{heading}:", *(f"  {name}: {each.text}" for name, each in rows)]
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        head = "".join(
            f"<th>{each}</th>"
            for each in ("", "USD", "reserved", "estimated", "calls", "failed", "tokens in", "cached", "out")
        )
        rows = [f"<tr>{head}</tr>"]
        for heading, sums in [*self.groups, ("", [("total", self.total)])]:
            rows.append(f'<tr><th colspan="9" style="text-align:left">{heading}</th></tr>' if heading else "")
            for name, each in sums:
                money = (usd(each.microusd), usd(each.reserved), usd(each.estimated))
                cells = (*money, each.calls, each.failed, each.input, each.cached, each.output)
                rows.append(
                    f"<tr><td>{escape(visible_text(name))}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
                )
        notes = "".join(f"<p>{escape(visible_text(note))}</p>" for note in self.notes)
        return f"<table>{''.join(rows)}</table>{notes}"

    def _agent(self, name: str) -> str:
        role = self.roles.get(name, "")
        return f"{name} ({role})" if role and role != name else name

    def _numbered(self, what: str, number: int) -> str:
        return f"{what} {number} ({self.titles.get(number, '')})" if number else f"no {what}"


def usd(microusd: int) -> str:
    """US dollars to the micro-dollar."""
    return f"{in_usd(microusd):.6f}"


def cost_of(folder: Path) -> CostReport:
    """The costs of the session in `folder`, from its journal alone; it may be live, closed or damaged at its end.

    Raises UsageProblem if it has no event that can be read.
    """
    source = EventSource(folder)
    return report(source.events(), source.name)


def report(events: Iterable[Event], session: str = "") -> CostReport:
    """The costs in `events`, from the first one on."""
    made = _Maker(CostReport(session))
    for event in events:
        made.take(event)
    return made.done()


class _Maker:
    def __init__(self, found: CostReport) -> None:
        self.found = found
        self._fold = Fold([LedgerReducer(), GoalsReducer(), EconomyReducer()])
        self._open: dict[int, dict[str, Any]] = {}

    def take(self, event: Event) -> None:
        data, found = event.data, self.found
        if event.kind == "session.opened":
            found.workspace = str(data["workspace"])
        elif event.kind == "agent.created":
            found.roles[event.agent] = str(data["role"])
        elif event.kind == "goal.set" or event.kind == "task.created":
            found.titles[event.seq] = " ".join(str(data["text"]).split())[:_TITLE]
        elif event.kind == "file.observed" and event.agent in found.roles and event.label != "private":
            found.given.files[data["path"]] = max(data["size"], found.given.files.get(data["path"], 0))
        elif event.kind == "model.requested":
            self._open[event.seq] = dict(data)
        elif event.kind == "session.forked":
            # What was open is the parent's to settle.
            for each in self._open.values():
                each["reserved_microusd"], each["reserved_tokens"] = 0, 0
        elif event.kind in PAID:
            self._count(event)
        self._fold.apply(event)

    def done(self) -> CostReport:
        economy = self._fold.state("economy")
        assert isinstance(economy, EconomyState)
        for use in economy.agents.values():
            self.found.spawn_tokens += use.cold_tokens
            self.found.spawn_microusd += spent_microusd(use.cold_usd)
        return self.found

    def _count(self, event: Event) -> None:
        data, found = event.data, self.found
        request = self._open.get(data["request"], {})
        usage = data.get("usage")
        what = settled(event, request.get("reserved_tokens", 0))
        one = Sum(**{each.name: getattr(what, each.name) for each in fields(Sum) if each.name != "reserved"})
        if event.kind in ENDS:
            self._open.pop(data["request"], None)
            one.reserved = request.get("reserved_microusd", 0)
        model = str(request.get("model", ""))
        tier = tier_of(model)
        found.agents.setdefault(event.agent, Sum()).add(one)
        found.tasks.setdefault(self._task(data["request"]), Sum()).add(one)
        found.goals.setdefault(self._goal(event.agent), Sum()).add(one)
        if grill := _GRILL.match(str(request.get("purpose", ""))):
            found.grills.setdefault(int(grill[1]), Sum()).add(one)
        found.tiers.setdefault(f"{tier}, {model}", Sum()).add(one)
        found.total.add(one)
        if tier != "local":
            found.given.tokens += one.input + one.output
            found.given.bytes += request.get("bytes", 0)
        self._compare(model, one, usage)

    def _compare(self, model: str, one: Sum, usage: dict[str, int] | None) -> None:
        price = contributor_price(model)
        if price is None or self.found.contributor is None:
            self.found.contributor = None if one.microusd else self.found.contributor
            return
        same = Usage(input=one.input, output=0) if usage is None else Usage(**usage)
        self.found.contributor += cost(price, same)

    def _task(self, request: int) -> int:
        ledger = self._fold.state("ledger")
        assert isinstance(ledger, LedgerState)
        reserve = ledger.open.get(request)
        return (reserve.task if reserve else None) or 0

    def _goal(self, agent: str) -> int:
        goals = self._fold.state("goals")
        assert isinstance(goals, GoalsState)
        active = goals.active
        return active if active is not None and agent in goals.goals[active].agents else 0
