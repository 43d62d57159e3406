# SPDX-License-Identifier: Apache-2.0
"""Kinds of RoPE, base 10000: their settings as TVM has them, their frequencies in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from support.passes.linear import Array

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 4096,
    "inv_theta_log_scale": 1 / (2 * math.log(1e4)),
}


def frequencies(scaling: dict[str, Any], dim: int) -> Array:
    """Of every feature, in float64, from the formulas of the kinds of scaling."""
    feature = np.arange(dim)
    kind = scaling["rope_type"]
    if kind == "gptj":
        return np.asarray(1e4 ** -(feature // 2 * 2 / dim))
    plain = 1e4 ** -(feature * 2 % dim / dim)
    before = scaling["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = np.clip((before * plain / (2 * np.pi) - low) / (high - low), 0, 1)
    else:
        # The ramp is over the pairs: features half of them apart are turned by one angle.
        low, high = (
            dim * math.log(before / (scaling[beta] * 2 * np.pi)) / (2 * math.log(1e4))
            for beta in ("beta_fast", "beta_slow")
        )
        if scaling.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        kept = 1 - np.clip((feature % (dim // 2) - low) / (high - low), 0, 1)
    return np.asarray(plain * kept + plain / scaling["factor"] * (1 - kept))
