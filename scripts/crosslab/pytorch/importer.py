# SPDX-License-Identifier: Apache-2.0
"""The importing process: ``python -m crosslab.pytorch.importer SPEC.json``.

It runs on the patched tree, where torch is installed. SPEC has ``file``, ``factory`` and
``dynamic`` (name of a size to its least and most). Into SPEC's folder go the model as TVM's module
(``module.json``), its parameters (``params/``, in MLC-LLM's layout), ``cases/`` with inputs and
torch's outputs, and ``model.json``, what is known of them.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
from safetensors.numpy import save_file
from torch.utils._pytree import tree_leaves
from tvm import relax, tirx
from tvm.relax.frontend.torch import exported_program_translator as translator

from crosslab.errors import LabError, UserError
from crosslab.models.params import write_params
from crosslab.pytorch.converters import KEPT, converters
from crosslab.pytorch.operators import unknown_operators

FACTORY = (
    "a factory takes nothing and returns (module, inputs) or (module, inputs, dynamic): inputs is "
    "a tuple of tensors or a table of them by name, dynamic is {input: {axis: name of a size}}"
)
Dynamic = Mapping[str, Mapping[int, str]]


def load_factory(file: Path, name: str) -> Any:
    """The factory, a function of a Python file of the user's.

    Raises:
        UserError: there is no such file or function, or the file cannot be run.
    """
    if not file.is_file():
        raise UserError(f"there is no file {file}", remedy="give FILE.py:FACTORY")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} is no Python file", remedy="give FILE.py:FACTORY")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{file} cannot be run: {_told(error, file)}") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise UserError(f"{file} has no function {name}", remedy=FACTORY)
    return found


def _told(error: BaseException, file: Path) -> str:
    """An error of the user's code: its kind, its text, and the line in their file."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == file]
    if isinstance(error, SyntaxError) and error.lineno:
        return f"line {error.lineno}: {error.msg}"
    place = f"line {frames[-1].lineno}: " if frames else ""
    return f"{place}{type(error).__name__}: {error}"


def make_example(factory: Any, file: Path) -> Example:
    """The model of a factory and its inputs.

    Raises:
        UserError: it fails, or returns something else.
    """
    try:
        made = factory()
    except Exception as error:
        raise UserError(f"the factory in {file} fails: {_told(error, file)}") from error
    if not isinstance(made, tuple) or not 2 <= len(made) <= 3:
        raise UserError(f"the factory in {file} returns {type(made).__name__}", remedy=FACTORY)
    model, inputs, dynamic = (*made, {})[:3]
    if not isinstance(model, torch.nn.Module) or not isinstance(inputs, tuple | list | dict):
        kinds = f"({type(model).__name__}, {type(inputs).__name__})"
        raise UserError(f"the factory in {file} returns {kinds}", remedy=FACTORY)
    by_name = dict(inputs) if isinstance(inputs, dict) else {}
    example = Example(model.eval(), () if by_name else tuple(inputs), by_name, dynamic)
    for value in example.tensors():
        if not isinstance(value, torch.Tensor):
            raise UserError(
                f"an input from the factory in {file} is {type(value).__name__}, not a tensor",
                remedy="let a module around the model fill in what is no tensor",
            )
    return example


def export(example: Example, bounds: Mapping[str, Sequence[int]]) -> Any:
    """The model as torch's ExportedProgram, its operators those that are converted.

    Raises:
        UserError: torch cannot export it, or a size is not one that may vary.
    """
    sizes = {size for axes in example.dynamic.values() for size in axes.values()}
    if unknown := sorted(set(bounds) - sizes):
        known = ", ".join(sorted(sizes)) or "none"
        raise UserError(
            f"--dynamic {unknown[0]}: the sizes that the factory names are: {known}",
            remedy=FACTORY,
        )
    if unknown := sorted(set(example.dynamic) - set(example.names)):
        raise UserError(
            f"the factory's third value names {unknown[0]}; "
            f"the inputs are: {', '.join(example.names)}",
        )
    try:
        program = torch.export.export(
            example.model,
            example.by_place,
            example.by_name,
            dynamic_shapes=_shapes(example, bounds) if bounds else None,
        )
        table = torch.export.default_decompositions()
        for operator in list(table):
            if operator.__name__ in KEPT:
                del table[operator]
        return program.run_decompositions(table)
    except Exception as error:
        first = str(error).strip().partition("\n\n")[0]
        raise UserError(
            f"torch.export cannot take the model: {type(error).__name__}: {first}"
        ) from error


