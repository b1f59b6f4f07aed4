"""Knows which programs run something else than themselves: wrappers, shells, interpreters, and options that do so."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence


def word_set(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# These run text or another command, or change what names and words mean from then on: no rule reaches through them.
_NEVER = word_set(
    """
    . [ [[ alias bg bind break builtin caller command compgen complete compopt continue coproc declare dirs disown
    enable eval exec export fc fg function getopts hash help history jobs kill let local logout mapfile popd pushd read
    readarray readonly return select set shift shopt source suspend test time times trap type typeset ulimit umask
    unalias unset wait
    apptainer at batch busybox bwrap cgexec chpst choom chroot chrt compute-sanitizer crontab docker doas dtach
    dumb-init eatmydata entr env expect fakeroot firejail flock gdb gdbserver gosu hyperfine i386 ionice ip kubectl
    linux32 linux64 ltrace machinectl mpiexec mpirun ncu newgrp nice nohup nsenter nsys numactl parallel perf pkexec
    podman prlimit prun proot proxychains proxychains4 rlwrap rr run-parts runuser salloc sbatch scp screen script
    setarch setpriv setsid sftp sg singularity socat srun ssh start-stop-daemon stdbuf strace su su-exec sudo
    systemd-run taskset timeout tini tmux torchrun torify toybox tsocks unbuffer unshare valgrind watch x86_64 xargs
    xvfb-run
    """
)
_LOADER = re.compile(r"ld(?:-linux[\w-]*|-musl[\w-]*|64)?\.so[.\d]*")
_SHELLS = word_set("ash bash csh dash fish ksh mksh pwsh rbash sh tcsh zsh")
_INTERPRETER = re.compile(
    r"(?:python|pypy|ipython)[\d.]*[a-z]*|perl[\d.]*|ruby[\d.]*|node(?:js)?|php[\d.]*|lua(?:jit)?[\d.]*|tclsh[\d.]*|Rscript|R"
    r"|julia|osascript|deno|bun|ts-node|groovy|scala|jshell|swift|ghci|runghc|erl|elixir|[gmn]?awk|ed|ex|vim?|emacs"
)
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*[a-z]*")
# What stands between these and the command that they run; it is judged as if it stood alone.
_RUNNERS = {
    **dict.fromkeys(("uv", "poetry", "pdm", "hatch", "rye", "pixi", "conda", "mamba", "micromamba", "pipx"), ("run",)),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bundle"), ("exec",)),
    **dict.fromkeys(("npx", "pnpx", "bunx", "uvx"), ()),
}
_PYTHON_FLAGS = re.compile(r"-[bBdEhIOPqsSuvVx]+|--version|--help|-[WX].+")
# Options with which these run a command or replace a part of themselves: short ones as they may be written, and
# long ones, which may be written shorter or go on after these letters.
_CARRIERS = {
    "find": (r"-(?:exec|ok|fprint|fls|delete|files0-from).*", ""),
    "fd": (r"-[xX].*", "exec"),
    "git": (
        r"-c.*|-[A-Za-z]*[xO].*",
        "exec ext-diff extcmd output upload-pack receive-pack open-files-in-pager config template textconv",
    ),
    "tar": (
        r"-[^-]*[IF].*",
        "to-command checkpoint-action use-compress-program rsh-command rmt-command info-script new-volume-script",
    ),
    "rsync": (r"-[^-]*e.*", "rsh rsync-path"),
    "rg": (r"--(?:pre|hostname-bin)(?:=.*)?", ""),
    "sort": (r"", "compress-program"),
    "split": (r"", "filter"),
    "make": (r".*=.*|-[^-]*[EfCI].*", "eval file makefile directory include-dir"),
    "pip": (r"", "python config-settings global-option"),
    "man": (r"-[^-]*[PH].*", "pager html"),
    "zip": (r"-TT.*", "unzip-command"),
    **dict.fromkeys(
        ("gcc", "g++", "cc", "c++", "clang", "clang++", "nvcc"), (r"-(?:wrapper|B|specs|fplugin).*|@.*", "")
    ),
    "go": (r"--?(?:exec|toolexec|vettool)(?:=.*)?", ""),
}
_SED_LINES = re.compile(r"\d+(?:,(?:\d+|\$|\+\d+))?p")


def is_interpreter(name: str) -> bool:
    """Whether a program called `name` runs whatever code it is given."""
    base = os.path.basename(name)
    return base in _SHELLS or _INTERPRETER.fullmatch(base) is not None


def beyond_rules(words: Sequence[str]) -> str:
    """Why no rule reaches through a command of these words to what it really runs; empty if one may cover it."""
    name, *rest = words
    base = os.path.basename(name)
    if base in _NEVER or _LOADER.fullmatch(base):
        return f"{base}, which runs or changes something else"
    if base in _RUNNERS and tuple(rest[: len(_RUNNERS[base])]) == _RUNNERS[base]:
        inner = rest[len(_RUNNERS[base]) :]
        if not inner or inner[0].startswith("-"):
            return f"{' '.join((base, *_RUNNERS[base]))} without a program right after it"
        return beyond_rules(inner)
    if base == "printf" and rest[:1] and rest[0].startswith("-"):
        return "printf with an option"
    if base in _SHELLS:
        return "" if rest and not rest[0].startswith(("-", "+", "/dev/", "/proc/")) else f"{base} with inline code"
    if (
        _carries(base, rest)
        or (base == "git" and rest[:1] and rest[0].startswith("-") and rest != ["--version"])
        or (base == "sed" and not _shows_lines(rest))
    ):
        return f"{base} with an option that runs or changes something else"
    if _PYTHON.fullmatch(base):
        return "" if _python_file(rest) else f"{base} with inline code"
    if _INTERPRETER.fullmatch(base):
        inline = not rest or rest[0].startswith(("-", "+", "/dev/", "/proc/")) or base.endswith("awk")
        return f"{base} with inline code" if inline else ""
    return ""


def _carries(program: str, arguments: list[str]) -> bool:
    """Whether an option of `program` runs a command or replaces a part of it."""
    short, long = _CARRIERS.get(program, ("", ""))
    if program == "tar" and arguments and arguments[0][0] != "-" and {"I", "F"} & set(arguments[0]):
        return True  # its first word may be a bundle of options without a dash
    for word in arguments:
        if short and re.fullmatch(short, word):
            return True
        name = word[2:].partition("=")[0] if word.startswith("--") else ""
        if name and any(option.startswith(name) or name.startswith(option) for option in long.split()):
            return True
    return False


def _shows_lines(arguments: list[str]) -> bool:
    """Whether sed is asked for lines by number only; its scripts can run commands and write files."""
    head, files = arguments[:2], arguments[2:]
    return (
        len(head) == 2
        and head[0] == "-n"
        and _SED_LINES.fullmatch(head[1]) is not None
        and not any(file.startswith("-") for file in files)
    )


def _python_file(arguments: list[str]) -> bool:
    """Whether Python is given a file or a module to run, not code."""
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in {"-W", "-X"} and rest:
            rest.pop(0)
        elif word == "-m":
            return bool(rest) and rest[0] not in {"timeit", "code", "pdb", "trace", "cProfile", "profile"}
        elif not word.startswith("-"):
            return not word.startswith(("/dev/", "/proc/"))
        elif word in {"--version", "--help", "-V", "-VV", "-h"}:
            return True
        elif not _PYTHON_FLAGS.fullmatch(word):
            return False
    return False
