# SPDX-License-Identifier: Apache-2.0
"""The patched TVM for the tests of kernels and passes."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

import pytest

from crosslab.build.kernels import KernelTarget, cached_kernels
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


@pytest.fixture(scope="session")
def tvm(trees: Path) -> ModuleType:
    """The package tvm of the patched tree."""
    python = trees / "tvm" / "python"
    if not (python / "tvm" / "__init__.py").is_file():
        pytest.skip(f"no patched TVM in {python}: run `nox -s apply_patches`")
    if "TVM_LIBRARY_PATH" not in os.environ:
        pytest.skip("no native TVM libraries: install the pinned apache-tvm wheel")
    module = importlib.import_module("tvm")
    origin = Path(str(module.__file__)).resolve()
    assert origin.is_relative_to(python), f"tvm is {origin}, not that of {python}"
    return module
