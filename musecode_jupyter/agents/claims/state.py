"""The fold of claims: what each rests on and whether that changed since, who has it before them, what relies on it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel, Field

from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.agents.claims.labels import Node, Standing, standings
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.globs import BadGlob, Glob

STRIKES = 3
"""After so many contradicted claims of an author, what else it claims is hearsay until another verifies it."""
VALIDATOR = "claims"
"""The name under which the merge queue is told of claims that do not hold any more."""

QUARANTINE = "quarantine"
"""Topic of the letter by which an author hears of that."""

FITTING: dict[str, frozenset[str]] = {
    "location": frozenset({"file"}),
    "count": frozenset({"search"}),
    "absence": frozenset({"search"}),
    "test result": frozenset({"command"}),
    "measurement": frozenset({"command"}),
    "behaviour": frozenset({"file", "command", "search"}),
    "decision": frozenset({"file", "command", "search"}),
}
"""What kind of evidence a claim of each type needs at least one of."""

_APPROVAL = re.compile(
    r"\b(?:the )?user (?:has |had |already |explicitly )*(?:approved?|agreed|allowed|accepted|authori[sz]ed|confirmed|"
    r"granted|consented|permitted|okayed|signed off|said (?:yes|ok))\b"
    r"|\b(?:approved|authori[sz]ed|allowed|permitted|granted|signed off|confirmed) by (?:the )?user\b",
    re.IGNORECASE,
)
APPROVES_NOTHING = "it speaks for the user: what the user allowed is an approval in the log, and no text is one"


class Evidence(BaseModel):
    """One thing that a claim rests on, as in the event. `changed` is the seq since which it is not as it was seen."""

    kind: str
    holds: bool
    refutes: bool = False
    why: str = ""
    event: int | None = None
    worktree: int | None = None
    path: str = ""
    first: int = 0
    last: int = 0
    span: str = ""
    digest: str = ""
    command: str = ""
    exit: int | None = None
    tree: str = ""
    pattern: str = ""
    glob: str = ""
    count: int | None = None
    changed: int = 0
    changed_by: str = ""

    def rests_on(self, path: str) -> bool:
        """Whether a change of the file at `path` is a change of what was seen."""
        if self.kind == "command":
            return True
        if self.kind == "file":
            return path == self.path
        return in_scope(path, self.path, self.glob)

    def change(self, seq: int, what: str) -> None:
        """It is not as it was seen since event `seq`."""
        if not self.changed:
            self.changed, self.changed_by = seq, what


class Proof(BaseModel):
    """A verification or a challenge by `agent`, in event `seq`."""

    seq: int
    agent: str
    why: str
    evidence: list[Evidence]

    @property
    def holds(self) -> bool:
        """Whether it rests on something that was found to be so."""
        return bool(self.evidence) and all(each.holds for each in self.evidence)


class Claim(BaseModel):
    """A claim. `held` has who has it in their conversation, since which event; `told` when they last heard of it again.

    `stale` and `retracted` are the events by which it was found changed or taken back, 0 if there is none. `again` is
    the earlier claim of the same author that says the same, `replaced` the later one that takes its place.
    """

    author: str
    type: str
    text: str
    evidence: list[Evidence]
    supports: list[list[int]]
    worktree: int | None = None
    verified: list[Proof] = Field(default_factory=list)
    challenged: list[Proof] = Field(default_factory=list)
    stale: int = 0
    stale_why: str = ""
    retracted: int = 0
    retracted_by: str = ""
    retracted_why: str = ""
    held: dict[str, int] = Field(default_factory=dict)
    told: dict[str, int] = Field(default_factory=dict)
    again: int = 0
    replaced: int = 0

    @property
    def contradicted(self) -> int:
        """The event by which it was contradicted: its own evidence, or another agent's that holds; 0 if none."""
        seqs = [each.seq for each in self.challenged if each.holds and each.agent != self.author]
        return min(seqs, default=0)

    def doubted_by(self, agent: str) -> bool:
        """Whether it was the agent itself that found it not to be so."""
        return any(each.holds and each.agent == agent for each in self.challenged)

    @property
    def refuted(self) -> bool:
        """Whether what it cites says that it is not so."""
        return any(each.refutes for each in self.evidence)

    @property
    def shown(self) -> bool:
        """Whether all that it cites was found as cited."""
        return bool(self.evidence) and all(each.holds for each in self.evidence)

    @property
    def changed(self) -> int:
        """The newest event since which something that it cites is not as it was seen; 0 if all is."""
        return max([self.stale, *(each.changed for each in self.evidence)], default=0)

    @property
    def changed_by(self) -> str:
        """What changed, in words."""
        names = [each.changed_by for each in self.evidence if each.changed]
        return ", ".join(dict.fromkeys(names)) or self.stale_why


