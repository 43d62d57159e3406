# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels, and the configuration of the passes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.passes.functions import settings

from crosslab.assemble.kernels import KernelTarget, cached_kernels
from crosslab.cached_build import default_cache
from crosslab.errors import UserError


@pytest.fixture(scope="session")
def kernel_folders() -> dict[str, Path]:
    """Folder of the compiled kernels of each target, built once for all processes."""
    try:
        return {t.value: cached_kernels(t, default_cache()) for t in KernelTarget}
    except UserError as error:
        pytest.skip(error.what)


@pytest.fixture
def kernels(kernel_folders: dict[str, Path]) -> Path:
    """Folder of the kernels for riscv64."""
    return kernel_folders["riscv64"]


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Writes a configuration of the passes, and names it in the environment."""
    numbers = itertools.count()

    def write(**values: Any) -> None:
        path = tmp_path / f"passes-{next(numbers)}.json"
        settings(**values).write(path)
        monkeypatch.setenv("MLC_RVV_PASSES", str(path))

    return write
