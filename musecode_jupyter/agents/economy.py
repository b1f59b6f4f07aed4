"""What a persistent agent costs and what a cold one would: keep, compact, re-seed or retire, from the ledger; pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from pydantic import BaseModel, Field

from musecode_jupyter.log.events import Event
from musecode_jupyter.models.prices import Price
from musecode_jupyter.runtime.money import in_usd
from musecode_jupyter.tools.state import CLOSING

Action = Literal["keep", "compact", "reseed", "retire"]

CACHE_S = 300.0
"""So long a provider keeps an unused prefix at least: what Anthropic publishes for its cheaper kind of caching."""
REQUESTS = 8.0
"""Requests of a piece of work, as long as an agent has done none."""
READ_PER_ROUND = 12_000
"""Tokens that an agent reads in one answer's calls, when it looks for its way."""
ROUND_OUTPUT = 300
SUMMARY_OUTPUT = 1_000
LOST = 0.3
"""Of what it read, this share has to be read again after a summary, ..."""
LOST_ANEW = 0.6
"""... and this after a new beginning from facts."""

# Their files are counted by themselves, or nobody would make the call again.
_OF_FILES = frozenset({"read", "edit"})
_BYTES_PER_TOKEN = 3.5
_MOST_SHOWN = 64_000
_MILLION = 1e6
# Of what an agent saw, the newest things that are counted, and the characters by which a call is known.
_OBSERVED = 1_000
_NAME = 120
# Pieces of work that are remembered, and of which what is read by the way is judged.
_PIECES = 20
_PIECES_TO_JUDGE = 2
_NEWEST_PIECES = 3


@dataclass(frozen=True)
class Numbers:
    """What a decision is made from. Tokens: `held` in its prompt now, `cold` in that of a new agent once it has read
    what it needs of that which this one read, `head` of instructions and tools, `carried` in its prompt after a
    re-seed, `kept` after a compaction. `requests` are expected in the work to come; `warm` says that the provider still
    has its prompt cached.
    """

    held: int
    cold: int
    head: int
    carried: int
    kept: int
    requests: float
    warm: bool
    price: Price


@dataclass(frozen=True)
class Decision:
    """What is to be done, and what each way would cost in USD over the work to come; `retire` is a new agent's cost."""

    action: Action
    keep: float
    compact: float
    reseed: float
    retire: float

    def told(self, numbers: Numbers) -> dict[str, float]:
        """All of it, as an event records it."""
        plain = {name: float(value) for name, value in asdict(numbers).items() if name != "price"}
        price = {f"price_{name}": float(value) for name, value in asdict(numbers.price).items()}
        costs = {f"usd_{name}": round(value, 9) for name, value in asdict(self).items() if name != "action"}
        return {**plain, **price, **costs}


def decide(numbers: Numbers, allowed: tuple[Action, ...] = ("keep", "compact", "reseed", "retire")) -> Decision:
    """Keep the agent as it is while that costs no more than a new one; otherwise the cheapest of what is `allowed`.

    With nothing to come it is to be retired, if that is allowed.
    """
    costs: dict[Action, float] = {
        "keep": _keep(numbers),
        "compact": _compact(numbers),
        "reseed": _reseed(numbers),
        "retire": cold_cost(numbers),
    }
    if numbers.requests <= 0 and "retire" in allowed:
        action: Action = "retire"
    elif costs["keep"] <= costs["retire"]:
        action = "keep"
    else:
        action = min(allowed, key=lambda each: costs[each])
    return Decision(action, costs["keep"], costs["compact"], costs["reseed"], costs["retire"])


def _again(tokens: float, requests: float, price: Price) -> float:
    """USD of `requests` requests with a prompt of `tokens` that is cached."""
    return max(0.0, requests) * tokens * price.cached / _MILLION


def _first(tokens: float, price: Price, *, warm: bool) -> float:
    return tokens * (price.cached if warm else price.input) / _MILLION


def _keep(numbers: Numbers) -> float:
    price = numbers.price
    if numbers.requests <= 0:
        return 0.0
    return _first(numbers.held, price, warm=numbers.warm) + _again(numbers.held, numbers.requests - 1, price)


