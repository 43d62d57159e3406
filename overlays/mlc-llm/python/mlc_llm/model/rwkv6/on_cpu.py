# SPDX-License-Identifier: Apache-2.0
"""RWKV 6 on CPUs."""

from ..rwkv_on_cpu import RwkvOnCpu
from . import rwkv6_model
from .rwkv6_model import RWKV6Config

__all__ = ["RWKV6Config", "RWKV6_ForCausalLM"]


class RWKV6_ForCausalLM(  # type: ignore[misc, unused-ignore]
    RwkvOnCpu, rwkv6_model.RWKV6_ForCausalLM
):
    """Upstream's model with the functions that the runner of this project calls."""
