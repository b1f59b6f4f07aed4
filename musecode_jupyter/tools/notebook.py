"""The agents' tools for the user's notebook: `cells`, `variables`, `run_in_kernel`, `propose_cell`; a guarded `edit`.

What they need of the notebook is handed down as a `Notebook`; without one, agents are not offered these tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import AliasChoices, Field, field_validator

from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.builtin import EDIT
from musecode_jupyter.tools.pictures import PictureFile
from musecode_jupyter.tools.registry import Arguments, Outcome, Tool, ToolContext, Write

DEFAULT_CODE_S = 60.0
RUN_IN_KERNEL = "run_in_kernel"


@dataclass(frozen=True)
class Proposal:
    """A new source for a cell (`cell` is its id), or a new cell; `before` is what it replaces, `diff` unified."""

    cell: str | None
    after: str | None
    before: str
    source: str
    diff: str


@dataclass(frozen=True)
class AttachedCell:
    """A cell that goes with a question: its id, what agents see of it, its pictures."""

    id: str
    text: str
    pictures: tuple[PictureFile, ...] = ()


class Notebook(Protocol):
    """The user's notebook, asked on the runtime thread. What is not possible raises ToolProblem, which says why."""

    async def cells(self, cell: str | None) -> Outcome:
        """One cell in full, or an overview of all with the newest in full; with their newest pictures."""
        ...

    async def variables(self, names: str) -> str:
        """Summaries of the variables whose names match."""
        ...

    async def run_code(
        self, code: str, *, own: bool, keep: tuple[str, ...], limit: float, on_state: Callable[[str], None]
    ) -> Outcome:
        """Run code between the user's cells; `on_state` is called with "waiting" and "running", on this thread."""
        ...

    async def proposal(self, cell: str | None, after: str | None, source: str) -> Proposal:
        """What a proposal would change."""
        ...

    async def front_end(self) -> bool:
        """Whether a front end is there that changes cells once the user agrees. Otherwise a proposal becomes a new
        cell, and running that is the user's answer."""
        ...

    async def propose(self, proposal: Proposal, why: str) -> str:
        """Bring the proposal to the notebook; returns what became of it."""
        ...

    def open_documents(self) -> list[Path]:
        """Files of the notebooks that are known to be open."""
        ...


class CellsArguments(Arguments):
    """Arguments of `cells`."""

    cell: str | None = Field(default=None, description="Id of one cell, or In[3]; none: an overview of all cells")


class VariablesArguments(Arguments):
    """Arguments of `variables`."""

    names: str = Field(default="", description="Names or patterns between commas, for example x,loss_*; none: all")


class CodeArguments(Arguments):
    """Arguments of `run_in_kernel`."""

    code: str = Field(description="Python code, without await at the top level", min_length=1)
    namespace: Literal["copy", "own"] = Field(
        default="copy",
        description="copy: reads the user's variables, what it assigns stays apart; own: assigns the user's variables",
    )
    keep: list[str] = Field(default_factory=list, description="Names that the user's namespace gets at the end")
    timeout: float = Field(default=DEFAULT_CODE_S, gt=0, le=86_400, description="Limit of its running time in seconds")

    @field_validator("keep")
    @classmethod
    def _names(cls, names: list[str]) -> list[str]:
        for name in names:
            if not name.isidentifier() or name.startswith("_") or name in {"In", "Out"}:
                raise ValueError(f"{name!r} is no name that can be kept")
        return names


class ProposalArguments(Arguments):
    """Arguments of `propose_cell`."""

    source: str = Field(description="The whole new source of the cell")
    cell: str | None = Field(
        default=None,
        description="Id of the cell to change; none: a new cell",
        validation_alias=AliasChoices("cell", "cell_id"),
    )
    after: str | None = Field(default=None, description="Id of the cell below which a new cell goes; none: at the end")
    why: str = Field(default="", description="One sentence for the user")


