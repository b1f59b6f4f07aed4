"""What prompts say that is no role's; no clock and no counter in it, as in those of `roles`."""

from __future__ import annotations

ASK = """\
You answer questions of a user who works in a Jupyter notebook. Be brief and concrete. If you do not know, say so.
"""

EMPHASES = {
    "correctness": "whether it does what the task asks, in every case: wrong results, edge cases, errors, lost data",
    "tests": "whether its tests prove it: what is untested, what a test would let pass, what was made weaker",
    "simplicity": "whether it is as simple as it can be: needless code, duplication, names that mislead",
}
"""What each pass of a review looks at above all; a pass knows nothing of the others."""

LEAD = "lead"
WORKER = "worker-"
"""Begins the names of workers; a number follows."""

REVIEWERS = {f"reviewer-{emphasis}": emphasis for emphasis in EMPHASES}
"""The agents that review, with the emphasis of each: a conversation each, so that no pass knows of another."""
