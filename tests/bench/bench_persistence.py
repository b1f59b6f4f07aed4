"""What a crew that stands costs over ten tasks, beside agents made anew for each, in tokens of a real server.

Run: python tests/bench/bench_persistence.py [TASKS] [--real]. In each task the lead asks the explorer about three
modules of this project's own package, changes a file and is done. The steps are scripted, the same for both: an
explorer reads what its prompt does not show, since it was never read or was left out later. In one run the agents stay;
in the other they are retired after each task and made anew, in the same session, with the same map, prompts, claims and
cache. Once the tasks ask about eight modules again and again, once each asks about three that were never asked about,
where staying saves no reading.

Every prompt goes to the embedded model's server, whose counts of prompt and cached tokens are those that are printed:
on a tiny model with the same tokens (see tiny_model.py), with --real on the embedded one. The server puts aside as much
of other conversations as it does by default; once the standing crew is measured with what the embedded one may put
aside, which is less than the two conversations take in the end. The seconds on the tiny model are the program's own;
"derived" are the tokens that were not cached up to the first change of a file, divided by what the embedded model takes
in a second in the same run. The model file must be there (`make model`).
"""

from __future__ import annotations

import json
import os
import platform
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_context import Counted
from fixtures.crew_scripts import ask, is_explorer
from fixtures.make_repo import OWN_NAME, make_own
from fixtures.model_scripts import Answer, Call, ParsedRequest
from fixtures.session_bench import session_on
from tiny_model import ROOT, Server, counted, serving

from musecode_jupyter.agents.roles.state import standing
from musecode_jupyter.log.events import Event
from musecode_jupyter.models.catalogue import CATALOGUE
from musecode_jupyter.models.local import PROMPT_CACHE_MIB
from musecode_jupyter.models.prices import Price
from musecode_jupyter.session import GoalSpec, Session
from musecode_jupyter.session.core import SessionCore
from musecode_jupyter.session.crew import LEAD_NAME, make_agents, retire
from musecode_jupyter.session.replay import prove

TASKS, MODULES, ASKED, SEED = 10, 8, 3, 3
CONTEXT = "32768"
LEAST_FILES = 150
SERVERS_MIB = 8_192
"""What llama.cpp's server may put aside if nothing else is said."""
TIERS = {"standard": CATALOGUE["muse-spark-1.3"].price, "contributor": CATALOGUE["muse-spark-1.3-contributor"].price}
_MODULE = re.compile(rf"{OWN_NAME}/\S+\.py")


@dataclass
class Cost:
    """What one task took: sums of the server's counts over its `calls`; `before` of fresh tokens up to the first change
    of a file, and `seconds` until then.
    """

    sent: int
    cached: int
    output: int
    before: int
    calls: int
    reads: int
    seconds: float

    def usd(self, price: Price) -> float:
        """Money at the prices of a tier."""
        return ((self.sent - self.cached) * price.input + self.cached * price.cached + self.output * price.output) / 1e6


def again_and_again(repository: Path, count: int) -> list[list[str]]:
    """The modules that each task asks about: of eight, three drawn by a seed."""
    rng = random.Random(SEED)
    pool = rng.sample(fit(repository), MODULES)
    return [sorted(rng.sample(pool, ASKED)) for _ in range(count)]


def never_before(repository: Path, count: int) -> list[list[str]]:
    """As `again_and_again`, but no module twice."""
    drawn = random.Random(SEED).sample(fit(repository), ASKED * count)
    return [sorted(drawn[ASKED * n : ASKED * (n + 1)]) for n in range(count)]


def fit(repository: Path) -> list[str]:
    """The smaller modules that are no stubs."""
    sources = sorted((repository / OWN_NAME).rglob("*.py"))
    return [str(each.relative_to(repository)) for each in sources if 2_000 < each.stat().st_size < 4_500]


