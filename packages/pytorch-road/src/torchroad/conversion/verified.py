# SPDX-License-Identifier: Apache-2.0
"""Integers that are verified before an operator takes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

# Function of the runner's that rejects an input: a text with a {} for each of the numbers after it.
REJECT = "mlc_rvv.reject_input"


@tvm_ffi.register_global_func(REJECT, override=True)  # type: ignore[untyped-decorator]
def reject(text: str, *numbers: int) -> None:
    """Do for compiled code in this process what the runner does.

    Raises:
        IndexError: always.
    """
    raise IndexError(text.format(*numbers))


def verified(
    given: Any,
    wrong: Callable[[Callable[[Any], Any], Any], tuple[Any, tuple[Any, ...]]],
    told: str,
    made: Callable[[Any], Any] = lambda one: one,
) -> Any:
    """Integers computed from others, of which none may be wrong.

    Args:
        given: integers.
        wrong: from a function that gives the i-th integer, and i: whether it is wrong, and the
            numbers that the message shows.
        told: the message, with a {} for each number.
        made: the result for an integer.
    """

    def loop(sources: Any, outs: Any) -> Any:
        source, out = (script.buffer_proxy(buffer) for buffer in (sources[0], outs[0]))
        with IRBuilder() as builder:
            with script.serial(0, math.prod(given.shape, start=1)) as i:
                is_wrong, numbers = wrong(lambda at: source[at], i)
                with script.If(is_wrong), script.Then():
                    script.evaluate(tirx.call_packed(REJECT, told, *numbers))
                out[i] = made(source[i])
            return builder.get()

    bare = (
        tirx.decl_buffer(given.shape, given.dtype, name, layout=None) for name in ("given", "made")
    )
    inside, outside = ([buffer] for buffer in bare)
    return te.extern(
        [given.shape], [given], loop, name="places", in_buffers=inside, out_buffers=outside
    )
