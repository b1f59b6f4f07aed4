"""`%muse rules`, `%muse trust`, and the line that tells of questions that wait."""

from __future__ import annotations

import shlex
from typing import Literal

from musecode_jupyter.jupyter.host import Host
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session import Session
from musecode_jupyter.session.visible import visible_text

USAGE = "%muse rules takes nothing, `remove N`, or `add session|workspace 'COMMAND PREFIX'`."


def rules(host: Host, rest: str) -> None:
    """List the rules in force, or add or remove one."""
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise UsageProblem(f"{error}: close the quotation. {USAGE}") from None
    session = host.session()
    for line in session.take_notices():
        print(line)
    if not words:
        print(rules_text(session))
    elif words[0] == "remove" and len(words) == 2 and words[1].isdecimal():
        session.disallow(int(words[1]), by="magic")
        print(f"Rule {words[1]} is removed.")
    elif words[0] == "add" and len(words) == 3 and words[1] in {"session", "workspace"}:
        scope: Literal["session", "workspace"] = "session" if words[1] == "session" else "workspace"
        number = session.allow(words[2], scope, by="magic")
        print(f"Rule {number} is in force: {session.rules.held[number].name}")
    else:
        raise UsageProblem(USAGE)


def trust(host: Host, rest: str) -> None:
    """Show the roles that the repository brings, trust them as they are, or do so no more."""
    words = {"": Session.roles_text, "on": Session.trust_roles, "off": Session.distrust_roles}
    if rest not in words:
        raise UsageProblem("%muse trust takes nothing, `on` or `off`.")
    print(visible_text(words[rest](host.session())))


def rules_text(session: Session) -> str:
    """The rules in force, a line each: number, scope, since when, what."""
    held = session.rules.held
    if not held:
        return "No rules: what is not allowed by the approvals mode is asked."
    return "\n".join(
        f"{number:>4}  {each.scope:9}  since {each.since[:16].replace('T', ' ')}  {each.name}"
        for number, each in held.items()
    )


def waiting_line(session: Session) -> str:
    """The line that tells of questions that wait; empty if none does."""
    pending = session.approvals.pending
    if not pending:
        return ""
    if len(pending) == 1:
        [(number, question)] = pending.items()
        return f"1 approval waits: {question.rule} (%approve {number} or %deny {number})"
    return f"{len(pending)} approvals wait: %approve {', '.join(map(str, pending))}"
