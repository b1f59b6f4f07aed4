"""Data tiers of a session: the labels of its repository's paths, the opt-in, and the model that is pinned."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from musecode_jupyter.guard.labels import MEANING, ORDER
from musecode_jupyter.guard.path_labels import FILE, TierFile, is_secret, licence_rules, read_tier_file
from musecode_jupyter.guard.rule_file import Rule, RuleFile, StoredRule
from musecode_jupyter.guard.tiers import TIER, Held, TiersState, tiers_of
from musecode_jupyter.models.catalogue import CATALOGUE, DEFAULT_MODEL, tier_of
from musecode_jupyter.models.endpoint import Endpoint
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import ConfigurationError, Denied, MuseError, UsageProblem
from musecode_jupyter.session.cost import CostReport, cost_of, usd
from musecode_jupyter.session.repository import files_below, root_and_place
from musecode_jupyter.session.settings import Settings
from musecode_jupyter.workspace.git import Git

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore

MEANS: Final = (
    "In the contributor tier prompts and answers may be used for training, so whatever an agent reads for you may be "
    "learned by later models and cannot be taken back. It costs a fraction of the standard tier for that; what is "
    "private never goes there, all else of this repository does."
)


@dataclass(frozen=True)
class OptIn:
    """What a repository's owner said of the contributor tier, where it is kept, and the tier file that it is bound to.

    `root` is that of the repository, or the folder itself if it is in none.
    """

    root: Path
    tier_file: TierFile
    file: RuleFile
    effects: Effects

    @classmethod
    async def of(cls, workspace: Path, home: Path, effects: Effects) -> OptIn:
        """That of the repository of `workspace`; ConfigurationError if its tier file cannot be understood."""
        try:
            root, place = await root_and_place(workspace, home, effects)
        except MuseError:
            root = place = workspace
        found = await effects.disk(read_tier_file, root)
        return cls(root, found, await effects.disk(RuleFile, home, place), effects)

    @property
    def words(self) -> str:
        """What the owner types."""
        return f"{self.root.name} may be used for training"

    async def stored(self) -> StoredRule | None:
        """The opt-in that is kept, whether it is bound to the tier file of now or not."""
        rules, problem = await self.effects.disk(self.file.read)
        if problem:
            raise ConfigurationError(problem)
        return next((each for each in rules if each.rule.form == "tier"), None)

    async def problem(self) -> str:
        """Why a model of the contributor tier may not be used here; empty if it may."""
        kept = await self.stored()
        if kept is None:
            return f"{self.root.name} is not opted in"
        if "".join(kept.rule.programs) != self.tier_file.digest:
            return f"{FILE} changed since {self.root.name} was opted in"
        return ""

    def rule(self, typed: str) -> Rule:
        """The rule that the owner's words make; UsageProblem if they are not those that are asked for."""
        if " ".join(typed.split()) != self.words:
            raise UsageProblem(f"To opt in, type these words: {self.words}")
        bound = (self.tier_file.digest,) if self.tier_file.digest else ()
        return Rule(form="tier", text=TIER, words=(self.words,), programs=bound)

    async def give(self, typed: str) -> None:
        """Keep the opt-in for sessions that are opened from now on."""
        stored = StoredRule(rule=self.rule(typed), since=self.effects.now().isoformat(timespec="seconds"))
        await self.effects.disk(
            self.file.change, lambda rules: (*(each for each in rules if each.rule.form != "tier"), stored)
        )

    async def withdraw(self) -> None:
        """Take it back; sessions that are open are told by their next look at the rules."""
        await self.effects.disk(
            self.file.change, lambda rules: tuple(each for each in rules if each.rule.form != "tier")
        )


async def check_opted(model: str, profile: str, workspace: Path, home: Path, effects: Effects) -> None:
    """Raise ConfigurationError if a session with `model` may not begin here, before anything is written."""
    opt_in = await OptIn.of(workspace, home, effects)
    if tier_of(model) != TIER:
        return
    if profile == "guided":
        raise ConfigurationError(f"{model} of the contributor tier is used with the driver profile only.")
    if problem := await opt_in.problem():
        raise ConfigurationError(
            f"model {model!r} is refused: prompts of the contributor tier may be used for training, and {problem}: "
            f"use {DEFAULT_MODEL}, or opt in with `jupyter musecode tier --opt-in '{opt_in.words}'`"
        )


