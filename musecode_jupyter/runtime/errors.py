"""Every exception that users can meet; each message says what happened and what to do about it."""

from __future__ import annotations


class MuseError(Exception):
    """Base of all errors raised on purpose by this package; `str(error)` is one line fit to show a user."""


class UsageProblem(MuseError):
    """The user asked for something that cannot be understood or is not possible here."""


class ConfigurationError(MuseError):
    """A setting, key, model id, price or file is missing or wrong."""


class LogError(MuseError):
    """The event log cannot be read or written as asked."""


class LogLocked(LogError):
    """Another live process is the writer of this session."""


class LogDamaged(LogError):
    """The journal's hash chain is broken somewhere other than in its last, never acknowledged batch."""

    def __init__(self, message: str, *, segment: str, offset: int, last_good_seq: int) -> None:
        super().__init__(message)
        self.segment = segment
        self.offset = offset
        self.last_good_seq = last_good_seq


class LogReadOnly(LogError):
    """A write or sync failed earlier (or the session was opened for reading): nothing is written any more."""


class ModelError(MuseError):
    """A model call failed. `retryable` says whether the same request may be sent again.

    `may_cost` says that the provider may charge for it all the same: it had begun, or may have begun, to answer.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        may_cost: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after
        self.may_cost = may_cost


class BudgetExceeded(MuseError):
    """The next step would go over a budget. `scope` names which: usd, tokens, calls, steps or hours.

    `needed` is the least limit that would have let the step pass (of money, in micro-dollars), None where that is not
    known.
    """

    def __init__(self, message: str, *, scope: str, needed: float | None = None) -> None:
        super().__init__(message)
        self.scope = scope
        self.needed = needed


class Stuck(MuseError):
    """An agent's work does not move, though it was told so. `state` is that in which its goal stops."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)
        self.state = state


class ContextFull(MuseError):
    """An agent's conversation cannot be made short enough for its model; the user can say what may go."""


class TierBlocked(MuseError):
    """The gate did not send a prompt: a part of it may not go to the model; says which, why, and what to do."""


class WrongModel(MuseError):
    """Another model than the pinned one has answered: no call is made before the user has decided."""


class Denied(MuseError):
    """The policy or the user refused an action."""


class Stopped(MuseError):
    """The user ended the work that this waited for."""


class ToolProblem(MuseError):
    """A tool call cannot be carried out; the text is written for the model that made the call."""


class GitError(MuseError):
    """A git command failed, or the repository is not in a state in which the step is possible."""

    def __init__(
        self, message: str, *, args_run: tuple[str, ...] = (), code: int | None = None, stderr: str = ""
    ) -> None:
        super().__init__(message)
        self.args_run = args_run
        self.code = code
        self.stderr = stderr


class NoCheckout(GitError):
    """The folder is none in which a goal can work: no repository, a bare one, inside .git, or without a commit."""


class NoRepository(NoCheckout):
    """The folder is in no git repository at all, or in one without a commit: a private one can take its place."""
