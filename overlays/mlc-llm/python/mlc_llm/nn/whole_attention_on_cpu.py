# SPDX-License-Identifier: Apache-2.0
"""Attention of each row to all rows of its sequence, on CPUs.

It is the ragged prefill of the paged cache, without a cache and without the causal mask, so that it
has the same kernels.
"""

from tvm import tirx
from tvm.relax.frontend.nn import Tensor, op
from tvm.target import Target

# TIROpPattern kOpaque: nothing is fused into attention.
_OPAQUE = 8


def attend_whole(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, positions: Tensor) -> Tensor:
    """Return attention [rows, heads, d] of queries, keys and values of this shape.

    Args:
        q: queries.
        k: keys.
        v: values.
        bounds: int32 [sequences + 1]: the first row of each sequence, and the number of rows.
        positions: int32 [rows]; they are not used without rotary embeddings.
    """
    rows, heads, d = q.shape
    starts = op.zeros((bounds.shape[0] - 1,), "int32")
    inputs = [q, bounds, k, v, bounds, positions, starts]
    out = [Tensor.placeholder((rows, heads, d), q.dtype)]
    out += [Tensor.placeholder((rows, heads), "float32")]
    attend = _attend(heads, d, q.dtype)
    mixed, _ = op.tensor_ir_op(attend, "batch_prefill_ragged_kv", inputs, out)
    return mixed


def _attend(heads: int, d: int, dtype: str) -> tirx.PrimFunc:
    """Return the ragged prefill without a causal mask and rotary embeddings."""
    # Other families are compiled on a TVM without these modules, too.
    from tvm.relax.frontend.nn.llm._prefill_tiled_cpu import (  # noqa: PLC0415  # of TVM's overlay
        _attention_prefill_ragged_cpu,
        prefill_tile,
    )
    from tvm.relax.frontend.nn.llm._tiled_attention import PrefillTile  # noqa: PLC0415

    target = Target.current(allow_none=True)
    # The loader has no target; it asks for the parameters only.
    tile = prefill_tile(target, d) if target is not None else PrefillTile()
    func = _attention_prefill_ragged_cpu(heads, heads, d, d, dtype, {}, tile=tile)
    *params, causal, rotary, scale, theta, sm_scale = func.params
    numbers = {causal: 0, rotary: 0, scale: 1.0, theta: 1.0, sm_scale: d**-0.5}
    values = {var: tirx.const(value, var.ty.dtype) for var, value in numbers.items()}
    body = tirx.stmt_functor.substitute(func.body, values)
    plain = tirx.PrimFunc(params, body, func.ret_type, func.attrs)
    return plain.without_attr("global_symbol").with_attr("op_pattern", _OPAQUE)
