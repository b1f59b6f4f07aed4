"""`jupyter musecode`: headless runs, sessions and what their logs hold, resume, verify, export, doctor."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from musecode_jupyter._version import __version__
from musecode_jupyter.runtime.errors import ConfigurationError, GitError, MuseError, NoCheckout, UsageProblem

if TYPE_CHECKING:
    from musecode_jupyter.log.events import Event
    from musecode_jupyter.runtime.effects import LiveEffects
    from musecode_jupyter.runtime.loop import RuntimeThread
    from musecode_jupyter.session import GoalHandle, GoalResult, GoalSpec, Session, Settings
    from musecode_jupyter.session.worktrees import Trees
    from musecode_jupyter.skills.limits import Limits

MET, ERROR, USAGE, SHORT, BLOCKED = 0, 1, 2, 3, 4
# How often a session is looked at that is followed, in seconds.
FOLLOW_S = 0.2
EXITS = {"met": MET, "error": ERROR, "blocked": BLOCKED}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 met, 1 error, 2 usage, 3 stopped short, 4 blocked."""
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except (UsageProblem, ConfigurationError, NoCheckout) as problem:
        _complain(str(problem))
        return USAGE
    except MuseError as problem:
        _complain(str(problem))
        return ERROR
    except KeyboardInterrupt:
        print("jupyter musecode: interrupted. `jupyter musecode sessions` lists what can go on.", file=sys.stderr)
        return SHORT
    except BrokenPipeError:
        # Whoever read our output is gone; nothing can be said any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jupyter musecode", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser("run", help="work on a goal until its verify commands pass")
    run.add_argument("--goal", required=True, metavar="TEXT")
    run.add_argument("--verify", action="append", default=[], metavar="CMD", help="must exit with 0 (repeatable)")
    run.add_argument(
        "--metric", action="append", default=[], metavar="'NAME >= X vs BASELINE'", help="measured (repeatable)"
    )
    run.add_argument("--measure", metavar="CMD", help="prints NAME=VALUE for --metric; a speedup is of seconds=VALUE")
    run.add_argument(
        "--forbid", action="append", default=[], metavar="PATTERN", help="'import NAME', or paths (repeatable)"
    )
    run.add_argument(
        "--holdout", action="append", default=[], metavar="FILE[:PLACE]", help="used to judge, unseen by agents"
    )
    run.add_argument("--reserve", metavar="15%%", help="share of each limit that is kept for the last verification")
    run.add_argument("--repo", default=".", metavar="DIR")
    run.add_argument("--workers", type=int, metavar="N", help="most workers side by side; default: 1")
    run.add_argument("--tasks", metavar="FILE", help="JSON file with the tasks; else they are made from the goal")
    run.add_argument("--base", metavar="head|dirty", help="start from the last commit, or from the files as they are")
    run.add_argument(
        "--shadow", action="store_true", help="a folder without a git repository gets a private one outside it"
    )
    _limited(run, "may", steps="; default: 200")
    _common(run)
    run.set_defaults(run=_run)

    plan = commands.add_parser("plan", help="have a plan written and printed; it changes nothing and approves nothing")
    plan.add_argument("--goal", required=True, metavar="TEXT", help="what is to be planned")
    plan.add_argument("--verify", action="append", default=[], metavar="CMD", help="is to pass in the end; repeatable")
    plan.add_argument("--repo", default=".", metavar="DIR")
    _common(plan, json="the plan as one JSON object on standard output")
    plan.set_defaults(run=_plan)

    resume = commands.add_parser("resume", help="go on with a session, and with its goal if it was not met")
    resume.add_argument("id", help="id of the session, a unique beginning of it, or its folder")
    _limited(resume, "may from now on")
    _common(resume)
    resume.set_defaults(run=_resume)

    sessions = commands.add_parser("sessions", help="list sessions, newest first")
    sessions.add_argument("--workspace", metavar="DIR", help="only those of DIR, or of a folder that it lies in")
    sessions.add_argument("--json", action="store_true")
    sessions.set_defaults(run=_sessions)

    show = _on_session(commands, "show", "one event with what it goes back to and what it led to", _show)
    show.add_argument("seq", type=int, metavar="SEQ", help="number of the event")
    search = _on_session(commands, "search", "events that hold a text, without regard to case", _search)
    search.add_argument("text", nargs="+", metavar="TEXT")
    search.add_argument("--limit", type=int, metavar="N", help="how many at most, the newest; default: 50")
    diff = _on_session(commands, "diff", "what changed between two events", _changes)
    diff.add_argument("range", nargs="?", default="", metavar="A..B", help="default: since the user's last message")
    _on_session(commands, "cost", "what a session cost, by agent, task, goal and tier", _cost)
    tail = _on_session(commands, "tail", "the last events of a session, also of one that runs", _tail)
    tail.add_argument("-n", "--lines", type=int, default=10, metavar="N", help="how many; default: 10")
    tail.add_argument("-f", "--follow", action="store_true", help="go on with what comes until the session ends")

    worktrees = commands.add_parser("worktrees", help="the agents' worktrees on a repository, and what they hold")
    worktrees.add_argument("--repo", default=".", metavar="DIR")
    worktrees.set_defaults(run=_worktrees)
    actions = worktrees.add_subparsers(dest="action", metavar="ACTION")
    reclaim = actions.add_parser("reclaim", help="remove those that hold nothing of their own")
    reclaim.add_argument("name", nargs="?", metavar="NAME", help="name or path of the only one to remove")
    reclaim.add_argument(
        "--discard", action="store_true", help="NAME is removed though it holds something, which a private ref keeps"
    )
    quarantine = actions.add_parser("quarantine", help="move one out of the way, with all that it holds")
    quarantine.add_argument("name", metavar="NAME", help="its name or path")
    quarantine.add_argument("why", nargs="*", metavar="WHY", help="the reason, which git shows with its lock")

    trust = commands.add_parser("trust", help="the agents' roles that a repository brings, and whether you trust them")
    trust.add_argument("word", nargs="?", choices=["on", "off"], help="trust them as their files are now, or no more")
    trust.add_argument("--repo", default=".", metavar="DIR")
    trust.set_defaults(run=_trust)

    tier = commands.add_parser("tier", help="whether a repository is opted in to the contributor tier, and its labels")
    tier.add_argument("--repo", default=".", metavar="DIR")
    tier.add_argument("--opt-in", metavar="WORDS", help="opt in, by the words that are shown without it")
    tier.add_argument("--withdraw", action="store_true", help="take the opt-in back")
    tier.set_defaults(run=_tier)

    verify = commands.add_parser("verify", help="prove chain, fold and prompts of a session; repairs nothing")
    verify.add_argument("id", help="id of the session, a unique beginning of it, or its folder")
    verify.add_argument("--json", action="store_true")
    verify.set_defaults(run=_verify)

    export = commands.add_parser("export", help="write a session as one file for other tools, or to show")
    export.add_argument("id", help="id of the session, a unique beginning of it, or its folder")
    export.add_argument("--format", required=True, metavar="F", help="jsonl, atif, chrome, otel or html")
    export.add_argument("-o", "--output", required=True, metavar="PATH", help="the file; - for standard output")
    export.add_argument("--redacted", action="store_true", help="replace texts, arguments, outputs and paths")
    export.add_argument("--force", action="store_true", help="replace a file that is there")
    export.add_argument("--json", action="store_true", help="say what was written as JSON")
    export.set_defaults(run=_export)

    replay = commands.add_parser("replay", help="what agents' worktrees held at an event; with --into, as files")
    replay.add_argument("id", help="id of the session, a unique beginning of it, or its folder")
    replay.add_argument("--at", type=int, metavar="SEQ", help="number of the event; default: the last one")
    replay.add_argument("--into", metavar="DIR", help="folder for the files, absent or empty")
    replay.add_argument("--worktree", type=int, metavar="N", help="which one, where several agents have one")
    replay.add_argument("--json", action="store_true")
    replay.set_defaults(run=_replay)

    fork = commands.add_parser("fork", help="a new session that continues from an event, with the files as of then")
    fork.add_argument("id", help="id of the session, a unique beginning of it, or its folder; it is not touched")
    fork.add_argument("seq", type=int, metavar="SEQ", help="number of the event")
    fork.add_argument("--json", action="store_true")
    fork.set_defaults(run=_fork)

    doctor = commands.add_parser("doctor", help="what is there, what is missing, and how to get it")
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(run=_doctor)
    return parser


