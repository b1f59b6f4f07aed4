"""The magics: they parse, call the session through the host, and show text or views; light to import."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments
from traitlets import Unicode
from traitlets.config import Configurable

from musecode_jupyter.runtime.errors import MuseError

if TYPE_CHECKING:
    from musecode_jupyter.jupyter.host import Host
    from musecode_jupyter.session import GoalHandle, Session
    from musecode_jupyter.session.drafts import DraftHandle
    from musecode_jupyter.skills.limits import Limits

GOAL_WORDS = ("pause", "resume", "stop", "clear", "history", "confirm", "cancel")
PLAN_WORDS = ("approve", "reject", "edit", "answer", "cancel", "resume", "save", "diff", "run")


class MuseCode(Configurable):  # type: ignore[misc]
    """Settings for `ipython_config.py` (`c.MuseCode.model = ...`); the environment goes before them."""

    model = Unicode("", help="Model id; default: the provider's, or the embedded local model").tag(config=True)
    api = Unicode("", help="responses, chat or messages").tag(config=True)
    base_url = Unicode("", help="Address of the endpoint, up to and including /v1").tag(config=True)
    price = Unicode("", help="USD per million tokens as input/cached/output, for unknown models").tag(config=True)
    effort = Unicode("", help="Reasoning effort: minimal, low, medium, high, xhigh").tag(config=True)
    approvals = Unicode("", help="ask, deny or allow-workspace").tag(config=True)
    ask_steps = Unicode("", help="Model calls that one %muse ask may take; default: 50").tag(config=True)
    cells = Unicode("", help="on: agents may see cells and variables; off: nothing, not even a cell asked about").tag(
        config=True
    )
    home = Unicode("", help="Where sessions live; default: in the Jupyter data directory").tag(config=True)


@magics_class
class MuseMagics(Magics):  # type: ignore[misc]
    """`%muse`, `%plan`, `%grill`, `%goal`, `%approve` and `%deny`."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._host: Host | None = None

    @property
    def host(self) -> Host | None:
        """What the first magic made, if there was one."""
        return self._host

    def close(self) -> None:
        """Close the session and end the runtime thread, if there are any."""
        if self._host is not None:
            host, self._host = self._host, None
            host.shutdown()

    @magic_arguments()
    @argument(
        "words",
        nargs="*",
        help="the goal; or pause, resume, stop, clear [N], history, steer [--now] TEXT, edit [TEXT] with new limits or "
        "clauses, confirm (with clauses of your own) or cancel what the lead proposed; nothing: show the goal",
    )
    @argument("--verify", action="append", default=[], metavar="CMD", help="must exit with 0 (repeatable)")
    @argument("--metric", action="append", default=[], metavar="'NAME >= X vs BASELINE'", help="measured (repeatable)")
    @argument("--measure", metavar="CMD", help="prints NAME=VALUE for --metric; speedup is made of seconds=VALUE")
    @argument("--forbid", action="append", default=[], metavar="PATTERN", help="'import NAME', or paths (repeatable)")
    @argument("--holdout", action="append", default=[], metavar="FILE[:PLACE]", help="used to judge, unseen by agents")
    @argument("--reserve", metavar="15%%", help="share of each limit that is kept for the last verification")
    @argument("--budget", metavar="5usd", help="money that the goal may cost")
    @argument("--tokens", type=int, metavar="N", help="tokens that the goal may take")
    @argument("--calls", type=int, metavar="N", help="tool calls that the goal may take")
    @argument("--hours", type=float, metavar="H", help="time that the goal may run; pauses do not count")
    @argument("--steps", type=int, metavar="N", help="model calls that the goal may take; default: 200")
    @argument("--workers", type=int, metavar="N", help="most workers side by side; default: 1")
    @argument("--tasks", metavar="FILE", help="JSON file with the tasks; else they are made from the goal")
    @argument("--base", metavar="head|dirty", help="start from the last commit, or from the files as they are")
    @argument("--shadow", action="store_true", help="a folder without a git repository gets a private one outside it")
    @argument("--plan", action="store_true", help="do what the approved plan says: text, tasks and checks are its own")
    @argument("--wait", action="store_true", help="wait for the end; interrupting ends only the waiting")
    @argument("--no-wait", action="store_true", help="return at once, also where nobody sits in front")
    @line_cell_magic
    def goal(self, line: str, cell: str | None = None) -> Any:
        """Work on a goal until the --verify commands pass; returns a handle at once.

        Without --verify and --metric the lead proposes what decides it, each command is tried at once, and the goal is
        set when you `%goal confirm` it.

        A text that ends in "?" needs the cell form, since IPython takes a final "?" as a request for help.
        """
        with _one_line_errors():
            word, _, rest = line.strip().partition(" ")
            if cell is None and word == "steer":
                return self._steer(rest)
            arguments = _parse(self.goal, line)
            words = arguments.words
            if cell is not None and words not in ([], ["edit"]):
                raise UsageError("In the cell form the goal is the cell's text; the first line takes options only.")
            if arguments.plan:
                return self._run_plan(words, cell, arguments)
            if cell is None and words in (["confirm"], ["cancel"]):
                return self._draft_word(words[0], arguments)
            if words[:1] == ["edit"]:
                return self._edit(" ".join(words[1:]) if cell is None else cell.strip(), arguments)
            if cell is None and (not words or words[0] in GOAL_WORDS):
                return self._goal_word(arguments)
            return self._start_goal(" ".join(words) if cell is None else cell.strip(), arguments)

    @magic_arguments()
    @argument(
        "words",
        nargs="*",
        help="what is to be planned; or approve [DIGEST], edit TEXT, answer N TEXT, reject WHY, cancel, resume, diff, "
        "save PATH; nothing: show the plan",
    )
    @argument("--verify", action="append", default=[], metavar="CMD", help="is to pass in the end (repeatable)")
    @argument("--wait", action="store_true", help="wait until the plan is written; interrupting ends only the waiting")
    @line_cell_magic
    def plan(self, line: str, cell: str | None = None) -> Any:
        """Have a plan written, which changes nothing; returns a handle at once.

        Once you have approved it, `%goal --plan` does what it says. A text that ends in "?" needs the cell form, since
        IPython takes a final "?" as a request for help.
        """
        from musecode_jupyter.jupyter.plan_words import plan_word, start_plan

        with _one_line_errors():
            # What follows a word is taken as typed: an apostrophe or a dash in it is no quotation and no option.
            word, _, rest = line.strip().partition(" ")
            if word in PLAN_WORDS or (not word and cell is None):
                return plan_word(self._ready(), word, (rest if cell is None else f"{rest}\n{cell}").strip())
            arguments = _parse(self.plan, line)
            if cell is not None and arguments.words:
                raise UsageError("In the cell form the plan is the cell's text; the first line takes options only.")
            text = " ".join(arguments.words) if cell is None else cell.strip()
            return start_plan(self._ready(), text, tuple(arguments.verify), wait=arguments.wait)

    @no_var_expand
    @line_cell_magic
    def grill(self, line: str, cell: str | None = None) -> Any:
        """Attack the plan, or what is named: flaws with evidence, or marked as opinions, each to be answered.

        %grill · %grill TEXT · %%grill with a text below · --goal [N] · --tasks [N] · --ask (one thing at a time) ·
        --wait · show · accept [N] · reject [N] WHY · answer [N] TEXT · skip · stop · resume
        """
        from musecode_jupyter.jupyter.grill_words import grill_word

        with _one_line_errors():
            return grill_word(self._ready(), line.strip(), cell)

    @no_var_expand
    @line_cell_magic
    def muse(self, line: str, cell: str | None = None) -> Any:
        """Talk to the crew and look at the session.

        %muse ask TEXT · agents · steer [--now] AGENT TEXT · stop · timeline [--agent A] [--kind K] [--since SEQ] ·
        show SEQ · search [--limit N] TEXT · cells [on|off|CELL] · vars [PATTERN] · run CODE · tasks · merges ·
        map [PATH|SYMBOL|WORDS] ·
        claims [--why N · retract N [WHY]] · critiques [answer N TEXT · accept N · withdraw N] ·
        undo LANDING · worktrees [reclaim [NAME] · quarantine NAME [WHY]] · diff [SEQ..SEQ] · cost ·
        budget [5usd] [--tokens N] [--calls N] [--hours H] [--agent NAME] [--day] · pin SEQ · unpin SEQ ·
        rules [add session|workspace 'COMMAND PREFIX' · remove N] ·
        model [ID] · tier [standard|contributor|opt-in WORDS|withdraw|label PATH LABEL] · trust [on|off] ·
        resume [ID] · sessions [--workspace [DIR]] · fork SEQ · rewind SEQ · verify ·
        export FORMAT PATH [--redacted] [--force] · doctor · close
        """
        from musecode_jupyter.jupyter import commands

        word, _, rest = line.strip().partition(" ")
        with _one_line_errors():
            if cell is not None:
                rest = f"{rest}\n{cell}"
            rest = rest.strip()
            command = commands.COMMANDS.get(word)
            if command is None:
                raise UsageError(
                    f"%muse needs one of: {', '.join(commands.COMMANDS)}." + (f" Not {word!r}." if word else "")
                )
            if rest and word in commands.ALONE:
                raise UsageError(f"%muse {word} takes nothing more, not {rest!r}.")
            host = self._ready(offer=word not in commands.QUIET)
            if host.open is None and word in commands.SHOWING:
                from musecode_jupyter.jupyter.host import NO_SESSION

                print(NO_SESSION)
                return None
            return command(host, rest)

    @magic_arguments()
    @argument("approval", nargs="?", type=int, help="number of the question; none: the only one that is pending")
    @argument("--session", action="store_true", help="allow the same action for the rest of the session")
    @argument("--workspace", action="store_true", help="allow the same action in this repository from now on")
    @line_magic
    def approve(self, line: str) -> None:
        """Say yes to what an agent asks for."""
        with _one_line_errors():
            arguments = _parse(self.approve, line)
            if arguments.session and arguments.workspace:
                raise UsageError("%approve takes --session or --workspace, not both.")
            given = self._opened().give(
                arguments.approval,
                "approve_workspace" if arguments.workspace else "approve_session" if arguments.session else "approve",
                by="magic",
            )
            print(f"Approved {given.approval}." + (f" {given.note}" if given.note else ""))

    @magic_arguments()
    @argument("approval", nargs="?", help="number of the question; none: the only one that is pending")
    @argument("why", nargs="*", help="the reason, told to the agent")
    @line_magic
    def deny(self, line: str) -> None:
        """Say no to what an agent asks for."""
        with _one_line_errors():
            arguments = _parse(self.deny, line, unquoted=True)
            words = [*([arguments.approval] if arguments.approval else []), *arguments.why]
            number = int(words.pop(0)) if words and words[0].isdecimal() else None
            seq = self._opened().answer(number, "deny", by="magic", why=" ".join(words))
            print(f"Denied {seq}.")

    def _ready(self, *, offer: bool = True, pending: bool = True) -> Host:
        if self._host is None:
            from pathlib import Path

            from musecode_jupyter.jupyter.host import Host
            from musecode_jupyter.jupyter.notebook import NotebookAccess
            from musecode_jupyter.session import Settings

            chosen = MuseCode(parent=self.shell)
            self._host = Host(
                Settings(
                    home=Path(os.path.expanduser(chosen.home)) if chosen.home else None,
                    model=chosen.model or None,
                    api=chosen.api or None,
                    base_url=chosen.base_url or None,
                    price=chosen.price or None,
                    effort=chosen.effort or None,
                    approvals=chosen.approvals or None,
                    ask_steps=chosen.ask_steps or None,
                ),
                NotebookAccess(self.shell, {"on": True, "off": False}.get(chosen.cells)),
                getattr(self.shell, "kernel", None),
            )
            self._host.attach()
        self._host.interactive = _can_ask(self.shell)
        if offer and self._host.open is None:
            line = self._host.offer()
            if line:
                print(line)
        if pending and self._host.open is not None:
            _tell(self._host.open)
        return self._host

    def _opened(self) -> Session:
        return self._ready(pending=False).opened()

    def _active(self) -> GoalHandle:
        """The goal that was set or resumed last; a session is not opened only to find none in it."""
        from musecode_jupyter.session.core import NO_GOAL

        host = self._ready()
        if host.open is None:
            raise UsageError(NO_GOAL)
        return host.open.newest_goal()

    def _goal_word(self, arguments: Any) -> None:
        from musecode_jupyter.jupyter.commands import goal_text, queue_lines
        from musecode_jupyter.session.core import NO_GOAL
        from musecode_jupyter.session.visible import visible_text

        words = arguments.words
        options = _fixed_options(arguments) or _clauses_given(arguments) or _limits(arguments).given
        if not words and options:
            raise UsageError("Give the goal's text with its options; `%goal edit` changes the goal that there is.")
        if words[:1] == ["clear"] and len(words) == 2 and words[1].isdecimal() and not options:
            self._opened().call(lambda core: core.clear_goal(int(words[1])))
            print(f"Goal {words[1]} is forgotten.")
            return
        if words and (options or len(words) > 1):
            raise UsageError(
                f"%goal {words[0]} takes nothing more. A goal that begins with {words[0]!r} needs the cell form."
            )
        host = self._ready()
        word = words[0] if words else ""
        if host.open is not None and word in {"", "resume"}:
            if word and host.open.goals.to_resume() is None and host.session_for_work().begin_queued() is not None:
                print("The next goal of the queue begins.")
                return
            waiting = [] if word else queue_lines(host.open)
        else:
            waiting = []
        if not word and host.open is not None and (draft := host.open.open_draft()) is not None:
            waiting.append(visible_text(draft.text()).rstrip("\n"))
        if not word and (host.open is None or host.open.goals.active is None):
            print("\n".join(waiting) or NO_GOAL)
            return
        handle = self._active()
        if word == "pause":
            handle.pause()
            print("The goal rests after the step that is under way.")
        elif word == "resume":
            note = host.session_for_work().resume_goal(handle.number)
            print("The goal goes on." + (f" {note}" if note else ""))
        elif word == "stop":
            handle.stop()
            print("The goal is stopped; what was done so far is kept.")
        elif word == "history":
            print(visible_text(handle.history()))
        elif word == "clear":
            branch = handle.clear()
            print("The goal is forgotten." + (f" Its work is kept on branch {branch}." if branch else ""))
        else:
            print("\n".join([goal_text(handle), *waiting]))

    def _steer(self, text: str) -> None:
        # Taken as typed: an apostrophe or a dash in it is no quotation and no option.
        from musecode_jupyter.jupyter.commands import steered, steering

        now, text = steering(text)
        print(steered("The agent", self._active().steer(text, now=now)))

    def _edit(self, text: str, arguments: Any) -> None:
        from musecode_jupyter.session.preflight import clause_options

        if _fixed_options(arguments):
            raise UsageError("%goal edit takes a text, limits, and what decides the goal: --verify and other clauses.")
        handle = self._active()
        clauses = clause_options(arguments)
        handle.edit(text, **_limits(arguments).given, verify=tuple(arguments.verify), clauses=clauses)
        running = handle.status == "running"
        print("The goal is changed." + ("" if running else " `%goal resume` goes on with it."))

    def _run_plan(self, words: list[str], cell: str | None, arguments: Any) -> GoalHandle:
        from musecode_jupyter.session import GoalSpec
        from musecode_jupyter.session.preflight import clause_options

        if words or cell is not None or arguments.tasks:
            raise UsageError(
                "%goal --plan has its text and tasks from the plan: give limits, --workers and --verify only."
            )
        ground = {"shadow": arguments.shadow, "base": arguments.base, "workers": arguments.workers or 1}
        given = {**_limits(arguments).given, **ground, "clauses": clause_options(arguments)}
        spec = GoalSpec("", tuple(arguments.verify), **given)
        host = self._ready()
        plan = host.session_for_work().newest_plan() if host.plan is None else host.plan
        host.session_for_work()
        with host.questions_shown():
            handle = plan.run(spec)
        return self._started(host, handle, arguments)

    def _start_goal(self, text: str, arguments: Any) -> GoalHandle | DraftHandle:
        from musecode_jupyter.jupyter.commands import show_root
        from musecode_jupyter.session import GoalSpec
        from musecode_jupyter.session.preflight import clause_options, graph_options

        host = self._ready()
        graph = {"workers": arguments.workers, "tasks": arguments.tasks}
        ground = {"shadow": arguments.shadow, "base": arguments.base}
        given = {**_limits(arguments).given, **graph_options(**graph), **ground, "clauses": clause_options(arguments)}
        spec = GoalSpec(text, tuple(arguments.verify), **given)
        if host.interactive and not spec.verify and not spec.clauses.metric and not spec.tasks:
            from musecode_jupyter.jupyter.draft_words import start_draft

            return start_draft(host, spec)
        session = host.session_for_work(spec)
        show_root(session)
        return self._started(host, session.start_goal(spec), arguments)

    def _draft_word(self, word: str, arguments: Any) -> Any:
        from musecode_jupyter.jupyter.draft_words import cancel_draft, confirmed_draft

        if (_fixed_options(arguments) and not arguments.wait) or _limits(arguments).given:
            raise UsageError(f"%goal {word} takes clauses only: limits go with the goal's text, or with %goal edit.")
        host = self._ready()
        if word == "cancel":
            return cancel_draft(host, arguments)
        return self._started(host, confirmed_draft(host, arguments), arguments)

    def _started(self, host: Host, handle: GoalHandle, arguments: Any) -> GoalHandle:
        from musecode_jupyter.jupyter.commands import finished_goal_text, show_live, show_static

        session = handle.session
        for notice in session.take_notices():
            print(notice)
        if handle.status == "queued":
            print(f"A goal is running: this one is queued, {handle.result.why}. It begins by itself.")
        elif host.interactive:
            show_live(host, handle)
        if arguments.wait or not (host.interactive or arguments.no_wait):
            try:
                handle.wait()
            except KeyboardInterrupt:
                raise KeyboardInterrupt("the wait was interrupted; the goal goes on (%goal shows it)") from None
            print(finished_goal_text(handle))
            _tell(session)
            if not host.interactive:
                show_static(host)
        return handle


