# SPDX-License-Identifier: Apache-2.0
"""ChooseRowsEarly: rows that no logit depends on are dropped right after the last attention.

A prefill computes logits after its last token, or after the last one of each sequence: models
choose rows of the last layer's output. All that comes between the last attention and the choice
works on each row alone, so the choice can come first, and the last layer's other half is computed
for the chosen rows only. The pass moves a choice up as long as it can show that: every function on
the way has one axis of rows, over which it only copies its index from input to output, and nothing
else reads what it computes. Functions that return the logits of all tokens choose no rows, so they
stay as they are.

A mixture of experts moves as a whole. It orders rows by their experts, and orders them back: each
row of its output depends on the same row of its input, but its functions have other axes.
"""

from __future__ import annotations

import enum
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import IRModule, relax, te, tirx
from tvm.target import Target
from tvm_ffi import structural_equal

from .linear.experts import find_experts
from .linear.stored import EXPERTS, stored_layer
from .stages import stages_of
from .tir import nodes_of, uses

# Axis of rows in [sequences, rows, width].
ROWS, RANK = 1, 3
# Of mixtures, in MLC-LLM's op/moe_misc.py and crosslab/compile/mixture.py: the functions that have
# floats and no axis of rows, or several. Digits at the end of a name are the compiler's.
_OF_MIXTURES = re.compile(
    r"(reshape|take|scatter_output|top\d+(_softmax)?|choice_of_experts|sum_of_experts)\d*"
)


class Choice(enum.Enum):
    """Rows of a prompt that a call selects."""

    LAST = "the last one"
    LISTED = "those at the positions that the second argument lists"


@tvm.transform.module_pass(opt_level=0, name="ChooseRowsEarly")
class ChooseRowsEarly:
    """Pass that selects the last rows right after the last attention, for CPUs.

    It runs on a module whose operators are TIR functions, one each.
    """

    def __init__(self, target: Target):
        self.target = target

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Transform the functions of the graph that choose rows."""
        if self.target.kind.name != "llvm":
            return mod
        builder = relax.BlockBuilder(mod)
        for g_var, func in mod.functions_items():
            new = _rewritten(builder, mod, func) if isinstance(func, relax.Function) else None
            if new is not None:
                builder.update_func(g_var, new)
        return builder.finalize()


@dataclass
class _Plan:
    """Bindings of a block that move behind the selection of rows.

    Attributes:
        choice: the binding that chooses rows.
        moved: variables that are computed from chosen rows.
        inputs: variables whose rows are chosen instead, in a fixed order.
    """

    choice: Any
    moved: set[Any] = field(default_factory=set)
    inputs: dict[Any, None] = field(default_factory=dict)


def _rewritten(builder: Any, mod: IRModule, func: relax.Function) -> relax.Function | None:
    """Return the function with its selections moved up; None if no selection can move."""
    if not isinstance(func.body, relax.SeqExpr):
        return None
    blocks, changed = [], False
    for block in func.body.blocks:
        bindings = list(block.bindings)
        for plan in _plans(mod, func, bindings):
            bindings, changed = list(_apply(builder, mod, plan, bindings)), True
        same = isinstance(block, relax.DataflowBlock)
        blocks.append((relax.DataflowBlock if same else relax.BindingBlock)(bindings))
    if not changed:
        return None
    body = builder.normalize(relax.SeqExpr(blocks, func.body.body))
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)


def _plans(mod: IRModule, func: relax.Function, bindings: list[Any]) -> Iterator[_Plan]:
    users: dict[Any, set[Any]] = defaultdict(set)
    for binding in bindings:
        for var in _variables(binding.value):
            users[var].add(binding.var)
    results = set(_variables(func.body.body))
    for choice in bindings:
        if not _choice_of(mod, choice.value):
            continue
        source = choice.value.args[1][0]
        plan = _Plan(choice, inputs={source: None})
        for binding in reversed(bindings):
            var = binding.var
            if var not in plan.inputs or var in results:
                continue
            if not users[var] <= {*plan.moved, choice.var}:
                continue
            rows = source.ty.shape[ROWS]
            if (carriers := _carriers(mod, binding.value, rows)) is not None:
                moved = {var}
            elif (mixture := _mixture(mod, bindings, var, users, rows)) is not None:
                moved, carriers = mixture
            else:
                continue
            del plan.inputs[var]
            plan.moved |= moved
            plan.inputs |= dict.fromkeys(carriers)
        _keep_tuples(plan, bindings)
        if plan.moved:
            yield plan


def _keep_tuples(plan: _Plan, bindings: list[Any]) -> None:
    """Choose rows of the parts of a tuple that does not move: a tuple has no rows."""
    for whole in [var for var in plan.inputs if isinstance(var.ty, tvm.ir.TupleType)]:
        del plan.inputs[whole]
        parts = [
            binding.var
            for binding in bindings
            if isinstance(binding.value, relax.TupleGetItem)
            and binding.value.tuple_value.same_as(whole)
            and binding.var in plan.moved
        ]
        plan.moved -= {*parts}
        plan.inputs |= dict.fromkeys(parts)


def _variables(expression: Any) -> list[Any]:
    """Return the variables in an expression of the graph."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Var):
            found.append(node)

    relax.analysis.post_order_visit(expression, visit)
    return found


