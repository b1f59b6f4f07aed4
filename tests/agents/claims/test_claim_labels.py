"""Labels of claims: independent of order, stable, no circle believes itself, one whole set of supports is enough."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from musecode_jupyter.agents.claims.labels import MAX_DEPTH, Node, standings

OWN = ("none", "holds", "verified", "stale", "barred", "contradicted", "retracted")
GONE = frozenset({"contradicted", "retracted"})


@st.composite
def graphs(draw: st.DrawFn) -> dict[int, Node]:
    """Any claims that rest on any others, on themselves and on such as are not there too."""
    count = draw(st.integers(1, 9))
    members = st.frozensets(st.integers(0, count), min_size=1, max_size=3)
    made = {}
    for seq in range(count):
        supports = draw(st.lists(members, max_size=3))
        made[seq] = Node(draw(st.sampled_from(OWN)), "why", seq + 1, tuple(supports))  # type: ignore[arg-type]
    return made


@settings(max_examples=40, deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_labels_do_not_depend_on_the_order_of_claims_or_of_supports(nodes: dict[int, Node], rng: random.Random) -> None:
    shuffled = list(nodes.items())
    rng.shuffle(shuffled)
    other = {}
    for seq, node in shuffled:
        supports = list(node.supports)
        rng.shuffle(supports)
        other[seq] = Node(node.own, node.why, node.at, tuple(supports))
    first, second = standings(nodes), standings(other)
    assert first == second
    assert first.keys() == nodes.keys()


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_a_claim_is_believed_only_by_evidence_or_by_a_whole_set_of_believed_ones(nodes: dict[int, Node]) -> None:
    found = standings(nodes)
    believed = {seq for seq, said in found.items() if said.label in {"supported", "verified"}}
    for seq in believed:
        node, depth = nodes[seq], found[seq].depth
        assert depth <= MAX_DEPTH
        if depth:
            # Each step goes down, so that no circle can hold itself up.
            assert any(each <= believed and all(found[m].depth < depth for m in each) for each in node.supports)
        else:
            assert node.own == "verified" or (node.own == "holds" and not node.supports)


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_nothing_is_believed_that_could_be_believed_within_the_depth_and_is_not(nodes: dict[int, Node]) -> None:
    found = standings(nodes)
    for seq, node in nodes.items():
        if node.own in {"none", "holds"} and found[seq].label == "hearsay":
            whole = [each for each in node.supports if all(_believed(found, member) for member in each)]
            assert all(max(found[member].depth for member in each) >= MAX_DEPTH for each in whole)


def _believed(found: dict, member: int) -> bool:
    return member in found and found[member].label in {"supported", "verified"}


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_what_is_believed_takes_nothing_from_what_went_out(nodes: dict[int, Node]) -> None:
    """Labels are stable: taking all claims away that nobody believes changes none of those that are believed."""
    found = standings(nodes)
    believed = {seq for seq, said in found.items() if said.label in {"supported", "verified"}}
    again = standings({seq: node for seq, node in nodes.items() if seq in believed})
    assert {seq: (said.label, said.depth) for seq, said in again.items()} == {
        seq: (found[seq].label, found[seq].depth) for seq in believed
    }


@settings(max_examples=40, deadline=None)
@given(graphs(), st.integers(0, 8))
def test_a_claim_that_goes_out_never_raises_another(nodes: dict[int, Node], which: int) -> None:
    if which not in nodes:
        return
    rank = {"hearsay": 0, "stale": 0, "contradicted": 0, "retracted": 0, "supported": 1, "verified": 2}
    before = standings(nodes)
    after = standings({**nodes, which: Node("retracted", "", 99, nodes[which].supports)})
    assert all(rank[after[seq].label] <= rank[before[seq].label] for seq in nodes)


def test_any_whole_set_is_enough_and_the_last_one_lost_is_too_much() -> None:
    nodes = {
        1: Node("holds"),
        2: Node("contradicted", at=9),
        3: Node("holds"),
        4: Node("none", supports=(frozenset({1, 2}), frozenset({3}))),
    }
    assert standings(nodes)[4].label == "supported"
    nodes[3] = Node("retracted", at=11)
    said = standings(nodes)[4]
    assert (said.label, said.lost, said.at) == ("hearsay", True, 11)
    assert "claims 2, 3" in said.why


def test_a_circle_is_hearsay_and_is_believed_once_one_of_it_is_verified() -> None:
    circle = {n: Node("none", supports=(frozenset({(n + 1) % 3}),)) for n in range(3)}
    assert {said.label for said in standings(circle).values()} == {"hearsay"}
    circle[0] = Node("verified", supports=circle[0].supports)
    assert [standings(circle)[n].label for n in range(3)] == ["verified", "supported", "supported"]


def test_beyond_the_depth_a_claim_is_to_be_verified_anew() -> None:
    chain = {0: Node("holds")} | {n: Node("none", supports=(frozenset({n - 1}),)) for n in range(1, MAX_DEPTH + 3)}
    labels = [standings(chain)[n].label for n in chain]
    assert labels == ["supported"] * (MAX_DEPTH + 1) + ["hearsay"] * 2
    assert "deep" in standings(chain)[MAX_DEPTH + 1].why
    chain[MAX_DEPTH + 1] = Node("verified", supports=chain[MAX_DEPTH + 1].supports)
    assert standings(chain)[MAX_DEPTH + 2].label == "supported"


@pytest.mark.parametrize("own", ["stale", "contradicted", "retracted"])
def test_what_rests_on_a_claim_that_went_out_is_out_itself(own: str) -> None:
    nodes = {
        1: Node(own, at=5),  # type: ignore[arg-type]
        2: Node("holds", supports=(frozenset({1}),)),
        3: Node("none", supports=(frozenset({2}),)),
    }
    found = standings(nodes)
    assert all(found[seq].out and found[seq].at == 5 for seq in nodes)
    assert (found[3].label == "stale") == (own == "stale")
