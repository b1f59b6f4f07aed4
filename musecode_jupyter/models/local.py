"""Owns the child process that serves the embedded local model: started on first use, restarted if it died."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from musecode_jupyter.models.model_file import LocalModelFile
from musecode_jupyter.runtime.errors import ConfigurationError, ModelError
from musecode_jupyter.runtime.process import to_the_end

CONTEXT = 32_768
PROMPT_CACHE_MIB = 512
"""Of prompts put aside when another conversation takes the one slot; the server's own default is 8 GB."""

_SERVER = Path(__file__).with_name("local_server.py")


class LocalModel:
    """The local model server of one session. All methods belong to one event loop; `aclose` ends the child.

    The child also ends by itself when this process does, however that happens.

    Parameters
    ----------
    file
        The model file; must be there before `start`.
    alias
        The model's id in requests and answers.
    context
        Tokens that a conversation may have; memory grows with it (32k tokens take about 0.9 GB).
    threads
        Of the computation; the number of usable cores if None.
    prompt_cache
        MiB of memory for what the server knows of conversations that it is not at.
    deadline
        Seconds that loading may take.
    """

    def __init__(
        self,
        file: LocalModelFile,
        *,
        alias: str = "local",
        context: int = CONTEXT,
        threads: int | None = None,
        prompt_cache: int = PROMPT_CACHE_MIB,
        deadline: float = 120.0,
    ) -> None:
        self._file = file
        self._alias = alias
        self._context = context
        self._threads = threads or usable_cores()
        self._prompt_cache = prompt_cache
        self._deadline = deadline
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._log: IO[bytes] | None = None
        self._base_url = ""
        self._key = ""

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        return self._process.pid if self._running and self._process is not None else None

    @property
    def _running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> tuple[str, str]:
        """Start the server unless it runs; returns its base URL (with `/v1`) and its key.

        Raises
        ------
        ConfigurationError
            The runtime or the model file is missing.
        ModelError
            The server did not become healthy; kind is "local_server".
        """
        async with self._lock:
            if not self._running:
                await self._end()
                try:
                    await self._launch()
                except BaseException:
                    await asyncio.shield(self._end())
                    raise
            return self._base_url, self._key

    async def aclose(self) -> None:
        """End the server; it may be started again."""
        async with self._lock:
            await self._end()

    async def _launch(self) -> None:
        if importlib.util.find_spec("xllamacpp") is None:
            raise ConfigurationError(
                "the local model's runtime is not installed: run `pip install 'musecode-jupyter[local]'`, "
                "or choose another model"
            )
        path = self._file.require()
        self._key = secrets.token_hex(24)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _end
        # An environment of its own: the child needs no secret of the kernel, and idle threads must not spin.
        names = (
            "PATH",
            "HOME",
            "TMPDIR",
            "LANG",
            "LD_LIBRARY_PATH",
            "PYTHONPATH",
            "PYTHONHOME",
            "VIRTUAL_ENV",
        )
        env = {name: os.environ[name] for name in names if name in os.environ}
        env["OMP_WAIT_POLICY"] = "passive"

        async def begin() -> None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                str(_SERVER),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._log,
                env=env,
                # An interrupt of the kernel's terminal is not meant for the server.
                start_new_session=True,
            )

        # Never cut off in its middle: asyncio would then wait for pipes that were not connected yet.
        await to_the_end(begin())
        config = {
            "model": str(path.resolve()),
            "alias": self._alias,
            "key": self._key,
            "context": self._context,
            "threads": self._threads,
            "prompt_cache": self._prompt_cache,
        }
        answer = await self._first_line(config)
        if "base_url" not in answer:
            reason = answer.get("error") or "it ended while loading"
            raise ModelError(
                f"the local model server did not start: {reason}{self._log_tail()}; check that {path} "
                f"is a model that llama.cpp can load and that about {self._memory_gb(path):.1f} GB of memory "
                "are free",
                kind="local_server",
            )
        self._base_url = str(answer["base_url"])

    async def _first_line(self, config: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._deadline):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    process.stdin.write(json.dumps(config).encode() + b"\n")
                    await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            return {"error": f"it was not ready after {self._deadline:.0f} s"}
        answer: dict[str, Any] = json.loads(line) if line else {}
        return answer

    def _log_tail(self) -> str:
        assert self._log is not None
        self._log.seek(0)
        lines = [line for line in self._log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return f" ({lines[-1].strip()})" if lines else ""

    def _memory_gb(self, path: Path) -> float:
        return (path.stat().st_size + 30_000 * self._context) / 1e9

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if process.stdin is not None:
                process.stdin.close()
        if self._log is not None:
            self._log.close()
            self._log = None


def usable_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
