# SPDX-License-Identifier: Apache-2.0
"""Converters of torch's operators that replace the converters of TVM's importer.

The importer calls a converter with a node of torch's graph and itself; the result is a Relax
variable. The names are torch's overloads; Python's operators do arithmetic on sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx
from tvm_ffi import structural_equal

from crosslab.compile.llama import last_row_of
from torchroad.conversion import elementary, extremes, formulas, norms
from torchroad.conversion.arguments import Converter, argument
from torchroad.conversion.bags import BAGS, embedding_bag
from torchroad.conversion.convolutions import convolution
from torchroad.conversion.dtypes import CONSTANTS, dtype_of, reinterpreted
from torchroad.conversion.indexing import at_indices, put_at_indices, sliced, strided
from torchroad.conversion.pools import (
    ADAPTIVE_MAXIMA,
    adaptive_maximum,
    average_pool,
    maximum_pool,
)
from torchroad.conversion.resampling import (
    ADAPTIVE_AVERAGES,
    RESAMPLING,
    adaptive_average,
    resampled,
)
from torchroad.conversion.sampling import SAMPLERS, sampled
from torchroad.conversion.scatters import scattered, scattered_with_reduction
from torchroad.conversion.sizes import shape_of, size_at


def converters(cache: Any = None) -> dict[str, Converter]:
    """Return the converter of each operator, by the operator's name in the importer's table.

    Args:
        cache: variable of the paged KV cache, for a program whose attention reads a cache.
    """
    return {
        "paged_attention": _paged_attention(cache),
        "last_row": _last_row,
        "linear.default": _linear,
        "matmul.default": _matmul,
        "bmm.default": _matmul,
        "mm.default": _matmul,
        "addmm.default": _addmm,
        "scaled_dot_product_attention.default": _attention,
        "convolution.default": convolution,
        "layer_norm.default": norms.layer_norm,
        "native_group_norm.default": norms.group_norm,
        "_native_batch_norm_legit.no_stats": norms.batch_norm,
        "var.correction": norms.variance(),
        "std.correction": norms.variance(relax.op.sqrt),
        "var_mean.correction": norms.variance_and_mean,
        "_softmax.default": _softmax,
        "select.int": _select,
        "slice.Tensor": sliced,
        "as_strided.default": strided,
        "relu.default": _unary(extremes.relu),
        **dict.fromkeys(extremes.LIMITS, extremes.clamp),
        **dict.fromkeys(("add.Tensor", "add.Scalar"), _with_factor(relax.op.add)),
        **dict.fromkeys(("sub.Tensor", "sub.Scalar"), _with_factor(relax.op.subtract)),
        "div.Tensor_mode": _rounded_quotient,
        **{f"remainder.{kind}": _remainder for kind in ("Tensor", "Scalar", "Scalar_Tensor")},
        **_of_largest_and_smallest(),
        **dict.fromkeys(("sort.default", "sort.stable"), extremes.in_order),
        "topk.default": extremes.most_in_order,
        **{f"{f.__name__}.default": _unary(elementary.each(f, f.__name__)) for f in ELEMENTARY},
        "gelu.default": _gelu,
        "elu.default": _elu,
        **dict.fromkeys(("mul.Tensor", "mul.Scalar"), _multiplied),
        "pow.Tensor_Scalar": _power,
        **dict.fromkeys(("index.Tensor", "index_select.default", "embedding.default"), at_indices),
        "index_put.default": put_at_indices,
        **dict.fromkeys(("scatter.src", "scatter.value"), scattered("update")),
        "scatter_add.default": scattered("add"),
        "scatter_reduce.two": scattered_with_reduction,
        **{name: _shifted(operator) for name, operator in SHIFTS.items()},
        **{name: _compared(name) for name in ("eq.Tensor", "le.Tensor", "ge.Tensor")},
        **{name: _unequal(name) for name in ("ne.Tensor", "ne.Scalar")},
        "cumsum.default": _cumulative(relax.op.cumsum),
        "cumprod.default": _cumulative(relax.op.cumprod),
        **dict.fromkeys(("mean.default", "mean.dim"), _over_axes(relax.op.mean)),
        **dict.fromkeys(("prod.default", "prod.dim_int"), _over_axes(relax.op.prod)),
        **dict.fromkeys(("any.dim", "any.dims"), extremes.any_true),
        "cat.default": _concatenated,
        "arange.start_step": _arange,
        "view.dtype": reinterpreted,
        "expand.default": _expand,
        "_trilinear.default": _trilinear,
        **dict.fromkeys(BAGS, embedding_bag),
        **dict.fromkeys(("triu_indices.default", "tril_indices.default"), _known),
        **dict.fromkeys(RESAMPLING, resampled),
        **dict.fromkeys(SAMPLERS, sampled),
        **dict.fromkeys(ADAPTIVE_AVERAGES, adaptive_average),
        **dict.fromkeys(ADAPTIVE_MAXIMA, adaptive_maximum),
        "max_pool2d_with_indices.default": maximum_pool(2),
        "max_pool3d_with_indices.default": maximum_pool(3),
        "avg_pool2d.default": average_pool(2),
        "avg_pool3d.default": average_pool(3),
        # Arithmetic on sizes that are unknown before a run, which TVM 0.26 refuses.
        **dict.fromkeys(("add", "sub", "mul", "floordiv", "neg"), size_at),
        **CONSTANTS,
    }


# Functions of a single number.
ELEMENTARY: tuple[Callable[[Any], Any], ...] = (
    *(elementary.expm1, tirx.log1p, elementary.tanh, elementary.sinh, elementary.cosh),
    *(elementary.asinh, elementary.acosh, elementary.atanh, te.erf, elementary.erfc),
    *(te.sigmoid, elementary.silu),
)

# Shifts of integers, by operator.
SHIFTS = {
    f"{name}.{overload}": function
    for function, names in (
        (tirx.shift_left, ("__lshift__", "bitwise_left_shift")),
        (tirx.shift_right, ("__rshift__", "bitwise_right_shift")),
    )
    for name in names
    for overload in ("Scalar", "Tensor", "Tensor_Scalar")
}

# Operators that torch must not decompose before an import, since this module converts them.
KEPT = (
    *("linear.default", "matmul.default", "scaled_dot_product_attention.default"),
    *("layer_norm.default", "gelu.default", "silu.default", *RESAMPLING),
)


def _unary(formula: Callable[[Any], Any]) -> Converter:
    def convert(node: Any, importer: Any) -> Any:
        x = argument(node, importer, 0, "input")
        return importer.block_builder.emit_te(formula, x)

    return convert


def _of_largest_and_smallest() -> dict[str, Converter]:
    """Return the converters of maxima and minima."""
    table = {}
    for most, names, reduced, of_pair in (
        (True, "max amax argmax cummax maximum", extremes.LARGEST, extremes.larger),
        (False, "min amin argmin cummin minimum", extremes.SMALLEST, extremes.smaller),
    ):
        plain, over_axes, place, running, of_two = names.split()
        table[f"{plain}.default"] = table[f"{over_axes}.default"] = extremes.extreme(reduced)
        table[f"{plain}.dim"] = extremes.extreme_and_place(most)
        table[f"{place}.default"] = extremes.place_of_extreme(most)
        table[f"{running}.default"] = extremes.running_extreme(most)
        table[f"{of_two}.default"] = extremes.of_two(of_pair)
    return table


def _shifted(shift: Callable[[Any, Any], Any]) -> Converter:
    """Return a converter of a shift; a count beyond the bits leaves none of them, as in torch."""

    def of(x: Any, count: Any) -> Any:
        dtype = str(x.ty.dtype)
        most = tirx.const(int("".join(filter(str.isdigit, dtype))) - 1, dtype)
        is_beyond = tirx.any(count < 0, count > most)
        shifted = shift(x, tirx.Select(is_beyond, most, count))
        # Bits that a shift to the right brings in are those of the sign.
        if shift is tirx.shift_right and not dtype.startswith("uint"):
            return shifted
        return tirx.Select(is_beyond, tirx.const(0, dtype), shifted)

    return extremes.of_two(of)


def _compared(name: str) -> Converter:
    """Return a converter of a comparison; TVM would simplify x == x, which is false for a NaN."""

    def convert(node: Any, importer: Any) -> Any:
        builder, x = importer.block_builder, importer.env[node.args[0]]
        if node.args[0] is node.args[1] and "float" in str(x.ty.dtype):
            return builder.emit(relax.op.logical_not(builder.emit(relax.op.isnan(x))))
        return importer.create_convert_map()[name](node)

    return convert


def _unequal(name: str) -> Converter:
    """Return a converter of the comparison !=, which TVM takes to be false for a NaN."""

    def convert(node: Any, importer: Any) -> Any:
        builder, result = importer.block_builder, importer.create_convert_map()[name](node)
        for one in dict.fromkeys(node.all_input_nodes):
            if "float" in str((x := importer.env[one]).ty.dtype):
                result = builder.emit(relax.op.logical_or(result, builder.emit(relax.op.isnan(x))))
        return result

    return convert


def _linear(node: Any, importer: Any) -> Any:
    builder = importer.block_builder
    x, weight = (argument(node, importer, i, name) for i, name in enumerate(("input", "weight")))
    bias = argument(node, importer, 2, "bias")
    product = builder.emit_te(
        formulas.nt_matmul, _rows(x, builder), weight, primfunc_name_hint="linear"
    )
    if bias is not None:
        product = builder.emit(relax.op.add(product, bias))
    if len(x.ty.shape) == 1:
        product = builder.emit(relax.op.reshape(product, [weight.ty.shape[0]]))
    return product


def _rows(x: Any, builder: Any) -> Any:
    """Return ``x``, or [1, k] for a vector [k]."""
    if len(x.ty.shape) > 1:
        return x
    return builder.emit(relax.op.expand_dims(x, 0))


def _matmul(node: Any, importer: Any) -> Any:
    left, right = (importer.env[operand] for operand in node.args[:2])
    return _product(left, right, importer.block_builder)


def _addmm(node: Any, importer: Any) -> Any:
    builder = importer.block_builder
    added, left, right = (importer.env[operand] for operand in node.args[:3])
    product = _scaled(_product(left, right, builder), node.kwargs.get("alpha", 1), builder)
    added = _scaled(added, node.kwargs.get("beta", 1), builder)
    return builder.emit(relax.op.add(product, added))


def _scaled(value: Any, factor: float, builder: Any) -> Any:
    if factor == 1:
        return value
    return builder.emit(relax.op.multiply(value, relax.const(factor, value.ty.dtype)))


def _product(left: Any, right: Any, builder: Any) -> Any:
    sizes = [len(left.ty.shape), len(right.ty.shape)]
    if min(sizes) < 2 or (sizes[1] != 2 and not _same_batch(left, right)):
        return builder.emit(relax.op.matmul(left, right))
    if formulas.is_nothing(left.ty.shape[-1]):
        # TVM reads the 0 of a transposed matrix's shape as the size of the axis before.
        shape = [*list(left.ty.shape)[:-1], right.ty.shape[-1]]
        return builder.emit(relax.op.zeros(shape, left.ty.dtype))
    transposed = builder.emit(relax.op.permute_dims(right, _last_two_swapped(sizes[1])))
    formula = formulas.nt_matmul if sizes[1] == 2 else formulas.nt_batch_matmul
    return builder.emit_te(formula, left, transposed, primfunc_name_hint="matmul")


def _same_batch(left: Any, right: Any) -> bool:
    outer = [list(operand.ty.shape)[:-2] for operand in (left, right)]
    return len(outer[0]) == len(outer[1]) and all(map(structural_equal, *outer))


def _last_two_swapped(count: int) -> list[int]:
    return [*range(count - 2), count - 1, count - 2]


def _attention(node: Any, importer: Any) -> Any:
    builder = importer.block_builder
    query, key, value = (importer.env[operand] for operand in node.args[:3])
    mask = argument(node, importer, 3, "attn_mask")
    causal = bool(argument(node, importer, 5, "is_causal", False))
    if argument(node, importer, 4, "dropout_p", 0.0):
        raise TypeError("it drops weights at random")
    if (scale := argument(node, importer, 6, "scale")) is None:
        scale = 1 / math.sqrt(int(query.ty.shape[-1]))
    scores = builder.emit_te(
        formulas.nt_batch_matmul, query, key, primfunc_name_hint="attention_scores"
    )
    scores = builder.emit_te(
        formulas.scaled, scores, scale, causal, primfunc_name_hint="attention_scale"
    )
    if mask is not None:
        scores = builder.emit(_masked(scores, mask))
    weights = builder.emit_te(
        formulas.softmax, scores, mask is not None, primfunc_name_hint="attention_softmax"
    )
    transposed = builder.emit(relax.op.permute_dims(value, _last_two_swapped(len(value.ty.shape))))
    return builder.emit_te(
        formulas.nt_batch_matmul, weights, transposed, primfunc_name_hint="attention_values"
    )


def _paged_attention(cache: Any) -> Converter:
    """Return a converter of attention that stores its keys and values in ``cache``.

    Queries, keys and values are [1, heads, rows, width].
    """

    def convert(node: Any, importer: Any) -> Any:
        builder = importer.block_builder
        _, heads, rows, width = importer.env[node.args[0]].ty.shape
        transposed = [
            builder.emit(relax.op.permute_dims(importer.env[operand], [0, 2, 1, 3]))
            for operand in node.args
        ]
        fused = builder.emit(relax.op.concat(transposed, axis=2))
        fused = builder.emit(relax.op.reshape(fused, [rows, fused.ty.shape[2], width]))
        mixed = builder.emit(
            relax.call_dps_packed(
                "vm.builtin.attention_kv_cache_attention_with_fused_qkv",
                [
                    cache,
                    relax.prim_value(node.kwargs["layer"]),
                    relax.prim_value(node.kwargs["scale"]),
                    fused,
                ],
                out_ty=relax.TensorType((rows, heads, width), "float32"),
            )
        )
        mixed = builder.emit(relax.op.reshape(mixed, [1, rows, heads, width]))
        return builder.emit(relax.op.permute_dims(mixed, [0, 2, 1, 3]))

    return convert


def _last_row(node: Any, importer: Any) -> Any:
    x = importer.env[node.args[0]]
    return importer.block_builder.emit_te(last_row_of, x, primfunc_name_hint="last_row")


def _masked(scores: Any, mask: Any) -> Any:
    """Return scores with a mask applied: true for visible keys, or numbers to add."""
    if str(mask.ty.dtype) == "bool":
        return relax.op.where(mask, scores, relax.const(-math.inf, "float32"))
    return relax.op.add(scores, mask)


def _softmax(node: Any, importer: Any) -> Any:
    builder, x = importer.block_builder, argument(node, importer, 0, "input")
    axis, last = argument(node, importer, 1, "dim"), len(x.ty.shape) - 1
    if axis not in (-1, last):
        return builder.emit(relax.op.nn.softmax(x, axis))
    return builder.emit_te(formulas.softmax, x)


def _select(node: Any, importer: Any) -> Any:
    index = node.args[2]
    if not isinstance(index, int) or index >= 0:
        return importer._select(node)
    # For a negative index TVM's importer reads before the tensor.
    x, axis = importer.env[node.args[0]], node.args[1]
    return importer.block_builder.emit_te(formulas.last_but, x, axis, -index)


def _operands(node: Any, importer: Any) -> tuple[Any, Any]:
    """Return the first two operands, a number as a constant in the other's dtype."""
    given = [importer.env[one] if hasattr(one, "meta") else one for one in node.args[:2]]
    dtype = next(str(one.ty.dtype) for one in given if hasattr(one, "ty"))
    x, y = (one if hasattr(one, "ty") else relax.const(one, dtype) for one in given)
    return x, y


