"""Labels: of paths by rules, of prompts by their parts; and a tier file that cannot be understood opens nothing."""

from __future__ import annotations

import asyncio
import tempfile
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from musecode_jupyter.agents.conversations import prompt_parts
from musecode_jupyter.guard.labels import ORDER, Clearance, above, clearance_of, highest, label_of
from musecode_jupyter.guard.path_labels import judge_path, licence_rules, parse_tier_file, read_tier_file
from musecode_jupyter.guard.tiers import Held, Labeller, TiersState, refusal, released_diff
from musecode_jupyter.log import EventLog, Redactor
from musecode_jupyter.models.catalogue import is_other
from musecode_jupyter.runtime.errors import ConfigurationError
from musecode_jupyter.session.reducers import all_reducers

LABELS = st.sampled_from(["", "public", "standard", "private"])


@given(st.lists(LABELS, max_size=8), st.sampled_from(["", "public", "standard", "private"]))
def test_the_highest_label_is_above_a_clearance_exactly_if_one_part_is(labels: list[str], clearance: Clearance) -> None:
    assert all(ORDER[highest(*labels)] >= ORDER[label_of(each)] for each in labels)
    if labels:
        assert above(highest(*labels), clearance) == any(above(each, clearance) for each in labels)


def test_a_label_that_is_not_known_counts_as_the_highest() -> None:
    assert label_of("top secret") == "private"


@pytest.mark.parametrize(
    ("tier", "remote", "opted", "most"),
    [
        ("contributor", True, False, ""),
        ("contributor", False, False, ""),
        ("contributor", True, True, "standard"),
        ("contributor", False, True, "standard"),
        ("standard", True, False, "private"),
        ("standard", False, True, "private"),
        ("local", False, False, "private"),
    ],
)
def test_what_a_model_may_get(tier: Any, remote: bool, opted: bool, most: str) -> None:
    assert clearance_of(tier, remote=remote, opted=opted) == most
    if tier == "standard":
        assert clearance_of(tier, remote=remote, opted=opted, standard="standard") == (
            "standard" if remote else "private"
        )


@pytest.mark.parametrize(
    ("path", "label"),
    [
        *[(path, "private") for path in (".env", "a/.ENV", ".env.production", "deploy/id_rsa", "x/server.pem")],
        *[(path, "private") for path in ("data/x.txt", "a/Data/b/c.py", "table.csv", ".aws/config", "secrets.yaml")],
        *[(path, "standard") for path in ("src/data.py", "README.md", ".env.example", "keyboard.py")],
    ],
)
def test_defaults(path: str, label: str) -> None:
    assert judge_path(path, ()).label == label


