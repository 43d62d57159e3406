# SPDX-License-Identifier: Apache-2.0
"""Compiler passes of the MLC-LLM overlay, loaded from their folder where there is no MLC-LLM."""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path
from types import ModuleType

from crosslab.errors import LabError

PASSES = Path(__file__).resolve().parents[3] / "overlays/mlc-llm/python/mlc_llm/compiler_pass/rvv"


def load_pass(name: str, folder: Path = PASSES) -> ModuleType:
    """A module of the passes, by its name in their package.

    Args:
        name: as in "hooks" or "vectors.elementary".
        folder: of the package.

    Raises:
        LabError: there is no such module.
    """
    path = folder.joinpath(*name.split(".")).with_suffix(".py")
    if not path.is_file():
        raise LabError(f"{path} is not a Python file that can be loaded")
    # A package for each folder: passes of two trees do not mix.
    package = f"crosslab_passes_{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]}"
    if package not in sys.modules:
        module = ModuleType(package)
        module.__path__ = [str(folder.resolve())]
        sys.modules[package] = module
    return importlib.import_module(f"{package}.{name}")
