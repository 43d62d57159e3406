# SPDX-License-Identifier: Apache-2.0
"""The C++ source of a runner's image: the description of a device, and its layers' streams.

A layer has a stream for each of several numbers of rows; the driver chooses the streams that fit a
text best. All streams of a layer read the same weights, which have the order of tiles that is best
for :data:`USUAL_ROWS`. A CPU's matrix unit is a device without micro-ops, whose streams are
instructions of the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from accelerator.device import Device
from accelerator.extension.lowering import lower_extension
from accelerator.extension.unit import MatrixUnit
from accelerator.functional import spec_of
from accelerator.layer import LinearLayer
from accelerator.lowering import lower
from accelerator.mapping import best

CHUNK = 64
USUAL_ROWS = 32
MOST_ROWS = 128
STEP_ROWS = 8
BYTES_A_LINE = 32
UNIT_MEMORY = 1 << 40  # of a CPU, which has no limit here


@dataclass(frozen=True)
class LinkedProgram:
    """A layer's stream for a number of rows, in the form of the image.

    Attributes:
        rows: of values.
        tile_rows: blocks of rows in a tile of values.
        values_at, results_at: addresses in the stream's instructions.
        stream: encoded.
        instructions: their number in the stream.
    """

    rows: int
    tile_rows: int
    values_at: int
    results_at: int
    stream: bytes
    instructions: int


@dataclass(frozen=True)
class LayerPrograms:
    """The streams of layers of a size, by ascending rows; their weights share an order of tiles.

    Attributes:
        outputs: of the layer.
        inputs: of the layer.
        tile: blocks of outputs and of inputs in a tile of weights.
        head: the memory before the weights, equal for all programs: micro-ops.
        programs: a program for each number of rows.
    """

    outputs: int
    inputs: int
    tile: tuple[int, int]
    head: bytes
    programs: tuple[LinkedProgram, ...]


def row_counts(batch: int) -> list[int]:
    """Return the numbers of rows that get a stream: whole blocks, finer for short texts.

    The largest number is :data:`MOST_ROWS`, or ``batch`` if a block has more rows.
    """
    step = max(STEP_ROWS, batch)
    few = [rows for rows in (1, 2, 4) if rows % batch == 0]
    return [*few, *range(step, max(MOST_ROWS, step) + 1, step)]


def programs_of(outputs: int, inputs: int, device: Device | MatrixUnit) -> LayerPrograms:
    """Lower a layer for every number of rows of :func:`row_counts`.

    Raises:
        AcceleratorError: no mapping fits the device, or the layer's operands are too large.
    """
    usual = LinearLayer(f"{outputs}x{inputs}", USUAL_ROWS, outputs, inputs)
    return _of_unit(usual, device) if isinstance(device, MatrixUnit) else _of_device(usual, device)


def _of_device(usual: LinearLayer, device: Device) -> LayerPrograms:
    tile = best(usual, device).mapping
    linked, heads = [], set()
    for rows in row_counts(device.batch):
        layer = replace(usual, rows=rows)
        mapping = best(layer, device, (tile.outputs, tile.inputs)).mapping
        code = lower(layer, mapping, device)
        heads.add(bytes(code.image()[: code.weights_at]))
        at = (code.values_at, code.results_at)
        linked.append(LinkedProgram(rows, 1, *at, code.stream, len(code.instructions)))
    # Micro-ops depend on the tile of weights alone.
    (head,) = heads
    tiles = (tile.outputs, tile.inputs)
    return LayerPrograms(usual.outputs, usual.inputs, tiles, head, tuple(linked))


def _of_unit(usual: LinearLayer, unit: MatrixUnit) -> LayerPrograms:
    best_for_usual = lower_extension(usual, unit)
    wide = best_for_usual.tile[1]
    linked = []
    for rows in row_counts(unit.rows):
        code = lower_extension(replace(usual, rows=rows), unit, wide)
        at = (code.values_at, code.results_at)
        linked.append(LinkedProgram(rows, code.tile[0], *at, code.stream, len(code.words)))
    tile = (wide, best_for_usual.deep)
    return LayerPrograms(usual.outputs, usual.inputs, tile, b"", tuple(linked))


def attention_sizes(width: int) -> list[tuple[int, int]]:
    """Return outputs and inputs of attention's layers for heads of ``width``; none for 0.

    The device multiplies a cache in chunks of :data:`CHUNK` tokens.
    """
    return [(CHUNK, width), (width, CHUNK)] if width else []


def source(device: Device | MatrixUnit, layers: Iterable[LayerPrograms]) -> str:
    """Return the C++ source of the image that ``native/runtime/image.h`` declares."""
    listed = list(layers)
    lines = ['#include "runtime/image.h"', "", "namespace {", ""]
    for number, layer in enumerate(listed):
        lines += _programs(number, layer)
    lines += ["constexpr AcceleratorLayer kLayers[] = {"]
    for number, layer in enumerate(listed):
        words = ", ".join(map(str, (layer.outputs, layer.inputs, *layer.tile)))
        head = f"kHead{number}" if layer.head else "nullptr"
        code = f"kPrograms{number}, {len(layer.programs)}"
        lines.append(f"    {{{words}, {head}, {len(layer.head)}, {code}}},")
    spec = ", ".join(map(str, spec_of(device)))
    memory = UNIT_MEMORY if isinstance(device, MatrixUnit) else device.memory
    lines += [
        "};",
        "",
        "}  // namespace",
        "",
        "const AcceleratorImage mlc_rvv_accelerator_image = {",
    ]
    lines += [f'    "{device.name}", {{{spec}}}, {memory}ull,']
    lines += [f"    kLayers, {len(listed)}, {CHUNK},", "};"]
    return "\n".join([*lines, ""])


def _programs(number: int, layer: LayerPrograms) -> Iterator[str]:
    if layer.head:
        yield from _array(f"kHead{number}", layer.head)
    rows = []
    for index, program in enumerate(layer.programs):
        name = f"kStream{number}_{index}"
        yield from _array(name, program.stream)
        addresses = f"{program.values_at}ull, {program.results_at}ull"
        code = f"{name}, {program.instructions}"
        rows.append(f"    {{{program.rows}, {program.tile_rows}, {addresses}, {code}}},")
    yield f"constexpr AcceleratorProgram kPrograms{number}[] = {{"
    yield from rows
    yield "};"
    yield ""


def _array(name: str, data: bytes) -> Iterator[str]:
    yield f"constexpr std::uint8_t {name}[] = {{"
    for at in range(0, len(data), BYTES_A_LINE):
        yield "    " + "".join(f"{byte}," for byte in data[at : at + BYTES_A_LINE])
    yield "};"
