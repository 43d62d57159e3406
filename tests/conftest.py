# SPDX-License-Identifier: Apache-2.0
"""Puts the patched TVM tree before the wheel, ahead of the first test that imports tvm."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from patched import trees as patched_trees

TREES = patched_trees()


def _native_libraries() -> Path | None:
    """Directory of the wheel's native libraries, which serve the patched tree as they are."""
    for entry in sys.path:
        libraries = Path(entry) / "tvm" / "lib"
        if any(libraries.glob("libtvm_runtime*")):
            return libraries
    return None


def _use_patched_tvm() -> None:
    python, libraries = TREES / "tvm" / "python", _native_libraries()
    if libraries is None or not (python / "tvm" / "__init__.py").is_file():
        return
    os.environ.setdefault("TVM_LIBRARY_PATH", str(libraries))
    sys.path.insert(0, str(python))


_use_patched_tvm()


@pytest.fixture(scope="session")
def trees() -> Path:
    """Directory of the patched trees, `tvm` and perhaps `mlc-llm`."""
    return TREES
