# SPDX-License-Identifier: Apache-2.0
"""Layers of a model whose weights stay in the blocks of a file, such as GGUF's.

The configuration of the passes lists such weights (``stored``). The layer of one holds the parts of
its blocks as parameters, and is a TIR function that the pass CallLinearKernels fills in: without
the pass it does not link, because no other code reads these formats. Weights that are not listed
stay float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm.relax.frontend import nn

from .configuration import StoredSegment
from .linear.stored import DTYPES, FLOAT, stored_function

MATRIX = 2
# Indices of compiled functions have 32 bits.
LARGEST = 2**31 - 1


def store_layers(model: nn.Module, stored: Mapping[str, tuple[StoredSegment, ...]]) -> nn.Module:
    """Replace the listed layers of a model by layers with stored blocks.

    Args:
        model: its linear layers and embeddings have a parameter ``weight`` [outputs, inputs], and
            experts have one of [experts, outputs, inputs].
        stored: segments of rows, by the name of a layer's weight.

    Raises:
        ValueError: a listed weight is not in the model, does not fit its layer, or is too large.
    """
    replaced: set[str] = set()

    class Replace(nn.Mutator):  # type: ignore[misc]
        def visit_module(self, name: str, node: nn.Module) -> Any:
            segments = stored.get(f"{name}.weight")
            if segments is None:
                return self.visit(name, node)
            replaced.add(f"{name}.weight")
            if isinstance(node, nn.Embedding):
                return StoredEmbedding(node, segments)
            kind = StoredLinear if node.weight.ndim == MATRIX else StoredExperts
            return kind(node, segments)

    result = Replace().visit("", model)
    if others := sorted(set(stored) - replaced):
        raise ValueError(f"the model has no layer with the weight {others[0]}")
    return result


class StoredMatrix(nn.Module):  # type: ignore[misc]
    """The weights of a layer, in segments of rows with the same format.

    The parameters of segment i are ``<part>_<i>``, such as ``quants_0``.
    """

    def __init__(self, weight: nn.Parameter, segments: tuple[StoredSegment, ...]) -> None:
        super().__init__()
        *experts, self.rows, self.inputs = weight.shape
        self.segments = segments
        total = sum(segment.rows for segment in segments)
        if isinstance(self.rows, int) and self.rows != total:
            raise ValueError(f"a layer of {self.rows} outputs has weights of {total}")
        for i, segment in enumerate(segments):
            # A symbolic number of rows stays symbolic; such weights have one segment.
            rows = segment.rows if isinstance(self.rows, int) else self.rows
            for part in segment.parts:
                shape = (*experts, rows, part.columns)
                if math.prod((*experts, segment.rows, part.columns)) > LARGEST:
                    raise ValueError(f"weights of {shape} elements are beyond 32-bit indices")
                setattr(self, f"{part.name}_{i}", nn.Parameter(shape, DTYPES[part.item]))

    def parts(self) -> list[nn.Parameter]:
        """Return the parameters, in the order of segments and parts."""
        return [
            getattr(self, f"{part.name}_{i}")
            for i, segment in enumerate(self.segments)
            for part in segment.parts
        ]

    def product(self, x: nn.Tensor) -> nn.Tensor:
        """Multiply x [..., inputs] by the transposed weights; return float32 [..., rows]."""
        parts = self.parts()
        rows = self.rows if isinstance(self.rows, int) else parts[0].shape[0]
        return _call("linear", [x, *parts], self.segments, [*x.shape[:-1], rows])

    def to(self, dtype: str | None = None) -> None:
        """Set the type of the bias, if any; blocks keep their type."""
        if getattr(self, "bias", None) is not None:
            self.bias.to(dtype=dtype)


class StoredLinear(StoredMatrix):
    """A linear layer with weights in stored blocks."""

    def __init__(self, layer: nn.Module, segments: tuple[StoredSegment, ...]) -> None:
        super().__init__(layer.weight, segments)
        self.in_features, self.out_features = self.inputs, self.rows
        self.bias = getattr(layer, "bias", None)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Return the layer's output, float32 [..., rows]."""
        out = self.product(x)
        return out if self.bias is None else out + self.bias


class StoredExperts(StoredMatrix):
    """The same product of all experts of a mixture, with weights in stored blocks."""

    def __init__(self, layer: nn.Module, segments: tuple[StoredSegment, ...]) -> None:
        super().__init__(layer.weight, segments)

    def forward(self, x: nn.Tensor, indptr: nn.Tensor) -> nn.Tensor:
        """Return float32 [rows, outputs]; the arguments are those of ``experts_on_cpu.experts``."""
        shape = [indptr.shape[1] if indptr.ndim > 1 else x.shape[0], self.rows]
        return _call("experts", [x, *self.parts(), indptr], self.segments, shape)


class StoredEmbedding(StoredMatrix):
    """An embedding with weights in stored blocks; it may also be the language model's head."""

    def __init__(self, layer: nn.Embedding, segments: tuple[StoredSegment, ...]) -> None:
        super().__init__(layer.weight, segments)
        if len(segments) != 1:
            raise ValueError("an embedding has weights of several formats")

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Return the embeddings of tokens x, float32 [*x.shape, inputs]."""
        ids = x if x.ndim == 1 else nn.op.reshape(x, shape=[-1])
        rows = _call("take", [ids, *self.parts()], self.segments, [ids.shape[0], self.inputs])
        return rows if x.ndim == 1 else nn.op.reshape(rows, shape=[*x.shape, self.inputs])

    def lm_head_forward(self, x: nn.Tensor) -> nn.Tensor:
        """Return logits, float32 [..., rows]."""
        return self.product(x)


def _call(
    kind: str,
    arguments: list[nn.Tensor],
    segments: tuple[StoredSegment, ...],
    shape: list[Any],
) -> nn.Tensor:
    sizes: dict[Any, tirx.Var] = {}

    def of_function(extents: Any) -> list[Any]:
        """Replace the caller's variables in extents by the function's own variables."""
        return [
            int(extent)
            if isinstance(extent, int | tirx.IntImm)
            else sizes.setdefault(extent, tirx.Var(f"n{len(sizes)}", "int64"))
            for extent in extents
        ]

    buffers = [(of_function(each.shape), each.dtype) for each in arguments]
    func = stored_function(kind, buffers, of_function(shape), segments)
    out = nn.Tensor.placeholder(shape, FLOAT)
    return nn.op.tensor_ir_op(func, f"stored_{kind}", arguments, out)
