"""Completion of our magics in every front end: words, options, numbers of questions, sessions, cells and variables."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from IPython.core.completer import CompletionContext, SimpleCompletion, context_matcher

if TYPE_CHECKING:
    from musecode_jupyter.jupyter.host import Host
    from musecode_jupyter.jupyter.magics import MuseMagics

# Written down here since the modules that know them are too heavy to load for a key press; a test compares them.
MUSE_WORDS = (
    *(
        "ask",
        "agents",
        "budget",
        "cells",
        "claims",
        "close",
        "cost",
        "critiques",
        "diff",
        "doctor",
        "export",
        "fork",
        "map",
        "merges",
        "model",
        "pin",
        "resume",
        "rewind",
        "rules",
        "run",
        "search",
        "sessions",
        "show",
        "steer",
    ),
    *("stop", "tasks", "tier", "timeline", "trust", "undo", "unpin", "vars", "verify", "worktrees"),
)
GOAL_WORDS = ("pause", "resume", "stop", "clear", "history", "steer", "edit", "confirm", "cancel")
PLAN_WORDS = ("approve", "reject", "edit", "answer", "cancel", "resume", "save", "diff")
GRILL_WORDS = ("accept", "reject", "answer", "skip", "show", "stop", "resume")
GRILL_OPTIONS = ("--ask", "--goal", "--tasks", "--wait")
BASES = ("head", "dirty")
RUN_OPTIONS = ("--own", "--keep", "--timeout")
TIER_WORDS = ("standard", "contributor", "opt-in", "withdraw", "label")
EXPORT_FORMATS = ("jsonl", "atif", "chrome", "otel", "html")
EXPORT_OPTIONS = ("--redacted", "--force")
TIMELINE_OPTIONS = ("--agent", "--kind", "--since")
_MAGIC = re.compile(r"\s*(?:\w+\s*=\s*)?%{1,2}(muse|goal|plan|grill|approve|deny)[ \t]+(.*)\Z", re.DOTALL)
_OPTION = re.compile(r"--[a-z][a-z-]*")


class MuseMatcher:
    """The matcher of one shell; looks at the session only if one is open, and starts nothing."""

    def __init__(self, magics: MuseMagics) -> None:
        self._magics = magics

    @context_matcher(identifier="musecode")  # type: ignore[untyped-decorator]
    def match(self, context: CompletionContext) -> dict[str, Any]:
        """What may follow in a line of one of our magics; where we know something, others are not asked."""
        found = _MAGIC.match(context.text_until_cursor)
        if found is None:
            return {"completions": []}
        magic, text = found[1], found[2]
        words = text.split()
        token = "" if not text or text[-1].isspace() else words.pop()
        # A key press must not fail because a session does.
        candidates: Iterable[str] = ()
        with contextlib.suppress(Exception):
            candidates = self._candidates(magic, words, token)
        completions = [SimpleCompletion(text=word, type="magic") for word in candidates if word.startswith(token)]
        return {"completions": completions, "suppress": bool(completions), "matched_fragment": token}

    def _candidates(self, magic: str, words: list[str], token: str) -> Iterable[str]:
        if magic == "goal":
            if words[-1:] == ["--base"]:
                return BASES
            if token.startswith("-"):
                return self._options("goal", words)
            return GOAL_WORDS if not words else ()
        if magic == "plan":
            return self._options("plan", words) if token.startswith("-") else PLAN_WORDS if not words else ()
        if magic == "grill":
            if token.startswith("-"):
                return [option for option in GRILL_OPTIONS if option not in words]
            return GRILL_WORDS if not words else ()
        if magic == "muse":
            return MUSE_WORDS if not words else self._after(words[0], words[1:], token)
        numbers = self._pending() if not words else ()
        return [*numbers, *self._options(magic, words)]

    def _after(self, word: str, words: list[str], token: str) -> Iterable[str]:
        last = words[-1] if words else ""
        given: dict[str, Callable[[], Iterable[str]]] = {
            "resume": self._sessions,
            "cells": lambda: ["on", "off", *self._cells()],
            "vars": self._variables,
            "rules": lambda: ["add", "remove"],
            "trust": lambda: ["on", "off"],
            "tier": lambda: TIER_WORDS,
            "model": self._models,
            "steer": self._agents,
            "stop": self._agents,
            "unpin": self._pinned,
            "undo": self._landings,
            "claims": lambda: ["--why", "retract"],
            "search": lambda: ["--limit"],
            "sessions": lambda: ["--workspace"],
            "worktrees": lambda: ["reclaim", "quarantine"],
            "critiques": lambda: ["answer", "accept", "withdraw"],
        }
        if word == "timeline":
            if last == "--kind":
                from musecode_jupyter.log.kinds import KINDS

                return KINDS
            return self._agents() if last == "--agent" else TIMELINE_OPTIONS if last != "--since" else ()
        if word == "claims" and words in (["--why"], ["retract"]):
            return self._claims()
        if word == "run":
            return [option for option in RUN_OPTIONS if option not in words] if token.startswith("-") else ()
        if word == "export":
            options = [option for option in EXPORT_OPTIONS if option not in words]
            return options if token.startswith("-") else EXPORT_FORMATS if not words else ()
        if word == "rules" and words == ["add"]:
            return ["session", "workspace"]
        if word == "critiques" and len(words) == 1:
            return self._findings()
        if word == "worktrees" and words in (["reclaim"], ["quarantine"]):
            return self._worktrees()
        return given[word]() if word in given and not words else ()

    def _models(self) -> list[str]:
        from musecode_jupyter.models.catalogue import CATALOGUE

        return [model for model, info in CATALOGUE.items() if info.tier != "local"]

    def _options(self, magic: str, words: list[str]) -> list[str]:
        usage = getattr(self._magics, magic).parser.format_usage()
        repeatable = {"--verify"}
        return [o for o in dict.fromkeys(_OPTION.findall(usage)) if o in repeatable or o not in words]

    def _host(self) -> Host | None:
        return self._magics.host

    def _pending(self) -> list[str]:
        host = self._host()
        return [] if host is None or host.open is None else [str(number) for number in host.open.approvals.pending]

    def _agents(self) -> list[str]:
        host = self._host()
        return [] if host is None or host.open is None else host.open.read(lambda core: list(core.agents.agents))

    def _pinned(self) -> list[str]:
        host = self._host()
        if host is None or host.open is None:
            return []
        agents = host.open.read(lambda core: [list(record.pinned) for record in core.agents.agents.values()])
        return [str(item) for pinned in agents for item in pinned]

    def _landings(self) -> list[str]:
        host = self._host()
        if host is None or host.open is None:
            return []
        merges = host.open.read(lambda core: {n: merge.state for n, merge in core.merges.merges.items()})
        return [str(number) for number, state in merges.items() if state == "landed"]

    def _claims(self) -> list[str]:
        host = self._host()
        return [] if host is None or host.open is None else [str(number) for number in host.open.claims.claims]

    def _findings(self) -> list[str]:
        from musecode_jupyter.agents.critiques.text import critiques_of

        host = self._host()
        if host is None or host.open is None:
            return []
        findings = host.open.read(lambda core: {n: each.state for n, each in critiques_of(core.log).findings.items()})
        return [str(number) for number, state in findings.items() if state == "open"]

    def _worktrees(self) -> list[str]:
        """Of this session; the others are on disk, which a key press does not look through."""
        host = self._host()
        if host is None or host.open is None:
            return []
        trees = host.open.read(lambda core: [tree.path for tree in core.workspace_state.worktrees.values()])
        return [path.rpartition("/")[2] for path in trees]

    def _sessions(self) -> list[str]:
        host = self._host()
        if host is None:
            return []
        from musecode_jupyter.session.store import list_sessions

        return [entry.id for entry in list_sessions(host.home(), host.workspace()) if entry.state != "live"]

    def _cells(self) -> list[str]:
        host = self._host()
        if host is None:
            return []
        cells = host.notebook.book.cells()[-20:]
        return [cell.id if cell.id != f"In[{cell.number}]" else str(cell.number) for cell in cells]

    def _variables(self) -> list[str]:
        from musecode_jupyter.jupyter.variables import names_of

        return names_of(self._magics.shell.user_ns, self._magics.shell.user_ns_hidden)
