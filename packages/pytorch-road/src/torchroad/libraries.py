# SPDX-License-Identifier: Apache-2.0
"""Imports of model packages for their Python code only.

The wheels of torchvision and torchaudio on the package index link CUDA's libraries, which a torch
for CPUs does not have. Their models do not need the operators in these libraries.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch

# Operators for which torchvision registers a shape function at its import.
OF_TORCHVISION = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


@cache
def prepare() -> None:
    """Make torchvision and torchaudio importable without their native libraries.

    transformers imports an installed torchvision, also for models that do not need torchvision.
    """
    if not _loads("torchvision", "_C*.so"):
        for name, signature in OF_TORCHVISION.items():
            torch.library.define(f"torchvision::{name}", signature)
    if not _loads("torchaudio", "lib/_torchaudio*.so"):
        stub = ModuleType("torchaudio._extension")
        vars(stub).update(_IS_TORCHAUDIO_EXT_AVAILABLE=False, fail_if_no_align=lambda made: made)
        sys.modules[stub.__name__] = stub


def _loads(package: str, library: str) -> bool:
    """Return True if a package is absent, or its native libraries can be loaded."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return True
    try:
        for file in Path(spec.origin).parent.glob(library):
            torch.ops.load_library(file)
    except OSError:
        return False
    return True
