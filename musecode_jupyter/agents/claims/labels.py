"""Which claims can be relied on: labels that follow from evidence and from each other; pure.

A justification-based truth maintenance system (Doyle 1979): a claim is believed for as long as its own evidence holds
and all claims of at least one of its sets of supports are believed. Belief begins with claims that rest on evidence
alone and spreads from there step by step, so that claims which only support each other are never believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Label = Literal["hearsay", "supported", "verified", "stale", "contradicted", "retracted"]
Own = Literal["none", "holds", "verified", "stale", "barred", "contradicted", "retracted"]

MAX_DEPTH = 4
"""So many steps of supports may lie between a claim and evidence or a verification; beyond, it is hearsay."""
OUT: frozenset[Label] = frozenset({"stale", "contradicted", "retracted"})


@dataclass(frozen=True)
class Node:
    """A claim by itself. `own` is how it stands without its supports, `why` the reason in words.

    own: none: it has no evidence; holds; verified by another; stale: what it rests on changed; barred: whatever its
    evidence, it is hearsay. `at` is the seq since which it stands so, where it is out.
    """

    own: Own
    why: str = ""
    at: int = 0
    supports: tuple[frozenset[int], ...] = ()


@dataclass(frozen=True)
class Standing:
    """A claim's label, and why. `depth` counts the steps of supports down to evidence.

    `lost` says that a claim which it needs is contradicted or retracted. `at` is since when it is out (an event's seq).
    """

    label: Label
    why: str
    depth: int = 0
    lost: bool = False
    at: int = 0

    @property
    def out(self) -> bool:
        """Whether what rests on the claim has to be looked at again."""
        return self.label in OUT or self.lost


def standings(nodes: Mapping[int, Node]) -> dict[int, Standing]:
    """How each claim stands, by number; the order of `nodes` makes no difference."""
    found = {seq: said for seq, node in nodes.items() if (said := _by_itself(node)) is not None}
    rest = {seq: node for seq, node in nodes.items() if seq not in found}
    firm = {seq: 0 for seq, said in found.items() if said.label in {"supported", "verified"}}
    believed = _spread(rest, firm, MAX_DEPTH)
    for seq in sorted(believed.keys() & rest.keys()):
        found[seq] = Standing("supported", f"it rests on {_told(_set(rest[seq], believed))}", believed[seq])
    changed = {seq: 0 for seq, said in found.items() if said.label == "stale"}
    left = {seq: node for seq, node in rest.items() if seq not in believed}
    doubtful = _spread(left, believed | changed, MAX_DEPTH)
    for seq in sorted(doubtful.keys() & left.keys()):
        members = _set(left[seq], doubtful)
        since = max(_since(member, nodes, found) for member in members)
        stale = [member for member in members if member not in believed]
        found[seq] = Standing("stale", f"it rests on {_told(stale)}, changed since", doubtful[seq], at=since)
    left = {seq: node for seq, node in left.items() if seq not in doubtful}
    gone = _lost(left, nodes)
    deep = _spread(left, doubtful, MAX_DEPTH + len(left))
    for seq, node in left.items():
        if seq in gone:
            missing = sorted(
                member for each in node.supports for member in each if member in gone or _is_gone(nodes, member)
            )
            found[seq] = Standing(
                "hearsay", f"it rests on {_told(missing)}, contradicted or taken back", lost=True, at=gone[seq]
            )
        elif seq in deep:
            found[seq] = Standing("hearsay", f"it rests on claims more than {MAX_DEPTH} deep: to be verified anew")
        else:
            found[seq] = Standing("hearsay", "none of the claims that it rests on is more than hearsay")
    return found


def _by_itself(node: Node) -> Standing | None:
    """The standing that supports cannot change; None if they decide."""
    if node.own in {"contradicted", "retracted", "stale", "verified"}:
        return Standing(node.own, node.why, at=node.at)
    if node.own == "barred":
        return Standing("hearsay", node.why)
    if node.supports:
        return None
    return Standing("supported", node.why) if node.own == "holds" else Standing("hearsay", node.why)


def _spread(nodes: Mapping[int, Node], start: Mapping[int, int], steps: int) -> dict[int, int]:
    """The claims that are reached from `start` by supports within `steps`, with the depth of each."""
    depth = dict(start)
    for _ in range(steps):
        added = {}
        for seq, node in nodes.items():
            if seq not in depth:
                whole = [1 + max(depth[member] for member in each) for each in node.supports if each <= depth.keys()]
                if whole and min(whole) <= steps:
                    added[seq] = min(whole)
        if not added:
            break
        depth |= added
    return depth


def _set(node: Node, known: Mapping[int, int]) -> list[int]:
    """The set of supports by which it is believed: the least deep, then the first."""
    whole = [sorted(each) for each in node.supports if each <= known.keys()]
    return min(whole, key=lambda each: (max(known[member] for member in each), each))


def _since(seq: int, nodes: Mapping[int, Node], found: Mapping[int, Standing]) -> int:
    return found[seq].at if seq in found else nodes[seq].at


def _is_gone(nodes: Mapping[int, Node], seq: int) -> bool:
    return seq in nodes and nodes[seq].own in {"contradicted", "retracted"}


def _lost(left: Mapping[int, Node], nodes: Mapping[int, Node]) -> dict[int, int]:
    """Claims of which each set of supports holds one that is contradicted, taken back or lost; with since when."""
    gone = {seq: node.at for seq, node in nodes.items() if _is_gone(nodes, seq)}
    lost: dict[int, int] = {}
    while True:
        known = gone | lost
        added = {
            seq: max(min(known[member] for member in each if member in known) for each in node.supports)
            for seq, node in left.items()
            if seq not in lost and all(each & known.keys() for each in node.supports)
        }
        if not added:
            return lost
        lost |= added


def _told(claims: Iterable[int]) -> str:
    numbers = [str(seq) for seq in dict.fromkeys(claims)]
    return f"claim {numbers[0]}" if len(numbers) == 1 else f"claims {', '.join(numbers)}"
