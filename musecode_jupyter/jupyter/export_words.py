"""`%muse export`: the session of this notebook as one file."""

from __future__ import annotations

import contextlib
import os
import shlex

from musecode_jupyter.jupyter.host import Host
from musecode_jupyter.runtime.errors import LogReadOnly, UsageProblem
from musecode_jupyter.session.visible import visible_text

_OPTIONS = frozenset({"--redacted", "--force"})


def export(host: Host, rest: str) -> None:
    """Write the open session to a file: FORMAT PATH [--redacted] [--force]."""
    from musecode_jupyter.log.redaction import Redactor
    from musecode_jupyter.models.endpoint import secrets
    from musecode_jupyter.session.export import FORMATS, STDOUT
    from musecode_jupyter.session.export import export as write

    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise UsageProblem(f"{error}: close the quotation.") from None
    options = {word for word in words if word.startswith("--")}
    words = [word for word in words if word not in options]
    if len(words) != 2 or STDOUT in words or options - _OPTIONS:
        raise UsageProblem(f"%muse export takes FORMAT PATH [--redacted] [--force]; formats: {', '.join(FORMATS)}.")
    session = host.opened()
    # A log that cannot be written any more can be read, up to what is on the disk.
    with contextlib.suppress(LogReadOnly):
        session.events(session.log.last_seq)
    done = write(
        session.folder,
        words[0],
        words[1],
        key=os.urandom(32) if "--redacted" in options else None,
        force="--force" in options,
        redactor=Redactor(secrets(os.environ)),
    )
    print(f"{done.events} events in {visible_text(done.path)}.")
    for note in done.notes:
        print(visible_text(note))
