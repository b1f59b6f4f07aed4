"""One JupyterLab and one Chromium for all tests of a process: both take as long to start as a test takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab import Lab, start_chromium, start_lab


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A JupyterLab; a test asks it for a folder of its own."""
    with start_lab(tmp_path_factory.mktemp("jupyter")) as lab:
        yield lab


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running Chromium, for `chromium_page`."""
    with start_chromium(tmp_path_factory.mktemp("chromium")) as address:
        yield address
