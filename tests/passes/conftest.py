# SPDX-License-Identifier: Apache-2.0
"""Puts the patched TVM tree on sys.path for the tests of kernels and passes."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _native_libraries() -> Path | None:
    """Directory of the wheel's native libraries, which serve the patched tree as they are."""
    for entry in sys.path:
        libraries = Path(entry) / "tvm" / "lib"
        if any(libraries.glob("libtvm_runtime*")):
            return libraries
    return None


@pytest.fixture(scope="session")
def trees() -> Path:
    """Directory of the patched trees, `tvm` and perhaps `mlc-llm`."""
    return Path(os.environ.get("FORKPATCH_TREES") or ROOT / ".work" / "2026.08").resolve()


@pytest.fixture(scope="session")
def tvm(trees: Path) -> ModuleType:
    """The package tvm of the patched tree."""
    python = trees / "tvm" / "python"
    if not (python / "tvm" / "__init__.py").is_file():
        pytest.skip(f"no patched TVM in {python}: run `nox -s apply_patches`")
    libraries = os.environ.get("TVM_LIBRARY_PATH") or _native_libraries()
    if libraries is None:
        pytest.skip("no native TVM libraries: install the pinned apache-tvm wheel")
    os.environ["TVM_LIBRARY_PATH"] = str(libraries)
    if str(python) not in sys.path:
        sys.path.insert(0, str(python))
    module = importlib.import_module("tvm")
    origin = Path(str(module.__file__)).resolve()
    if not origin.is_relative_to(python):
        pytest.skip(f"tvm was imported before from {origin}, not from {python}")
    return module
