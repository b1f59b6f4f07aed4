"""The fold of where a session comes from: the sessions that it was forked from, and the one that it was rewound to."""

from __future__ import annotations

from pydantic import BaseModel, Field

from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.money import in_usd


class Origin(BaseModel):
    """A fork: events up to `at` are those of session `parent`, and what was spent by then is its spending too."""

    parent: str
    at: int
    microusd: int
    tokens: int
    calls: int
    rewind: bool = False

    @property
    def usd(self) -> float:
        """Money in USD."""
        return in_usd(self.microusd)


class LineageState(BaseModel):
    """`origins` from the oldest to the newest. `unsettled`: what was open at the newest fork is not settled yet."""

    origins: list[Origin] = Field(default_factory=list)
    unsettled: bool = False
    rewound_to: str = ""

    @property
    def forked_at(self) -> int:
        """The last event that is another session's; 0 if there is none."""
        return self.origins[-1].at if self.origins else 0


class LineageReducer:
    """Folds session.forked, session.settled and session.rewound."""

    name = "lineage"
    kinds = frozenset({"session.forked", "session.settled", "session.rewound"})

    def initial(self) -> LineageState:
        return LineageState()

    def apply(self, state: LineageState, event: Event) -> None:
        data = event.data
        if event.kind == "session.forked":
            state.origins.append(
                Origin(
                    parent=data["parent"],
                    at=data["seq"],
                    microusd=data["microusd"],
                    tokens=data["tokens"],
                    calls=data["calls"],
                    rewind=data["rewind"],
                )
            )
            state.unsettled, state.rewound_to = True, ""
        elif event.kind == "session.settled":
            state.unsettled = False
        elif event.kind == "session.rewound":
            state.rewound_to = data["session"]
