# SPDX-License-Identifier: Apache-2.0
"""A model in ONNX as TVM's module, its example inputs, and onnxruntime's outputs."""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from tvm import relax, tirx
from tvm.relax.frontend.onnx import from_onnx, onnx_frontend

from crosslab.compile.overlaypass import load_pass
from crosslab.errors import UserError
from torchroad.conversion.convolutions import Window, product
from torchroad.module import (
    check_lowering,
    moved,
    settle_weights,
    type_of,
    with_sorts,
    write_program,
)
from torchroad.onnx_file import REMEDY, inputs_of, read_onnx
from torchroad.pictures import input_shape, read_picture
from torchroad.program import save_arrays

OWN_DOMAINS = ("", "ai.onnx")


def unknown_operators(model: Any) -> list[str]:
    """Return a line for each operator that TVM's importer cannot convert, with its count."""
    known = set(onnx_frontend._get_convert_map())
    inputs = {value.name for value in model.graph.input}
    counts: Counter[str] = Counter()
    for node in _nodes(model.graph):
        name = node.op_type if node.domain in OWN_DOMAINS else f"{node.domain}::{node.op_type}"
        mode = next((a.s.decode() for a in node.attribute if a.name == "mode"), "constant")
        if name not in known:
            counts[name] += 1
        elif name == "Pad" and mode != "constant":
            counts[f"Pad with the mode {mode}"] += 1
        elif name == "Expand" and node.input[1] in inputs:
            counts["Expand to a shape that is an input"] += 1
    return [
        f"{name} ({count} times)" if count > 1 else name for name, count in sorted(counts.items())
    ]


def _nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph and of the graphs in its nodes' attributes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def onnxruntime_outputs(model: Any, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """Return onnxruntime's outputs, on the CPU and without its own optimisations.

    Raises:
        UserError: onnxruntime cannot run the model.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        outputs = session.run(None, dict(inputs))
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"onnxruntime cannot run the model: {reason}") from error
    return [np.asarray(output) for output in outputs]


Arrays = Mapping[str, NDArray[Any]]


def import_onnx(
    functions: Mapping[str, tuple[Any, Arrays]],
) -> tuple[Any, dict[str, Any], dict[str, list[str]]]:
    """Return models as functions of TVM's module with all parameters last.

    Convolutions become products for kernels.

    Args:
        functions: name of a function to its model and the model's inputs. Weights of several models
            that have the same name are the same.

    Returns:
        the module; the parameters; the names of each function's inputs.

    Raises:
        UserError: TVM lacks an operator, or cannot import or compile it; the message names it.
    """
    load_pass("vectors.elementary")  # it registers accurate code for some functions
    converted = {name: _converted(*given) for name, given in functions.items()}
    params = {name: value for _, own in converted.values() for name, value in own.items()}
    builder, names = relax.BlockBuilder(), {}
    for name, (module, _) in converted.items():
        main = moved(module, builder)
        count = int(main.attrs["num_input"])
        names[name] = [param.name for param in main.params[:count]]
        entry = _with_params(main, count, params).with_attr("global_symbol", name)
        builder.add_func(entry, name)
    module = relax.transform.DecomposeOpsForInference()(builder.finalize())
    module, params = settle_weights(module, params)
    module = with_sorts(module)
    try:
        check_lowering(module)
    except UserError as error:
        listed = ", ".join(dict.fromkeys(_operators(model) for model, _ in functions.values()))
        told = f"{error.what}; the model's operators are {listed}"
        raise UserError(told, remedy=REMEDY) from error
    return module, params, names


def _with_params(function: Any, count: int, params: Mapping[str, Any]) -> Any:
    """Return a function of ``count`` inputs with all parameters of its module."""
    own = {param.name: param for param in function.params[count:]}
    every = [
        own[name] if name in own else relax.Var(name, relax.TensorType(value.shape, value.dtype))
        for name, value in params.items()
    ]
    inputs = function.params[:count]
    return relax.Function([*inputs, *every], function.body, function.ret_ty, attrs=function.attrs)


