"""What a conversation that is shortened goes on with: tasks, agents and questions, each by its own name and number."""

from __future__ import annotations

from fixtures.crew_scripts import Crew, edit
from fixtures.model_server import ModelServer
from fixtures.session_bench import Repo, Watch, session_on

from musecode_jupyter.agents.carried import facts
from musecode_jupyter.agents.mind import Task
from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.session import GoalSpec
from musecode_jupyter.skills.goal_lines import goal_lines


def test_open_tasks_live_agents_and_questions_that_wait_are_carried_by_identity(repo: Repo) -> None:
    names = ("one", "two")
    repo.commit({f"{name}.txt": "wrong\n" for name in names})
    checks = tuple(f"grep -q right {name}.txt" for name in names)
    graph = [
        {"name": name, "goal": f"Mend {name}.txt.", "accept": [check], "writes": [f"{name}.txt"]}
        for name, check in zip(names, checks, strict=True)
    ]
    graph[1]["after"] = ["one"]
    play = {name: [[edit(f"{name}.txt", "wrong", "right")]] for name in names}
    asking = {"interactive": True, "approvals": "ask"}
    with ModelServer(Crew(play)) as server, session_on(server.base_url, repo.root, **asking) as session:
        watch = Watch(session)
        handle = session.start_goal(GoalSpec("mend both", checks, workers=2, tasks=parse_tasks(graph)))
        asked = watch.until("approval.requested", action="land")
        task = session.read(lambda core: Task("worker-1", core.own_place(), 0, handle.number))
        told = session.read(lambda core: facts(core.log, task, 10_000, lambda goal: goal_lines(core.log, goal)))
        handle.stop()
    for line in (
        "Goal: mend both",
        f"- yours, one: Mend one.txt.\n  It is done when each of these exits with 0:\n  - `{checks[0]}`",
        "- two: open",
        "- lead (lead): idle",
        f"- {asked.seq}: {asked.data['rule']}, asked by worker-1",
    ):
        assert line in told, told
