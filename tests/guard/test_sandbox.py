"""What each sandbox promises, and that what it does not promise is really not so: one suite for both."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fixtures.sandbox_bench import BACKENDS, SECRETS, Bench, bench, digest, git, missing

from musecode_jupyter.guard.sandbox import Promise

Make = Callable[..., Bench]


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    problem = missing(request.param)
    if problem:
        pytest.skip(problem)
    return str(request.param)


@pytest.fixture
def place(backend: str, tmp_path: Path) -> Iterator[Bench]:
    with bench(backend, tmp_path) as made:
        yield made


def test_promises_are_stated(place: Bench) -> None:
    """What the plain sandbox does not promise is listed here, and shown to be missing by the tests below."""
    if place.sandbox.name == "bubblewrap":
        assert place.sandbox.promises == set(Promise)
        assert place.sandbox.banner == ""
    else:
        assert set(Promise) - place.sandbox.promises == {
            Promise.REPOSITORY,
            Promise.CHECKOUT,
            Promise.OUTSIDE,
            Promise.HOME,
            Promise.FRESH,
            Promise.SESSIONS,
            Promise.NETWORK,
            Promise.PROCESSES,
            Promise.ENDED,
        }
        assert "MUSECODE_SANDBOX=plain" in place.sandbox.banner


ATTACKS = {
    "stash pop": "git stash pop",
    "stash drop": "git stash drop",
    "stash push": "echo more >> file.txt && git stash push",
    "update-ref": "git update-ref refs/heads/main HEAD~1",
    "checkout -B": "git checkout -q -B fresh && git branch -f other HEAD~1",
    "commit": "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x",
    "branch -D": "git branch -D other",
    "worktree remove": 'git worktree remove --force "$PWD"',
    "worktree prune": "git worktree add -q ../second HEAD",
    "gc": "git gc -q --prune=now",
    "config": "git config user.name somebody",
    "hook": "echo exit 1 > $(git rev-parse --git-path hooks)/pre-commit",
    "index of the user": "git -C $REPO add file.txt; echo more >> $REPO/file.txt; git -C $REPO commit -q -a -m x",
    "files in .git": "rm -f $REPO/.git/packed-refs && echo x > $REPO/.git/HEAD",
    "the tree's .git": "rm -f .git; git init -q .",
    "tag": "git tag mine",
}


def attacked(place: Bench, attack: str) -> tuple[bool, int | None, str]:
    """Whether an attack left the repository as it was, and its exit status and output."""
    place.env["REPO"] = str(place.repo)
    link = place.tree / ".git"
    before = digest(place.repo / ".git"), link.read_bytes()
    result = place.run(attack, timeout=60).result
    assert result.ended == "exited", f"{attack}: {result.text}"
    after = digest(place.repo / ".git"), link.read_bytes() if link.is_file() else b""
    return before == after, result.exit, f"{attack}: {result.text}"


def test_the_repository_cannot_be_changed(place: Bench) -> None:
    held = Promise.REPOSITORY in place.sandbox.promises
    for attack in ATTACKS.values() if held else [ATTACKS["branch -D"]]:
        unchanged, code, text = attacked(place, attack)
        assert unchanged == held, text
        assert (code != 0) == held, text


@pytest.mark.parametrize("name", ["stash pop", "update-ref", "commit", "the tree's .git"])
def test_the_attacks_are_real(name: str, tmp_path: Path) -> None:
    """Without a sandbox they do what the test above shows to be impossible in one."""
    with bench("plain", tmp_path) as place:
        unchanged, _, text = attacked(place, ATTACKS[name])
        assert not unchanged, text


def test_git_can_read(place: Bench) -> None:
    commands = (
        "echo three >> file.txt; git status --porcelain; git diff --shortstat; git log --format=%s;"
        "git show HEAD~1:file.txt; git ls-files; git blame -s file.txt | wc -l;"
        "git for-each-ref --format='%(refname)' refs/heads refs/stash; git rev-parse --abbrev-ref HEAD"
    )
    assert place.text(commands).splitlines() == [
        " M file.txt",
        " 1 file changed, 1 insertion(+)",
        "second",
        "first",
        "one",
        ".gitignore",
        "file.txt",
        "src/part.py",
        "3",
        "refs/heads/main",
        "refs/heads/musecode/one/1",
        "refs/heads/other",
        "refs/stash",
        "musecode/one/1",
    ]


def test_what_is_refused_of_git_says_what_to_do(place: Bench) -> None:
    confined = place.run("git commit -q --allow-empty -m x")
    if place.sandbox.name == "bubblewrap":
        assert "git show HEAD:PATH > PATH" in confined.note
        assert place.run("git show HEAD~1:file.txt > file.txt").result.exit == 0
        assert (place.tree / "file.txt").read_text() == "one\n"
    else:
        assert confined.note == ""


def test_the_checkout_is_the_agents_tree_under_its_own_name(place: Bench) -> None:
    """A command with an absolute `cd` into the user's checkout worked there."""
    held = Promise.CHECKOUT in place.sandbox.promises
    (place.tree / "file.txt").write_text("of the agent\n")
    before = digest(place.repo)
    repo = shlex.quote(str(place.repo))
    assert (place.text(f"cat {repo}/file.txt") == "of the agent\n") == held
    assert ("secret of .env" in place.text(f"cat {repo}/.env")) != held
    place.run(f"cd {repo} && echo written > file.txt")
    assert ((place.tree / "file.txt").read_text() == "written\n") == held
    assert (place.run(f"echo new > {repo}/new.txt").result.exit != 0) == held
    assert (place.run(f"rm -rf {repo}/src/part.py {repo}/.env").result.exit == 0) or held
    assert (digest(place.repo) == before) == held