def _converted(model: Any, inputs: Arrays) -> tuple[Any, dict[str, Any]]:
    """Return a model as TVM's module with the function ``main``, and its parameters by name.

    Raises:
        UserError: the importer lacks an operator, or cannot convert it; the message names it.
    """
    if lines := unknown_operators(model):
        listed = "\n  ".join(lines)
        raise UserError(
            f"{len(lines)} operators of ONNX cannot be imported:\n  {listed}", remedy=REMEDY
        )
    shapes = {name: list(value.shape) for name, value in inputs.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = from_onnx(model, shape_dict=shapes, keep_params_in_input=True)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[-1]
        raise UserError(
            f"TVM cannot import {_failed_at(error)}: {type(error).__name__}: {reason}",
            remedy=REMEDY,
        ) from error
    _check_outputs(model, module)
    module, detached = relax.frontend.detach_params(_Products(module).converted())
    count = int(module["main"].attrs["num_input"])
    names = [param.name for param in module["main"].params[count:]]
    return module, dict(zip(names, detached.get("main", []), strict=True))


def _failed_at(error: Exception) -> str:
    """Return the operator at which TVM's importer failed, by the variables of its loop."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "_construct_nodes":
            node = frame.f_locals.get("node")
            return f"{node.op_type} ({node.name or node.output[0]})" if node else "the model"
    return "the model"


def _operators(model: Any) -> str:
    return ", ".join(sorted({node.op_type for node in _nodes(model.graph)}))


def _check_outputs(model: Any, module: Any) -> None:
    """Refuse a module whose outputs have other sizes than ONNX's own inference finds.

    Raises:
        UserError: sizes differ; the message names the output.
    """
    found = module["main"].ret_ty
    types = found.fields if isinstance(found, relax.TupleType) else [found]
    inferred = onnx.shape_inference.infer_shapes(model)
    for value, own in zip(inferred.graph.output, types, strict=True):
        wanted = [size.dim_value for size in value.type.tensor_type.shape.dim]
        shape = [size.value if isinstance(size, tirx.IntImm) else 0 for size in own.shape or ()]
        differ = any(a and b and a != b for a, b in zip(wanted, shape, strict=False))
        if wanted and shape and (differ or len(wanted) != len(shape)):
            reason = f"gets the shape {shape}; its shape is {wanted}"
            raise UserError(
                f"TVM cannot import the model, whose operators are {_operators(model)}: "
                f"the output {value.name} {reason}",
                remedy=REMEDY,
            )


@relax.expr_functor.mutator
class _Products(relax.PyExprMutator):  # type: ignore[misc]
    """Replaces convolutions of pictures by products, which kernels compute."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.module = module
        self.lost = 0  # convolutions without the shape of their input

    def converted(self) -> Any:
        """Return the module with products."""
        for var, function in self.module.functions_items():
            if isinstance(function, relax.Function):
                self.builder_.update_func(var, self.visit_expr(function))
        if self.lost:
            told = f"TVM's importer loses the shape of the inputs of Conv ({self.lost} times)"
            raise UserError(told, remedy="let the model compute no shapes, for example by Reshape")
        return relax.transform.DeadCodeElimination()(self.builder_.get())

    def visit_call_(self, call: Any) -> Any:
        """Return the product of a symmetrically padded convolution, and other calls as they are."""
        call = super().visit_call_(call)
        if getattr(call.op, "name", "") != "relax.nn.conv2d":
            return call
        x, weight = call.args
        about, padding = call.attrs, [int(each) for each in call.attrs.padding]
        symmetric = padding[:2] == padding[2:]
        if x.ty.shape is None:
            self.lost += 1
            return call
        if not symmetric or about.data_layout != "NCHW" or x.ty.dtype != "float32":
            return call
        strides, dilation = (tuple(map(int, each)) for each in (about.strides, about.dilation))
        kernel = tuple(int(size) for size in list(weight.ty.shape)[2:])
        window = Window(kernel, strides, tuple(padding[:2]), dilation)
        return product(x, weight, window, int(about.groups), self.builder_)


def run_onnx(spec: Mapping[str, Any], folder: Path) -> None:
    """Import the model of a specification, and write all files to a folder.

    Raises:
        UserError: the model is not supported.
    """
    file = Path(spec["file"])
    files = {one.stem: one for one in file.iterdir()} if file.is_dir() else {"main": file}
    functions = {}
    for name, one in files.items():
        model = read_onnx(one)
        inputs = inputs_of(model)
        if spec["picture"]:
            picture = read_picture(Path(spec["picture"]), input_shape(model))
            inputs = {model.graph.input[0].name: picture}
        functions[name] = (model, inputs)
    module, params, names = import_onnx(functions)
    cases = folder / "cases"
    cases.mkdir()
    for number, (name, (model, inputs)) in enumerate(functions.items()):
        named = dict(zip(names[name], inputs.values(), strict=True))
        save_arrays(named, cases / f"{number}-inputs.safetensors")
        outputs = {f"output_{i}": each for i, each in enumerate(onnxruntime_outputs(model, inputs))}
        save_arrays(outputs, cases / f"{number}-expected.safetensors")
    about: dict[str, Any] = {
        "inputs": {
            name: [{"name": p.name, **type_of(p)} for p in module[name].params[: len(each)]]
            for name, each in names.items()
        },
        "example_sizes": {},
        "bounds": {},
        "feeds": {},
        "steps": 1,
        "cases": [{} for _ in functions],
        "in_training_mode": [],
    }
    arrays = {name: value.numpy() for name, value in params.items()}
    write_program(module, arrays, about, folder)
