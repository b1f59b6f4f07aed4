"""Mail: what is reported at once, what waits, what gives way; nothing is lost and nothing delivered twice."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musecode_jupyter.agents.mail.box import Mailbox
from musecode_jupyter.agents.mail.policy import AT_ONCE, BOUND, Subject, judge
from musecode_jupyter.agents.mail.state import Letter, MailReducer, MailState
from musecode_jupyter.guard.tiers import TiersReducer
from musecode_jupyter.log import EventLog, Redactor

SUBJECTS: tuple[Subject, ...] = (*AT_ONCE, "note")
letters = st.builds(
    Letter,
    sender=st.sampled_from(["a", "b"]),
    to=st.just("lead"),
    priority=st.sampled_from(["interrupt", "next", "digest"]),
    topic=st.sampled_from(["x", "y", "z"]),
    text=st.just("text"),
)


def mailbox(folder: Path) -> Mailbox:
    """A box with a log of its own."""
    log = EventLog.create(
        folder, reducers=[MailReducer(), TiersReducer()], redactor=Redactor(), now=lambda: datetime.now(UTC)
    )
    return Mailbox(log)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_what_matters_passes_and_a_note_waits_for_the_digest(subject: Subject) -> None:
    verdict = judge({}, "reviewer", subject, "topic", "next")
    assert verdict.priority == ("digest" if subject == "note" else "next")
    assert verdict.reason
    assert not verdict.dropped


@given(
    waiting=st.dictionaries(st.integers(1, 100), letters, max_size=20),
    subject=st.sampled_from(SUBJECTS),
    topic=st.sampled_from(["x", "y", "z"]),
)
def test_a_sender_gives_way_to_itself_alone_and_never_floods(
    waiting: dict[int, Letter], subject: Subject, topic: str
) -> None:
    verdict = judge(waiting, "a", subject, topic, "next")
    mine = {seq: each for seq, each in waiting.items() if each.sender == "a"}
    assert verdict.dropped.keys() <= mine.keys()
    left = {seq: each for seq, each in mine.items() if seq not in verdict.dropped}
    if subject in {"question", "answer"}:
        assert verdict.priority == "next"
    else:
        assert all(each.topic != topic for each in left.values())
    at_once = [each for each in left.values() if each.priority != "digest"]
    if len(at_once) >= BOUND and subject not in {"question", "answer"}:
        assert verdict.priority == "digest"
    assert all(why for why in verdict.dropped.values())


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.sampled_from(SUBJECTS), st.sampled_from(["x", "y"])),
            st.tuples(st.just("deliver"), st.booleans(), st.just("")),
            st.tuples(st.just("acknowledge"), st.just(True), st.just("")),
        ),
        max_size=25,
    )
)
def test_each_letter_is_delivered_once_in_order_or_dropped_with_a_reason(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Subject | bool, str]]
) -> None:
    folder = tmp_path_factory.mktemp("mail") / "s"

    async def story() -> None:
        box = mailbox(folder)
        for what, how, topic in steps:
            if what == "send":
                assert isinstance(how, str)
                box.send("verifier", "lead", subject=how, topic=topic, text="text")
            elif what == "deliver":
                box.deliver("lead", digest=bool(how))
            else:
                box.acknowledge("lead")
        await box.log.close()

    asyncio.run(story())
    events = list(EventLog.read(folder).events())
    sent = [event.seq for event in events if event.kind == "mail.sent"]
    delivered = [event.data["mail"] for event in events if event.kind == "mail.delivered"]
    dropped = [event.data["mail"] for event in events if event.kind == "mail.dropped"]
    acknowledged = [event.data["mail"] for event in events if event.kind == "mail.acknowledged"]
    assert len(set(delivered)) == len(delivered)
    assert not set(delivered) & set(dropped)
    assert set(acknowledged) <= set(delivered)
    reducer, state = MailReducer(), MailState()
    for event in events:
        reducer.apply(state, event)
    assert set(sent) == {*dropped, *acknowledged, *state.letters}


def test_a_question_is_delivered_in_a_turn_of_its_own(tmp_path: Path) -> None:
    async def story() -> None:
        box = mailbox(tmp_path / "s")
        first = box.send("lead", "explorer", subject="question", topic="question 1", text="?").seq
        second = box.send("worker-1", "explorer", subject="question", topic="question 2", text="?").seq
        note = box.send("harness", "explorer", subject="note", topic="files", text="a.py").seq
        assert box.deliver("explorer", digest=False) == []
        assert box.deliver("explorer", digest=True, question=first) == [first, note]
        assert list(box.acknowledge("explorer")) == [first, note]
        assert list(box.state.waiting("explorer")) == [second]
        await box.log.close()

    asyncio.run(story())


def test_only_mail_that_may_interrupt_ends_what_its_recipient_runs(tmp_path: Path) -> None:
    ended: list[tuple[str, int]] = []
    box = Mailbox(mailbox(tmp_path / "log").log, lambda to, letter: ended.append((to, letter)))
    box.send("harness", "lead", subject="note", topic="a", text="by the way", priority="interrupt")
    box.send("harness", "lead", subject="claim", topic="b", text="it is wrong", priority="next")
    sent = box.send("harness", "lead", subject="claim", topic="c", text="it is wrong", priority="interrupt")
    assert ended == [("lead", sent.seq)]
