# SPDX-License-Identifier: Apache-2.0
"""Converters of torch's operators for TVM's importer, where the project's form is another.

The importer calls one with a node of torch's graph and itself; the result is a Relax variable. The
names are those of torch's overloads; Python's own operators do arithmetic on sizes.
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
    """Converter of each operator, by its name in the importer's table.

    Args:
        cache: variable of the paged KV cache, for a program whose attention reads one.
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


# Arithmetic on sizes that are not known before a run: TVM 0.26 refuses it.
SIZES: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "neg": operator.neg,
}

# torch splits these up before an import, unless they are to be kept: this module converts them.
KEPT = (
    *("linear.default", "matmul.default", "scaled_dot_product_attention.default"),
    *("layer_norm.default", "gelu.default", "silu.default", *RESAMPLING),
)


def argument(node: Any, importer: Any, place: int, name: str, default: Any = None) -> Any:
    """An argument of an operator, by its place or its name."""
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
        numbers = [_number(importer._retrieve_args(one)) for one in node.args]
        return function(*numbers)

    return convert


def _number(value: Any) -> Any:
    """A size as a number or an expression of TIR."""
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
    """Data with at least one row."""
    if len(x.ty.shape) > 1:
        return x
    return builder.emit(relax.op.expand_dims(x, 0))


def _matmul(node: Any, importer: Any) -> Any:
    left, right = (importer.env[one] for one in node.args[:2])
    return _product(left, right, importer.block_builder)


def _addmm(node: Any, importer: Any) -> Any:
    builder = importer.block_builder
    added, left, right = (importer.env[one] for one in node.args[:3])
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
    turned = builder.emit(relax.op.permute_dims(right, _last_two_swapped(sizes[1])))
    formula = formulas.nt_matmul if sizes[1] == 2 else formulas.nt_batch_matmul
    return builder.emit_te(formula, left, turned, primfunc_name_hint="matmul")


def _same_batch(left: Any, right: Any) -> bool:
    outer = [list(one.ty.shape)[:-2] for one in (left, right)]
    return len(outer[0]) == len(outer[1]) and all(map(structural_equal, *outer))


def _last_two_swapped(count: int) -> list[int]:
    return [*range(count - 2), count - 1, count - 2]


def _attention(node: Any, importer: Any) -> Any:
    builder = importer.block_builder
    query, key, value = (importer.env[one] for one in node.args[:3])
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
    turned = builder.emit(relax.op.permute_dims(value, _last_two_swapped(len(value.ty.shape))))
    return builder.emit_te(
        formulas.nt_batch_matmul, weights, turned, primfunc_name_hint="attention_values"
    )


def _paged_attention(cache: Any) -> Converter:
    """Attention over a cache, which keeps these keys and values, too: [1, heads, rows, width]."""

    def convert(node: Any, importer: Any) -> Any:
        builder = importer.block_builder
        _, heads, rows, width = importer.env[node.args[0]].ty.shape
        turned = [
            builder.emit(relax.op.permute_dims(importer.env[one], [0, 2, 1, 3]))
            for one in node.args
        ]
        fused = builder.emit(relax.op.concat(turned, axis=2))
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
    """Scores where a mask lets them be: it is true there, or a number to add."""
    if str(mask.ty.dtype) == "bool":
        return relax.op.where(mask, scores, relax.const(-math.inf, "float32"))
    return relax.op.add(scores, mask)


def _norm_weights(node: Any, importer: Any, place: int, sizes: list[Any]) -> tuple[Any, Any]:
    """Weight and bias of a norm, at this place and the next; without them, ones and zeros."""
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
    gamma, beta = (
        builder.emit(one) if not isinstance(one, relax.Var) else one for one in (gamma, beta)
    )
    return builder.emit_te(formulas.layer_norm, x, gamma, beta, eps)


def _group_norm(node: Any, importer: Any) -> Any:
    """A norm of groups of channels, which TVM's importer converts with weights only."""
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
    place = node.args[2]
    if not isinstance(place, int) or place >= 0:
        return importer._select(node)
    # TVM's importer reads before the tensor.
    x, axis = importer.env[node.args[0]], node.args[1]
    return importer.block_builder.emit_te(formulas.last_but, x, axis, -place)


def _clamp(node: Any, importer: Any) -> Any:
    if "int" not in str(dtype_of(node)):
        return importer._clamp(node)
    # TVM's importer takes a bound that is missing for infinity, which no integer is.
    builder, x = importer.block_builder, importer.env[node.args[0]]
    limits = ((1, "min", relax.op.maximum), (2, "max", relax.op.minimum))
    for place, name, limited in limits:
        if (limit := argument(node, importer, place, name)) is not None:
            x = builder.emit(limited(x, relax.const(limit, x.ty.dtype)))
    return x


