"""The queue and what became of its merges as text, with the evidence and the tree that it is bound to; pure."""

from __future__ import annotations

from collections.abc import Mapping

from musecode_jupyter.agents.landing.state import FINAL, Merge, MergesState
from musecode_jupyter.workspace.worktrees import some_names

NONE = "No merges yet."
_PURPOSES = {"acceptance": "acceptance", "affected": "what it touches", "goal": "the goal's checks"}


def merges_text(state: MergesState, waiting: Mapping[str, int], titles: Mapping[int, str]) -> str:
    """Each merge by its number: first those under way, then those that ended.

    `waiting` has the open question about landing a commit, by commit; `titles` the text of each goal, by its seq.
    """
    if not state.merges:
        return NONE
    under_way = [seq for seq, merge in state.merges.items() if merge.state not in FINAL]
    ended = [seq for seq, merge in state.merges.items() if merge.state in FINAL]
    lines = []
    for title, numbers in (("In the queue:", under_way), ("Ended:", ended)):
        if numbers:
            lines.append(title)
        for seq in numbers:
            first = seq == under_way[0] if under_way else False
            merge = state.merges[seq]
            name = merge.title or titles.get(merge.goal, "").strip().partition("\n")[0] or f"goal {merge.goal}"
            who = f" by {merge.agent}" if merge.agent else ""
            lines.append(f"  {seq}  {name}{who}: {_standing(merge, first, waiting)}")
            lines += [f"      {line}" for line in _evidence(merge)]
    return "\n".join(lines)


def _standing(merge: Merge, first: bool, waiting: Mapping[str, int]) -> str:
    branch, kept = merge.branch, f"; kept on {merge.kept}" if merge.kept else ""
    question = waiting.get(merge.merged or "")
    if merge.state == "enqueued":
        if merge.rounds:
            return f"starts over, since {branch} moved"
        return f"is being checked against {branch}" if first else "waits for its turn"
    if merge.state in {"tested", "reviewed"} and question is not None:
        return f"waits for approval {question} to land on {branch}"
    if merge.state == "undone":
        return f"undone: {branch} went to {_short(merge.undo_new)}"
    if merge.state == "landed":
        stays = f"; not undone: {merge.why}" if merge.why else ""
        return f"landed on {branch}: {_short(merge.old)} to {_short(merge.new)}{stays}"
    if merge.state == "dropped":
        failed = merge.tested and not merge.tested[-1].passed
        return "did not pass" if failed else "given up for a later one"
    return {
        "checked": f"conflicts with {branch}" if merge.conflicts else "is being tested",
        "tested": "is tested" if merge.tested and merge.tested[-1].passed else "did not pass",
        "reviewed": "is reviewed",
        "landing": f"is moving {branch}",
        "undoing": f"is being undone on {branch}",
        "bounced": f"did not land: {merge.why}{kept}",
    }[merge.state]


def _evidence(merge: Merge) -> list[str]:
    lines = []
    if merge.conflicts:
        lines.append(f"conflicts in {some_names(merge.conflicts)}")
    if merge.suspect:
        lines.append(f"read for it and changed since: {some_names(merge.suspect)}")
    for evidence in merge.tested:
        said = f"failed {_quoted(evidence.failed)}" if evidence.failed else f"passed {_quoted(evidence.commands)}"
        lines.append(f"tree {_short(evidence.tree)}, {_PURPOSES[evidence.purpose]}: {said}")
        if evidence.flaky:
            lines.append(f"failed once, then passed twice: {_quoted(evidence.flaky)}")
    for review in merge.reviewed:
        why = f": {review.why}" if review.why else ""
        lines.append(f"tree {_short(review.tree)}, {review.validator} {'agrees' if review.ok else 'objects'}{why}")
    if merge.rounds > 1:
        lines.append(f"started over {merge.rounds - 1} time{'s' * (merge.rounds > 2)}, since {merge.branch} moved")
    return lines


def _quoted(commands: list[str]) -> str:
    return ", ".join(f"`{command}`" for command in commands)


def _short(commit: str | None) -> str:
    return "nothing" if commit is None else commit[:10]
