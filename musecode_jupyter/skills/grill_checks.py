"""What is wrong with a plan, a task graph, a goal or a text as far as it can be proven without a model; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import PurePosixPath
from typing import Any

from musecode_jupyter.agents.tasks.graph import Files, meeting
from musecode_jupyter.log.grill_kinds import Severity
from musecode_jupyter.skills.grill_target import Target

ANGLES = ("wrong evidence", "unverifiable acceptance", "own judge", "one file", "irreversible", "security", "cost")
"""From which this program attacks by itself, in this order."""

MOST_QUOTED = 300

_UNDOES_NOTHING = re.compile(
    r"\brm\s+-\w*[rf]|\bgit\s+push\b|--force\b|\bDROP\s+(?:TABLE|DATABASE)\b|\b(?:twine\s+upload|npm\s+publish)\b"
    r"|\bterraform\s+(?:apply|destroy)\b|\bkubectl\s+(?:apply|delete)\b|\bmkfs\b|\bdd\s+if=",
    re.IGNORECASE,
)
_SECRET = re.compile(
    r"(?:^|/)(?:\.env(?:\..*)?|.*\.(?:pem|key|p12|pfx)|id_(?:rsa|ed25519|ecdsa)|.*(?:secret|credential).*)\Z"
)
_TEST = re.compile(r"(?:^|/)(?:tests?/|test_|conftest\.py)|_test\.\w+\Z|\.(?:test|spec)\.\w+\Z")
_PATH = re.compile(r"(?<![\w./:-])(?:[\w-]+/)+[\w.-]*\w\.[A-Za-z]\w{0,5}\b")
_WEAK = re.compile(r"\s*(?:true|:|echo\b.*|exit 0|test -[ef] \S+|\[ -[ef] \S+ \]|ls\b.*)\s*\Z")


@dataclass(frozen=True)
class Flaw:
    """A flaw that is proven by its `evidence`; `key` knows it again in another version of the plan.

    `place` is what it is about (see `GrillFinding`), `command` a command that it is about.
    """

    angle: str
    key: str
    severity: Severity
    text: str
    evidence: str
    change: str
    place: str = ""
    command: str = ""

    @property
    def cites(self) -> list[str]:
        """What it cites, as reviewers' findings say it."""
        return [cited_command(self.command)] if self.command else []


def looks_secret(path: str) -> bool:
    """Whether a path is called as files with secrets are."""
    return _SECRET.search(str(PurePosixPath(path)).lower()) is not None


def place_of(steps: Sequence[str]) -> str:
    """The place of a finding about these steps."""
    return " + ".join(sorted(set(steps)))


def cited_command(command: str) -> str:
    """A command that a finding cites, in a form that can be compared."""
    return f"command {' '.join(command.split())}"


def flaws_of(target: Target, files: Sequence[str], moved: Sequence[str] = ()) -> list[Flaw]:
    """All flaws of what is attacked; `files` are those of the repository, `moved` what has changed of its ground."""
    if target.kind == "plan":
        return attack(target.document, files, moved)
    document, known = target.document, Files.of(files)
    judged = [{"name": "", "accept": [*document.get("verify", ()), *document.get("measure", ())], "goal": ""}]
    steps = {"steps": target.steps or judged}
    whole = {"steps": [{"name": "", "goal": document["goal"], "accept": [], "reads": [], "writes": []}]}
    return [
        *_unknown_files(document["goal"], known),
        *_weak(steps),
        *(_own_judge(steps, known) if target.steps else _unguarded(target, known)),
        *(_one_file(steps, known) if target.steps else ()),
        *_irreversible({"steps": [*whole["steps"], *steps["steps"]]}),
        *(_security(steps) if target.steps else ()),
        *_goal_cost(target),
    ]


