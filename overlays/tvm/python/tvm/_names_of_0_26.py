# SPDX-License-Identifier: Apache-2.0
"""Names of TVM 0.26 that TVM 0.27 moved or took away, for code written against 0.26.

A model compiler and passes that run on both releases need one spelling. 0.27 still builds a load
from a buffer with ``tirx.BufferLoad``, and reads a buffer's shape off the variable that it has
become; it does not answer ``isinstance(load, tirx.BufferLoad)`` or ``load.buffer`` any more, nor
has it the walks of ``tirx.stmt_functor``. This module gives these back, and nothing that 0.26 did
not have.

It is in the tree of every release; only that of 0.27 imports it, by a patch to tvm/__init__.py.
Remove both when the last code written for 0.26 is gone.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import tvm_ffi
from tvm import ir, relax, runtime, s_tir, sym, tirx


class _Renamed(type):
    """A class of TVM 0.26 for isinstance and for calls; TVM 0.27 has two classes in its place."""

    def __instancecheck__(cls, value: Any) -> bool:
        return cls.holds(value)

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        return cls.make(*arguments, **options)


class BufferLoad(metaclass=_Renamed):
    """A buffer load, by its name in TVM 0.26."""

    make = staticmethod(tirx.BufferLoad)

    @staticmethod
    def holds(value: Any) -> bool:
        return isinstance(value, ir.TensorLoad)


class TensorConstant(metaclass=_Renamed):
    """A tensor literal: ``relax.Constant`` of TVM 0.26, a kind of ``ir.Constant`` in 0.27."""

    make = staticmethod(relax.const)

    @staticmethod
    def holds(value: Any) -> bool:
        return isinstance(value, ir.GenericConst) and isinstance(value.value, runtime.Tensor)


class DataTypeImm(metaclass=_Renamed):
    """A data type literal, by its name in TVM 0.26."""

    @staticmethod
    def make(value: Any, span: Any = None) -> Any:
        return ir.GenericConst(runtime.DataType(value), relax.AnyType(), span)

    @staticmethod
    def holds(value: Any) -> bool:
        return isinstance(value, ir.GenericConst) and isinstance(value.value, runtime.DataType)


# What 0.26 had in these modules; in 0.27 it is elsewhere, or another type.
NAMES: dict[ModuleType, dict[str, Any]] = {
    relax: {"Constant": TensorConstant, "DataTypeImm": DataTypeImm, "StringImm": ir.StringImm},
    tirx: {"BufferLoad": BufferLoad, "SBlock": s_tir.SBlock, "SBlockRealize": s_tir.SBlockRealize},
}
# Type keys of 0.26 that are others in 0.27.
TYPE_KEYS = {"tirx.BufferLoad": ir.TensorLoad}


def post_order_visit(node: Any, fvisit: Callable[[Any], Any]) -> None:
    """Call ``fvisit`` on every statement and expression below ``node``, and on it, children first.

    Each node once, whatever the number of places it is in; what is in types is left out.
    """

    def visit(value: Any, descend: Callable[[], None]) -> None:
        descend()
        fvisit(value)

    _visit(node, visit)


def pre_order_visit(node: Any, fvisit: Callable[[Any], Any]) -> None:
    """Call ``fvisit`` on a node before its children; skip the children if it returns False."""

    def visit(value: Any, descend: Callable[[], None]) -> None:
        if fvisit(value) is not False:
            descend()

    _visit(node, visit)


def _visit(node: Any, visit: Callable[[Any, Callable[[], None]], None]) -> None:
    seen: dict[int, Any] = {}  # alive, or another node could get the address of one

    def once(value: Any, visitor: Any) -> None:
        if value.__chandle__() not in seen:
            seen[value.__chandle__()] = value
            visit(value, lambda: visitor.default_visit(value))

    nodes = ((tirx.Stmt, ir.Expr), once)
    tvm_ffi.structural_visit(node, [(ir.Type, lambda *_: None), nodes])


def substitute(node: Any, vmap: Mapping[Any, Any]) -> Any:
    """Replace the variables in ``vmap``, also in shapes of buffers.

    Numbers of Python's become literals, as wherever an expression is asked for.
    """
    new = {
        var: tirx.const(value) if isinstance(value, int | float) else value
        for var, value in vmap.items()
    }
    return tvm_ffi.structural_map(node, (ir.Var, lambda var: new.get(var, var)), order="post")


def ir_transform(
    stmt: Any,
    preorder: Callable[[Any], Any] | None,
    postorder: Callable[[Any], Any] | None,
    only_enable: Sequence[str] | None = None,
) -> Any:
    """Replace nodes of ``stmt`` by results of ``preorder`` or ``postorder``.

    Args:
        stmt: what to rewrite.
        preorder: asked before a node's children are rewritten; what it gives, unless None, is
            final and is not looked into.
        postorder: asked after that; None keeps the node.
        only_enable: type keys of the nodes asked about; None for statements and expressions.
    """
    types = tuple(_class_of(key) for key in only_enable or ("tirx.Stmt", "ir.Expr"))

    def rewrite(value: Any, mutator: Any) -> Any:
        replaced = preorder(value) if preorder else None
        if replaced is not None:
            return replaced
        value = mutator.default_mutate(value)
        replaced = postorder(value) if postorder and isinstance(value, types) else None
        return value if replaced is None else replaced

    return tvm_ffi.structural_mutate(stmt, (types, rewrite))


def _class_of(key: str) -> Any:
    if key in TYPE_KEYS:
        return TYPE_KEYS[key]
    home, _, name = key.rpartition(".")
    return getattr({"tirx": tirx, "ir": ir}[home], name)


def _install() -> None:
    for module, names in NAMES.items():
        for name, value in names.items():
            setattr(module, name, value)
    for holder in (ir.TensorLoad, ir.TensorRegion):
        holder.buffer = property(lambda self: self.source)
    functor = ModuleType("tvm.tirx.stmt_functor", "The walks of TVM 0.26; see _names_of_0_26.py.")
    for function in (ir_transform, post_order_visit, pre_order_visit, substitute):
        setattr(functor, function.__name__, function)
    tirx.stmt_functor = functor
    package = sys.modules["tvm"]
    package.arith = sym
    sys.modules.update({"tvm.tirx.stmt_functor": functor, "tvm.arith": sym})


_install()
