"""The first program of every command: waits for the word to go, resets its signals, becomes the command.

Run as a script with a socket's descriptor as argument. Two reasons for it: nothing of the command runs before
its group is registered with the guardian; and ignored signals survive exec, so without the reset a command
would behave differently while a cell runs (ipykernel ignores SIGINT between cells) or after user code ignored
SIGCHLD.
"""

from __future__ import annotations

import os
import signal
import sys

_COMPLETE = b"go"


def encode(argv: list[bytes], env: dict[bytes, bytes]) -> bytes:
    """The message that starts a command; ValueError for a NUL, which no command line can carry."""
    fields = [str(len(argv)).encode(), *argv, *(name + b"=" + value for name, value in env.items())]
    if any(b"\0" in field for field in fields):
        raise ValueError("an argument or environment variable holds a NUL character")
    return b"\0".join([*fields, _COMPLETE])


def main(channel: int) -> None:
    """Become the command that arrives on `channel`; on failure answer with the error number."""
    os.set_inheritable(channel, False)
    message = bytearray()
    while chunk := os.read(channel, 65_536):
        message += chunk
    count, *fields = bytes(message).split(b"\0")
    if not fields or fields.pop() != _COMPLETE:  # the kernel is gone
        os._exit(1)
    argv, pairs = fields[: int(count)], fields[int(count) :]
    env = dict(pair.split(b"=", 1) for pair in pairs)
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(channel, str(error.errno).encode())
    os._exit(127)


if __name__ == "__main__":
    main(int(sys.argv[1]))
