# SPDX-License-Identifier: Apache-2.0
"""The importing process: ``python -m torchroad.importer SPEC.json``.

The process runs on the patched tree, where torch is installed. SPEC is a
:class:`torchroad.program.TorchModel`. The process writes to SPEC's folder the model as TVM's module
(``module.json``), its parameters (``params/``, in MLC-LLM's layout), ``cases/`` with inputs and
torch's outputs, and ``model.json``, which describes them.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.fx.experimental import _config as config
from tvm import relax
from tvm.relax.frontend.torch import exported_program_translator as translator

from crosslab.compile.driver import MAX_BATCH
from crosslab.compile.overlaypass import load_pass
from crosslab.errors import LabError, UserError
from torchroad import libraries
from torchroad.causal_attention import POSITIONS, TOKENS
from torchroad.causal_lm import read_causal_lm
from torchroad.conversion.converters import converters
from torchroad.conversion.decompositions import decompositions
from torchroad.conversion.limits import check_limits
from torchroad.conversion.operators import REMEDY, unknown_operators, with_places
from torchroad.example import FACTORY, Example, load_factory, make_example
from torchroad.language import BATCH, check_inputs, import_language_model
from torchroad.module import (
    check_lowering,
    settle_weights,
    type_of,
    with_sorts,
    write_program,
)
from torchroad.onnx_model import run_onnx
from torchroad.program import DEFAULT_STEPS, ONNX, save_arrays

EXPORTABLE = (
    "the operators of a model may not depend on its inputs' values: torch.where chooses between "
    "results, torch.cond is not supported; a size that varies may not be a constant of the model"
)
Bounds = Mapping[str, Sequence[int]]


def export(example: Example, bounds: Bounds) -> Any:
    """Export a model as torch's ExportedProgram, decomposed to operators with converters.

    Raises:
        UserError: torch cannot export the model, or ``bounds`` or the factory name an unknown size
            or input.
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
    for size, limits in bounds.items():
        example.check_size(size, limits)
    try:
        # Sizes that vary may be 1 inside the model, such as that of x[:, 1:].
        with config.patch(backed_size_oblivious=True), _named_refusals():
            program = torch.export.export(
                example.model,
                example.by_place,
                example.by_name,
                dynamic_shapes=_shapes(example, bounds) if bounds else None,
            )
        return program.run_decompositions(decompositions())
    except UserError:
        raise
    except Exception as error:
        # If the model itself fails on its inputs, say that instead.
        example.outputs()
        first = str(error).strip().partition("\n\n")[0]
        place = _place_in_model(error)
        called = _called_in_model(error)
        where = ", ".join(filter(None, (called, place)))
        why = f"{type(error).__name__}{f' in {where}' if where else ''}: {first}"
        by_values = re.search("DataDependent|Constraints violated", why) is not None
        raise UserError(
            f"torch.export cannot export the model: {why}", remedy=EXPORTABLE if by_values else ""
        ) from error


# Functions of torch whose results have sizes that depend on the inputs' values.
REFUSED = {
    "_pack_padded_sequence": (
        "pack_padded_sequence",
        "give the padded sequence to the recurrent layer, and ignore the results of the padding",
    )
}


@contextmanager
def _named_refusals() -> Iterator[None]:
    """Refuse the functions in REFUSED by name; torch's export fails on them without a name."""

    def refusal(name: str, remedy: str) -> Callable[..., None]:
        def refuse(*_: Any) -> None:
            raise UserError(f"torch.export cannot export {name}", remedy=remedy)

        return refuse

    for function, about in REFUSED.items():
        setattr(torch._VF, function, refusal(*about))
    try:
        yield
    finally:
        for function in REFUSED:
            delattr(torch._VF, function)


def _place_in_model(error: Exception) -> str:
    """Return the last source line of an error outside of torch and this project, or ""."""
    lines = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    lines += re.findall(r'File "([^"]+)", line (\d+)', str(error))
    user_lines = [f"{file}:{line}" for file, line in lines if _is_of_user(file)]
    return user_lines[-1] if user_lines else ""


