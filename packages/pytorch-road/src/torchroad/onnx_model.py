# SPDX-License-Identifier: Apache-2.0
"""A model in ONNX as TVM's module, its example inputs, and onnxruntime's outputs."""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper
from tvm import relax, tirx
from tvm.relax.frontend.onnx import from_onnx, onnx_frontend

from crosslab.compile.overlaypass import load_pass
from crosslab.errors import UserError
from torchroad.conversion.convolutions import Window, product
from torchroad.conversion.indexing import written_along
from torchroad.conversion.onnx_operators import OWN, own_converters
from torchroad.module import (
    check_lowering,
    moved,
    settle_weights,
    type_of,
    with_sorts,
    write_program,
)
from torchroad.onnx_file import REMEDY, inputs_of, read_onnx
from torchroad.onnx_forms import (
    OWN_DOMAINS,
    array_of,
    constants_of,
    in_known_forms,
    nodes_of,
    version_of,
)
from torchroad.pictures import input_shape, read_picture
from torchroad.program import save_arrays

# Types of OneHot's values that TVM's importer keeps.
ONE_HOT = ("float64", "int64")


# Attributes of which TVM's importer has one value only.
ONLY: dict[str, dict[str, Any]] = {
    "BatchNormalization": {"training_mode": 0},
    "Pad": {"mode": b"constant"},
}
# Attributes that do not change what a model computes.
HARMLESS = ("broadcast", "consumed_inputs", "is_test", "seed")


def unknown_operators(model: Any) -> list[str]:
    """Return a line for each operator that TVM's importer cannot convert, with its count.

    Raises:
        UserError: the model's types or shapes contradict each other.
    """
    known = onnx_frontend._get_convert_map()
    # ONNX infers the shapes of an older operator set from its own forms alone.
    graph = in_known_forms(_inferred(model)).graph
    opset = version_of(model)
    inputs = {value.name for value in graph.input}
    constants, shapes = constants_of(graph), _shapes(graph)
    counts: Counter[str] = Counter()
    for node in nodes_of(graph):
        name = node.op_type if node.domain in OWN_DOMAINS else f"{node.domain}::{node.op_type}"
        if name not in known:
            counts[name] += 1
            continue
        counts.update(_ignored(node, known[name], opset, shapes))
        if name == "Expand" and node.input[1] in inputs:
            counts["Expand to a shape that is an input"] += 1
        elif name == "OneHot" and str(array_of(constants, node.input[2]).dtype) not in ONE_HOT:
            counts[f"OneHot without constant values of {' or '.join(ONE_HOT)}"] += 1
        elif name == "Resize" and not _resizes_to_whole_sizes(node, constants, shapes):
            counts["Resize by scales that do not give whole sizes"] += 1
    return [
        f"{name} ({count} times)" if count > 1 else name for name, count in sorted(counts.items())
    ]


def _inferred(model: Any) -> Any:
    """Return a model with the types and shapes that ONNX infers.

    Raises:
        UserError: types or shapes contradict each other.
    """
    try:
        return onnx.shape_inference.infer_shapes(model)
    except onnx.shape_inference.InferenceError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"ONNX cannot infer the model's shapes: {reason}") from error


def _ignored(
    node: Any, converter: Any, opset: int, shapes: Mapping[str, list[int]]
) -> Iterator[str]:
    """Yield a text for each attribute and input of a node that TVM's converter does not read."""
    is_own = node.op_type in OWN
    function = converter.get_converter(opset)
    version = opset if is_own else int(function.__name__.removeprefix("_impl_v"))
    try:
        attributes = onnx.defs.get_schema(node.op_type, opset).attributes
        most = onnx.defs.get_schema(node.op_type, version).max_input
    except onnx.defs.SchemaError:  # an operator of a later version
        return
    words = {*attributes} if is_own else _words(converter, set())
    only = {**ONLY.get(node.op_type, {})}
    # Until version 6, the second operand's first axis was given; only the last axes are right.
    if "broadcast" in attributes and len(node.input) == 2:
        first, second = (len(shapes.get(name, ())) for name in node.input)
        only["axis"] = first - second
    for one in node.attribute:
        value = helper.get_attribute_value(one)
        right = only.get(one.name, value)
        if one.name in attributes and one.name not in {*words, *HARMLESS, *only}:
            right = helper.get_attribute_value(attributes[one.name].default_value)
        if value != right:
            shown = value.decode() if isinstance(value, bytes) else value
            yield f"{node.op_type} with the {one.name} {shown}"
    if any(node.input[most:]):
        yield f"{node.op_type} with {len(node.input)} inputs in version {opset} of the operators"


