# SPDX-License-Identifier: Apache-2.0
"""Qwen3.5 on CPUs: its linear attention over states in place, and functions that read a prompt.

A call gets, in place of TVM's RNNState, a tuple of two tensors that the caller owns: the sequences
and their states (op/gated_delta_on_cpu.py). RNNState copies a state out of its storage and back for
each layer of each call, megabytes a token, can go back behind single tokens only, and its functions
are not well-formed for TVM 0.26. Here a function changes the state where it lies, and a caller that
may want to go back copies a slot before.
"""

from dataclasses import dataclass, replace
from typing import Any, Optional

from mlc_llm import op as op_ext
from mlc_llm.model.model_utils import index_last_token
from mlc_llm.nn import PagedKVCache
from mlc_llm.nn.states_on_cpu import ReadsStates
from mlc_llm.op.gated_delta_on_cpu import DeltaShape, Place, convolve, delta_rule
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from . import qwen35_model
from .qwen35_model import Qwen35Config


def shape_of(config: Qwen35Config) -> DeltaShape:
    """Return the sizes of a layer with linear attention."""
    return DeltaShape(
        key_heads=config.linear_num_key_heads,
        heads=config.linear_num_value_heads,
        keys=config.linear_key_head_dim,
        values=config.linear_value_head_dim,
        width=config.linear_conv_kernel_dim,
    )


@dataclass(frozen=True)
class States:
    """The states of a call's sequences, after the layers computed so far.

    Attributes:
        sequences: int32 [batch, 2]: slot, and the row behind the last token.
        states: float32 [slots, floats of all layers].
    """

    sequences: Tensor
    states: Tensor

    def read(self, layer: Any, hidden: Tensor) -> tuple[Tensor, "States"]:
        """Compute a layer, a Qwen35GatedDeltaNet.

        Args:
            layer: the layer.
            hidden: [batch, tokens, hidden].

        Returns:
            the same for the next layer, and the states after this one.
        """
        batch, length, _ = hidden.shape
        shape = shape_of(layer.config)

        def rows(x: Tensor) -> Tensor:
            return op.reshape(x, (batch * length, x.shape[-1]))

        place = Place(self.sequences, self.states, layer.linear_layer_idx)
        inputs, gate = layer.in_proj_qkv(hidden), layer.in_proj_z(hidden)
        x, states = convolve(shape, rows(inputs), layer.conv1d_weight, place)
        out, states = delta_rule(
            shape,
            x,
            rows(layer.in_proj_a(hidden)),
            rows(layer.in_proj_b(hidden)),
            layer.A_log,
            layer.dt_bias,
            replace(place, states=states),
        )
        normed = layer.norm(op.astype(out, layer.dtype))
        flat = op.reshape(normed, (batch, length, shape.heads * shape.values))
        return layer.out_proj(flat * op.silu(gate)), replace(self, states=states)


class Qwen35LMHeadModel(  # type: ignore[misc, unused-ignore]
    ReadsStates, qwen35_model.Qwen35LMHeadModel
):
    """The model with the functions that the runner of this project calls, for CPUs."""

    @property
    def recurrent_floats(self) -> int:
        """Number of floats of a sequence's states in all layers."""
        return shape_of(self.config).floats * self.num_linear_layers

    def to(self, dtype: Optional[str] = None) -> None:  # noqa: UP045
        """Convert the parameters to a type; those of the convolutions are float32."""
        super().to(dtype=dtype)
        for layer in self.model.layers:
            if layer.layer_type == "linear_attention":
                layer.linear_attn.conv1d_weight.to("float32")

    def _forward(
        self,
        input_embed: Tensor,
        paged_kv_cache: PagedKVCache,
        state: Any,
        logit_positions: Optional[Tensor] = None,  # noqa: UP045
    ) -> Any:
        if not isinstance(state, (tuple, list)):
            return super()._forward(input_embed, paged_kv_cache, state, logit_positions)
        logits, cache, after = super()._forward(
            input_embed, paged_kv_cache, States(*state), logit_positions
        )
        return logits, cache, after.states

    def prefill(self, input_embed: Tensor, paged_kv_cache: PagedKVCache, rnn_state: Any) -> Any:
        """Read tokens [1, tokens, hidden] of a sequence; return last logits, cache and states."""
        op_ext.configure()
        hidden, after = self.model.forward(input_embed, paged_kv_cache, States(*rnn_state))
        hidden = index_last_token(hidden)
        if self.tie_word_embeddings:
            logits = self.model.embed_tokens.lm_head_forward(hidden)
        else:
            logits = self.lm_head(hidden)
        if logits.dtype != "float32":
            logits = logits.astype("float32")
        return logits, paged_kv_cache, after.states

    def decode(self, input_embed: Tensor, paged_kv_cache: PagedKVCache, rnn_state: Any) -> Any:
        """Read a token [1, 1, hidden] of a sequence; return its logits, cache and states."""
        return self._forward(input_embed, paged_kv_cache, rnn_state)

    def prefill_to_last_hidden_states(
        self, input_embed: Tensor, paged_kv_cache: PagedKVCache, rnn_state: Any
    ) -> Any:
        """Read tokens [1, tokens, hidden]; return all after the last norm, cache and states."""
        op_ext.configure()
        hidden, after = self.model.forward(input_embed, paged_kv_cache, States(*rnn_state))
        return hidden, paged_kv_cache, after.states

    def more_functions(self) -> dict[str, Any]:
        """Return the functions that read the rows of several tokens, with their inputs."""
        positions = nn.spec.Tensor(["batch_size"], "int32")
        return {
            "prefill_to_last_hidden_states": self.reads("input_embed", 1, "seq_len"),
            "batch_prefill": self.reads("input_embeds", 1, "seq_len", logit_positions=positions),
            "batch_verify": self.reads("input_embeds", 1, "seq_len"),
        }
