"""The main job from end to end: draws a broken repository, runs the quickstart notebook on it, says what came of it."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "fixtures"))

from make_repo import make_many, make_own, make_repo, names  # noqa: E402

NOTEBOOK = ROOT / "notebooks" / "01_quickstart.ipynb"
FAN_OUT = ROOT / "notebooks" / "03_fan_out.ipynb"
CREW = ROOT / "notebooks" / "04_crew.ipynb"
PLANS = ROOT / "notebooks" / "05_plan_grill_goal.ipynb"
FAN_OUT_REPOS = ("units", "intervals", "roofline")
PLAN_REPOS = ("units", "intervals")
NOT_MET = 3
CELL_LIMIT_S = 1800


def main() -> int:
    """Run the demo; 0 if the goal was met, 3 if not, 1 if the notebook failed."""
    arguments = _parser().parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10_000)
    if arguments.fan_out:
        return _many(FAN_OUT, FAN_OUT_REPOS, "fan-out", arguments.lab)
    if arguments.plans:
        return _many(PLANS, PLAN_REPOS, "plans", arguments.lab)
    if arguments.crew:
        return _crew(arguments.lab)
    known = names()
    if arguments.repo is not None and arguments.repo not in known:
        print(f"There is no repository {arguments.repo!r}: REPO is one of {', '.join(known)}.", file=sys.stderr)
        return 2
    name = arguments.repo or random.Random(seed).choice(known)
    how = "chosen by REPO" if arguments.repo else f"drawn by seed {seed}; SEED={seed} draws it again"
    print(f"Repository: {name} ({how})", flush=True)

    home = Path(os.environ.get("MUSECODE_HOME", ROOT / ".data")).absolute()
    folder = home / "demo" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    repository = make_repo(name, folder)
    return _run(NOTEBOOK, home, repository, folder, arguments.lab)


def _many(notebook: Path, packages: Sequence[str], name: str, lab: bool) -> int:
    """A notebook on one repository of several packages, each with a fault."""
    home = Path(os.environ.get("MUSECODE_HOME", ROOT / ".data")).absolute()
    folder = home / "demo" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    repository = make_many(packages, folder)
    print(f"Repository: {', '.join(packages)} in one", flush=True)
    return _run(notebook, home, repository, folder, lab)


def _crew(lab: bool) -> int:
    """The crew on a repository of real size: this project's package."""
    home = Path(os.environ.get("MUSECODE_HOME", ROOT / ".data")).absolute()
    folder = home / "demo" / f"crew-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    repository = make_own(folder)
    print("Repository: this project's package, with a fault", flush=True)
    return _run(CREW, home, repository, folder, lab)


def _run(notebook: Path, home: Path, repository: Path, folder: Path, lab: bool) -> int:
    environment = _environment(home, repository)
    if lab:
        return subprocess.call([sys.executable, "-m", "jupyterlab", str(notebook)], env=environment, cwd=ROOT)
    return _execute(notebook, home, repository, folder, environment)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="draws the repository; default: a new one, printed")
    parser.add_argument("--repo", help="name of a repository in tests/fixtures/repos")
    parser.add_argument("--fan-out", action="store_true", help="three workers on one repository with three faults")
    parser.add_argument("--plans", action="store_true", help="a plan that is attacked, then done, for two faults")
    parser.add_argument(
        "--crew", action="store_true", help="the crew on this project's own package, with a fault in it"
    )
    parser.add_argument("--lab", action="store_true", help="open the notebook in JupyterLab instead of running it")
    return parser


def _environment(home: Path, repository: Path) -> dict[str, str]:
    environment = dict(os.environ)
    environment["MUSECODE_HOME"] = str(home)
    environment["MUSECODE_DEMO_REPO"] = str(repository)
    environment.setdefault("MUSECODE_APPROVALS", "allow-workspace")
    # The repositories need plain pytest; loading the plugins of this environment would take longer than the tests.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    return environment


def _execute(source: Path, home: Path, repository: Path, folder: Path, environment: dict[str, str]) -> int:
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    executed = folder / source.name
    notebook = nbformat.read(source, as_version=4)
    os.environ.update(environment)
    shutil.copyfile(source, executed)
    started = time.monotonic()
    client = NotebookClient(
        notebook,
        timeout=CELL_LIMIT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT / "notebooks")}},
        on_cell_start=lambda cell, cell_index: _announce(cell),
    )
    failed = ""
    try:
        client.execute()
    except CellExecutionError as error:
        failed = str(error)
    nbformat.write(notebook, executed)
    met = _report(home, repository, executed, time.monotonic() - started)
    if failed:
        print(failed, file=sys.stderr)
        return 1
    return 0 if met else NOT_MET


def _announce(cell: dict[str, str]) -> None:
    if cell["cell_type"] == "code":
        print(f"  running: {cell['source'].splitlines()[-1]}", flush=True)


def _report(home: Path, repository: Path, executed: Path, seconds: float) -> bool:
    from musecode_jupyter.log import EventLog
    from musecode_jupyter.session.reducers import all_reducers
    from musecode_jupyter.session.store import list_sessions

    entries = list_sessions(home, repository.resolve())
    if not entries:
        print("No session was opened: see the executed notebook.")
        return False
    log = EventLog.read(entries[0].folder, reducers=all_reducers())
    goals = log.state("goals").goals
    ledger = log.state("ledger")
    # What a notebook sets later shows how goals end that are not met.
    goal = goals[min(goals)] if goals else None
    status = "no goal was set" if goal is None else goal.status
    print(f"\nGoal: {status}" + (f" - {goal.why}" if goal is not None and goal.why else ""))
    landed = [m for m in log.state("workspace").merges.values() if m.state == "landed"]
    if landed:
        diff = subprocess.run(
            ["git", "diff", landed[-1].old, landed[-1].new],
            cwd=repository,
            capture_output=True,
            text=True,
            check=True,
        )
        print(f"\n{diff.stdout.rstrip()}\n")
    else:
        print("Nothing was landed; the repository is as it was.")
    total = ledger.total
    print(f"Model calls: {total.calls}   tokens: {total.tokens} ({total.cached} cached)   seconds: {seconds:.0f}")
    print(f"Log: {entries[0].folder}")
    print(f"Notebook: {executed}")
    return goal is not None and goal.status == "met"


if __name__ == "__main__":
    sys.exit(main())
