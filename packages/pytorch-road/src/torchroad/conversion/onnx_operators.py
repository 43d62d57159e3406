# SPDX-License-Identifier: Apache-2.0
"""Converters of ONNX's operators that replace those of TVM's importer.

The importer computes some functions without the digits that they have near zero, and takes
variances as differences of squares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.relax.frontend.nn.llm._vector_math import const
from tvm.relax.frontend.onnx import onnx_frontend

from torchroad.conversion import elementary, extremes, norms

# Accepts the block builder, the operator's inputs and its attributes.
Formula = Callable[[Any, Sequence[Any], dict[str, Any]], Any]
LATEST = 1000  # more than any version of ONNX's operators


@contextmanager
def own_converters() -> Iterator[None]:
    """Let TVM's importer use the converters of this module during a ``with`` block."""
    upstream = onnx_frontend._get_convert_map
    onnx_frontend._get_convert_map = lambda: {**upstream(), **OWN}
    try:
        yield
    finally:
        onnx_frontend._get_convert_map = upstream


def _converter(formula: Formula, upstream: Any = None) -> Any:
    """Return a class of the importer that converts an operator of every version by a formula.

    Args:
        formula: adds the operator to a function.
        upstream: the importer's class for inputs of other dtypes than float32; None: the formula.
    """

    def convert(_: Any, builder: Any, inputs: Any, attributes: Any, params: Any) -> Any:
        if upstream is None or str(inputs[0].ty.dtype) == "float32":
            return formula(builder, inputs, attributes)
        return upstream.get_converter(LATEST)(builder, inputs, attributes, params)

    members = {"_impl_v1": classmethod(convert)}
    return type("Converter", (onnx_frontend.OnnxOpConverter,), members)


def _each(function: Callable[..., Any], **attributes: float) -> Formula:
    """Return the formula of a function of an element, whose further arguments are attributes."""

    def formula(builder: Any, inputs: Sequence[Any], given: dict[str, Any]) -> Any:
        values = [given.get(name, default) for name, default in attributes.items()]
        return builder.emit_te(elementary.each(lambda v: function(v, *values), "each"), inputs[0])

    return formula


def _limited(x: Any, least: float = -math.inf, most: float = math.inf) -> Any:
    """Return a number within limits; comparisons that fail keep a NaN."""
    above = tirx.Select(x < const(least), const(least), x)
    return tirx.Select(above > const(most), const(most), above)


def _softplus(x: Any) -> Any:
    near = tirx.log1p(te.exp(_limited(x, most=20)))
    return tirx.Select(x > const(20), x, near)


def _relu(builder: Any, inputs: Sequence[Any], _: Any) -> Any:
    return builder.emit_te(extremes.relu, inputs[0])