def scripted(request: ParsedRequest) -> Answer:
    """The lead asks, changes its file and is done; the explorer reads what it has not read, and answers."""
    if is_explorer(request):
        questions = [item["text"] for item in request.items if "What is in " in item.get("text", "")]
        wanted = _MODULE.findall(questions[-1])
        there = known(request)
        new = [path for path in wanted if path not in there]
        if new:
            return Answer("I read them.", [Call("read", {"path": path}) for path in new])
        return Answer("I think that each of them holds one part of it.")
    since = [n for n, item in enumerate(request.items) if item.get("text", "").startswith("Goal: ")][-1]
    goal = request.items[since]["text"]
    done = sum(item["type"] == "tool_result" for item in request.items[since:])
    number = re.findall(r"task (\d+)", goal)[0]
    if not done:
        return ask(f"What is in {' and '.join(dict.fromkeys(_MODULE.findall(goal)))} ?")
    if done == 1:
        return Answer("", [Call("edit", {"path": f"notes/{number}.txt", "old": "", "new": f"task {number}\n"})])
    return Answer("It is done.")


def known(request: ParsedRequest) -> set[str]:
    """The files whose text the prompt shows: what was read, and not left out of the conversation since."""
    called: dict[str, str] = {}
    found: set[str] = set()
    for item in request.items:
        if item["type"] == "tool_call" and item["name"] == "read":
            called[item["call_id"]] = _path(item["arguments"])
        elif item["type"] == "tool_result" and not item["output"].startswith("[Left out"):
            found.add(called.get(item["call_id"], ""))
    return found


def _path(arguments: str | dict[str, str]) -> str:
    found: dict[str, str] = json.loads(arguments) if isinstance(arguments, str) else arguments
    return found["path"]


def work(session: Session, number: int, modules: Sequence[str]) -> Cost:
    """Do one task in the session; what it took."""
    before = session.events()[-1].seq
    text = f"For task {number}, note what is in {' '.join(modules)}"
    result = session.start_goal(GoalSpec(text, (f"test -f notes/{number}.txt",))).wait(3_600)
    assert result.met, result.why
    return measured(session.events(before))


def measured(events: Sequence[Event]) -> Cost:
    """The figures of the events of one task."""
    begun, changed = (next(e for e in events if e.kind == kind) for kind in ("goal.set", "file.changed"))
    usages = [(event.seq, event.data["usage"]) for event in events if event.kind == "model.completed"]
    return Cost(
        sent=sum(usage["input"] for _, usage in usages),
        cached=sum(usage["cached"] for _, usage in usages),
        output=sum(usage["output"] for _, usage in usages),
        before=sum(usage["input"] - usage["cached"] for seq, usage in usages if seq < changed.seq),
        calls=len(usages),
        reads=sum(event.kind == "file.observed" and event.agent == "explorer" for event in events),
        seconds=(datetime.fromisoformat(changed.ts) - datetime.fromisoformat(begun.ts)).total_seconds(),
    )


async def made_anew(core: SessionCore) -> None:
    """Retire all agents and make new ones."""
    for name in (LEAD_NAME, *standing(core.log)):
        await retire(core, name, "the bench makes agents anew for each task")
    await make_agents(core)


def ran(server: Server, tasks: Callable[[Path, int], list[list[str]]], count: int, *, anew: bool) -> list[Cost]:
    """What each task cost; prints what was decided about agents on the way."""
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MUSECODE_HOME"] = str(Path(folder) / "home")
        repository = make_own(Path(folder) / "repository")
        files = sum(1 for path in repository.rglob("*") if path.is_file() and ".git" not in path.parts)
        assert files >= LEAST_FILES, files
        relay = Counted(scripted, api="chat")
        relay.real_url, relay.real_key = server.url, server.key
        chosen = {"api": "chat", "context": CONTEXT, "crew": "on", "review": "off"}
        with relay, session_on(relay.base_url, repository, **chosen) as session:
            made = []
            for n, modules in enumerate(tasks(repository, count)):
                if anew and n:
                    session.call(made_anew)
                costs.append(work(session, n, modules))
                made.append(sum(event.kind == "agent.created" for event in session.events()))
            events, where = session.events(), session.folder
        proof = prove(where)
        assert proof.ok, proof.problem
    decided = [e for e in events if e.kind in {"agent.retired", "context.compacted", "context.masked"}]
    decided = [event for event in decided if not event.data.get("why", "").startswith("the bench")]
    if not anew:
        assert made[0] == made[-1] or any(event.kind == "agent.retired" for event in decided), made
    print(f"  {files} files; agents created after each task: {made}")
    for event in decided:
        print(f"  {event.kind} {event.agent}: {event.data.get('why', '')} {dict(event.data.get('numbers', {}))}")
    return costs


