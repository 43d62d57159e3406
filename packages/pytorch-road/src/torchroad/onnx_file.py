# SPDX-License-Identifier: Apache-2.0
"""A model in ONNX, read from its file, and its example inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from crosslab.errors import UserError

Arrays = dict[str, NDArray[Any]]
REMEDY = "change the model so that it does without these operators"


def read_onnx(file: Path) -> Any:
    """Return a model in ONNX, its weights in the file or beside it.

    Raises:
        UserError: the file is not a model, or the model is too large.
    """
    try:
        onnx.checker.check_model(str(file))  # by its path, since that has no limit of size
        model = onnx.load(str(file))
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{file} is not a model in ONNX: {reason}") from error
    if (size := model.ByteSize()) > onnx.checker.MAXIMUM_PROTOBUF:
        raise UserError(
            f"{file} has {size:,} bytes with its weights; "
            f"a model in ONNX has at most {onnx.checker.MAXIMUM_PROTOBUF:,} in memory",
            remedy="compile a smaller model, or import it from PyTorch by FILE.py:FACTORY",
        )
    # Until version 4 of the format, weights are inputs, too; TVM's importer loses them then.
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return model


def inputs_of(model: Any, seed: int = 0) -> Arrays:
    """Return random inputs of a model: normal floats, integers and booleans of 0 and 1.

    A size that the model leaves open is 1.

    Raises:
        UserError: an input is not a tensor.
    """
    random = np.random.default_rng(seed)
    inputs = {}
    for value in model.graph.input:
        if value.type.WhichOneof("value") != "tensor_type":
            raise UserError(f"the input {value.name} is not a tensor", remedy=REMEDY)
        tensor = value.type.tensor_type
        shape = [size.dim_value or 1 for size in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        made = random.normal(size=shape) if dtype.kind == "f" else random.integers(0, 2, shape)
        inputs[value.name] = np.asarray(made).astype(dtype)
    return inputs
