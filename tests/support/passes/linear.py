# SPDX-License-Identifier: Apache-2.0
"""Linear layers as MLC-LLM's compiler has them when CallLinearKernels runs, and their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

GROUP, NIBBLES = 32, 8

Array = NDArray[Any]


def groups(k: int) -> int:
    return -(-k // GROUP)


def linear_function(
    rows: Any,
    n: Any,
    k: int,
    *,
    q4: bool = False,
    add: bool = False,
    dtype: str = "float32",
    transposed: bool = True,
    zero_point: float = 7.0,
) -> Any:
    """A PrimFunc: x [1, rows, k], weight [n, k] or its packed form, perhaps y to be added.

    ``rows`` and ``n`` may be names of symbolic sizes.
    """
    from tvm import te, tirx  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    rows, n = (tirx.Var(s, "int64") if isinstance(s, str) else s for s in (rows, n))
    x = te.placeholder((1, rows, k), dtype, name="x")
    inputs = [x]
    if q4:
        packed = te.placeholder((n, groups(k) * GROUP // NIBBLES), "uint32", name="packed")
        scale = te.placeholder((n, groups(k)), dtype, name="scale")
        inputs += [packed, scale]

        def nibble(i: Any, j: Any) -> Any:
            shift = (j % NIBBLES * 4).astype("uint32")
            return (tirx.shift_right(packed[i, j // NIBBLES], shift) & 15).astype(dtype)

        values = te.compute((n, k), nibble, name="compute")
        zero = tirx.const(zero_point, dtype)
        weight = te.compute(
            (n, k), lambda i, j: (values[i, j] - zero) * scale[i, j // GROUP], name="dequantize"
        )
    else:
        weight = te.placeholder((n, k) if transposed else (k, n), dtype, name="weight")
        inputs.append(weight)
    step = te.reduce_axis((0, k), name="k")
    out = te.compute(
        (1, rows, n),
        lambda b, i, j: te.sum(
            x[b, i, step] * (weight[j, step] if transposed else weight[step, j]), axis=step
        ),
        name="NT_matmul",
    )
    if add:
        y = te.placeholder((1, rows, n), dtype, name="y")
        inputs.append(y)
        product = out
        out = te.compute((1, rows, n), lambda b, i, j: product[b, i, j] + y[b, i, j], name="T_add")
    return te.create_prim_func([*inputs, out]).with_attr("tirx.noalias", True)


def linear_inputs(rows: int, n: int, k: int, *, q4: bool, add: bool, seed: int) -> list[Array]:
    """Random arguments of such a function, without its output."""
    rng = np.random.default_rng(seed)

    def drawn(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    arrays = [drawn(1, rows, k)]
    if q4:
        arrays.append(rng.integers(0, 2**32, (n, groups(k) * GROUP // NIBBLES), np.uint32))
        arrays.append(drawn(n, groups(k)))
    else:
        arrays.append(drawn(n, k))
    return [*arrays, drawn(1, rows, n)] if add else arrays


def linear_reference(arrays: list[Array], k: int, *, q4: bool, add: bool) -> Array:
    """The output [1, rows, n] in float64."""
    if q4:
        shifts = np.arange(0, 32, 4, dtype=np.uint32)
        values = (arrays[1][:, :, None] >> shifts & 15).reshape(len(arrays[1]), -1)[:, :k]
        scale = np.repeat(arrays[2].astype(np.float64), GROUP, axis=1)[:, :k]
        weight = (values.astype(np.float64) - 7) * scale
    else:
        weight = arrays[1].astype(np.float64)
    product: Array = arrays[0].astype(np.float64) @ weight.T
    return product + arrays[-1] if add else product