def kept_model(settings: Settings, endpoint: Endpoint, state: TiersState, api: str) -> Settings:
    """The settings with which a session is resumed: with the model that it had.

    The user's choice in mid-session holds; so does what it began with, unless the user names another one now. None is
    put in its place of a higher tier of data than before.

    Raises
    ------
    ConfigurationError
        A model of the contributor tier is named for a session that has one of another tier.
    """
    if not state.model or endpoint.model == state.model or endpoint.api != api:
        return settings
    if state.switched or settings.model is None:
        return replace(settings, model=state.model, price=None if state.model in CATALOGUE else settings.price)
    if tier_of(endpoint.model) == TIER:
        raise ConfigurationError(
            f"This session is pinned to {state.model}, and {endpoint.model} is of the contributor tier: resume it as "
            "it is, then `%muse tier contributor` asks before it switches."
        )
    return settings


async def open_tiers(core: SessionCore) -> None:
    """Write down the labels of paths as the repository's files say them, if they are not known so."""
    opt_in = await OptIn.of(core.workspace, core.home, core.effects)
    core.below = os.path.relpath(core.workspace, opt_in.root) if core.workspace != opt_in.root else ""
    await _label(core, opt_in)


async def _label(core: SessionCore, opt_in: OptIn, *, licences: bool = False) -> None:
    state, found = tiers_of(core.log), opt_in.tier_file
    rules = list(found.rules)
    if licences or state.opted is not None or core.gate.info.tier == TIER:
        rules += await core.effects.disk(licence_rules, opt_in.root, await _files(opt_in, core.effects))
    else:
        rules += [rule for rule in state.rules if rule.raises]
    if (state.rules, state.standard, state.digest) != (rules, found.standard, found.digest):
        said = {"rules": [each.model_dump() for each in rules], "standard": found.standard, "digest": found.digest}
        await core.log.append("tier.labelled", said, agent="user")
    if state.opted is not None and not state.opted_in:
        core.notices.append(f"{FILE} changed since this repository was opted in: `%muse tier opt-in` asks again.")


async def _files(opt_in: OptIn, effects: Effects) -> list[str]:
    try:
        return await (await Git.discover(opt_in.root, effects)).list_files(opt_in.root)
    except MuseError:
        return await effects.disk(files_below, opt_in.root)


def rule_of_part(core: SessionCore, part: Held) -> str:
    """Why a part of a prompt has its label, with the path if it is one of a file; empty if no more is known."""
    data, state = core.log.get(part.seq).data, tiers_of(core.log)
    if isinstance(call := data.get("call"), int):
        paths = [
            str(event.data["path"])
            for event in core.log.events(since=call)
            if event.kind == "file.observed" and event.data["call"] == call
        ]
        for path in paths:
            judged = state.path(path)
            if judged.label == "private":
                return judged.rule
        called = core.log.get(call).data
        return f"the result of {called['name']} {' '.join(map(str, called['arguments'].values()))[:80]}".strip()
    if part.kind == "notebook.attached":
        return "a cell of your notebook can show any data"
    return ""


# --- what the user asks and says ------------------------------------------------------------------------------------


