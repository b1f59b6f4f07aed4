"""What may be told to an agent at once and what waits for the digest: the bounds on what agents report; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from musecode_jupyter.agents.mail.state import Letter, Priority

Subject = Literal[
    "question", "answer", "task", "claim", "transition", "decision", "budget", "finding", "refusal", "follow-up", "note"
]

AT_ONCE: Mapping[Subject, str] = {
    "question": "somebody waits for the answer",
    "answer": "it was asked for",
    "task": "it changes the state of a task",
    "claim": "it changes a claim that the recipient relies on",
    "transition": "a check went from green to red or back",
    "decision": "it needs a decision",
    "budget": "it is a notice of budget or tier",
    "refusal": "what the recipient wrote is not passed on",
    "follow-up": "the recipient wanted to look again then",
    "finding": "it is a proven fault of the recipient's own work",
}
"""Subjects that pass, with the reason; all else waits for the digest at the end of the turn."""

BOUND = 8
"""So many letters of one sender may wait for one recipient."""

NEVER_REPLACED = frozenset[Subject]({"question", "answer"})


@dataclass(frozen=True)
class Verdict:
    """How a letter goes, why, and which ones that still wait give way to it, each with the reason."""

    priority: Priority
    reason: str
    dropped: Mapping[int, str]


def judge(waiting: Mapping[int, Letter], sender: str, subject: Subject, topic: str, priority: Priority) -> Verdict:
    """Decide on a letter of `sender`; `waiting` is what its recipient has not got yet.

    A newer letter on the same topic takes the place of an older one. Beyond `BOUND` the oldest notes of the sender give
    way, and what cannot give way is put off to the digest.
    """
    mine = {seq: letter for seq, letter in waiting.items() if letter.sender == sender}
    dropped: dict[int, str] = {}
    if subject not in NEVER_REPLACED:
        dropped = {seq: "a newer one on the same topic" for seq, each in mine.items() if each.topic == topic}
    left = {seq: letter for seq, letter in mine.items() if seq not in dropped}
    for seq, letter in left.items():
        if len(left) - len(dropped.keys() & left.keys()) < BOUND:
            break
        if letter.priority == "digest":
            dropped[seq] = f"more than {BOUND} from {sender} wait"
    full = len(left) - len(dropped.keys() & left.keys()) >= BOUND
    if subject not in AT_ONCE:
        return Verdict("digest", "a note: it waits for the digest", dropped)
    if full and subject not in NEVER_REPLACED:
        return Verdict("digest", f"put off: {BOUND} from {sender} wait", dropped)
    return Verdict(priority, AT_ONCE[subject], dropped)
