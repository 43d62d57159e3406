# SPDX-License-Identifier: Apache-2.0
"""The loop of products of halves; rvv/gemv_f16.c calls it."""

from crosslab.loops.code import Loop
from crosslab.loops.library import Library

# Of an iteration.
STEPS, HALF = 8, 2

loops = Library()


@loops.add("mlc_f16_row", 8, 4, 2, 1, needs="defined(__riscv_zvfh)")
def one_row(k: Loop) -> None:
    """Emit y[lanes] = a row of halves times a tile of halves, summed in float32."""
    y, x, b = k.pointers(y="float *", x="const _Float16 *", b="const _Float16 *")
    (step,) = k.parameters("step")
    e16, e32 = k.widths("lanes", 16, 32)
    total = e32.make("vmv.v.i", 0)
    with k.repeat("times"):
        for at in range(STEPS):
            weights = e16.load("vle16.v", b, step)
            e16.put("vfwmacc.vf", total, k.scalar("flh", x, HALF * at), weights)
        k.advance(x, HALF * STEPS)
    e32.store("vse32.v", total, y)