def tier_text(core: SessionCore, report: CostReport, opt_in: OptIn) -> str:
    """Where the session stands, what the contributor tier means, and what it would have cost."""
    state = tiers_of(core.log)
    opted = (
        "opted in"
        if state.opted_in
        else f"not opted in any more: {FILE} changed since"
        if state.opted is not None
        else "not opted in"
    )
    lines = [
        f"{core.gate.model}, of the {core.gate.info.tier} tier, gets what is {_up_to(state.clearance())}. "
        f"{opt_in.root.name} is {opted}.",
        MEANS,
        price_line(report),
    ]
    if not state.opted_in:
        lines.append(f"To opt in: %muse tier opt-in {opt_in.words}")
    elif core.gate.info.tier != TIER:
        lines.append("`%muse tier contributor` asks before it switches; `%muse tier withdraw` takes the opt-in back.")
    else:
        lines.append("`%muse tier standard` goes back; `%muse tier withdraw` takes the opt-in back.")
    labels = [f"{each.pattern} is {each.label} ({each.why})" for each in state.rules]
    labels += [f"{each.pattern} is {each.label} (your label)" for each in state.own.values()]
    if labels:
        lines += ["Labels beside the defaults:", *(f"  {each}" for each in labels)]
    return "\n".join(lines)


def _up_to(clearance: str) -> str:
    names = [label for label in ORDER if clearance and ORDER[label] <= ORDER[clearance]]
    return " or ".join(names) or "nothing"


def price_line(report: CostReport) -> str:
    """What this session cost, against the other tier with the same usage."""
    if not report.total.calls:
        return "No model was called in this session yet, so there is no usage to compare prices on."
    if report.contributor is None:
        return f"This session cost {usd(report.total.microusd)} USD; its model has no contributor tier to compare with."
    return (
        f"This session's {report.total.calls} calls cost {usd(report.total.microusd)} USD; in the contributor tier "
        f"they would have cost {usd(report.contributor)} USD."
    )


async def told(core: SessionCore) -> str:
    """As `tier_text`, of now."""
    await core.log.flush()
    report = await core.effects.disk(cost_of, core.log.folder)
    return tier_text(core, report, await OptIn.of(core.workspace, core.home, core.effects))


async def opt_in(core: SessionCore, typed: str) -> str:
    """Opt the repository in, by the owner's own words; says what that does.

    Raises UsageProblem if the words are not those that are asked for.
    """
    found = await OptIn.of(core.workspace, core.home, core.effects)
    rule = found.rule(typed)
    await _label(core, found, licences=True)
    for number, each in list(core.rules.state.held.items()):
        if each.rule.form == "tier" and each.rule != rule:
            await core.rules.remove(number, by="opted in anew")
    await core.rules.add(rule, "workspace", by="user")
    closed = [each.pattern for each in tiers_of(core.log).rules if each.raises]
    note = f" Private by a licence that reserves all rights: {', '.join(closed)}." if closed else ""
    return (
        f"{found.root.name} is opted in to the contributor tier, in sessions to come too, until `%muse tier withdraw` "
        f"or a change of {FILE}. Nothing has changed yet: `%muse tier contributor` switches.{note}"
    )


async def withdraw(core: SessionCore) -> str:
    """Take the opt-in back: from now on nothing is sent to a model of the contributor tier."""
    numbers = [number for number, each in core.rules.state.held.items() if each.rule.form == "tier"]
    if not numbers:
        raise UsageProblem("This repository is not opted in to the contributor tier.")
    for number in numbers:
        await core.rules.remove(number, by="user")
    go = " `%muse tier standard` goes on." if core.gate.info.tier == TIER else ""
    return f"Withdrawn: nothing is sent to a model of the contributor tier any more. What was sent stays sent.{go}"


async def label(core: SessionCore, pattern: str, name: str) -> str:
    """Give what lies at `pattern` a label, in this repository, from now on; says so."""
    if name not in ORDER:
        raise UsageProblem(f"{name!r} is no label: it is one of {', '.join(ORDER)}.")
    path = os.path.normpath(pattern)
    if not pattern.strip() or os.path.isabs(pattern) or path.startswith(".."):
        raise UsageProblem("Give a path or a glob below the root of the repository: %muse tier label data/open public.")
    for number, each in list(core.rules.state.held.items()):
        if each.rule.form == "label" and each.rule.text == path:
            await core.rules.remove(number, by="labelled anew")
    number = await core.rules.add(Rule(form="label", text=path, words=(name,)), "workspace", by="user")
    secret = " By its name it holds secrets; that is your word now." if name != "private" and is_secret(path) else ""
    return (
        f"{path} is {name} from now on: it {MEANING[name]}. What was read before keeps its label. "
        f"`%muse rules remove {number}` takes it back.{secret}"
    )


