"""What an agent may tell another as certain, and what its writer is told of what may not be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musecode_jupyter.agents.claims.labels import OUT, Label, Standing
from musecode_jupyter.agents.mail.box import Mailbox
from musecode_jupyter.agents.mail.hearsay import OPINION, STANDS, hearsay, named_claims, standing_behind
from musecode_jupyter.runtime.errors import ToolProblem

HOW = {
    3: Standing("supported", "seen"),
    4: Standing("verified", "by b"),
    5: Standing("contradicted", "b found otherwise"),
    6: Standing("hearsay", "no evidence"),
    7: Standing("stale", "a.py changed since"),
}
FACTS = [
    "load is in src/code.py.",
    "See code.py:12.",
    "It begins at line 40.",
    "`load` opens a file.",
    "All tests pass.",
    "The tests in there fail.",
]


@pytest.mark.parametrize("text", FACTS)
def test_a_fact_needs_a_claim_that_can_be_relied_on_or_is_marked(text: str) -> None:
    assert hearsay(text, (), HOW).startswith("Not passed on: it says something of ")
    assert "no claim stands behind it" in hearsay(text, (), HOW)
    for backed in (f"{text} (claim 3)", f"{text} See claims 5 and 4.", f"{text} Claim 7 says so."):
        assert hearsay(backed, (), HOW) == ""
    assert hearsay(text, (3,), HOW) == ""
    for marked in (f"Opinion: {text}", f"I think that {text}", f"Not checked: {text}", OPINION + text):
        assert hearsay(marked, (), HOW) == ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("It is in code.py (claim 5).", "claim 5 is contradicted (b found otherwise)"),
        ("It is in code.py (claims 5, 6).", "claim 6 is hearsay (no evidence)"),
        ("It is in code.py (claim 99).", "there is no claim 99"),
    ],
)
def test_a_claim_that_does_not_stand_backs_nothing_and_its_writer_is_told_which(text: str, told: str) -> None:
    assert told in hearsay(text, (), HOW)


@pytest.mark.parametrize(
    "text", ["", "It says: wrong.", "I found nothing.", "Version 3.14 of it, e.g. that and/or this.", "Yes."]
)
def test_what_states_nothing_of_the_code_passes(text: str) -> None:
    assert hearsay(text, (), HOW) == ""


@given(st.lists(st.sampled_from(sorted(HOW)), max_size=4), st.sampled_from(FACTS))
def test_it_passes_exactly_if_one_that_stands_is_named(numbers: list[int], fact: str) -> None:
    text = fact + "".join(f" (claim {n})" for n in numbers)
    assert named_claims(text) == tuple(dict.fromkeys(numbers))
    stands = [n for n in dict.fromkeys(numbers) if HOW[n].label in STANDS]
    assert standing_behind(text, (), HOW) == tuple(stands)
    assert (hearsay(text, (), HOW) == "") == bool(stands)


def test_no_label_is_forgotten() -> None:
    labels: set[Label] = {"hearsay", "supported", "verified", "stale", "contradicted", "retracted"}
    assert labels - STANDS == {"hearsay"} | (OUT - {"stale"})


def test_the_box_sends_no_hearsay_and_says_why_to_whoever_wrote_it(tmp_path: Path) -> None:
    from test_mail import mailbox

    async def story() -> None:
        box = Mailbox(mailbox(tmp_path / "s").log, claims=lambda: HOW)
        with pytest.raises(ToolProblem, match="Not passed on"):
            box.send("verifier", "lead", subject="transition", topic="t", text="All tests pass.")
        assert not box.state.letters
        box.send("lead", "explorer", subject="question", topic="q", text="Do all tests pass?")
        box.send("verifier", "lead", subject="transition", topic="t", text="All tests pass.", claims=(4,))
        box.send("harness", "lead", subject="note", topic="t", text="Changed: code.py.")
        box.send("reviewer", "lead", subject="finding", topic="f", text="code.py:1 is wrong.", evident=True)
        assert len(box.state.letters) == 4
        await box.log.close()

    asyncio.run(story())
