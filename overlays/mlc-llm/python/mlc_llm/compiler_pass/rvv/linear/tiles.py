# SPDX-License-Identifier: Apache-2.0
"""Weights that a model library keeps in tiles, in the order in which kernels read them.

A parameter can be in tiles if everything that a module does with it is a linear layer, or the
taking of rows, whose kernels read tiles. The library then has a Relax function that gives the
numbers of these parameters as JSON, and functions such as ``reorder_weights_8`` that reorder one in
place. The program that loads the parameters calls these functions first, and once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm import IRModule, ir, relax, tirx

from ..tir import block_of, whole

ENTRY = "weights_in_tiles"
REORDER = "reorder_weights_"

# Positions among a function's parameters to bytes of an element of the matrix there.
Places = Mapping[int, int]


@dataclass
class _Uses:
    """Functions and argument positions that use each of a module's parameters.

    Attributes:
        calls: TIR function, and which parameter of the model each of its arguments is.
        others: parameters that are used in another way.
    """

    calls: list[tuple[str, tuple[int | None, ...]]] = field(default_factory=list)
    others: set[int] = field(default_factory=set)

    def function(self, func: relax.Function) -> None:
        inputs = int((func.attrs or {}).get("num_input", len(func.params)))
        packed = [p for p in func.params[inputs:] if isinstance(p.ty, ir.TupleType)]
        params: dict[Any, int] = {}
        for block in func.body.blocks if isinstance(func.body, relax.SeqExpr) else []:
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, relax.TupleGetItem) and value.tuple_value in packed:
                    params[binding.var] = int(value.index)
                else:
                    self.value(value, params)
        self.others |= {params[v] for v in relax.analysis.free_vars(func.body.body) if v in params}

    def value(self, value: Any, params: dict[Any, int]) -> None:
        callee = getattr(value, "op", None)
        if getattr(callee, "name", None) == "relax.call_tir":
            places = tuple(
                params.get(a) if isinstance(a, relax.Var) else None for a in value.args[1]
            )
            self.calls.append((value.args[0].name_hint, places))
        else:
            self.others |= {params[v] for v in relax.analysis.free_vars(value) if v in params}


@dataclass(frozen=True)
class TiledWeights:
    """The parameters of a module that are stored in tiles.

    Attributes:
        functions: names of the TIR functions that read them.
        items: bytes of an element, by the parameter's number.
    """

    functions: frozenset[str] = frozenset()
    items: Mapping[int, int] = field(default_factory=dict)


def choose_tiles(mod: IRModule, places: Mapping[str, Places]) -> TiledWeights:
    """Return the weights that can be stored in tiles: only kernels that read tiles use them.

    Args:
        mod: the module.
        places: by name of a TIR function whose kernel reads tiles, where its weights are.
    """
    uses = _uses_of(mod)
    functions = {name for name, _ in uses.calls if name in places}
    while True:
        kept = _kept(uses, functions, places)
        fits = {
            name
            for name in functions
            if all(
                args[place] in kept
                for other, args in uses.calls
                if other == name
                for place in places[name]
            )
        }
        if fits == functions:
            return TiledWeights(frozenset(functions), kept)
        functions = fits


def loaded_weights(mod: IRModule, places: Mapping[str, Places]) -> TiledWeights:
    """Return the weights that a device can take at load time, even if the CPU reads them, too.

    Args:
        mod: the module.
        places: by name of a TIR function, where its weights are.
    """
    calls = [call for call in _uses_of(mod).calls if call[0] in places]
    others = {name for name, args in calls if any(args[place] is None for place in places[name])}
    kept = [(name, args) for name, args in calls if name not in others]
    items = {args[n]: item for name, args in kept for n, item in places[name].items()}
    known = sorted((number, item) for number, item in items.items() if number is not None)
    return TiledWeights(frozenset(name for name, _ in kept), dict(known))


def _uses_of(mod: IRModule) -> _Uses:
    uses = _Uses()
    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            uses.function(func)
    return uses


def _kept(uses: _Uses, functions: set[str], places: Mapping[str, Places]) -> dict[int, int]:
    """Map parameters that only these functions use, at these positions, to bytes of an element."""
    items: dict[int, set[int]] = {number: {0, 1} for number in uses.others}
    for name, args in uses.calls:
        of_function = places[name] if name in functions else {}
        for place, number in enumerate(args):
            if number is not None:
                items.setdefault(number, set()).add(of_function.get(place, 0))
    kept = {number: kinds.pop() for number, kinds in items.items() if len(kinds) == 1}
    return {number: item for number, item in sorted(kept.items()) if item}


def add_entries(mod: IRModule, tiled: TiledWeights, tile: int, symbol: str) -> IRModule:
    """Add a function that lists the parameters in tiles, and functions that reorder them.

    Args:
        mod: the module; changed in place.
        tiled: the parameters.
        tile: rows of a tile.
        symbol: the kernel that reorders a matrix.
    """
    functions = {item: _reorder(item, tile, symbol) for item in sorted(set(tiled.items.values()))}
    return add_loading(mod, tiled, functions, tile=tile)


def add_loading(
    mod: IRModule, weights: TiledWeights, functions: Mapping[int, tirx.PrimFunc], **about: int
) -> IRModule:
    """Add a function that lists parameters, and functions to call with each after it is loaded.

    Args:
        mod: the module; changed in place.
        weights: the parameters.
        functions: to call with a parameter, by the bytes of its elements.
        about: further entries of the JSON.
    """
    parameters = [{"index": n, "item": item} for n, item in weights.items.items()]
    builder = relax.BlockBuilder()
    with builder.function(ENTRY, params=[]):
        text = json.dumps({**about, "parameters": parameters})
        builder.emit_func_output(relax.utils.convert_to_expr(text))
    mod[ENTRY] = builder.finalize()[ENTRY]
    targets = [f.attrs["target"] for _, f in mod.functions_items() if "target" in (f.attrs or {})]
    for item, function in functions.items():
        name = f"{REORDER}{8 * item}"
        func = function.with_attr("global_symbol", name)
        mod[name] = func.with_attr("target", targets[0]) if targets else func
    return mod


def _reorder(item: int, tile: int, symbol: str) -> tirx.PrimFunc:
    """Return the TIR function that reorders matrices [count, rows, columns] into tiles."""
    count, rows, columns = (tirx.Var(name, "int64") for name in ("count", "rows", "columns"))
    dtype, number = f"uint{8 * item}", tirx.Var("matrix", "int64")
    data = tirx.decl_buffer((count, rows, columns), dtype, "data")
    scratch = tirx.decl_buffer((tirx.min(rows, tile) * columns,), dtype, "scratch")
    matrix = data.access_ptr("rw", offset=number * rows * columns)
    sizes = [tirx.IntImm("int64", item), rows, columns, tirx.IntImm("int64", tile)]
    words = [tirx.Cast("int64", size) for size in sizes]
    call = tirx.call_extern("void", symbol, matrix, *words, scratch.access_ptr("rw"))
    body = block_of(tirx.Evaluate(call), "reorder", [whole(data)], [whole(data)], [scratch])
    loop = tirx.For(number, tirx.IntImm("int64", 0), count, tirx.ForKind.SERIAL, body)
    func = tirx.PrimFunc([data], block_of(loop, "root", [], []))
    return func.with_attrs({"tirx.is_scheduled": True, "tirx.noalias": True, "s_tir": True})
