"""How long a click on Approve takes to reach Python while a cell sleeps, on four versions of ipykernel, by both doors.

The doors: the widget's comm (the view below a cell) and the kernel's control channel (JupyterLab's side panel). A real
JupyterLab, Chromium, kernel and session; the clock is that of the machine, read in the page at the click and in the
kernel where the answer arrives. The versions are installed side by side below the folder that --kernels names.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "browser")]

from fixtures.kernel_versions import VERSIONS, before_others, kernel_folder  # noqa: E402
from fixtures.model_server import Answer, ModelServer  # noqa: E402
from lab import Notebook, chromium_page, find_chromium, start_lab, write_notebook  # noqa: E402

LIMIT_MS = 100
PREPARE = """
%load_ext musecode_jupyter
%muse cells on
import asyncio, ipykernel, json, time
host = get_ipython().magics_manager.registry["MuseMagics"].host
session = host.session_for_work()
arrived, answer = [], session.core.approvals.answer
async def timed(*arguments, **keywords):
    arrived.append(time.time())
    return await answer(*arguments, **keywords)
session.core.approvals.answer = timed
tasks = []
async def put(core, count):
    for n in range(count):
        shown = {{"command": f"make {{len(tasks)}}"}}
        tasks.append(asyncio.create_task(core.approvals.ask("run", "run: make", shown, agent="lead")))
for _ in range({clicks}):
    session.call(lambda core: put(core, 2))
print("ipykernel", ipykernel.__version__)
"""
VIEW = "host.approvals_view()"
SLEEP = """
arrived.clear()
print("sleeps", flush=True)
end = time.time() + {seconds}
while time.time() < end:
    time.sleep(end - time.time() if end > time.time() else 0)
print(json.dumps({{"end": end, "arrived": list(arrived)}}))
"""
CLICK = """async ([root, clicks, pause]) => {
    const times = [];
    for (let n = 0; n < clicks; n++) {
        const button = document.querySelectorAll(`${root} button.muse-main:enabled`)[0];
        times.push((performance.timeOrigin + performance.now()) / 1000);
        button.click();
        await new Promise(resolve => setTimeout(resolve, pause));
    }
    return times;
}"""


def measure(overlay: Path, clicks: int, pause_ms: int) -> tuple[str, dict[str, list[float]]]:
    """The version of the kernel, and by door the milliseconds of each click; what came after the sleep counts so."""
    folder = Path(tempfile.mkdtemp(prefix="clicks-"))
    seconds = clicks * pause_ms / 1000 + 4
    with ModelServer(lambda _request: Answer("yes")) as server:
        environment = {
            "PYTHONPATH": before_others(overlay)["PYTHONPATH"],
            "MUSECODE_BASE_URL": server.base_url,
            "MUSECODE_MODEL": "muse-spark-1.3",
            "MUSECODE_HOME": str(folder / "home"),
        }
        sleep = SLEEP.format(seconds=seconds)
        with start_lab(folder / "lab", env=environment) as lab, chromium_page() as page:
            write_notebook(lab.root / "clicks.ipynb", [PREPARE.format(clicks=clicks), VIEW, sleep, sleep])
            notebook = Notebook(page, lab, "clicks.ipynb")
            notebook.run(0)
            version = notebook.text(0).split()[-1]
            notebook.run(1)
            notebook.output(1).locator("button.muse-main").first.wait_for()
            notebook.command("musecode:show")
            page.locator("#musecode-panel button.muse-main").first.wait_for(timeout=30_000)
            found = {}
            for door, root, cell in (
                ("widget", ".jp-Notebook .muse-approvals", 2),
                ("control", "#musecode-panel .muse-approvals", 3),
            ):
                notebook.run(cell, wait=False)
                notebook.wait_text(cell, "sleeps")
                clicked = page.evaluate(CLICK, [root, clicks, pause_ms])
                notebook.wait_text(cell, "arrived", timeout=seconds + 30)
                told = json.loads(notebook.text(cell).splitlines()[-1])
                late = [told["end"]] * (clicks - len(told["arrived"]))
                arrived = sorted(told["arrived"]) + late
                found[door] = [1000 * (there - here) for here, there in zip(clicked, arrived, strict=True)]
    shutil.rmtree(folder, ignore_errors=True)
    return version, found


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table; 1 if no door of some version keeps the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clicks", type=int, default=20, help="per door and version")
    parser.add_argument("--pause", type=int, default=150, help="milliseconds between two clicks")
    parser.add_argument("--kernels", type=Path, default=ROOT / ".data" / "kernels", help="where versions are installed")
    parser.add_argument("versions", nargs="*", default=list(VERSIONS))
    options = parser.parse_args(argv)
    if find_chromium() is None:
        print("No Chromium: set MUSECODE_CHROMIUM.")
        return 0
    print(f"{'ipykernel':10} {'door':8} {'median':>10} {'max':>10}   of {options.clicks} clicks while a cell sleeps")
    kept = True
    for wanted in options.versions:
        version, found = measure(kernel_folder(wanted, options.kernels), options.clicks, options.pause)
        best = min(max(milliseconds) for milliseconds in found.values())
        kept &= best < LIMIT_MS
        for door, milliseconds in found.items():
            print(
                f"{version:10} {door:8} {statistics.median(milliseconds):7.0f} ms {max(milliseconds):7.0f} ms",
                flush=True,
            )
    print(f"limit: {LIMIT_MS} ms by the better door, {'kept' if kept else 'NOT kept'}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
