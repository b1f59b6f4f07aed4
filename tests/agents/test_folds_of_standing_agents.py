"""The folds of checks beside the work and of next steps: what an edit of the goal and an older log do to them."""

from __future__ import annotations

from typing import Any

from musecode_jupyter.agents.follow_ups import FollowUpsReducer, FollowUpsState
from musecode_jupyter.agents.verifier.state import ChecksReducer, ChecksState
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Fold


def tell(fold: Fold, seq: int, kind: str, **data: Any) -> None:
    where: dict[str, Any] = {"v": 2, "b": 1, "label": "", "ts": "2026-01-05T09:00:00+00:00", "gen": 1, "turn": 0}
    fold.apply(Event(**where, seq=seq, kind=kind, agent="explorer", cause=(), data=data))


def test_a_tree_that_was_checked_is_checked_again_by_other_commands() -> None:
    fold = Fold([ChecksReducer()])
    state = fold.state("checks")
    assert isinstance(state, ChecksState)
    run = {"goal": 1, "task": None, "worktree": 2, "agent": "lead", "commands": ["true"]}
    tell(fold, 5, "checks.begun", **run)
    tell(fold, 6, "checks.ended", begun=5, why="", again=False, tree="abc", checks=[], turned=[])
    assert list(state.tree.values()) == ["abc"]
    tell(fold, 7, "goal.edited", goal=1, verify=None)
    assert list(state.tree.values()) == ["abc"]
    tell(fold, 8, "goal.edited", goal=1, verify=["false"])
    assert not state.tree


def test_a_log_from_before_such_globs_were_refused_may_hold_one() -> None:
    fold = Fold([FollowUpsReducer()])
    state = fold.state("follow_ups")
    assert isinstance(state, FollowUpsState)
    tell(fold, 5, "follow_up.set", what="look again", paths=["[z-a]"])
    tell(fold, 6, "follow_up.set", what="look again", paths=["*.txt"])
    tell(fold, 7, "merge.landing", merge=3, files=["a.txt"])
    tell(fold, 8, "merge.landed", merge=3)
    assert (list(state.waiting), list(state.due)) == ([5], [6])
