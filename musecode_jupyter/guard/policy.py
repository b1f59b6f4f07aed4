"""Decides what an agent may do without asking: a pure function of the mode, the typed verify commands and the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from musecode_jupyter.log.events import canonical
from musecode_jupyter.runtime.errors import ConfigurationError

Mode = Literal["ask", "deny", "allow-workspace"]
MODES: tuple[Mode, ...] = ("ask", "deny", "allow-workspace")


@dataclass(frozen=True)
class Verdict:
    """`rule` names what decided, in words for the log and the user."""

    decision: Literal["allow", "deny", "ask"]
    rule: str


def parse_mode(text: str) -> Mode:
    """The approvals mode called `text`; ConfigurationError lists those that there are."""
    for mode in MODES:
        if text == mode:
            return mode
    raise ConfigurationError(f"Unknown approvals mode {text!r}: MUSECODE_APPROVALS is one of {', '.join(MODES)}.")


def action_digest(action: str, shown: Mapping[str, Any]) -> str:
    """Digest of all that was shown and all that will happen; any change of it voids an approval."""
    return blake2b(canonical({"action": action, **_sorted(shown)}).encode("ascii"), digest_size=16).hexdigest()


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [_sorted(item) for item in value]
    return value


@dataclass(frozen=True)
class Policy:
    """The mode and whether anybody can be asked. With nobody there, "ask" is a refusal that says so."""

    mode: Mode
    interactive: bool

    def tool(
        self,
        effect: str,
        *,
        arguments: Mapping[str, Any],
        isolated: bool,
        typed: Set[str],
        covered: str | None,
    ) -> Verdict:
        """Verdict on a tool call.

        `isolated` says whether it acts in an agent's own worktree, `typed` are commands that the user typed,
        `covered` names the rules that cover the call.
        """
        if effect == "read":
            return Verdict("allow", "reads inside the repository")
        if effect == "write":
            if isolated:
                return Verdict("allow", "writes inside the agent's own worktree")
            return Verdict("deny", "no agent edits your checkout; %goal works in a worktree")
        if arguments.get("command") in typed:
            return Verdict("allow", "verify command typed by the user")
        if covered is None and not isolated and self.mode == "allow-workspace":
            return Verdict("deny", "allow-workspace covers an agent's own worktree, not your checkout or kernel")
        return self._otherwise(covered)

    def landing(self, covered: str | None) -> Verdict:
        """Verdict on landing a commit on the user's branch; `covered` names the rule that covers it."""
        return self._otherwise(covered)

    def acceptance(self, commands: Sequence[str], covered: Mapping[str, str]) -> Verdict:
        """Verdict on running acceptance commands that a model proposed, in clean checkouts: on all of them together.

        `covered` has, by command, the rules that cover it; the question, if there is one, is about the others.
        """
        if all(command in covered for command in commands):
            return Verdict("allow", ", ".join(dict.fromkeys(covered[command] for command in commands)) or "none is new")
        return self._otherwise(None)

    def _otherwise(self, covered: str | None) -> Verdict:
        if covered is not None:
            return Verdict("allow", covered)
        if self.mode == "allow-workspace":
            return Verdict("allow", "approvals mode allow-workspace")
        if self.mode == "deny":
            return Verdict("deny", "approvals mode deny")
        if not self.interactive:
            return Verdict("deny", "nobody can be asked here (set MUSECODE_APPROVALS=allow-workspace to allow)")
        return Verdict("ask", "approvals mode ask")
