"""What agents may see of the user's notebook and do in it: the consent, and the answers to the notebook's tools.

Seeing needs the user's consent (`%muse cells on`). One exception: a question of `%muse ask` that is clearly about the
cell that failed just before carries that cell and its traceback, since it is the user who asks about it, unless the
user has said `%muse cells off`; what goes along is told in one line.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import re
from collections.abc import Callable
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from musecode_jupyter.jupyter.cells import Cell, CellBook, overview
from musecode_jupyter.jupyter.user_code import CodeRequest, CodeResult, UserCode
from musecode_jupyter.jupyter.variables import summarise_variables, variables_text
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.notebook import Proposal
from musecode_jupyter.tools.pictures import MOST_AT_ONCE, PictureFile
from musecode_jupyter.tools.registry import Outcome

if TYPE_CHECKING:
    from musecode_jupyter.jupyter.control import Control

NOT_ALLOWED = (
    "The user has not allowed agents to see the notebook. Say what you would need to see; `%muse cells on` allows it."
)
HOW_TO_ALLOW = "The last cell failed. `%muse cells on` lets agents see cells and variables."
# In an overview the newest cells are told in full, as far as they fit into so many characters.
IN_FULL = 12_000
_ABOUT = re.compile(
    r"\b(?:cell|errors?|exception|traceback|wrong|fail(?:s|ed|ing|ure)?|brok(?:e|en)|crash(?:es|ed)?|bug|debug|fix"
    r"|raised?)\b|\b(?:why|what)\b.*\b(?:this|that|it|happened)\b",
    re.IGNORECASE | re.DOTALL,
)


class NotebookAccess:
    """The notebook of one shell, as the tools ask for it. Its async methods are used on the runtime thread."""

    def __init__(self, shell: Any, allowed: bool | None = None) -> None:
        self._shell = shell
        self.allowed = allowed
        self.book = CellBook(shell)
        self.code = UserCode(shell)
        self.control: Control | None = None
        self.told: list[str] = []
        """Proposals that the user has not been shown as text yet."""
        self._next_cells: list[str] = []

    def attach(self) -> None:
        """Begin to follow the cells."""
        self.book.attach()
        self.code.attach()
        self._shell.events.register("post_run_cell", self._offer_next_cell)

    def detach(self) -> None:
        """Take back all of `attach`."""
        self._shell.events.unregister("post_run_cell", self._offer_next_cell)
        self.code.detach()
        self.book.detach()

    def about(self, question: str) -> tuple[Cell | None, str]:
        """The cell that goes with a question, if one does, and a line that tells the user about it."""
        cell = self.book.failed()
        if cell is None:
            return None, ""
        if self.allowed or (self.allowed is None and (_ABOUT.search(question) or cell.ename in question)):
            return cell, f"With the question goes the cell that failed ({cell.ename}), and its traceback."
        return None, HOW_TO_ALLOW if self.allowed is None else ""

    async def cells(self, cell: str | None) -> Outcome:
        self._need_consent()
        return self.seen(cell)

    def seen(self, name: str | None) -> Outcome:
        """What agents see of one cell, or of all; ToolProblem if there is no such cell."""
        if name:
            one = self._find(name)
            return Outcome(one.text(), pictures=one.pictures())
        cells = self.book.cells()
        full: list[str] = []
        pictures: list[PictureFile] = []
        for cell in reversed([cell for cell in cells if not cell.ours]):
            text = cell.text()
            if sum(map(len, full)) + len(text) > IN_FULL:
                break
            full.insert(0, text)
            pictures = [*cell.pictures(), *pictures][-MOST_AT_ONCE:]
        return Outcome("\n\n".join([overview(cells), *full]), pictures=tuple(pictures))

    async def variables(self, names: str) -> str:
        self._need_consent()
        return self.variables_text(names)

    def variables_text(self, names: str) -> str:
        """What agents see of the variables."""
        hidden = self._shell.user_ns_hidden
        return variables_text(*summarise_variables(self._shell.user_ns, pattern=names, hidden=hidden))

    async def run_code(
        self, code: str, *, own: bool, keep: tuple[str, ...], limit: float, on_state: Callable[[str], None]
    ) -> Outcome:
        if not self.code.possible:
            raise ToolProblem("This IPython is no Jupyter kernel: ask the user to type `%muse run CODE`.")
        loop = asyncio.get_running_loop()

        def post(state: str) -> None:
            # In an empty context: that of a cell's thread would bind what is logged to the cell.
            loop.call_soon_threadsafe(partial(on_state, state), context=Context())

        future = self.code.submit(CodeRequest(code, own, keep, limit), post)
        try:
            return outcome_of(await asyncio.wrap_future(future))
        except asyncio.CancelledError:
            self.code.stop(future)
            raise

    async def proposal(self, cell: str | None, after: str | None, source: str) -> Proposal:
        self._need_consent()
        before = self._find(cell).source if cell else ""
        if after:
            self._find(after)
        name = f"cell {cell}" if cell else "new cell"
        lines = difflib.unified_diff(
            before.splitlines(), source.splitlines(), name if cell else "/dev/null", name, lineterm=""
        )
        return Proposal(cell, after, before, source, "\n".join(lines))

    async def front_end(self) -> bool:
        return self.control is not None and await self.control.front_end()

    async def propose(self, proposal: Proposal, why: str) -> str:
        if self.control is not None and await self.control.front_end():
            return await self.control.apply(proposal)
        self._next_cells.append(proposal.source)
        self.told.append(f"{why}\n{proposal.diff}".strip())
        return "The proposal is shown to the user, as a new cell where the front end makes one. The user decides."

    def open_documents(self) -> list[Path]:
        name = os.environ.get("JPY_SESSION_NAME", "")
        found = [Path(name)] if name.endswith(".ipynb") else []
        return [*found, *(self.control.documents() if self.control is not None else ())]

    def _need_consent(self) -> None:
        if not self.allowed:
            raise ToolProblem(NOT_ALLOWED)

    def _find(self, name: str) -> Cell:
        cell = self.book.find(name)
        if cell is None:
            raise ToolProblem(
                f"There is no cell {name!r} any more, or it never ran in this kernel. `cells` lists them."
            )
        return cell

    def _offer_next_cell(self, _result: object) -> None:
        if self._next_cells:
            # One for each cell that ends: a front end makes one new cell from an answer.
            self._shell.set_next_input(self._next_cells.pop(0))


def outcome_of(result: CodeResult) -> Outcome:
    """The result of code as the model sees it."""
    output = result.output if not result.output or result.output.endswith("\n") else f"{result.output}\n"
    kept = f"; kept: {', '.join(result.kept)}" if result.kept else ""
    return Outcome(
        f"{output}[{result.ended}{kept}]",
        ok=result.ended == "finished",
        seconds=result.seconds,
        pictures=result.pictures,
    )
