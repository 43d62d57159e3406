# SPDX-License-Identifier: Apache-2.0
"""Operations on a model's parameters alone are done when it is imported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402
from tvm.support import cc  # noqa: E402

from crosslab.host import toolchain  # noqa: E402
from torchroad.importer import settle_weights  # noqa: E402


@pytest.mark.parametrize("system", [True, False], ids=["system compiler", "ziglang"])
def test_weights_are_transposed_where_there_is_no_gxx(
    monkeypatch: pytest.MonkeyPatch, system: bool
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("TVM's own choice of a compiler was called")

    monkeypatch.setattr(cc, "create_shared", refused)
    monkeypatch.setattr(cc.create_shared, "get_target_triple", refused, raising=False)
    if not system:
        monkeypatch.setattr(toolchain.shutil, "which", lambda _: None)
        if toolchain.find_ziglang() is None:
            pytest.skip("ziglang is not installed")
    builder = relax.BlockBuilder()
    x, weight = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (("x", (1, 2)), ("weight", (3, 2)))
    )
    with builder.function("main", [x, weight], attrs={"num_input": 1}):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(weight))
            result = builder.emit_output(relax.op.matmul(x, turned))
        builder.emit_func_output(result)
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    _, settled = settle_weights(builder.finalize(), {"weight": tvm.runtime.tensor(values)})
    (made,) = settled.values()
    np.testing.assert_array_equal(made.numpy(), values.T)
