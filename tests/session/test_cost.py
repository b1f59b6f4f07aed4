"""`%muse cost`: its figures are the sums of the journal's lines to the micro-dollar, whichever way they are grouped."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

from fixtures.crew_scripts import Crew, edit, read
from fixtures.model_server import ModelServer
from fixtures.session_bench import Repo, end, session_on
from fixtures.written_log import Entry, completed, requested, usage, write_log

from musecode_jupyter import cli
from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.session import GoalSpec
from musecode_jupyter.session.cost import CostReport, Sum, cost_of
from musecode_jupyter.session.replay import prove

PAID = ("model.completed", "model.failed", "model.retried", "model.abandoned")


def lines(folder: Path) -> list[dict[str, object]]:
    """The journal's records, read without any of the program's own code."""
    return [
        json.loads(line) for path in sorted((folder / "journal").iterdir()) for line in path.read_text().splitlines()
    ]


def agrees(folder: Path, report: CostReport) -> None:
    """Compare a report with the sums of the journal's lines."""
    spent: Counter[str] = Counter()
    reserves, reserved = {}, 0
    for line in lines(folder):
        data = line["data"]
        assert isinstance(data, dict)
        if line["kind"] == "model.requested":
            reserves[line["seq"]] = data["reserved_microusd"]
        elif line["kind"] in PAID:
            assert isinstance(data["cost_microusd"], int)
            spent[str(line["agent"])] += data["cost_microusd"]
            reserved += reserves.pop(data["request"], 0) if line["kind"] != "model.retried" else 0
    assert {name: each.microusd for name, each in report.agents.items()} == spent
    assert (report.total.microusd, report.total.reserved) == (spent.total(), reserved)
    for sums in (report.agents, report.tasks, report.goals, report.tiers):
        whole = Sum()
        for each in sums.values():
            whole.add(each)
        assert whole == report.total


def test_the_figures_are_the_sums_of_the_journal_by_agent_task_goal_and_tier(
    repo: Repo,
) -> None:
    names = ("one", "two")
    repo.commit({f"{name}.txt": "first\nwrong\n" for name in names})
    graph = [
        {"name": name, "goal": f"Mend {name}.txt.", "accept": [f"grep -q right {name}.txt"], "writes": [f"{name}.txt"]}
        for name in names
    ]
    script = {name: [[read(f"{name}.txt"), edit(f"{name}.txt", "wrong", "right")]] for name in names}
    verify = tuple(f"grep -q right {name}.txt" for name in names)
    with ModelServer(Crew(script)) as server, session_on(server.base_url, repo.root) as session:
        handle = session.start_goal(GoalSpec("mend both", verify, workers=2, tasks=parse_tasks(graph)))
        assert end(handle).met
        report, ledger, folder = session.cost, session.read(lambda core: core.ledger), session.folder
        goal = session.goals.goals[handle.number]
    agrees(folder, report)
    assert report == cost_of(folder)
    assert report.total.microusd == ledger.total.microusd > 0
    assert {number: each.microusd for number, each in report.goals.items()} == {handle.number: goal.used_microusd}
    assert len([number for number in report.tasks if number]) == 2
    assert {number: each.microusd for number, each in report.tasks.items() if number} == {
        number: each.microusd for number, each in ledger.by_task.items()
    }
    # The contributor tier's published prices, on the same usage, call for call.
    answers = [line["data"] for line in lines(folder) if line["kind"] == "model.completed"]
    expected = 0
    for answer in answers:
        assert isinstance(answer, dict)
        used = answer["usage"]
        exact = (
            (used["input"] - used["cached"]) * Fraction("0.1")
            + used["cached"] * Fraction("0.002")
            + used["output"] * Fraction("0.2")
        )
        expected += -(-exact.numerator // exact.denominator)
    assert report.contributor == expected
    assert report.given.files == {"one.txt": 12, "two.txt": 12}
    text = report.text()
    assert f"total: {report.total.microusd / 1e6:.6f} of " in text
    assert "worker-1 (worker): " in text
    assert "could have been used for training, with " in text
    assert prove(folder).ok


def test_what_no_usage_confirmed_is_told_apart(tmp_path: Path) -> None:
    failed = {"request": 3, "error": "reset", "error_kind": "connect", "attempts": 2, "seconds": 1.0}
    entries = [
        Entry(
            "session.opened",
            {
                "session": "s",
                "workspace": "/w",
                "version": "1",
                "model": "muse-spark-1.3",
                "api": "responses",
                "profile": "driver",
                "approvals": "ask",
            },
            "",
        ),
        Entry("agent.created", {"role": "lead", "profile": "driver", "model": "muse-spark-1.3"}),
        Entry("model.requested", requested()),
        Entry("model.retried", {"request": 3, "attempt": 1, "error": "x", "wait_s": 1.0, "cost_microusd": 125_000}),
        Entry("model.failed", {**failed, "cost_microusd": 100_000}),
        Entry("model.requested", requested(model="other/model")),
        Entry("model.completed", completed(6, usage=None, cost_microusd=100_000, estimated=True)),
        Entry("model.requested", requested()),
        Entry("model.completed", completed(8, usage=usage(), cost_microusd=7)),
    ]
    write_log(tmp_path / "s", entries)
    report = cost_of(tmp_path / "s")
    agrees(tmp_path / "s", report)
    assert (report.total.microusd, report.total.estimated) == (325_007, 325_000)
    assert report.tiers.keys() == {"standard, muse-spark-1.3", "standard, other/model"}
    assert report.contributor is None, "another maker's model has no such tier"
    assert "total: ~0.325007 of 0.300000 USD reserved, 2 calls, " in report.text()
    assert "1 failed, 0.325000 USD estimated" in report.text()
    assert "<td>0.325007</td>" in report._repr_html_()


def test_the_command_line_tells_the_same(tmp_path: Path, capsys: object) -> None:
    entries = [
        Entry("agent.created", {"role": "lead", "profile": "driver", "model": "muse-spark-1.3"}),
        Entry("model.requested", requested()),
        Entry("model.completed", completed(2, cost_microusd=1_234_567)),
    ]
    write_log(tmp_path / "s", entries)
    assert cli.main(["cost", str(tmp_path / "s"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)  # type: ignore[attr-defined]
    assert told == json.loads(json.dumps(cost_of(tmp_path / "s").as_json()))
    assert told["total"]["microusd"] == 1_234_567
    assert cli.main(["cost", str(tmp_path / "s")]) == 0
    assert "total: 1.234567 of 0.100000 USD reserved, 1 calls" in capsys.readouterr().out  # type: ignore[attr-defined]