def _words(code: Any, seen: set[Any]) -> set[str]:
    """Return the texts in the code of a class or function, and of those of TVM that it names."""
    if code in seen or not getattr(code, "__module__", "").startswith(onnx_frontend.__name__):
        return set()
    seen.add(code)
    parts = [*vars(code).values(), *code.__bases__] if isinstance(code, type) else [code]
    words = set[str]()
    for part in parts:
        function = getattr(part, "__func__", part)
        if isinstance(function, type):
            words |= _words(function, seen)
        codes = [function.__code__] if hasattr(function, "__code__") else []
        while codes:
            current = codes.pop()
            codes += [one for one in current.co_consts if isinstance(one, CodeType)]
            words |= {one for one in current.co_consts if isinstance(one, str)}
            for name in current.co_names:
                words |= _words(getattr(onnx_frontend, name, None), seen)
    return words


def _shapes(graph: Any) -> dict[str, list[int]]:
    """Return the shapes of a graph's values by name; a size that is not known is 0."""
    weights = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    values = (*graph.input, *graph.value_info)
    shapes = {value.name: value.type.tensor_type.shape.dim for value in values}
    return weights | {name: [one.dim_value for one in shape] for name, shape in shapes.items()}


def _resizes_to_whole_sizes(
    node: Any, constants: Mapping[str, Any], shapes: Mapping[str, list[int]]
) -> bool:
    """Return True for a Resize to sizes, or by scales that give whole numbers for its input."""
    _, _, name, sizes = [*node.input, "", "", ""][:4]
    scales = array_of(constants, name)
    if sizes and (not name or (name in constants and not scales.size)):
        return True
    # A size that is not known counts as 1, which only a whole scale keeps whole.
    shape = [size or 1 for size in shapes.get(node.input[0], ())] or [1] * scales.size
    if not scales.size or scales.size != len(shape):
        return False
    return all(float(size).is_integer() for size in scales * np.array(shape, scales.dtype))


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
    try:
        module = relax.transform.DecomposeOpsForInference()(builder.finalize())
        module, params = settle_weights(module, params)
        module = with_sorts(module)
        check_lowering(module)
    except Exception as error:
        what = f"TVM cannot compile the model: {_reason(error)}"
        told = error.what if isinstance(error, UserError) else what
        listed = ", ".join(dict.fromkeys(_operators(model) for model, _ in functions.values()))
        raise UserError(f"{told}; the model's operators are {listed}", remedy=REMEDY) from error
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
        with warnings.catch_warnings(), own_converters():
            warnings.simplefilter("ignore")
            module = from_onnx(in_known_forms(model), shape_dict=shapes, keep_params_in_input=True)
    except Exception as error:
        raise UserError(
            f"TVM cannot import {_failed_at(error)}: {_reason(error)}", remedy=REMEDY
        ) from error
    _check_outputs(model, module)
    module, detached = relax.frontend.detach_params(_Rewriter(module).converted())
    count = int(module["main"].attrs["num_input"])
    names = [param.name for param in module["main"].params[count:]]
    return module, dict(zip(names, detached.get("main", []), strict=True))


def _reason(error: Exception) -> str:
    """Return the kind and the last line of an error."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"


def _failed_at(error: Exception) -> str:
    """Return the operator at which TVM's importer failed, by the variables of its loop."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "_construct_nodes":
            node = frame.f_locals.get("node")
            return f"{node.op_type} ({node.name or node.output[0]})" if node else "the model"
    return "the model"


def _operators(model: Any) -> str:
    return ", ".join(sorted({node.op_type for node in nodes_of(model.graph)}))


def _check_outputs(model: Any, module: Any) -> None:
    """Refuse outputs that are not tensors, or have other sizes than ONNX's own inference finds.

    Raises:
        UserError: the model has such an output; the message names it.
    """
    for value in model.graph.output:
        if value.type.WhichOneof("value") not in ("tensor_type", None):
            raise UserError(f"the output {value.name} is not a tensor", remedy=REMEDY)
    found = module["main"].ret_ty
    types = found.fields if isinstance(found, relax.TupleType) else [found]
    for value, own in zip(_inferred(model).graph.output, types, strict=True):
        if isinstance(own, relax.ShapeType):
            raise UserError(f"the output {value.name} is a shape, not a tensor", remedy=REMEDY)
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


