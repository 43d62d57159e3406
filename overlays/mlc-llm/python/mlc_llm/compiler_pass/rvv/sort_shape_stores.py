# SPDX-License-Identifier: Apache-2.0
"""SortShapeStores: one order for the functions that compute shapes.

``VMShapeLower`` walks a table that is hashed by address: its stores come in another order in each
process, and the same model becomes other bytes.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.target import Target

from .functions import Rewrite, function_pass
from .tir import nodes_of


@function_pass
def SortShapeStores(target: Target) -> Rewrite | None:
    """Pass that sorts the stores of shape functions by their index, for CPUs."""
    return (lambda _, func: sort_stores(func)) if target.kind.name == "llvm" else None


def sort_stores(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Sort a function's stores by index; None unless it only stores at constant indices."""
    stores = list(func.body.seq) if isinstance(func.body, tirx.SeqStmt) else []
    places = [_place(store) for store in stores]
    if len(stores) < 2 or None in places or len({buffer for buffer, _ in places}) > 1:
        return None
    written = {index for _, index in places}
    read = [_place(load) for store in stores for load in nodes_of(store.value, tirx.BufferLoad)]
    if len(written) < len(places) or any(p is None or p[1] in written for p in read):
        return None
    order = sorted(range(len(stores)), key=lambda n: places[n][1])
    return func.with_body(tirx.SeqStmt([stores[n] for n in order]))


def _place(access: Any) -> tuple[Any, int] | None:
    """Return buffer and constant index of an access; None if its index is not constant."""
    kinds = (tirx.BufferStore, tirx.BufferLoad)
    if not isinstance(access, kinds) or len(access.indices) != 1:
        return None
    (index,) = access.indices
    return (access.buffer, int(index)) if isinstance(index, tirx.IntImm) else None
