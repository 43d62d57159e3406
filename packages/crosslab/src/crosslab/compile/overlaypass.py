# SPDX-License-Identifier: Apache-2.0
"""Compiler passes and operators of the MLC-LLM overlay, loaded without MLC-LLM."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from crosslab.compile.modes import ExtraPass
from crosslab.errors import LabError, UserError
from crosslab.project import PROJECT

ROOT = "mlc_llm"
OVERLAY = PROJECT / "overlays/mlc-llm/python" / ROOT
PASSES = OVERLAY / "compiler_pass/rvv"
OPERATORS = OVERLAY / "op"
PACKAGE = f"{ROOT}.compiler_pass.rvv"
# Group of entry points for passes of other packages, see hooks.py of the passes.
GROUP = "mlc_rvv.passes"


def load_pass(name: str) -> ModuleType:
    """Import a module of the overlay's compiler passes, by the module's name in their package.

    The package has the same name as in MLC-LLM, because passes of other packages import it.

    Args:
        name: module name, such as "hooks" or "vectors.elementary".

    Raises:
        LabError: the module does not exist.
    """
    return _load(f"{PACKAGE}.{name}")


def load_op(name: str) -> ModuleType:
    """Import a module of the overlay's operators, by the module's name in their package.

    Raises:
        LabError: the module does not exist.
    """
    return _load(f"{ROOT}.op.{name}")


def _load(name: str) -> ModuleType:
    path = OVERLAY.parent.joinpath(*name.split(".")).with_suffix(".py")
    if not path.is_file():
        raise LabError(f"{path} is not a Python file that can be loaded")
    if ROOT not in sys.modules:
        module = ModuleType(ROOT)
        module.__path__ = [str(OVERLAY)]
        sys.modules[ROOT] = module
    return importlib.import_module(name)


def folders_of(extras: Iterable[ExtraPass]) -> list[Path]:
    """Return the folders of the extra passes' files, which are inputs of a compile.

    Raises:
        UserError: a pass is not installed.
    """
    folders: set[Path] = set()
    for extra in extras:
        points = metadata.entry_points(group=GROUP, name=extra.name)
        specs = [find_spec(point.module) for point in points]
        origins = [Path(spec.origin) for spec in specs if spec and spec.origin]
        if not origins:
            raise UserError(
                f"no installed package has the pass {extra.name}",
                remedy=f"install {extra.package}",
            )
        folders |= {origin.parent for origin in origins}
    return sorted(folders)
