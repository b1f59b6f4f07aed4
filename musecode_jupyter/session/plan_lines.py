"""One line for a person from each event of plans and of attacks on them; pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Data = Mapping[str, Any]


def _proposed(data: Data) -> str:
    try:
        steps = json.loads(data["document"]).get("steps", [])
        names = ", ".join(str(step.get("name")) for step in steps)
    except (ValueError, AttributeError, TypeError):
        names = "cannot be read"
    return f"plan {data['plan']}, version {data['version']}: {names}"


def _checked(data: Data) -> str:
    if data["denied"]:
        return f"the steps' commands were not run: {data['denied']}"
    return f"the steps' commands were tried: {data['report']}" if data["report"] else "the steps' commands were tried"


def _run(data: Data) -> str:
    moved = f"; moved since: {'; '.join(map(str, data['moved']))}" if data["moved"] else ""
    return f"plan {data['plan']} is run as goal {data['goal']}{moved}"


def _attacked(data: Data) -> str:
    what = {
        "plan": f"version {data['version']} of plan {data.get('plan')}",
        "graph": f"the tasks of goal {data.get('goal')}",
        "goal": f"goal {data.get('goal')}",
        "text": "a text",
    }
    return f"attacked: {what.get(str(data.get('target', 'plan')), 'something')}"


def _angle(data: Data) -> str:
    found = f", {len(data['found'])} found" if data.get("found") else ""
    return f"{data['angle']}: {data['state']}{found}{': ' + data['why'] if data.get('why') else ''}"


def _what(data: Data) -> str:
    if data.get("finding") is not None:
        return f"finding {data['finding']}"
    return f"question {data.get('question')} of the plan"


PLAN_TEXTS: dict[str, Callable[[Data], str]] = {
    "plan.begun": lambda d: f"a plan is wanted: {d['text']}",
    "plan.edited": lambda d: f"plan {d['plan']} is to be changed: {d['text'] or 'by the answers'}",
    "plan.resumed": lambda d: f"plan {d['plan']} is written on",
    "plan.checked": _checked,
    "plan.proposed": _proposed,
    "plan.answered": lambda d: f"question {d['question']} of plan {d['plan']}: {d['text']}",
    "plan.approved": lambda d: f"plan {d['plan']} is approved as version {d['version']}, digest {d['digest']}",
    "plan.rejected": lambda d: f"plan {d['plan']} is rejected{': ' + d['why'] if d['why'] else ''}",
    "plan.cancelled": lambda d: f"plan {d['plan']} is wanted no more",
    "plan.stopped": lambda d: f"writing plan {d['plan']} ended ({d['state']}): {d['why']}",
    "plan.run": _run,
    "grill.begun": _attacked,
    "grill.resumed": lambda d: f"attack {d['grill']} goes on",
    "grill.shown": lambda d: f"reviewers are shown {len(d['parts'])} parts",
    "grill.joined": lambda d: f"finding {d['finding']} was found from {d['angle']} too",
    "grill.angle": _angle,
    "grill.asked": lambda d: f"the user is asked: {d['text']}",
    "grill.skipped": lambda d: f"left open: {_what(d)}",
    "grill.stopped": lambda d: f"attack {d['grill']} was broken off ({d['state']}): {d['why']}",
    "grill.finding": lambda d: f"{d['severity']}, {d['angle']}: {d['text']}",
    "grill.answered": lambda d: f"finding {d['finding']} is {d['answer']}{': ' + d['text'] if d['text'] else ''}",
    "grill.ended": lambda d: (
        f"the attack has ended: {len(d['found'])} found, {len(d['resolved'])} resolved, {len(d['remain'])} remain"
    ),
    "plan.saved": lambda d: f"plan {d['plan']} was copied to {d['path']}",
}
