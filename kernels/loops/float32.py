# SPDX-License-Identifier: Apache-2.0
"""Loops of float32 products: a few rows of a times a panel of b, as a sum of outer products.

A step loads a row of the panel and multiplies it by a number of each row of a. On real cores a load
takes as long as one or two multiply-adds of its LMUL, so that what counts is how many rows share it.
Six rows at LMUL 4 leave registers for two rows of the panel: one is loaded while the other
is multiplied; seven would wait for each load.
"""

from functools import partial

from crosslab.loops.code import Loop
from crosslab.loops.library import Library

# Of an iteration.
STEPS = 8
FLOAT = 4

loops = Library()


def product(k: Loop, rows: int, fetch: str) -> None:
    """to[rows, lanes] = c[rows, lanes] + a[rows, depth] * b; ``kept``: lanes, or 0 where c is 0.

    Args:
        k: the loop.
        rows: of a.
        fetch: "packed": b is a panel of rows ``step`` bytes apart; "strided": its columns are so
            far apart; "packing": these are written to ``panel``, rows of ``width`` bytes, as well.
    """
    c, a, b, to = k.pointers(c="const float *", a="const float *", b="const float *", to="float *")
    ld_c, ld_a, step = k.parameters("ld_c", "ld_a", "step")
    (e32,) = k.widths("lanes", 32)
    (kept,) = k.widths("kept", 32)
    if fetch == "packing":
        (panel,) = k.pointers(panel="float *")
        (width,) = k.parameters("width")
    inputs = k.rows(a, ld_a, rows)
    totals = [e32.make("vmv.v.i", 0) for _ in range(rows)]
    for total in totals:
        kept.load_to(total, "vle32.v", c, ld_c)
    with k.repeat("times"):
        for at in range(STEPS):
            if fetch == "packed":
                row = e32.load("vle32.v", b, step)
            else:
                row = e32.load("vlse32.v", b, FLOAT, stride=step)
            if fetch == "packing":
                e32.store("vse32.v", row, panel, width)
            for pointer, total in zip(inputs, totals, strict=True):
                e32.put("vfmacc.vf", total, k.scalar("flw", pointer, FLOAT * at), row)
        for pointer in inputs:
            k.advance(pointer, FLOAT * STEPS)
    for total in totals:
        e32.store("vse32.v", total, to, ld_c)


for count in range(1, 4):
    loops.add(f"mlc_f32_wide_{count}", 8)(partial(product, rows=count, fetch="packed"))
for count in range(1, 7):
    loops.add(f"mlc_f32_rows_{count}", 4, 2, 1)(partial(product, rows=count, fetch="packed"))
loops.add("mlc_f32_rows_8", 2, 1)(partial(product, rows=8, fetch="packed"))
for count in (2, 3):
    loops.add(f"mlc_f32_strided_{count}", 8)(partial(product, rows=count, fetch="strided"))
loops.add("mlc_f32_packing_3", 8, 4, 2)(partial(product, rows=3, fetch="packing"))
loops.add("mlc_f32_packing_6", 4, 2)(partial(product, rows=6, fetch="packing"))
