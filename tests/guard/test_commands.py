"""What of a shell line is plain enough for a rule; the rest is asked. Real bash judges what a line would really run."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from musecode_jupyter.guard.commands import find_program, read_line, redirection_problem, words_of
from musecode_jupyter.guard.rules import HeldRule, covering, look, typed_rule

PATH = "/usr/local/bin:/usr/bin:/bin"


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("ls -la", [("ls", "-la")]),
        ("ls;cat x", [("ls",), ("cat", "x")]),
        ("ls && rm x || y", [("ls",), ("rm", "x"), ("y",)]),
        ("ls | cat |& wc", [("ls",), ("cat",), ("wc",)]),
        ("ls\nrm x", [("ls",), ("rm", "x")]),
        ("(ls; rm)", [("ls",), ("rm",)]),
        ("{ ls; rm x; }", [("ls",), ("rm", "x")]),
        ("! ls", [("ls",)]),
        ("for i in a b; do ls; done", [("ls",)]),
        ("while true; do ls; done", [("true",), ("ls",)]),
        ("until false; do ls; done", [("false",), ("ls",)]),
        ("if a; then b; elif c; then d; else e; fi", [("a",), ("b",), ("c",), ("d",), ("e",)]),
        ("'ls' \"a b\" c'd'\"e\"", [("ls", "a b", "cde")]),
        ("git commit -m 'one\ntwo; rm -rf x'", [("git", "commit", "-m", "one\ntwo; rm -rf x")]),
        ("ls > out 2>&1", [("ls",)]),
        ("sed -n 10,20p a.py", [("sed", "-n", "10,20p", "a.py")]),
        ("python -W ignore -m pytest -q tests/test_a.py::test_b", None),
        ("bash run.sh now", None),
        ("uv run python -m pytest", None),
        ("uv sync", None),
    ],
)
def test_a_line_is_taken_apart_into_its_simple_commands(text: str, commands: list[tuple[str, ...]] | None) -> None:
    line = read_line(text)
    assert (line.never, line.exact_only) == ("", "")
    if commands is not None:
        assert [command.words for command in line.commands] == commands


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ls $(rm x)", "command substitution"),
        ("ls `rm x`", "command substitution"),
        ('ls "$(rm x)"', "command substitution"),
        ('ls "`rm x`"', "command substitution"),
        ("ls ${x:-$(rm x)}", "command substitution"),
        ("ls ${a[$(rm x)]}", "subscript|command substitution"),
        ("ls ${x@P}", "rules do not cover"),
        ("ls <(rm x)", "process substitution"),
        ("ls >(rm x)", "process substitution"),
        ("ls > $(rm x)", "command substitution"),
        ("ls > $x", "not written out"),
        ("for i in $(rm x); do ls; done", "command substitution"),
        ("for PATH in /tmp; do ls; done", "variable PATH"),
        ("for ((i=0;i<3;i++)); do ls; done", "arithmetic"),
        ("ls $((x[$(rm)]))", "arithmetic"),
        ("((x))", "rules do not cover"),
        ("[ -f x ]", "test in brackets"),
        ("[[ -v 'a[$(rm)]' ]]", "test in brackets"),
        ("test -v x", "test"),
        ("printf -v x y", "printf with an option"),
        ("cat <<E\nx\nE", "here-document"),
        ("cat <<< x", "here-string"),
        ("ls &", "background"),
        ("ls & rm x", "background"),
        ("A=1 ls", "variable that it sets"),
        ("PATH=/tmp ls", "variable that it sets"),
        ("LD_PRELOAD=./x.so ls", "variable that it sets"),
        ("PYTHONPATH=. python -m pytest", "variable that it sets"),
        ("GIT_DIR=x git status", "variable that it sets"),
        ("A=1", "variable that it sets"),
        ("a=(1 2)", "variable that it sets"),
        ("export A=1", "variable that it declares"),
        ("declare -x A=1", "variable that it declares"),
        ("unset A", "variable that it unsets"),
        ("f() { ls; }", "function"),
        ("function ls { rm x; }; ls", "function"),
        ("case x in a) ls;; esac", "case"),
        ("select i in a; do ls; done", "."),
        ("ls # x", "comment"),
        ("ls #x\nrm x", "comment"),
        ("ls \\\n-la", "continued"),
        ("ls \\\nrm x", "continued"),
        ("$x y", "name that is not written out"),
        ("l? y", "name that is not written out"),
        ("l* y", "name that is not written out"),
        ("\\ls", "name that is not written out"),
        ("~/bin/x", "name that is not written out"),
        ("{ls,-la}", "parsed|not written out"),
        ("l{s,x}", "not written out|parsed"),
        ("$'ls'", "name that is not written out"),
        ('"l$x"', "name that is not written out"),
        ("ls;;", "."),
        ("ls |", "parsed"),
        ("ls 'x", "parsed"),
        ("if ls; then", "parsed"),
        ("ls )", "parsed"),
        ("", "no command"),
        (" \n ", "no command"),
        ("ls\0rm", "U\\+0000"),
        ("ls\rrm x", "U\\+000D"),
        ("ls\x0crm x", "U\\+000C"),
        ("ls\u00a0rm", "U\\+00A0"),
        ("ls\u2028rm x", "U\\+2028"),
        ("ls \u202egpj", "U\\+202E"),
        ("ls \udcff", "U\\+DCFF"),
        ("ls \x1b[1A", "U\\+001B"),
        ("ls " + "a" * 40_000, "length"),
        *[(f"{word} ls x", word.replace(".", r"\.")) for word in ("eval", "source", ".", "exec", "command", "builtin")],
        *[(f"{word} ls", word) for word in ("env", "xargs", "sudo", "nohup", "timeout", "time", "coproc", "trap")],
        ("/usr/bin/env ls", "env"),
        ("alias ls='rm -rf x'\nls", "alias"),
        ("shopt -s expand_aliases", "shopt"),
        ("hash -p /tmp/evil ls; ls", "hash"),
        ("enable -f x.so x", "enable"),
        ("set -- a", "set"),
        ("sh -c 'rm x'", "inline code"),
        ("bash -lc 'rm x'", "inline code"),
        ("bash", "inline code"),
        ("bash -s", "inline code"),
        ("bash /dev/stdin", "inline code"),
        ("python -c 'x'", "inline code"),
        ("python3.11 -Ic 'x'", "inline code"),
        ("python -W ignore -c x", "inline code"),
        ("python -", "inline code"),
        ("python", "inline code"),
        ("echo x | python", "inline code"),
        ("python -m timeit x", "inline code"),
        ("perl -e x", "inline code"),
        ("node --eval x", "inline code"),
        ("awk 'BEGIN{system(\"rm x\")}'", "inline code"),
        ("ipython -c x", "inline code"),
        ("uv run", "without a program"),
        ("uv run --with x pytest", "without a program"),
        ("uv run python -c x", "inline code"),
        ("poetry run env x", "env"),
        ("npx", "without a program"),
        ("find . -exec rm {} +", "option that runs"),
        ("find . -delete", "option that runs"),
        ("git -c core.pager=x status", "option that runs"),
        ("git -C /elsewhere status", "option that runs"),
        ("git grep -Ox y", "option that runs"),
        ("git log --output=/home/x", "option that runs"),
        ("sed -i s/a/b/e x", "option that runs"),
        ("sed 1e x", "option that runs"),
        ("tar --to-command=x -xf y", "option that runs"),
        ("sort --compress-program=x y", "option that runs"),
        # Programs that read their options by getopt_long take any unique beginning of a long one.
        ("sort --comp x y", "option that runs"),
        ("tar xf y --to-c=x", "option that runs"),
        ("tar cf y --use=x z", "option that runs"),
        ("tar cf y --checkpoint=1 --checkpoint-a=exec=x z", "option that runs"),
        ("tar cf y --rmt-command=x z", "option that runs"),
        ("tar cIf x y z", "option that runs"),
        ("git fetch --upload-p=x", "option that runs"),
        ("git grep --open y", "option that runs"),
        ("git rebase --exe x", "option that runs"),
        ("git rebase -ix y", "option that runs"),
        ("make --ev x", "option that runs"),
        ("make --makefile x", "option that runs"),
        ("make -kf x", "option that runs"),
        ("pip install --pyt x", "option that runs"),
        ("rg --pre x y", "option that runs"),
        ("split --filter x y", "option that runs"),
        ("zip a b -TT x", "option that runs"),
        ("gcc -wrapper x y.c", "option that runs"),
        ("go test -exec x ./...", "option that runs"),
        *[
            (f"{word} x y", re.escape(word))
            for word in (
                "bwrap",
                "docker",
                "mpirun",
                "nsys",
                "perf",
                "prlimit",
                "setarch",
                "srun",
                "torchrun",
                "valgrind",
            )
        ],
        ("/lib64/ld-linux-x86-64.so.2 /bin/rm x", "ld-linux"),
        ("/lib/ld-musl-x86_64.so.1 /bin/rm x", "ld-musl"),
    ],
)
def test_what_no_rule_covers_is_named(text: str, says: str) -> None:
    never = read_line(text).never
    assert never
    assert re.search(says, never), never


@pytest.mark.parametrize(
    "text",
    [
        "tar xf y.tar -C x",
        "git log --oneline -3",
        "git diff --stat",
        "make -j4 check",
        "make target-final",
        "sort --check x",
        "gcc -Wall -O2 x.c",
        "pip install --constraint x y",
        "split --lines 3 x",
        "rg --pretty x",
    ],
)
def test_options_that_run_nothing_are_covered(text: str) -> None:
    line = read_line(text)
    assert (line.never, line.exact_only) == ("", "")


@pytest.mark.parametrize(
    "text",
    ["ls *.py", "ls a?", "ls [ab]", "ls {a,b}", "ls a{1..3}", "ls ~/x", "ls $x", 'ls "$x"', "ls $'a'", "ls a\\;b"],
)
def test_words_that_are_expanded_are_for_exact_rules_only(text: str) -> None:
    line = read_line(text)
    assert line.never == ""
    assert "expanded" in line.exact_only


def test_a_change_of_directory_is_for_exact_rules_only() -> None:
    line = read_line("cd sub && python -m pytest -q 2>&1 | tail -5")
    assert (line.never, line.exact_only) == ("", "it changes the directory")


def test_a_prefix_is_the_words_of_one_plain_command() -> None:
    assert words_of("python -m pytest") == ("python", "-m", "pytest")
    for text, says in (
        ("ls; rm", "more than one"),
        ("ls > x", "more than one"),
        ("ls *", "expanded"),
        ("eval x", "eval"),
    ):
        with pytest.raises(ValueError, match=says):
            words_of(text)


class TestRedirections:
    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("ls > out", ""),
            ("ls > sub/../out 2> sub/err", ""),
            ("ls < in", ""),
            ("ls > /dev/null 2>&1", ""),
            ("ls &>> out", ""),
            ("ls > ../out", "outside"),
            ("ls > /etc/passwd", "outside"),
            ("ls < /etc/passwd", "outside"),
            ("ls > link/x", "outside"),
            ("ls > dangling", "outside"),
            ("ls > .git/config", "git"),
            ("ls > .GIT/config", "git"),
            ("ls > fifo", "no regular file"),
            ("ls > /dev/tcp/127.0.0.1/80", "outside"),
            ("ls > .", "outside"),
            ("cd sub && ls > x", "depends on the directory"),
        ],
    )
    def test_where_they_lead(self, text: str, says: str, tmp_path: Path) -> None:
        root = tmp_path / "root"
        (root / "sub").mkdir(parents=True)
        (tmp_path / "outside").mkdir()
        (root / "link").symlink_to("../outside")
        (root / "dangling").symlink_to("../outside/gone")
        os.mkfifo(root / "fifo")
        problem = redirection_problem(read_line(text), root)
        assert says in problem
        assert bool(problem) == bool(says)


class TestPrograms:
    def test_the_first_of_the_path_counts_and_links_are_named(self, tmp_path: Path) -> None:
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "tool").write_text("")
            (tmp_path / folder / "tool").chmod(0o755)
        path = f"{tmp_path}/a:{tmp_path}/b"
        assert find_program("tool", path=path, cwd=tmp_path) == f"{tmp_path}/a/tool"
        (tmp_path / "a" / "tool").chmod(0o644)
        assert find_program("tool", path=path, cwd=tmp_path) == f"{tmp_path}/b/tool"
        (tmp_path / "a" / "tool").unlink()
        (tmp_path / "a" / "tool").symlink_to(tmp_path / "b" / "tool")
        assert find_program("tool", path=path, cwd=tmp_path) == f"{tmp_path}/a/tool -> {tmp_path}/b/tool"
        assert find_program("other", path=path, cwd=tmp_path) == ""
        assert find_program("b/tool", path=path, cwd=tmp_path) == f"{tmp_path}/b/tool"

    @pytest.mark.parametrize("path", ["", ":/usr/bin", "bin:/usr/bin", ".:/usr/bin"])
    def test_a_path_that_depends_on_the_directory_finds_nothing(self, path: str, tmp_path: Path) -> None:
        assert find_program("ls", path=path, cwd=tmp_path) == ""

    def test_builtins_are_themselves(self, tmp_path: Path) -> None:
        assert find_program("echo", path=PATH, cwd=tmp_path) == "builtin echo"


# --- against real bash ---------------------------------------------------------------------------------

ALLOWED = ("echo one", "true")
OTHER = "touch ../made"
JOINTS = (
    "{a}; {b}",
    "{a} & {b}",
    "{a} && {b}",
    "{a} || {b}",
    "{a} | {b}",
    "{a} |& {b}",
    "{a}\n{b}",
    "{b}\n{a}",
    "{b}; {a}",
    "{a} $({b})",
    '{a} "$({b})"',
    "{a} `{b}`",
    "{a} <({b})",
    "{a} > >({b})",
    "{a} ${{x:-$({b})}}",
    "({a}; {b})",
    "{{ {a}; {b}; }}",
    "! {b}",
    "if {a}; then {b}; fi",
    "while {b}; do {a}; break; done",
    "for i in 1; do {b}; done",
    "x() {{ {b}; }}; {a}; x",
    "echo() {{ {b}; }}; {a}",
    "{a} <<E\n$({b})\nE",
    "{a} <<< $({b})",
    "eval {b}",
    "{a} #\n{b}",
    "{a} \\\n; {b}",
    "trap '{b}' EXIT; {a}",
    "alias echo='{b}'\n{a}",
    "A=$({b}) {a}",
    "bash -c '{b}'; {a}",
    "env {b}",
    "command {b}",
    "case x in x) {b};; esac; {a}",
    "coproc {b}; {a}; wait",
    "{a};{b}",
    "{a}&&{b}",
    "{a}|{b}",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def _rules() -> dict[int, HeldRule]:
    return {
        number: HeldRule(rule=typed_rule(text, path=PATH), scope="session", since="")
        for number, text in enumerate(ALLOWED)
    }


def _covered(text: str, root: Path) -> bool:
    return bool(covering(_rules(), look(text, path=PATH, root=root, isolated=True)))


def _bash(text: str, root: Path) -> bool:
    """Whether the line, run by bash, made the file that only the command that is not allowed makes."""
    made = root.parent / "made"
    made.unlink(missing_ok=True)
    subprocess.run(
        ["bash", "-c", text.encode("utf-8", "surrogateescape")],
        cwd=root,
        env={"PATH": PATH},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=20,
    )
    return made.exists()


def test_what_is_allowed_alone_is_allowed_in_all_that_is_made_of_it(root: Path) -> None:
    for text in (
        "echo one",
        "echo one two && true",
        "echo one | true",
        "(echo one; true) > out",
        "if true; then echo one; fi",
    ):
        assert _covered(text, root), text


@pytest.mark.parametrize("joint", JOINTS)
def test_no_joint_carries_another_command_along(joint: str, root: Path) -> None:
    line = joint.format(a=ALLOWED[0], b=OTHER)
    assert not _covered(line, root)


def test_these_joints_do_run_what_they_carry(root: Path) -> None:
    """Otherwise the test above would prove little."""
    ran = [joint for joint in JOINTS if _bash(joint.format(a=ALLOWED[0], b=OTHER), root)]
    assert len(ran) > 30


words = st.sampled_from(["touch", "rm", "python", "git", "sh", "ls", "cat", "./x", "/bin/ls"])
others = st.builds(
    lambda name, rest: " ".join([name, *rest]),
    words,
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=3),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(JOINTS), others)
def test_no_command_built_from_an_allowed_one_is_allowed_by_its_rule(root: Path, joint: str, other: str) -> None:
    assume("{" not in other and "}" not in other)
    # A text that closes itself away, such as `touch'`, is no other command any more.
    alone = read_line(other)
    assume(not alone.never and len(alone.commands) == 1)
    assert not _covered(joint.format(a=ALLOWED[0], b=other), root)


FRAGMENTS = [
    *("echo", "one", "true", "touch ../made", " ", "\n", "\t", ";", "&", "|", "&&", "||", "(", ")", "{", "}", "!"),
    *("$(", "`", '"', "'", "$'", '$"', "\\", "#", "<", ">", "<<E\n", "\nE\n", "<<<", "=", "A=", "$x", "*", "?"),
    *("if ", "; then ", "; fi", "for i in ", "; do ", "; done", "! ", "[[ ", " ]]", "((", "))", "\r", "\x0b"),
    *("é", "\u00a0", "x() ", "eval ", "time ", "coproc ", "~", "-", "/", "2>", ">&", "&>", "${", "case x in x) ", ";;"),
]
BASES = [
    "echo one",
    "echo one 'touch ../made'",
    'echo one "touch ../made"; true',
    "echo one && echo one 'a b' | true",
    "if true; then echo one; fi\necho one touch ../made",
    "(echo one touch ../made; true) > out 2>&1",
    "echo one touch ../made >> out",
    "for i in touch ../made; do echo one; done",
    "echo one '\ntouch ../made\n'",
]


@st.composite
def disturbed(draw: st.DrawFn) -> str:
    """A line that rules cover, with up to two fragments put in anywhere."""
    line: str = draw(st.sampled_from(BASES))
    for fragment in draw(st.lists(st.sampled_from(FRAGMENTS), max_size=2)):
        at = draw(st.integers(0, len(line)))
        line = line[:at] + fragment + line[at:]
    return line


def test_the_bases_are_covered_and_harmless(root: Path) -> None:
    for line in BASES:
        assert _covered(line, root), line
        assert not _bash(line, root), line


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(disturbed())
def test_real_bash_never_runs_another_command_in_a_line_that_rules_cover(root: Path, line: str) -> None:
    if _covered(line, root):
        assert not _bash(line, root), line
