"""%goal TEXT without a check in a kernel: the lead proposes, the user confirms with words, and nobody else can."""

from __future__ import annotations

import re
from pathlib import Path

from fixtures.draft_scripts import DraftingLead, proposing_clauses
from fixtures.model_scripts import Answer, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.session_bench import CHECK, DONE, EDIT, Repo
from kernel import Kernel, kernel_environment


def corrected(request: ParsedRequest) -> Answer:
    return DONE if request.items[-1]["type"] == "tool_result" else EDIT


def test_from_a_sentence_without_a_check_to_a_met_goal(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    good, more = proposing_clauses(CHECK), proposing_clauses("test -f more.txt")
    with ModelServer(DraftingLead([good], [more], work=corrected)) as server:
        chosen = {
            "MUSECODE_API": "responses",
            "MUSECODE_MODEL": "muse-spark-1.3",
            "MUSECODE_APPROVALS": "allow-workspace",
            "MUSECODE_REVIEW": "mechanical",
        }
        with Kernel(repo.root, kernel_environment(server.base_url, tmp_path / "home", **chosen)) as kernel:
            kernel.run("%load_ext musecode_jupyter")
            # Nobody sits in front who could confirm.
            error = kernel.execute("%goal say right", allow_stdin=False).error or ""
            assert error.startswith("UsageError: A goal needs a check that decides it: add --verify 'COMMAND'")
            assert "There is nothing to confirm" in (kernel.execute("%goal confirm").error or "")
            cell = kernel.run("d = %goal say right --tokens 900000")
            assert "the lead looks for checks, and you confirm them.\nGoal, not set: say right\n" in cell.stdout
            assert f"- `{CHECK}` exits with 0 (fails today, exit 1)\n" in cell.stdout
            assert kernel.run("d").result == "Draft(status='proposed')"
            assert "Goal, not set: say right" in kernel.run("%goal").stdout
            for code, says in (
                ("%goal confirm it", "%goal confirm takes nothing more"),
                ("%goal confirm --tokens 5", "%goal confirm takes clauses only"),
                ("%goal confirm --verify pytset", "there is no 'pytset' here"),
                ("%goal cancel --verify true", "%goal cancel takes nothing more"),
            ):
                assert says in (kernel.execute(code).error or ""), code
            assert repo.read("answer.txt") == "wrong\n"
            cell = kernel.run("g = %goal confirm --forbid other.txt --wait")
            assert "Goal met: say right" in cell.stdout
            assert repo.read("answer.txt") == "right\n"
            history = kernel.run("%goal history").stdout
            assert re.match(
                r"\d+: lead proposes what decides the goal: grep .*\n"
                r"\d+: the user confirms .* forbid of their own: .*\n"
                r"\d+: say right \| verify: grep -q right answer.txt; no other.txt",
                history,
            ), history
            kernel.run("%goal say right again")
            assert kernel.run("%goal cancel").stdout == "The goal is dropped; nothing was set.\n"
            assert "There is nothing to confirm" in (kernel.execute("%goal cancel").error or "")
            assert "the chain is whole" in kernel.run("%muse verify").stdout
