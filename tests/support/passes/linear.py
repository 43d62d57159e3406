# SPDX-License-Identifier: Apache-2.0
"""Linear layers as MLC-LLM's compiler has them when CallLinearKernels runs, and their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosslab.models.formats import Packing, packings

Array = NDArray[Any]
Q4 = packings()["q4"]
# None of float32, and every layout of packed weights that there are kernels for.
PACKINGS = list(packings().values())
VOCABULARY, WIDTH = 150, 80


def packed_shapes(n: Any, k: int, packing: Packing) -> tuple[tuple[Any, int], tuple[Any, int]]:
    """Shapes of packed weights and of their scales."""
    groups = -(-k // packing.group)
    return (n, groups * packing.group // packing.per_word), (n, groups)


def linear_function(
    rows: Any,
    n: Any,
    k: int,
    *,
    packing: Packing | None = None,
    add: bool = False,
    dtype: str = "float32",
    transposed: bool = True,
    backwards: bool = False,
    then: str = "",
) -> Any:
    """A PrimFunc: x [1, rows, k], weight [n, k] or its packed form, perhaps y to be added.

    ``then`` names a function of TIR that is taken of the result, such as tanh.

    ``rows`` and ``n`` may be names of symbolic sizes. ``backwards``: the first value of a word is
    in its highest bits, as no kernel has it.
    """
    from tvm import te, tirx  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    rows, n = (tirx.Var(s, "int64") if isinstance(s, str) else s for s in (rows, n))
    x = te.placeholder((1, rows, k), dtype, name="x")
    inputs = [x]
    if packing:
        bits, group, per_word = packing.bits, packing.group, packing.per_word
        words, scales = packed_shapes(n, k, packing)
        packed = te.placeholder(words, "uint32", name="packed")
        scale = te.placeholder(scales, dtype, name="scale")
        inputs += [packed, scale]

        def value(i: Any, j: Any) -> Any:
            place = per_word - 1 - j % per_word if backwards else j % per_word
            shift = (place * bits).astype("uint32")
            return (tirx.shift_right(packed[i, j // per_word], shift) & (1 << bits) - 1).astype(
                dtype
            )

        values = te.compute((n, k), value, name="compute")
        zero = tirx.const(float(packing.zero_point), dtype)
        weight = te.compute(
            (n, k), lambda i, j: (values[i, j] - zero) * scale[i, j // group], name="dequantize"
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
    if then:
        plain = out
        out = te.compute((1, rows, n), lambda b, i, j: getattr(tirx, then)(plain[b, i, j]), "then")
    return te.create_prim_func([*inputs, out]).with_attr("tirx.noalias", True)


def linear_inputs(
    rows: int, n: int, k: int, *, packing: Packing | None, add: bool, seed: int
) -> list[Array]:
    """Random arguments of such a function, without its output."""
    rng = np.random.default_rng(seed)

    def drawn(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    arrays = [drawn(1, rows, k)]
    if packing:
        words, scales = packed_shapes(n, k, packing)
        arrays.append(rng.integers(0, 2**32, words, np.uint32))
        arrays.append(drawn(*scales))
    else:
        arrays.append(drawn(n, k))
    return [*arrays, drawn(1, rows, n)] if add else arrays


def linear_reference(arrays: list[Array], k: int, *, packing: Packing | None, add: bool) -> Array:
    """The output [1, rows, n] in float64."""
    if packing:
        shifts = np.arange(packing.per_word, dtype=np.uint32) * np.uint32(packing.bits)
        values = arrays[1][:, :, None] >> shifts & (1 << packing.bits) - 1
        scale = np.repeat(arrays[2].astype(np.float64), packing.group, axis=1)[:, :k]
        values = values.reshape(len(values), -1)[:, :k].astype(np.float64)
        weight = (values - packing.zero_point) * scale
    else:
        weight = arrays[1].astype(np.float64)
    product: Array = arrays[0].astype(np.float64) @ weight.T
    return product + arrays[-1] if add else product


def embedding(packing: Packing | None, dtype: str = "float32") -> Any:
    """Rows of a matrix by their numbers: ids [rows], the weight or its packed form."""
    from tvm import te, tirx  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    ids = te.placeholder((tirx.Var("rows", "int64"),), "int32", name="ids")
    if packing is None:
        weight = te.placeholder((VOCABULARY, WIDTH), dtype, name="weight")
        out = te.compute((ids.shape[0], WIDTH), lambda i, j: weight[ids[i], j], name="T_take")
        return te.create_prim_func([weight, ids, out])
    words, scales = packed_shapes(VOCABULARY, WIDTH, packing)
    packed = te.placeholder(words, "uint32", name="packed")
    scale = te.placeholder(scales, dtype, name="scale")

    def value(i: Any, j: Any) -> Any:
        shift = (j % packing.per_word * packing.bits).astype("uint32")
        word = packed[i, j // packing.per_word]
        return (tirx.shift_right(word, shift) & (1 << packing.bits) - 1).astype(dtype)

    values = te.compute((VOCABULARY, WIDTH), value, name="compute")
    zero = tirx.const(float(packing.zero_point), dtype)
    out = te.compute(
        (ids.shape[0], WIDTH),
        lambda i, j: (values[ids[i], j] - zero) * scale[ids[i], j // packing.group],
        name="T_take",
    )
    return te.create_prim_func([packed, scale, ids, out])


def model(packing: Packing | None, *, also: bool = False) -> Any:
    """A model with one matrix, its embedding and its last layer, for one row and for any number.

    Args:
        packing: of the matrix.
        also: a function that returns the first parameter unchanged.
    """
    from tvm import relax, tirx  # noqa: PLC0415

    builder = relax.BlockBuilder()
    shapes = (
        [
            (*packed_shapes(VOCABULARY, WIDTH, packing)[0],),
            (*packed_shapes(VOCABULARY, WIDTH, packing)[1],),
        ]
        if packing
        else [(VOCABULARY, WIDTH)]
    )
    dtypes = ["uint32", "float32"] if packing else ["float32"]
    types = [relax.TensorType(s, d) for s, d in zip(shapes, dtypes, strict=True)]
    functions = {
        "embed": (embedding(packing), ("rows",), "int32", ("rows", WIDTH)),
        "prefill": (
            linear_function("rows", VOCABULARY, WIDTH, packing=packing),
            (1, "rows", WIDTH),
            "float32",
            (1, "rows", VOCABULARY),
        ),
        "decode": (
            linear_function(1, VOCABULARY, WIDTH, packing=packing),
            (1, 1, WIDTH),
            "float32",
            (1, 1, VOCABULARY),
        ),
    }
    for name, (func, taken, dtype, given) in functions.items():
        rows = tirx.Var("rows", "int64")
        shape, out = ([rows if e == "rows" else e for e in extents] for extents in (taken, given))
        x = relax.Var("x", relax.TensorType(shape, dtype))
        packed = relax.Var("packed_params", relax.TupleType(types))
        with builder.function(name, [x, packed], attrs={"num_input": 1}):
            with builder.dataflow():
                weights = [builder.emit(relax.TupleGetItem(packed, i)) for i in range(len(types))]
                arguments = [*weights, x] if name == "embed" else [x, *weights]
                private = func.without_attr("global_symbol")
                called_function = builder.add_func(private, f"{name}_tir")
                result = builder.emit_output(
                    relax.call_tir(called_function, arguments, relax.TensorType(out, "float32"))
                )
            builder.emit_func_output(result)
    if also:
        packed = relax.Var("packed_params", relax.TupleType(types))
        with builder.function("first", [packed], attrs={"num_input": 0}):
            with builder.dataflow():
                first = builder.emit_output(relax.TupleGetItem(packed, 0))
            builder.emit_func_output(first)
    return builder.finalize()