def _compact(numbers: Numbers) -> float:
    price = numbers.price
    summary = _first(numbers.held, price, warm=numbers.warm) + SUMMARY_OUTPUT * price.output / _MILLION
    return summary + _shorter(numbers, numbers.kept, LOST)


def _reseed(numbers: Numbers) -> float:
    return _shorter(numbers, numbers.carried, LOST_ANEW)


def _shorter(numbers: Numbers, tokens: int, lost: float) -> float:
    """USD of the work to come with a new prompt of `tokens`, and a share of what was read to be read again."""
    price = numbers.price
    reading = lost * max(0, numbers.cold - numbers.head)
    return (
        _first(tokens, price, warm=False)
        + _reading(tokens, reading, price)
        + _again(tokens + reading, numbers.requests - 1, price)
    )


def cold_cost(numbers: Numbers) -> float:
    """USD that a new agent would cost in the work to come: it reads first, with a growing prompt, then works."""
    price, reading = numbers.price, max(0, numbers.cold - numbers.head)
    return (
        _first(numbers.head, price, warm=False)
        + _reading(numbers.head, reading, price)
        + _again(numbers.cold, numbers.requests, price)
    )


def _reading(before: float, tokens: float, price: Price) -> float:
    """USD for reading `tokens` on top of a prompt of `before`, some at a time: each time all of it is sent again."""
    rounds = tokens / READ_PER_ROUND
    again = rounds * (before + tokens / 2) * price.cached
    return (tokens * price.input + again + rounds * ROUND_OUTPUT * price.output) / _MILLION


class ModelUse(BaseModel):
    """What one agent used of one model. `estimated` counts calls without a usage, whose `input` is their reserve."""

    input: int = 0
    cached: int = 0
    output: int = 0
    microusd: int = 0
    calls: int = 0
    estimated: int = 0

    @property
    def usd(self) -> float:
        """Money in USD."""
        return in_usd(self.microusd)


