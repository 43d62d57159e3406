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
"""CPU ragged prefill attention of a sequence with queries but no keys."""

import numpy as np

import tvm
import tvm.testing
from tvm.relax.frontend.nn.llm.kv_cache import _attention_prefill_ragged_cpu


def _compile(func):
    """Compile without LLVM's optimizer, which hides reads of undefined values."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    return tvm.compile(mod, target=target)["main"]


def _int32(*values):
    return tvm.runtime.tensor(np.array(values, dtype="int32"))


def _run_ragged(kernel, q, k, v, sm_scale=1.0):
    rows, heads, _ = q.shape
    out = tvm.runtime.tensor(np.zeros_like(q))
    lse = tvm.runtime.tensor(np.zeros((rows, heads), dtype="float32"))
    kernel(
        tvm.runtime.tensor(q),
        _int32(0, rows),
        tvm.runtime.tensor(k),
        tvm.runtime.tensor(v),
        _int32(0, len(k)),
        _int32(*range(rows)),
        _int32(0),
        out,
        lse,
        1,
        0,
        1.0,
        1e4,
        sm_scale,
    )
    return out.numpy(), lse.numpy()


def test_sequence_without_keys():
    kernel = _compile(_attention_prefill_ragged_cpu(2, 2, 16, 16, "float32", {}))
    rng = np.random.default_rng(0)
    # What a call leaves on the stack is what the next one finds in its uninitialised buffers.
    q, k, v = (rng.standard_normal((4, 2, 16)).astype("float32") for _ in range(3))
    _run_ragged(kernel, q + 100, k + 100, v)
    out, lse = _run_ragged(kernel, q, k[:0], v[:0])
    tvm.testing.assert_allclose(out, np.zeros_like(out))
    tvm.testing.assert_allclose(lse, np.full_like(lse, -5e4), rtol=1e-6)


if __name__ == "__main__":
    tvm.testing.main()