def _on_session(commands: Any, name: str, does: str, run: Callable[[argparse.Namespace], int]) -> Any:
    parser = commands.add_parser(name, help=does)
    parser.add_argument("id", metavar="ID", help="id of the session, a unique beginning of it, or its folder")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run)
    return parser


def _limited(parser: argparse.ArgumentParser, may: str, steps: str = "") -> None:
    parser.add_argument("--budget", metavar="5usd", help=f"money that the goal {may} cost")
    parser.add_argument("--tokens", type=int, metavar="N", help=f"tokens that it {may} take")
    parser.add_argument("--calls", type=int, metavar="N", help=f"tool calls that it {may} make")
    parser.add_argument("--hours", type=float, metavar="H", help=f"time that it {may} run")
    parser.add_argument("--steps", type=int, metavar="N", help=f"model calls that it {may} make{steps}")


def _limits(arguments: argparse.Namespace) -> Limits:
    from musecode_jupyter.session.settings import parse_usd
    from musecode_jupyter.skills.limits import Limits

    usd = None if arguments.budget is None else parse_usd(arguments.budget)
    return Limits(usd, arguments.tokens, arguments.calls, arguments.hours, arguments.steps)


def _common(parser: argparse.ArgumentParser, json: str = "events as JSON lines on standard output") -> None:
    parser.add_argument("--model", metavar="ID")
    parser.add_argument("--approvals", metavar="MODE", help="ask, deny or allow-workspace; default: deny")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="PREFIX",
        help="first words of a command, or 'land on BRANCH', allowed for this session (repeatable)",
    )
    parser.add_argument("--json", action="store_true", help=json)