def notebook_tools(notebook: Notebook) -> tuple[Tool, ...]:
    """The tools, and `edit` with a guard before open notebooks; they take the place of others of the same name."""

    async def cells(_context: ToolContext, arguments: CellsArguments) -> Outcome:
        return await notebook.cells(arguments.cell)

    async def variables(_context: ToolContext, arguments: VariablesArguments) -> Outcome:
        return Outcome(await notebook.variables(arguments.names))

    async def run(context: ToolContext, arguments: CodeArguments) -> Outcome:
        held_up = False

        def on_state(state: str) -> None:
            # Events and the agent's state, so that what holds the code up can be seen.
            nonlocal held_up
            post, cause = context.log.post, (context.call,)
            why = "waits for the running cell" if state == "waiting" else ""
            if state == "waiting":
                post("kernel.waiting", {"call": context.call, "why": why}, agent=context.agent, cause=cause)
            else:
                post("kernel.running", {"call": context.call}, agent=context.agent, cause=cause)
            if state == "waiting" or held_up:
                held_up = state == "waiting"
                shown = {"state": "waiting" if held_up else "running", "why": why}
                post("agent.state", shown, agent=context.agent, cause=cause)

        return await notebook.run_code(
            arguments.code,
            own=arguments.namespace == "own",
            keep=tuple(arguments.keep),
            limit=arguments.timeout,
            on_state=on_state,
        )

    async def propose(_context: ToolContext, arguments: ProposalArguments) -> Outcome:
        proposal = await notebook.proposal(arguments.cell, arguments.after, arguments.source)
        return Outcome(await notebook.propose(proposal, arguments.why))

    async def shown_proposal(arguments: ProposalArguments) -> Mapping[str, Any]:
        proposal = await notebook.proposal(arguments.cell, arguments.after, arguments.source)
        place = {"cell": proposal.cell} if proposal.cell else {"new_cell_below": proposal.after or "the last cell"}
        return {"tool": "propose_cell", **place, "diff": proposal.diff, "why": arguments.why}

    async def guarded_edit(context: ToolContext, arguments: Any) -> Write:
        _refuse_open(notebook, context, str(arguments.path))
        assert EDIT.plan is not None
        return await EDIT.plan(context, arguments)

    return (
        Tool(
            name="cells",
            description="Show the cells of the user's notebook: sources, outputs with pictures, errors with traceback.",
            arguments=CellsArguments,
            effect="read",
            run=cells,
        ),
        Tool(
            name="variables",
            description="Summarise the user's variables: type, shape, dtype, device, size. Never their content.",
            arguments=VariablesArguments,
            effect="read",
            run=variables,
        ),
        Tool(
            name=RUN_IN_KERNEL,
            description="Run Python code in the user's kernel, between two cells; the user is asked first. "
            "Shows what it prints, and the value of a last expression.",
            arguments=CodeArguments,
            effect="process",
            run=run,
            where="kernel",
            shown=shown_code,
        ),
        Tool(
            name="propose_cell",
            description="Propose a new source for a cell, or a new cell. The user sees it and decides.",
            arguments=ProposalArguments,
            effect="process",
            run=propose,
            where="kernel",
            shown=shown_proposal,
            harmless=partial(_harmless, notebook),
        ),
        replace(EDIT, plan=guarded_edit),
    )


async def _harmless(notebook: Notebook) -> str:
    return "" if await notebook.front_end() else "a new cell, which changes nothing until the user runs it"


async def shown_code(arguments: CodeArguments) -> Mapping[str, Any]:
    """All that is asked for approval: the code itself, and where what it assigns goes."""
    return {"tool": RUN_IN_KERNEL, **arguments.model_dump(mode="json")}


def refused_document(notebook: Notebook, root: Path, checkout: Path | None, path: str) -> Path | None:
    """The open notebook that `path` in the worktree `root`, or its counterpart in the user's checkout, is; or None."""
    here = {(top / path).resolve() for top in (root, checkout) if top is not None}
    return next((document for document in notebook.open_documents() if is_document(document, here)), None)


def is_document(document: Path, places: set[Path]) -> bool:
    """Whether the open `document` is one of the files `places`, which are resolved.

    A page knows a notebook by its path below a folder that the kernel does not know: then the end of the path decides.
    """
    if document.is_absolute():
        return document.resolve() in places
    return any(place.parts[-len(document.parts) :] == document.parts for place in places)


def _refuse_open(notebook: Notebook, context: ToolContext, path: str) -> None:
    place = context.place
    if path.endswith(".ipynb") and refused_document(notebook, place.root, place.checkout, path) is not None:
        raise ToolProblem(
            f"{path} is open in the user's notebook, which would overwrite it or lose its own changes. "
            "Propose its cells with propose_cell instead."
        )