def _with_factor(combined: Callable[[Any, Any], Any]) -> Converter:
    """Return a converter of a sum or difference; TVM ignores ``alpha``, a factor of the second."""

    def convert(node: Any, importer: Any) -> Any:
        builder, alpha = importer.block_builder, argument(node, importer, 2, "alpha", 1)
        x, y = _operands(node, importer)
        return builder.emit(combined(x, _scaled(y, alpha, builder)))

    return convert


def _rounded_quotient(node: Any, importer: Any) -> Any:
    builder, mode = importer.block_builder, node.kwargs.get("rounding_mode")
    x, y = _operands(node, importer)
    is_float = "float" in str(x.ty.dtype)
    if mode == "floor" and is_float:
        return extremes.pair(x, y, elementary.floored_quotient, node, importer)
    if mode == "floor":
        return builder.emit(relax.op.floor_divide(x, y))
    quotient = builder.emit(relax.op.divide(x, y))
    return builder.emit(relax.op.trunc(quotient)) if mode and is_float else quotient


def _remainder(node: Any, importer: Any) -> Any:
    x, y = _operands(node, importer)
    if "float" in str(x.ty.dtype):
        return extremes.pair(x, y, elementary.remainder, node, importer)
    return importer.block_builder.emit(relax.op.floor_mod(x, y))


