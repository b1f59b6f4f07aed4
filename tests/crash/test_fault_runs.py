"""Repairs against a model server that fails at random: each lands, or stops and can be resumed; nothing runs twice."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest
from fixtures.fault_runs import APIS, one_run

RUNS = int(os.environ.get("MUSECODE_FAULT_RUNS", "3"))
FIRST = int(os.environ.get("MUSECODE_FAULT_SEED", "0"))

pytestmark = pytest.mark.crash


@pytest.mark.timeout(120 + 30 * RUNS)
def test_runs_against_a_failing_server_land_or_can_be_resumed(tmp_path: Path) -> None:
    """So many seeds as MUSECODE_FAULT_RUNS says, from MUSECODE_FAULT_SEED on."""
    began = time.monotonic()
    ends: Counter[str] = Counter()
    drawn: Counter[str] = Counter()
    requests, retries, waited = 0, 0, 0.0
    for seed in range(FIRST, FIRST + RUNS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MUSECODE_HOME", str(folder / "home"))
            try:
                outcome = one_run(seed, folder)
            except BaseException as error:
                api = APIS[seed % len(APIS)]
                error.add_note(f"MUSECODE_FAULT_SEED={seed} MUSECODE_FAULT_RUNS=1 repeats this run (api {api})")
                raise
        ends[f"{outcome.api} {outcome.first}"] += 1
        drawn += outcome.drawn
        requests += outcome.requests
        retries += outcome.retries
        waited += outcome.waited_s
    print(
        f"\n{sum(ends.values())} runs in {time.monotonic() - began:.0f} s, {requests} requests, {retries} retries, "
        f"{waited:.0f} s of waiting passed over, {sum(drawn.values())} faults: {dict(sorted(drawn.items()))}; "
        f"first ends: {dict(sorted(ends.items()))}; all met in the end"
    )
    assert sum(ends.values()) == RUNS
