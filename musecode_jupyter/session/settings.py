"""Settings of a session: defaults, overridden by traits, overridden by the environment, overridden by options."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from musecode_jupyter.agents.critiques.mode import ReviewMode, parse_review
from musecode_jupyter.guard.policy import Mode, parse_mode
from musecode_jupyter.models.catalogue import ModelInfo, lookup
from musecode_jupyter.models.endpoint import Endpoint, resolve_endpoint
from musecode_jupyter.runtime.errors import ConfigurationError, UsageProblem

ASK_STEPS = 50


@dataclass(frozen=True)
class Settings:
    """What the user chose; None means not chosen. No secrets: those are only ever read from the environment."""

    home: Path | None = None
    model: str | None = None
    api: str | None = None
    base_url: str | None = None
    price: str | None = None
    profile: str | None = None
    pictures: str | None = None
    context: str | None = None
    effort: str | None = None
    approvals: str | None = None
    ask_steps: str | None = None
    sandbox: str | None = None
    network: str | None = None
    readable: str | None = None
    share: str | None = None
    crew: str | None = None
    verifier: str | None = None
    review: str | None = None
    options: frozenset[str] = frozenset()
    """Names of those that were given as options, which the environment does not override."""

    def with_options(self, **given: str | None) -> Settings:
        """These settings with what was `given` as options; None is not given."""
        found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return replace(self, options=self.options | found.keys(), **found)

    def over(self, environ: Mapping[str, str]) -> Settings:
        """These settings with what `environ` says put over them."""
        found: dict[str, Any] = {
            field: environ[name]
            for field, name in (
                ("model", "MUSECODE_MODEL"),
                ("api", "MUSECODE_API"),
                ("base_url", "MUSECODE_BASE_URL"),
                ("price", "MUSECODE_PRICE"),
                ("profile", "MUSECODE_PROFILE"),
                ("pictures", "MUSECODE_PICTURES"),
                ("context", "MUSECODE_CONTEXT"),
                ("effort", "MUSECODE_EFFORT"),
                ("approvals", "MUSECODE_APPROVALS"),
                ("ask_steps", "MUSECODE_ASK_STEPS"),
                ("sandbox", "MUSECODE_SANDBOX"),
                ("network", "MUSECODE_NETWORK"),
                ("readable", "MUSECODE_READABLE"),
                ("share", "MUSECODE_SHARE"),
                ("crew", "MUSECODE_CREW"),
                ("verifier", "MUSECODE_VERIFIER"),
                ("review", "MUSECODE_REVIEW"),
            )
            if environ.get(name) and field not in self.options
        }
        home = Path(os.path.expanduser(environ["MUSECODE_HOME"])) if environ.get("MUSECODE_HOME") else self.home
        if home is not None and str(home).startswith("~"):
            raise ConfigurationError(f"{home} names a user who is not there: set MUSECODE_HOME to another folder.")
        return replace(self, home=home, **found)

    def home_or_default(self) -> Path:
        """Where sessions, worktrees and the local model live: MUSECODE_HOME, else in the Jupyter data directory."""
        if self.home is not None:
            return self.home.absolute()
        from jupyter_core.paths import jupyter_data_dir

        return Path(jupyter_data_dir()) / "musecode"

    def mode(self, *, interactive: bool) -> Mode:
        """The approvals mode: ask where somebody can be asked, else deny, unless chosen."""
        if self.approvals is not None:
            return parse_mode(self.approvals)
        return "ask" if interactive else "deny"

    def crew_wanted(self) -> bool:
        """Whether standing agents are to work beside the lead: unless the user said off."""
        return _on("MUSECODE_CREW", self.crew)

    def verifier_wanted(self) -> bool:
        """Whether what work is to pass is run beside it: unless the user said off, to this or to all of the crew."""
        return _on("MUSECODE_VERIFIER", self.verifier) and self.crew_wanted()

    def steps_of_a_question(self) -> int:
        """Model calls that one question outside a goal may take; ConfigurationError if it is no number above 0."""
        if self.ask_steps is None:
            return ASK_STEPS
        if not (self.ask_steps.isascii() and self.ask_steps.isdecimal() and int(self.ask_steps) > 0):
            raise ConfigurationError(f"MUSECODE_ASK_STEPS={self.ask_steps!r} is no number of model calls above 0.")
        return int(self.ask_steps)

    def review_mode(self, profile: str) -> ReviewMode:
        """What is reviewed before a landing; ConfigurationError if MUSECODE_REVIEW says none of it."""
        return parse_review(self.review, profile)

    def endpoint(self, environ: Mapping[str, str]) -> Endpoint:
        """Which model at which endpoint; ConfigurationError says what to set."""
        return resolve_endpoint(environ, model=self.model, api=self.api, base_url=self.base_url)

    def info(self, endpoint: Endpoint) -> ModelInfo:
        """The catalogue's record of the pinned model; ConfigurationError if it cannot be used."""
        return lookup(
            endpoint.model,
            price_override=self.price,
            profile_override=self.profile,
            pictures_override=self.pictures,
            context_override=self.context,
        )


def parse_usd(text: str) -> float:
    """Money as the user writes it: 5usd, 0.50, $3."""
    match = re.fullmatch(r"\$?(\d+(?:\.\d+)?)\s*(?:usd)?", text.strip().lower())
    if match is None:
        raise UsageProblem(f"Cannot read {text!r} as money: write for example --budget 5usd.")
    return float(match.group(1))


def _on(name: str, value: str | None) -> bool:
    """What a switch says that is on unless it is off; ConfigurationError if it is neither."""
    if value not in {None, "on", "off"}:
        raise ConfigurationError(f"{name}={value!r} is neither on nor off.")
    return value != "off"
