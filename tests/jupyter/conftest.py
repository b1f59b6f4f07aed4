"""A repository, a scripted model and real kernels for the tests of the face."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fixtures.make_repo import make_repo
from kernel import Kernel, StartKernel, kernel_environment
from scripted import REPO, ScriptedModel


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repo(REPO, tmp_path / "repository")


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    """The scripted model that repairs `repository`."""
    with ScriptedModel(REPO) as model:
        yield model


@pytest.fixture
def start_kernel(tmp_path: Path, repository: Path, model: ScriptedModel) -> Iterator[StartKernel]:
    """Starts kernels in the repository; keyword arguments are more environment. They end with the test."""
    with ExitStack() as stack:

        def start(**environment: str) -> Kernel:
            kernel = stack.enter_context(
                Kernel(repository, kernel_environment(model.base_url, tmp_path / "home", **environment))
            )
            assert kernel.run("%load_ext musecode_jupyter").shown == []
            return kernel

        yield start
