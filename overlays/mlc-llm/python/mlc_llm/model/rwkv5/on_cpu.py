# SPDX-License-Identifier: Apache-2.0
"""RWKV 5 on CPUs."""

from ..rwkv_on_cpu import RwkvOnCpu
from . import rwkv5_model
from .rwkv5_model import RWKV5Config

__all__ = ["RWKV5Config", "RWKV5_ForCausalLM"]


class RWKV5_ForCausalLM(  # type: ignore[misc, unused-ignore]
    RwkvOnCpu, rwkv5_model.RWKV5_ForCausalLM
):
    """Upstream's model with the functions that the runner of this project calls."""
