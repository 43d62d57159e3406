# Licensed to the Apache Software Foundation (ASF) under one
# or more contributor license agreements.  See the NOTICE file
# distributed with this work for additional information
# regarding copyright ownership.  The ASF licenses this file
# to you under the Apache License, Version 2.0 (the
# "License"); you may not use this file except in compliance
# with the License.  You may obtain a copy of the License at
#
#   http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing,
# software distributed under the License is distributed on an
# "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY
# KIND, either express or implied.  See the License for the
# specific language governing permissions and limitations
# under the License.
"""The paged KV cache gives each layer's rotary embedding to that layer's attention kernels."""

import numpy as np
import pytest

import tvm
import tvm.testing
from tvm_ffi import Shape

PAGE_SIZE = 16
HEAD_DIM = 2
# Layers with a sliding window have a scale and a base of their own.
SLIDING, GLOBAL = (1.0, 10000.0), (0.5, 1e6)
ATTN_MHA, ATTN_MHA_SLIDING, ROPE_INLINE = 0, 3, 2


def _cache(calls, attn_kinds):
    """A cache whose kernels write down their names, scales and bases."""

    def recorded(name):
        def kernel(*args):
            calls.append((name, (float(args[-3]), float(args[-2]))))

        return [tvm.runtime.convert("tirx"), tvm.runtime.convert(kernel)]

    nothing = tvm.runtime.convert(lambda *_: None)
    return tvm.get_global_func("vm.builtin.paged_attention_kv_cache_create")(
        Shape([2, 128, 64, PAGE_SIZE, 1]),
        Shape([0, len(attn_kinds)]),
        1,
        1,
        HEAD_DIM,
        HEAD_DIM,
        Shape(attn_kinds),
        False,
        ROPE_INLINE,
        GLOBAL[0],
        GLOBAL[1],
        None,
        tvm.runtime.empty((), "float32"),
        nothing,
        None,
        recorded("ragged"),
        recorded("prefill"),
        recorded("decode"),
        recorded("sliding prefill"),
        recorded("sliding decode"),
        [],
        [],
        [],
        [nothing],
        nothing,
        nothing,
        nothing,
        nothing,
    )


def _read(cache, lengths, num_layers):
    """Read so many tokens of each sequence."""
    state = {
        name: tvm.get_global_func(f"vm.builtin.kv_state_{name}")
        for name in ("begin_forward", "end_forward")
    }
    attention = tvm.get_global_func("vm.builtin.attention_kv_cache_attention_with_fused_qkv")
    state["begin_forward"](cache, Shape(range(len(lengths))), Shape(lengths))
    for layer in range(num_layers):
        qkv = tvm.runtime.tensor(np.zeros((sum(lengths), 3, HEAD_DIM), "float32"))
        out = tvm.runtime.tensor(np.zeros((sum(lengths), 1, HEAD_DIM), "float32"))
        attention(cache, layer, 1.0, qkv, out)
    state["end_forward"](cache)


@pytest.mark.parametrize(
    "attn_kinds, bases",
    [
        ([ATTN_MHA_SLIDING, ATTN_MHA], [SLIDING, GLOBAL]),
        ([ATTN_MHA, ATTN_MHA_SLIDING], [GLOBAL, SLIDING]),
    ],
)
def test_all_kernels_of_a_layer_rotate_by_its_base(attn_kinds, bases):
    calls = []
    cache = _cache(calls, attn_kinds)
    for sequence in (0, 1):
        tvm.get_global_func("vm.builtin.kv_state_add_sequence")(cache, sequence)
    names = {ATTN_MHA: "", ATTN_MHA_SLIDING: "sliding "}
    # Nothing cached: self-attention alone. Then self-attention and attention over the cache; a
    # token a sequence is in the cache before it is read.
    rounds = [([3, 2], ["ragged"]), ([3, 2], ["ragged", "prefill"]), ([1, 1], ["decode"])]
    for lengths, kernels in rounds:
        calls.clear()
        _read(cache, lengths, len(attn_kinds))
        assert calls == [
            (kernel if kernel == "ragged" else names[kind] + kernel, base)
            for kind, base in zip(attn_kinds, bases)
            for kernel in kernels
        ]


if __name__ == "__main__":
    tvm.testing.main()
