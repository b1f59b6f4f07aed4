"""Claims that this program makes itself: what commands came to on a clean checkout of a tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.claim_kinds import ClaimAsserted, ClaimEvidence


def assert_result(log: EventLog, tree: str, checks: Sequence[Mapping[str, Any]], cause: int) -> int:
    """Claim what `checks`, as events hold them, came to on `tree`: one claim, whatever their number; returns it.

    It is posted, not waited for: what follows from it is durable after it. `cause` is the event of the judgement.
    """
    evidence = [
        ClaimEvidence(
            kind="command", holds=True, event=check["call"], command=check["command"], exit=check["exit"], tree=tree
        )
        for check in checks
    ]
    data = ClaimAsserted(type="test result", text=_told(checks, tree), evidence=evidence)
    return log.post("claim.asserted", data, agent=HARNESS, cause=(cause,)).seq


def _told(checks: Sequence[Mapping[str, Any]], tree: str) -> str:
    failed = [f"`{check['command']}`" for check in checks if not check["passed"]]
    passed = [f"`{check['command']}`" for check in checks if check["passed"]]
    parts = [f"{', '.join(names)} {word}" for names, word in ((passed, "passed"), (failed, "failed")) if names]
    return f"{' and '.join(parts)} on tree {tree[:10]}"