def _settings(arguments: argparse.Namespace) -> Settings:
    from musecode_jupyter.session import Settings

    return Settings().with_options(model=arguments.model, approvals=arguments.approvals)


def _open(
    arguments: argparse.Namespace, workspace: Path, resume: str | None = None, goal: GoalSpec | None = None
) -> Session:
    from musecode_jupyter.guard.rules import typed_rule
    from musecode_jupyter.runtime.effects import LiveEffects
    from musecode_jupyter.session import open_session
    from musecode_jupyter.tools.environment import child_environment

    for text in arguments.allow:
        typed_rule(text, path=child_environment(os.environ)["PATH"])
    session = open_session(workspace, resume=resume, settings=_settings(arguments), goal=goal, effects=LiveEffects())
    try:
        for text in arguments.allow:
            session.allow(text, by="command line")
        for notice in filter(None, (session.core.sandbox.banner, *session.take_notices())):
            _complain(notice)
    except BaseException:
        session.close("a rule could not be put in force")
        raise
    return session


def _repo(arguments: argparse.Namespace) -> Path:
    repo = Path(os.path.expanduser(arguments.repo))
    if not os.path.isdir(repo):
        raise UsageProblem(f"There is no folder {repo}: name the repository with --repo DIR.")
    return repo


def _plan(arguments: argparse.Namespace) -> int:
    from musecode_jupyter.session.plan_run import plan_told
    from musecode_jupyter.session.plans import NO_TEXT

    if not arguments.goal.strip():
        raise UsageProblem(NO_TEXT)
    with _open(arguments, _repo(arguments)) as session:
        if not arguments.json:
            follow(session, as_json=False)
        handle = session.start_plan(arguments.goal, tuple(arguments.verify))
        try:
            result = handle.wait()
        except KeyboardInterrupt:
            handle.cancel()
            return SHORT
        print(plan_told(session, handle, result, as_json=arguments.json))
        if result.status != "proposed":
            _complain(f"no plan was written ({result.status}): {result.why}")
    return MET if result.status == "proposed" else SHORT


