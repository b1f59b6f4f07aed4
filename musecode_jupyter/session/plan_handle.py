"""A plan as users hold it: await it, look at it, have it changed, answer, approve, run."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.core import SessionCore
from musecode_jupyter.session.preflight import GoalSpec
from musecode_jupyter.skills.plan_state import digest_now, document_of

if TYPE_CHECKING:
    from musecode_jupyter.session.api import GoalHandle, Session


@dataclass(frozen=True)
class PlanResult:
    """How a plan stands. `status` is writing, proposed, approved, rejected, cancelled or stopped.

    `digest` is what an approval is bound to, `document` the newest version as data (None: there is none yet).
    """

    status: str
    why: str
    version: int
    digest: str
    document: dict[str, Any] | None


class PlanHandle:
    """A plan; interrupting a wait leaves its writing going on. `number` is the seq of its plan.begun event."""

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.number = number
        # Of what was looked at last: an approval by this handle is bound to that.
        self._seen: str | None = None

    @property
    def result(self) -> PlanResult:
        """How the plan stands now."""
        return self._look()

    def _look(self) -> PlanResult:
        def look(core: SessionCore) -> PlanResult:
            record = core.plans.record(self.number)
            document = document_of(core.log, self.number)
            return PlanResult(
                record.status,
                record.why,
                record.version,
                digest_now(core.log, self.number),
                None if document is None else dict(document),
            )

        found = self.session.read(look)
        self._seen = found.digest or None
        return found

    @property
    def status(self) -> str:
        """writing, proposed, approved, rejected, cancelled or stopped."""
        return self.session.read(lambda core: core.plans.record(self.number).status)

    def wait(self, timeout: float | None = None) -> PlanResult:
        """Block until the plan is not written any more; TimeoutError after `timeout` seconds, and it goes on."""
        self.session.call(lambda core: core.plans.wait(self.number), timeout=timeout)
        return self._look()

    def __await__(self) -> Generator[Any, None, PlanResult]:
        return self._wait().__await__()

    async def _wait(self) -> PlanResult:
        await self.session.run(lambda core: core.plans.wait(self.number))
        return self._look()

    def markdown(self) -> str:
        """The plan as it stands, as Markdown; what a model wrote is escaped."""
        self._look()
        return self.session.read(lambda core: core.plans.markdown(self.number))

    def text(self, *, figures: bool = True) -> str:
        """The plan as it stands, as plain text; without `figures` nothing in it differs from run to run."""
        self._look()
        return self.session.read(lambda core: core.plans.text(self.number, figures=figures))

    def difference(self) -> str:
        """What the newest version changed of the one before it, as a unified diff; empty if there is none before it."""
        return self.session.read(lambda core: core.plans.difference(self.number))

    def edit(self, text: str = "") -> None:
        """Have the plan changed as `text` says, and by the answers to its questions."""
        self.session.call(lambda core: core.plans.edit(self.number, text))

    def resume(self) -> None:
        """Go on with the writing of a plan that was stopped or cut off."""
        self.session.call(lambda core: core.plans.resume(self.number))

    def answer(self, question: int, text: str) -> None:
        """Answer a question of the plan, counted from 1."""

        async def said(core: SessionCore) -> None:
            before = digest_now(core.log, self.number)
            core.plans.answer(self.number, question, text)
            await core.log.flush()
            # Whoever approves by this handle knows of the answers that were given by it.
            if self._seen == before:
                self._seen = digest_now(core.log, self.number)

        self.session.call(said)

    def approve(self, digest: str | None = None) -> str:
        """Agree to the plan with this `digest`, or to what this handle showed last; returns the digest.

        Raises UsageProblem if the plan is another one by now.
        """
        bound = digest if digest is not None else self._seen
        return self.session.call(lambda core: core.plans.approve(self.number, bound))

    def reject(self, why: str = "") -> None:
        """Say no to the plan, for good."""
        self.session.call(lambda core: core.plans.reject(self.number, why))

    def cancel(self) -> None:
        """End its writing, and want it no more."""
        self.session.call(lambda core: core.plans.cancel(self.number))

    def save(self, path: str) -> str:
        """Copy the plan as Markdown into the repository, where no such file is, if the user agrees."""
        return self.session.call(lambda core: core.plans.save(self.number, path))

    def moved(self) -> list[str]:
        """What has changed of that on which the plan rests."""
        return self.session.call(lambda core: core.plans.moved(self.number))

    def run(self, spec: GoalSpec | None = None) -> GoalHandle:
        """Start a goal that does what the approved plan says; `spec` has its limits, and other checks if it has any.

        Raises UsageProblem where the plan is not approved, Denied where its ground has moved and it is not to be run.
        """
        wanted = spec or GoalSpec("", ())
        if wanted.text or wanted.tasks:
            raise UsageProblem("A goal that runs a plan has its text and tasks from the plan.")
        number = self.session.call(lambda core: core.plans.run(self.number, wanted))
        return self.session.handle(number)

    def __repr__(self) -> str:
        return f"Plan(status={self.status!r})"
