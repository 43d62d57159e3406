# SPDX-License-Identifier: Apache-2.0
"""A language model of the library transformers, as a module with inputs of tokens and positions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from crosslab.errors import UserError
from torchroad.program import LENGTH


class CausalLM(nn.Module):  # type: ignore[misc]
    """Maps tokens and positions int64 [1, n] to logits float32 [1, n, vocab], masked causally."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Return the logits after each token of a sequence."""
        # Without a padding mask transformers derives a mask from the positions' values; with an
        # attention mask it ignores sliding windows.
        mask = torch.ones(1, input_ids.shape[1], dtype=torch.bool)
        logits: Tensor = self.model(
            input_ids=input_ids, position_ids=position_ids, attention_mask=mask, use_cache=False
        ).logits
        return logits


def read_causal_lm(folder: Path, prompt: Sequence[int]) -> tuple[Any, ...]:
    """Read a folder in Hugging Face's layout; return (module, inputs, dynamic) as a factory does.

    Raises:
        UserError: transformers is missing, or cannot read the folder.
    """
    try:
        from transformers import AutoModelForCausalLM  # noqa: PLC0415
    except ImportError as error:
        raise UserError(
            "the package transformers is not installed here", remedy="nox -s torch installs it"
        ) from error
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"transformers cannot read {folder}: {error}") from error
    tokens = torch.tensor([list(prompt)])
    inputs = {"input_ids": tokens, "position_ids": torch.arange(len(prompt))[None]}
    return CausalLM(model), inputs, {name: {1: LENGTH} for name in inputs}
