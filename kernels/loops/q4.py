# SPDX-License-Identifier: Apache-2.0
"""Loops of the products of q4 weights; rvv/int8_q4.c and rvv/q4_tiles.c have the arithmetic.

Those of one row in the formats of GGUF files are here as well, for rvv/gguf.c.

A block of a row's activations has 32 values, their scale at byte 32, and at byte 36 the sum that
takes the zero point off. A group has a block of each row, one after another.
"""

from collections.abc import Sequence
from functools import partial

from crosslab.loops.code import Argument, Bank, Constant, Loop, Value, Vector, Width
from crosslab.loops.library import Library

BLOCK, SCALE, BIAS, PAIRS = 40, 32, 36, 16
# In place of the bias, a block of 32 inputs of a GGUF file has the sums of eight values each.
INPUTS, SUMS = 32, 36
BYTES = "const uint8_t *"
# Its lowest bit is worth 1, so that its bits plus an integer are the float MAGIC + integer.
MAGIC = Constant(float(3 << 22))

loops = Library()


def multiply(
    k: Loop,
    e8: Width,
    sums: Sequence[Vector],
    x: Argument,
    q: Argument,
    step: Argument,
    blocks: Sequence[int] | None = None,
    pairs: int = PAIRS,
    high_bits: Argument | None = None,
    high: int = 0,
    low: int = 4,
) -> None:
    """Emit the 16-bit sums of the products of ``pairs`` pairs, one for each block of ``x``.

    A weight has ``low`` bits, four or eight, and ``high`` further ones, to which ``high_bits``
    points: a byte has those of neighbouring inputs.
    """
    blocks = blocks or [BLOCK * row for row in range(len(sums))]
    for pair in range(pairs):
        if high_bits and 2 * pair * high % 8 == 0:
            bits = e8.load("vle8.v", high_bits, step)
        for odd, weights in enumerate(unpack(e8, q, step, low)):
            place = (2 * pair + odd) * high % 8
            if high_bits:
                if place == 4 + high:
                    bits = e8.make("vsrl.vi", bits, 4 - high)
                add_high(e8, weights, bits, place if place <= 4 else place - 4 + high, high)
            for block, part in zip(blocks, sums, strict=True):
                value = k.scalar("lb", x, block + 2 * pair + odd)
                if pair + odd == 0:
                    e8.put("vwmul.vx", part, weights, value)
                else:
                    e8.put("vwmacc.vx", part, value, weights)


def unpack(e8: Width, q: Argument, step: Argument, low: int) -> tuple[Vector, Vector]:
    """Emit the loads of the weights of two inputs: two bytes, or the nibbles of one."""
    first = e8.load("vle8.v", q, step)
    if low == 8:
        return first, e8.load("vle8.v", q, step)
    sixteen = Constant(16)
    second = e8.make("vmulhu.vx", first, sixteen)
    e8.put("vnmsac.vx", first, sixteen, second)
    return first, second


def add_high(e8: Width, weights: Vector, bits: Vector, place: int, high: int) -> None:
    """Emit the addition of ``high`` bits, from bit ``place`` of a byte on, above the nibbles."""
    chosen = e8.make("vand.vx", bits, Constant(((1 << high) - 1) << place))
    if place < 4:
        e8.put("vmacc.vx", weights, Constant(16 >> place), chosen)
    else:
        e8.put("vadd.vv", weights, weights, chosen)


def take_zero_point(k: Loop, e16: Width, part: Vector, x: Argument, block: int) -> None:
    """Emit the correction of a sum, as stored weights 0 to 15 mean -7 to 8."""
    e16.put("vadd.vx", part, part, k.scalar("lw", x, block + BIAS))


@loops.add("mlc_i8_row", 8, 4, 2, 1)
def one_row(k: Loop) -> None:
    """Emit c[lanes] = a row of int8 activations times the 4-bit weights of a tile."""
    c, x, q, s = k.pointers(c="float *", x=BYTES, q=BYTES, s="const float *")
    ld_x, step, scale_step = k.parameters("ld_x", "step", "scale_step")
    e8, e16, e32 = k.widths("lanes", 8, 16, 32)
    total = e32.make("vmv.v.i", 0)
    with k.repeat("groups"):
        part = e16.vector()
        multiply(k, e8, [part], x, q, step)
        take_zero_point(k, e16, part, x, 0)
        number = e16.make("vfwcvt.f.x.v", part)
        e32.put("vfmul.vv", number, number, e32.load("vle32.v", s, scale_step))
        e32.put("vfmacc.vf", total, k.scalar("flw", x, SCALE), number)
        k.advance(x, ld_x)
    e32.store("vse32.v", total, c)


