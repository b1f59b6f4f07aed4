"""A Jupyter-native coding agent: the names that users import, loaded on first use so that `%load_ext` stays light."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from musecode_jupyter._version import __version__

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from musecode_jupyter.log import EventLog
    from musecode_jupyter.session import Session, open_session

__all__ = [
    "EventLog",
    "Session",
    "__version__",
    "load_ipython_extension",
    "open_session",
    "unload_ipython_extension",
]


def __getattr__(name: str) -> Any:
    if name == "EventLog":
        from musecode_jupyter.log import EventLog

        return EventLog
    if name in {"Session", "open_session"}:
        from musecode_jupyter import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics; prints nothing, starts nothing, costs nothing."""
    from musecode_jupyter.jupyter.extension import load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take back everything that `load_ipython_extension` and later magics added to this shell."""
    from musecode_jupyter.jupyter.extension import unload

    unload(shell)
