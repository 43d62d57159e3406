# SPDX-License-Identifier: Apache-2.0
"""A model in ONNX, read from its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from crosslab.errors import UserError


def read_onnx(file: Path) -> Any:
    """Return a model in ONNX, its weights in the file or beside it.

    Raises:
        UserError: the file is not a model.
    """
    try:
        model = onnx.load(str(file))
        onnx.checker.check_model(model)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{file} is not a model in ONNX: {reason}") from error
    # Until version 4 of the format, weights are inputs, too; TVM's importer loses them then.
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return model
