# SPDX-License-Identifier: Apache-2.0
"""PromiseNoAlias: the promise that a function's outputs overlap none of its inputs.

Most TIR functions carry it (``tirx.noalias``) already. But TVM 0.26 declares all functions of a
module before it emits any, and its LLVM code generator remembers the mark of the one declared
last (``is_restricted_`` in codegen_llvm.cc, set in ``DeclareFunctionInternal``): one function
without it, late in the alphabet, takes it from all, and every loop stores and reloads what it could
keep in registers.

The promise holds for a model's module: a function's outputs are either allocated for the call
(``CallTIRRewrite``; memory planning reuses only what no argument needs any more), or are the paged
cache's pages and scratch tensors, each an allocation of its own (paged_kv_cache.cc: ``pages_``,
``temp_attn_*``, ``merged_attn_lse``). Arguments do share the cache's one buffer of index arrays,
which functions only read.
"""

from tvm.target import Target

from .functions import Rewrite, function_pass


@function_pass
def PromiseNoAlias(target: Target) -> Rewrite | None:
    """Pass that marks the buffers of every TIR function as not aliased, for CPUs.

    It has to run when no pass adds functions any more, ``VMShapeLower`` being the last that does.
    """
    if target.kind.name != "llvm":
        return None
    return lambda _, func: func.with_attr("tirx.noalias", True)