def _in_dtype_of(node: Any, operand: Any, importer: Any) -> Any:
    """Return an operand in the result's dtype, in which torch computes."""
    x, dtype = importer.env[operand], dtype_of(node)
    return x if str(x.ty.dtype) == dtype else importer.block_builder.emit(relax.op.astype(x, dtype))


def _cumulative(operator: Callable[..., Any]) -> Converter:
    """Return a converter of cumulative sums or products; those of integers have 64 bits."""

    def convert(node: Any, importer: Any) -> Any:
        x = _in_dtype_of(node, node.args[0], importer)
        return importer.block_builder.emit(operator(x, node.args[1]))

    return convert


def _over_axes(operator: Callable[..., Any]) -> Converter:
    """Return a converter of means or products over axes; TVM's importer ignores their dtype."""

    def convert(node: Any, importer: Any) -> Any:
        axes, keeps = argument(node, importer, 1, "dim"), argument(node, importer, 2, "keepdim")
        x = _in_dtype_of(node, node.args[0], importer)
        axes = None if axes == [] else axes
        return importer.block_builder.emit(operator(x, axes, keepdims=bool(keeps)))

    return convert


def _concatenated(node: Any, importer: Any) -> Any:
    """Convert a concatenation; as in torch, vectors without elements are skipped."""
    parts = [part for part in node.args[0] if tuple(part.meta["val"].shape) != (0,)]
    axis = argument(node, importer, 1, "dim", 0)
    tensors = [_in_dtype_of(node, part, importer) for part in parts or node.args[0]]
    return importer.block_builder.emit(relax.op.concat(tensors, axis))


