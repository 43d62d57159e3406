# SPDX-License-Identifier: Apache-2.0
"""Parameters of a model whose weights stay in the blocks of its GGUF file.

The imported model's ``config.json`` lists the weights in blocks (``gguf_types``); the safetensors
files hold the blocks' bytes. A parameter of the library joins the rows of one or several weights.
It is stored in segments, which are runs of rows in one format: ``<layer>.<part>_<segment>``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosslab.errors import UserError
from crosslab.models.config import read_table
from crosslab.models.gguf_formats import FILE_TYPES, Blocks, GgufFormat, Part, read_blocks
from crosslab.models.weights_file import F32, StoredWeights

CONFIG_FILE = "config.json"
TYPES = "gguf_types"
WEIGHT = ".weight"


@dataclass(frozen=True)
class Segment:
    """Neighbouring rows of a parameter that have the same format.

    Attributes:
        rows: number of rows; of each expert in a mixture.
        inputs: number of weights in a row.
        format: format of the weights.
        sources: Hugging Face's names of the weights that the rows come from; the names of all
            experts' weights together.
    """

    rows: int
    inputs: int
    format: GgufFormat
    sources: tuple[tuple[str, ...], ...]

    def table(self) -> dict[str, Any]:
        """Return the segment as a table in the configuration of the compiler passes."""
        parts = [
            {"name": name, "columns": round(each * self.inputs), "item": np.dtype(dtype).itemsize}
            for name, (each, dtype) in self.format.parts.items()
        ]
        name, block = self.format.name.lower(), self.format.block
        return {"rows": self.rows, "format": name, "block": block, "parts": parts}


def joined(matrices: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the only array of a list, or all matrices of experts as [experts, rows, columns]."""
    return np.stack(matrices) if len(matrices) > 1 else matrices[0]


Layout = Mapping[str, tuple[Segment, ...]]
"""Segments of each parameter that stays in blocks, by the parameter's name."""


def _stored_types(model: Path) -> dict[str, str]:
    """Return the format of each weight in blocks, by the weight's name.

    Raises:
        UserError: the config's table of formats is malformed.
    """
    path = model / CONFIG_FILE
    types = read_table(path).get(TYPES, {})
    if not isinstance(types, dict) or not set(map(str, types.values())) <= FILE_TYPES.keys():
        raise UserError(f"{path}: {TYPES} is not a table of formats: {str(types)[:80]}")
    return types


def logical_shapes(model: Path, stored: StoredWeights) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight of an imported model, in weights rather than block bytes."""
    types = _stored_types(model)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape, _ in stored.shapes():
        shapes[name] = shape
        if name in types:
            shapes[name] = (shape[0], FILE_TYPES[types[name]].inputs_of(shape[1]))
    return shapes


class GgufWeights:
    """The weights of an imported model, each in blocks or as float32."""

    def __init__(self, model: Path) -> None:
        self.types = _stored_types(model)
        self._model = model
        self._stored = StoredWeights.of_model(model)

    def blocks(self, name: str) -> Blocks:
        """Read a weight that is stored in blocks.

        Raises:
            UserError: the blocks are damaged.
        """
        try:
            return read_blocks(self.types[name], self._stored.read_bytes(name))
        except ValueError as error:
            raise UserError(f"{name}: {error}", remedy="download the file again") from error

    def read(self, name: str) -> F32:
        """Read a weight, named as by Hugging Face, as float32; dequantize one in blocks.

        Raises:
            UserError: the weight is missing, or its blocks are damaged.
        """
        return self.blocks(name).dequantized() if name in self.types else self._stored.read(name)

    def layout(
        self, sources: Mapping[str, Sequence[Sequence[str]]]
    ) -> dict[str, tuple[Segment, ...]]:
        """Return the segments of each parameter that can stay in blocks.

        A parameter with weights in blocks and other weights becomes float32.

        Args:
            sources: names of each parameter's weights, in the order of its rows; the names of all
                experts' weights together.
        """
        layout = {}
        for param, rows in sources.items():
            kinds = [{self.types.get(name) for name in names} for names in rows]
            if not all(len(kind) == 1 and None not in kind for kind in kinds):
                continue
            segments: list[Segment] = []
            for names in rows:
                segment = self._segment(tuple(names))
                if segments and segments[-1].format == segment.format:
                    before = segments.pop()
                    count, both = before.rows + segment.rows, before.sources + segment.sources
                    segment = Segment(count, segment.inputs, segment.format, both)
                segments.append(segment)
            layout[param] = tuple(segments)
        return layout

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes by Hugging Face's name of the weight; of a weight in blocks: rows and inputs."""
        return logical_shapes(self._model, self._stored)

    def _segment(self, names: tuple[str, ...]) -> Segment:
        rows, inputs = self.shapes[names[0]]
        return Segment(rows, inputs, FILE_TYPES[self.types[names[0]]].stored_as, (names,))

    def params(self, layout: Layout) -> Iterator[tuple[str, Part]]:
        """Yield name and values of each stored part of a layout's parameters."""
        for param, segments in layout.items():
            for i, segment in enumerate(segments):
                packed = [
                    [self.blocks(name).packed() for name in names] for names in segment.sources
                ]
                for part in segment.format.parts:
                    rows = [joined([one[part] for one in matrices]) for matrices in packed]
                    values = np.concatenate(rows, axis=-2)
                    yield f"{param.removesuffix(WEIGHT)}.{part}_{i}", values


def matrix_types(model: Path) -> Iterator[tuple[str, int, int, str]]:
    """Yield name, rows, inputs and ggml's type of each matrix; "F32" if it is not in blocks."""
    types: Mapping[str, str] = read_table(model / CONFIG_FILE).get(TYPES, {})
    for name, shape in logical_shapes(model, StoredWeights.of_model(model)).items():
        if len(shape) == 2:
            yield name, shape[0], shape[1], types.get(name, "F32")


def part_names(layout: Layout) -> list[str]:
    """Return the names of all stored parts of a layout's parameters."""
    return [
        f"{param.removesuffix(WEIGHT)}.{part}_{i}"
        for param, segments in layout.items()
        for i, segment in enumerate(segments)
        for part in segment.format.parts
    ]


def tables(layout: Layout) -> dict[str, list[dict[str, Any]]]:
    """Return the layout as the field ``stored`` of the configuration of the compiler passes."""
    return {param: [segment.table() for segment in segments] for param, segments in layout.items()}


def rows_and_blocks(layout: Layout) -> dict[str, tuple[tuple[int, int], ...]]:
    """Return (rows, inputs of a block) of each segment, by the parameter's name."""
    return {
        param: tuple((segment.rows, segment.format.block) for segment in segments)
        for param, segments in layout.items()
    }


def whole_param(param: str, segments: Sequence[Segment], read: Callable[[str], Any]) -> F32:
    """Return a parameter stored in blocks as float32; ``read`` reads a stored part by name."""
    stem, rows = param.removesuffix(WEIGHT), []
    for i, segment in enumerate(segments):
        parts = {part: read(f"{stem}.{part}_{i}") for part in segment.format.parts}
        before = parts["quants"].shape[:-1]
        flat = {part: values.reshape(-1, values.shape[-1]) for part, values in parts.items()}
        whole = Blocks.of_parts(segment.format, flat).dequantized()
        rows.append(whole.reshape(*before, segment.inputs))
    return np.concatenate(rows, axis=-2)