def test_a_virtual_environment_in_the_checkout_runs_and_imports_the_agents_tree(place: Bench) -> None:
    """An editable install led to the user's files, so that a check judged those in place of the agent's."""
    venv = place.repo / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "part.pth").write_text(f"{place.repo / 'src'}\n")
    (place.tree / "src" / "part.py").write_text("VALUE = 'new'\n")
    place.env["PATH"] = f"{venv / 'bin'}:/usr/bin:/bin"
    place.env["VIRTUAL_ENV"] = str(venv)
    text = place.text("cd / && python -c 'import part, sys; print(part.VALUE, sys.prefix)'")
    held = Promise.CHECKOUT in place.sandbox.promises
    assert text == f"{'new' if held else 'old'} {venv}\n"
    assert (place.run(f"touch {shlex.quote(str(venv))}/mark").result.exit != 0) == held


def test_nothing_outside_can_be_written(place: Bench, tmp_path: Path) -> None:
    held = Promise.OUTSIDE in place.sandbox.promises
    name = f"musecode-test-{os.getpid()}"
    outside = [tmp_path / name, place.home / name, place.session / name, Path("/tmp") / name, Path("/var/tmp") / name]
    try:
        place.run("; ".join(f"touch {shlex.quote(str(path))}" for path in outside))
        assert [path.exists() for path in outside] == [not held] * len(outside)
    finally:
        for path in outside:
            path.unlink(missing_ok=True)


def test_the_tree_the_home_and_tmp_are_written_and_found_again(place: Bench) -> None:
    place.run("mkdir -p ~/.cache/x && echo cached > ~/.cache/x/y; echo kept > /tmp/musecode-kept; echo made > made.txt")
    assert place.text("cat ~/.cache/x/y /tmp/musecode-kept made.txt; rm /tmp/musecode-kept") == "cached\nkept\nmade\n"
    assert (place.tree / "made.txt").read_text() == "made\n"


def test_a_check_finds_nothing_that_the_agent_left_in_home_or_tmp(place: Bench) -> None:
    """What an agent writes to its home could make a check pass: a sitecustomize of the user's Python, for example."""
    held = Promise.FRESH in place.sandbox.promises
    place.run("echo left > ~/left; echo left > /tmp/musecode-left")
    realm = place.realm(fresh=True)
    try:
        assert (place.run("cat ~/left /tmp/musecode-left", realm).result.exit != 0) == held
        assert place.run("touch ~/mine /tmp/musecode-mine", realm).result.exit == 0
        assert (place.run("ls ~/mine /tmp/musecode-mine", realm).result.exit != 0) == held
        assert place.text("cat ~/left /tmp/musecode-left") == "left\nleft\n"
    finally:
        place.run("rm -f /tmp/musecode-left /tmp/musecode-mine")