def _rounded_quotient(node: Any, importer: Any) -> Any:
    builder, dtype = importer.block_builder, dtype_of(node)
    x, y = (
        importer.env[one] if hasattr(one, "meta") else relax.const(one, dtype)
        for one in node.args[:2]
    )
    mode = node.kwargs.get("rounding_mode")
    if mode == "floor":
        return builder.emit(relax.op.floor_divide(x, y))
    made = builder.emit(relax.op.divide(x, y))
    is_whole = mode is None or "int" in str(dtype)
    return made if is_whole else builder.emit(relax.op.trunc(made))


def _average_pool(axes: int) -> Converter:
    """An average of windows, or a sum of each over a divisor, which TVM's importer ignores."""

    def convert(node: Any, importer: Any) -> Any:
        average = getattr(importer, f"_avg_pool{axes}d")
        divisor = argument(node, importer, 6, "divisor_override")
        if divisor is None:
            return average(node)
        x, builder = importer.env[node.args[0]], importer.block_builder
        window = _of_axes(node.args[1], axes)
        steps = _of_axes(argument(node, importer, 2, "stride") or window, axes)
        before = _of_axes(argument(node, importer, 3, "padding", 0), axes)
        sizes = [one.meta["val"].shape[-axes:] for one in (node.args[0], node)]
        # Every window is full of elements or zeros: the average has one divisor.
        width = [0] * 2 * (len(x.ty.shape) - axes)
        for inputs, outputs, taken, step, zeros in zip(*sizes, window, steps, before, strict=True):
            width += [zeros, max(0, (outputs - 1) * step + taken - inputs - zeros)]
        x = builder.emit(relax.op.nn.pad(x, width))
        made = getattr(importer, f"_avg_pool{axes}d_impl")(x, window, steps)
        return _scaled(made, math.prod(window) / divisor, builder)

    return convert


def _of_axes(value: Any, axes: int) -> list[int]:
    """A number for each axis, as torch reads one for all."""
    numbers = [value] if isinstance(value, int) else list(value)
    return numbers * axes if len(numbers) == 1 else numbers


def _scattered(reduction: str) -> Converter:
    def convert(node: Any, importer: Any) -> Any:
        x, axis, places, values = importer.retrieve_args(node)
        made = relax.op.scatter_elements(x, places, values, axis, reduction)
        return importer.block_builder.emit(made)

    return convert


def _cumulative_sum(node: Any, importer: Any) -> Any:
    """Truth values are counted, in torch's integers."""
    x, axis = importer.env[node.args[0]], node.args[1]
    return importer.block_builder.emit(relax.op.cumsum(x, axis, dtype_of(node)))


def _concatenated(node: Any, importer: Any) -> Any:
    """Torch leaves out vectors without an element, whatever the others' axes."""
    parts = [one for one in node.args[0] if tuple(one.meta["val"].shape) != (0,)]
    axis = argument(node, importer, 1, "dim", 0)
    found = [importer.env[one] for one in parts or node.args[0]]
    return importer.block_builder.emit(relax.op.concat(found, axis))


def _expand(node: Any, importer: Any) -> Any:
    """Axes that are new, and come first, have no size of their own to keep."""
    x = importer.env[node.args[0]]
    sizes = list(importer._retrieve_args(node.args[1]))
    new = len(sizes) - len(x.ty.shape)
    kept = [
        x.ty.shape[place - new] if isinstance(size, int) and size == -1 else size
        for place, size in enumerate(sizes)
    ]
    return importer.block_builder.emit(relax.op.broadcast_to(x, kept))


def _trilinear(node: Any, importer: Any) -> Any:
    """The sum over some axes of the product of three tensors, with new axes at given places."""
    builder = importer.block_builder
    product: Any = None
    for tensor, places in zip(node.args[:3], node.args[3:6], strict=True):
        factor = importer.env[tensor]
        for place in sorted(places):
            factor = builder.emit(relax.op.expand_dims(factor, place))
        product = factor if product is None else builder.emit(relax.op.multiply(product, factor))
    return builder.emit(relax.op.sum(product, list(node.args[6])))


def _known(node: Any, _importer: Any) -> Any:
    """What an operator makes that reads no tensor, as a constant."""
    made = node.target(*node.args, **node.kwargs)
    return relax.const(made.numpy(), dtype_of(node))


def _elu(node: Any, importer: Any) -> Any:
    factors = [float(one) for one in node.args[1:]] + [1.0] * (4 - len(node.args))
    x = argument(node, importer, 0, "input")
    return importer.block_builder.emit_te(formulas.elu, x, *factors, primfunc_name_hint="elu")


def _gelu(node: Any, importer: Any) -> Any:
    x, kind = (
        argument(node, importer, 0, "input"),
        argument(node, importer, 1, "approximate", "none"),
    )
    formula = formulas.gelu if kind == "none" else formulas.gelu_tanh
    return importer.block_builder.emit_te(formula, x)
