# SPDX-License-Identifier: Apache-2.0
"""Checks of integers in compiled code before an operator uses them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

# The runner's function that rejects an input; arguments: a text with {} for each number, numbers.
REJECT = "mlc_rvv.reject_input"


@tvm_ffi.register_global_func(REJECT, override=True)  # type: ignore[untyped-decorator]
def reject(text: str, *numbers: int) -> None:
    """Reject an input in this process, as the runner does for compiled code.

    Raises:
        IndexError: always.
    """
    raise IndexError(text.format(*numbers))


def verified(
    given: Any,
    wrong: Callable[[Callable[[Any], Any], Any], tuple[Any, tuple[Any, ...]]],
    message: str,
    result_of: Callable[[Any], Any] = lambda one: one,
) -> Any:
    """Compute integers from integers, and reject the input if a given integer is wrong.

    Args:
        given: integers.
        wrong: maps a function that returns the i-th integer, and i, to a condition that the integer
            is wrong, and to the numbers in the message.
        message: text with a {} for each number.
        result_of: maps an integer to its result.
    """

    def loop(sources: Any, outs: Any) -> Any:
        source, out = (script.buffer_proxy(buffer) for buffer in (sources[0], outs[0]))
        with IRBuilder() as builder:
            with script.serial(0, math.prod(given.shape, start=1)) as i:
                is_wrong, numbers = wrong(lambda at: source[at], i)
                with script.If(is_wrong), script.Then():
                    script.evaluate(tirx.call_packed(REJECT, message, *numbers))
                out[i] = result_of(source[i])
            return builder.get()

    bare = (
        tirx.decl_buffer(given.shape, given.dtype, name, layout=None) for name in ("given", "made")
    )
    inside, outside = ([buffer] for buffer in bare)
    return te.extern(
        [given.shape], [given], loop, name="places", in_buffers=inside, out_buffers=outside
    )
