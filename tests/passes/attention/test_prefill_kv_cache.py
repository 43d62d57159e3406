# SPDX-License-Identifier: Apache-2.0
"""The tiled kernels in their place: prompts in chunks through the runtime's paged KV cache."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.passes.attention_reference import Array, Batch, Heads, Sequence, attend, make_batch
from support.passes.kv_cache_ir import kv_cache_module

from crosslab.compile.overlaypass import load_pass

pytestmark = pytest.mark.slow

# As kv_cache_module registers them; its RoPE rotates each token by its place in its sequence.
HEADS = Heads(kv=2, q=6, d=48, d_v=48)
LAYER = 0


class Cache:
    """A paged KV cache made by a compiled `create`, fed with tokens of a batch."""

    def __init__(self, tvm: ModuleType, batch: Batch, machine: Any, *, window: bool) -> None:
        from tvm_ffi import Shape  # noqa: PLC0415

        self._tvm, self._batch, self._shape = tvm, batch, Shape
        page_size = 16
        self._state = machine["create"](Shape([4, 256, 128, page_size, int(window)]))
        self._done = [0] * len(batch.sequences)
        for index in range(len(batch.sequences)):
            self._call("kv_state_add_sequence", index)

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._tvm.get_global_func(f"vm.builtin.{name}")(self._state, *arguments)

    def prefill(self, lengths: dict[int, int]) -> list[Array]:
        """Feed the next tokens of some sequences; returns each one's attention output."""
        slices = {i: slice(self._done[i], self._done[i] + n) for i, n in lengths.items()}
        batch = self._batch
        fused = [
            np.concatenate([part[i][rows] for part in (batch.q, batch.k, batch.v)], axis=1)
            for i, rows in slices.items()
        ]
        qkv = self._tvm.runtime.tensor(np.concatenate(fused))
        out = self._tvm.runtime.tensor(
            np.zeros((sum(lengths.values()), HEADS.q, HEADS.d), HEADS.dtype)
        )
        self._call("kv_state_begin_forward", self._shape(lengths), self._shape(lengths.values()))
        self._call("attention_kv_cache_attention_with_fused_qkv", LAYER, batch.sm_scale, qkv, out)
        self._call("kv_state_end_forward")
        for index, rows in slices.items():
            self._done[index] = rows.stop
        return np.split(out.numpy(), np.cumsum(list(lengths.values()))[:-1])


@pytest.fixture(scope="module")
def machine(tvm: ModuleType) -> Any:
    """The virtual machine with the compiled `create`."""
    target = tvm.target.Target({"kind": "llvm"})
    lowering = load_pass("tir_pipeline").registered()
    library = tvm.compile(kv_cache_module(tvm, target), target, tir_pipeline=lowering)
    return tvm.relax.VirtualMachine(library, tvm.cpu())


# A cache that supports a sliding window keeps K without RoPE, which the kernels then apply.
@pytest.mark.parametrize("window", [False, True], ids=["rope-in-cache", "rope-in-kernel"])
def test_prompts_in_chunks_equal_prompts_as_a_whole(
    tvm: ModuleType, machine: Any, window: bool
) -> None:
    batch = make_batch(HEADS, (Sequence(37, 37), Sequence(14, 14)), rotary=True)
    for index, sequence in enumerate(batch.sequences):
        batch.k_position[index] = 0
        batch.q_position[index] = np.arange(sequence.q_len)
    cache = Cache(tvm, batch, machine, window=window)
    chunks: dict[int, list[Array]] = {0: [], 1: []}
    for lengths in ({0: 20, 1: 9}, {0: 16}, {1: 5, 0: 1}):
        for index, out in zip(lengths, cache.prefill(lengths), strict=True):
            chunks[index].append(out)
    actual = np.concatenate([*chunks[0], *chunks[1]])
    np.testing.assert_allclose(actual, attend(batch)[0], atol=5e-6)