def attack(document: Mapping[str, Any], files: Sequence[str], moved: Sequence[str] = ()) -> list[Flaw]:
    """All flaws of a version; `files` are those of the repository, `moved` what has changed since it was written."""
    known = Files.of(files)
    return [
        *_evidence(document, moved),
        *_acceptance(document),
        *_own_judge(document, known),
        *_one_file(document, known),
        *_irreversible(document),
        *_security(document),
        *_cost(document),
    ]


def _evidence(document: Mapping[str, Any], moved: Sequence[str]) -> Iterator[Flaw]:
    for each in document["evidence"]:
        if not each["read"]:
            yield Flaw(
                "wrong evidence",
                f"unread {each['path']}",
                "major",
                f"The plan rests on {each['path']}, which nobody has read.",
                f"no file.observed of {each['path']} since the plan was begun",
                f"Read {each['path']}, or leave it out.",
                each["path"],
            )
    if not document["ground"]["files"] and document["by"] != "harness":
        yield Flaw(
            "wrong evidence",
            "nothing read",
            "major",
            "No file was read for this plan.",
            "no file.observed since the plan was begun",
            "Look at the code that the steps change.",
        )
    for path in document["ground"]["uncommitted"]:
        yield Flaw(
            "wrong evidence",
            f"uncommitted {path}",
            "major",
            f"{path} was read with changes that are not committed; work starts without them.",
            f"git status names {path}",
            f"Commit {path}, or plan by what is committed.",
            path,
        )
    for clause in moved:
        yield Flaw(
            "wrong evidence", f"moved {clause}", "major", f"The ground has moved: {clause}.", clause, "Look again."
        )


def _acceptance(document: Mapping[str, Any]) -> Iterator[Flaw]:
    angle = "unverifiable acceptance"
    for step in document["steps"]:
        for trial in step["trials"]:
            command, ended, name = trial["command"], trial["ended"], step["name"]
            key = f"{ended} {name} {command}"
            shown = f"`{command}` on the last commit: {ended}"
            if ended == "cannot run":
                text = f"The command of {name} cannot be run."
                yield Flaw(angle, key, "blocking", text, shown, "Name one that can.", name, command)
            elif ended == "passes" and not step["after"]:
                text = f"The command of {name} passes already, so it cannot tell whether the step is done."
                change = "Name one that fails until the step is done."
                yield Flaw(angle, key, "blocking", text, shown, change, name, command)
            elif ended == "not run":
                text = f"Nobody has seen the command of {name} fail."
                yield Flaw(angle, key, "minor", text, shown, "Allow it to be run, then plan again.", name, command)
            yield from _weak({"steps": [{"name": name, "accept": [command]}]})


def _weak(document: Mapping[str, Any]) -> Iterator[Flaw]:
    for step in document["steps"]:
        for command in step["accept"]:
            if _WEAK.match(command):
                name = step["name"]
                yield Flaw(
                    "unverifiable acceptance",
                    f"weak {name} {command}",
                    "major",
                    f"The command of {name or 'the goal'} says nothing of what {'the step' if name else 'it'} is for.",
                    f"`{command}`",
                    "Name one that tests the result.",
                    name,
                    command,
                )


def _own_judge(document: Mapping[str, Any], files: Files) -> Iterator[Flaw]:
    for step in document["steps"]:
        for command in step["accept"]:
            words = [word.split("::")[0] for word in command.split() if not word.startswith("-")]
            for path in dict.fromkeys(word for word in words if _TEST.search(word)):
                # Tests that a step makes anew are not weakened by it.
                if not files.meant(path) & files.known or not meeting([path], step["writes"], files):
                    continue
                yield Flaw(
                    "own judge",
                    f"judge {step['name']} {path}",
                    "major",
                    f"{step['name']} changes {path}, by which it is judged itself.",
                    f"writes {', '.join(step['writes'])}; done when `{command}` passes",
                    f"Have another step change {path} first, or judge by tests that it does not change.",
                    step["name"],
                    command,
                )