def test_the_home_cannot_be_seen(place: Bench) -> None:
    text = place.text(f"cd ~; cat {' '.join(SECRETS)}; ls -aR ~ {shlex.quote(str(place.home))}")
    listing = text.partition(":\n.\n..\n")[2]
    for name in SECRETS:
        seen = f"secret of {name}" in text or f"{Path(name).name}\n" in listing
        assert seen != (Promise.HOME in place.sandbox.promises), text


def test_what_the_user_allows_can_be_read(backend: str, tmp_path: Path) -> None:
    (tmp_path / "user" / "models").mkdir(parents=True)
    (tmp_path / "user" / "models" / "weights").write_text("many numbers\n")
    with bench(backend, tmp_path, readable=str(tmp_path / "user" / "models")) as place:
        assert place.text("cat ~/models/weights") == "many numbers\n"
        assert (place.run("echo x > ~/models/weights").result.exit != 0) == (Promise.OUTSIDE in place.sandbox.promises)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can put a file where no home and no /tmp hides it")
def test_secrets_that_variables_point_to_cannot_be_seen(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Path(f"/var/lib/musecode-test-{os.getpid()}")
    (shown / "config").mkdir(parents=True)
    for name in ("cloud.json", "config/inner", "free"):
        (shown / name).write_text(f"secret of {name}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shown / "cloud.json"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(shown / "config"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    try:
        with bench(backend, tmp_path / "bench") as place:
            text = place.text(f"cd {shown}; cat cloud.json config/inner free; echo x > /dev/null")
            seen = [f"secret of {name}" in text for name in ("cloud.json", "config/inner")]
            assert seen == [Promise.HOME not in place.sandbox.promises] * 2, text
            assert "secret of free" in text
            assert "/dev/null" not in text
    finally:
        shutil.rmtree(shown)


def test_passwords_in_the_repositorys_configuration_cannot_be_seen(place: Bench) -> None:
    git(place.repo, "config", "remote.origin.url", "https://me:pa55word@example.org/r.git")
    git(place.repo, "config", "http.https://example.org/.extraheader", "AUTHORIZATION: basic c2VjcmV0")
    text = place.text("cat $(git rev-parse --git-common-dir)/config; git config --list")
    seen = "pa55word" in text or "c2VjcmV0" in text
    assert seen != (Promise.HOME in place.sandbox.promises)
    assert "remote.origin.url=https://" in text
    assert git(place.repo, "config", "remote.origin.url") == "https://me:pa55word@example.org/r.git"


def test_sessions_cannot_be_seen(place: Bench) -> None:
    other = place.base / "data" / "trees" / "other"
    other.mkdir()
    (other / "mine").write_text("secret of another tree\n")
    text = place.text(f"cat {place.session}/journal {other}/mine; ls {place.base}/data {place.tree.parent}")
    assert ("secret of" in text) != (Promise.SESSIONS in place.sandbox.promises)


SERVER = (
    "import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler);"
    "print(s.server_port, flush=True); s.serve_forever()"
)
FETCH = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:{port}\", timeout=10).status)'"


@pytest.mark.parametrize("network", ["deny", "allow"])
def test_the_network_is_there_only_if_it_is_allowed(backend: str, network: str, tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        with bench(backend, tmp_path / "bench", network=network) as place:
            reached = "200" in place.text(FETCH.format(port=port))
            assert reached == (place.sandbox.network == "allow")
            assert place.sandbox.network == network or Promise.NETWORK not in place.sandbox.promises
    finally:
        server.kill()
        server.communicate()


def test_loopback_works_within_a_command(place: Bench) -> None:
    code = (
        "import http.server as h, threading, urllib.request as u, socket\n"
        "s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler)\n"
        "threading.Thread(target=s.serve_forever, daemon=True).start()\n"
        "print(u.urlopen(f'http://127.0.0.1:{s.server_port}').status, socket.gethostbyname(socket.gethostname()) != '')"
    )
    assert "200 True" in place.text(f"python3 -c {shlex.quote(code)}")


def test_other_processes_cannot_be_seen(place: Bench) -> None:
    other = subprocess.Popen(["sleep", "1000"], env={"PROBE": "secret of a process"}, start_new_session=True)
    try:
        text = place.text(f"cat /proc/{other.pid}/environ; kill -0 {other.pid} && echo reached; cat /proc/*/environ")
        hidden = "secret of a process" not in text and "reached" not in text
        assert hidden == (Promise.PROCESSES in place.sandbox.promises), text
    finally:
        other.kill()
        other.wait()


KEYS = ("MODEL_API_KEY", "META_API_KEY", "MUSECODE_API_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "GH_TOKEN")


def test_no_key_is_in_the_environment(place: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither under its own name nor, as a value, under one that is let through."""
    for number, name in enumerate(KEYS):
        monkeypatch.setenv(name, f"k3y-{number}-0123456789")
        monkeypatch.setenv(f"SLURM_COMMENT_{number}", f"with k3y-{number}-0123456789 inside")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    text = place.text("env; cat /proc/self/environ /proc/$PPID/environ | tr '\\0' '\\n'")
    assert "k3y-" not in text
    assert "SLURM_JOB_ID=77" in text


ODD_NAMES = {"spaces": "a tree of mine", "newline": "a\ntree", "bytes": b"tr\xe9e".decode("utf-8", "surrogateescape")}


@pytest.mark.parametrize("name", ODD_NAMES.values(), ids=ODD_NAMES.keys())
def test_odd_names_of_trees(backend: str, tmp_path: Path, name: str) -> None:
    with bench(backend, tmp_path, tree=name) as place:
        result = place.run("git status --porcelain && echo x > new && pwd").result
        assert result.exit == 0, result.text
        assert (place.tree / "new").read_text() == "x\n"


def test_a_tree_that_is_reached_through_a_link(place: Bench, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(place.tree.parent)
    place.tree = tmp_path / "link" / "tree"
    result = place.run("git status --porcelain && echo x > new").result
    assert (result.exit, result.text) == (0, "")
    assert (place.tree / "new").read_text() == "x\n"


def test_a_home_and_a_toolchain_behind_links(place: Bench, tmp_path: Path) -> None:
    """On clusters /home/me is a link, and a virtual environment leads to its Python through several."""
    (tmp_path / "home").symlink_to(place.home)
    tools = place.home / "tools"
    tools.mkdir()
    (tools / "current").symlink_to("version-2")
    (tools / "version-2" / "bin").mkdir(parents=True)
    (tools / "version-2" / "bin" / "hello").write_text("#!/bin/sh\necho hello\n")
    (tools / "version-2" / "bin" / "hello").chmod(0o755)
    place.env["HOME"] = str(tmp_path / "home")
    place.env["PATH"] = f"{tmp_path / 'home' / 'tools' / 'current' / 'bin'}:/usr/bin:/bin"
    assert place.text("hello; cd && pwd; touch ~/x && ls ~/x") == f"hello\n{tmp_path / 'home'}\n{tmp_path / 'home'}/x\n"


def test_links_that_a_command_left_lead_no_mount_astray(place: Bench, tmp_path: Path) -> None:
    """The places of mounts lie in the private home and /tmp, which commands can write; a mount makes folders there."""
    if not place.sandbox.promises >= {Promise.HOME}:
        assert Promise.OUTSIDE not in place.sandbox.promises
        return
    tools = place.home / "tools" / "deep" / "bin"
    tools.mkdir(parents=True)
    (tools / "hello").write_text("#!/bin/sh\necho hello\n")
    (tools / "hello").chmod(0o755)
    target = tmp_path / "target"
    target.mkdir()
    # bubblewrap sees the system below /oldroot while it mounts.
    assert place.run(f"ln -s /oldroot{target} ~/tools; ln -s {target} /tmp/x").result.exit == 0
    place.env["PATH"] = f"{tools}:/usr/bin:/bin"
    assert place.text("hello; ls -ld ~/tools | cut -c1") == "hello\nd\n"
    assert list(target.iterdir()) == []


def test_root_configures_nothing_of_the_system(place: Bench) -> None:
    """Root may write these files without any capability; what is written there is run by the kernel as root."""
    if Promise.OUTSIDE not in place.sandbox.promises:
        return
    for name in ("sys/kernel/core_pattern", "sys/kernel/modprobe", "sysrq-trigger", "sys/vm/drop_caches"):
        result = place.run(f"test -e /proc/{name} || exit 1; : >> /proc/{name}").result
        assert result.exit != 0, f"{name}: {result.text}"
    assert place.run("echo x > /sys/kernel/uevent_helper").result.exit != 0
    assert place.run("mknod ~/disk b 8 0").result.exit != 0
    assert place.run("mount -t tmpfs none /mnt").result.exit != 0


@pytest.mark.parametrize("shared", ["deps", "src/deep/deps"])
def test_what_is_linked_from_the_checkout_can_be_read_and_not_written(
    backend: str, tmp_path: Path, shared: str
) -> None:
    """A link from the tree into the checkout led, in the sandbox, back to the tree and so to itself."""
    with bench(backend, tmp_path, linked=(shared,)) as place:
        users, ours = place.repo / shared, place.tree / shared
        (users / "inner").mkdir(parents=True)
        (users / "inner" / "x.txt").write_text("of the user\n")
        (users.parent / "beside.txt").write_text("not in the tree\n")
        ours.mkdir(parents=True)
        (ours / "inner").symlink_to(users / "inner")
        assert place.text(f"cat {shared}/inner/x.txt {users}/inner/x.txt; echo new > {shared}/new && ls {shared}") == (
            "of the user\nof the user\ninner\nnew\n"
        )
        # What is beside it in the checkout is the tree's, as before.
        seen = place.text(f"ls -A {place.repo} {place.repo}/src; cat {place.repo}/src/part.py")
        assert "part.py" in seen
        assert "VALUE = 'old'" in seen
        assert backend == "plain" or "beside.txt" not in seen
        refused = place.run(f"echo more >> {shared}/inner/x.txt; echo more > {users}/inner/new").result.text
        if backend == "bubblewrap":
            assert refused.count("Read-only file system") == 2
            assert (users / "inner" / "x.txt").read_text() == "of the user\n"
            assert [path.name for path in (users / "inner").iterdir()] == ["x.txt"]
        else:
            assert refused == ""
            assert (users / "inner" / "new").exists()


def test_no_writing_in_the_users_own_checkout(place: Bench) -> None:
    realm = place.realm(root=place.repo, writable=False, checkout=None)
    place.tree = place.repo
    confined = place.run("cat file.txt && git status --porcelain && echo x > new.txt", realm)
    assert confined.result.text.startswith("one\ntwo\n")
    assert (place.repo / "new.txt").exists() == (Promise.CHECKOUT not in place.sandbox.promises)


def test_a_checkout_that_is_itself_a_linked_worktree(place: Bench) -> None:
    mine = place.home / "mine"
    git(place.repo, "worktree", "add", "--quiet", "-b", "mine", str(mine))
    (place.tree / "file.txt").write_text("of the agent\n")
    realm = place.realm(checkout=mine)
    result = place.run(f"git status --porcelain; cat {mine}/file.txt; git branch -D other", realm).result
    held = Promise.REPOSITORY in place.sandbox.promises
    assert result.text.startswith(" M file.txt\n" + ("of the agent\n" if held else "one\ntwo\n"))
    assert (result.exit != 0) == held


def test_borrowed_objects_are_found(backend: str, tmp_path: Path) -> None:
    with bench(backend, tmp_path / "first") as place:
        clone = tmp_path / "first" / "user" / "clone"
        git(tmp_path, "clone", "--quiet", "--shared", str(place.repo), str(clone))
        tree = place.base / "data" / "trees" / "clone"
        git(clone, "worktree", "add", "--quiet", "--detach", str(tree))
        place.tree = tree
        assert place.run("git log --format=%s", place.realm(checkout=clone)).result.text == "second\nfirst\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_has_the_same_sandbox(tmp_path: Path) -> None:
    """Root needs no user namespace, others do: the way there is another one."""
    problem = missing("bubblewrap")
    if problem:
        pytest.skip(problem)
    interpreter = "/usr/bin/python3"
    same = [interpreter, "-c", f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"]
    if not os.path.exists(interpreter) or subprocess.run(same, check=False).returncode:
        pytest.skip(f"{interpreter} is not of the version of this Python, which others may not be able to read")
    source = Path(__file__).resolve().parents[2]
    packages = sysconfig.get_path("purelib")
    script = Path(__file__).parents[1] / "fixtures" / "sandbox_as_user.py"
    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    try:
        os.chown(folder, 65534, 65534)
        done = subprocess.run(
            [interpreter, str(script)],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{source}:{source / 'tests'}:{packages}", "HOME": str(folder)},
            user=65534,
            group=65534,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.stdout.splitlines() == [
            "sandbox bubblewrap",
            "uid 65534",
            "repository unchanged True",
            "tree written True",
            "capabilities 0000000000000000",
            "umount refused True",
            "secret seen False",
            "everything ended True",
        ], done.stderr
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)