class Tree(BaseModel):
    """A worktree: whose it is, since which event it holds the branch's state, and when files in it last changed."""

    goal: int | None
    task: int | None
    since: int
    touched: int = 0


class Work(BaseModel):
    """A task, or the whole of a goal with one worker, that `agent` has."""

    goal: int
    agent: str
    since: int
    worktree: int | None = None
    over: int = 0


class Merge(BaseModel):
    """A merge, with the claims that its work relies on. `state` is queued, landed or over.

    `objected`: it was sent back because of claims.
    """

    goal: int
    task: int | None
    agent: str
    worktree: int | None
    rests: list[int]
    tree: str = ""
    files: list[str] = Field(default_factory=list)
    state: str = "queued"
    objected: bool = False
    commit: str = ""


class Landing(BaseModel):
    """Files of the user's branch that a landing, or its undoing, changed."""

    seq: int
    merge: int
    worktree: int | None
    files: list[str]


class Quarantine(BaseModel):
    """An author was told, in letter `letter`, that its claims count as hearsay; `read`: since when it knows."""

    letter: int
    read: int = 0


class ClaimsState(BaseModel):
    """`claims` by seq of claim.asserted, which is the number that users and agents see; `quarantined` by author."""

    claims: dict[int, Claim] = Field(default_factory=dict)
    trees: dict[int, Tree] = Field(default_factory=dict)
    tasks: dict[int, Work] = Field(default_factory=dict)
    goals: dict[int, str] = Field(default_factory=dict)
    merges: dict[int, Merge] = Field(default_factory=dict)
    landings: list[Landing] = Field(default_factory=list)
    mails: dict[int, list[int]] = Field(default_factory=dict)
    sent: dict[int, dict[str, int]] = Field(default_factory=dict)
    quarantined: dict[str, Quarantine] = Field(default_factory=dict)

    def touched(self, path: str) -> Iterator[Evidence]:
        """Evidence that the file at `path` of any worktree may concern; every event of a file asks."""
        for claim in self.claims.values():
            for each in claim.evidence:
                if each.path == path or each.kind != "file":
                    yield each
            for proof in (*claim.verified, *claim.challenged) if claim.verified or claim.challenged else ():
                yield from proof.evidence

    def standings(self) -> dict[int, Standing]:
        """How each claim stands, by its number."""
        return standings(self._nodes())

    def standing(self, claim: int) -> Standing:
        """How one claim stands."""
        return self.standings()[claim]

    def barred(self, author: str) -> int:
        """The event since which claims of `author` are hearsay until another verifies them; 0 if they are not."""
        struck = sorted(
            seq if claim.refuted else claim.contradicted
            for seq, claim in self.claims.items()
            if claim.author == author and (claim.refuted or claim.contradicted)
        )
        return struck[STRIKES - 1] if len(struck) >= STRIKES else 0

    def relies(self, agent: str, claim: int, worktree: int | None) -> bool:
        """Whether what `agent` does in `worktree` relies on the claim.

        It does for as long as the agent has the claim before it; after the agent was told that the claim went out, it
        does until the work was changed, or its author claimed something else with evidence.
        """
        record = self.claims[claim]
        if agent not in record.held or record.doubted_by(agent):
            return False
        told = record.told.get(agent, 0)
        if not told or not self._told_of_end(claim, told):
            return True
        touched = 0 if worktree not in self.trees else self.trees[worktree].touched
        said = [seq for seq, each in self.claims.items() if each.author == agent and each.shown]
        return max(touched, *said, 0) <= told

    def _told_of_end(self, claim: int, told: int) -> bool:
        at = self.standing(claim).at
        return 0 < at <= told

    def _nodes(self) -> dict[int, Node]:
        bars = {author: self.barred(author) for author in {claim.author for claim in self.claims.values()}}
        return {seq: self._node(seq, claim, bars) for seq, claim in self.claims.items()}

    def _node(self, seq: int, claim: Claim, bars: Mapping[str, int]) -> Node:
        bar = bars[claim.author]
        supports = tuple(frozenset(each) for each in claim.supports if each)
        if claim.retracted:
            by = "its author" if claim.retracted_by == claim.author else claim.retracted_by
            why = f": {claim.retracted_why}" if claim.retracted_why else ""
            return Node("retracted", f"taken back by {by}{why}", claim.retracted, supports)
        if claim.refuted:
            why = next(each.why for each in claim.evidence if each.refutes)
            return Node("contradicted", f"what it cites says otherwise: {why}", seq, supports)
        if claim.contradicted:
            first = next(each for each in claim.challenged if each.seq == claim.contradicted)
            return Node("contradicted", f"{first.agent} found otherwise: {first.why}", first.seq, supports)
        approves = bool(_APPROVAL.search(claim.text))
        proof = None if approves else self._proof(claim, bars)
        if proof is not None:
            return Node("verified", f"verified by {proof.agent}", supports=supports)
        if approves:
            return Node("barred", APPROVES_NOTHING)
        wrong = [each.why for each in claim.evidence if not each.holds]
        if wrong:
            return Node("barred", "; ".join(wrong))
        if bar and seq > bar:
            why = f"{STRIKES} claims of {claim.author} were contradicted: hearsay until another verifies it"
            return Node("barred", why)
        before = self.claims.get(claim.again)
        if before is not None and (before.retracted or before.contradicted or before.refuted):
            return Node(
                "barred", f"claim {claim.again} said the same and does not stand; saying it again raises nothing"
            )
        if claim.changed:
            return Node("stale", f"{claim.changed_by} changed since; not re-checked", claim.changed, supports)
        if not claim.evidence:
            return Node("none", "no evidence", supports=supports)
        kinds = {each.kind for each in claim.evidence}
        if not kinds & FITTING[claim.type] and not supports:
            needed = " or ".join(sorted(FITTING[claim.type]))
            return Node("barred", f"a claim of type {claim.type} needs evidence of kind {needed}")
        if claim.author == HARNESS:
            return Node("verified", "this program ran it", supports=supports)
        return Node("holds", "its evidence was found as cited", supports=supports)

    def _proof(self, claim: Claim, bars: Mapping[str, int]) -> Proof | None:
        """The newest verification that stands: by another agent, whose word counts, on what is as it was then."""
        for proof in reversed(claim.verified):
            fresh = proof.holds and not any(each.changed for each in proof.evidence)
            counts = proof.agent != claim.author and not 0 < bars.get(proof.agent, 0) < proof.seq
            if fresh and counts and claim.changed < proof.seq:
                return proof
        return None


