"""Metrics: what a measure command printed, and whether interleaved runs of baseline and candidate clear a target."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from musecode_jupyter.log.goal_kinds import ClauseVerdict, Metric
from musecode_jupyter.skills.clauses import SECONDS, SPEEDUP

PAIRS = 7
"""Pairs of a baseline run and a candidate run, each pair in the other order than the one before; a first pair warms
up and does not count. Their number is fixed beforehand: to look, and go on until it fits, would find gains in noise."""

# Two-sided 95% quantiles of Student's t by degrees of freedom, from 1 on (NIST/SEMATECH e-Handbook, 1.3.6.7.2).
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)

_LINE = re.compile(r"^\s*([A-Za-z_][\w.]*)\s*=\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*$", re.MULTILINE)


def measured(output: str) -> dict[str, float]:
    """The quantities that a measure command printed as lines NAME=value; of two lines of one name the last counts."""
    return {name: float(value) for name, value in _LINE.findall(output) if math.isfinite(float(value))}


def missing(metrics: Sequence[Metric], values: Mapping[str, float]) -> str:
    """Why the metrics cannot be had from one run of the measure command; empty if they can."""
    for metric in metrics:
        name = SECONDS if metric.name == SPEEDUP else metric.name
        if name not in values:
            return f"it printed no line {name}=VALUE, which {metric.text!r} needs"
        if metric.baseline and values[name] <= 0:
            return f"it printed {name}={values[name]:g}, and a ratio needs values above 0"
    return ""


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of the values, and the 95% confidence interval of it by Student's t; needs two values at least."""
    count = len(values)
    mean = math.fsum(values) / count
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = _T[min(count - 1, len(_T)) - 1] * spread / math.sqrt(count)
    return mean, mean - half, mean + half


def verdict(
    metric: Metric, baseline: Sequence[Mapping[str, float]], candidate: Sequence[Mapping[str, float]]
) -> ClauseVerdict:
    """Whether the candidate clears the target with the bound of the interval that is against it.

    Against a baseline the quantity is the ratio of candidate to baseline, pair by pair (for a speedup, of the seconds
    of the baseline to those of the candidate); its mean is a geometric one.
    """
    for values in (*(baseline if metric.baseline else ()), *candidate):
        if why := missing([metric], values):
            return ClauseVerdict(kind="metric", clause=metric.text, passed=False, why=f"not measured: {why}")
    name = SECONDS if metric.name == SPEEDUP else metric.name
    if not metric.baseline:
        value, low, high = interval([values[name] for values in candidate])
    else:
        ratios = [math.log(ours[name] / theirs[name]) for ours, theirs in zip(candidate, baseline, strict=True)]
        if metric.name == SPEEDUP:
            ratios = [-ratio for ratio in ratios]
        value, low, high = map(math.exp, interval(ratios))
    passed = low >= metric.target if metric.op == ">=" else high <= metric.target
    bound = f"{metric.name} {value:.4g}, 95% interval {low:.4g} to {high:.4g} of {len(candidate)} runs"
    why = bound if passed else f"{bound}: not clearly {metric.op} {metric.target:g}"
    return ClauseVerdict(
        kind="metric",
        clause=metric.text,
        passed=passed,
        why=why,
        value=value,
        low=low,
        high=high,
        runs=len(candidate),
    )
