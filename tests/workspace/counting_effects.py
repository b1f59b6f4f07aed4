"""The real effects, which keep the commands that they were asked to run."""

from __future__ import annotations

from musecode_jupyter.runtime.command import Command, CommandAnswer
from musecode_jupyter.runtime.effects import LiveEffects


class CountingEffects(LiveEffects):
    """Counts nothing but what starts a process: work on the disk is not in `commands`."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[tuple[str, ...]] = []

    async def ask(self, command: Command) -> CommandAnswer:
        self.commands.append(command.argv)
        return await super().ask(command)
