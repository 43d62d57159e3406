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
"""Prefill attention on CPUs, over a paged KV cache and over ragged keys and values."""

import math

import numpy as np

import tvm
import tvm.testing
from tvm.relax.frontend.nn.llm.kv_cache import (
    _attention_prefill_cpu,
    _attention_prefill_ragged_cpu,
)


def _compile(func, opt_level=0):
    """Compile, by default without LLVM's optimizer, which hides reads of undefined values."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    target = tvm.target.Target({"kind": "llvm", "opt-level": opt_level})
    return tvm.compile(mod, target=target)["main"]


def _random(rng, *rows):
    """Vectors of two heads of 16, so many of each."""
    return [rng.standard_normal((n, 2, 16)).astype("float32") for n in rows]


def _int32(*values):
    return tvm.runtime.tensor(np.array(values, dtype="int32"))


def _results(q):
    """Tensors for the output and the log-sum-exp."""
    return (
        tvm.runtime.tensor(np.zeros(shape, dtype="float32")) for shape in (q.shape, q.shape[:2])
    )


def _pages(k, v):
    """Keys and values of one sequence in consecutive pages of 16; every unused slot is NaN."""
    pages = np.full((-(-len(k) // 16), 2, k.shape[1], 16, k.shape[2]), np.nan, dtype="float32")
    for slot in range(len(k)):
        pages[slot // 16, 0, :, slot % 16] = k[slot]
        pages[slot // 16, 1, :, slot % 16] = v[slot]
    return tvm.runtime.tensor(pages)


def _check(results, q, k, v, mask, sm_scale=1.0):
    """Compare with softmax attention in float64; the log-sum-exp is in base 2."""
    score = np.einsum("ihd,jhd->ihj", q.astype("float64"), k) * sm_scale
    score = np.where(mask[:, None, :], score, -np.inf)
    top = score.max(axis=-1, keepdims=True)
    weight = np.exp(score - top)
    total = weight.sum(axis=-1, keepdims=True)
    out, lse = results
    expected = np.einsum("ihj,jhd->ihd", weight / total, v)
    tvm.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    expected = ((top + np.log(total)) / math.log(2))[..., 0]
    tvm.testing.assert_allclose(lse, expected, rtol=1e-5, atol=1e-5)


def _run_paged(kernel, q, k, v):
    """Attend causally to one sequence in a paged cache."""
    out, lse = _results(q)
    pages = -(-len(k) // 16)
    last = _int32(len(k) - (pages - 1) * 16)
    begins = _int32(0, len(q)), _pages(k, v), _int32(0, pages), _int32(*range(pages))
    positions = last, _int32(0), _int32(*range(len(q)))
    kernel(tvm.runtime.tensor(q), *begins, *positions, out, lse, 1, 0, 1.0, 1e4, 1.0)
    return out.numpy(), lse.numpy()


def _run_ragged(kernel, q, k, v, sm_scale=1.0):
    """Attend causally to one sequence."""
    out, lse = _results(q)
    keys = tvm.runtime.tensor(k), tvm.runtime.tensor(v), _int32(0, len(k))
    queries = tvm.runtime.tensor(q), _int32(0, len(q))
    positions = _int32(*range(len(q))), _int32(0)
    kernel(*queries, *keys, *positions, out, lse, 1, 0, 1.0, 1e4, sm_scale)
    return out.numpy(), lse.numpy()


def test_prefill_cpu_bound_kv_loop():
    """There is no loop over the pages of other sequences."""
    for sliding_window in (False, True):
        func = _attention_prefill_cpu(2, 2, 16, "float32", sliding_window, {})
        assert "range(max_num_pages" not in func.script()


def test_prefill_cpu_init_new_m():
    """Rows that see no key at all have no weight when parts are merged."""
    # Five causal queries and two keys: the first three queries come before the first key.
    q, k, v = _random(np.random.default_rng(0), 5, 2, 2)
    # The optimizer, because without it an index of this kernel's reads undefined memory.
    kernel = _compile(_attention_prefill_cpu(2, 2, 16, "float32", False, {}), opt_level=3)
    out, lse = _run_paged(kernel, q, k, v)
    assert np.isfinite(out).all()
    assert np.isfinite(lse).all()
    assert (lse[:3] < -4e4).all()
    assert (lse[3:] > -1e3).all()


def test_prefill_cpu_scale_o_index():
    """The accumulator is rescaled by a factor in bounds."""
    q, k, v = _random(np.random.default_rng(0), 7, 33, 33)
    kernel = _compile(_attention_prefill_cpu(2, 2, 16, "float32", False, {}))
    _check(_run_paged(kernel, q, k, v), q, k, v, np.tri(7, 33, 26, dtype=bool))


def test_prefill_ragged_cpu_init_m_new():
    """A sequence with queries but no keys gives zeros without weight."""
    kernel = _compile(_attention_prefill_ragged_cpu(2, 2, 16, 16, "float32", {}))
    # What a call leaves on the stack is what the next one finds in its uninitialised buffers.
    q, k, v = _random(np.random.default_rng(0), 4, 4, 4)
    _run_ragged(kernel, q + 100, k + 100, v)
    out, lse = _run_ragged(kernel, q, k[:0], v[:0])
    tvm.testing.assert_allclose(out, np.zeros_like(out))
    tvm.testing.assert_allclose(lse, np.full_like(lse, -5e4), rtol=1e-6)


def test_prefill_ragged_cpu_mask_score():
    """Masked keys are hidden whatever the softmax scale is."""
    q, k, v = _random(np.random.default_rng(0), 9, 9, 9)
    kernel = _compile(_attention_prefill_ragged_cpu(2, 2, 16, 16, "float32", {}))
    results = _run_ragged(kernel, q, k, v, sm_scale=1e-4)
    _check(results, q, k, v, np.tri(9, dtype=bool), 1e-4)


if __name__ == "__main__":
    tvm.testing.main()