def _clip(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
    """Convert a limitation to attributes, or to inputs since version 11; a NaN limits nothing.

    The limits of ONNX that are not given are the least and the largest finite number.
    """
    x, *limits = inputs
    dtype = str(x.ty.dtype)
    finite = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    ends = (("min", finite.min, relax.op.less), ("max", finite.max, relax.op.greater))
    for place, (name, end, exceeds) in enumerate(ends):
        limit = limits[place] if place < len(limits) else None
        if limit is None:
            limit = relax.const(attributes.get(name, end), dtype)
        x = builder.emit(relax.op.where(builder.emit(exceeds(x, limit)), limit, x))
    return x


def _of_several(name: str, combined: Callable[..., Any]) -> Any:
    """Return a class of the importer for an operator of several tensors; maxima keep a NaN.

    TVM's takes the second of several constants for the number of an axis.
    """
    upstream = getattr(onnx_frontend, name)

    def of_constants(*arrays: Any) -> Any:
        result = combined(np.stack(np.broadcast_arrays(*arrays)), axis=0)
        return np.asarray(result, arrays[0].dtype)

    def of_tensors(stacked: Any, axis: int) -> Any:
        result, dtype = upstream.relax_op(stacked, axis=axis), str(stacked.ty.dtype)
        if not dtype.startswith("float"):
            return result
        nans = relax.op.max(relax.op.astype(relax.op.isnan(stacked), "int8"), axis=axis)
        is_nan = relax.op.astype(nans, "bool")
        return relax.op.where(is_nan, relax.const(math.nan, dtype), result)

    members = {"numpy_op": staticmethod(of_constants), "relax_op": staticmethod(of_tensors)}
    return type(name, (upstream,), members)


class _PRelu(onnx_frontend.OnnxOpConverter):  # type: ignore[misc]
    """A converter of ``PRelu`` with slopes of any shape."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        """Convert the operator with a slope for each channel, or one for all."""
        x, slope = inputs
        ones = [1] * (len(x.ty.shape) - 2)
        slope = bb.emit(relax.op.reshape(slope, [slope.ty.shape[0], *ones]))
        return cls._impl_v7(bb, (x, slope), attr, params)

    @classmethod
    def _impl_v7(cls, bb: Any, inputs: Any, _attr: Any, _params: Any) -> Any:
        """Convert the operator with slopes that are broadcast."""
        x, slope = inputs
        is_negative = bb.emit(relax.op.less(x, relax.const(0, str(x.ty.dtype))))
        return relax.op.where(is_negative, bb.emit(relax.op.multiply(x, slope)), x)


def _inserted(_: Any, inputs: Sequence[Any], _attributes: dict[str, Any]) -> Any:
    """Convert an insertion into a sequence; the importer counts negative places from one more."""
    sequence, tensor, *given = inputs
    items = list(sequence)
    if given and not isinstance(given[0], relax.Constant):
        raise TypeError("only a constant place is supported")
    items.insert(int(given[0].data.numpy()) if given else len(items), tensor)
    return relax.Tuple(items)


def _group_norm(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
    """Convert a norm of groups; weights are those of groups, since version 21 of channels."""
    x, weights, biases = inputs
    eps = attributes.get("epsilon", 1e-5)
    normal = norms.normal_groups(x, attributes["num_groups"], eps, builder)
    count = weights.ty.shape[0]
    size = math.prod(x.ty.shape) // (x.ty.shape[0] * count)
    flat = builder.emit(relax.op.reshape(normal, [x.ty.shape[0], count, size]))
    for values, operator in ((weights, relax.op.multiply), (biases, relax.op.add)):
        wide = builder.emit(relax.op.reshape(values, [count, 1]))
        flat = builder.emit(operator(flat, wide))
    return relax.op.reshape(flat, x.ty.shape)


def _mean_variance_norm(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
    x, axes = inputs[0], list(attributes.get("axes", (0, 2, 3)))

    def mean(values: Any) -> Any:
        return builder.emit(relax.op.mean(values, axes, keepdims=True))

    for _ in range(2):  # a float32 rounds the first mean by more than small differences from it
        x = builder.emit(relax.op.subtract(x, mean(x)))
    root = builder.emit(relax.op.sqrt(mean(builder.emit(relax.op.multiply(x, x)))))
    return relax.op.divide(x, builder.emit(relax.op.add(root, relax.const(1e-9, "float32"))))


class _Equal(onnx_frontend.Equal):  # type: ignore[misc]
    """A converter of ``Equal``; TVM does not compile a comparison of truth values."""

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        if {str(getattr(one.ty, "dtype", "")) for one in inputs} == {"bool"}:
            inputs = [bb.emit(relax.op.astype(one, "int8")) for one in inputs]
        return super()._impl_v13(bb, inputs, attr, params)


class _Remainder(onnx_frontend.Mod):  # type: ignore[misc]
    """A converter of ``Mod``; TVM's computes remainders of constants with the other one's signs."""

    @classmethod
    def _impl_v10(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        is_float = attr.get("fmod", 0)
        cls.numpy_op = np.fmod if is_float else np.mod
        cls.relax_op = relax.op.mod if is_float else relax.op.floor_mod
        return cls.base_impl(bb, inputs, attr, params)


def _elu(x: Any, alpha: float, gamma: float = 1.0) -> Any:
    return elementary.elu(x, alpha, gamma, 1.0)


def _sign(x: Any) -> Any:
    return tirx.Select(x > const(0), const(1), tirx.Select(x < const(0), const(-1), x))


def _above(x: Any, alpha: float) -> Any:
    return tirx.Select(x > const(alpha), x, const(0))


FORMULAS = {
    "Elu": _each(_elu, alpha=1.0),
    "Selu": _each(_elu, alpha=1.6732631921768188, gamma=1.0507010221481323),
    "Mish": _each(lambda x: x * te.tanh(_softplus(x))),
    "Softplus": _each(_softplus),
    "ThresholdedRelu": _each(_above, alpha=1.0),
    "HardSigmoid": _each(
        lambda x, alpha, beta: _limited(x * const(alpha) + const(beta), 0, 1), alpha=0.2, beta=0.5
    ),
    "Sign": _each(_sign),
    "GroupNormalization": _group_norm,
    "MeanVarianceNormalization": _mean_variance_norm,
}
OWN = {
    **{name: _converter(made, getattr(onnx_frontend, name)) for name, made in FORMULAS.items()},
    "Relu": _converter(_relu),
    "SequenceInsert": _converter(_inserted),
    "PRelu": _PRelu,
    "Equal": _Equal,
    "Mod": _Remainder,
    "Clip": _converter(_clip),
    "Max": _of_several("Max", np.max),
    "Min": _of_several("Min", np.min),
    "Sum": _of_several("Sum", np.sum),
    "Mean": _of_several("Mean", np.mean),
}
