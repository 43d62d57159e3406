# SPDX-License-Identifier: Apache-2.0
"""Slices whose begin is counted from the end of an axis that varies, on the patched tree."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from crosslab.host.objects import shared_linker
from crosslab.host.toolchain import find_native

REST = 1 << 62


@pytest.mark.parametrize(("begin", "end"), [(-1, REST), (-3, -1), (-9, 3)], ids=str)
def test_a_slice_from_the_end_of_an_axis_that_varies(tvm: ModuleType, begin: int, end: int) -> None:
    from tvm import relax, tirx  # noqa: PLC0415 - the tree is on sys.path in a test
    from tvm.target import codegen  # noqa: PLC0415

    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 2), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            part = builder.emit_output(relax.op.strided_slice(x, [0], [begin], [end]))
        builder.emit_func_output(part)
    built = tvm.compile(builder.finalize(), "llvm")
    linker = shared_linker(find_native().cc, codegen.llvm_get_system_triple())
    machine = relax.VirtualMachine(built.jit(fcompile=linker), tvm.cpu())
    for rows in (6, 2):
        data = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        found = machine["main"](tvm.runtime.tensor(data)).numpy()
        np.testing.assert_array_equal(found, data[begin:end])
