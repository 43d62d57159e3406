# SPDX-License-Identifier: Apache-2.0
"""Loops of float32 products: a few rows of a times a panel of b, as a sum of outer products.

A step loads a row of the panel and multiplies it by a number of each row of a. On real cores a
load takes as long as one or two multiply-adds of its LMUL: what counts is how many rows share it.
Six rows at LMUL 4 leave registers for two rows of the panel: one is loaded while the other is
multiplied; seven would wait for each load.
"""

from functools import partial

from crosslab.loops.code import Loop
from crosslab.loops.library import Library

# Of an iteration; of attention's products, which have a multiple of 16 in all.
STEPS, TILE_STEPS = 8, 16
FLOAT = 4

loops = Library()


def product(k: Loop, rows: int, fetch: str = "packed", tile: bool = False) -> None:
    """Emit to[rows, lanes] = c[rows, lanes] + a[rows, depth] * b[depth, lanes].

    The emitted loop has a parameter ``kept``: ``lanes``, or 0 to take c as zeros.

    Args:
        k: receives the loop's instructions.
        rows: number of rows of a.
        fetch: "packed": rows of b are ``step`` bytes apart; "strided": columns of b are ``step``
            bytes apart; "packing": the same, and each row of b is also written to ``panel``, whose
            rows are ``width`` bytes apart.
        tile: the loop always adds c, and has no parameter ``kept``.
    """
    c, a, b, to = k.pointers(c="const float *", a="const float *", b="const float *", to="float *")
    ld_c, ld_a, step = k.parameters("ld_c", "ld_a", "step")
    (e32,) = k.widths("lanes", 32)
    inputs = k.rows(a, ld_a, rows)
    if tile:
        totals = [e32.load("vle32.v", c, ld_c) for _ in range(rows)]
    else:
        (kept,) = k.widths("kept", 32)
        totals = [e32.make("vmv.v.i", 0) for _ in range(rows)]
        for total in totals:
            kept.load_to(total, "vle32.v", c, ld_c)
    if fetch == "packing":
        (panel,) = k.pointers(panel="float *")
        (width,) = k.parameters("width")
    steps = TILE_STEPS if tile else STEPS
    with k.repeat("times"):
        for at in range(steps):
            if fetch == "packed":
                row = e32.load("vle32.v", b, step)
            else:
                row = e32.load("vlse32.v", b, FLOAT, stride=step)
            if fetch == "packing":
                e32.store("vse32.v", row, panel, width)
            for pointer, total in zip(inputs, totals, strict=True):
                e32.put("vfmacc.vf", total, k.scalar("flw", pointer, FLOAT * at), row)
        for pointer in inputs:
            k.advance(pointer, FLOAT * steps)
    for total in totals:
        e32.store("vse32.v", total, to, ld_c)


for count in (1, 2, 3):
    loops.add(f"mlc_f32_wide_{count}", 8)(partial(product, rows=count))
for count in (1, 2, 3, 4, 5, 6):
    loops.add(f"mlc_f32_rows_{count}", 4, 2, 1)(partial(product, rows=count))
for count in (2, 3):
    loops.add(f"mlc_f32_strided_{count}", 8)(partial(product, rows=count, fetch="strided"))
loops.add("mlc_f32_packing_3", 8, 4, 2)(partial(product, rows=3, fetch="packing"))
loops.add("mlc_f32_packing_6", 4, 2)(partial(product, rows=6, fetch="packing"))
for count in (5, 6):
    loops.add(f"mlc_f32_tile_{count}", 4)(partial(product, rows=count, tile=True))
loops.add("mlc_f32_tile_8", 2, 1)(partial(product, rows=8, tile=True))