def test_the_last_rule_counts_secrets_stay_and_the_users_word_is_above_all() -> None:
    rules = parse_tier_file(
        '[paths]\n"data" = "standard"\n"data/raw/**" = "private"\n"docs" = "public"\n"**/*.env" = "private"\n'
    ).rules
    said = {path: judge_path(path, rules).label for path in ("data/a.py", "data/raw/a", "docs/x/y.md", "src/.env")}
    assert said == {"data/a.py": "standard", "data/raw/a": "private", "docs/x/y.md": "public", "src/.env": "private"}
    assert judge_path("data/raw/a", rules, [("data", "public")]).label == "public"
    assert judge_path(".env", rules, [(".env", "standard"), ("*", "private")]).label == "private", "the newest counts"
    assert judge_path("data/raw/a", rules).rule == "data/raw/a: data/raw/** (.musecode/tiers.toml, line 3)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[paths]\n"a" = "secret"', "line 2: 'secret' is no label"),
        ('[paths]\n"a" = 3', "line 2: 3 is no label"),
        ('[paths]\n\n"../a" = "private"', "line 3: '../a' is no path below"),
        ('[paths]\n"/etc" = "private"', "line 2: '/etc' is no path below"),
        ('[paths]\n"a[" = "private"\n"[b" = \n', "line 3: it is no TOML"),
        ('# x\n[pahts]\n"a" = "private"', "line 2: there is no table 'pahts'"),
        ('[paths]\n"a" = "private"\n"a" = "public"', "line 3: it is no TOML"),
        ('[paths]\n"src" = "public"\n".env" = "public"', r"line 3: '\.env' holds secrets by default"),
        ('[clearance]\nstandard = "public"', "line 2: .clearance. takes standard"),
        ('paths = "x"', "line 1: paths is no table"),
        ("[paths]\n[paths.a]\nb = 1\n", "line 2: {'b': 1} is no label"),
    ],
)
def test_a_tier_file_that_cannot_be_understood_names_the_line(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse_tier_file(text)


def test_a_tier_file_that_cannot_be_read_is_an_error_and_none_is_none(tmp_path: Path) -> None:
    assert read_tier_file(tmp_path).digest == ""
    (tmp_path / ".musecode").mkdir()
    path = tmp_path / ".musecode" / "tiers.toml"
    path.write_bytes(b'[paths]\n"\xff" = "private"\n')
    with pytest.raises(ConfigurationError, match=r"tiers\.toml, line 2: it is no UTF-8"):
        read_tier_file(tmp_path)
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_tier_file(tmp_path)


def test_a_licence_raises_and_never_lowers(tmp_path: Path) -> None:
    (tmp_path / "vendor").mkdir()
    (tmp_path / "LICENSE").write_text("MIT License. Permission is hereby granted ... All rights reserved.")
    (tmp_path / "vendor" / "LICENSE.txt").write_text("(c) Someone. All rights reserved. Proprietary and confidential.")
    rules = licence_rules(tmp_path, ["LICENSE", "vendor/LICENSE.txt", "vendor/a.py", "licensed.py"])
    assert [each.pattern for each in rules] == ["vendor/**"]
    assert judge_path("vendor/a.py", rules).label == "private"
    assert judge_path("data/a.txt", rules).label == "private", "an open licence lowered it"
    assert judge_path("a.py", rules).label == "standard"


def test_a_diff_loses_what_the_model_may_not_get_and_what_cannot_be_read_off_it() -> None:
    section = "diff --git a/{0} b/{0}\nindex 1..2\n--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-x\n+{1}\n"
    odd = 'diff --git "a/\\303\\251" "b/\\303\\251"\n+odd\n'
    diff = section.format("src/a.py", "open") + section.format("data/x", "hidden") + odd
    state = TiersState(model="muse-spark-1.3-contributor", opted=1)
    kept, label = released_diff(state, diff)
    assert "open" in kept
    assert "hidden" not in kept
    assert "odd" not in kept
    assert label == "standard"
    kept, label = released_diff(TiersState(model="muse-spark-1.3"), diff)
    assert (kept, label) == (diff, "private")


def test_what_was_seen_before_the_opt_in_stays_but_for_the_users_words() -> None:
    state = TiersState(model="muse-spark-1.3-contributor", opted=10)
    early, later = Held(9, "tool.finished", "lead", ""), Held(11, "tool.finished", "lead", "")
    assert refusal(state, lambda: [later, Held(3, "user.message", "user", "")]) is None
    found = refusal(state, lambda: [later, early])
    assert found is not None
    assert (found.part, found.rule) == (early, "it was seen before the opt-in (event 10)")
    assert refusal(TiersState(model="muse-spark-1.3"), lambda: [early, Held(1, "x", "lead", "private")]) is None


@pytest.mark.parametrize(
    ("pinned", "served", "other"),
    [
        ("muse-spark-1.3", "muse-spark-1.3-0612", False),
        ("muse-spark-1.3", "meta/muse-spark-1.3", False),
        ("muse-spark-1.3", "", False),
        ("muse-spark-1.3", "muse-spark-1.2", True),
        ("muse-spark-1.3", "muse-spark-1.3-contributor", True),
        ("muse-spark-1.3-contributor", "muse-spark-1.3", True),
        ("muse-spark-1.3", "gpt-x", True),
        ("gpt-x", "gpt-x-2026-01-01", False),
        ("qwen", "/models/qwen.gguf", False),
        ("qwen", "x-Contributor", True),
    ],
)
def test_another_model_is_told_from_another_name_of_it(pinned: str, served: str, other: bool) -> None:
    assert is_other(pinned, served) == other


AGENTS = st.sampled_from(["a", "b"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("asks"), AGENTS),
        st.tuples(st.just("sees"), AGENTS, st.sampled_from(["", "private"])),
        st.tuples(st.just("writes to"), AGENTS, AGENTS),
        st.tuples(st.just("shortens"), AGENTS),
        st.tuples(st.just("is told"), AGENTS, st.booleans()),
    ),
    max_size=14,
)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_the_label_of_a_prompt_is_never_below_that_of_a_part(steps: list[tuple[Any, ...]]) -> None:
    """Whatever agents see, write and sum up, in any order; and one that saw nothing private stays standard."""

    async def run(folder: Path) -> None:
        ticks = count()
        log = EventLog.create(
            folder,
            reducers=all_reducers(),
            redactor=Redactor(["sk-0123456789"]),
            now=lambda: datetime.fromtimestamp(next(ticks), UTC),
        )
        log.labeller = Labeller(log)
        for name in ("a", "b"):
            log.post("agent.created", {"role": "worker", "profile": "driver", "model": "m"}, agent=name)
            log.post("agent.seeded", {"instructions": "x", "tools": []}, agent=name)
            log.post("user.message", {"text": "begin", "to": name}, agent="user")
        held = {"a": False, "b": False}
        for step, name, *rest in steps:
            if step == "asks":
                held[name] |= _ask(log, name, [])
            elif step == "sees":
                call = {"type": "tool_call", "call_id": "c", "name": "read", "arguments": "{}"}
                _ask(log, name, [call])
                asked = {"name": "read", "arguments": {}, "origin": "model", "call_id": "c"}
                seq = log.post("tool.requested", asked, agent=name).seq
                log.post("tool.finished", {"call": seq, "output": "x", "ok": True}, agent=name, label=rest[0])
                held[name] |= rest[0] == "private"
            elif step == "writes to":
                said = {"to": rest[0], "priority": "next", "topic": "t", "text": "x", "reason": "r"}
                seq = log.post("mail.sent", said, agent=name).seq
                log.post("mail.delivered", {"mail": seq}, agent=rest[0], cause=(seq,))
                held[rest[0]] |= held[name]
            elif step == "shortens":
                size = {
                    "before": 2,
                    "after": 1,
                    "why": "w",
                    "how": "compact",
                    "cut": None,
                    "text": "x",
                    "summary": None,
                }
                log.post("context.compacted", size, agent=name)
            else:
                text = "the key is sk-0123456789" if rest[0] else "go on"
                log.post("user.message", {"text": text, "to": name}, agent="user")
                held[name] |= rest[0]
            for each in ("a", "b"):
                parts = prompt_parts(log, each, None)
                label = _label_of_prompt(log, each)
                assert ORDER[label] >= max(ORDER[label_of(part.label)] for part in parts)
                assert (label == "private") == held[each]
        await log.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder) / "s"))


def _ask(log: EventLog, agent: str, items: list[Any]) -> bool:
    request = _request(log, agent)
    answered = {"request": request, "status": "completed", "items": items, "usage": None, "cost_microusd": 0}
    more = {"estimated": True, "ttft_s": None, "seconds": 0.0, "attempts": 1}
    return log.post("model.completed", {**answered, **more}, agent=agent).label == "private"


def _request(log: EventLog, agent: str) -> int:
    data: dict[str, Any] = dict.fromkeys(("effort", "temperature", "seed", "cache_key", "view"))
    data |= {"model": "m", "api": "chat", "items": 1, "max_output_tokens": 1, "digest": "", "bytes": 1}
    return log.post("model.requested", {**data, "reserved_microusd": 0, "reserved_tokens": 0}, agent=agent).seq


def _label_of_prompt(log: EventLog, agent: str) -> str:
    assert log.labeller is not None
    return label_of(log.labeller.label("model.requested", {}, agent, ()))
