"""The policy: every combination of mode, front end, effect and place, against what each may decide."""

from __future__ import annotations

import itertools

import pytest

from musecode_jupyter.guard.policy import MODES, Policy, action_digest, parse_mode
from musecode_jupyter.runtime.errors import ConfigurationError

NONE: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("mode", "interactive", "effect", "isolated", "covered"),
    list(itertools.product(MODES, (True, False), ("read", "write", "process"), (True, False), (None, "rule 3: x"))),
)
def test_every_verdict_follows_from_its_reason(
    mode: str, interactive: bool, effect: str, isolated: bool, covered: str | None
) -> None:
    verdict = Policy(parse_mode(mode), interactive).tool(
        effect, arguments={"command": "x"}, isolated=isolated, typed=NONE, covered=covered
    )
    if effect == "read":
        expected = "allow"
    elif effect == "write":
        expected = "allow" if isolated else "deny"
    elif covered:
        expected = "allow"
        assert verdict.rule == covered
    elif mode == "allow-workspace":
        expected = "allow" if isolated else "deny"
    else:
        expected = "ask" if mode == "ask" and interactive else "deny"
    assert verdict.decision == expected
    assert verdict.rule


def test_a_typed_verify_command_is_allowed_by_its_whole_text_only() -> None:
    policy = Policy("deny", False)
    typed = frozenset({"python -m pytest -q"})
    for command, expected in (
        ("python -m pytest -q", "allow"),
        ("python -m pytest -q; rm x", "deny"),
        ("python", "deny"),
    ):
        verdict = policy.tool("process", arguments={"command": command}, isolated=True, typed=typed, covered=None)
        assert verdict.decision == expected


@pytest.mark.parametrize(("mode", "expected"), [("ask", "ask"), ("deny", "deny"), ("allow-workspace", "allow")])
def test_a_landing_needs_a_rule_a_mode_or_an_answer(mode: str, expected: str) -> None:
    policy = Policy(parse_mode(mode), True)
    assert policy.landing(None).decision == expected
    assert policy.landing("session rule 4: land on main").decision == "allow"


@pytest.mark.parametrize(("mode", "expected"), [("ask", "ask"), ("deny", "deny"), ("allow-workspace", "allow")])
def test_acceptance_commands_of_a_model_need_rules_for_all_of_them_a_mode_or_an_answer(
    mode: str, expected: str
) -> None:
    policy = Policy(parse_mode(mode), True)
    assert policy.acceptance(["a", "b"], {"a": "rule 3: a"}).decision == expected
    covered = policy.acceptance(["a", "b"], {"a": "rule 3: a", "b": "rule 4: b"})
    assert (covered.decision, covered.rule) == ("allow", "rule 3: a, rule 4: b")
    assert policy.acceptance([], {}).decision == "allow"
    nobody = Policy(parse_mode(mode), False).acceptance(["a"], {}).decision
    assert nobody == ("deny" if expected == "ask" else expected)


def test_the_mode_is_named_wrongly() -> None:
    with pytest.raises(ConfigurationError, match="ask, deny, allow-workspace"):
        parse_mode("yes")


def test_the_digest_is_of_everything_that_is_shown_in_any_order() -> None:
    shown = {"tool": "run", "command": "ls", "deep": {"a": [1, {"b": 2}], "c": None}}
    turned = {"deep": {"c": None, "a": [1, {"b": 2}]}, "command": "ls", "tool": "run"}
    assert action_digest("run", shown) == action_digest("run", turned)
    for other in (
        {**shown, "command": "ls "},
        {**shown, "deep": {"a": [1, {"b": 3}], "c": None}},
        {**shown, "more": 1},
    ):
        assert action_digest("run", other) != action_digest("run", shown)
    assert action_digest("land", shown) != action_digest("run", shown)
