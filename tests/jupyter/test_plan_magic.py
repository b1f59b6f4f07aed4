"""%plan in a kernel: shown live, answered by buttons and by words, and run by %goal --plan."""

from __future__ import annotations

import re
from pathlib import Path

from fixtures.crew_scripts import Crew, edit
from fixtures.model_server import ModelServer
from fixtures.plan_scripts import PLANNED, Author, proposing, step
from fixtures.session_bench import Repo
from kernel import Kernel, kernel_environment


def test_from_a_sentence_to_a_landed_change_in_a_notebook(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    repo.commit({"one.txt": "wrong\n"})
    work = Crew({"one": [[edit("one.txt", "wrong", "right")]]})
    author = Author([proposing(step("one"), questions=["Which word?"]), PLANNED], work=work)
    with ModelServer(author) as server:
        chosen = {
            "MUSECODE_API": "responses",
            "MUSECODE_MODEL": "muse-spark-1.3",
            "MUSECODE_APPROVALS": "allow-workspace",
        }
        with Kernel(repo.root, kernel_environment(server.base_url, tmp_path / "home", **chosen)) as kernel:
            kernel.run("%load_ext musecode_jupyter")
            assert kernel.run("%plan").stdout == "There is no plan. Have one written: %plan TEXT\n"
            # Nobody sits in front: it is waited for, and nothing that is printed differs from run to run.
            cell = kernel.run("p = %plan mend the file", allow_stdin=False)
            assert cell.stdout.startswith("# Plan: mend the file\n\nVersion 1. It waits for you: `%plan approve`")
            assert "- done when `grep -q right one.txt` passes: fails today (exit 1)\n" in cell.stdout
            assert not re.search(r"0x[0-9a-f]+|\d\d:\d\d|\d{8}-\d{6}|USD|\$|/tmp|[0-9a-f]{10}", cell.stdout)
            assert kernel.run("p").result == "Plan(status='proposed')"
            (shown,) = kernel.run("%plan").displays
            assert shown["text/plain"] == "Plan(status='proposed', steps=1)"
            assert "application/vnd.jupyter.widget-view+json" in shown
            for code, says in (
                ("%plan run", "`%goal --plan` runs the approved plan"),
                ("%plan cancel it", "%plan cancel takes nothing more"),
                ("%plan answer one", "takes the number of a question"),
                ("%plan approve 000000", "the plan has changed since"),
                ("%plan x --fast", "unrecognized arguments: --fast"),
                ("%goal --plan", "not approved: look at it with `%plan`"),
                ("%goal more --plan", "has its text and tasks from the plan"),
            ):
                error = kernel.execute(code).error or ""
                assert error.startswith("UsageError: ")
                assert says in error
            assert kernel.run("%plan answer 1 the user's word").stdout.startswith("Noted.")
            assert "Answered: the user's word" in kernel.run("%plan", allow_stdin=False).stdout
            assert "No file was read for this plan." in kernel.run("%grill --wait").stdout
            assert (kernel.execute("%grill --it").error or "").startswith("UsageError: %grill knows --ask, --goal")
            (shown,) = kernel.run("%grill show").displays
            assert shown["text/plain"] == "Grill(status='ended', findings=1, blocking=0)"
            assert "No file was read for this plan." in shown["text/html"]
            assert "application/vnd.jupyter.widget-view+json" in shown
            assert kernel.run("%grill --ask").stdout.startswith("Finding ")
            assert "is rejected." in kernel.run("%grill reject it's read").stdout
            assert kernel.run("%%grill --wait\nMake src/a.py faster.\n").stdout.startswith("Attacked: the text.")
            assert kernel.run("%plan approve").stdout == "The plan is approved. `%goal --plan` runs it.\n"
            assert repo.read("one.txt") == "wrong\n"
            cell = kernel.run("%goal --plan --budget 1usd", allow_stdin=False)
            assert cell.stdout.startswith("Goal met: mend the file")
            assert repo.read("one.txt") == "right\n"