def _run(arguments: argparse.Namespace) -> int:
    from musecode_jupyter.session import GoalSpec
    from musecode_jupyter.session.preflight import clause_options, graph_options

    repo = _repo(arguments)
    graph = graph_options(workers=arguments.workers, tasks=arguments.tasks)
    ground = {"shadow": arguments.shadow, "base": arguments.base}
    given = {**_limits(arguments).given, **graph, **ground, "clauses": clause_options(arguments)}
    spec = GoalSpec(arguments.goal, tuple(arguments.verify), **given)
    with _open(arguments, repo, goal=spec) as session:
        root = session.repository()
        if not arguments.json and root != session.workspace:
            print(f"Work and verify commands run in {root}, the root of the repository.", file=sys.stderr)
        follow(session, arguments.json)
        handle = session.start_goal(spec)
        for notice in session.take_notices():
            _complain(notice)
        return _finish(handle, session, arguments)


def _resume(arguments: argparse.Namespace) -> int:
    from musecode_jupyter.session import Settings
    from musecode_jupyter.session.store import find_session

    home = Settings().over(os.environ).home_or_default()
    folder = find_session(home, arguments.id)
    limits = _limits(arguments)
    limits.check()
    with _open(arguments, Path.cwd(), str(folder)) as session:
        follow(session, arguments.json)
        number = session.goals.to_resume()
        if number is None and limits.given:
            raise UsageProblem(f"Session {session.id} has no goal to which more could be given.")
        if number is None:
            _say(arguments.json, f"Session {session.id}: nothing is left to do.")
            return MET
        handle = session.handle(number)
        if limits.given:
            handle.edit(**limits.given)
        note = session.resume_goal(number)
        if note:
            print(note, file=sys.stderr)
        return _finish(handle, session, arguments)


def _finish(handle: GoalHandle, session: Session, arguments: argparse.Namespace) -> int:
    from musecode_jupyter.session.visible import visible_text

    # What was chosen on the command line is in no session: without it, the next process would do otherwise.
    chosen = [("--model", arguments.model), ("--approvals", arguments.approvals)]
    options = [word for option in chosen if option[1] is not None for word in option]
    command = shlex.join(["jupyter", "musecode", "resume", session.id, *options])
    try:
        result = handle.wait()
    except KeyboardInterrupt:
        print(f"Interrupted. `{command}` goes on.", file=sys.stderr)
        return SHORT
    if not arguments.json:
        print(visible_text(_told(handle, result, session)))
    if not result.met:
        go_on = f"`{command} {result.more}` gives it more and goes on." if result.more else f"`{command}` goes on."
        _complain(f"goal not met ({result.status}): {result.why} {go_on}")
    return EXITS.get(result.status, SHORT)


def _told(handle: GoalHandle, result: GoalResult, session: Session) -> str:
    from musecode_jupyter.skills.limits import duration

    lines = [f"{'Goal met' if result.met else f'Goal not met ({result.status})'}: {handle.text}"]
    if result.why:
        lines.append(f"  {result.why}")
    if result.checkout:
        lines.append(f"  {result.checkout}")
    lines += [f"  {line}" for line in result.handover]
    lines += _changes_lines(handle, result)
    lines.append(
        f"{result.model_calls} model calls, {result.tokens} tokens, {result.usd:.4f} USD, {duration(result.seconds)}"
    )
    lines.append(f"log: {session.folder}")
    return "\n".join(lines)


def _changes_lines(handle: GoalHandle, result: GoalResult) -> list[str]:
    try:
        landed, waiting = handle.changes()
    except GitError as problem:
        # A repository that is out of order must not hide how the goal ended.
        return ["", f"The diff cannot be shown: {problem}", ""]
    lines = ["", *([] if result.met else ["Landed:", ""]), landed.rstrip(), ""] if landed else []
    if waiting and not result.met:
        lines += ["", "Not landed; the work so far:", "", waiting.rstrip(), ""]
    return lines


def follow(session: Session, as_json: bool) -> None:
    """Print each event once it is durable: as JSON lines, or as a line of text on standard error."""
    from musecode_jupyter.session.summary import BEHIND, summarise

    def show(event: Event) -> None:
        with contextlib.suppress(BrokenPipeError):
            if as_json:
                print(json.dumps(_as_json(event)), flush=True)
            elif event.kind not in BEHIND:
                print(
                    f"{event.seq:>5} {event.agent or '-':8} {event.kind:20} {summarise(event)['text']}",
                    file=sys.stderr,
                    flush=True,
                )

    def subscribe() -> None:
        for event in session.log.events():
            if event.seq <= session.log.durable_seq:
                show(event)
        session.log.on_durable(show)

    session.read(lambda _core: subscribe())


