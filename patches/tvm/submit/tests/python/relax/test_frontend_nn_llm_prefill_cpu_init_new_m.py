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
"""Rows of CPU prefill attention that see no key at all have no weight when parts are merged."""

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


def test_rows_without_visible_keys():
    # Five causal queries and two keys: the first three queries come before the first key.
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 2, 16)).astype("float32") for n in (5, 2, 2))
    # The optimizer, because without it an index of this kernel's reads undefined memory.
    func = _attention_prefill_cpu(2, 2, 16, "float32", False, {})
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    out, lse = _run_paged(tvm.compile(mod, target="llvm")["main"], q, k, v, causal=1)
    assert np.isfinite(out).all()
    assert np.isfinite(lse).all()
    assert (lse[:3] < -4e4).all()
    assert (lse[3:] > -1e3).all()


if __name__ == "__main__":
    tvm.testing.main()
