"""What every test gets: a printed seed, folders of its own, no model keys, no git settings."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Iterator

import pytest

SEED_VARIABLE = "MUSECODE_TEST_SEED"
SEED = pytest.StashKey[int]()

# What the test run itself is told through the environment; every other setting of the product is taken away.
KEPT = {
    SEED_VARIABLE,
    "MUSECODE_CRASH_POINTS",
    "MUSECODE_CUT_STORIES",
    "MUSECODE_CUT_MOST",
    "MUSECODE_CUT_RANGE",
    "MUSECODE_FAULT_RUNS",
    "MUSECODE_FAULT_SEED",
    "MUSECODE_CHROMIUM",
}
# Scripted models answer what their tests are about: those of reviews ask for reviews by a model themselves.
SET = {"MUSECODE_REVIEW": "mechanical"}
KEYS = ("MODEL_API_KEY", "META_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")


def pytest_configure(config: pytest.Config) -> None:
    from hypothesis import HealthCheck, core, settings

    text = os.environ.get(SEED_VARIABLE)
    if text is None:
        seed = secrets.randbelow(2**32)
    else:
        try:
            seed = int(text)
        except ValueError:
            raise pytest.UsageError(f"{SEED_VARIABLE} must be a whole number, not {text!r}") from None
    config.stash[SEED] = seed
    # The processes among which tests are divided inherit it.
    os.environ[SEED_VARIABLE] = str(seed)
    # An explicit --hypothesis-seed wins; the option itself is read before this file is loaded.
    if core.global_force_seed is None:
        core.global_force_seed = seed
    # Times of single examples would measure what else runs on the machine.
    settings.register_profile("musecode", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("musecode")


def pytest_report_header(config: pytest.Config) -> str:
    return f"{SEED_VARIABLE}={config.stash[SEED]} repeats this run's random choices"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(pytest_report_header(config))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """A generator seeded by the run's seed and the test's name, whatever the order of tests."""
    return random.Random(f"{request.config.stash[SEED]}:{request.node.nodeid}")


@pytest.fixture(scope="session", autouse=True)
def _own_folders_and_no_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name in KEYS or (name.startswith("MUSECODE_") and name not in KEPT):
                patch.delenv(name)
        for name, value in SET.items():
            patch.setenv(name, value)
        patch.setenv("MUSECODE_HOME", str(home / "musecode"))
        patch.setenv("JUPYTER_DATA_DIR", str(home / "jupyter" / "data"))
        patch.setenv("JUPYTER_CONFIG_DIR", str(home / "jupyter" / "config"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(home / "jupyter" / "runtime"))
        patch.setenv("IPYTHONDIR", str(home / "ipython"))
        # What this run's own plugins cost is not to be paid by each check of a goal that runs pytest.
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        # Those of the crew ask for it: in the others a scripted model plays one agent.
        patch.setenv("MUSECODE_CREW", "off")
        # The user's git identity, hooks and aliases must not decide how a test ends.
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        yield