def _as_json(event: Event) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "ts": event.ts,
        "gen": event.gen,
        "agent": event.agent,
        "turn": event.turn,
        "cause": list(event.cause),
        "kind": event.kind,
        "label": event.label,
        "data": dict(event.data),
    }


def _sessions(arguments: argparse.Namespace) -> int:
    from musecode_jupyter.session import Settings
    from musecode_jupyter.session.store import list_sessions, sessions_around, sessions_text

    home = Settings().over(os.environ).home_or_default()
    place = None if arguments.workspace is None else Path(os.path.expanduser(arguments.workspace))
    entries = list_sessions(home) if place is None else sessions_around(home, place)
    if arguments.json:
        rows = [
            {
                "id": e.id,
                "workspace": e.workspace,
                "state": e.state,
                "events": e.events,
                "started": e.started,
                "goal": e.goal or None,
                "parent": e.parent or None,
                "parent_seq": e.parent_seq or None,
                "rewound_to": e.rewound_to or None,
            }
            for e in entries
        ]
        print(json.dumps(rows, indent=1))
    elif entries:
        print(sessions_text(entries))
    else:
        print(f"No sessions yet in {home}." if place is None else f"No sessions of {place} in {home}.")
    return 0


def _folder(arguments: argparse.Namespace) -> Path:
    from musecode_jupyter.session import Settings
    from musecode_jupyter.session.store import find_session

    return find_session(Settings().over(os.environ).home_or_default(), arguments.id)


def _show(arguments: argparse.Namespace) -> int:
    from musecode_jupyter.session.causes import story

    told = story(_folder(arguments), arguments.seq)
    print(json.dumps(told.as_json()) if arguments.json else told.text())
    return 0


def _search(arguments: argparse.Namespace) -> int:
    from musecode_jupyter.session.search import LIMIT, search

    limit = LIMIT if arguments.limit is None else arguments.limit
    found = search(_folder(arguments), " ".join(arguments.text), limit)
    if arguments.json:
        print(json.dumps({"events": found.summaries(), "more": found.more, "unreadable": found.unreadable}))
    else:
        print(found.text())
    return 0


def _changes(arguments: argparse.Namespace) -> int:
    from musecode_jupyter.session.differences import between, changes_text

    folder = _folder(arguments)
    begin, end = between(folder, arguments.range)
    text = changes_text(folder, begin, end)
    print(json.dumps({"from": begin, "to": end, "text": text}) if arguments.json else text)
    return 0


def _cost(arguments: argparse.Namespace) -> int:
    from musecode_jupyter.session.cost import cost_of

    found = cost_of(_folder(arguments))
    print(json.dumps(found.as_json()) if arguments.json else found.text())
    return 0


def _tail(arguments: argparse.Namespace) -> int:
    import time

    from musecode_jupyter.log.scan import Damage
    from musecode_jupyter.session.lines import event_line
    from musecode_jupyter.session.summary import BEHIND, summarise
    from musecode_jupyter.session.tail import tail

    if arguments.lines < 0:
        raise UsageProblem("-n takes a number of events from 0 on.")
    status = 0
    wait = partial(time.sleep, FOLLOW_S) if arguments.follow else None
    for found in tail(_folder(arguments), arguments.lines, wait):
        if isinstance(found, Damage):
            _complain(
                f"damaged after event {found.last_good_seq}, byte {found.offset} of {found.segment_name}: {found.text}"
            )
            status = ERROR
        elif arguments.json:
            print(json.dumps(_as_json(found)), flush=True)
        elif found.kind not in BEHIND:
            print(event_line(summarise(found)), flush=True)
    return status


@contextlib.contextmanager
def _without_session() -> Iterator[tuple[LiveEffects, RuntimeThread]]:
    """What reaches the outside world where no session is opened."""
    from musecode_jupyter.runtime.effects import LiveEffects
    from musecode_jupyter.runtime.loop import RuntimeThread

    effects, runtime = LiveEffects(), RuntimeThread.start()
    try:
        yield effects, runtime
    finally:
        runtime.call(effects.aclose(), timeout=10)
        runtime.stop()