CONVOLUTION, SCATTER = "relax.nn.conv2d", "relax.scatter_elements"
# Positions of the indices that ONNX counts from the end if they are negative, by TVM's operators.
FROM_END = {
    "relax.gather_elements": 1,
    "relax.gather_nd": 1,
    SCATTER: 1,
    "relax.scatter_nd": 1,
    "relax.one_hot": 0,
}
# Names in ONNX of the operators that need the shape of their inputs.
SHAPED = {
    CONVOLUTION: "Conv",
    "relax.gather_elements": "GatherElements",
    "relax.gather_nd": "GatherND",
    SCATTER: "ScatterElements",
    "relax.scatter_nd": "ScatterND",
}


def _fixed_shape(tensor: Any) -> list[int] | None:
    """Return a tensor's shape; None if a size is not known."""
    shape = tensor.ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        return None
    return [int(n) for n in shape] if all(isinstance(n, tirx.IntImm) for n in shape) else None


def _indexed_sizes(call: Any) -> Any:
    """Return the size of the axis that a call of FROM_END indexes, or for each column the size.

    None if it is not known.
    """
    name = call.op.name
    if name == "relax.one_hot":
        return int(call.attrs.depth)
    shape, places = (_fixed_shape(tensor) for tensor in call.args[:2])
    if shape is None or places is None:
        return None
    if name in ("relax.gather_elements", SCATTER):
        return shape[int(call.attrs.axis)]
    first = int(call.attrs.batch_dims) if name == "relax.gather_nd" else 0
    return shape[first : first + places[-1]]


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):  # type: ignore[misc]
    """Replaces convolutions of pictures by products for kernels, and indices from an axis's end."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.module = module
        self.lost: Counter[str] = Counter()  # operators without the shape of their inputs

    def converted(self) -> Any:
        """Return the module with the replacements.

        Raises:
            UserError: the shape of an operator's inputs is not known; the message names it.
        """
        for var, function in self.module.functions_items():
            if isinstance(function, relax.Function):
                self.builder_.update_func(var, self.visit_expr(function))
        if self.lost:
            listed = ", ".join(f"{name} ({count} times)" for name, count in self.lost.items())
            told = f"TVM's importer loses the shape of the inputs of {listed}"
            raise UserError(told, remedy="let the model compute no shapes, for example by Reshape")
        return relax.transform.DeadCodeElimination()(self.builder_.get())

    def visit_call_(self, call: Any) -> Any:
        """Return a call's replacement, or the call as it is."""
        call = super().visit_call_(call)
        name = getattr(call.op, "name", "")
        if name == SCATTER and call.args[0].ty.ndim == 1:
            return call
        if name == CONVOLUTION and call.args[0].ty.shape is not None:
            return self._product(call)
        if name in FROM_END and (sizes := _indexed_sizes(call)) is not None:
            call = self._counted_from_begin(call, sizes)
            if name != SCATTER:
                return call
            (x, indices, values), about = call.args, call.attrs
            reduction = str(about.reduction)
            return written_along(x, int(about.axis), indices, values, reduction, self.builder_)
        if name in SHAPED:
            self.lost[SHAPED[name]] += 1
        return call

    def _product(self, call: Any) -> Any:
        """Return the product of a symmetrically padded convolution, or the call as it is."""
        x, weight = call.args
        about, padding = call.attrs, [int(each) for each in call.attrs.padding]
        symmetric = padding[:2] == padding[2:]
        if not symmetric or about.data_layout != "NCHW" or x.ty.dtype != "float32":
            return call
        strides, dilation = (tuple(map(int, each)) for each in (about.strides, about.dilation))
        kernel = tuple(int(size) for size in list(weight.ty.shape)[2:])
        window = Window(kernel, strides, tuple(padding[:2]), dilation)
        return product(x, weight, window, int(about.groups), self.builder_)

    def _counted_from_begin(self, call: Any, sizes: Any) -> Any:
        """Return a call of FROM_END with a size added to each negative index."""
        arguments, position = list(call.args), FROM_END[call.op.name]
        indices, emit = arguments[position], self.builder_.emit
        dtype = str(indices.ty.dtype)
        shifted = emit(relax.op.add(indices, relax.const(np.array(sizes, dtype), dtype)))
        is_negative = emit(relax.op.less(indices, relax.const(0, dtype)))
        arguments[position] = emit(relax.op.where(is_negative, shifted, indices))
        return relax.Call(call.op, arguments, call.attrs, call.ty_args)


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
