# SPDX-License-Identifier: Apache-2.0
"""Symbols of a system library with a prefix, so that one program can hold several libraries.

The configuration gives the prefix. TVM 0.26 has an attribute of the module for that, by which
AttachGlobalSymbol renames functions and then all calls of them; that fails on functions which call
an external symbol with a pointer. Here functions are renamed when nothing is left that would: the
VM asks a library for the names without its prefix.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule
from tvm.target import Target
from tvm.tirx import PrimFunc

from .configuration import Configuration

ATTRIBUTE = "system_lib_prefix"


@tvm.transform.module_pass(opt_level=0, name="PrefixSymbols")
class PrefixSymbols:
    """Prepend a prefix to the symbols of all TIR functions; without a prefix, change nothing."""

    def __init__(self, _target: Target, configuration: Configuration) -> None:
        self.prefix = configuration.prefix

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        """Return the module with renamed symbols."""
        if not self.prefix:
            return mod
        for name, func in mod.functions_items():
            if isinstance(func, PrimFunc) and func.attrs and "global_symbol" in func.attrs:
                symbol = f"{self.prefix}{func.attrs['global_symbol']}"
                mod[name] = func.with_attr("global_symbol", symbol)
        return mod.with_attr(ATTRIBUTE, self.prefix)
