"""The child process that serves the embedded local model on loopback, and ends when its parent does.

Run as a file, not as a module: it imports nothing of this package, so that it starts fast. The first line of
its standard input is a JSON object with `model` (path), `alias`, `key`, `context` (tokens), `threads` and
`prompt_cache` (MiB); afterwards the parent holds the pipe open, and its end is the order to end. The one line on
standard output is `{"base_url": ...}` or `{"error": ...}`.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
import urllib.request
from typing import Any

_HEALTH_DEADLINE = 60.0


def main() -> int:
    """Serve until the parent ends."""
    parent = os.getppid()
    # Nobody reads the pipe after the one line, so whatever else is printed goes where the errors go.
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    config = json.loads(sys.stdin.readline() or "{}")
    if not config:
        return 2
    try:
        import xllamacpp
    except ImportError as error:
        _say(answer, error=f"xllamacpp cannot be imported: {error}")
        return 3
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    try:
        server = xllamacpp.Server(_params(xllamacpp, config))
        address = str(server.listening_address)
        _wait_until_healthy(address)
    except Exception as error:
        _say(answer, error=f"{type(error).__name__}: {error}")
        return 1
    _say(answer, base_url=f"{address}/v1")
    threading.Event().wait()
    return 0


def _params(xllamacpp: Any, config: dict[str, Any]) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = config["model"]
    params.model_alias = {config["alias"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [config["key"]]
    params.n_ctx = config["context"]
    params.n_parallel = 1
    params.cpuparams.n_threads = config["threads"]
    params.cpuparams_batch.n_threads = config["threads"]
    params.cache_ram_mib = config["prompt_cache"]
    params.ui = False
    params.endpoint_slots = False
    params.verbosity = 1
    return params


def _wait_until_healthy(address: str) -> None:
    deadline = time.monotonic() + _HEALTH_DEADLINE
    # A proxy of the environment must not be asked for a loopback address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(f"{address}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def _end_with_parent(parent: int) -> None:
    """End the process once the parent's end of the pipe closes or the parent is another one.

    The second check is for a parent that forked: its child keeps the pipe open after the parent has died.
    """
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin], [], [], 1.0)
        if readable and not os.read(sys.stdin.fileno(), 4096):
            break
    os._exit(0)


def _say(answer: int, **content: str) -> None:
    os.write(answer, json.dumps(content).encode() + b"\n")


if __name__ == "__main__":
    # The server's threads do not end on request; there is nothing to save.
    os._exit(main())
