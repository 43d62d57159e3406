# SPDX-License-Identifier: Apache-2.0
"""Sizes of real models by name."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from crosslab.models.config import LlamaConfig

FILE = Path(__file__).with_name("shapes.toml")


@cache
def shapes() -> Mapping[str, LlamaConfig]:
    """Return the sizes of ``shapes.toml`` by the model's name."""
    table = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {name: LlamaConfig(**sizes) for name, sizes in table.items()}
