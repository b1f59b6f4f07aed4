"""Blobs are found by their digest, private, whole or refused, and leave nothing half-written."""

from __future__ import annotations

import threading
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from musecode_jupyter.log import BlobRef, BlobStore
from musecode_jupyter.runtime.errors import LogError


@settings(max_examples=25)
@given(st.lists(st.binary(max_size=3000), max_size=5))
def test_what_is_put_is_got(tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]) -> None:
    store = BlobStore(tmp_path_factory.mktemp("s") / "blobs")
    refs = store.put_all(contents)
    assert [ref.size for ref in refs] == [len(content) for content in contents]
    assert [store.get(ref.digest) for ref in refs] == contents
    assert all(store.has(ref.digest) and store.check(ref) is None for ref in refs)
    assert list(store) == sorted({ref.digest for ref in refs})
    assert [BlobStore(store.folder).put(content) for content in contents] == refs


def test_a_blob_lies_under_its_digest_and_only_the_user_reads_it(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    ref = store.put(b"content")
    digest = blake2b(b"content", digest_size=32).hexdigest()
    path = tmp_path / "blobs" / digest[:2] / digest[2:]
    assert ref == BlobRef(digest, 7)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not list((tmp_path / "blobs" / "tmp").iterdir())


def test_a_damaged_blob_is_refused_and_written_anew_by_the_next_writer(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    ref = store.put(b"content")
    path = tmp_path / "blobs" / ref.digest[:2] / ref.digest[2:]
    for damaged in (b"CONTENT", b"", b"content and more"):
        path.write_bytes(damaged)
        with pytest.raises(LogError, match="is damaged"):
            store.get(ref.digest)
        assert store.check(ref) is not None
        assert BlobStore(store.folder).put(b"content") == ref
        assert store.get(ref.digest) == b"content"
    path.unlink()
    assert "missing" in str(store.check(ref))
    with pytest.raises(LogError, match="cannot be read"):
        store.get(ref.digest)


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n"])
def test_what_is_no_digest_names_no_file(tmp_path: Path, digest: str) -> None:
    store = BlobStore(tmp_path / "blobs")
    for ask in (store.get, store.has):
        with pytest.raises(LogError, match="not the digest of a blob"):
            ask(digest)


def test_several_threads_may_put_the_same_blobs(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    contents = [b"%d" % n for n in range(10)]
    threads = [threading.Thread(target=store.put_all, args=(contents,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(list(store)) == 10


def test_a_sweep_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    store.sweep()
    ref = store.put(b"kept")
    (tmp_path / "blobs" / "tmp" / "123-0").write_bytes(b"half")
    store.sweep()
    assert not list((tmp_path / "blobs" / "tmp").iterdir())
    assert store.get(ref.digest) == b"kept"