def _shapes(example: Example, bounds: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The sizes that vary, by the names of the inputs, as torch.export takes them."""
    dims = {name: torch.export.Dim(name, min=low, max=high) for name, (low, high) in bounds.items()}
    dynamic = example.dynamic

    def of(name: str) -> Any:
        axes = {axis: dims[size] for axis, size in dynamic.get(name, {}).items() if size in dims}
        return axes or None

    return {name: of(name) for name in example.names}


def check_operators(program: Any) -> None:
    """Make sure that every operator has a converter.

    Raises:
        UserError: names those that have none, with their places.
    """
    known = {*translator.ExportedProgramImporter().convert_map, *converters()}
    if lines := unknown_operators(program, known):
        listed = "\n  ".join(lines)
        raise UserError(
            f"{len(lines)} of torch's operators cannot be imported:\n  {listed}",
            remedy="write these places with other operators, or add a converter to "
            "scripts/crosslab/pytorch/converters.py",
        )


def import_program(program: Any) -> tuple[Any, dict[str, Any]]:
    """The program as TVM's module, whose parameters come last, and these by name.

    Raises:
        LabError: TVM's importer fails.
    """
    try:
        module = translator.from_exported_program(
            program,
            keep_params_as_input=True,
            custom_convert_map=converters(),
            run_ep_decomposition=False,
        )
    except Exception as error:
        raise LabError(f"TVM cannot import the model: {type(error).__name__}: {error}") from error
    module, params = relax.frontend.detach_params(module)
    inputs = int(module["main"].attrs["num_input"])
    names = [param.name for param in module["main"].params[inputs:]]
    values = params.get("main", [])
    return module, dict(zip(names, values, strict=True))


def settle_weights(module: Any, params: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Do now what a module does with its parameters alone, such as transposing them.

    Returns:
        the module, whose parameters come last in one tuple, and these by name.
    """
    if not params:
        return module, params
    module = relax.transform.LiftTransformParams()(module)
    transform = tvm.IRModule(
        {var: f for var, f in module.functions_items() if var.name_hint != "main"}
    )
    built = tvm.compile(relax.transform.LegalizeOps()(transform), target="llvm")
    values = relax.VirtualMachine(built, tvm.cpu())["main_transform_params"](list(params.values()))
    del module["main_transform_params"]
    inputs = int(module["main"].attrs["num_input"])
    known = set(params)
    settled = {}
    for place, (param, value) in enumerate(
        zip(module["main"].params[inputs:], values, strict=True)
    ):
        name = param.name if param.name in known else f"settled_{place}"
        settled[name] = value
    return relax.transform.BundleModelParams()(module), settled


@dataclass(frozen=True)
class Example:
    """A model and the inputs that its factory gave.

    Attributes:
        model: torch's module.
        by_place: inputs that it is called with by their place.
        by_name: those by their name.
        dynamic: input to axis to the name of a size that may vary.
    """

    model: Any
    by_place: tuple[Any, ...]
    by_name: dict[str, Any]
    dynamic: Dynamic

    @property
    def names(self) -> list[str]:
        """Names of the inputs, in the order of the call."""
        names = list(inspect.signature(self.model.forward).parameters)
        return [*names[: len(self.by_place)], *self.by_name]

    def resized(self, sizes: Mapping[str, int]) -> Example:
        """The example with other sizes: its values repeat along the axis."""

        def of(name: str, value: Any) -> Any:
            for axis, size in self.dynamic.get(name, {}).items():
                if size in sizes:
                    value = value.index_select(axis, torch.arange(sizes[size]) % value.shape[axis])
            return value

        by_place = tuple(of(n, v) for n, v in zip(self.names, self.by_place, strict=False))
        return replace(
            self, by_place=by_place, by_name={n: of(n, v) for n, v in self.by_name.items()}
        )

    def tensors(self) -> list[Any]:
        """Every tensor among the inputs, in the order of the exported program's."""
        return list(tree_leaves((self.by_place, self.by_name)))

    def outputs(self) -> list[Any]:
        """The tensors that torch computes."""
        with torch.no_grad():
            made = self.model(*self.by_place, **self.by_name)
        return [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]


def write_cases(
    example: Example, names: Sequence[str], bounds: Mapping[str, Sequence[int]], folder: Path
) -> list[dict[str, int]]:
    """Write inputs and torch's outputs: of the example, and of each size's least and most.

    Returns:
        sizes that each case has in place of the example's.
    """
    folder.mkdir()
    wanted: list[dict[str, int]] = [{}]
    wanted += [{size: limit} for size, limits in bounds.items() for limit in limits]
    for number, sizes in enumerate(wanted):
        one = example.resized(sizes)
        inputs = {n: t.detach().numpy() for n, t in zip(names, one.tensors(), strict=True)}
        save_file(
            {name: np.ascontiguousarray(value) for name, value in inputs.items()},
            folder / f"{number}-inputs.safetensors",
        )
        outputs = {f"output_{i}": t.detach().numpy() for i, t in enumerate(one.outputs())}
        save_file(
            {name: np.ascontiguousarray(value) for name, value in outputs.items()},
            folder / f"{number}-expected.safetensors",
        )
    return wanted


def run(spec: Mapping[str, Any], folder: Path) -> None:
    """Export, check, import, and write everything to a folder.

    Raises:
        UserError: the model cannot be taken.
        LabError: TVM's importer fails.
    """
    file, bounds = Path(spec["file"]), spec["dynamic"]
    torch.manual_seed(0)
    example = make_example(load_factory(file, spec["factory"]), file)
    program = export(example, bounds)
    check_operators(program)
    module, params = settle_weights(*import_program(program))
    kind = torch.export.graph_signature.InputKind.USER_INPUT
    specs = [one for one in program.graph_signature.input_specs if one.kind is kind]
    names = [one.arg.name for one in specs]
    arrays = {name: value.numpy() for name, value in params.items()}
    main = module["main"]
    about = {
        "inputs": [{"name": p.name, **_type_of(p)} for p in main.params[: len(names)]],
        "params": [
            {"name": name, "shape": list(value.shape), "dtype": str(value.dtype)}
            for name, value in arrays.items()
        ],
        "bounds": {k: int(v) for k, v in (main.attrs.get("tir_var_upper_bound") or {}).items()},
        "cases": write_cases(example, names, bounds, folder / "cases"),
    }
    (folder / "params").mkdir()
    write_params(arrays.items(), folder / "params", exact=True)
    (folder / "module.json").write_text(tvm.ir.save_json(module), encoding="utf-8")
    text = json.dumps(about, indent=2) + "\n"
    (folder / "model.json").write_text(text, encoding="utf-8")


def _type_of(param: Any) -> dict[str, Any]:
    """Shape, with the names of sizes that may vary, and dtype."""
    sizes = [int(n) if isinstance(n, tirx.IntImm) else str(n) for n in param.ty.shape]
    return {"shape": sizes, "dtype": str(param.ty.dtype)}


def main(arguments: list[str]) -> int:
    """Import; 2 with a message when the model is at fault, 1 when TVM is."""
    path = Path(arguments[0])
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        run(json.loads(path.read_text(encoding="utf-8")), path.parent)
    except LabError as error:
        print(json.dumps({"what": error.what, "remedy": error.remedy}), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
