# SPDX-License-Identifier: Apache-2.0
"""Run tree attention with the tree order right behind memory that must not be touched.

A process of its own, because the defect it looks for ends in a segmentation fault. Prints the
log-sum-exp of the first head.
"""

import ctypes
import importlib
import mmap

import numpy as np
from support.passes.attention_kernels import compile_kernel, run_paged_tree
from support.passes.attention_reference import Array, Heads, Sequence, make_batch

TREE = [[0, 2], [1, 2], [2, 3]]
PROT_NONE = 0


def behind_a_guard(values: list[list[int]]) -> Array:
    """An int32 array at the start of a page, with the page before it made inaccessible."""
    region = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(mmap.PAGESIZE), PROT_NONE):
        raise OSError(ctypes.get_errno(), "mprotect")
    shape = np.shape(values)
    array = np.frombuffer(region, "int32", int(np.prod(shape)), mmap.PAGESIZE).reshape(shape)
    array[...] = values
    return array


def main() -> None:
    tree_attn = importlib.import_module("tvm.relax.frontend.nn.llm.tree_attn")
    heads = Heads(kv=1, q=1, d=16, d_v=16)
    function = tree_attn.tree_attn_with_paged_kv_cache_cpu(1, 1, 16, "float32", {})
    batch = make_batch(heads, (Sequence(3, 40),))
    kernel = compile_kernel(function, opt_level=0)
    _, lse = run_paged_tree(kernel, batch, [behind_a_guard(TREE)], in_place=True)
    print(*lse[:, 0])


if __name__ == "__main__":
    main()
