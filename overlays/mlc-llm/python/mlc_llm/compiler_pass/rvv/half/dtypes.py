# SPDX-License-Identifier: Apache-2.0
"""Types of expressions and buffers, where half precision is concerned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from ..functions import Rewrite
from ..targets import is_riscv64, target_features
from ..tir import nodes_of

HALF, SINGLE = "float16", "float32"
# Features with which LLVM converts by instructions.
CONVERSIONS = {"zfh", "zfhmin", "zvfh", "zvfhmin"}


def lacks_conversions(target: Target) -> bool:
    """Return True if a target is a RISC-V CPU without instructions for half precision."""
    return is_riscv64(target) and not CONVERSIONS & target_features(target)


def dtype_of(value: Any) -> str:
    """Return the element type of an expression, without its lanes; "" for other nodes."""
    return whole_dtype(value).partition("x")[0]


def whole_dtype(value: Any) -> str:
    """Return the type of an expression, with its lanes; "" for other nodes."""
    kind = getattr(value, "ty", None)
    return str(kind.dtype) if isinstance(kind, tvm.ir.PrimType) else ""


def as_type(dtype: str, value: Any) -> str:
    """Return a type with as many lanes as a value."""
    _, times, lanes = whole_dtype(value).partition("x")
    return f"{dtype}{times}{lanes}"


def is_half(buffer: Any) -> bool:
    """Return True for a float16 buffer."""
    return str(buffer.dtype) == HALF


def where_halves(rewrite: Callable[[str, tirx.PrimFunc], Any]) -> Rewrite:
    """Restrict a rewrite to functions that use float16."""

    def of_function(name: str, func: tirx.PrimFunc) -> tirx.PrimFunc | None:
        accesses = nodes_of(func.body, (tirx.BufferLoad, tirx.BufferStore))
        touched = any(is_half(access.buffer) for access in accesses) or any(
            dtype_of(node) == HALF for node in nodes_of(func.body, object)
        )
        return rewrite(name, func) if touched else None

    return of_function
