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
"""YaRN's ramp between kept and interpolated frequencies begins and ends at whole features."""

import math

import numpy as np
import pytest

import tvm
import tvm.testing
from tvm import te, tirx
from tvm.relax.frontend.nn.llm.position_embedding import switch_rope_freq_func

# DeepSeek V2's.
HEAD_DIM = 64
THETA = 1e4
SCALING = {
    "rope_type": "yarn",
    "factor": 40.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 4096,
    "inv_theta_log_scale": 1 / (2 * math.log(THETA)),
}


def _expected(truncate):
    """The formula of published implementations, in float64, for one feature of each pair."""
    turns = (SCALING["beta_fast"], SCALING["beta_slow"])
    low, high = (
        HEAD_DIM * math.log(4096 / (beta * 2 * math.pi)) / (2 * math.log(THETA)) for beta in turns
    )
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    pair = np.arange(HEAD_DIM // 2)
    interpolated = np.clip((pair - low) / (high - low), 0, 1)
    plain = THETA ** (-2 * pair / HEAD_DIM)
    return plain * (1 - interpolated) + plain / SCALING["factor"] * interpolated


@pytest.mark.parametrize(
    "config, truncate", [({}, True), ({"truncate": True}, True), ({"truncate": False}, False)]
)
def test_range_is_rounded_unless_the_config_says_otherwise(config, truncate):
    frequency = switch_rope_freq_func({**SCALING, **config})

    def angle(feature):
        named = frequency(tirx.const(1, "float32"), feature, HEAD_DIM, THETA, "float32")[2]
        return next(iter(named.values()))

    angles = te.compute((HEAD_DIM // 2,), angle, name="angles")
    out = tvm.runtime.tensor(np.zeros(HEAD_DIM // 2, dtype="float32"))
    tvm.compile(te.create_prim_func([angles]), target="llvm")(out)
    np.testing.assert_allclose(out.numpy(), _expected(truncate), rtol=1e-5)


if __name__ == "__main__":
    tvm.testing.main()