def _repository(arguments: argparse.Namespace) -> Path:
    repo = Path(os.path.expanduser(arguments.repo)).resolve()
    if not repo.is_dir():
        raise UsageProblem(f"There is no folder {repo}: name the repository with --repo DIR.")
    return repo


def _trust(arguments: argparse.Namespace) -> int:
    from musecode_jupyter.session import Settings
    from musecode_jupyter.session.role_trust import RoleTrust
    from musecode_jupyter.session.visible import visible_text

    repo, home = _repository(arguments), Settings().over(os.environ).home_or_default()
    with _without_session() as (effects, runtime):
        roles = runtime.call(RoleTrust.of(repo, home, effects))
        does = {None: roles.text, "on": roles.trust, "off": roles.distrust}[arguments.word]
        print(visible_text(runtime.call(does())))
    return 0


def _tier(arguments: argparse.Namespace) -> int:
    from musecode_jupyter.session import Settings
    from musecode_jupyter.session.tiers import MEANS, OptIn
    from musecode_jupyter.session.visible import visible_text

    repo, home = _repository(arguments), Settings().over(os.environ).home_or_default()
    if arguments.opt_in is not None and arguments.withdraw:
        raise UsageProblem("Give --opt-in or --withdraw, not both.")
    with _without_session() as (effects, runtime):
        found = runtime.call(OptIn.of(repo, home, effects))
        if arguments.withdraw:
            runtime.call(found.withdraw())
        elif arguments.opt_in is not None:
            runtime.call(found.give(arguments.opt_in))
        problem = runtime.call(found.problem())
        lines = [MEANS, f"{problem}." if problem else f"{found.root.name} is opted in to the contributor tier."]
        if problem:
            lines.append(f"To opt in: jupyter musecode tier --opt-in '{found.words}'")
        lines += [f"{each.pattern} is {each.label} ({each.why})" for each in found.tier_file.rules]
        print(visible_text("\n".join(lines)))
    return 0


def _worktrees(arguments: argparse.Namespace) -> int:
    from musecode_jupyter.session import Settings
    from musecode_jupyter.session.visible import visible_text
    from musecode_jupyter.session.worktrees import Trees

    repo = _repository(arguments)
    if arguments.action == "reclaim" and arguments.discard and arguments.name is None:
        raise UsageProblem("--discard needs the NAME of the one worktree that is to go.")
    home = Settings().over(os.environ).home_or_default()
    with _without_session() as (effects, runtime):
        trees = runtime.call(Trees.of(repo, home, effects))
        status, text = _with_worktrees(arguments, trees, runtime)
    if status == 0:
        print(visible_text(text))
    else:
        _complain(text)
    return status


def _with_worktrees(arguments: argparse.Namespace, trees: Trees, runtime: RuntimeThread) -> tuple[int, str]:
    """Do what was asked for; the exit status, and what to say."""
    from musecode_jupyter.session.worktrees import aside_text, reclaimed_text, removed_text

    if arguments.action is None:
        return 0, runtime.call(trees.text())
    if arguments.action == "quarantine":
        tree = runtime.call(trees.named(arguments.name))
        place = runtime.call(trees.set_aside(tree, " ".join(arguments.why) or "asked by the user"))
        return 0, aside_text(tree, place)
    if arguments.name is None:
        return 0, reclaimed_text(*runtime.call(trees.reclaim()))
    tree = runtime.call(trees.named(arguments.name))
    why = runtime.call(trees.take(tree))
    if not why:
        return 0, f"{tree.path.name} is removed."
    if not arguments.discard and not _agreed(f"{tree.path.name} holds something: {why}. Remove it all the same?"):
        return ERROR, f"{tree.path.name} is kept: {why}. --discard removes it, and a private ref keeps what it held."
    return 0, removed_text(tree, runtime.call(trees.discard(tree)))


