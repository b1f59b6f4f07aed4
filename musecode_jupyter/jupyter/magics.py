"""The magics: they parse, call the session through the host, and show text or views; light to import."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments
from traitlets import Unicode
from traitlets.config import Configurable

from musecode_jupyter.runtime.errors import MuseError

if TYPE_CHECKING:
    from musecode_jupyter.jupyter.host import Host
    from musecode_jupyter.session import GoalHandle, Session

GOAL_WORDS = ("pause", "resume", "stop")
LATER_WORDS = ("edit", "clear")


class MuseCode(Configurable):  # type: ignore[misc]
    """Settings for `ipython_config.py` (`c.MuseCode.model = ...`); the environment goes before them."""

    model = Unicode("", help="Model id; default: the provider's, or the embedded local model").tag(config=True)
    api = Unicode("", help="responses or chat").tag(config=True)
    base_url = Unicode("", help="Address of the endpoint, up to and including /v1").tag(config=True)
    price = Unicode("", help="USD per million tokens as input/cached/output, for unknown models").tag(config=True)
    effort = Unicode("", help="Reasoning effort: minimal, low, medium, high, xhigh").tag(config=True)
    approvals = Unicode("", help="ask, deny or allow-workspace").tag(config=True)
    home = Unicode("", help="Where sessions live; default: in the Jupyter data directory").tag(config=True)


@magics_class
class MuseMagics(Magics):  # type: ignore[misc]
    """`%muse`, `%goal`, `%approve` and `%deny`."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._host: Host | None = None

    def close(self) -> None:
        """Close the session and end the runtime thread, if there are any."""
        if self._host is not None:
            host, self._host = self._host, None
            host.shutdown()

    @magic_arguments()
    @argument("words", nargs="*", help="the goal; or pause, resume, stop, or steer TEXT; nothing: show the goal")
    @argument("--verify", action="append", default=[], metavar="CMD", help="must exit with 0 (repeatable)")
    @argument("--budget", metavar="5usd", help="money that the goal may cost")
    @argument("--tokens", type=int, metavar="N", help="tokens that the goal may take")
    @argument("--calls", type=int, metavar="N", help="tool calls that the goal may take")
    @argument("--hours", type=float, metavar="H", help="wall time that the goal may take")
    @argument("--steps", type=int, default=200, metavar="N", help="model calls that the goal may take")
    @argument("--wait", action="store_true", help="wait for the end; interrupting ends only the waiting")
    @line_cell_magic
    def goal(self, line: str, cell: str | None = None) -> Any:
        """Work on a goal until the --verify commands pass; returns a handle at once.

        A text that ends in "?" needs the cell form, since IPython takes a final "?" as a request for help.
        """
        with _one_line_errors():
            word, _, rest = line.strip().partition(" ")
            if cell is None and word == "steer":
                return self._steer(rest)
            arguments = _parse(self.goal, line)
            text = cell.strip() if cell is not None else " ".join(arguments.words)
            if cell is not None and arguments.words:
                raise UsageError("In the cell form the goal is the cell's text; the first line takes options only.")
            if cell is None and (not text or arguments.words[0] in (*GOAL_WORDS, *LATER_WORDS)):
                return self._goal_word(arguments.words)
            return self._start_goal(text, arguments)

    @line_cell_magic
    def muse(self, line: str, cell: str | None = None) -> Any:
        """Talk to the crew and look at the session.

        %muse ask TEXT · agents · steer AGENT TEXT · stop · timeline [--agent A] [--kind K] [--since SEQ] ·
        show SEQ · diff · cost · resume [ID] · sessions · verify · doctor · close
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
            return command(self._ready(offer=word not in commands.QUIET), rest)

    @magic_arguments()
    @argument("approval", nargs="?", type=int, help="number of the question; none: the only one that is pending")
    @argument("--session", action="store_true", help="allow the same action for the rest of the session")
    @line_magic
    def approve(self, line: str) -> None:
        """Say yes to what an agent asks for."""
        with _one_line_errors():
            arguments = _parse(self.approve, line)
            seq = self._session().answer(
                arguments.approval, "approve_session" if arguments.session else "approve", by="magic"
            )
            print(f"Approved {seq}.")

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
            seq = self._session().answer(number, "deny", by="magic", why=" ".join(words))
            print(f"Denied {seq}.")

    def _ready(self, *, offer: bool = True) -> Host:
        if self._host is None:
            from pathlib import Path

            from musecode_jupyter.jupyter.host import Host
            from musecode_jupyter.session import Settings

            chosen = MuseCode(parent=self.shell)
            self._host = Host(
                Settings(
                    home=Path(chosen.home).expanduser() if chosen.home else None,
                    model=chosen.model or None,
                    api=chosen.api or None,
                    base_url=chosen.base_url or None,
                    price=chosen.price or None,
                    effort=chosen.effort or None,
                    approvals=chosen.approvals or None,
                ),
                interactive=_can_ask(self.shell),
            )
        if offer and self._host.open is None:
            line = self._host.offer()
            if line:
                print(line)
        return self._host

    def _session(self) -> Session:
        return self._ready().session()

    def _goal_word(self, words: list[str]) -> Any:
        from musecode_jupyter.jupyter.commands import goal_text

        host = self._ready()
        word = words[0] if words else ""
        if word in LATER_WORDS:
            raise UsageError(
                f"%goal {word} is not available yet; `%goal stop` ends the goal, and a new one can be set."
            )
        if word in GOAL_WORDS and len(words) > 1:
            raise UsageError(f"%goal {word} takes nothing more. A goal that begins with {word!r} needs the cell form.")
        handle = host.session().newest_goal()
        if word == "pause":
            handle.pause()
            print("The goal rests after the step that is under way.")
        elif word == "resume":
            handle.resume()
            print("The goal goes on.")
        elif word == "stop":
            handle.stop()
            print("The goal is stopped; what was done so far is kept.")
        else:
            print(goal_text(handle))
        return None

    def _steer(self, text: str) -> None:
        # Taken as typed: an apostrophe or a dash in it is no quotation and no option.
        self._session().newest_goal().steer(text.strip())
        print("The agent reads it before its next step.")

    def _start_goal(self, text: str, arguments: Any) -> GoalHandle:
        from musecode_jupyter.jupyter.commands import finished_goal_text, show_live, show_static
        from musecode_jupyter.session.core import GoalSpec
        from musecode_jupyter.session.settings import parse_usd

        host = self._ready()
        spec = GoalSpec(
            text,
            tuple(arguments.verify),
            usd=None if arguments.budget is None else parse_usd(arguments.budget),
            tokens=arguments.tokens,
            calls=arguments.calls,
            hours=arguments.hours,
            steps=arguments.steps,
        )
        session = host.session()
        handle = session.start_goal(spec)
        if host.interactive:
            show_live(host, handle)
        if arguments.wait or not host.interactive:
            try:
                handle.wait()
            except KeyboardInterrupt:
                raise KeyboardInterrupt("the wait was interrupted; the goal goes on (%goal shows it)") from None
            print(finished_goal_text(handle))
            if not host.interactive:
                show_static(host)
        return handle


def _parse(magic: Any, line: str, *, unquoted: bool = False) -> Any:
    """The parsed arguments; with `unquoted`, a line whose quotes do not close is taken as plain words."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        if not unquoted:
            raise UsageError(f"{error}: close the quotation, or use the cell form.") from None
        words = line.split()
    return magic.parser.parse_args(words)


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except MuseError as problem:
        raise UsageError(str(problem)) from None


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