class ClaimsReducer:
    """Folds claim.*, and what of files, worktrees, landings, tasks and mail concerns claims."""

    name = "claims"

    def initial(self) -> ClaimsState:
        return ClaimsState()

    def apply(self, state: ClaimsState, event: Event) -> None:
        kind = event.kind.partition(".")[0]
        if kind == "claim":
            self._claim(state, event)
        elif kind == "file":
            self._file(state, event)
        elif kind == "worktree":
            self._worktree(state, event)
        elif kind == "merge":
            self._merge(state, event)
        elif kind == "task":
            self._task(state, event)
        elif kind == "mail":
            self._mail(state, event)
        elif event.kind == "goal.set":
            state.goals[event.seq] = event.data["agent"]
        elif event.kind == "goal.judged" and not event.data["passed"]:
            # Of a goal with one worker; those of tasks are told of by task.bounced.
            goal = event.data["goal"]
            merges = (each for each in reversed(state.merges.values()) if each.goal == goal and each.task is None)
            self._sent_back(state, next(merges, None), event)
        elif event.kind == "agent.retired":
            # It believes nothing any more; what it claimed stays.
            for claim in state.claims.values():
                claim.held.pop(event.agent, None)
                claim.told.pop(event.agent, None)
            for sent in state.sent.values():
                sent.pop(event.agent, None)
        elif event.kind == "context.compacted":
            self._give(state, event.agent, event.data.get("claims", ()), event.seq)

    # --- claims ------------------------------------------------------------------------------------------

    def _claim(self, state: ClaimsState, event: Event) -> None:
        data = event.data
        if event.kind == "claim.asserted":
            self._asserted(state, event)
            return
        claim = state.claims.get(data["claim"])
        if claim is None:
            return
        if event.kind == "claim.checked":
            claim.evidence = _evidence(data["evidence"])
            claim.stale, claim.stale_why = 0, ""
        elif event.kind == "claim.verified":
            claim.verified.append(self._proof(state, event))
        elif event.kind == "claim.challenged":
            claim.challenged.append(self._proof(state, event))
        elif event.kind == "claim.staled":
            claim.stale, claim.stale_why = event.seq, data["why"]
        elif event.kind == "claim.retracted" and not claim.retracted:
            claim.retracted, claim.retracted_by, claim.retracted_why = event.seq, event.agent, data["why"]
            if event.agent in claim.held:
                claim.told[event.agent] = event.seq

    def _proof(self, state: ClaimsState, event: Event) -> Proof:
        evidence = _evidence(event.data["evidence"])
        _age(state, evidence)
        return Proof(seq=event.seq, agent=event.agent, why=event.data["why"], evidence=evidence)

    def _asserted(self, state: ClaimsState, event: Event) -> None:
        data = event.data
        claim = Claim(
            author=event.agent,
            type=data["type"],
            text=data["text"],
            evidence=_evidence(data["evidence"]),
            supports=[list(each) for each in data["supports"]],
            worktree=data["worktree"],
            held={event.agent: event.seq},
        )
        _age(state, claim.evidence)
        for seq, other in reversed(state.claims.items()):
            if other.author == claim.author and other.type == claim.type and same(other, claim):
                claim.again = seq
                other.replaced = event.seq
                break
        state.claims[event.seq] = claim

    def _give(self, state: ClaimsState, agent: str, claims: Any, seq: int) -> None:
        for number in claims:
            claim = state.claims.get(number)
            if claim is not None and agent in claim.held:
                claim.told[agent] = seq
            elif claim is not None:
                claim.held[agent] = seq

    # --- what claims rest on -----------------------------------------------------------------------------

    def _file(self, state: ClaimsState, event: Event) -> None:
        data = event.data
        worktree, path = data["worktree"], data["path"]
        digest = data["digest"] if event.kind == "file.observed" else data["after"]
        if event.kind == "file.changed" and worktree in state.trees:
            state.trees[worktree].touched = event.seq
        for each in state.touched(path):
            if each.worktree != worktree or not each.rests_on(path):
                continue
            if each.kind == "file":
                if digest != each.digest:
                    each.change(event.seq, path)
                else:
                    each.changed, each.changed_by = 0, ""
            elif event.kind == "file.changed" and not each.tree:
                each.change(event.seq, path)

    def _worktree(self, state: ClaimsState, event: Event) -> None:
        data = event.data
        if event.kind == "worktree.creating":
            state.trees[event.seq] = Tree(goal=data["goal"], task=data.get("task"), since=event.seq)
            return
        tree = state.trees.get(data["worktree"])
        if tree is None:
            return
        if event.kind == "worktree.updated":
            tree.since = event.seq
            self._changed(state, event.seq, data["files"], "an update of the worktree", data["worktree"])
        elif event.kind == "worktree.snapshotted" and data["call"] is not None:
            # Which files a command changed is not said.
            tree.touched = event.seq
            for each in _all_evidence(state):
                if each.worktree == data["worktree"] and not each.tree:
                    each.change(event.seq, f"files, by command {data['call']},")
        elif event.kind == "worktree.removed":
            state.trees.pop(data["worktree"])

    def _changed(self, state: ClaimsState, seq: int, files: list[str], what: str, worktree: int) -> None:
        for each in _all_evidence(state):
            if each.worktree == worktree and not each.tree and (path := _touches(each, files)):
                each.change(seq, f"{path} ({what})")

    # --- work that relies on claims ----------------------------------------------------------------------

    def _task(self, state: ClaimsState, event: Event) -> None:
        data = event.data
        if event.kind == "task.leased":
            state.tasks[data["task"]] = Work(
                goal=data["goal"], agent=data["agent"], since=event.seq, worktree=data["worktree"]
            )
        elif event.kind in {"task.done", "task.abandoned"} and data["task"] in state.tasks:
            state.tasks[data["task"]].over = event.seq
        elif event.kind == "task.bounced" and data["merge"] in state.merges:
            self._sent_back(state, state.merges[data["merge"]], event)

    def _sent_back(self, state: ClaimsState, merge: Merge | None, event: Event) -> None:
        """Work has gone back to its agent, who was told of the claims if it was because of them."""
        if merge is None or not merge.objected:
            return
        how = state.standings()
        for number in merge.rests:
            if how[number].out:
                state.claims[number].told[merge.agent] = event.seq

    def _merge(self, state: ClaimsState, event: Event) -> None:
        data = event.data
        if event.kind == "merge.enqueued":
            self._enqueued(state, event)
            return
        merge = state.merges.get(data["merge"])
        if merge is None:
            return
        if event.kind == "merge.checked":
            merge.tree = data["tree"] or ""
        elif event.kind == "merge.reviewed" and data["validator"] == VALIDATOR:
            merge.objected = not data["ok"]
        elif event.kind == "merge.landing":
            merge.files = list(data["files"])
        elif event.kind == "merge.landed":
            merge.state, merge.commit = "landed", data["new"]
            self._landed(state, event.seq, data["merge"], merge.worktree, merge.files, merge.tree)
        elif event.kind == "merge.bounced":
            merge.state = "over"
        elif event.kind == "merge.undoing":
            merge.files = list(data["files"])
        elif event.kind == "merge.undone":
            merge.state = "over"
            self._landed(state, event.seq, data["merge"], None, merge.files, "")

    def _enqueued(self, state: ClaimsState, event: Event) -> None:
        data = event.data
        task = data.get("task")
        worktree = next(
            (seq for seq, tree in state.trees.items() if (tree.goal, tree.task) == (data["goal"], task)), None
        )
        agent = data.get("agent") or state.goals.get(data["goal"], "")
        for earlier in state.merges.values():
            # Work that was sent back from its checks comes again as another merge, with no word of the one before.
            if (earlier.goal, earlier.task, earlier.state) == (data["goal"], task, "queued"):
                earlier.state = "over"
        state.merges[event.seq] = Merge(
            goal=data["goal"],
            task=task,
            agent=agent,
            worktree=worktree,
            rests=[number for number in state.claims if state.relies(agent, number, worktree)],
        )

    def _landed(
        self, state: ClaimsState, seq: int, merge: int, worktree: int | None, files: list[str], tree: str
    ) -> None:
        landing = Landing(seq=seq, merge=merge, worktree=worktree, files=files)
        state.landings.append(landing)
        for each in _all_evidence(state):
            _land(each, landing, tree)

    # --- who has claims before them ----------------------------------------------------------------------

    def _mail(self, state: ClaimsState, event: Event) -> None:
        data = event.data
        if event.kind == "mail.sent":
            if event.agent == HARNESS and data["topic"] == QUARANTINE:
                state.quarantined[data["to"]] = Quarantine(letter=event.seq)
            claims = [number for number in data["claims"] if number in state.claims]
            if claims:
                state.mails[event.seq] = claims
                for number in claims:
                    state.sent.setdefault(number, {})[data["to"]] = event.seq
        elif event.kind in {"mail.delivered", "mail.acknowledged"}:
            quarantine = state.quarantined.get(event.agent)
            if quarantine is not None and quarantine.letter == data["mail"]:
                quarantine.read = quarantine.read or event.seq
            # An answer is acknowledged without being delivered: it is the result of the call that asked.
            self._give(state, event.agent, state.mails.pop(data["mail"], ()), event.seq)
        elif event.kind == "mail.dropped":
            state.mails.pop(data["mail"], None)


