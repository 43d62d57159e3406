# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention on a CPU: a cache of latent vectors against the float64 reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.passes.attention_reference import Array, Batch, Heads, attend, make_batch
from support.passes.attention_reference import Sequence as Tokens
from support.passes.kv_cache_ir import LATENT, kv_cache_module

from crosslab.compile.overlaypass import load_pass

pytestmark = pytest.mark.slow

HEADS = 6
LAYER = 1


class LatentCache:
    """A cache made by a compiled `create`, asked as MLC-LLM's DeepSeek V2 asks it.

    Keys and values of heads of their own are the latent ones here, so that tokens of a chunk attend
    to each other and to the cache in the same space.
    """

    def __init__(self, tvm: ModuleType, machine: Any, batch: Batch) -> None:
        from tvm_ffi import Shape  # noqa: PLC0415

        self._tvm, self._shape, self._batch = tvm, Shape, batch
        self._state = machine["create"](Shape([4, 256, 128, 16, 0]))
        self.done: dict[int, int] = {}

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._tvm.get_global_func(f"vm.builtin.{name}")(self._state, *arguments)

    def add(self, sequence: int) -> None:
        """Begin a sequence of the batch."""
        self._call("kv_state_add_sequence", sequence)
        self.done[sequence] = 0

    def fork(self, parent: int, child: int, tokens: int) -> None:
        """Begin a sequence with tokens of another."""
        self._call("kv_state_fork_sequence", parent, child, tokens)
        self.done[child] = tokens

    def read(self, lengths: Mapping[int, int], parts: Sequence[str]) -> list[Array]:
        """Feed the next tokens of sequences; the outputs over `self`, `cross` or both, merged."""
        rows = {i: slice(self.done[i], self.done[i] + n) for i, n in lengths.items()}
        q = np.concatenate([self._batch.q[i][at] for i, at in rows.items()])
        k = np.concatenate([self._batch.k[i][at] for i, at in rows.items()])
        tensor = self._tvm.runtime.tensor
        self._call("kv_state_begin_forward", self._shape(lengths), self._shape(lengths.values()))
        self._call("attention_kv_cache_append_mla_kv", LAYER, tensor(k[:, 0]))
        heads = np.repeat(k, HEADS, axis=1)
        states = []
        for part in parts:
            out = tensor(np.zeros((len(q), HEADS, LATENT), q.dtype))
            lse = tensor(np.zeros((len(q), HEADS), "float32"))
            given = [q, heads, heads[..., :LATENT].copy()][: 3 if part == "self" else 1]
            asked = (LAYER, self._batch.sm_scale, *map(tensor, given), out, lse)
            self._call(f"attention_kv_cache_{part}_attention", *asked)
            states += [out, lse]
        if len(parts) == 2:
            self._call("attention_kv_cache_merge_attn_output_inplace", *states)
        self._call("kv_state_end_forward")
        self.done |= {i: at.stop for i, at in rows.items()}
        return np.split(states[0].numpy(), np.cumsum(list(lengths.values()))[:-1])


def machine_of(tvm: ModuleType, dtype: str) -> Any:
    target = tvm.target.Target({"kind": "llvm"})
    module = kv_cache_module(tvm, target, latent=True, dtype=dtype)
    library = tvm.compile(module, target, tir_pipeline=load_pass("tir_pipeline").registered())
    return tvm.relax.VirtualMachine(library, tvm.cpu())


def test_a_cache_of_latent_vectors_is_made(tvm: ModuleType) -> None:
    module = kv_cache_module(tvm, tvm.target.Target({"kind": "llvm"}), latent=True)
    function = module["tir_attention_prefill_mla_cpu"]
    assert function.attrs["global_symbol"] == "batch_prefill_paged_kv_mla_cpu"
    assert "T.thread_binding" not in module.script()
    assert "T.exp2" not in function.script()


def test_values_smaller_than_the_latent_vector_have_a_merge_of_their_own(tvm: ModuleType) -> None:
    target = tvm.target.Target({"kind": "llvm"})
    module = kv_cache_module(tvm, target, latent=True, value=16)
    # As the compilation does; two functions with one symbol are an error.
    module = tvm.relax.transform.NormalizeGlobalVar()(module)
    names = [var.name_hint for var in module.get_global_vars() if "merge_state" in var.name_hint]
    assert sorted(names) == ["merge_state_inplace_cpu", "merge_state_inplace_mla_cpu"]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 4e-3)])
def test_chunks_decoding_and_forks_are_right(tvm: ModuleType, dtype: str, tolerance: float) -> None:
    shared = 30  # tokens of a fork: a whole page and a part of one
    lengths = (Tokens(40, 40), Tokens(14, 14), Tokens(40, 40))
    batch = make_batch(Heads(kv=1, q=HEADS, d=48, d_v=LATENT, dtype=dtype), lengths, seed=4)
    batch.k[2][:shared], batch.q[2][:shared] = batch.k[0][:shared], batch.q[0][:shared]
    batch.v[:] = [k[..., :LATENT] for k in batch.k]
    cache = LatentCache(tvm, machine_of(tvm, dtype), batch)
    found: dict[int, list[Array]] = {0: [], 1: [], 2: []}

    def read(lengths: Mapping[int, int], *parts: str) -> None:
        for index, out in zip(lengths, cache.read(lengths, parts), strict=True):
            found[index].append(out)

    cache.add(0)
    cache.add(1)
    read({0: 20, 1: 9}, "self")
    read({0: 16, 1: 4}, "self", "cross")
    cache.fork(0, 2, shared)
    found[2].append(np.concatenate(found[0])[:shared])
    read({2: 6}, "self", "cross")
    for _ in range(3):
        read({0: 1, 2: 1}, "cross")  # they share pages, which are read once for both
    read({2: 1, 1: 1, 0: 1}, "cross")
    actual = np.concatenate([part for parts in found.values() for part in parts])
    np.testing.assert_allclose(actual, attend(batch)[0], atol=tolerance)
