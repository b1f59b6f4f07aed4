"""Measures how long a finding takes from its event to the eye: `python tests/bench/bench_critiques.py [COUNT]`.

A real session in a real kernel under JupyterLab writes critique.raised; the page notes when the card is in its
document. Both clocks are the machine's. Prints milliseconds.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "browser")]

from fixtures.model_server import ModelServer  # noqa: E402
from fixtures.session_bench import DONE, Repo  # noqa: E402
from lab import Notebook, chromium_page, start_lab, write_notebook  # noqa: E402

WRITE = """
import json, time
host = get_ipython().magics_manager.registry["MuseMagics"].host
place = {"path": "answer.txt", "start": 1, "end": 1, "text": "wrong"}
data = {"goal": None, "worktree": 1, "base": "b", "tree": "t", "severity": "minor", "place": place,
        "evidence": [], "passes": ["tests"], "hunk": "@@ -1,1 +1,1 @@\\n-wrong\\n+right", "text": "slow?"}
times = {}
for number in range(COUNT):
    before = time.time()
    seq = host.open.call(lambda core: core.log.append("critique.raised", {**data, "check": f"n{number}"})).seq
    times[seq] = before * 1000
    time.sleep(0.25)
print(json.dumps(times))
"""
WATCH = """() => {
    window.museSeen = {};
    const look = () => {
        for (const each of document.querySelectorAll('.muse-finding summary .muse-num')) {
            window.museSeen[each.textContent.slice(1)] ??= performance.timeOrigin + performance.now();
        }
    };
    new MutationObserver(look).observe(document.body, {subtree: true, childList: true});
}"""


def main(count: int) -> None:
    cells = ["%load_ext musecode_jupyter", "%muse rules", "%muse critiques", WRITE.replace("COUNT", str(count))]
    with tempfile.TemporaryDirectory() as folder, ModelServer(lambda _: DONE) as server:
        os.environ |= {"MUSECODE_BASE_URL": server.base_url, "MUSECODE_MODEL": "muse-spark-1.3"}
        os.environ["MUSECODE_HOME"] = f"{folder}/home"
        with start_lab(Path(folder) / "lab") as lab, chromium_page() as page:
            Repo(lab.root / "repo")
            write_notebook(lab.root / "repo" / "bench.ipynb", cells)
            notebook = Notebook(page, lab, "repo/bench.ipynb")
            for number in range(3):
                notebook.run(number)
            notebook.output(2).locator(".muse-critiques").wait_for()
            page.evaluate(WATCH)
            notebook.run(3)
            notebook.output(2).locator(".muse-finding").nth(count - 1).wait_for(state="attached")
            written = json.loads(notebook.text(3))
            seen = page.evaluate("window.museSeen")
    waits = sorted(seen[seq] - at for seq, at in written.items())
    print(f"{len(waits)} findings while a cell blocks, from before the event is written to the card in the document:")
    print(f"median {statistics.median(waits):.0f} ms, p95 {waits[int(0.95 * (len(waits) - 1))]:.0f} ms, ", end="")
    print(f"longest {waits[-1]:.0f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
