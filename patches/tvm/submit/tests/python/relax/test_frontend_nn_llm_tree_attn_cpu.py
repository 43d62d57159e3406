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
"""Tree attention on CPUs, over a paged KV cache and over the tree alone."""

import math

import numpy as np

import tvm
import tvm.testing
from tvm.relax.frontend.nn.llm.tree_attn import (
    _check_tree_order,
    tree_attn_cpu,
    tree_attn_with_paged_kv_cache_cpu,
)
from tvm.script import tirx as T

# Two roots, the first with a child: each node's place in the pre-order, and the place behind its
# last descendant. The rows of the mask say which nodes a node attends to.
FOREST = np.array([[0, 2], [1, 2], [2, 3]], dtype="int32")
SEES = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1]], dtype=bool)


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
    """Attend to one sequence in one page; its last three tokens are the nodes of FOREST."""
    out, lse = _results(q)
    queries = tvm.runtime.tensor(q), _int32(0, len(q))
    cache = _pages(k, v), _int32(0, 1), _int32(0), _int32(len(k)), _int32(0)
    tree = _int32(0, 3), tvm.runtime.tensor(FOREST)
    kernel(*queries, *cache, _int32(*range(len(q))), out, lse, 0, 1.0, 1e4, 1.0, *tree)
    return out.numpy(), lse.numpy()


@T.prim_func(s_tir=True)
def visible(
    indptr: T.Buffer((2,), "int32"),
    order_handle: T.handle,
    result: T.Buffer((8,), "int32"),
):
    """Keys, of 8, that the last of 3 nodes sees; the order's first 5 rows belong to nothing."""
    order = T.match_buffer(order_handle, (8, 2), "int32")
    for col in T.serial(8):
        with T.sblock("visible"):
            j = T.axis.spatial(8, col)
            if _check_tree_order(
                tree_order_indptr=indptr,
                tree_order=order,
                batch=0,
                row=2,
                col=j,
                kv_len=8,
                qo_len=3,
            ):
                result[j] = 1
            else:
                result[j] = 0


def test_tree_attn_cpu_bound_kv_loop():
    """There is no loop over the pages of other sequences."""
    func = tree_attn_with_paged_kv_cache_cpu(2, 2, 16, "float32", {})
    assert "range(max_num_pages" not in func.script()


def test_tree_attn_cpu_init_new_m():
    """Scores of another tree do not set the maximum of a second root, whose first keys are masked."""
    (v,) = _random(np.random.default_rng(0), 3)
    q, k = np.full_like(v, 20), np.full_like(v, 1)
    # The second root's score is far below the first tree's: relative to that it would be 0.
    k[2] = -1
    func = tree_attn_with_paged_kv_cache_cpu(2, 2, 16, "float32", {})
    _check(_run_paged(_compile(func, opt_level=3), q, k, v), q, k, v, SEES)


def test_tree_attn_cpu_mask_score():
    """Masked keys are hidden whatever the softmax scale is."""
    q, k, v = _random(np.random.default_rng(0), 3, 3, 3)
    out, lse = _results(q)
    queries = tvm.runtime.tensor(q), _int32(0, 3)
    keys = tvm.runtime.tensor(k), tvm.runtime.tensor(v), _int32(0, 3)
    tree = _int32(0, 1, 2), _int32(0, 3), tvm.runtime.tensor(FOREST)
    kernel = _compile(tree_attn_cpu(2, 2, 16, "float32", {}))
    kernel(*queries, *keys, *tree, out, lse, 0, 1.0, 1e4, 1e-4)
    _check((out.numpy(), lse.numpy()), q, k, v, SEES, 1e-4)


def test_tree_attn_cpu_scale_o_index():
    """The accumulator is rescaled by a factor in bounds."""
    q, k, v = _random(np.random.default_rng(0), 3, 13, 13)
    kernel = _compile(tree_attn_with_paged_kv_cache_cpu(2, 2, 16, "float32", {}))
    mask = np.hstack([np.ones((3, 10), dtype=bool), SEES])
    _check(_run_paged(kernel, q, k, v), q, k, v, mask)


def test_tree_attn_read_tree_only():
    """The mask looks into the tree order for keys of the tree only."""
    # Both sides of a conjunction or disjunction are evaluated, those of if_then_else are not.
    text = visible.script()
    order = tvm.runtime.tensor(np.vstack([np.full((5, 2), 7, dtype="int32"), FOREST]))
    result = tvm.runtime.tensor(np.zeros(8, dtype="int32"))
    tvm.compile(visible, target="llvm")["visible"](_int32(5, 8), order, result)
    assert result.numpy().tolist() == [1, 1, 1, 1, 1, 0, 0, 1]
    assert "T.if_then_else" in text


if __name__ == "__main__":
    tvm.testing.main()
