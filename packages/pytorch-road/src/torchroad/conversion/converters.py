# SPDX-License-Identifier: Apache-2.0
"""Converters of torch's operators that replace the converters of TVM's importer.

The importer calls a converter with a node of torch's graph and itself; the result is a Relax
variable. The names are torch's overloads; Python's operators do arithmetic on sizes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from tvm import relax
from tvm_ffi import structural_equal

from crosslab.compile.llama import last_row_of
from torchroad.conversion import formulas
from torchroad.conversion.bags import BAGS, embedding_bag
from torchroad.conversion.convolutions import convolution
from torchroad.conversion.dtypes import CONSTANTS, dtype_of
from torchroad.conversion.indexing import at_indices
from torchroad.conversion.operators import Converter
from torchroad.conversion.resampling import (
    ADAPTIVE_AVERAGES,
    ADAPTIVE_MAXIMA,
    RESAMPLING,
    adaptive_average,
    adaptive_maximum,
    resampled,
)


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
        "layer_norm.default": _layer_norm,
        "native_group_norm.default": _group_norm,
        "_softmax.default": _softmax,
        "select.int": _select,
        "clamp.default": _clamp,
        "div.Tensor_mode": _rounded_quotient,
        "amax.default": _extreme(relax.op.max),
        "amin.default": _extreme(relax.op.min),
        "gelu.default": _gelu,
        "silu.default": _unary(formulas.silu),
        "tanh.default": _unary(formulas.tanh),
        "sigmoid.default": _unary(formulas.sigmoid),
        "elu.default": _elu,
        **dict.fromkeys(("index.Tensor", "index_select.default", "embedding.default"), at_indices),
        "scatter.src": _scattered("update"),
        "scatter_add.default": _scattered("add"),
        "cumsum.default": _cumulative_sum,
        "cat.default": _concatenated,
        "expand.default": _expand,
        "_trilinear.default": _trilinear,
        **dict.fromkeys(BAGS, embedding_bag),
        **dict.fromkeys(("triu_indices.default", "tril_indices.default"), _known),
        **dict.fromkeys(RESAMPLING, resampled),
        **dict.fromkeys(ADAPTIVE_AVERAGES, adaptive_average),
        **dict.fromkeys(ADAPTIVE_MAXIMA, adaptive_maximum),
        "avg_pool2d.default": _average_pool(2),
        "avg_pool3d.default": _average_pool(3),
        **{name: _of_sizes(function) for name, function in SIZES.items()},
        **CONSTANTS,
    }


# Arithmetic on sizes that are unknown before a run, which TVM 0.26 refuses.
SIZES: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "neg": operator.neg,
}

# Operators that torch must not decompose before an import, since this module converts them.
KEPT = (
    *("linear.default", "matmul.default", "scaled_dot_product_attention.default"),
    *("layer_norm.default", "gelu.default", "silu.default", *RESAMPLING),
)


def argument(node: Any, importer: Any, place: int, name: str, default: Any = None) -> Any:
    """Return an operator's argument by position or name."""
    if len(node.args) > place:
        return importer._retrieve_args(node.args[place])
    if name in node.kwargs:
        return importer._retrieve_args(node.kwargs[name])
    return default


def _unary(formula: Callable[[Any], Any]) -> Converter:
    def convert(node: Any, importer: Any) -> Any:
        x = argument(node, importer, 0, "input")
        return importer.block_builder.emit_te(formula, x)

    return convert


def _of_sizes(function: Callable[..., Any]) -> Converter:
    def convert(node: Any, importer: Any) -> Any:
        numbers = [_number(importer._retrieve_args(arg)) for arg in node.args]
        return function(*numbers)

    return convert


def _number(value: Any) -> Any:
    """Return a size as a number or an expression of TIR."""
    return getattr(value, "value", value)


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
    """Return data with at least two axes."""
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
    softmax = formulas.softmax
    if mask is not None:
        scores, softmax = builder.emit(_masked(scores, mask)), formulas.masked_softmax
    weights = builder.emit_te(softmax, scores, primfunc_name_hint="attention_softmax")
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


def _norm_weights(node: Any, importer: Any, place: int, sizes: list[Any]) -> tuple[Any, Any]:
    """Return weight and bias of a norm, the arguments at ``place`` and after it, or defaults."""
    gamma = argument(node, importer, place, "weight")
    beta = argument(node, importer, place + 1, "bias")
    return (
        relax.op.ones(sizes, "float32") if gamma is None else gamma,
        relax.op.zeros(sizes, "float32") if beta is None else beta,
    )


def _layer_norm(node: Any, importer: Any) -> Any:
    builder = importer.block_builder
    x, widths = (argument(node, importer, i, name) for i, name in enumerate(("input", "shape")))
    gamma, beta = _norm_weights(node, importer, 2, [*widths])
    eps = argument(node, importer, 4, "eps", 1e-5)
    if len(widths) != 1:
        axes = list(range(-len(widths), 0))
        return builder.emit(relax.op.nn.layer_norm(x, gamma, beta, axes, eps))
    gamma, beta = (builder.emit(w) if not isinstance(w, relax.Var) else w for w in (gamma, beta))
    return builder.emit_te(formulas.layer_norm, x, gamma, beta, eps)


def _group_norm(node: Any, importer: Any) -> Any:
    """Convert a norm of groups of channels, also without weights, unlike TVM's importer."""
    builder, x = importer.block_builder, importer.env[node.args[0]]
    gamma, beta = _norm_weights(node, importer, 1, [x.ty.shape[1]])
    groups, eps = node.args[6:8]
    axes = list(range(2, len(x.ty.shape)))
    return builder.emit(relax.op.nn.group_norm(x, gamma, beta, groups, 1, axes, eps))