def _arange(node: Any, importer: Any) -> Any:
    step = argument(node, importer, 2, "step", 1)
    if not isinstance(step, int | float) or step > 0:
        return importer.create_convert_map()[node.target.__name__](node)
    # TVM's importer counts more elements if the step is negative.
    first, dtype = argument(node, importer, 0, "start"), dtype_of(node)
    sizes = relax.ShapeExpr(shape_of(node, importer))

    def formula(shape: Any) -> Any:
        return te.compute(
            [*shape], lambda i: tirx.Cast(dtype, first + i * tirx.const(step)), name="range"
        )

    return importer.block_builder.emit_te(formula, sizes, primfunc_name_hint="range")


def _expand(node: Any, importer: Any) -> Any:
    x = importer.env[node.args[0]]
    return importer.block_builder.emit(relax.op.broadcast_to(x, shape_of(node, importer)))


def _trilinear(node: Any, importer: Any) -> Any:
    """Convert the sum over some axes of the product of three tensors, with new axes inserted."""
    builder = importer.block_builder
    product: Any = None
    for tensor, axes in zip(node.args[:3], node.args[3:6], strict=True):
        factor = importer.env[tensor]
        for axis in sorted(axes):
            factor = builder.emit(relax.op.expand_dims(factor, axis))
        product = factor if product is None else builder.emit(relax.op.multiply(product, factor))
    return builder.emit(relax.op.sum(product, list(node.args[6])))