def in_scope(path: str, folder: str, glob: str) -> bool:
    """Whether a search in `folder` of files that match `glob` looks at `path`."""
    below = PurePosixPath(folder or ".").parts
    if PurePosixPath(path).parts[: len(below)] != below:
        return False
    try:
        return not glob or Glob(glob).matches(path)
    except BadGlob:
        return True


def same(one: Claim, other: Claim) -> bool:
    """Whether two claims say the same: in the same words, or of the same commands."""
    if one.author == HARNESS:
        return [each.command for each in one.evidence] == [each.command for each in other.evidence]
    return words_of(one.text) == words_of(other.text)


@lru_cache(maxsize=4096)
def words_of(text: str) -> str:
    """A text without what makes no difference to what it says."""
    return " ".join(re.sub(r"[^\w.+*/<>=%-]+", " ", text.casefold()).split()).strip(" .")


def _evidence(raw: list[Mapping[str, Any]]) -> list[Evidence]:
    return [Evidence(**{name: value for name, value in each.items() if name != "text"}) for each in raw]


def _all_evidence(state: ClaimsState) -> list[Evidence]:
    found: list[Evidence] = []
    for claim in state.claims.values():
        found += claim.evidence
        for proof in (*claim.verified, *claim.challenged):
            found += proof.evidence
    return found