def _called_in_model(error: Exception) -> str:
    """Return the name of torch's function that the last source line of an error calls, or ""."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = list(takewhile(lambda f: not _is_of_user(f.f_code.co_filename), reversed(frames)))
    for frame in reversed(inside) if len(inside) < len(frames) else ():
        if Path(frame.f_code.co_filename).parts[-2:] == ("nn", "functional.py"):
            return frame.f_code.co_name
        # Torch's handlers of calls have the called function in this variable.
        if (name := getattr(frame.f_locals.get("func"), "__name__", "")) and name != "forward":
            return str(name)
    return ""


def _is_of_user(file: str) -> bool:
    """Return True for a source file outside of torch, Python and this project."""
    installed = (str(Path(torch.__file__).parent), sysconfig.get_path("stdlib"))
    return not file.startswith((*installed, str(Path(__file__).parent), "<"))


def _shapes(example: Example, bounds: Bounds) -> dict[str, Any]:
    """Return the varying sizes by input name, in the form of torch.export."""
    dims = {name: torch.export.Dim(name, min=low, max=high) for name, (low, high) in bounds.items()}
    dynamic = example.dynamic
    ranks = {n: t.dim() for n, t in zip(example.names, example.tensors(), strict=True)}

    def of(name: str) -> Any:
        rank, given = ranks[name], dynamic.get(name, {})
        return {axis % rank: dims[size] for axis, size in given.items() if size in dims} or None

    by_place = map(of, example.names[: len(example.by_place)])
    by_name = {name: of(name) for name in example.by_name}
    # In the order of the call: the values of *inputs are a tuple, those of **inputs a table.
    return dict(inspect.signature(example.model.forward).bind(*by_place, **by_name).arguments)


def known_operators() -> set[str]:
    """Return the names of the operators that have a converter."""
    # TVM's importer ignores our converters inside the branches of cond.
    return {*translator.ExportedProgramImporter().convert_map, *converters()} - {"cond"}


def check_operators(program: Any) -> None:
    """Refuse a program with operators that have no converter.

    Raises:
        UserError: operators lack a converter; the message lists them with their places.
    """
    if lines := unknown_operators(program, known_operators()):
        listed = "\n  ".join(lines)
        raise UserError(
            f"{len(lines)} of torch's operators cannot be imported:\n  {listed}",
            remedy=REMEDY,
        )


def import_program(program: Any, cache: Any = None) -> tuple[Any, dict[str, Any]]:
    """Return a program as TVM's module with parameters last, and the parameters by name.

    ``cache`` is the variable of the paged KV cache that the program's attention reads, if any.

    Raises:
        UserError: an operator cannot be converted; the message names its place.
        LabError: TVM's importer fails.
    """
    try:
        module = translator.from_exported_program(
            program,
            keep_params_as_input=True,
            custom_convert_map=with_places(
                converters(cache), known_operators(), program.graph_signature.user_inputs
            ),
            run_ep_decomposition=False,
        )
    except LabError:
        raise
    except Exception as error:
        raise LabError(f"TVM cannot import the model: {type(error).__name__}: {error}") from error
    module, params = relax.frontend.detach_params(module)
    inputs = int(module["main"].attrs["num_input"])
    names = [param.name for param in module["main"].params[inputs:]]
    values = params.get("main", [])
    return module, dict(zip(names, values, strict=True))


def write_cases(
    example: Example, names: Sequence[str], bounds: Bounds, folder: Path, steps: int
) -> list[dict[str, int]]:
    """Write inputs and torch's outputs: for the example, and for each size's least and most.

    The example's outputs are those of the last of ``steps`` calls; outputs are fed to inputs.

    Returns:
        the changed sizes of each case; {} for the example.
    """
    folder.mkdir()
    wanted: list[dict[str, int]] = [{}]
    wanted += [{size: limit} for size, limits in bounds.items() for limit in limits]
    for number, sizes in enumerate(wanted):
        resized = example.resized(sizes)
        inputs = {n: t.detach().numpy() for n, t in zip(names, resized.tensors(), strict=True)}
        save_arrays(inputs, folder / f"{number}-inputs.safetensors")
        tensors, chosen = resized.answer(1 if number else steps)
        outputs = {f"output_{i}": t.detach().numpy() for i, t in enumerate(tensors)}
        outputs |= {f"chosen_{name}": np.array(places) for name, places in chosen.items()}
        save_arrays(outputs, folder / f"{number}-expected.safetensors")
    return wanted


def run(spec: Mapping[str, Any], folder: Path) -> None:
    """Export, check and import the model of a specification, and write all files to a folder.

    Raises:
        UserError: the model is not supported.
        LabError: TVM's importer fails.
    """
    file, bounds = Path(spec["file"]), spec["dynamic"]
    torch.manual_seed(0)
    libraries.prepare()
    if spec["factory"]:
        example = make_example(load_factory(file, spec["factory"]), file)
    else:
        example = make_example(partial(read_causal_lm, file, spec["prompt"]), file)
    cases = folder / "cases"
    make = _language_model if spec["paged"] else _function
    module, params, about = make(example, bounds, cases, spec["steps"])
    about["in_training_mode"] = example.trained
    write_program(module, {name: value.numpy() for name, value in params.items()}, about, folder)


Made = tuple[Any, dict[str, Any], dict[str, Any]]


def _function(example: Example, bounds: Bounds, cases: Path, steps: int | None) -> Made:
    """Return a model's module with ``main``, its parameters, its description; write its cases.

    Raises:
        UserError: there are ``steps``, but no feeds.
    """
    if steps is not None and not example.feeds:
        raise UserError("--steps: the factory names no feeds", remedy=FACTORY)
    steps = (steps or DEFAULT_STEPS) if example.feeds else 1
    program, module, params = function_of(example, bounds)
    names, main = input_names(program), module["main"]
    inputs = [{"name": p.name, **type_of(p)} for p in main.params[: len(names)]]
    about = {
        "inputs": {"main": inputs},
        "example_sizes": {
            size: length
            for entry, value in zip(inputs, example.tensors(), strict=True)
            for size, length in zip(entry["shape"], value.shape, strict=True)
            if isinstance(size, str)
        },
        "bounds": {k: int(v) for k, v in (main.attrs.get("tir_var_upper_bound") or {}).items()},
        "feeds": dict(example.feeds),
        "steps": steps,
        "cases": write_cases(example, names, bounds, cases, steps),
    }
    return module, params, about


def function_of(example: Example, bounds: Bounds) -> tuple[Any, Any, dict[str, Any]]:
    """Return a model as torch's program, and as TVM's module with its parameters by name.

    Raises:
        UserError: the model is not supported.
        LabError: TVM's importer fails.
    """
    load_pass("vectors.elementary")  # it registers accurate code for some functions
    program = export(example, bounds)
    check_limits(program)
    check_operators(program)
    module, params = settle_weights(*import_program(program))
    module = with_sorts(module)
    check_lowering(module)
    return program, module, params


def _language_model(example: Example, bounds: Bounds, cases: Path, steps: int | None) -> Made:
    """Return a language model's module, parameters and description; write torch's answer."""
    steps = steps or DEFAULT_STEPS
    check_inputs(example.names)
    if len(bounds) != 1 or {*example.dynamic.get(TOKENS, {})} != {1}:
        raise UserError(
            f"--paged: the length of {TOKENS} must vary, and no other size",
            remedy=f"let the factory's third value be {{'{TOKENS}': {{1: 'n'}}, "
            f"'{POSITIONS}': {{1: 'n'}}}} and give --dynamic n=2:512",
        )
    ((name, limits),) = bounds.items()
    prompt = example.tensors()[example.names.index(TOKENS)]
    if prompt.shape[1] + steps > limits[1]:
        raise UserError(
            f"--steps {steps}: with a prompt of {prompt.shape[1]} tokens this exceeds the "
            f"{limits[1]} of --dynamic {name}"
        )
    several, single = export(example, bounds), export(example.resized({name: 1}), {})
    check_limits(several)
    check_operators(several)
    sized = [example, *(example.resized({name: limit}) for limit in limits)]
    inputs = [dict(zip(resized.names, resized.tensors(), strict=True)) for resized in sized]
    module, params, metadata = import_language_model(several, single, inputs, import_program)
    module, params = settle_weights(module, params)
    cases.mkdir()
    write_answer(example, steps, cases)
    about = {
        "inputs": {},
        "example_sizes": {metadata["length"]: prompt.shape[1]},
        "bounds": {metadata["length"]: limits[1], BATCH: MAX_BATCH, "seq_len": limits[1]},
        "cases": [{}],
        "language": {"attention": metadata["attention"], "context": limits[1]},
        "prompt": prompt[0].tolist(),
        "steps": steps,
    }
    return module, params, about


def write_answer(example: Example, steps: int, folder: Path) -> None:
    """Write torch's greedy answer: ``tokens`` [steps], and ``logits`` [steps, vocab] before each.

    Every step computes the whole sequence again.
    """
    tokens = example.tensors()[example.names.index(TOKENS)]
    rows = []
    for _ in range(steps):
        values = {TOKENS: tokens, POSITIONS: torch.arange(tokens.shape[1])[None]}
        ordered = {name: values[name] for name in example.names}
        rows.append(replace(example, by_place=(), by_name=ordered).outputs()[0][0, -1])
        tokens = torch.cat([tokens, rows[-1].argmax()[None, None]], 1)
    answer = {"tokens": tokens[0, -steps:].numpy(), "logits": torch.stack(rows).numpy()}
    save_arrays(answer, folder / "answer.safetensors")


def input_names(program: Any) -> list[str]:
    """Return the names of a program's inputs, in order."""
    kind = torch.export.graph_signature.InputKind.USER_INPUT
    return [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is kind]


def main(arguments: list[str]) -> int:
    """Import a model; return 2 after a message if the model is at fault, 1 if TVM is."""
    path = Path(arguments[0])
    warnings.filterwarnings("ignore", category=FutureWarning)
    spec = json.loads(path.read_text(encoding="utf-8"))
    try:
        (run_onnx if spec["file"].endswith(ONNX) else run)(spec, path.parent)
    except LabError as error:
        print(json.dumps({"what": error.what, "remedy": error.remedy}), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
