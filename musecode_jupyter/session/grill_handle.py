"""An attack as users hold it: await it, look at what was found, answer, go on."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from musecode_jupyter.session.core import SessionCore
from musecode_jupyter.session.grill_text import by_angle, finding_shown, ranked
from musecode_jupyter.skills.grill_state import STANDS, grills_of

if TYPE_CHECKING:
    from musecode_jupyter.session.api import Session


@dataclass(frozen=True)
class GrillResult:
    """How an attack stands. `status` is running, ended or stopped.

    `findings` are those that stand, gravest first, as plain data; `angles` says what each came to. `resolved` and
    `remain` are the numbers of findings of before, `not_tried` the angles that could not be tried.
    """

    status: str
    why: str
    findings: tuple[dict[str, Any], ...]
    angles: dict[str, str]
    resolved: tuple[int, ...]
    remain: tuple[int, ...]
    not_tried: tuple[str, ...]


class GrillHandle:
    """An attack; interrupting a wait leaves it going on. `number` is the seq of its grill.begun event."""

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.number = number

    @property
    def result(self) -> GrillResult:
        """How it stands now."""
        return self.session.read(self._look)

    def _look(self, core: SessionCore) -> GrillResult:
        record = core.grills.record(self.number)
        mine = grills_of(core.log).of_scope(record.scope)
        stands = ranked((number, each) for number, each in mine.items() if each.state in STANDS)
        return GrillResult(
            record.status,
            record.why,
            tuple(finding_shown(number, each) for number, each in stands),
            by_angle(record, mine, self.number),
            tuple(record.resolved),
            tuple(record.remain),
            tuple(angle for angle, each in record.angles.items() if each.state in {"failed", "not tried"}),
        )

    @property
    def status(self) -> str:
        """running, ended or stopped."""
        return self.session.read(lambda core: core.grills.record(self.number).status)

    def wait(self, timeout: float | None = None) -> GrillResult:
        """Block until every angle was tried; TimeoutError after `timeout` seconds, and it goes on."""
        self.session.call(lambda core: core.grills.wait(self.number), timeout=timeout)
        return self.result

    def __await__(self) -> Generator[Any, None, GrillResult]:
        return self._wait().__await__()

    async def _wait(self) -> GrillResult:
        await self.session.run(lambda core: core.grills.wait(self.number))
        return self.result

    def text(self) -> str:
        """Findings, what was resolved, and what each angle came to, as plain text."""
        return self.session.read(lambda core: core.grills.text(self.number))

    def accept(self, finding: int) -> str:
        """Agree that a finding is a flaw: of a plan, it is mended by the next version."""
        return self._say(finding, "accept", "")

    def reject(self, finding: int, why: str = "") -> str:
        """Say that a finding is none; it is not raised again."""
        return self._say(finding, "reject", why)

    def answer(self, finding: int, text: str) -> str:
        """Say what you decide of a finding: it is a claim that agents can rely on."""
        return self._say(finding, "answer", text)

    def _say(self, finding: int, word: Literal["accept", "reject", "answer"], text: str) -> str:
        return self.session.call(lambda core: core.grills.answer(finding, word, text))

    def resume(self) -> None:
        """Go on with an attack that was stopped or cut off, or has angles that could not be tried."""
        self.session.call(lambda core: core.grills.resume(self.number))

    def stop(self) -> None:
        """End it where it is; `resume` goes on."""
        self.session.call(lambda core: core.grills.stop())

    def __repr__(self) -> str:
        return f"Grill(status={self.status!r})"