def _called(mod: IRModule, value: Any) -> tirx.PrimFunc | None:
    """Return the TIR function that a call without scalar arguments calls; None for other values."""
    if getattr(getattr(value, "op", None), "name", "") != "relax.call_tir" or len(value.args) != 2:
        return None
    func = mod[value.args[0]]
    return func if isinstance(func, tirx.PrimFunc) else None


def _choice_of(mod: IRModule, value: Any) -> Choice | None:
    """Return the selection of a call that only selects rows, the last or listed ones; else None."""
    func = _called(mod, value)
    stages = stages_of(func) if func else None
    if not stages or len(stages) != 1:
        return None
    axes, store = [axis.var for axis in stages[0].block.iter_vars], stages[0].block.body
    load = getattr(store, "value", None)
    if len(axes) != RANK or not isinstance(load, tirx.BufferLoad):
        return None
    if len(load.indices) != RANK:
        return None
    rows = load.buffer.shape[ROWS]
    same = [axis.same_as(index) for axis, index in zip(axes, load.indices, strict=True)]
    if same != [True, False, True] or not load.buffer.same_as(func.params[0]):
        return None
    if not isinstance(rows, tirx.Var) or not _in_order(store.indices, axes):
        return None
    index = load.indices[ROWS]
    if len(func.params) == 2 and structural_equal(index, rows - 1):
        return Choice.LAST
    listed = isinstance(index, tirx.BufferLoad) and _in_order(index.indices, [axes[ROWS]])
    return Choice.LISTED if listed and len(func.params) == 3 else None


def _in_order(indices: Any, axes: list[Any]) -> bool:
    return len(indices) == len(axes) and all(
        axis.same_as(index) for axis, index in zip(axes, indices, strict=True)
    )


def _carriers(mod: IRModule, value: Any, rows: Any) -> list[Any] | None:
    """Return the arguments with ``rows`` in their shapes, of a call that computes row by row.

    For a part of a tuple, return the tuple; for other calls, None.
    """
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    func = _called(mod, value)
    if func is None or not _works_on_rows(func):
        return None
    carriers = [arg for arg in value.args[1] if _has(arg.ty, rows)]
    shapes = [arg.ty for arg in carriers] + [one for ty in value.ty_args for one in _tensors(ty)]
    fitting = all(_has_rows(ty, rows) for ty in shapes)
    return carriers if fitting and carriers else None


def _mixture(
    mod: IRModule, bindings: list[Any], result: Any, users: Mapping[Any, set[Any]], rows: Any
) -> tuple[set[Any], list[Any]] | None:
    """Return the variables of the mixture of experts that computes a result, and its inputs.

    Both the result and the inputs are [sequences, rows, width]. Nothing but the mixture reads its
    other variables. Return None if something else computes the result.
    """
    if not isinstance(rows, tirx.Var):
        return None
    counted = _depending_on(rows, bindings)
    needed, inside, inputs = {result}, set[Any](), list[Any]()
    has_experts = False
    for binding in reversed(bindings):
        var, value = binding.var, binding.value
        if var not in needed:
            continue
        if not var.same_as(result):
            if _has_rows(var.ty, rows):
                inputs.append(var)
                continue
            if not users[var] <= inside:
                return None
        if not _is_of_mixture(mod, value):
            return None
        has_experts |= _multiplies_by_experts(mod, value)
        inside.add(var)
        needed |= {one for one in _variables(value) if one in counted and not one.same_as(rows)}
    found = inside | {*inputs} == needed
    return (inside, inputs) if found and has_experts else None


