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
"""CPU tree attention hides masked keys whatever the softmax scale is."""

import math

import numpy as np

import tvm
import tvm.testing
from tvm.relax.frontend.nn.llm.tree_attn import tree_attn_cpu


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
FOREST = [0, 2, 1, 2, 2, 3]
SEES = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1]], dtype=bool)


def test_tree_mask_with_a_small_scale():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 2, 16)).astype("float32") for n in (3, 3, 3))
    out = tvm.runtime.tensor(np.zeros_like(q))
    lse = tvm.runtime.tensor(np.zeros((3, 2), dtype="float32"))
    kernel = _compile(tree_attn_cpu(2, 2, 16, "float32", {}))
    kernel(
        tvm.runtime.tensor(q),
        _int32(0, 3),
        tvm.runtime.tensor(k),
        tvm.runtime.tensor(v),
        _int32(0, 3),
        _int32(0, 1, 2),
        _int32(0, 3),
        tvm.runtime.tensor(np.array(FOREST, dtype="int32").reshape(3, 2)),
        out,
        lse,
        0,
        1.0,
        1e4,
        1e-4,
    )
    expected, expected_lse = _attend(q, k, v, SEES, 1e-4)
    tvm.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-5)
    tvm.testing.assert_allclose(lse.numpy(), expected_lse, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    tvm.testing.main()
