"""What the events of the checks beside the work say; as `kinds`, of which they are a part."""

from __future__ import annotations

from pydantic import Field

from musecode_jupyter.log.payload import Check, Payload


class Turned(Payload):
    """A command whose outcome is another one than before."""

    command: str
    passed: bool = Field(description="whether it passes now")


class ChecksBegun(Payload):
    """An agent has gone on to something else after changes of files: the verifier runs what the work is to pass."""

    goal: int
    task: int | None = None
    worktree: int
    agent: str = Field(description="whose work it is")
    commands: list[str] = Field(description="those of the work itself, then those of landed tasks that it touches")
    left_out: list[str] = Field(
        default_factory=list, description="commands that took too long the last time, or are flaky"
    )


class ChecksEnded(Payload):
    """The verifier is done, or gave up."""

    begun: int = Field(description="its checks.begun")
    tree: str | None = Field(default=None, description="what was checked, in a clean checkout")
    checks: list[Check] = Field(default_factory=list, description="none: this tree was checked before")
    turned: list[Turned] = Field(default_factory=list, description="from red to green, or back")
    flaky: list[str] = Field(
        default_factory=list, description="commands that failed, and passed when run again on the same files"
    )
    why: str = Field(default="", description="why it did not come to its end; empty: it did")
    again: bool = Field(default=False, description="the changes count as not checked")


VERIFIER_KINDS: dict[str, type[Payload]] = {"checks.begun": ChecksBegun, "checks.ended": ChecksEnded}