def _softmax(node: Any, importer: Any) -> Any:
    builder, x = importer.block_builder, argument(node, importer, 0, "input")
    axis, last = argument(node, importer, 1, "dim"), len(x.ty.shape) - 1
    if axis not in (-1, last):
        return builder.emit(relax.op.nn.softmax(x, axis))
    return builder.emit_te(formulas.softmax, x)


def _extreme(operator: Callable[..., Any]) -> Converter:
    def convert(node: Any, importer: Any) -> Any:
        x, axes = (argument(node, importer, i, name) for i, name in enumerate(("self", "dim")))
        keepdims = bool(argument(node, importer, 2, "keepdim", False))
        return importer.block_builder.emit(operator(x, axes or None, keepdims))

    return convert


def _select(node: Any, importer: Any) -> Any:
    index = node.args[2]
    if not isinstance(index, int) or index >= 0:
        return importer._select(node)
    # For a negative index TVM's importer reads before the tensor.
    x, axis = importer.env[node.args[0]], node.args[1]
    return importer.block_builder.emit_te(formulas.last_but, x, axis, -index)


def _clamp(node: Any, importer: Any) -> Any:
    if "int" not in str(dtype_of(node)):
        return importer._clamp(node)
    # TVM's importer uses infinity for a missing bound, which integers cannot represent.
    builder, x = importer.block_builder, importer.env[node.args[0]]
    limits = ((1, "min", relax.op.maximum), (2, "max", relax.op.minimum))
    for position, name, limited in limits:
        if (limit := argument(node, importer, position, name)) is not None:
            x = builder.emit(limited(x, relax.const(limit, x.ty.dtype)))
    return x


def _rounded_quotient(node: Any, importer: Any) -> Any:
    builder, dtype = importer.block_builder, dtype_of(node)
    x, y = (
        importer.env[operand] if hasattr(operand, "meta") else relax.const(operand, dtype)
        for operand in node.args[:2]
    )
    mode = node.kwargs.get("rounding_mode")
    if mode == "floor":
        return builder.emit(relax.op.floor_divide(x, y))
    quotient = builder.emit(relax.op.divide(x, y))
    is_whole = mode is None or "int" in str(dtype)
    return quotient if is_whole else builder.emit(relax.op.trunc(quotient))


def _average_pool(axes: int) -> Converter:
    """Return a converter of average pooling that honours a divisor, unlike TVM's importer."""

    def convert(node: Any, importer: Any) -> Any:
        average = getattr(importer, f"_avg_pool{axes}d")
        divisor = argument(node, importer, 6, "divisor_override")
        if divisor is None:
            return average(node)
        x, builder = importer.env[node.args[0]], importer.block_builder
        window = _of_axes(node.args[1], axes)
        steps = _of_axes(argument(node, importer, 2, "stride") or window, axes)
        before = _of_axes(argument(node, importer, 3, "padding", 0), axes)
        sizes = [tensor.meta["val"].shape[-axes:] for tensor in (node.args[0], node)]
        # Padding fills every window, so that all averages have the same divisor.
        width = [0] * 2 * (len(x.ty.shape) - axes)
        for inputs, outputs, extent, step, zeros in zip(*sizes, window, steps, before, strict=True):
            width += [zeros, max(0, (outputs - 1) * step + extent - inputs - zeros)]
        x = builder.emit(relax.op.nn.pad(x, width))
        averages = getattr(importer, f"_avg_pool{axes}d_impl")(x, window, steps)
        return _scaled(averages, math.prod(window) / divisor, builder)

    return convert


def _of_axes(value: Any, axes: int) -> list[int]:
    """Return a number for each axis; a single number applies to all axes."""
    numbers = [value] if isinstance(value, int) else list(value)
    return numbers * axes if len(numbers) == 1 else numbers


def _scattered(reduction: str) -> Converter:
    def convert(node: Any, importer: Any) -> Any:
        x, axis, indices, values = importer.retrieve_args(node)
        scattered = relax.op.scatter_elements(x, indices, values, axis, reduction)
        return importer.block_builder.emit(scattered)

    return convert


def _cumulative_sum(node: Any, importer: Any) -> Any:
    """Convert a cumulative sum; truth values are counted in torch's integers."""
    x, axis = importer.env[node.args[0]], node.args[1]
    return importer.block_builder.emit(relax.op.cumsum(x, axis, dtype_of(node)))


def _concatenated(node: Any, importer: Any) -> Any:
    """Convert a concatenation; as in torch, vectors without elements are skipped."""
    parts = [part for part in node.args[0] if tuple(part.meta["val"].shape) != (0,)]
    axis = argument(node, importer, 1, "dim", 0)
    tensors = [importer.env[part] for part in parts or node.args[0]]
    return importer.block_builder.emit(relax.op.concat(tensors, axis))


def _expand(node: Any, importer: Any) -> Any:
    """Convert ``expand``; -1 keeps the size of an axis."""
    x = importer.env[node.args[0]]
    sizes = list(importer._retrieve_args(node.args[1]))
    new = len(sizes) - len(x.ty.shape)
    kept = [
        x.ty.shape[axis - new] if isinstance(size, int) and size == -1 else size
        for axis, size in enumerate(sizes)
    ]
    return importer.block_builder.emit(relax.op.broadcast_to(x, kept))


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
    x = argument(node, importer, 0, "input")
    return importer.block_builder.emit_te(formulas.elu, x, *factors, primfunc_name_hint="elu")


def _gelu(node: Any, importer: Any) -> Any:
    x, kind = (
        argument(node, importer, 0, "input"),
        argument(node, importer, 1, "approximate", "none"),
    )
    formula = formulas.gelu if kind == "none" else formulas.gelu_tanh
    return importer.block_builder.emit_te(formula, x)