def _depending_on(rows: Any, bindings: list[Any]) -> set[Any]:
    """Return the variables whose shapes, or the values that they are computed from, have rows."""
    found = {rows}
    for binding in bindings:
        read = _variables(binding.value)
        found |= {var for var in read if _has(var.ty, rows)}
        if _has(binding.var.ty, rows) or not found.isdisjoint(read):
            found.add(binding.var)
    return found


def _is_of_mixture(mod: IRModule, value: Any) -> bool:
    """Return True if a mixture may compute a value: by row, by a row's expert, or in integers.

    Integers only say where a row's products stand among those of all rows.
    """
    if isinstance(value, relax.TupleGetItem):
        return True
    func = _called(mod, value)
    if func is None:
        return False
    return (
        all("int" in str(buffer.dtype) for buffer in _buffers(func))
        or _OF_MIXTURES.fullmatch(value.args[0].name_hint) is not None
        or _multiplies_by_experts(mod, value)
        or _works_on_rows(func)
    )


def _multiplies_by_experts(mod: IRModule, value: Any) -> bool:
    func = _called(mod, value)
    if func is None:
        return False
    layer = stored_layer(func)
    return layer.kind == EXPERTS if layer else find_experts(func) is not None


def _has_rows(ty: Any, rows: Any) -> bool:
    """Return True for a tensor [sequences, rows, width], of which rows can be chosen."""
    shape = getattr(ty, "shape", None)
    wanted = [False, True, False]
    return shape is not None and [_is(extent, rows) for extent in shape] == wanted


def _tensors(ty: Any) -> list[Any]:
    return list(ty.fields) if isinstance(ty, tvm.ir.TupleType) else [ty]


def _is(extent: Any, rows: Any) -> bool:
    return bool(structural_equal(extent, rows, map_free_vars=False))


def _has(ty: Any, rows: Any) -> bool:
    if isinstance(ty, tvm.ir.PrimType):
        return False
    if isinstance(ty, tvm.ir.TupleType):
        return any(_has(part, rows) for part in ty.fields)
    shape = getattr(ty, "shape", None)
    return shape is None or any(uses(extent, rows) for extent in shape)


def _works_on_rows(func: tirx.PrimFunc) -> bool:
    """Return True if each row of the results depends on the same row of the inputs alone."""
    if layer := stored_layer(func):
        return layer.kind == "linear"
    extents = [extent for buffer in _buffers(func) for extent in buffer.shape]
    symbolic = {var for extent in extents for var in nodes_of(tirx.Evaluate(extent), tirx.Var)}
    stages = stages_of(func)
    if len(symbolic) != 1 or not stages:
        return False
    (rows,) = symbolic
    # Rows, or a number of products for each row, but not both.
    counts = [extent for extent in extents if uses(extent, rows)]
    if not all(_is(extent, counts[0]) for extent in counts):
        return False
    return all(_keeps_rows(stage.block, rows) for stage in stages)


def _buffers(func: tirx.PrimFunc) -> list[Any]:
    """Return the parameters of a function without its scalars."""
    return [param for param in func.params if getattr(param, "shape", None) is not None]


def _keeps_rows(block: Any, rows: Any) -> bool:
    """Return True if a block accesses rows only by the index of its row axis."""
    axes = [axis for axis in block.iter_vars if uses(axis.dom.extent, rows)]
    if len(axes) > 1 or any(axis.iter_type != tirx.IterVar.DataPar for axis in axes):
        return False
    row = axes[0].var if axes else None
    statements = [block.body, *([block.init] if block.init is not None else [])]
    if not all(isinstance(one, tirx.BufferStore) for one in statements):
        return False
    for statement in statements:
        for access in nodes_of(statement, tirx.BufferLoad | tirx.BufferStore):
            for extent, index in zip(access.buffer.shape, access.indices, strict=True):
                if uses(extent, rows):
                    if row is None or not row.same_as(index):
                        return False
                elif uses(index, rows) or (row is not None and uses(index, row)):
                    return False
        rest = _without_loads(statement.value)
        if uses(rest, rows) or (row is not None and uses(rest, row)):
            return False
    return True


