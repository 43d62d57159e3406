# SPDX-License-Identifier: Apache-2.0
"""Small language models of the library transformers with random weights, for ``nox -s torch``."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GPT2Config

from torchroad.causal_lm import CausalLM
from torchroad.program import LENGTH


def _causal_lm(config: Any) -> tuple[CausalLM, dict[str, torch.Tensor], dict[str, Any]]:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().eval()
    inputs = {"input_ids": torch.arange(3, 15)[None], "position_ids": torch.arange(12)[None]}
    return CausalLM(model), inputs, {name: {1: LENGTH} for name in inputs}


def gpt2() -> tuple[CausalLM, dict[str, torch.Tensor], dict[str, Any]]:
    """Learned positions, and weights of linear layers that lie the other way round."""
    return _causal_lm(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2))


def sliding() -> tuple[CausalLM, dict[str, torch.Tensor], dict[str, Any]]:
    """A Gemma 3 whose first layer sees the last 16 tokens alone."""
    config = Gemma3TextConfig(
        **{"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "sliding_window": 16},
        **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1},
        **{"head_dim": 32, "layer_types": ["sliding_attention", "full_attention"]},
    )
    return _causal_lm(config)