def rate() -> float:
    """Tokens that the embedded model takes in a second: of a prompt of some hundred, without a cache."""
    text = (ROOT / "musecode_jupyter" / "agents" / "masking.py").read_text("utf-8")[:2_000]
    with serving(tiny=False) as real:
        counted(real, [{"role": "user", "content": "Say a."}])
        _, _, timings = counted(real, [{"role": "user", "content": text}])
    return timings["prompt_per_second"]


def told(costs: Sequence[Cost], taken: float) -> None:
    """A table with a line for each task, and the sum."""
    print("  task    sent  cached  fresh  calls  reads  seconds  derived s  USD standard  USD contributor")
    for n, cost in enumerate([*costs, total(costs)]):
        money = "  ".join(f"{cost.usd(price):13.6f}" for price in TIERS.values())
        print(
            f"  {n if n < len(costs) else 'all':>4} {cost.sent:7} {cost.cached:7} {cost.sent - cost.cached:6} "
            f"{cost.calls:6} {cost.reads:6} {cost.seconds:8.2f} {cost.before / taken:10.1f} {money}"
        )


def total(costs: Sequence[Cost]) -> Cost:
    """The sum of all."""
    names = ("sent", "cached", "output", "before", "calls", "reads", "seconds")
    return Cost(**{name: sum(getattr(cost, name) for cost in costs) for name in names})


def compared(standing_ones: Sequence[Cost], anew: Sequence[Cost]) -> None:
    """The ratios of a crew that stands to agents that are made anew, from the second task on and in all."""
    for name, begin in (("from the second task on", 1), ("in all", 0)):
        one, other = total(standing_ones[begin:]), total(anew[begin:])
        print(f"{name}:")
        rows = {
            "tokens sent": (one.sent, other.sent),
            "tokens not cached": (one.sent - one.cached, other.sent - other.cached),
            "the same up to the first change (derived seconds)": (one.before, other.before),
            "seconds up to the first change, tiny model": (round(one.seconds, 2), round(other.seconds, 2)),
            "model round trips": (one.calls, other.calls),
            "files read by the explorer": (one.reads, other.reads),
            **{f"USD, {tier}": (round(one.usd(p), 6), round(other.usd(p), 6)) for tier, p in TIERS.items()},
        }
        for row, (a, b) in rows.items():
            print(f"  {row}: {a} / {b} = {a / b if b else float('nan'):.2f}")


def main(count: int, *, tiny: bool) -> None:
    taken = rate()
    print(f"{platform.platform()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {count} tasks")
    print(f"the embedded model takes {taken:.1f} tokens in a second")
    costs: dict[tuple[str, str], list[Cost]] = {}
    for tasks, how, aside in (
        (again_and_again, "standing", SERVERS_MIB),
        (again_and_again, "anew", SERVERS_MIB),
        (never_before, "standing", SERVERS_MIB),
        (never_before, "anew", SERVERS_MIB),
        (again_and_again, "little put aside", PROMPT_CACHE_MIB),
    ):
        name = f"{tasks.__name__}, {how}"
        # Each run begins with a cold server.
        with serving(tiny=tiny, aside=aside) as server:
            began = time.monotonic()
            print(f"\n{name}, load {os.getloadavg()[0]:.1f}", flush=True)
            costs[tasks.__name__, how] = ran(server, tasks, count, anew=how == "anew")
            print(f"  {time.monotonic() - began:.0f} s in all")
        told(costs[tasks.__name__, how], taken)
    for (tasks_name, how), found in costs.items():
        if how != "anew":
            print(f"\n{tasks_name}, {how} / anew")
            compared(found, costs[tasks_name, "anew"])


if __name__ == "__main__":
    numbers = [word for word in sys.argv[1:] if word != "--real"]
    main(int((numbers[:1] or [str(TASKS)])[0]), tiny="--real" not in sys.argv)
