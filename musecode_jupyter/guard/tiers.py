"""The fold of data tiers, and what is decided from it: what a model may get, and which label an event is written with.

A label is written once, with the event, by what the event was made of: the contents of files by their paths, the output
of commands by what they could read, and whatever an agent writes by the highest label that its conversation holds (its
high-water mark). What is decided at the gate follows from the log alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import Field

from musecode_jupyter.guard.labels import Clearance, Label, above, clearance_of, highest, label_of, written
from musecode_jupyter.guard.path_labels import FILE, Judged, judge_path, matches
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Slice
from musecode_jupyter.log.tier_kinds import PathLabel
from musecode_jupyter.models.catalogue import tier_of
from musecode_jupyter.runtime.errors import LogError, TierBlocked, WrongModel

TIER = "contributor"
HARNESS = "harness"
WITHOUT_MEMORY = (HARNESS, "verifier", "reviewer")
_MOST_TAINTED = 2_000
# The user's own words: they say what they want a model to know. What they attach of a notebook is no word of theirs.
_WORDS = frozenset(
    {"user.message", "user.steer", "goal.set", "goal.edited", "plan.begun", "plan.edited", "task.created"}
)
# What an event speaks of, beside its causes, and so may repeat.
_SPEAKS_OF = ("plan", "task", "merge", "critique", "batch", "claim", "mail")
# What the harness writes of what it ran and saw.
_REPORTS = frozenset(
    {"goal.judged", "goal.nudged", "task.bounced", "tasks.tried", "plan.checked", "mail.sent", "checks.ended"}
)

# What an agent, or the harness, knows from there on.
_HEARD = frozenset(
    {
        *("notebook.attached", "model.completed", "agent.view", "context.compacted", "mail.delivered", "task.leased"),
        *("tool.finished", "tool.failed", "tool.cancelled", "tool.unknown", "critique.asked", "critique.raised"),
        *_WORDS,
        *_REPORTS,
    }
)
# What says that something was done, and nothing of what was in it: what follows from it need not be private, too.
_BARE = ("worktree.", "batch.", "git.", "file.", "checks.begun", "agent.state", "agent.woken", "agent.seeded")


class Mark(Slice):
    """The highest label of a conversation, and the event that raised it so high."""

    label: str
    by: int


class Own(Slice):
    """A path that the user labelled; `since` is the event."""

    pattern: str
    label: str
    since: int


class TiersState(Slice):
    """What is pinned, what may go to it, and which labels there are.

    `opted` is the event by which the repository's owner opted in to the contributor tier, `bound` the digest of the
    tier file that it is bound to. `own` has the user's labels of paths by rule. `marks` has what conversations hold
    that is not standard, by agent. `tainted` are files that were written by whoever held something private, or by
    commands that may have read it: by path, the event; `spilled` is the event after which that is not known, of any
    file. `wrong` is the answer that came from another model than the pinned one, as long as the user has not decided.
    `switched` says that the user pinned the model in mid-session.
    """

    model: str = ""
    remote: bool = True
    switched: bool = False
    rules: list[PathLabel] = Field(default_factory=list)
    standard: str = "private"
    digest: str = ""
    opted: int | None = None
    bound: str = ""
    own: dict[int, Own] = Field(default_factory=dict)
    marks: dict[str, Mark] = Field(default_factory=dict)
    tainted: dict[str, int] = Field(default_factory=dict)
    spilled: int | None = None
    wrong: int | None = None

    @property
    def opted_in(self) -> bool:
        """Whether the opt-in holds: it is bound to the tier file as it was then."""
        return self.opted is not None and self.bound == self.digest

    @property
    def tier(self) -> str:
        """The tier of the pinned model."""
        return tier_of(self.model)

    def clearance(self, model: str = "") -> Clearance:
        """The highest label that the pinned model, or `model`, may get."""
        standard: Clearance = "standard" if self.standard == "standard" else "private"
        return clearance_of(tier_of(model or self.model), remote=self.remote, opted=self.opted_in, standard=standard)

    def path(self, path: str) -> Judged:
        """The label of what lies at `path`, relative to the root of the repository, in any tree of it."""
        own = [(each.pattern, label_of(each.label)) for each in self.own.values()]
        said = judge_path(path, self.rules, own)
        # What the user said of it last counts against what was written into it before.
        since = max((each.since for each in self.own.values() if matches(each.pattern, path)), default=0)
        if (by := self.tainted.get(path, 0)) > since:
            return Judged("private", f"{path}: written by what may have read something private (event {by})")
        if self.spilled is not None and self.spilled > since:
            return Judged("private", f"{path}: what commands wrote is not known (event {self.spilled})")
        return said


class TiersReducer:
    """Folds what is pinned, opt-ins, labels of paths, and the labels of all events."""

    name = "tiers"
    kinds = frozenset(
        {
            *("session.opened", "session.resumed", "tier.labelled", "tier.switched", "rule.added", "rule.removed"),
            *("agent.created", "agent.retired", "context.compacted", "model.failed"),
            *("file.changed", "worktree.snapshotted"),
        }
    )

    def initial(self) -> TiersState:
        return TiersState()

    def glance(self, state: TiersState, event: Event) -> None:
        """Whoever writes or is given what has a higher label holds that from there on."""
        if not event.label or label_of(event.label) != "private" or event.kind not in _HEARD:
            return
        for name in {event.agent or HARNESS, event.data.get("to"), event.data.get("agent")}:
            if isinstance(name, str) and name and name != "user" and name not in state.marks:
                state.marks[name] = Mark(label="private", by=event.seq)

    def apply(self, state: TiersState, event: Event) -> None:
        data = event.data
        if event.kind in {"session.opened", "session.resumed", "tier.switched"}:
            state.model, state.remote = data["model"], data.get("remote", True)
            if event.kind == "tier.switched":
                state.switched, state.wrong = True, None
                # What the harness reports from here on is of what it runs from here on.
                for name in WITHOUT_MEMORY:
                    state.marks.pop(name, None)
        elif event.kind == "tier.labelled":
            state.rules = [PathLabel.model_validate(each) for each in data["rules"]]
            state.standard, state.digest = data["standard"], data["digest"]
        elif event.kind == "rule.added" and data.get("form") == "tier":
            state.opted, state.bound = event.seq, "".join(data["programs"])
        elif event.kind == "rule.added" and data.get("form") == "label":
            state.own[event.seq] = Own(pattern=data["text"], label="".join(data["words"]), since=event.seq)
        elif event.kind == "rule.removed":
            state.own.pop(data["rule"], None)
            if state.opted == data["rule"]:
                state.opted = None
        elif event.kind in {"agent.created", "agent.retired"} or (
            event.kind == "context.compacted" and not event.label
        ):
            state.marks.pop(event.agent, None)
        elif event.kind == "model.failed" and data["error_kind"] == "wrong_model":
            state.wrong = event.seq
        elif event.label == "private" and event.kind == "file.changed":
            self._taint(state, [data["path"]], event.seq)
        elif event.label == "private" and event.kind == "worktree.snapshotted":
            if data["commit"] is None:
                state.spilled = event.seq
            else:
                self._taint(state, data.get("differing", ()), event.seq)

    def _taint(self, state: TiersState, paths: Iterable[str], seq: int) -> None:
        for path in paths:
            state.tainted[path] = seq
        if len(state.tainted) > _MOST_TAINTED:
            state.tainted.clear()
            state.spilled = seq


def tiers_of(log: EventLog) -> TiersState:
    """The tiers as folded."""
    state = log.state("tiers")
    assert isinstance(state, TiersState)
    return state


# --- what may be sent -----------------------------------------------------------------------------------------------


class Held(NamedTuple):
    """A part of a prompt: the event that it comes from."""

    seq: int
    kind: str
    agent: str
    label: str


def held(event: Event) -> Held:
    """The event as a part of a prompt."""
    return Held(event.seq, event.kind, event.agent, event.label)


@dataclass(frozen=True)
class Refusal:
    """Why a prompt may not go to a model. Without a part, nothing may."""

    clearance: Clearance
    part: Held | None
    label: str
    rule: str


def withheld(state: TiersState, part: Held, clearance: Clearance) -> str:
    """Why a part of a prompt may not go where `clearance` is the highest label that may; empty if it may.

    What was seen before the opt-in counts as private to a model of the contributor tier, but for the user's own words:
    until then nobody had to say what may go there.
    """
    if not clearance:
        return "nothing may go to it"
    if above(part.label, clearance):
        return "private"
    early = state.tier == TIER and state.opted is not None and part.seq < state.opted
    if early and not (part.agent == "user" and part.kind in _WORDS):
        return f"it was seen before the opt-in (event {state.opted})"
    return ""


def refusal(state: TiersState, parts: Callable[[], Iterable[Held]], model: str = "") -> Refusal | None:
    """Why a prompt of these parts may not go to the pinned model, by its first part that may not; None if it may.

    `model` is the one that it would go to, where no session has pinned one.
    """
    clearance = state.clearance(model)
    if clearance == "private":
        return None
    if not clearance:
        rule = f"{FILE} changed since you opted in" if state.opted else "this repository is not opted in"
        return Refusal(clearance, None, "standard", rule)
    for part in parts():
        if why := withheld(state, part, clearance):
            mark = state.marks.get(part.agent)
            if why == "private":
                why = f"what {part.agent or HARNESS} wrote when it held event {mark.by}" if mark else "by its own label"
            return Refusal(clearance, part, label_of(part.label), why)
    return None


def error_of(model: str, found: Refusal, why: str) -> TierBlocked:
    """What the user is told. `why` says more closely than the refusal why the part has its label, if that is known."""
    rule = why or found.rule
    if found.part is None:
        return TierBlocked(
            f"Nothing is sent to {model}: {found.rule}, and prompts of the contributor tier may be used for training. "
            "`%muse tier` says what to do."
        )
    return TierBlocked(
        f"Not sent to {model}: event {found.part.seq} ({found.part.kind}) is {found.label} ({rule}), and this model "
        f"gets nothing above {found.clearance}. `%muse tier standard` or a new session goes on; "
        f"`%muse show {found.part.seq}` shows the event."
    )


def check_pin(state: TiersState) -> None:
    """Raise WrongModel while an answer of another model than the pinned one waits for the user's decision."""
    if state.wrong is not None:
        raise WrongModel(
            f"No call is made: another model than {state.model} answered (event {state.wrong}). Check the endpoint; "
            f"`%muse model {state.model}` goes on with it, `%muse model ID` with another one."
        )


