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
"""YaRN turns both features of a pair by one angle."""

import math

import numpy as np
import pytest

import tvm
import tvm.testing
from tvm import te, tirx
from tvm.relax.frontend.nn.llm.position_embedding import switch_rope_freq_func

THETA = 1e6
SCALING = {
    "rope_type": "yarn",
    "factor": 16.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 16384,
    "inv_theta_log_scale": 1 / (2 * math.log(THETA)),
}


@pytest.mark.parametrize("head_dim", [64, 128])
def test_features_of_a_pair_have_one_frequency(head_dim):
    frequency = switch_rope_freq_func(SCALING)

    def angle(feature):
        named = frequency(tirx.const(1, "float32"), feature, head_dim, THETA, "float32")[2]
        return next(iter(named.values()))

    angles = te.compute((head_dim,), angle, name="angles")
    out = tvm.runtime.tensor(np.zeros(head_dim, dtype="float32"))
    tvm.compile(te.create_prim_func([angles]), target="llvm")(out)
    first, second = np.split(out.numpy(), 2)
    np.testing.assert_array_equal(first, second)


if __name__ == "__main__":
    tvm.testing.main()
