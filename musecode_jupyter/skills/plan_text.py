"""A plan in words: how it is put to its author, and how a version is shown as plain text and as Markdown; pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from musecode_jupyter.skills.plan_state import PlanRecord
from musecode_jupyter.tools.fence import fenced

ENDED = {
    "fails": "fails today",
    "passes": "PASSES ALREADY",
    "cannot run": "CANNOT BE RUN",
    "to be made": "cannot be run yet: a step makes what it lacks",
    "not run": "not run",
}
_SPECIAL = re.compile(r"([\\`*_\[\]#|~!>+-])")

HOW = (
    "Look around first, with `read`, `search`, `map` and, where there is one, the explorer (`ask`). Nothing is changed "
    "and no command is run before the user has approved the plan: tools that do so are not available to you now. Then "
    "hand the plan in with `propose_plan`: steps that are as independent as the work allows, each with the files that "
    "it reads and writes (paths relative to the root of the repository), the commands that fail today and pass once it "
    "is done, the steps that it comes after, its risk with the reason, and an estimate of the tokens that it takes. No "
    "two steps that may run side by side write one file. Name as evidence the files that you read and rest on, and as "
    "questions what only the user can decide. When the plan is taken, answer in one or two sentences without calling "
    "a tool."
)


def plan_message(text: str, verify: Sequence[str], subjects: str) -> str:
    """How the wish for a plan is put to its author; `subjects` are the last commits, a line each."""
    checks = "".join(f"\n- `{command}`" for command in verify)
    wanted = f"\n\nIn the end each of these commands is to exit with 0 in the root of the repository:{checks}"
    return (
        f"Plan this, and do not begin with it: {text}{wanted if verify else ''}\n\n{HOW}\n\n"
        f"The last commits:\n{fenced(subjects)}"
    )


def edit_message(text: str, answers: Mapping[str, str], flaws: Sequence[str] = ()) -> str:
    """How the wish for a change of the plan is put to its author; `answers` are by question, `flaws` to be mended."""
    decided = "".join(f"\n- {question} {said}" for question, said in answers.items())
    parts = [
        f"Change the plan: {text}" if text else "Change the plan by what the user has decided.",
        f"The user's answers to your questions:{decided}" if answers else "",
        "Mend these flaws, which the user agrees are some:" + "".join(f"\n- {flaw}" for flaw in flaws) if flaws else "",
        "Look again where you need to; nothing is changed, no command is run. Hand in the whole plan with "
        "`propose_plan`, then answer in one or two sentences what you changed.",
    ]
    return "\n\n".join(part for part in parts if part)


def plan_markdown(record: PlanRecord | None, number: int, document: Mapping[str, Any] | None, digest: str) -> str:
    """A version as Markdown; with `record` also how it stands. What a model wrote is escaped."""
    return _rendered(record, number, document, digest, _escaped, _code)


def plan_text(record: PlanRecord | None, number: int, document: Mapping[str, Any] | None, digest: str) -> str:
    """The same as plain text, nothing escaped; with `number` 0 without what differs from run to run."""
    return _rendered(record, number, document, digest, _one_line, lambda text: f"`{_one_line(text)}`")


def standing(record: PlanRecord) -> str:
    """How a plan stands, in a line with what can be done next."""
    said = {
        "writing": "It is being written." if not record.versions else "It is being changed.",
        "proposed": "It waits for you: `%plan approve`, `%plan edit TEXT`, `%plan reject WHY` or `%plan cancel`.",
        "approved": "It is approved. `%goal --plan` runs it.",
        "rejected": f"It was rejected{': ' + record.why if record.why else ''}.",
        "cancelled": "It was cancelled.",
        "stopped": f"Writing it ended: {record.why} `%plan resume` goes on with it.",
    }[record.status]
    ran = f" Run as goal {', '.join(map(str, record.goals))}." if record.goals else ""
    return said + ran


def _rendered(
    record: PlanRecord | None,
    number: int,
    document: Mapping[str, Any] | None,
    digest: str,
    plain: Callable[[str], str],
    code: Callable[[str], str],
) -> str:
    if document is None:
        asked = plain(record.text) if record is not None else ""
        return "\n".join([f"{_head(number)}: {asked}", "", *([plain(standing(record))] if record else [])]) + "\n"
    lines = [f"{_head(number)}: {plain(document['goal'])}", ""]
    if record is not None:
        lines += [f"Version {record.version}. {standing(record)}", ""]
    lines += [plain(document["summary"]), ""]
    if document["verify"]:
        lines += ["It is to make these pass: " + ", ".join(code(command) for command in document["verify"]), ""]
    for place, step in enumerate(document["steps"], 1):
        lines += _step(place, step, plain, code)
    tokens = sum(step["tokens"] for step in document["steps"])
    if tokens:
        lines += [f"Estimated in all: {tokens} tokens.", ""]
    if document["denied"]:
        lines += [f"The commands were not run: {plain(document['denied'])}", ""]
    answers = {} if record is None else record.answers
    if document["questions"]:
        lines += ["## Open questions", ""]
        for place, question in enumerate(document["questions"], 1):
            said = answers.get(place)
            reply = f" Answered: {plain(said)}" if said else f" ({code(f'%plan answer {place} TEXT')})"
            lines.append(f"{place}. {plain(question)}{reply}")
        lines.append("")
    lines += _ground(document, plain, code, commit=bool(number))
    if digest and number:
        lines += [f"Digest: {digest}"]
    return "\n".join(lines).rstrip("\n") + "\n"


def _step(place: int, step: Mapping[str, Any], plain: Callable[[str], str], code: Callable[[str], str]) -> list[str]:
    lines = [f"## {place}. {plain(step['name'])}", "", plain(step["goal"]), ""]
    lines += [f"- done when {code(each['command'])} passes: {_ended(each)}" for each in step["trials"]]
    for name in ("reads", "writes"):
        lines.append(f"- {name} {', '.join(map(code, step[name])) or '(not said)'}")
    if step["after"]:
        lines.append(f"- after {', '.join(map(plain, step['after']))}")
    lines.append(f"- risk {step['risk']['level']}: {plain(step['risk']['why'])}")
    if step["tokens"]:
        lines.append(f"- about {step['tokens']} tokens")
    return [*lines, ""]


def _ended(trial: Mapping[str, Any]) -> str:
    exit_said = f" (exit {trial['exit']})" if trial["exit"] not in (None, 0) else ""
    return ENDED[trial["ended"]] + exit_said


def _head(number: int) -> str:
    return f"# Plan {number}" if number else "# Plan"


def _ground(
    document: Mapping[str, Any], plain: Callable[[str], str], code: Callable[[str], str], *, commit: bool
) -> list[str]:
    lines = ["## What it rests on", ""]
    for each in document["evidence"]:
        mark = "" if each["read"] else " NEVER READ: "
        lines.append(f"- {code(each['path'])}{mark or ': '}{plain(each['shows'])}")
    for each in document["claims"]:
        lines.append(f"- claim {each['claim']} ({each['label']}): {plain(each['text'])}")
    if document["looked_at"]:
        lines.append(f"- read too: {', '.join(map(code, document['looked_at']))}")
    ground = document["ground"]
    if ground["uncommitted"]:
        files = ", ".join(map(code, ground["uncommitted"]))
        lines.append(f"- READ WITH CHANGES THAT ARE NOT COMMITTED, without which work starts: {files}")
    at = f"commit {ground['commit'][:10]}" if commit else "the last commit"
    lines.append(f"- {at} on {plain(ground['branch'] or 'no branch')}")
    return [*lines, ""]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _escaped(text: str) -> str:
    marked = _SPECIAL.sub(r"\\\1", _one_line(text))
    return marked.replace("&", "&amp;").replace("<", "&lt;")


def _code(text: str) -> str:
    """A code span that its text cannot end."""
    flat = _one_line(text)
    longest = max((len(run) for run in re.findall(r"`+", flat)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if "`" in flat or not flat else ""
    return f"{fence}{pad}{flat}{pad}{fence}"
