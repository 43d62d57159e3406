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
    """True if a target is a RISC-V CPU without instructions for half precision."""
    return is_riscv64(target) and not CONVERSIONS & target_features(target)


def dtype_of(value: Any) -> str:
    """The type of an expression, of one element of it if that is a vector."""
    return whole_dtype(value).partition("x")[0]


def whole_dtype(value: Any) -> str:
    """The type of an expression; "" of a buffer, which has a type of its own, and of the rest."""
    kind = getattr(value, "ty", None)
    return str(kind.dtype) if isinstance(kind, tvm.ir.PrimType) else ""


def as_type(dtype: str, value: Any) -> str:
    """A type with as many elements as a value has."""
    _, times, lanes = whole_dtype(value).partition("x")
    return f"{dtype}{times}{lanes}"


def is_half(buffer: Any) -> bool:
    """True if a buffer is of float16."""
    return str(buffer.dtype) == HALF


def where_halves(rewrite: Callable[[str, tirx.PrimFunc], Any]) -> Rewrite:
    """A rewrite of the functions that touch float16 alone."""

    def of_function(name: str, func: tirx.PrimFunc) -> tirx.PrimFunc | None:
        accesses = nodes_of(func.body, (tirx.BufferLoad, tirx.BufferStore))
        touched = any(is_half(access.buffer) for access in accesses) or any(
            dtype_of(node) == HALF for node in nodes_of(func.body, object)
        )
        return rewrite(name, func) if touched else None

    return of_function
