# SPDX-License-Identifier: Apache-2.0
"""Tensorization of prefill attention: the names of :mod:`rvv.attention` that users import.

:class:`TensorizePrefill` puts micro-kernels into the two products of tiled prefill attention on
RISC-V vector CPUs; ``MLC_RVV_KERNELS``, ``MLC_RVV_TENSORIZE_REPORT`` and
``MLC_RVV_REQUIRE_TENSORIZE`` configure it. The other passes are listed in ``rvv/hooks.py``.
"""

from .rvv.attention.tensorize_prefill import TensorizePrefill, tensorize_function
from .rvv.kernel_library import BlockReport, KernelLibrary, TileShape

__all__ = ["BlockReport", "KernelLibrary", "TensorizePrefill", "TileShape", "tensorize_function"]
