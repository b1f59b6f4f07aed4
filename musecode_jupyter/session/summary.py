"""One line for a person and a few fields for the views, from any event of the log; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.money import in_usd
from musecode_jupyter.session.draft_lines import DRAFT_TEXTS
from musecode_jupyter.session.plan_lines import PLAN_TEXTS
from musecode_jupyter.session.visible import visible_text
from musecode_jupyter.skills.limits import duration

TEXT_LIMIT = 240
FIELD_LIMIT = 200

Data = Mapping[str, Any]

BEHIND = frozenset({"git.answered"})
"""Kinds that are there to prove the others: shown to those who ask for them."""

# The field by which an event names the one that opened what it belongs to, most specific first.
_REFERENCES = ("request", "call", "approval", "critique", "merge", "claim", "mail", "worktree", "goal", "plan", "draft")

# Events that say by their kind alone how something went; kinds not named say neither.
_OUTCOME = {
    "model.completed": True,
    "model.failed": False,
    "model.abandoned": False,
    "model.retried": False,
    "tool.failed": False,
    "tool.unknown": False,
    "approval.granted": True,
    "goal.met": True,
    "plan.approved": True,
    "plan.rejected": False,
    "draft.confirmed": True,
    "merge.landed": True,
    "merge.bounced": False,
    "merge.undone": True,
    "merge.stays": False,
    "claim.challenged": False,
    "claim.verified": True,
    "critique.fixed": True,
    "task.done": True,
    "task.bounced": False,
    "task.abandoned": False,
    "budget.exceeded": False,
    "repository.touched": False,
    "log.recovered": False,
}

# Fields that a view draws with; all else is asked for by "detail".
_KEPT = {
    "model.requested": ("model", "purpose", "max_output_tokens"),
    "model.completed": ("status", "usage", "cost_microusd", "estimated", "ttft_s", "seconds", "attempts"),
    "model.failed": ("error_kind", "cost_microusd", "seconds", "attempts"),
    "model.retried": ("error_kind", "cost_microusd", "attempt", "wait_s"),
    "model.abandoned": ("cost_microusd",),
    "tool.requested": ("name", "origin", "purpose"),
    "tool.decided": ("decision", "rule"),
    "tool.started": ("effect",),
    "tool.finished": ("exit", "seconds"),
    "approval.requested": ("action", "rule"),
    "approval.granted": ("by", "scope"),
    "approval.denied": ("by", "why"),
    "file.changed": ("path",),
    "goal.set": ("text",),
    "goal.paused": ("why",),
    "goal.judged": ("passed", "where"),
    "goal.stopped": ("state", "why"),
    "goal.warned": ("limit", "percent"),
    "goal.exhausted": ("limit",),
    "goal.nudged": ("step",),
    "merge.tested": ("passed", "purpose"),
    "merge.reviewed": ("validator",),
    "merge.landed": ("ref",),
    "critique.raised": ("severity", "check"),
    "merge.bounced": ("kept",),
}


def summarise(event: Event) -> dict[str, Any]:
    """The event as the views see it: `seq, ts, agent, turn, kind, cause, text, ref, ok, data`; all JSON
    values.

    `text` is one line of at most 240 characters; `ref` is the seq of the event that opened what this one
    belongs to; `ok` is False where something failed, True where it succeeded, None where neither can be said.
    A kind that this version does not know gets its fields as text.
    """
    data = event.data
    describe = _TEXTS.get(event.kind, _unknown)
    kept = {name: _short(data[name]) for name in _KEPT.get(event.kind, ()) if data.get(name) is not None}
    return {
        "seq": event.seq,
        "ts": event.ts,
        "agent": event.agent,
        "turn": event.turn,
        "kind": event.kind,
        "cause": list(event.cause),
        "text": one_line(describe(data), TEXT_LIMIT),
        "ref": _reference(data),
        "ok": _outcome(event.kind, data),
        "data": kept,
    }


def one_line(text: str, limit: int) -> str:
    """White space folded, hidden characters spelt out; cut to `limit` characters with an ellipsis."""
    # A text of megabytes is cut before it is split.
    flat = visible_text(" ".join(text[: 4 * limit].split()))
    if len(flat) > limit or len(text) > 4 * limit:
        return flat[: limit - 1].rstrip() + "…"
    return flat


def _reference(data: Data) -> int | None:
    for name in _REFERENCES:
        value = data.get(name)
        if isinstance(value, int):
            return value
    return None


def _outcome(kind: str, data: Data) -> bool | None:
    if kind == "tool.finished":
        return bool(data["ok"])
    if kind in {"goal.judged", "merge.tested"}:
        return bool(data["passed"])
    if kind == "merge.reviewed":
        return bool(data["ok"])
    if kind == "checks.ended" and data["turned"]:
        return all(each.get("passed") for each in data["turned"])
    if kind == "goal.stopped":
        return None if data["state"] == "stopped" else False
    if kind == "merge.checked":
        return False if data["conflicts"] else None
    if kind == "model.completed" and data["status"] == "incomplete":
        return False
    return _OUTCOME.get(kind)


def _short(value: Any) -> Any:
    return one_line(value, FIELD_LIMIT) if isinstance(value, str) else value


def _list(values: list[Any], most: int = 4) -> str:
    shown = ", ".join(str(v) for v in values[:most])
    return f"{shown} and {len(values) - most} more" if len(values) > most else shown


def _checks_ended(data: Data) -> str:
    if data["why"]:
        return f"the checks of {data['begun']} have ended{_why(data)}"
    turns = [f"{each.get('command')} {'passes now' if each.get('passed') else 'fails now'}" for each in data["turned"]]
    turns += [f"{each} fails and passes on the same files" for each in data.get("flaky", ())]
    if turns:
        return f"the verifier: {_list(turns)}"
    if not data["checks"]:
        return "the verifier: nothing new to check"
    passed = sum(bool(each.get("passed")) for each in data["checks"])
    return f"the verifier: as before, {passed} of {len(data['checks'])} pass"


def _why(data: Data, name: str = "why") -> str:
    return f": {data[name]}" if data.get(name) else ""


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    if value < 10:
        return f"{value:.1f} s"
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.0f} min"


def _money(microusd: int, estimated: bool = False) -> str:
    usd = in_usd(microusd)
    digits = 4 if usd and abs(usd) < 0.1 else 2
    return f"{'about ' if estimated else ''}${usd:.{digits}f}"


def _commit(value: Any) -> str:
    return str(value)[:10] if value else "nothing"


def _branch(ref: Any) -> str:
    return str(ref).removeprefix("refs/heads/")


def _arguments(arguments: Mapping[str, Any]) -> str:
    """What tells one call of a tool from another, without the texts that an edit carries."""
    if "command" in arguments:
        return str(arguments["command"])
    if "path" in arguments:
        path = str(arguments["path"])
        if "pattern" in arguments:
            return f"{arguments['pattern']!r} in {path}"
        start, end = arguments.get("start_line"), arguments.get("end_line")
        if end is not None:
            return f"{path}:{start or 1}-{end}"
        return f"{path}:{start}" if isinstance(start, int) and start > 1 else path
    return ", ".join(f"{name}={one_line(str(value), 60)}" for name, value in arguments.items())


def _session_opened(data: Data) -> str:
    return f"session opened in {data['workspace']}; model {data['model']}, approvals {data['approvals']}"


def _session_resumed(data: Data) -> str:
    return f"session resumed after event {data['last_seq']} with {data['model']}, approvals {data['approvals']}"


def _log_recovered(data: Data) -> str:
    return f"{data['bytes']} bytes of an unfinished batch were cut from the log and kept in quarantine"


def _seeded(data: Data) -> str:
    names = [str(tool.get("name", "?")) for tool in data["tools"]]
    return f"instructions fixed ({len(data['instructions'])} characters); tools: {_list(names, 8) or 'none'}"


def _view(data: Data) -> str:
    return f"prompt made for: {data['purpose']} ({len(data['items'])} items)"


def _masked(data: Data) -> str:
    return f"{len(data['calls'])} old outputs are said in a line each from here on, about {data['saved']:,} tokens less"


def _compacted(data: Data) -> str:
    did = "conversation begun anew" if data["how"] == "reseed" else "conversation shortened"
    return f"{did}, about {data['before']:,} to {data['after']:,} tokens: {data['why']}"


def _model_requested(data: Data) -> str:
    purpose = f"{data['purpose']}, " if data.get("purpose") else ""
    return f"{data['model']}: {purpose}{data['items']} items, {data['bytes']:,} bytes"


def _model_completed(data: Data) -> str:
    parts = []
    if usage := data.get("usage"):
        read, cached = usage.get("input", 0), usage.get("cached", 0)
        share = f" ({100 * cached // read}% cached)" if cached and read else ""
        parts.append(f"{read:,} tokens in{share}, {usage.get('output', 0):,} out")
    else:
        parts.append("no usage sent")
    parts.append(_money(data["cost_microusd"], data["estimated"]))
    parts.append(_seconds(data["seconds"]))
    calls = [str(item["name"]) for item in data["items"] if item.get("type") == "tool_call"]
    texts = [str(item["text"]) for item in data["items"] if item.get("type") == "message" and item.get("text")]
    said = f"calls {_list(calls)}" if calls else one_line(texts[-1], 120) if texts else "empty answer"
    if data["status"] == "incomplete":
        said = f"incomplete ({data.get('reason') or 'no reason given'}); {said}"
    return f"{said} | {', '.join(parts)}"


def _model_failed(data: Data) -> str:
    attempts = data["attempts"]
    return f"{data['error_kind']} after {attempts} attempt{'s' if attempts != 1 else ''}: {data['error']}"


def _model_retried(data: Data) -> str:
    changed = " without reasoning items" if data.get("digest") else ""
    return f"attempt {data['attempt']} failed, again{changed} in {_seconds(data['wait_s'])}: {data['error']}"


def _tool_requested(data: Data) -> str:
    purpose = f" ({data['purpose']})" if data.get("purpose") else ""
    return f"{data['name']} {_arguments(data['arguments'])}{purpose}"


def _tool_decided(data: Data) -> str:
    return f"{'allowed' if data['decision'] == 'allow' else 'denied'} by {data['rule']}"


def _tool_started(data: Data) -> str:
    if data["effect"] == "write" and data.get("path"):
        verb = "removes" if data.get("after") is None else "creates" if data.get("before") is None else "writes"
        return f"{verb} {data['path']}"
    words = {"read": "reads", "write": "writes", "process": "process started"}
    return f"{words.get(data['effect'], data['effect'])} in {data['cwd']}"


def _tool_finished(data: Data) -> str:
    lines = [line for line in data["output"][:4000].splitlines() if line.strip()]
    # The last line of a command's output says how it went; a read's first line says what it is.
    said = (lines[-1] if data.get("exit") is not None else lines[0]) if lines else "no output"
    how = f"exit {data['exit']}" if data.get("exit") is not None else "done" if data["ok"] else "not done"
    spent = f", {_seconds(data['seconds'])}" if data.get("seconds") else ""
    return f"{how}{spent}: {said}"


def _approval_requested(data: Data) -> str:
    shown = data["shown"]
    if data["action"] == "tasks":
        return f"asks to {data['rule']}"
    what = shown.get("command") or shown.get("path") or shown.get("branch") or ""
    return f"asks to {data['action']} {what}".rstrip()


def _approval_granted(data: Data) -> str:
    return f"approved {'for this session' if data['scope'] == 'session' else 'once'} by {data['by']}"


def _goal_warned(data: Data) -> str:
    money = data["limit"] == "microusd"
    used, most = (in_usd(data[name]) if money else data[name] for name in ("used", "of"))
    limit = "usd" if money else data["limit"]
    return f"{data['percent']}% of the limit on {limit} is used: {used:g} of {most:g}"


def _file_changed(data: Data) -> str:
    verb = "created" if data["before"] is None else "removed" if data["after"] is None else "changed"
    return f"{verb} {data['path']}"


def notice_of(event: Event) -> str:
    """What the user is told of an event as soon as may be; nothing of most."""
    data = event.data
    if event.kind == "repository.touched":
        return touched_text(event.seq, data)
    if event.kind in {"goal.warned", "goal.exhausted", "goal.nudged"}:
        return f"Goal {data['goal']}: {_TEXTS[event.kind](data)}."
    return ""


def touched_text(seq: int, data: Data) -> str:
    """What the user is told when a command without a sandbox changed their repository, with how to undo it."""
    undo = "; ".join(f"{change['what']}: `{change['undo']}`" for change in data["changes"])
    return (
        f"Your repository changed while command {data['call']} ran ({_list([c['what'] for c in data['changes']])}). "
        f"If that was not you, undo it: {undo} (event {seq})."
    )


def _limits(data: Data) -> str:
    parts = []
    if data.get("microusd") is not None:
        parts.append(f"${in_usd(data['microusd']):g}")
    if data.get("tokens") is not None:
        parts.append(f"{data['tokens']:,} tokens")
    if data.get("calls") is not None:
        parts.append(f"{data['calls']:,} calls")
    if data.get("hours") is not None:
        parts.append(duration(data["hours"] * 3600))
    if data.get("steps") is not None:
        parts.append(f"{data['steps']:,} steps")
    return ", ".join(parts)


def _goal_set(data: Data) -> str:
    limits = _limits(data)
    return f"{data['text']} | verify: {_decided(data)}{' | limits: ' + limits if limits else ''}"


def _goal_based(data: Data) -> str:
    files = data["files"]
    where = f"{_branch(data['branch'])}, commit {_commit(data['base'])}"
    return f"starts from {where}" + (f", and the files as they are: {_list(files)}" if files else "")


def _goal_judged(data: Data) -> str:
    failed = [check["command"] for check in data["checks"] if not check["passed"]]
    where = "on the merged tree" if data["where"] == "landing" else "before any work"
    if data["passed"]:
        return f"all {len(data['checks'])} checks passed {where}"
    clauses = [each.get("clause") for each in data.get("clauses") or () if not each.get("passed")]
    if not failed and clauses:
        return f"{len(clauses)} clauses do not hold {where}: {_list(clauses)}"
    if not failed:
        return f"all {len(data['checks'])} checks passed {where}; the review sends the work back"
    return f"{len(failed)} of {len(data['checks'])} checks failed {where}: {_list(failed)}"


def _goal_edited(data: Data) -> str:
    old, new = data["old"], data["new"]
    parts = [] if data["text"] is None else [f"new text: {data['text']}"]
    changed = {name: new[name] for name in new if new[name] != old[name]}
    if changed:
        parts.append(f"limits now: {_limits(changed)}")
    if data.get("verify") is not None:
        parts.append(f"decided from here on by: {_decided(data)}")
    return "; ".join(parts) or "limits as before"


def _decided(data: Data) -> str:
    clauses = data.get("clauses") or {}
    metrics = [each.get("text") for each in clauses.get("metrics") or ()]
    parts = [*data["verify"], *metrics, *(f"no {each}" for each in clauses.get("forbid") or ())]
    parts += [f"held out: {each.get('place')}" for each in clauses.get("holdout") or ()]
    if clauses.get("reserve"):
        parts.append(f"{clauses['reserve']:.0%} in reserve")
    return "; ".join(map(str, parts)) or "nothing"


def _goal_met(data: Data) -> str:
    return f"goal met: {len(data['checks'])} checks passed on commit {_commit(data['commit'])}"


def _merge_checked(data: Data) -> str:
    if data["conflicts"]:
        return f"conflicts in {_list(data['conflicts'])}"
    suspect = f"; {_list(data['suspect'])}, read for it, changed since" if data.get("suspect") else ""
    return f"merges cleanly with {_commit(data['target'])}{suspect}"


def _merge_tested(data: Data) -> str:
    checks = data["checks"]
    last = {check["command"]: check["passed"] for check in checks}
    failed = [command for command, passed in last.items() if not passed]
    flaky = f"; flaky: {_list(data['flaky'])}" if data["flaky"] else ""
    said = f"failed: {_list(failed)}" if failed else f"all {len(last)} passed"
    return f"{data['purpose']} on merged tree {_commit(data['tree'])}: {said}{flaky}"


def _critique_raised(data: Data) -> str:
    place = data["place"]
    weight = data["severity"] if data["evidence"] else f"{data['severity']}, an opinion"
    return f"{weight}: {place['path']}{':' + str(place['start']) if place['start'] else ''}: {data['text']}"


def _critique_reviewed(data: Data) -> str:
    found = f"{len(data['raised'])} new findings" if len(data["raised"]) != 1 else "1 new finding"
    stops = f"; {_list(data['blocking'])} must be settled first" if data["blocking"] else ""
    return f"tree {_commit(data['tree'])} reviewed ({_list(data['passes'])}): {found}{stops}"


def _merge_undoing(data: Data) -> str:
    files = data["files"]
    return (
        f"will take landing {data['merge']} back: {_branch(data['ref'])} to {_commit(data['new'])}; "
        f"{len(files)} files: {_list(files)}"
    )


def _merge_landing(data: Data) -> str:
    files = data["files"]
    return f"will move {_branch(data['ref'])} to {_commit(data['new'])}; {len(files)} files: {_list(files)}"


def _merge_landed(data: Data) -> str:
    return (
        f"{_branch(data['ref'])} moved from {_commit(data['old'])} to {_commit(data['new'])}; "
        f"checkout: {data['checkout']}"
    )


def _claim_asserted(data: Data) -> str:
    missing = sum(not each["holds"] for each in data["evidence"])
    cited = len(data["evidence"])
    found = "no evidence" if not cited else f"{missing} of {cited} citations not so" if missing else f"{cited} cited"
    return f"claims ({data['type']}; {found}): {data['text']}"


def _tier_labelled(d: Mapping[str, Any]) -> str:
    rules = [f"{rule.get('pattern')} {rule.get('label')}" for rule in d["rules"] if isinstance(rule, dict)]
    return f"labels of paths: {_list(rules) or 'the defaults'}"


def _budget_set(data: Data) -> str:
    return f"session limits: {_limits(data) or 'none'}"


def _git_answered(data: Data) -> str:
    # In an export without the user's words there is no more of an error than that there was one.
    error = f": {data['error'].get('text', 'an error')}" if data["error"] else ""
    return f"{data['chain']} asked {data['question']}{error}"


def _unknown(data: Data) -> str:
    return ", ".join(f"{name}={one_line(str(value), 60)}" for name, value in data.items())


_TEXTS: dict[str, Callable[[Data], str]] = {
    "session.opened": _session_opened,
    "session.resumed": _session_resumed,
    "session.mode": lambda d: f"approvals {d['approvals']}{'' if d['interactive'] else '; nobody can be asked'}",
    "session.forked": lambda d: (
        f"{'rewound to' if d['rewind'] else 'forked from'} event {d['seq']} of session {d['parent']}"
    ),
    "session.settled": lambda d: "what was open at the fork is settled",
    "session.rewound": lambda d: f"rewound to event {d['to']}: work goes on in session {d['session']}",
    "session.closed": lambda d: f"session closed: {d['reason']}",
    "log.recovered": _log_recovered,
    "git.answered": _git_answered,
    "state.digest": lambda d: f"state up to event {d['upto']} has digest {d['digest'][:12]}",
    "user.message": lambda d: f"to {d['to']}: {d['text']}",
    "user.steer": lambda d: f"to {d['to']}: {d['text']}",
    "user.interrupt": lambda d: f"stopped {d['scope']}",
    "agent.created": lambda d: f"created as {d['role']} ({d['profile']}) on {d['model']}",
    "agent.state": lambda d: f"{d['state']}{_why(d)}",
    "agent.woken": lambda d: f"woken{_why(d)}",
    "mail.sent": lambda d: f"to {d['to']}, {d['topic']}: {d['text']} ({d['reason']})",
    "mail.delivered": lambda d: f"reads letter {d['mail']}",
    "mail.acknowledged": lambda d: f"has dealt with letter {d['mail']}",
    "mail.dropped": lambda d: f"letter {d['mail']} is not delivered{_why(d)}",
    "agent.retired": lambda d: f"retired{_why(d)}",
    "role.taken": lambda d: f"role {d['name']} of the repository is used ({d['path']})",
    "role.dropped": lambda d: f"role {d['name']} is used no more{_why(d)}",
    "agent.seeded": _seeded,
    "agent.view": _view,
    "context.masked": _masked,
    "context.compacted": _compacted,
    "context.pinned": lambda d: (
        f"event {d['item']} {'stays word for word in' if d['pinned'] else 'may be left out of'} what {d['to']} is shown"
    ),
    "model.requested": _model_requested,
    "model.completed": _model_completed,
    "model.retried": _model_retried,
    "model.failed": _model_failed,
    "model.abandoned": lambda d: f"outcome unknown, {_money(d['cost_microusd'], True)} kept as spent{_why(d)}",
    "tool.requested": _tool_requested,
    "tool.decided": _tool_decided,
    "tool.started": _tool_started,
    "tool.finished": _tool_finished,
    "tool.failed": lambda d: f"could not be carried out: {d['output']}",
    "tool.cancelled": lambda d: f"cancelled: {d['output']}",
    "tool.unknown": lambda d: f"cut off by a crash, effects unknown: {d['output']}",
    "notebook.attached": lambda d: f"cell {d['cell']} of the notebook goes with the question to {d['to']}",
    "kernel.waiting": lambda d: f"the code {d['why']}",
    "kernel.running": lambda d: "the code begins to run in the user's kernel",
    "tool.reconciled": lambda d: f"after the restart: {d['finding']}",
    "approval.requested": _approval_requested,
    "approval.granted": _approval_granted,
    "approval.denied": lambda d: f"denied by {d['by']}{_why(d)}",
    "approval.expired": lambda d: f"the question expired{_why(d)}",
    "rule.added": lambda d: f"allowed for this {d.get('scope', 'session')}: {d['rule']}",
    "rule.removed": lambda d: f"rule {d['rule']} is in force no more ({d['by']})",
    "repository.touched": lambda d: (
        f"your repository changed while command {d['call']} ran: {_list([change['what'] for change in d['changes']])}"
    ),
    "file.observed": lambda d: f"saw {d['path']} ({d['size']:,} bytes)",
    "file.changed": _file_changed,
    "goal.set": _goal_set,
    "goal.based": _goal_based,
    "goal.edited": _goal_edited,
    "goal.cleared": lambda d: "cleared: it cannot be resumed, its branch is kept",
    "goal.paused": lambda d: f"paused{_why(d)}",
    "goal.resumed": lambda d: f"resumed{_why(d)}" + (f"; lands on {d['branch']}" if d.get("branch") else ""),
    "goal.claimed": lambda d: f"the agent claims to be done: {d['text']}",
    "goal.judged": _goal_judged,
    "goal.met": _goal_met,
    "goal.stopped": lambda d: f"{d['state']}{_why(d)}",
    "goal.warned": _goal_warned,
    "goal.exhausted": lambda d: f"all but the reserve is used ({d['limit']}): the last verification begins{_why(d)}",
    "goal.nudged": lambda d: f"{d['agent']} is told that nothing moves ({d['step']})",
    "goal.queued": lambda d: f"waits for its turn: {d['spec'].get('text')}",
    "goal.dequeued": lambda d: f"queued goal {d['queued']} waits no more{_why(d)}",
    "task.created": lambda d: f"task {d['name']}: {d['text']}",
    "tasks.tried": lambda d: (
        "the tasks' commands were tried before any work" + (f": {d['report']}" if d["report"] else "")
    ),
    "task.leased": lambda d: f"{d['agent']} works on task {d['task']}",
    "task.widened": lambda d: f"task {d['task']} really touches {_list([*d['writes'], *d['reads']])}",
    "task.paused": lambda d: f"task {d['task']} waits for the user{_why(d)}",
    "task.bounced": lambda d: f"task {d['task']} goes back to {d['agent']}{_why(d)}",
    "task.done": lambda d: f"task {d['task']} is done{_why(d)}",
    "task.abandoned": lambda d: f"task {d['task']} is given up{_why(d)}",
    "claim.asserted": _claim_asserted,
    "claim.checked": lambda d: f"claim {d['claim']} was looked at again and stands",
    "claim.verified": lambda d: f"verifies claim {d['claim']}{_why(d)}",
    "claim.challenged": lambda d: f"finds claim {d['claim']} not to be so{_why(d)}",
    "claim.staled": lambda d: f"claim {d['claim']} is stale: {d['why']} changed since; not re-checked",
    "claim.retracted": lambda d: f"takes claim {d['claim']} back{_why(d)}",
    "worktree.creating": lambda d: f"will create a worktree on {d['branch']} from {_commit(d['base'])}",
    "worktree.created": lambda d: f"worktree at {d['path']}",
    "worktree.updated": lambda d: f"the user's commits up to {_commit(d['target'])} are in it now: {_list(d['files'])}",
    "worktree.snapshotted": lambda d: (
        f"files of worktree {d['worktree']} are not known{_why(d)}"
        if d["commit"] is None
        else f"files after the command are kept in {_commit(d['commit'])}"
    ),
    "worktree.rehomed": lambda d: f"worktree {d['worktree']} is at {d['path']} on {d['branch']} here",
    "worktree.removing": lambda d: "will remove the worktree",
    "worktree.removed": lambda d: f"worktree removed; all of it is in {_branch(d['contained_in'])}",
    "merge.enqueued": lambda d: f"{_commit(d['commit'])} waits to land on {_branch(d['ref'])}",
    "merge.checked": _merge_checked,
    "merge.tested": _merge_tested,
    "merge.reviewed": lambda d: f"{d['validator']} {'agrees' if d['ok'] else 'objects'}{_why(d)}",
    "merge.landing": _merge_landing,
    "merge.landed": _merge_landed,
    "merge.bounced": lambda d: f"not landed, kept on {_branch(d['kept'])}{_why(d)}",
    "merge.moved": lambda d: f"{_branch(d['ref'])} is at {_commit(d['found'])} by now: the merge starts over",
    "merge.undoing": _merge_undoing,
    "merge.undone": lambda d: f"landing {d['merge']} is taken back: {_merge_landed(d)}",
    "merge.stays": lambda d: f"landing {d['merge']} stays{_why(d)}",
    "critique.asked": lambda d: f"{d['agent']} is put tree {_commit(d['tree'])}: {d['emphasis']}",
    "critique.raised": _critique_raised,
    "critique.answered": lambda d: f"finding {d['critique']} {d['answer']}{_why(d, 'text')}",
    "critique.fixed": lambda d: f"finding {d['critique']} is fixed{_why(d)}",
    "critique.withdrawn": lambda d: f"finding {d['critique']} is withdrawn{_why(d)}",
    "critique.reviewed": _critique_reviewed,
    "batch.settled": lambda d: (
        f"changes of {d['agent']} have settled ({_list(d['files']) or 'by commands'}): their review begins"
        + (f"; no model is asked{_why(d)}" if not d["steps"] else "")
    ),
    "batch.closed": lambda d: f"the review of batch {d['batch']} has ended{_why(d)}",
    "follow_up.set": lambda d: f"will look again once {_list(d['paths'])} land: {d['what']}",
    "checks.begun": lambda d: f"the verifier checks the work of {d['agent']}: {_list(d['commands'])}",
    "checks.ended": _checks_ended,
    **PLAN_TEXTS,
    **DRAFT_TEXTS,
    "tier.labelled": _tier_labelled,
    "tier.blocked": lambda d: f"not sent to {d['model']}: {d['rule']}",
    "tier.switched": lambda d: f"{d['model']} is pinned instead of {d['before']}",
    "budget.set": _budget_set,
    "budget.exceeded": lambda d: f"{d['scope']} limit{_why(d)}",
    "secret.redacted": lambda d: f"cut from {d['where']}: {_list(d['patterns'])}",
}
