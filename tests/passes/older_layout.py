# SPDX-License-Identifier: Apache-2.0
"""The patched kernels of TVM 0.23, where all of them are in kv_cache.py, loaded into this TVM.

There is no wheel of 0.23. Its sources come out of the engine's cache or a mirror that it knows, are
patched in memory, renamed as ``tvmdialect`` describes, and imported as a package beside ``tvm``.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import tvmdialect
from forkpatch.drift import read_base
from forkpatch.fork import Plan, open_fork, plan_tree
from forkpatch.settings import load_settings
from forkpatch.sources import MissingUpstreamError, SourceOptions, obtain

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.23.0"
LLM = "python/tvm/relax/frontend/nn/llm"
UPSTREAM = ("kv_cache.py", "tree_attn.py", "position_embedding.py")


@cache
def older_plan() -> Plan:
    """TVM 0.23 with its series applied, exactly, in memory.

    Raises:
        pytest.skip.Exception: neither the cache nor a known mirror has it.
    """
    fork = open_fork(load_settings(ROOT))
    upstream = fork.lock.upstream("tvm", VERSION)
    try:
        pristine = obtain(upstream, fork.cache, SourceOptions(offline=True)).pristine
    except MissingUpstreamError as error:
        pytest.skip(f"{upstream}, which is in git only, is not at hand: {error.remedy}")
    return plan_tree(fork, upstream, pristine)


def older_sources(without: str = "") -> dict[str, str]:
    """The modules of the LLM frontend of patched 0.23 by file name, as they are in its tree.

    Args:
        without: a patch to leave out, with those which need it.
    """
    plan = older_plan()
    left_out = {without, *plan.weave.dependents({without})} if without else set()
    kept = [name for name in plan.weave.patches if name not in left_out]
    files = read_base(plan, [f"{LLM}/{name}" for name in UPSTREAM])
    changed = {**plan.overlays, **plan.weave.changes(kept)}
    files |= {path: file.data for path, file in changed.items() if file is not None}
    return {Path(path).name: data.decode() for path, data in files.items()}


def load_older(folder: Path, without: str = "") -> ModuleType:
    """Import these modules, renamed for this TVM, from an empty folder; returns the package."""
    name = f"older_{folder.name}"
    package = folder / name
    package.mkdir()
    (package / "__init__.py").touch()
    for file, text in older_sources(without).items():
        (package / file).write_text(tvmdialect.newer(text), encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        for file in sorted(package.glob("[!_]*.py")) + sorted(package.glob("_[!_]*.py")):
            importlib.import_module(f"{name}.{file.stem}")
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
