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
"""CPU tree attention over a paged KV cache rescales its accumulator by a factor in bounds."""

import math

import numpy as np

import tvm
import tvm.testing
from tvm.relax.frontend.nn.llm.tree_attn import tree_attn_with_paged_kv_cache_cpu


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


# Two roots, the first with a child: each node's place in the pre-order, and the place behind its
# last descendant. The rows of the mask say which nodes a node attends to.
FOREST = np.array([[0, 2], [1, 2], [2, 3]], dtype="int32")
SEES = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1]], dtype=bool)


def _run_tree(kernel, q, k, v, order):
    """One sequence of at most 16 tokens in one page; the last three are the nodes of FOREST."""
    rows, heads, d = q.shape
    pages = np.full((1, 2, heads, 16, d), np.nan, dtype="float32")
    pages[0, 0, :, : len(k)] = k.transpose(1, 0, 2)
    pages[0, 1, :, : len(v)] = v.transpose(1, 0, 2)
    out = tvm.runtime.tensor(np.zeros_like(q))
    lse = tvm.runtime.tensor(np.zeros((rows, heads), dtype="float32"))
    kernel(
        tvm.runtime.tensor(q),
        _int32(0, rows),
        tvm.runtime.tensor(pages),
        _int32(0, 1),
        _int32(0),
        _int32(len(k)),
        _int32(0),
        _int32(*range(rows)),
        out,
        lse,
        0,
        1.0,
        1e4,
        1.0,
        _int32(0, 3),
        order,
    )
    return out.numpy(), lse.numpy()


def test_accumulator_is_rescaled_without_the_optimizer():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 2, 16)).astype("float32") for n in (3, 13, 13))
    kernel = _compile(tree_attn_with_paged_kv_cache_cpu(2, 2, 16, "float32", {}))
    out, lse = _run_tree(kernel, q, k, v, tvm.runtime.tensor(FOREST))
    expected, expected_lse = _attend(q, k, v, np.hstack([np.ones((3, 10), dtype=bool), SEES]))
    tvm.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    tvm.testing.assert_allclose(lse, expected_lse, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    tvm.testing.main()