def _unguarded(target: Target, files: Files) -> Iterator[Flaw]:
    """Tests by which a goal is judged, and which nothing forbids the agents to change."""
    for command in target.commands:
        words = [word.split("::")[0] for word in command.split() if not word.startswith("-")]
        for path in dict.fromkeys(word for word in words if _TEST.search(word)):
            found = files.meant(path) & files.known
            forbidden = [each for each in target.document["forbid"] if not each.startswith(("import ", "from "))]
            if found and not meeting([path], forbidden, files):
                yield Flaw(
                    "own judge",
                    f"judge {path}",
                    "minor",
                    f"Nothing keeps the agents from changing {path}, by which they are judged.",
                    f"`{command}`; no --forbid meets {path}",
                    f"Forbid it: %goal edit --forbid '{path}'.",
                    "",
                    command,
                )


def _unknown_files(text: str, files: Files) -> Iterator[Flaw]:
    for path in dict.fromkeys(_PATH.findall(text)):
        if path not in files.known:
            yield Flaw(
                "wrong evidence",
                f"names {path}",
                "minor",
                f"It names {path}, which is not in the repository.",
                f"no such file: {path}",
                f"Say that {path} is to be made, or name the file that is meant.",
                path,
            )


def _goal_cost(target: Target) -> Iterator[Flaw]:
    if target.kind == "goal" and not target.document["limits"]:
        yield Flaw(
            "cost",
            "no limit",
            "major",
            "Nothing limits what the goal may use: it can go on until it is stopped.",
            "limits: none",
            "Give it a budget: %goal edit --budget 2usd.",
        )


def _one_file(document: Mapping[str, Any], files: Files) -> Iterator[Flaw]:
    steps = document["steps"]
    before = {step["name"]: set(step["after"]) for step in steps}
    for _ in steps:
        for name in before:
            before[name] |= {far for near in list(before[name]) for far in before.get(near, ())}
    for reader, writer in permutations(steps, 2):
        if reader["name"] in before[writer["name"]] or writer["name"] in before[reader["name"]]:
            continue
        both = meeting(reader["reads"], writer["writes"], files)
        if both:
            yield Flaw(
                "one file",
                f"order {reader['name']} {writer['name']}",
                "major",
                f"{reader['name']} reads what {writer['name']} writes, and neither comes after the other.",
                ", ".join(both[:5]),
                f"Say which of {reader['name']} and {writer['name']} comes first.",
                place_of([reader["name"], writer["name"]]),
            )


def _irreversible(document: Mapping[str, Any]) -> Iterator[Flaw]:
    for step in document["steps"]:
        for text in (step["goal"], *step["accept"]):
            found = _UNDOES_NOTHING.search(text)
            if found is not None:
                yield Flaw(
                    "irreversible",
                    f"irreversible {step['name']} {found[0]}",
                    "blocking",
                    f"{step['name'] or 'It'} does what cannot be taken back.",
                    " ".join(text.split())[:MOST_QUOTED],
                    "Leave it to the user, or do it on a copy.",
                    step["name"],
                    "" if text == step["goal"] else text,
                )


def _security(document: Mapping[str, Any]) -> Iterator[Flaw]:
    for step in document["steps"]:
        for path in dict.fromkeys([*step["reads"], *step["writes"]]):
            if looks_secret(path):
                yield Flaw(
                    "security",
                    f"secret {step['name']} {path}",
                    "major",
                    f"{step['name']} touches {path}, which looks like a secret: it would be sent to the model.",
                    path,
                    f"Do it without {path}.",
                    step["name"],
                )


def _cost(document: Mapping[str, Any]) -> Iterator[Flaw]:
    silent = [step["name"] for step in document["steps"] if not step["tokens"]]
    if silent and document["by"] != "harness":
        yield Flaw(
            "cost",
            f"cost {' '.join(silent)}",
            "minor",
            f"Nothing is said of what {', '.join(silent)} takes.",
            "tokens: 0",
            "Estimate it.",
        )
