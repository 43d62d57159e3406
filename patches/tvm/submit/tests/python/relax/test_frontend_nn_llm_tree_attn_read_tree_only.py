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
"""The mask of tree attention looks into the tree order for keys of the tree only."""

import numpy as np

import tvm
import tvm.testing
from tvm.relax.frontend.nn.llm.tree_attn import _check_tree_order
from tvm.script import tirx as T


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


def test_reads_of_the_order_are_guarded():
    # Both sides of a conjunction or disjunction are evaluated, those of if_then_else are not.
    text = visible.script()
    order = tvm.runtime.tensor(np.array([[7, 7]] * 5 + [[0, 2], [1, 2], [2, 3]], dtype="int32"))
    result = tvm.runtime.tensor(np.zeros(8, dtype="int32"))
    indptr = tvm.runtime.tensor(np.array([5, 8], dtype="int32"))
    tvm.compile(visible, target="llvm")["visible"](indptr, order, result)
    assert result.numpy().tolist() == [1, 1, 1, 1, 1, 0, 0, 1]
    assert "T.if_then_else" in text


if __name__ == "__main__":
    tvm.testing.main()
