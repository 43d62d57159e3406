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
"""CPU prefill attention over a paged KV cache rescales its accumulator by a factor in bounds."""

import math

import numpy as np

import tvm
import tvm.testing
from tvm.relax.frontend.nn.llm.kv_cache import _attention_prefill_cpu


def _compile(func):
    """Compile without LLVM's optimizer, which hides reads of undefined values."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    return tvm.compile(mod, target=target)["main"]


def _int32(*values):
    return tvm.runtime.tensor(np.array(values, dtype="int32"))


def _attend(q, k, v, mask, sm_scale=1.0):
    """Softmax attention of [rows, heads, d] in float64; log-sum-exp in base 2."""
    score = np.einsum("ihd,jhd->ihj", q.astype("float64"), k) * sm_scale
    score = np.where(mask[:, None, :], score, -np.inf)
    top = score.max(axis=-1, keepdims=True)
    weight = np.exp(score - top)
    total = weight.sum(axis=-1, keepdims=True)
    out = np.einsum("ihj,jhd->ihd", weight / total, v)
    return out, ((top + np.log(total)) / math.log(2))[..., 0]


def _run_paged(kernel, q, k, v, causal):
    """One sequence in consecutive pages of 16 tokens; every unused slot is NaN."""
    rows, heads, d = q.shape
    num_pages = -(-len(k) // 16)
    pages = np.full((num_pages, 2, heads, 16, d), np.nan, dtype="float32")
    for slot in range(len(k)):
        pages[slot // 16, 0, :, slot % 16] = k[slot]
        pages[slot // 16, 1, :, slot % 16] = v[slot]
    out = tvm.runtime.tensor(np.zeros_like(q))
    lse = tvm.runtime.tensor(np.zeros((rows, heads), dtype="float32"))
    kernel(
        tvm.runtime.tensor(q),
        _int32(0, rows),
        tvm.runtime.tensor(pages),
        _int32(0, num_pages),
        _int32(*range(num_pages)),
        _int32(len(k) - (num_pages - 1) * 16),
        _int32(0),
        _int32(*range(rows)),
        out,
        lse,
        causal,
        0,
        1.0,
        1e4,
        1.0,
    )
    return out.numpy(), lse.numpy()


def test_accumulator_is_rescaled_without_the_optimizer():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 2, 16)).astype("float32") for n in (7, 33, 33))
    kernel = _compile(_attention_prefill_cpu(2, 2, 16, "float32", False, {}))
    out, lse = _run_paged(kernel, q, k, v, causal=1)
    expected, expected_lse = _attend(q, k, v, np.tri(7, 33, 26, dtype=bool))
    tvm.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    tvm.testing.assert_allclose(lse, expected_lse, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    tvm.testing.main()