def _known(node: Any, _importer: Any) -> Any:
    """Convert an operator without tensor inputs to a constant."""
    tensor = node.target(*node.args, **node.kwargs)
    return relax.const(tensor.numpy(), dtype_of(node))


def _elu(node: Any, importer: Any) -> Any:
    factors = [float(arg) for arg in node.args[1:]] + [1.0] * (4 - len(node.args))

    def formula(x: Any) -> Any:
        return te.compute(x.shape, lambda *i: elementary.elu(x(*i), *factors), name="elu")

    return _unary(formula)(node, importer)


def _multiplied(node: Any, importer: Any) -> Any:
    """Convert a product; TVM would simplify x * 0, which is NaN for NaN and infinity."""
    x = importer.env[node.args[0]]
    if not isinstance(node.args[1], int | float) or node.args[1] or "float" not in str(x.ty.dtype):
        return importer.create_convert_map()[node.target.__name__](node)

    def product(value: Any) -> Any:
        is_finite = te.abs(value) < tirx.const(math.inf, value.ty.dtype)
        zero, nan = (tirx.const(number, value.ty.dtype) for number in (0.0, math.nan))
        return tirx.Select(is_finite, zero, nan)

    return _unary(elementary.each(product, "zeros"))(node, importer)


# Powers that torch computes as roots, which are NaN for -infinity.
ROOTS = {0.5: relax.op.sqrt, -0.5: relax.op.rsqrt}


def _power(node: Any, importer: Any) -> Any:
    if root := ROOTS.get(node.args[1]):
        return importer.block_builder.emit(root(importer.env[node.args[0]]))
    return importer.create_convert_map()[node.target.__name__](node)


def _gelu(node: Any, importer: Any) -> Any:
    is_exact = argument(node, importer, 1, "approximate", "none") == "none"
    formula = elementary.each(elementary.gelu, "gelu") if is_exact else formulas.gelu_tanh
    return _unary(formula)(node, importer)
