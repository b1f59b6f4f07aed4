"""Loading and unloading: registers the magics, and takes all of it back; imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_LOADED: dict[int, Any] = {}


def load(shell: InteractiveShell) -> None:
    """Register the magics with `shell`; starts nothing. Loading twice is the same as once."""
    from musecode_jupyter.jupyter.magics import MuseMagics

    if id(shell) in _LOADED:
        return
    magics = MuseMagics(shell)
    _LOADED[id(shell)] = (magics, _names(shell, magics))
    shell.register_magics(magics)


def unload(shell: InteractiveShell) -> None:
    """Take the magics back and close the session, if one is open; its goals can be resumed."""
    found = _LOADED.pop(id(shell), None)
    if found is None:
        return
    magics, before = found
    magics.close()
    for kind, names in before.items():
        table = shell.magics_manager.magics[kind]
        for name, previous in names.items():
            if previous is None:
                table.pop(name, None)
            else:
                table[name] = previous
    shell.magics_manager.registry.pop(type(magics).__name__, None)
    if magics in shell.configurables:
        shell.configurables.remove(magics)


def _names(shell: InteractiveShell, magics: Any) -> dict[str, dict[str, Any]]:
    """What each of our names stood for before, by kind of magic."""
    return {
        kind: {name: shell.magics_manager.magics[kind].get(name) for name in names}
        for kind, names in magics.magics.items()
    }
