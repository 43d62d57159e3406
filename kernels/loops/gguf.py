# SPDX-License-Identifier: Apache-2.0
"""Loops of products with unpacked weights in the formats of GGUF files, for rvv/gguf_prompt.h.

Weights are bytes, a column of all lanes for each input. A block of a row's activations has its
values first, and the rows' blocks follow each other: half of the rows are reached by ``x`` and half
by ``y``, so that offsets stay small.
"""

from collections.abc import Sequence
from functools import partial

from crosslab.loops.code import Argument, Constant, Loop, Vector, Width
from crosslab.loops.library import Library

BYTES = "const uint8_t *"
# Bytes of a row's block of activations, and of a block's inputs.
SMALL, LARGE = (44, 32), (324, 256)

loops = Library()


def add_span(
    k: Loop,
    e8: Width,
    sums: Sequence[Vector],
    x: Sequence[Argument],
    w: Argument,
    step: Argument,
    places: Sequence[int],
    block: int,
) -> None:
    """Emit the sums of the products of some inputs of each row, in 16 bits."""
    half = len(sums) // 2
    for first, place in enumerate(places):
        column = e8.load("vle8.v", w, step)
        for row, part in enumerate(sums):
            value = k.scalar("lb", x[row // half], block * (row % half) + place)
            if first == 0:
                e8.put("vwmul.vx", part, column, value)
            else:
                e8.put("vwmacc.vx", part, value, column)


def sums_of_spans(k: Loop, rows: int, span: int, block: int, inputs: int) -> None:
    """Emit p[spans, rows, lanes] = sums of spans in 16 bits; an iteration takes ``inputs`` inputs.

    Two rows' sums are written as the words that fill their registers.
    """
    p, x, y, w = k.pointers(p="int16_t *", x=BYTES, y=BYTES, w="const int8_t *")
    ld_x, step, pair_step = k.parameters("ld_x", "step", "pair_step")
    e8, _, e32 = k.widths("lanes", 8, 16, 32)
    with k.repeat("times"):
        for first in range(0, inputs, span):
            pairs = [e32.vector() for _ in range(rows // 2)]
            sums = [pair.part(start) for pair in pairs for start in (0, 2)]
            add_span(k, e8, sums, (x, y), w, step, range(first, first + span), block)
            for pair in pairs:
                e8.store("vse32.v", pair, p, pair_step)
        k.advance(x, ld_x)
        k.advance(y, ld_x)


def sums_of_blocks(k: Loop, rows: int) -> None:
    """Emit p[blocks, rows, lanes] = sums of blocks of 32 inputs; sums of two inputs fit 16 bits."""
    p, x, y, w = k.pointers(p="int32_t *", x=BYTES, y=BYTES, w="const int8_t *")
    ld_x, step, row_step = k.parameters("ld_x", "step", "row_step")
    block, inputs = SMALL
    e8, e16, e32 = k.widths("lanes", 8, 16, 32)
    with k.repeat("times"):
        totals = [e32.vector() for _ in range(rows)]
        for first in range(0, inputs, 2):
            sums = [e16.vector() for _ in range(rows)]
            add_span(k, e8, sums, (x, y), w, step, range(first, first + 2), block)
            for total, part in zip(totals, sums, strict=True):
                if first == 0:
                    e16.put("vwadd.vx", total, part, Constant(0))
                else:
                    e16.put("vwadd.wv", total, total, part)
        for total in totals:
            e32.store("vse32.v", total, p, row_step)
        k.advance(x, ld_x)
        k.advance(y, ld_x)


def scaled_sums(k: Loop, spans: int) -> None:
    """Emit t[4, lanes] = sums of groups of ``spans`` spans times the groups' scales, in 32 bits.

    ``rest`` is the number of bytes of the rows of a span that are left out.
    """
    t, p, s = k.pointers(t="int32_t *", p="const int16_t *", s="const int8_t *")
    ld_t, scale_step, row_step, rest = k.parameters("ld_t", "scale_step", "row_step", "rest")
    e8, e16, e32 = k.widths("lanes", 8, 16, 32)
    totals = [e32.make("vmv.v.i", 0) for _ in range(4)]
    with k.repeat("groups"):
        scale = e8.make("vwadd.vx", e8.load("vle8.v", s, scale_step), Constant(0))
        for _ in range(spans):
            for total in totals:
                part = e16.load("vle16.v", p, row_step)
                e16.put("vwmacc.vv", total, part, scale)
            k.advance(p, rest)
    for total in totals:
        e32.store("vse32.v", total, t, ld_t)


for count in (2, 4):
    loops.add(f"mlc_bytes_scaled_{count}", 4)(partial(scaled_sums, spans=count))
for count in (4, 8, 12):
    for size in (32, 16, 8):
        description = partial(sums_of_spans, rows=count, span=size, block=SMALL[0], inputs=32)
        loops.add(f"mlc_bytes_small_{size}_{count}", 4)(description)
    for size in (16, 8):
        description = partial(sums_of_spans, rows=count, span=size, block=LARGE[0], inputs=size)
        loops.add(f"mlc_bytes_large_{size}_{count}", 4)(description)
loops.add("mlc_bytes_wide_4", 4)(partial(sums_of_blocks, rows=4))
