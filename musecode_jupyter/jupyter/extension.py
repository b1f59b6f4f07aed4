"""Loading and unloading: registers the magics, and takes all of it back; imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_LOADED: dict[int, Any] = {}


def load(shell: InteractiveShell) -> None:
    """Register the magics with `shell`; starts nothing. Loading twice is the same as once."""
    from musecode_jupyter.jupyter.completion import MuseMatcher
    from musecode_jupyter.jupyter.magics import MuseMagics

    if id(shell) in _LOADED:
        return
    magics = MuseMagics(shell)
    matcher = MuseMatcher(magics).match
    _LOADED[id(shell)] = (magics, matcher, _names(shell, magics))
    shell.register_magics(magics)
    if shell.Completer is not None:
        shell.Completer.custom_matchers.append(matcher)


def unload(shell: InteractiveShell) -> None:
    """Take the magics back and close the session, if one is open; its goals can be resumed."""
    found = _LOADED.pop(id(shell), None)
    if found is None:
        return
    magics, matcher, before = found
    magics.close()
    if shell.Completer is not None and matcher in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.remove(matcher)
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
