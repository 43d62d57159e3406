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
"""A slice's negative begin is counted from the end of an axis whose extent is symbolic."""

import numpy as np
import pytest

import tvm
import tvm.testing
from tvm import relax, tirx


@pytest.mark.parametrize("begin, end", [(-1, 1 << 62), (-3, -1), (-9, 3)])
def test_begin_from_the_end_of_a_symbolic_axis(begin, end):
    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 2), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            part = builder.emit_output(relax.op.strided_slice(x, [0], [begin], [end]))
        builder.emit_func_output(part)
    machine = relax.VirtualMachine(tvm.compile(builder.finalize(), "llvm"), tvm.cpu())
    for rows in (6, 2):
        data = np.arange(2 * rows, dtype="float32").reshape(rows, 2)
        found = machine["main"](tvm.runtime.tensor(data)).numpy()
        np.testing.assert_array_equal(found, data[begin:end])


if __name__ == "__main__":
    tvm.testing.main()