class AgentUse(BaseModel):
    """`observed` has the tokens of each thing that the agent saw: files by path, what else it called by what it called.
    `head` are those of its instructions and tools, `calls` the calls whose output is awaited.

    `cold_tokens` and `cold_usd` are what new agents would have read, and paid for it, had each piece of work after the
    first been given to one, and had it read again what this one had read; `begins` counts the pieces of work: goals,
    tasks, questions, reviews. `pieces` has the tokens that were read in each of the newest of them, since the agent is
    there; the last may go on yet.
    """

    models: dict[str, ModelUse] = Field(default_factory=dict)
    observed: dict[str, int] = Field(default_factory=dict)
    calls: dict[int, str] = Field(default_factory=dict)
    head: int = 0
    begins: int = 0
    pieces: list[int] = Field(default_factory=list)
    cold_tokens: int = 0
    cold_usd: float = 0.0

    def saw(self, what: str, size: int) -> None:
        """Count `size` bytes, in place of what was counted before of the same thing."""
        self.observed.pop(what, None)
        self.observed[what] = int(size / _BYTES_PER_TOKEN)
        if self.pieces:
            self.pieces[-1] += self.observed[what]
        if len(self.observed) > _OBSERVED:
            del self.observed[next(iter(self.observed))]

    @property
    def cold(self) -> int:
        """Tokens that a new agent would have once it had read what this one read."""
        return self.head + sum(self.observed.values())

    def needed(self, begun: bool) -> int:
        """Tokens that a new agent would have once it had read what the next piece of work needs and this one knows.

        What work needs is taken to be the most that was read in a piece; what this one does not know of it, the mean
        of what it read in the newest pieces after its first. Until there were two, all that it read may be needed. With
        `begun` the last piece is the next one, and tells nothing yet.
        """
        done = self.pieces[: len(self.pieces) - begun]
        if len(done) < _PIECES_TO_JUDGE:
            return self.cold
        newest = done[1:][-_NEWEST_PIECES:]
        return min(self.cold, self.head + max(0, max(done) - sum(newest) // len(newest)))


class EconomyState(BaseModel):
    """`agents` by name; `open` has the model of each open request; `price` is that of now."""

    agents: dict[str, AgentUse] = Field(default_factory=dict)
    open: dict[int, tuple[str, int]] = Field(default_factory=dict)
    price: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def counterfactual(self, agent: str) -> tuple[int, float]:
        """Tokens and USD that cold starts would have taken; see `AgentUse`."""
        use = self.agents.get(agent) or AgentUse()
        return use.cold_tokens, use.cold_usd


class EconomyReducer:
    """Folds what agents were given to read and to do, and what of each model they used."""

    name = "economy"
    kinds = frozenset(
        {
            *("session.opened", "session.resumed", "session.forked", "agent.seeded", "agent.retired", "file.observed"),
            *(
                "goal.set",
                "task.leased",
                "critique.asked",
                "user.message",
                "agent.woken",
                "model.requested",
                "model.retried",
                "model.completed",
                "model.failed",
            ),
            *("model.abandoned", "tool.requested", *CLOSING),
        }
    )

    def initial(self) -> EconomyState:
        return EconomyState()

    def apply(self, state: EconomyState, event: Event) -> None:
        kind, data = event.kind, event.data
        if kind in {"session.opened", "session.resumed"}:
            price = data.get("price")
            if price:
                state.price = (price[0], price[1], price[2])
        elif kind == "agent.seeded":
            size = len(data["instructions"]) + sum(len(str(tool)) for tool in data["tools"])
            self._of(state, event.agent).head = int(size / _BYTES_PER_TOKEN)
        elif kind == "agent.retired" and event.agent in state.agents:
            gone = state.agents[event.agent]
            gone.observed, gone.calls, gone.pieces = {}, {}, []
        elif kind == "file.observed" and event.agent in state.agents:
            state.agents[event.agent].saw(data["path"], min(data["size"], _MOST_SHOWN))
        elif kind == "tool.requested" and event.agent in state.agents and data["origin"] == "model":
            if data["name"] not in _OF_FILES:
                state.agents[event.agent].calls[event.seq] = f"{data['name']} {data['arguments']}"[:_NAME]
        elif kind in CLOSING and event.agent in state.agents:
            mine = state.agents[event.agent]
            if (called := mine.calls.pop(data["call"], None)) is not None:
                mine.saw(called, len(data["output"]))
        elif kind == "agent.woken":
            self._begins(state, event.agent)
        elif kind in {"goal.set", "user.message", "critique.asked"} or (kind == "task.leased" and data["text"]):
            self._begins(state, data["to" if kind == "user.message" else "agent"])
        elif kind == "model.requested":
            state.open[event.seq] = (data["model"], data["reserved_tokens"])
        elif kind in {"model.completed", "model.failed", "model.abandoned"}:
            model, reserved = state.open.pop(data["request"], ("", 0))
            if model:
                self._used(self._of(state, event.agent).models.setdefault(model, ModelUse()), event, reserved)
        elif kind == "model.retried" and data["request"] in state.open:
            model, _ = state.open[data["request"]]
            use = self._of(state, event.agent).models.setdefault(model, ModelUse())
            use.microusd += data.get("cost_microusd", 0)
            use.input += data.get("tokens", 0)
        elif kind == "session.forked":
            state.open = {seq: (model, 0) for seq, (model, _) in state.open.items()}

    def _of(self, state: EconomyState, agent: str) -> AgentUse:
        return state.agents.setdefault(agent, AgentUse())

    def _begins(self, state: EconomyState, agent: str) -> None:
        use = state.agents.get(agent)
        if use is None:
            return
        use.begins += 1
        use.pieces = [*use.pieces, 0][-_PIECES:]
        if use.begins > 1:
            use.cold_tokens += use.cold
            price, reading = Price(*state.price), use.cold - use.head
            use.cold_usd += _first(use.head, price, warm=False) + _reading(use.head, reading, price)

    def _used(self, use: ModelUse, event: Event, reserved: int) -> None:
        data = event.data
        use.microusd += data["cost_microusd"]
        if event.kind != "model.completed":
            use.input += data.get("tokens", 0)
            return
        use.calls += 1
        usage = data["usage"]
        if usage is None:
            use.estimated += 1
            use.input += reserved
        else:
            use.input += usage["input"]
            use.cached += usage["cached"]
            use.output += usage["output"]
