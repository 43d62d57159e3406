# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters of a model for the device's chat, as MLC-LLM's ``mlc-chat-config.json``."""

from __future__ import annotations

import json
import math
from pathlib import Path

from crosslab.cached_build import cached_build
from crosslab.errors import UserError
from crosslab.json_table import read_json_table
from groundwork.hashing import digest

CONFIG_FILE = "mlc-chat-config.json"
SOURCE_FILE = "generation_config.json"
# MLC-LLM's defaults (protocol/mlc_chat_config.py).
DEFAULTS = {
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}


def chat_config(model: Path, cache: Path) -> Path:
    """Write a model's sampling parameters to ``mlc-chat-config.json`` in ``cache``.

    The values are those of ``generation_config.json``, as in MLC-LLM's ``gen_config``, overridden
    by an ``mlc-chat-config.json`` of the model's folder.

    Raises:
        UserError: a file is not a JSON object, or a value is not a number.
    """
    values = DEFAULTS.copy()
    for name in (SOURCE_FILE, CONFIG_FILE):
        values.update(_numbers(model / name))
    text = json.dumps(values, indent=2) + "\n"

    def make(folder: Path) -> None:
        (folder / CONFIG_FILE).write_text(text, encoding="utf-8")

    return cached_build(cache, "chat-config", digest(text), make) / CONFIG_FILE


def _numbers(path: Path) -> dict[str, float]:
    """Return the sampling parameters in a JSON file, by the names in DEFAULTS.

    Parameters that are missing or null are left out; a missing file has none.

    Raises:
        UserError: the file is not a JSON object, or a value is not a finite number.
    """
    table = read_json_table(path, optional=True)
    numbers = {name: table[name] for name in DEFAULTS if table.get(name) is not None}
    for name, value in numbers.items():
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not math.isfinite(value):
            raise UserError(f"{path}: {name} is {str(value)[:40]!r}, a number was expected")
    return {name: float(value) for name, value in numbers.items()}
