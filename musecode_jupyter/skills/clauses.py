"""The typed clauses of a goal as data: what they say, how options are parsed, what is wrong with them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from musecode_jupyter.log.goal_kinds import Metric
from musecode_jupyter.runtime.errors import UsageProblem

SPEEDUP = "speedup"
"""The metric that is made of another one: the seconds of the baseline by those of the candidate."""
SECONDS = "seconds"

MOST_RESERVE = 0.9

_METRIC = re.compile(
    r"\s*(?P<name>[A-Za-z_][\w.]*)\s*(?P<op>>=|<=)\s*(?P<target>[-+]?[\d.]+(?:[eE][-+]?\d+)?)"
    r"(?:\s+vs\s+(?P<baseline>[^\s]+))?\s*"
)
_MODULE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class ClauseOptions:
    """The clauses as the user typed them: --forbid, --holdout, --metric (repeatable), --measure, --reserve."""

    forbid: tuple[str, ...] = ()
    holdout: tuple[str, ...] = ()
    metric: tuple[str, ...] = ()
    measure: str | None = None
    reserve: str | None = None

    @property
    def given(self) -> bool:
        """Whether there is any."""
        return bool(self.forbid or self.holdout or self.metric or self.measure or self.reserve)


def options_of(data: Mapping[str, Any]) -> ClauseOptions:
    """Options as an event holds them."""
    given: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in data.items()}
    return ClauseOptions(**given)


@dataclass(frozen=True)
class Forbidden:
    """A parsed pattern: the name of a module that must not be imported, or a glob of paths that must not change."""

    kind: Literal["import", "path"]
    pattern: str


def parse_forbid(text: str) -> Forbidden:
    """`import NAME` or a glob of paths; UsageProblem if it is neither."""
    words = text.split()
    if words[:1] in (["import"], ["from"]):
        if len(words) != 2 or _MODULE.fullmatch(words[1]) is None:
            raise UsageProblem(f"--forbid {text!r}: an import is forbidden by its module's name, as in 'import fla'.")
        return Forbidden("import", words[1])
    path = text.strip()
    if not path or path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise UsageProblem(
            f"--forbid {text!r}: give 'import NAME', or a pattern of paths below the root, as in 'tests/**'."
        )
    return Forbidden("path", path)


def parse_metric(text: str) -> Metric:
    """`NAME >= X vs BASELINE`, or without a baseline; UsageProblem if it cannot be read."""
    found = _METRIC.fullmatch(text)
    if found is None:
        raise UsageProblem(
            f"--metric {text!r} cannot be read: write 'NAME >= X vs BASELINE', for example 'speedup >= 1.3 vs HEAD', "
            "with >= or <=."
        )
    try:
        target = float(found["target"])
    except ValueError:
        raise UsageProblem(f"--metric {text!r}: {found['target']} is no number.") from None
    baseline = found["baseline"] or ""
    if found["name"] == SPEEDUP and not baseline:
        raise UsageProblem(f"--metric {text!r}: a speedup is over something: add 'vs HEAD'.")
    if not math.isfinite(target) or (baseline and target <= 0):
        raise UsageProblem(f"--metric {text!r}: the target is a number above 0.")
    if baseline.startswith("-"):
        raise UsageProblem(f"--metric {text!r}: {baseline} names no commit.")
    return Metric(text=text.strip(), name=found["name"], op=found["op"], target=target, baseline=baseline)


def parse_reserve(text: str) -> float:
    """A share such as 15% as a fraction; UsageProblem unless it is from 0% to 90%."""
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / 100
    except ValueError:
        share = math.nan
    if not text.strip().endswith("%") or not 0 <= share <= MOST_RESERVE:
        raise UsageProblem(f"--reserve {text}: give a share of each limit from 0% to {MOST_RESERVE:.0%}, as in 15%.")
    return share


def parse_holdout(text: str) -> tuple[Path, str]:
    """`FILE` or `FILE:PLACE`: the file, and its path in the checkout in which the harness judges."""
    source, _, place = text.partition(":")
    path = Path(source).expanduser()
    place = place or path.name
    parts = PurePosixPath(place).parts
    if not source or not parts or place.startswith("/") or ".." in parts or ".git" in parts:
        raise UsageProblem(
            f"--holdout {text!r}: give FILE, or FILE:PLACE with a path below the root of the repository."
        )
    return path, str(PurePosixPath(place))


def measured_names(metrics: Sequence[Metric]) -> list[str]:
    """What the measure command has to print for these metrics."""
    return list(dict.fromkeys(SECONDS if metric.name == SPEEDUP else metric.name for metric in metrics))


def true_from_the_start(metric: Metric) -> bool:
    """Whether a metric against a baseline holds for the baseline itself: it bounds a loss, and nothing is gained."""
    if not metric.baseline:
        return False
    return metric.target <= 1 if metric.op == ">=" else metric.target >= 1


def check_options(options: ClauseOptions, verify: Sequence[str]) -> None:
    """Raise UsageProblem where the options alone show that nothing could be decided by them."""
    for pattern in options.forbid:
        parse_forbid(pattern)
    for held in options.holdout:
        parse_holdout(held)
    metrics = [parse_metric(text) for text in options.metric]
    if options.reserve is not None:
        parse_reserve(options.reserve)
    if metrics and not (options.measure or "").strip():
        raise UsageProblem(
            f"--metric {metrics[0].text!r} needs --measure 'COMMAND', which prints "
            f"{' and '.join(f'{name}=VALUE' for name in measured_names(metrics))}."
        )
    if options.measure is not None and not metrics:
        raise UsageProblem("--measure says how a metric is measured: add --metric 'NAME >= X vs BASELINE'.")
    if options.holdout and not verify and not metrics:
        raise UsageProblem("--holdout gives the check a file: add --verify 'COMMAND' that uses it.")
    if metrics and not verify and all(map(true_from_the_start, metrics)):
        raise UsageProblem(
            f"--metric {metrics[0].text!r} holds already, for the baseline itself: there is nothing to do."
        )