def halves(e16: Width, e32: Width, pointer: Argument, step: Argument, *, zvfh: bool) -> Vector:
    """Emit a load of finite halves, and their exact conversion to floats."""
    words = e16.load("vle16.v", pointer, step)
    if zvfh:
        return e16.make("vfwcvt.f.f.v", words)
    # The sign lands in the four highest bits, of which it keeps the first.
    bits = e16.make("vwmul.vx", words, Constant(1 << 13))
    e32.put("vand.vx", bits, bits, Constant(0x8FFFFFFF - (1 << 32)))
    e32.put("vfmul.vf", bits, bits, Constant(2.0**112))
    return bits


def sum_of_values(k: Loop, y: Argument, offset: int, inputs: int) -> Value:
    """Emit the sum of the activations of some inputs, from sums of eight each."""
    sum_, *others = (k.scalar("lh", y, offset + 2 * i) for i in range(inputs // 8))
    for other in others:
        sum_ = k.integer("add", sum_, other)
    return sum_


def take_zero(k: Loop, e16: Width, part: Vector, zero: int, sum_: Value) -> None:
    """Emit the correction of a sum of stored weights, of which ``zero``, a power of 2, means 0."""
    e16.put("vsub.vx", part, part, k.integer("slli", sum_, zero.bit_length() - 1))


def row_of_blocks(
    k: Loop, *, zvfh: bool, span: int, low: int = 4, high: int = 0, zero: int = 0, least: bool
) -> None:
    """Emit c[lanes] = a row of int8 activations times a tile in blocks of 32 inputs.

    A sum of ``span`` products fits 16 bits. ``least``: a block has a minimum, too.
    """
    c, x = k.pointers(c="float *", x=BYTES)
    q, h, s = k.pointers(q=BYTES, h=BYTES, s="const uint16_t *")
    ld_x, step, half_step = k.parameters("ld_x", "step", "half_step")
    e8, e16, e32 = k.widths("lanes", 8, 16, 32)
    total = e32.make("vmv.v.i", 0)
    with k.repeat("blocks"):
        parts: list[Vector] = []
        for first in range(0, INPUTS, span):
            part = e16.vector()
            multiply(k, e8, [part], x, q, step, [first], span // 2, h if high else None, high, low)
            if zero:
                take_zero(k, e16, part, zero, sum_of_values(k, x, SUMS + first // 4, span))
            parts.append(part)
            if len(parts) == 2:
                number = e16.make("vwadd.vv", *parts)
            elif len(parts) > 2:
                e16.put("vwadd.wv", number, number, part)
        if span == INPUTS:
            number = e16.make("vfwcvt.f.x.v", part)
        else:
            e32.put("vfcvt.f.x.v", number, number)
        e32.put("vfmul.vv", number, number, halves(e16, e32, s, half_step, zvfh=zvfh))
        scale = k.scalar("flw", x, SCALE)
        e32.put("vfmacc.vf", total, scale, number)
        if least:
            factor = Value(Bank.FLOAT)
            sum_ = sum_of_values(k, x, SUMS, INPUTS)
            k.add("fcvt.s.w", "{}, {}", (factor, sum_), (sum_,), (factor,))
            k.add("fmul.s", "{}, {}, {}", (factor, factor, scale), (factor, scale), (factor,))
            e32.put("vfmacc.vf", total, factor, halves(e16, e32, s, half_step, zvfh=zvfh))
        k.advance(x, ld_x)
    e32.store("vse32.v", total, c)


for zvfh, needs in ((False, "!defined(__riscv_zvfh)"), (True, "defined(__riscv_zvfh)")):
    for name, description in {
        "q4_0": partial(row_of_blocks, span=32, zero=8, least=False),
        "q4_1": partial(row_of_blocks, span=16, least=True),
        "q5_0": partial(row_of_blocks, span=16, high=1, zero=16, least=False),
        "q5_1": partial(row_of_blocks, span=8, high=1, least=True),
        "q8_0": partial(row_of_blocks, span=2, low=8, least=False),
    }.items():
        loops.add(f"mlc_{name}_row", 8, needs=needs)(partial(description, zvfh=zvfh))


def row_of_groups(k: Loop, *, group: int, span: int, high: int = 0, zero: int = 0) -> None:
    """Emit t[lanes] = sums of a block's groups of inputs times the groups' scales.

    A sum of ``span`` products fits 16 bits. ``y`` has the activations' sums of eight values each.
    """
    t, x, y = k.pointers(t="int32_t *", x=BYTES, y=BYTES)
    q, h, s = k.pointers(q=BYTES, h=BYTES, s=BYTES)
    (step,) = k.parameters("step")
    e8, e16, e32 = k.widths("lanes", 8, 16, 32)
    total = e32.make("vmv.v.i", 0)
    with k.repeat("groups"):
        scale = e8.make("vwadd.vx", e8.load("vle8.v", s, step), Constant(0))
        for first in range(0, group, span):
            part = e16.vector()
            multiply(k, e8, [part], x, q, step, [first], span // 2, h if high else None, high)
            if zero:
                take_zero(k, e16, part, zero, sum_of_values(k, y, first // 4, span))
            e16.put("vwmacc.vv", total, part, scale)
        k.advance(x, group)
        if zero:
            k.advance(y, group // 4)
    e32.store("vse32.v", total, t)


for name, description in {
    "q2_k": partial(row_of_groups, group=16, span=16),
    "q3_k": partial(row_of_groups, group=16, span=16, zero=4),
    "q4_k": partial(row_of_groups, group=32, span=16),
    "q5_k": partial(row_of_groups, group=32, span=8, high=1),
    "q6_k": partial(row_of_groups, group=16, span=8, high=2, zero=32),
}.items():
    loops.add(f"mlc_{name}_row", 8)(description)


# Of float32 activations that are integers of three digits: the base, the digits of each place are a
# row of int8 activations, and the bytes of a group.
BASE, PLACES, DIGITS = Constant(256.0), 3, 144


def rows_of_digits(k: Loop, rows: int) -> None:
    """Emit y[rows, lanes] = rows of float32 activations times the 4-bit weights of a tile.

    A group has the digits of each row, one after another.
    """
    y, x, q, s = k.pointers(y="float *", x=BYTES, q=BYTES, s="const float *")
    ld_y, step, scale_step = k.parameters("ld_y", "step", "scale_step")
    e8, e16, e32 = k.widths("lanes", 8, 16, 32)
    totals = [e32.make("vmv.v.i", 0) for _ in range(rows)]
    blocks = [DIGITS * row + BLOCK * place for row in range(rows) for place in range(PLACES)]
    with k.repeat("groups"):
        sums = [e16.vector() for _ in blocks]
        multiply(k, e8, sums, x, q, step, blocks)
        for part, block in zip(sums, blocks, strict=True):
            take_zero_point(k, e16, part, x, block)
        scales = e32.load("vle32.v", s, scale_step)
        for row, total in enumerate(totals):
            first, *others = reversed(sums[PLACES * row : PLACES * (row + 1)])
            number = e16.make("vfwcvt.f.x.v", first)
            for part in others:
                lower = e16.make("vfwcvt.f.x.v", part)
                e32.put("vfmacc.vf", lower, BASE, number)
                number = lower
            e32.put("vfmul.vv", number, number, scales)
            e32.put("vfmacc.vf", total, k.scalar("flw", x, DIGITS * row + SCALE), number)
        k.advance(x, DIGITS * rows)
    for total in totals:
        e32.store("vse32.v", total, y, ld_y)


loops.add("mlc_q4_row_1", 8, 4, 2, 1)(partial(rows_of_digits, rows=1))
loops.add("mlc_q4_row_2", 4, 2, 1)(partial(rows_of_digits, rows=2))


def some_rows(k: Loop, rows: int) -> None:
    """Emit c[rows, lanes] = rows of activations times a tile, with the sums in registers."""
    c, x, q, s = k.pointers(c="float *", x=BYTES, q=BYTES, s="const float *")
    ld_c, ld_x, step, scale_step = k.parameters("ld_c", "ld_x", "step", "scale_step")
    e8, e16, e32 = k.widths("lanes", 8, 16, 32)
    totals = [e32.make("vmv.v.i", 0) for _ in range(rows)]
    with k.repeat("groups"):
        sums = [e16.vector() for _ in range(rows)]
        multiply(k, e8, sums, x, q, step)
        scales = e32.load("vle32.v", s, scale_step)
        for row, (total, part) in enumerate(zip(totals, sums, strict=True)):
            take_zero_point(k, e16, part, x, BLOCK * row)
            number = e16.make("vfwcvt.f.x.v", part)
            e32.put("vfmul.vv", number, number, scales)
            e32.put("vfmacc.vf", total, k.scalar("flw", x, BLOCK * row + SCALE), number)
        k.advance(x, ld_x)
    for total in totals:
        e32.store("vse32.v", total, c, ld_c)


def wide_rows(k: Loop, rows: int) -> None:
    """Emit c[rows, lanes] += rows of activations times a tile that is wider than four registers.

    Sums are in memory, and half of the lanes is added to them at a time: ``c`` walks down the rows
    of the first half, ``over`` bytes to the second half, and ``back``.
    """
    c, x, q, s = k.pointers(c="float *", x=BYTES, q=BYTES, s="const float *")
    ld_c, ld_x, step = k.parameters("ld_c", "ld_x", "step")
    half_step, rest_step, over, back = k.parameters("half_step", "rest_step", "over", "back")
    e8, e16 = k.widths("lanes", 8, 16)
    halves = [k.widths(count, 16, 32, halves=1) for count in ("half", "rest")]
    with k.repeat("groups"):
        sums = [e16.vector() for _ in range(rows)]
        multiply(k, e8, sums, x, q, step)
        for row, part in enumerate(sums):
            take_zero_point(k, e16, part, x, BLOCK * row)
        for half, (h16, h32) in enumerate(halves):
            scales = h32.load("vle32.v", s, rest_step if half else half_step)
            parts = [part.part(2 * half) for part in sums]
            # By twos, which saves vector types.
            for first in range(0, rows, 2):
                numbers = [h16.make("vfwcvt.f.x.v", part) for part in parts[first : first + 2]]
                for row, number in enumerate(numbers, start=first):
                    place = f"row {row}, half {half}"
                    h32.put("vfmul.vv", number, number, scales)
                    total = h32.load("vle32.v", c, memory=place)
                    h32.put("vfmacc.vf", total, k.scalar("flw", x, BLOCK * row + SCALE), number)
                    last = row == rows - 1
                    move = (back if half else over) if last else ld_c
                    h32.store("vse32.v", total, c, move, memory=place)
        k.advance(x, ld_x)


def sums_of_rows(k: Loop, rows: int) -> None:
    """Emit p[groups, rows, lanes] = sums of groups, for an even number of rows.

    Two rows' sums are written as the words that fill their registers.
    """
    p, x, q = k.pointers(p="int16_t *", x=BYTES, q=BYTES)
    ld_x, step, pair_step = k.parameters("ld_x", "step", "pair_step")
    e8, e16, e32 = k.widths("lanes", 8, 16, 32)
    with k.repeat("groups"):
        pairs = [e32.vector() for _ in range(rows // 2)]
        sums = [pair.part(first) for pair in pairs for first in (0, 2)]
        multiply(k, e8, sums, x, q, step)
        for row, part in enumerate(sums):
            take_zero_point(k, e16, part, x, BLOCK * row)
        for pair in pairs:
            e8.store("vse32.v", pair, p, pair_step)
        k.advance(x, ld_x)


def scaled_rows(k: Loop, rows: int) -> None:
    """Emit c[rows, lanes] += sums of groups times scales; MAGIC turns sums into floats.

    ``row`` is the number of bytes of a row of ``p``, and ``rest`` that of the rows which are left
    out. ``c`` is read and ``to`` is written.
    """
    c, to = k.pointers(c="const float *", to="float *")
    p, x, s = k.pointers(p="const int16_t *", x=BYTES, s="const float *")
    ld_c, ld_x, scale_step = k.parameters("ld_c", "ld_x", "scale_step")
    row_step, rest = k.parameters("row", "rest")
    (e32,) = k.widths("lanes", 32)
    h16, h32 = k.widths("half", 16, 32, halves=1)
    totals = [e32.load("vle32.v", c, ld_c) for _ in range(rows)]
    magic = h32.make("vfmv.v.f", MAGIC)
    with k.repeat("groups"):
        scales = e32.load("vle32.v", s, scale_step)
        excess = e32.make("vfmul.vf", scales, MAGIC)
        for row, total in enumerate(totals):
            part = e32.load("vle16.v", p, row_step)
            number = e32.vector()
            for half in (0, 1):
                h16.put("vwadd.wv", number.part(2 * half), magic, part.part(half))
            e32.put("vfmsub.vv", number, scales, excess)
            e32.put("vfmacc.vf", total, k.scalar("flw", x, BLOCK * row + SCALE), number)
        k.advance(p, rest)
        k.advance(x, ld_x)
    for total in totals:
        e32.store("vse32.v", total, to, ld_c)


for count in (2, 3, 4):
    loops.add(f"mlc_i8_rows_{count}", 4, 2, 1)(partial(some_rows, rows=count))
    loops.add(f"mlc_i8_wide_{count}", 8)(partial(wide_rows, rows=count))
for count in (8, 10, 12, 14):
    loops.add(f"mlc_i8_sums_{count}", 4)(partial(sums_of_rows, rows=count))
for count in (2, 3):
    loops.add(f"mlc_i8_scaled_{count}", 4)(partial(scaled_rows, rows=count))
