"""The fold is deterministic: the same events give the same digest in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path

import pytest
from journal_samples import CountReducer, TalkReducer, reducers

from musecode_jupyter.log import Event, Fold
from musecode_jupyter.log.fold import Comparison
from musecode_jupyter.runtime.errors import LogError

PROGRAM = """
from journal_samples import reducers
from musecode_jupyter.log import Event, Fold
fold = Fold(reducers())
for n in range(50):
    data = {"text": str(n), "to": f"agent-{n * 7 % 13}"}
    fold.apply(Event(1, n + 1, "", 1, 1, "", 0, (), "user.message", "", data))
print(fold.digest())
"""


def event(seq: int, text: str) -> Event:
    return Event(1, seq, "", 1, 1, "", 0, (), "user.message", "", {"text": text, "to": "lead"})


def test_the_digest_is_the_same_whatever_the_hash_seed() -> None:
    digests = set()
    for seed in ("0", "1", "77"):
        result = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent)},
            capture_output=True,
            check=True,
        )
        digests.add(result.stdout)
    assert len(digests) == 1


def test_the_digest_is_of_the_canonical_json_of_all_slices_by_name() -> None:
    fold = Fold(reducers())
    fold.apply(event(1, "ä"))
    text = '{"counts":{"by_kind":{"user.message":1}},"talk":{"agents":["lead"],"texts":["\\u00e4"]}}'
    assert fold.digest() == blake2b(text.encode(), digest_size=16).hexdigest()


def test_the_order_of_the_reducers_does_not_matter() -> None:
    one, other = Fold([TalkReducer(), CountReducer()]), Fold([CountReducer(), TalkReducer()])
    for fold in (one, other):
        fold.apply(event(1, "x"))
    assert one.digest() == other.digest()


def test_differences_name_the_slices() -> None:
    one, other = Fold(reducers()), Fold(reducers())
    one.apply(event(1, "x"))
    other.apply(event(1, "y"))
    for fold, digest, differing in (
        (other, other.digest(), ("talk",)),
        (one, one.digest(), ()),
        (one, "0" * 32, ("state",)),
    ):
        assert one.compare({"digest": digest, "slices": fold.digests()[1]}) == Comparison(differing, ())


def test_names_are_unique_and_an_unknown_one_is_refused() -> None:
    with pytest.raises(ValueError, match="share a name"):
        Fold([TalkReducer(), TalkReducer()])
    with pytest.raises(LogError, match="no part of the state is called 'goals'; there are: counts, talk"):
        Fold(reducers()).state("goals")
