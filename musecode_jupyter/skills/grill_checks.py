"""What is wrong with a plan as far as it can be proven from the plan itself and from what moved since; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import PurePosixPath
from typing import Any, Literal

from musecode_jupyter.agents.tasks.graph import Files, meeting

Severity = Literal["blocking", "major", "minor"]

ANGLES = ("wrong evidence", "unverifiable acceptance", "own judge", "one file", "irreversible", "security", "cost")
"""From which a plan is attacked, in this order."""

_UNDOES_NOTHING = re.compile(
    r"\brm\s+-\w*[rf]|\bgit\s+push\b|--force\b|\bDROP\s+(?:TABLE|DATABASE)\b|\b(?:twine\s+upload|npm\s+publish)\b"
    r"|\bterraform\s+(?:apply|destroy)\b|\bkubectl\s+(?:apply|delete)\b|\bmkfs\b|\bdd\s+if=",
    re.IGNORECASE,
)
_SECRET = re.compile(
    r"(?:^|/)(?:\.env(?:\..*)?|.*\.(?:pem|key|p12|pfx)|id_(?:rsa|ed25519|ecdsa)|.*(?:secret|credential).*)\Z"
)
_TEST = re.compile(r"(?:^|/)(?:tests?/|test_|conftest\.py)|_test\.\w+\Z|\.(?:test|spec)\.\w+\Z")
_WEAK = re.compile(r"\s*(?:true|:|echo\b.*|exit 0|test -[ef] \S+|\[ -[ef] \S+ \]|ls\b.*)\s*\Z")


@dataclass(frozen=True)
class Flaw:
    """A flaw that is proven by its `evidence`; `key` knows it again in another version of the plan."""

    angle: str
    key: str
    severity: Severity
    text: str
    evidence: str
    change: str


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
                yield Flaw(angle, key, "blocking", f"The command of {name} cannot be run.", shown, "Name one that can.")
            elif ended == "passes" and not step["after"]:
                text = f"The command of {name} passes already, so it cannot tell whether the step is done."
                yield Flaw(angle, key, "blocking", text, shown, "Name one that fails until the step is done.")
            elif ended == "not run":
                text = f"Nobody has seen the command of {name} fail."
                yield Flaw(angle, key, "minor", text, shown, "Allow it to be run, then plan again.")
            if _WEAK.match(command):
                text = f"The command of {name} says nothing of what the step is for."
                yield Flaw(
                    angle, f"weak {name} {command}", "major", text, f"`{command}`", "Name one that tests the result."
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
                    f"{step['name']} does what cannot be taken back.",
                    text,
                    "Leave it to the user, or do it on a copy.",
                )


def _security(document: Mapping[str, Any]) -> Iterator[Flaw]:
    for step in document["steps"]:
        for path in dict.fromkeys([*step["reads"], *step["writes"]]):
            if _SECRET.search(str(PurePosixPath(path)).lower()):
                yield Flaw(
                    "security",
                    f"secret {step['name']} {path}",
                    "major",
                    f"{step['name']} touches {path}, which looks like a secret: it would be sent to the model.",
                    path,
                    f"Do it without {path}.",
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
