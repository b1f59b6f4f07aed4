"""Looks again at what claims rest on: hashes lines anew, runs queries again, compares the trees of commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from musecode_jupyter.agents.claims.evidence import KEPT_CHARS, MOST_MATCHES, span_digest, unfinished
from musecode_jupyter.agents.claims.state import Claim, ClaimsState
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.claim_kinds import ClaimEvidence
from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.encoding import decode, shown
from musecode_jupyter.tools.files import digest_bytes, read_bytes
from musecode_jupyter.tools.search import search

MOST_BYTES = 8_000_000
"""A larger file is not looked through again: what rests on it stays as it was found before."""
MECHANICAL = frozenset({"location", "count", "absence"})
"""Types of claims that can be looked at again without anybody's judgement."""
NOT_RUN = "not run again since"

ListFiles = Callable[[], Awaitable[list[str]]]


def cited_now(log: EventLog, number: int) -> list[ClaimEvidence]:
    """The evidence of a claim where it was last found."""
    newest = log.get(number)
    for event in log.events(since=number):
        if event.kind == "claim.checked" and event.data["claim"] == number:
            newest = event
    return [ClaimEvidence.model_validate(each) for each in newest.data["evidence"]]


@answered
async def look_again(
    effects: Effects, root: Path, list_files: ListFiles, kind: str, evidence: Sequence[Mapping[str, Any]], tree: str
) -> list[str]:
    """For each thing that a claim of type `kind` rests on, as plain data: JSON of what is found of it in `root` now.

    A location holds as long as its lines are there, wherever they are by now. Claims of other types need the whole
    file as it was. `tree` is the tree that `root` holds, or nothing if that is not known.
    """
    files = await list_files() if any(each["kind"] == "search" for each in evidence) else []
    asked = [ClaimEvidence.model_validate(each) for each in evidence]
    found = await effects.disk(_look, root, files, kind, asked, tree)
    return [each.model_dump_json() for each in found]


def _look(root: Path, files: list[str], kind: str, evidence: Sequence[ClaimEvidence], tree: str) -> list[ClaimEvidence]:
    looks = {"file": _file, "search": _search, "command": _command}
    return [looks[each.kind](root, files, kind, each, tree) for each in evidence]


def _file(root: Path, _files: list[str], kind: str, was: ClaimEvidence, _tree: str) -> ClaimEvidence:
    try:
        _, data = read_bytes(root, was.path, MOST_BYTES)
    except ToolProblem as problem:
        return was.model_copy(update={"holds": False, "why": str(problem)})
    if data is None:
        return was.model_copy(update={"holds": False, "why": f"{was.path} is not there any more"})
    digest = digest_bytes(data)
    if digest == was.digest:
        return was
    if kind != "location":
        return was.model_copy(update={"holds": False, "why": f"{was.path} changed since; not re-checked"})
    decoded = decode(data)
    lines = [] if decoded is None else shown(decoded.text).split("\n")
    length = was.last - was.first + 1
    here = "\n".join(lines[was.first - 1 : was.last])
    starts = [was.first] if span_digest(here) == was.span else _places(lines, length, was.span)
    if len(starts) != 1:
        how = "stand at several places" if starts else "are not there as they were"
        return was.model_copy(update={"holds": False, "why": f"{was.path} changed since: the lines {how}"})
    first = starts[0]
    text = "\n".join(lines[first - 1 : first - 1 + length])[:KEPT_CHARS]
    return was.model_copy(update={"first": first, "last": first + length - 1, "digest": digest, "text": text})


def _places(lines: list[str], length: int, span: str) -> list[int]:
    ends = range(len(lines) - length + 1)
    return [n + 1 for n in ends if span_digest("\n".join(lines[n : n + length])) == span]


def _search(root: Path, files: list[str], _kind: str, was: ClaimEvidence, _tree: str) -> ClaimEvidence:
    try:
        found = search(root, was.pattern, was.path or ".", was.glob or None, MOST_MATCHES, files=files)
    except ToolProblem as problem:
        return was.model_copy(update={"holds": False, "why": str(problem)})
    why = unfinished(found)
    if not why and len(found.matches) != was.count:
        why = f"{len(found.matches)} lines match {was.pattern!r} by now; there were {was.count}"
    return was.model_copy(update={"holds": not why, "why": why})


def _command(_root: Path, _files: list[str], _kind: str, was: ClaimEvidence, tree: str) -> ClaimEvidence:
    if was.tree and was.tree == tree:
        return was
    return was.model_copy(update={"holds": False, "why": f"`{was.command}` was {NOT_RUN}"})


async def recheck(
    log: EventLog,
    effects: Effects,
    number: int,
    root: Path,
    list_files: ListFiles,
    *,
    worktree: int | None,
    agent: str,
    tree: str = "",
    call: int | None = None,
) -> bool:
    """Look again at what claim `number` rests on in `root`, the worktree of that number; whether it stands.

    `tree` is the tree that was committed there last, on which alone results of commands stand.

    What comes out is an event if it is new: claim.checked where it stands, claim.staled where it does not. Nothing is
    said of a claim that is contradicted or taken back. `agent` is who asked for it, in tool call `call`.
    """
    state = log.state("claims")
    assert isinstance(state, ClaimsState)
    claim = state.claims[number]
    if claim.retracted or claim.contradicted or claim.refuted or not claim.evidence:
        return False
    was = [each.model_copy(update={"worktree": worktree}) for each in cited_now(log, number)]
    plain = [each.model_dump(mode="json") for each in was]
    found = [
        ClaimEvidence.model_validate_json(each)
        for each in await look_again(effects, root, list_files, claim.type, plain, tree)
    ]
    wrong = [each.why for each in found if not each.holds]
    if wrong:
        if not claim.changed:
            data = {"claim": number, "why": _what(claim, found), "call": call}
            await log.append("claim.staled", data, agent=agent, cause=(number,) if call is None else (call, number))
        return False
    if claim.changed or found != cited_now(log, number):
        data = {"claim": number, "evidence": [each.model_dump(mode="json") for each in found], "call": call}
        await log.append("claim.checked", data, agent=agent, cause=(number,) if call is None else (call, number))
    return True


def _what(claim: Claim, found: Sequence[ClaimEvidence]) -> str:
    """What changed, as the words `... changed since` have it."""
    changed = [_name(each) for each in found if not each.holds]
    return ", ".join(dict.fromkeys(changed)) or claim.text


def _name(evidence: ClaimEvidence) -> str:
    if evidence.kind == "search":
        return f"what {evidence.pattern!r} matches"
    return evidence.path if evidence.kind == "file" else "the branch"
