# SPDX-License-Identifier: Apache-2.0
"""Work on an imported module of TVM: weights computed in advance, checks, files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tvm
from numpy.typing import NDArray
from tvm import relax, tirx
from tvm.target import codegen

from crosslab.errors import UserError
from crosslab.host.objects import shared_linker
from crosslab.host.toolchain import find_native
from crosslab.models.params import write_params
from torchroad.conversion.operators import REMEDY


def with_sorts(module: Any) -> Any:
    """Return the module with calls of the runtime's sorts, for which the pipeline has no pass."""
    with tvm.target.Target("llvm"):
        return relax.backend.DispatchSortScan()(module)


def check_lowering(module: Any) -> None:
    """Refuse a module with operators that TVM cannot lower.

    Raises:
        UserError: TVM cannot lower an operator; the message names it, and quotes TVM.
    """
    try:
        relax.transform.LegalizeOps()(module)
    except Exception as error:
        last = (str(error).strip().splitlines() or [""])[-1]
        names = [name for name, call in _calls(module) if not _lowers(call)]
        what = f"the operator {names[0]} of the model" if names else "the model"
        raise UserError(
            f"TVM cannot compile {what}: {type(error).__name__}: {last}", remedy=REMEDY
        ) from error


def _calls(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield TVM's name of each operator in a module's functions, and its call."""
    for function in module.functions.values():
        for block in function.body.blocks if isinstance(function, relax.Function) else ():
            for value in (binding.value for binding in block.bindings):
                if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op):
                    yield value.op.name.removeprefix("relax."), value


def _lowers(call: Any) -> bool:
    """Return True if TVM can lower a call by itself."""
    builder = relax.BlockBuilder()
    try:
        with builder.function("main", relax.analysis.free_vars(call)):
            builder.emit_func_output(builder.emit(call))
        relax.transform.LegalizeOps()(builder.get())
    except Exception:
        return False
    return True


@relax.expr_functor.mutator
class _Mover(relax.PyExprMutator):  # type: ignore[misc]
    """Adds the functions that a function calls to another module."""

    def __init__(self, module: Any, builder: Any) -> None:
        super().__init__()
        self.module, self.other = module, builder

    def visit_global_var_(self, var: Any) -> Any:
        """Add a called function to the other module, and return its name there."""
        called = self.module[var].without_attr("global_symbol")
        return self.other.add_func(called, var.name_hint)


def moved(module: Any, builder: Any) -> Any:
    """Return a module's ``main``; add the functions it calls to another module's builder."""
    return _Mover(module, builder).visit_expr(module["main"])


# A module's function for the computations that depend only on parameters.
TRANSFORM = "transform_params"


def _is_entry(function: Any) -> bool:
    """Return True if a function of a module is called from outside."""
    return "num_input" in (function.attrs or {})


def settle_weights(module: Any, params: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Precompute what all functions compute from parameters alone, such as transposes.

    Returns:
        the module, whose functions have the parameters in a last tuple, and the parameters by name.
        Without parameters that a function uses, there is no tuple.
    """
    if not params:
        return module, params
    module = relax.transform.LiftTransformParams(shared_transform=True)(module)
    kept = {
        var: function
        for var, function in module.functions_items()
        if var.name_hint == TRANSFORM or not _is_entry(function)
    }
    transform = relax.transform.DeadCodeElimination([TRANSFORM])(tvm.IRModule(kept))
    built = tvm.compile(relax.transform.LegalizeOps()(transform), target="llvm")
    linker = shared_linker(find_native().cc, codegen.llvm_get_system_triple())
    computed = relax.VirtualMachine(built.jit(fcompile=linker), tvm.cpu())
    values = computed[TRANSFORM](list(params.values()))
    del module[TRANSFORM]
    entry = next(f for f in module.functions.values() if _is_entry(f))
    inputs = int(entry.attrs["num_input"])
    known = set(params)
    settled = {}
    for index, (param, value) in enumerate(zip(entry.params[inputs:], values, strict=True)):
        name = param.name if param.name in known else f"settled_{index}"
        settled[name] = value
    if not settled:
        return module, settled
    return relax.transform.BundleModelParams()(module), settled


def type_of(param: Any) -> dict[str, Any]:
    """Return a parameter's dtype and shape, with names for sizes that may vary."""
    sizes = [int(n) if isinstance(n, tirx.IntImm) else str(n) for n in param.ty.shape]
    return {"shape": sizes, "dtype": str(param.ty.dtype)}


def write_program(
    module: Any, params: Mapping[str, NDArray[Any]], about: dict[str, Any], folder: Path
) -> None:
    """Write a module, its parameters and its description as :class:`ImportedProgram` reads them."""
    about["params"] = [
        {"name": name, "shape": list(value.shape), "dtype": str(value.dtype)}
        for name, value in params.items()
    ]
    (folder / "params").mkdir()
    write_params(params.items(), folder / "params", exact=True)
    (folder / "module.json").write_text(tvm.ir.save_json(module), encoding="utf-8")
    text = json.dumps(about, indent=2) + "\n"
    (folder / "model.json").write_text(text, encoding="utf-8")