_SECTION = re.compile(r"^(?=diff --git )", re.MULTILINE)
_NAMES = re.compile(r"diff --git a/(?P<old>[^\"\n]*) b/(?P<new>[^\"\n]*)\n")


def released_diff(state: TiersState, diff: str) -> tuple[str, Label]:
    """A diff of git's without the files that the pinned model may not get, and the label of what is left.

    A file whose name cannot be read off it for certain counts as private.
    """
    clearance, parts, labels = state.clearance(), [], []
    for section in _SECTION.split(diff):
        if not section.startswith("diff --git "):
            parts.append(section)
            continue
        found = _NAMES.match(section)
        names = {found["old"], found["new"]} if found else set()
        judged = [state.path(name) for name in sorted(names)]
        label = highest(*(each.label for each in judged)) if len(names) == 1 else highest("private")
        if names and len(names) > 1 and "\nrename to " in section[:2_000]:
            label = highest(*(each.label for each in judged))
        if above(label, clearance):
            name = f"{found['new']}: " if found else ""
            parts.append(f"[{name}changed, and not shown: it is private]\n")
        else:
            parts.append(section)
            labels.append(label)
    return "".join(parts), highest("standard", *labels)


# --- with which label an event is written ---------------------------------------------------------------------------


class Labeller:
    """Gives events that are posted without a label the highest of those that they were made of."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._begun = log.last_seq
        self._known: dict[int, Label] = {}

    def label(self, kind: str, data: Mapping[str, Any], agent: str, cause: Iterable[int]) -> str:
        """The label, as the envelope says it."""
        made_of = {*cause}
        for name in _SPEAKS_OF:
            if isinstance(of := data.get(name), int):
                made_of.add(of)
        made_of.update(each for each in data.get("claims") or () if isinstance(each, int))
        marks = tiers_of(self._log).marks
        # Reports are the harness's, though they bear the name of whose work it is; letters only if no agent wrote them.
        reports = kind in _REPORTS and (kind != "mail.sent" or agent in WITHOUT_MEMORY)
        mark = marks.get(HARNESS) if reports else None if agent in WITHOUT_MEMORY else marks.get(agent)
        mine = "standard" if mark is None else mark.label
        return written(highest(mine, *map(self._of, made_of)))

    def wrote(self, event: Event) -> None:
        """Keep the label of an event that was posted."""
        if event.label and not event.kind.startswith(_BARE):
            self._known[event.seq] = label_of(event.label)

    def _of(self, seq: int) -> Label:
        if seq > self._begun or seq < 1:
            return self._known.get(seq, "standard")
        if seq not in self._known:
            try:
                event = self._log.get(seq)
                self._known[seq] = "standard" if event.kind.startswith(_BARE) else label_of(event.label)
            except LogError:
                self._known[seq] = "private"
        return self._known[seq]
