"""Rules and waiting questions in a real kernel: listed, added, removed, and told of before anything else."""

from __future__ import annotations

from pathlib import Path

from journal import wait_for_kind
from kernel import StartKernel
from scripted import GOAL, ScriptedModel


def test_rules_and_questions_are_seen_from_every_magic(
    tmp_path: Path, model: ScriptedModel, start_kernel: StartKernel
) -> None:
    home = tmp_path / "home"
    model.command = "git status --short"
    kernel = start_kernel()
    assert kernel.run("%muse rules").stdout == "No rules: what is not allowed by the approvals mode is asked.\n"
    for line, says in (
        ("%muse rules add session 'ls $(id)'", "command substitution"),
        ("%muse rules add session python", "inline code"),
        ("%muse rules add forever ls", "%muse rules takes nothing"),
        ("%muse rules remove 99", "There is no rule 99"),
        ("%muse budget five", "Cannot read 'five' as money"),
        ("%muse budget 5usd --tokens", "%muse budget takes nothing, `none`, or limits"),
        ("%muse budget --tokens 0", "A limit of 0 tokens is none"),
        ("%muse rules add session 'ls", "close the quotation"),
        ("%approve --session --workspace", "not both"),
    ):
        reply = kernel.execute(line)
        assert reply.error is not None
        assert says in str(reply.error), reply.error
    limited = kernel.run("%muse budget 5usd --tokens 9000000").stdout
    assert limited == "used or reserved in this session: 0.0000 of 5 USD; 0 of 9000000 tokens\n"
    assert kernel.run("%muse budget").stdout == limited
    added = kernel.run("%muse rules add workspace 'git log'").stdout
    number = added.split()[1]
    assert added == f"Rule {number} is in force: run: git log ...\n"
    listed = kernel.run("%muse rules").stdout
    assert listed.split()[:3] == [number, "workspace", "since"]
    assert kernel.run(f"%muse rules remove {number}").stdout == f"Rule {number} is removed.\n"

    kernel.run("g = " + GOAL)
    asked = wait_for_kind(home, "approval.requested")["seq"]
    waits = f"1 approval waits: run: git status --short (%approve {asked} or %deny {asked})\n"
    assert kernel.run("%goal").stdout.startswith(waits)
    agents = kernel.run("%muse agents").stdout
    assert agents.startswith(waits)
    assert f"approval {asked} waits, asked by lead: run: git status --short" in agents
    assert kernel.run(f"%approve {asked} --workspace").stdout == f"Approved {asked}.\n"
    landing = wait_for_kind(home, "approval.requested", count=2)["seq"]
    refused = kernel.execute(f"%deny {asked} too late")
    assert f"Approval {asked} is not pending any more: it was granted from the magic" in str(refused.error)
    assert kernel.run(f"%approve {landing}").stdout == f"Approved {landing}.\n"
    assert kernel.run("g.wait(60).met").result == "True"
    assert "run: git status --short" in kernel.run("%muse rules").stdout
    assert "waits" not in kernel.run("%goal").stdout

    told = kernel.run("%muse tier").stdout
    assert "In the contributor tier prompts and answers may be used for training" in told
    assert "in the contributor tier they would have cost" in told
    assert "notes is private from now on" in kernel.run("%muse tier label notes private").stdout
    assert "notes is private (your label)" in kernel.run("%muse tier").stdout
    assert kernel.run("%muse model").stdout.endswith(", of the standard tier.\n")
    for line, says in (
        ("%muse tier up", "%muse tier takes nothing, `standard`"),
        ("%muse tier opt-in yes", "To opt in, type these words: "),
        ("%muse tier withdraw", "is not opted in"),
        ("%muse tier contributor", "is not opted in"),
        ("%muse model two words", "%muse model takes nothing, or the id"),
        ("%muse model muse-spark-1.3-contributor", "is not opted in"),
    ):
        assert says in str(kernel.execute(line).error), line

    assert kernel.run("%muse trust").stdout.startswith("This repository brings no roles")
    assert "%muse trust takes nothing" in str(kernel.execute("%muse trust me").error)
    role = "---\\npurpose: Knows the data.\\ntools: read\\nwakes: mail\\n---\\nAnswer.\\n"
    kernel.run("from pathlib import Path; folder = Path('.musecode/roles'); folder.mkdir(parents=True)")
    kernel.run(f"(folder / 'librarian.md').write_text('{role}')")
    assert "librarian: Knows the data. Tools: read. not trusted" in kernel.run("%muse trust").stdout
    assert kernel.run("%muse trust on").stdout.startswith("Trusted: librarian: Knows the data. Tools: read.\n")
    assert "role librarian" in kernel.run("%muse rules").stdout
    assert kernel.run("%muse trust off").stdout == "Not trusted any more: librarian.\n"
