# SPDX-License-Identifier: Apache-2.0
"""What the passes over a module's TIR functions share. Imports nothing but TVM."""

from __future__ import annotations

from collections.abc import Callable

from tvm import IRModule, tirx


def change_functions(
    mod: IRModule, change: Callable[[str, tirx.PrimFunc], tirx.PrimFunc | None]
) -> IRModule:
    """A module with changed TIR functions.

    Args:
        mod: stays as it is.
        change: gives the new function for a name and a function; None leaves it as it is.
    """
    result = mod.clone()
    for g_var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            new = change(g_var.name_hint, func)
            if new is not None:
                result.update_func(g_var, new)
    return result