def _without_loads(value: Any) -> Any:
    """Return an expression with zeros in place of loads from buffers."""

    def zero(load: Any) -> Any:
        return tirx.const(0, str(load.ty.dtype))

    statement = tirx.Evaluate(value)
    return tirx.stmt_functor.ir_transform(statement, zero, None, ["tirx.BufferLoad"])


def _apply(builder: Any, mod: IRModule, plan: _Plan, bindings: list[Any]) -> Iterator[Any]:
    """Yield the bindings with the selection moved up."""
    choice, (source, *listed) = _choice_of(mod, plan.choice.value), list(plan.choice.value.args[1])
    # The number of rows, before and after.
    rows = (source.ty.shape[ROWS], plan.choice.var.ty.shape[ROWS])
    chosen: dict[Any, Any] = {}

    def choose(var: Any) -> Any:
        value = _choosing(builder, choice, var, listed)
        chosen[var] = relax.DataflowVar(f"{var.name}_rows", value.ty)
        return relax.VarBinding(chosen[var], value)

    inside = {binding.var for binding in bindings}
    # What is chosen from the function's parameters comes first.
    yield from (choose(var) for var in plan.inputs if var not in inside)
    for binding in bindings:
        var = binding.var
        if var in plan.moved:
            value = _on_rows(builder, binding.value, chosen, rows)
            last = var.same_as(source)
            chosen[var] = plan.choice.var if last else relax.DataflowVar(var.name, value.ty)
            yield relax.VarBinding(chosen[var], value)
        elif not var.same_as(plan.choice.var):
            yield binding
        if var in plan.inputs:
            yield choose(var)


def _choosing(builder: Any, choice: Choice, var: Any, listed: list[Any]) -> Any:
    """Return the call that selects rows of a variable."""

    def last(x: Any) -> Any:
        shape = (x.shape[0], 1, x.shape[2])
        return te.compute(shape, lambda i, _, k: x[i, x.shape[ROWS] - 1, k], name="last_row")

    def take(x: Any, positions: Any) -> Any:
        shape = (x.shape[0], positions.shape[0], x.shape[2])
        return te.compute(shape, lambda i, j, k: x[i, positions[j], k], name="take_rows")

    compute = last if choice is Choice.LAST else take
    name = "last_row" if choice is Choice.LAST else "take_rows"
    call = builder.call_te(compute, var, *listed, primfunc_name_hint=name)
    return builder.normalize(call)


def _on_rows(builder: Any, value: Any, chosen: Mapping[Any, Any], rows: tuple[Any, Any]) -> Any:
    """Return a moved call, or part of a tuple, computed from the selected rows."""
    if isinstance(value, relax.TupleGetItem):
        return builder.normalize(relax.TupleGetItem(chosen[value.tuple_value], value.index))

    results = [
        relax.TensorType([_resized(extent, rows) for extent in ty.shape], str(ty.dtype))
        for ty in _tensors(value.ty_args[0])
    ]
    arguments = relax.Tuple([chosen.get(arg, _resized(arg, rows)) for arg in value.args[1]])
    several = isinstance(value.ty_args[0], tvm.ir.TupleType)
    call = relax.call_tir(value.args[0], arguments, results if several else results[0])
    return builder.normalize(call)


def _resized(value: Any, rows: tuple[Any, Any]) -> Any:
    """Return a size, or an argument, with another number of rows."""
    before, after = rows
    if isinstance(value.ty, relax.TensorType | tvm.ir.TupleType):
        return value
    if _is(value, before):
        return after
    if not isinstance(before, tirx.Var):
        return value
    changed = tirx.stmt_functor.substitute(value, {before: after})
    return tvm.arith.Analyzer().simplify(changed)
