# SPDX-License-Identifier: Apache-2.0
"""Compiler passes of the MLC-LLM overlay, loaded from their folder where there is no MLC-LLM."""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path
from types import ModuleType

from crosslab.errors import LabError

PASSES = (
    Path(__file__)
    .resolve()
    .parents[3]
    .joinpath("overlays", "mlc-llm", "python", "mlc_llm", "compiler_pass")
)
PASS_FILE = PASSES / "rvv_passes.py"
# The order of the functions that compute shapes is the same task on both paths.
SHAPE_FUNCTIONS = PASSES / "shape_functions.py"


def load_pass_module(path: Path) -> ModuleType:
    """A module from its own file, which may import the files beside it as a package's modules.

    Raises:
        LabError: there is no such file, or it is no Python file.
    """
    if not path.is_file() or path.suffix != ".py":
        raise LabError(f"{path} is not a Python file that can be loaded")
    folder = str(path.parent.resolve())
    # A package for each folder: passes of two trees do not mix.
    name = f"crosslab_passes_{hashlib.sha256(folder.encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [folder]
        sys.modules[name] = package
    return importlib.import_module(f"{name}.{path.stem}")
