# SPDX-License-Identifier: Apache-2.0
"""One order for the functions that compute shapes.

``VMShapeLower`` walks a table that is hashed by address, so that their stores come in another
order with each process, and the same model as other bytes. This module imports nothing but TVM.
"""

from tvm import tirx


def in_order(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function that only stores at constant places, none of which it reads, in their order.

    Any other function stays as it is.
    """
    stores = list(func.body.seq) if isinstance(func.body, tirx.SeqStmt) else []
    places = [_place(store) for store in stores]
    if len(stores) < 2 or None in places or len({buffer for buffer, _ in places}) > 1:
        return func
    written = {index for _, index in places}
    read = [_place(load) for store in stores for load in _loads(store.value)]
    if len(written) < len(places) or any(p is None or p[1] in written for p in read):
        return func
    order = sorted(range(len(stores)), key=lambda n: places[n][1])
    return func.with_body(tirx.SeqStmt([stores[n] for n in order]))


def _place(access):
    """Buffer and constant index of a load or store; None for any other."""
    kinds = (tirx.BufferStore, tirx.BufferLoad)
    if not isinstance(access, kinds) or len(access.indices) != 1:
        return None
    (index,) = access.indices
    return (access.buffer, int(index)) if isinstance(index, tirx.IntImm) else None


def _loads(value):
    """Every load in an expression."""
    found = []
    tirx.stmt_functor.post_order_visit(
        value, lambda node: found.append(node) if isinstance(node, tirx.BufferLoad) else None
    )
    return found
