# SPDX-License-Identifier: Apache-2.0
"""The patched TVM for the tests of kernels and passes."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from crosslab.build.kernels import KernelTarget, build_kernels


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the kernels for riscv64."""
    if shutil.which("clang-19") is None:
        pytest.skip("not installed: clang-19")
    return build_kernels(KernelTarget.RISCV64, tmp_path_factory.mktemp("kernels")).parent


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
