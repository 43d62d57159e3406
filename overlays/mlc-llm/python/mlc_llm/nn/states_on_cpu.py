# SPDX-License-Identifier: Apache-2.0
# TIR of this width reads better on one line than wrapped, as in TVM's modules of attention.
# ruff: noqa: E501
# fmt: off
"""Recurrent states that the caller owns, in place of TVM's RNNState, for CPUs.

RNNState's functions are not well-formed for TVM 0.26, and it goes back behind single tokens only. Here
the states of all sequences are one tensor [slots, floats], as for the gated delta rule
(op/gated_delta_on_cpu.py): a slot holds what one sequence needs, so that a checkpoint is a copy of a row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.relax.frontend.nn import Tensor, op
from tvm.script import tirx as T


@dataclass(frozen=True)
class StatesOnCpu:
    """The states of a call's sequences, with the methods of RNNState that a model's layers call.

    Attributes:
        sequences: int32 [batch, 2]: slot, and the row behind the last token.
        states: float32 [slots, floats of all layers].
        shapes: shape of each state of a layer.
    """

    sequences: Tensor
    states: Tensor
    shapes: tuple[tuple[int, ...], ...]

    def get(self, layer: int, state: int, shape: Sequence[Any], dtype: str) -> Tensor:
        """Return a copy [batch, ...] of a layer's state number ``state``; the batch is shape[0]."""
        out = Tensor.placeholder([shape[0], math.prod(self.shapes[state])], "float32")
        inputs = [self.sequences, self._start(layer, state), self.states]
        values = op.tensor_ir_op(_reader(math.prod(self.shapes[state])), "read_states", inputs, out)
        return op.astype(op.reshape(values, (shape[0], *self.shapes[state])), dtype)

    def set(self, layer: int, state: int, value: Tensor) -> "StatesOnCpu":
        """Write a state of a layer [batch, ...]; return the states after it."""
        size = math.prod(self.shapes[state])
        flat = op.astype(op.reshape(value, (value.shape[0], size)), "float32")
        inputs = [flat, self.sequences, self._start(layer, state), self.states]
        changed = Tensor.placeholder(self.states.shape, "float32")
        written = op.tensor_ir_inplace_op(_writer(size), "write_states", inputs, [3], changed)
        return replace(self, states=written)

    def _start(self, layer: int, state: int) -> tirx.IntImm:
        sizes = [math.prod(shape) for shape in self.shapes]
        return tirx.const(layer * sum(sizes) + sum(sizes[:state]), "int64")


# Opaque, so that no function is fused that reads a state after another one has written it.
_ATTRIBUTES = {"op_pattern": 8, "tirx.noalias": True, "tirx.is_scheduled": True}


def _reader(size: int) -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def read_states(var_sequences: T.handle, start: T.int64, var_states: T.handle, var_out: T.handle):
        T.func_attr(_ATTRIBUTES)
        batch, slots, floats, rows = T.int64(), T.int64(), T.int64(), T.int64()
        sequences = T.match_buffer(var_sequences, (batch, 2), "int32")
        states = T.match_buffer(var_states, (slots, floats), "float32")
        out = T.match_buffer(var_out, (rows, size), "float32")
        for row, i in T.grid(rows, size):
            with T.sblock("read"):
                T.reads()
                T.writes()
                out[row, i] = states[sequences[row, 0], start + i]

    return read_states


def _writer(size: int) -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def write_states(var_value: T.handle, var_sequences: T.handle, start: T.int64, var_states: T.handle):
        T.func_attr(_ATTRIBUTES)
        batch, slots, floats, rows = T.int64(), T.int64(), T.int64(), T.int64()
        value = T.match_buffer(var_value, (rows, size), "float32")
        sequences = T.match_buffer(var_sequences, (batch, 2), "int32")
        states = T.match_buffer(var_states, (slots, floats), "float32")
        for row, i in T.grid(rows, size):
            with T.sblock("write"):
                T.reads()
                T.writes()
                states[sequences[row, 0], start + i] = value[row, i]

    return write_states
