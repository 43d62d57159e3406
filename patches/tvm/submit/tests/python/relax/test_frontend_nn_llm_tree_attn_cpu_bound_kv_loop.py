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
"""CPU tree attention does not walk over the pages of other sequences."""

import tvm
import tvm.testing
from tvm.relax.frontend.nn.llm.tree_attn import tree_attn_with_paged_kv_cache_cpu


def test_no_loop_over_the_pool():
    func = tree_attn_with_paged_kv_cache_cpu(2, 2, 16, "float32", {})
    assert "range(max_num_pages" not in func.script()


if __name__ == "__main__":
    tvm.testing.main()
