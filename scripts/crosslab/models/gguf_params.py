# SPDX-License-Identifier: Apache-2.0
"""Parameters of a model whose weights stay in the blocks of its GGUF file.

The imported model's ``config.json`` names the weights that are blocks (``gguf_types``); its
safetensors hold their bytes. A parameter of the library is one or several of them, one below the
other, and is stored in segments of rows that have one format each: ``<layer>.<part>_<segment>``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from crosslab.errors import UserError
from crosslab.models.config import read_table
from crosslab.models.gguf_formats import Blocks, GgufFormat, Part, gguf_formats, read_blocks
from crosslab.models.weights_file import F32, StoredWeights

CONFIG_FILE = "config.json"
TYPES = "gguf_types"
WEIGHT = ".weight"


@dataclass(frozen=True)
class Segment:
    """Neighbouring rows of a parameter that have one format.

    Attributes:
        rows: number of them.
        inputs: weights of a row.
        format: of them.
        sources: Hugging Face's names of the weights that they are.
    """

    rows: int
    inputs: int
    format: GgufFormat
    sources: tuple[str, ...]

    def table(self) -> dict[str, Any]:
        """The segment as the configuration of the passes has it."""
        parts = [
            {"name": name, "columns": round(each * self.inputs), "item": np.dtype(dtype).itemsize}
            for name, (each, dtype) in self.format.parts.items()
        ]
        name, block = self.format.name.lower(), self.format.block
        return {"rows": self.rows, "format": name, "block": block, "parts": parts}


Layout = Mapping[str, tuple[Segment, ...]]
"""Segments of the parameters that stay in blocks, by name."""


def logical_shapes(model: Path, stored: StoredWeights) -> dict[str, tuple[int, ...]]:
    """Shape of each weight of an imported model; blocks count as their weights."""
    types: Mapping[str, str] = read_table(model / CONFIG_FILE).get(TYPES, {})
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape, _ in stored.shapes():
        shapes[name] = shape
        if name in types:
            form = gguf_formats()[types[name]]
            shapes[name] = (shape[0], shape[1] // form.block_bytes * form.block)
    return shapes


class GgufWeights:
    """The weights of an imported model, in blocks or as float32."""

    def __init__(self, model: Path) -> None:
        self.types: dict[str, str] = read_table(model / CONFIG_FILE).get(TYPES, {})
        self._model = model
        self._stored = StoredWeights.of_model(model)

    def blocks(self, name: str) -> Blocks:
        """A weight in blocks.

        Raises:
            UserError: the blocks are damaged.
        """
        try:
            return read_blocks(self.types[name], self._stored.read_bytes(name))
        except ValueError as error:
            raise UserError(f"{name}: {error}", remedy="download the file again") from error

    def read(self, name: str) -> F32:
        """A weight as float32."""
        return self.blocks(name).dequantized() if name in self.types else self._stored.read(name)

    def layout(self, sources: Mapping[str, Sequence[str]]) -> dict[str, tuple[Segment, ...]]:
        """The parameters that can stay in blocks.

        A parameter of which one weight is in blocks and another is not becomes float32.

        Args:
            sources: the weights of each parameter, one below the other.
        """
        found = {}
        for param, names in sources.items():
            if not all(name in self.types for name in names):
                continue
            segments: list[Segment] = []
            for name in names:
                one = self._segment(name)
                if segments and segments[-1].format == one.format:
                    before = segments.pop()
                    rows, sum_of = before.rows + one.rows, before.sources + one.sources
                    one = Segment(rows, one.inputs, one.format, sum_of)
                segments.append(one)
            found[param] = tuple(segments)
        return found

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return logical_shapes(self._model, self._stored)

    def _segment(self, name: str) -> Segment:
        rows, inputs = self._shapes[name]
        return Segment(rows, inputs, gguf_formats()[self.types[name]], (name,))

    def params(self, layout: Layout) -> Iterator[tuple[str, Part]]:
        """Names and values of what the library reads for the parameters of a layout."""
        for param, segments in layout.items():
            for i, segment in enumerate(segments):
                packed = [self.blocks(name).packed() for name in segment.sources]
                for part in segment.format.parts:
                    values = np.concatenate([each[part] for each in packed])
                    yield f"{param.removesuffix(WEIGHT)}.{part}_{i}", values


def part_names(layout: Layout) -> list[str]:
    """Names of what the library reads for the parameters of a layout."""
    return [
        f"{param.removesuffix(WEIGHT)}.{part}_{i}"
        for param, segments in layout.items()
        for i, segment in enumerate(segments)
        for part in segment.format.parts
    ]


def tables(layout: Layout) -> dict[str, list[dict[str, Any]]]:
    """The layout as the configuration of the passes has it (``stored``)."""
    return {param: [segment.table() for segment in segments] for param, segments in layout.items()}


def rows_and_blocks(layout: Layout) -> dict[str, tuple[tuple[int, int], ...]]:
    """Of each parameter, rows and inputs of a block of its segments."""
    return {
        param: tuple((segment.rows, segment.format.block) for segment in segments)
        for param, segments in layout.items()
    }


def whole_param(param: str, segments: Sequence[Segment], read: Callable[[str], Any]) -> F32:
    """A parameter in blocks as float32; ``read`` gives a part that the library reads, by name."""
    stem, rows = param.removesuffix(WEIGHT), []
    for i, segment in enumerate(segments):
        parts = {part: read(f"{stem}.{part}_{i}") for part in segment.format.parts}
        rows.append(Blocks.of_parts(segment.format, parts).dequantized())
    return np.concatenate(rows)