async def set_tier(core: SessionCore, tier: str) -> str:
    """Switch to the pinned model's id in `tier`, if the user agrees; says what was done."""
    model = core.gate.model
    base = model.removesuffix(f"-{TIER}")
    if tier not in {"standard", TIER}:
        raise UsageProblem("The tiers are standard and contributor.")
    wanted = f"{base}-{TIER}" if tier == TIER else base
    if wanted == model:
        return f"{model} is of the {tier} tier already."
    if wanted not in CATALOGUE:
        raise UsageProblem(f"{base} has no {tier} tier that is known: `%muse model ID` pins another model.")
    return await switch(core, wanted)


async def switch(core: SessionCore, model: str) -> str:
    """Pin `model` from now on, if the user agrees, or the pinned one again after a mismatch; says what was done.

    What each agent holds is checked again at its next step: it begins anew without what the model may not get.

    Raises
    ------
    UsageProblem
        Something runs, or the session would need another kind of agents for it.
    ConfigurationError
        It cannot be used here.
    Denied
        The user or the approvals mode says no.
    """
    async with core.exclusive():
        state, before = tiers_of(core.log), core.gate.model
        if model == before and state.wrong is None:
            return f"{model} is pinned already."
        settings = replace(core.settings, model=model, price=None if model in CATALOGUE else core.settings.price)
        endpoint = settings.endpoint(core.effects.environ())
        info = settings.info(endpoint)
        if "local" in {endpoint.api, core.gate.endpoint.api} or info.profile != core.gate.info.profile:
            raise UsageProblem(f"{model} needs agents of another kind: begin a session with MUSECODE_MODEL={model}.")
        found = await OptIn.of(core.workspace, core.home, core.effects)
        if info.tier == TIER:
            await _label(core, found, licences=True)
            if not tiers_of(core.log).opted_in:
                raise UsageProblem(
                    f"{model} is of the contributor tier, and {found.root.name} is not opted in. {MEANS} "
                    f"To opt in: %muse tier opt-in {found.words}"
                )
        approval = await _agreed(core, endpoint, info.tier)
        await core.crew.rest()
        await core.log.append(
            "tier.switched",
            {
                "model": endpoint.model,
                "before": before,
                "api": endpoint.api,
                "remote": endpoint.remote,
                "approval": approval,
                **info.recorded,
            },
            agent="user",
            cause=() if approval is None else (approval,),
        )
        core.gate.repin(endpoint, info)
        core.executor.room = info.room
        core.settings = settings
        return f"{endpoint.model} is pinned, of the {info.tier} tier. Agents begin anew without what it may not get."


async def _agreed(core: SessionCore, endpoint: Endpoint, tier: str) -> int | None:
    """The approval by which the user agrees; None where the approvals mode decides. Raises Denied."""
    if core.policy.mode == "allow-workspace" and tier != TIER:
        return None
    if not core.policy.interactive:
        if tier == TIER and core.policy.mode == "allow-workspace":
            # The owner has opted in, in writing, and lets this program act by itself.
            return None
        raise Denied(
            "Not switched: nobody can be asked here. Set MUSECODE_MODEL, or MUSECODE_APPROVALS=allow-workspace."
        )
    await core.log.flush()
    report = await core.effects.disk(cost_of, core.log.folder)
    shown: Mapping[str, object] = {
        "model": f"{endpoint.model} instead of {core.gate.model}",
        "tier": tier,
        "means": MEANS if tier == TIER else "prompts are not used for training; what is private may go to it too",
        "price": price_line(report),
    }
    answer = await core.approvals.ask(
        "tier", f"switch to {endpoint.model}", shown, agent="user", no_rule="each switch is a question of its own"
    )
    if not answer.granted:
        raise Denied(f"Not switched: denied ({answer.why or 'your answer'}).")
    return answer.approval
