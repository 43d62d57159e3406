# SPDX-License-Identifier: Apache-2.0
"""Functions that compute shapes get one order, whatever order the lowering left them in."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from crosslab.compile.overlaypass import load_pass

SLOTS = 7


@pytest.fixture(scope="module")
def passes(tvm: ModuleType) -> Any:
    return load_pass("sort_shape_stores")


def function(stores: list[tuple[int, int]]) -> Any:
    """H[to] = H[of] + to for each pair (to, of), in this order."""
    lines = [f"        H[T.int64({to})] = H[T.int64({of})] + T.int64({to})" for to, of in stores]
    body = "\n".join(lines)
    return module_of(
        f"""
    @T.prim_func
    def shapes(H: T.Buffer((T.int64({SLOTS}),), "int64")):
{body}"""
    )["shapes"]


def module_of(functions: str) -> Any:
    """A module from TVM's own notation."""
    from tvm.script import from_source, ir, relax, tirx  # noqa: PLC0415 - the patched tree's

    known = {"I": ir, "R": relax, "T": tirx}
    return from_source(f"@I.ir_module\nclass Module:{functions}", extra_vars=known)


def order(func: Any) -> list[int]:
    return [int(store.indices[0]) for store in func.body.seq]


def test_stores_are_in_the_order_of_their_places(passes: Any) -> None:
    assert order(passes.sort_stores(function([(5, 0), (2, 0), (4, 1), (3, 0)]))) == [2, 3, 4, 5]


@pytest.mark.parametrize(
    "stores",
    [
        [(5, 0), (2, 5)],  # reads what was stored
        [(5, 2), (2, 0)],  # is stored over what it read
        [(5, 0), (2, 0), (5, 1)],  # the last one counts
    ],
)
def test_stores_that_depend_on_each_other_keep_their_order(
    passes: Any, stores: list[tuple[int, int]]
) -> None:
    assert passes.sort_stores(function(stores)) is None


def test_functions_made_by_vm_shape_lower_are_ordered(tvm: ModuleType, passes: Any) -> None:
    """Its own order is another one in each process; of six stores it is right once in 720."""
    from tvm import relax, tirx  # noqa: PLC0415

    sizes = "n * 4, n * 3, n + 1, n + 2, n * 7, (n + 4095) // 4096"
    module = module_of(
        f"""
    @R.function(pure=False)
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        return R.shape([{sizes}])
"""
    )
    module = relax.transform.VMShapeLower()(module)
    module = passes.SortShapeStores(tvm.target.Target("llvm"))(module)
    (made,) = [f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert order(made) == [1, 2, 3, 4, 5, 6]
