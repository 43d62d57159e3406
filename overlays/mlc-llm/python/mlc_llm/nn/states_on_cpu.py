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

from mlc_llm.nn import PagedKVCache
from tvm import tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op
from tvm.script import tirx as T
from tvm.target import Target

PACKED = {"param_mode": "packed", "effect_mode": "none"}


class ReadsStates:
    """Functions of a model over states of ``recurrent_floats``; a base before upstream's class."""

    @property
    def more_metadata(self: Any) -> dict[str, int]:
        """Entries of the library's metadata: the floats of a sequence's states."""
        return {"recurrent_floats": self.recurrent_floats}

    def reads(self: Any, name: str, *sizes: Any, **more: Any) -> dict[str, Any]:
        """Return the inputs of a function that reads embeddings [*sizes, hidden]."""
        sequences = nn.spec.Tensor(["sequences", 2], "int32")
        floats = nn.spec.Tensor(["slots", self.recurrent_floats], "float32")
        return {
            name: nn.spec.Tensor([*sizes, self.hidden_size], self.dtype),
            **more,
            "paged_kv_cache": nn.spec.Object(object_type=PagedKVCache),
            "rnn_state": (sequences, floats),
            "$": PACKED,
        }

    def more_functions(self) -> dict[str, Any]:
        """Return functions that not every model has, with their inputs."""
        return {}

    def get_default_spec(self: Any) -> nn.spec.ModuleSpec:
        """Return the functions of the library and their inputs."""
        target = Target.current(allow_none=True)
        # The loader has no target; it asks for the parameters only.
        if target is not None and target.kind.name != "llvm":
            return super().get_default_spec()  # type: ignore[misc]
        sizes = ("max_batch_size", "max_total_seq_len", "prefill_chunk_size", "page_size")
        functions = {
            "embed": {"input_ids": nn.spec.Tensor(["seq_len"], "int32"), "$": PACKED},
            "prefill": self.reads("input_embed", 1, "seq_len"),
            "decode": self.reads("input_embed", 1, 1),
            "batch_decode": self.reads("input_embeds", "batch_size", 1),
            **self.more_functions(),
            "create_paged_kv_cache": {
                **dict.fromkeys((*sizes, "support_sliding_window"), int),
                "$": {"param_mode": "none", "effect_mode": "none"},
            },
        }
        return nn.spec.ModuleSpec.from_raw(functions, self)


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
