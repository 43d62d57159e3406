# SPDX-License-Identifier: Apache-2.0
"""Weights in a safetensors file, with errors of the operating system as Python's own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

WEIGHTS_FILE = "model.safetensors"
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def save_weights(
    weights: Mapping[str, np.ndarray], folder: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write ``folder/model.safetensors``, readable by all.

    Raises:
        OSError: it cannot be written; safetensors has an exception of its own for that.
    """
    path = folder / WEIGHTS_FILE
    try:
        save_file(dict(weights), path, metadata)
    except SafetensorError as error:
        if not (found := _OS_ERROR.search(str(error))):
            raise
        code = int(found[1])
        raise OSError(code, os.strerror(code), str(path)) from error
    path.chmod(0o644)  # safetensors writes for the owner alone