def _agreed(question: str) -> bool:
    """Whether the user, if one sits at a terminal, says yes."""
    from musecode_jupyter.session.visible import visible_text

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{visible_text(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _verify(arguments: argparse.Namespace) -> int:
    from musecode_jupyter.session.replay import prove

    folder = _folder(arguments)
    proof = prove(folder)
    if arguments.json:
        print(json.dumps({"session": folder.name, "ok": proof.ok, **asdict(proof)}))
    elif proof.ok:
        print(f"{folder.name}: {proof.events} events, the chain is whole; {proof.words}")
    else:
        print(f"{folder.name}: NOT verified: {proof.problem}", file=sys.stderr)
    return 0 if proof.ok else 1


def _export(arguments: argparse.Namespace) -> int:
    from musecode_jupyter.log.redaction import Redactor
    from musecode_jupyter.models.endpoint import secrets
    from musecode_jupyter.session import Settings
    from musecode_jupyter.session.export import STDOUT, export
    from musecode_jupyter.session.store import find_session

    folder = find_session(Settings().over(os.environ).home_or_default(), arguments.id)
    if arguments.json and arguments.output == STDOUT:
        raise UsageProblem("--json says on standard output what was written: name a file with -o.")
    done = export(
        folder,
        arguments.format,
        arguments.output,
        key=os.urandom(32) if arguments.redacted else None,
        force=arguments.force,
        redactor=Redactor(secrets(os.environ)),
    )
    for note in done.notes:
        _complain(note)
    if arguments.json:
        print(json.dumps({"session": folder.name, **asdict(done)}))
    elif arguments.output != STDOUT:
        print(f"{folder.name}: {done.events} events in {done.path}.")
    return ERROR if done.damaged else 0


def _replay(arguments: argparse.Namespace) -> int:
    import asyncio

    from musecode_jupyter.runtime.effects import LiveEffects
    from musecode_jupyter.session import Settings
    from musecode_jupyter.session.files_at import restore, session_at
    from musecode_jupyter.session.store import find_session

    folder = find_session(Settings().over(os.environ).home_or_default(), arguments.id)
    at = session_at(folder, arguments.at)
    chosen = list(at.trees.values())
    files: int | None = None
    if arguments.into is not None or arguments.worktree is not None:
        chosen = [at.choose(arguments.worktree)]
    if arguments.into is not None:
        into = Path(os.path.expanduser(arguments.into))
        files = asyncio.run(restore(at, chosen[0], into, LiveEffects()))
    if arguments.json:
        rows = [
            {"worktree": t.number, "what": t.what, "commit": t.held.commit, "changed": len(t.held.changed)}
            | {"exact": not t.limits, "limits": list(t.limits)}
            for t in chosen
        ]
        print(json.dumps({"session": folder.name, "at": at.seq, "files": files, "worktrees": rows}))
        return 0
    for tree in chosen:
        changed = f" and {len(tree.held.changed)} files that were edited since" if tree.held.changed else ""
        print(f"worktree {tree.number} ({tree.what}) at event {at.seq}: commit {tree.held.commit[:12]}{changed}")
        for limit in tree.limits:
            _complain(f"worktree {tree.number}: {limit}")
    if files is not None:
        print(f"{files} files in {arguments.into}. Files that git ignores and submodules are not recorded.")
    if not chosen:
        print(f"No agent has a worktree at event {at.seq}.")
    return 0


def _fork(arguments: argparse.Namespace) -> int:
    from musecode_jupyter.session import Settings
    from musecode_jupyter.session.api import fork_session
    from musecode_jupyter.session.store import find_session

    source = find_session(Settings().over(os.environ).home_or_default(), arguments.id)
    with fork_session(source, arguments.seq) as forked:
        for notice in forked.take_notices():
            _complain(notice)
    if arguments.json:
        print(json.dumps({"session": forked.id, "parent": source.name, "at": arguments.seq}))
    else:
        print(f"Session {forked.id} continues from event {arguments.seq} of session {source.name}.")
        print(f"`jupyter musecode resume {forked.id}` goes on with it.")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from musecode_jupyter.session import Settings
    from musecode_jupyter.session.doctor import examine, report

    findings = examine(Settings().over(os.environ))
    print(json.dumps([asdict(f) for f in findings], indent=1) if arguments.json else report(findings))
    return 0 if all(finding.ok or not finding.needed for finding in findings) else 1


def _say(as_json: bool, text: str) -> None:
    if not as_json:
        print(text)


def _complain(text: str) -> None:
    from musecode_jupyter.session.visible import visible_text

    print(f"jupyter musecode: {visible_text(text)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
