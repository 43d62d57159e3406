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
"""YaRN's frequencies of the features of a head."""

import math

import numpy as np
import pytest

import tvm
import tvm.testing
from tvm import te, tirx
from tvm.relax.frontend.nn.llm.position_embedding import switch_rope_freq_func


def _scaling(theta, factor, context, **others):
    return {
        "rope_type": "yarn",
        "factor": factor,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": context,
        "inv_theta_log_scale": 1 / (2 * math.log(theta)),
        **others,
    }


def _angles(scaling, theta, head_dim):
    """The angle of each feature at position 1."""
    frequency = switch_rope_freq_func(scaling)

    def angle(feature):
        named = frequency(tirx.const(1, "float32"), feature, head_dim, theta, "float32")[2]
        return next(iter(named.values()))

    angles = te.compute((head_dim,), angle, name="angles")
    out = tvm.runtime.tensor(np.zeros(head_dim, dtype="float32"))
    tvm.compile(te.create_prim_func([angles]), target="llvm")(out)
    return out.numpy()


@pytest.mark.parametrize("head_dim", [64, 128])
def test_yarn_rope_ramp_over_pairs(head_dim):
    """Both features of a pair turn by one angle."""
    first, second = np.split(_angles(_scaling(1e6, 16.0, 16384), 1e6, head_dim), 2)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    "config, truncate", [({}, True), ({"truncate": True}, True), ({"truncate": False}, False)]
)
def test_yarn_rope_truncate_range(config, truncate):
    """The ramp begins and ends at whole features unless the config says otherwise."""
    # DeepSeek V2's sizes, and the formula of published implementations in float64.
    head_dim, theta, factor, context = 64, 1e4, 40.0, 4096
    low, high = (
        head_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (32, 1)
    )
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    pair = np.arange(head_dim // 2)
    interpolated = np.clip((pair - low) / (high - low), 0, 1)
    plain = theta ** (-2 * pair / head_dim)
    expected = plain * (1 - interpolated) + plain / factor * interpolated
    angles = _angles(_scaling(theta, factor, context, **config), theta, head_dim)
    np.testing.assert_allclose(angles[: head_dim // 2], expected, rtol=1e-5)


if __name__ == "__main__":
    tvm.testing.main()