def _tell(session: Session) -> None:
    """Print what waits for the user, and what there is to know about the session."""
    from musecode_jupyter.jupyter.rule_words import waiting_line

    for line in (waiting_line(session), *session.take_notices()):
        if line:
            print(line)


def _parse(magic: Any, line: str, *, unquoted: bool = False) -> Any:
    """The parsed arguments; with `unquoted`, a line whose quotes do not close is taken as plain words."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        if not unquoted:
            raise UsageError(f"{error}: close the quotation, or use the cell form.") from None
        words = line.split()
    return magic.parser.parse_args(words)


def _fixed_options(arguments: Any) -> bool:
    """Whether an option was given that only a new goal takes."""
    return any((arguments.wait, arguments.workers, arguments.tasks, arguments.base, arguments.shadow))


def _clauses_given(arguments: Any) -> bool:
    """Whether an option was given that says what decides a goal."""
    from musecode_jupyter.session.preflight import clause_options

    return bool(arguments.verify) or clause_options(arguments).given


def _limits(arguments: Any) -> Limits:
    from musecode_jupyter.session.settings import parse_usd
    from musecode_jupyter.skills.limits import Limits

    usd = None if arguments.budget is None else parse_usd(arguments.budget)
    return Limits(usd, arguments.tokens, arguments.calls, arguments.hours, arguments.steps)


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except MuseError as problem:
        from musecode_jupyter.session.visible import visible_text

        raise UsageError(visible_text(str(problem))) from None


def _can_ask(shell: Any) -> bool:
    """Whether somebody sits in front: a front end that answers input requests, or a terminal."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return sys.stdin is not None and sys.stdin.isatty()
    try:
        parent = kernel.get_parent("shell")
    except (AttributeError, TypeError):
        parent = getattr(kernel, "_parent_header", {})
    return bool(parent.get("content", {}).get("allow_stdin", False))