def _touches(evidence: Evidence, files: list[str]) -> str:
    return next((path for path in files if evidence.rests_on(path)), "")


def _age(state: ClaimsState, evidence: list[Evidence]) -> None:
    """Mark what is out of date from the start: a worktree does not hold what landed since it was made."""
    for each in evidence:
        tree = state.trees.get(each.worktree or 0)
        if tree is not None:
            for landing in state.landings:
                if landing.seq > tree.since and not each.tree:
                    _land(each, landing, "")
        # A command's output was seen; if files changed after it, it is not known what it would print now.
        if tree is not None and each.kind == "command" and each.event is not None and tree.touched > each.event:
            each.change(tree.touched, "files of the worktree")


def _land(evidence: Evidence, landing: Landing, tree: str) -> None:
    if evidence.tree:
        if tree == evidence.tree:
            evidence.changed, evidence.changed_by = 0, ""
        else:
            evidence.change(landing.seq, f"the branch (landing {landing.merge})")
        return
    if evidence.worktree is not None and evidence.worktree == landing.worktree:
        return
    if evidence.kind == "command" and evidence.worktree is not None:
        return  # it is said of that worktree as it was
    if path := _touches(evidence, landing.files):
        evidence.change(landing.seq, f"{path} (landing {landing.merge})")
