# SPDX-License-Identifier: Apache-2.0
"""The part of a program that drives a device: its description and streams, as C++ source.

A layer has a stream for each of several numbers of rows; what drives the device takes for a text
the one that fits best, or several. They all read the same weights, so that these have one order
of tiles: that of the mapping which is best for :data:`USUAL_ROWS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from accelerator.device import Device
from accelerator.functional import spec_of
from accelerator.isa.encoding import encode_micro_ops
from accelerator.layer import LinearLayer
from accelerator.lowering import Program, lower
from accelerator.mapping import best

CHUNK = 64
USUAL_ROWS = 32
MOST_ROWS = 128
STEP_ROWS = 8
BYTES_A_LINE = 32


@dataclass(frozen=True)
class LayerPrograms:
    """Streams of layers of one size, fewest rows first, whose weights lie in equal tiles."""

    outputs: int
    inputs: int
    programs: tuple[Program, ...]


def row_counts(device: Device) -> list[int]:
    """Rows that streams are made for: whole blocks, close together where texts are short."""
    step = max(STEP_ROWS, device.batch)
    few = [rows for rows in (1, 2, 4) if rows % device.batch == 0]
    return [*few, *range(step, MOST_ROWS + 1, step)]


def programs_of(outputs: int, inputs: int, device: Device) -> LayerPrograms:
    """Lower a layer for every number of rows.

    Raises:
        AcceleratorError: no mapping fits the device.
    """
    name = f"{outputs}x{inputs}"
    usual = best(LinearLayer(name, USUAL_ROWS, outputs, inputs), device).mapping
    made = []
    for rows in row_counts(device):
        layer = LinearLayer(name, rows, outputs, inputs)
        mapping = best(layer, device, (usual.outputs, usual.inputs)).mapping
        made.append(lower(layer, mapping, device))
    return LayerPrograms(outputs, inputs, tuple(made))


def attention_sizes(width: int) -> list[tuple[int, int]]:
    """Outputs and inputs of attention's layers for heads of a width; none for 0.

    A cache is taken to the device in chunks of :data:`CHUNK` tokens.
    """
    return [(CHUNK, width), (width, CHUNK)] if width else []


def source(device: Device, layers: Iterable[LayerPrograms]) -> str:
    """C++ source of the image that ``accelerators/runtime/image.h`` declares."""
    listed = list(layers)
    lines = ['#include "runtime/image.h"', "", "namespace {", ""]
    for number, layer in enumerate(listed):
        lines += _programs(number, layer)
    lines += ["constexpr AcceleratorLayer kLayers[] = {"]
    for number, layer in enumerate(listed):
        tile = layer.programs[0].mapping
        sizes = (layer.outputs, layer.inputs, tile.outputs, tile.inputs)
        words = ", ".join(map(str, sizes))
        lines.append(f"    {{{words}, kPrograms{number}, {len(layer.programs)}}},")
    spec = ", ".join(map(str, spec_of(device)))
    lines += [
        "};",
        "",
        "}  // namespace",
        "",
        "const AcceleratorImage mlc_rvv_accelerator_image = {",
    ]
    lines += [f'    "{_escaped(device.name)}", {{{spec}}}, {device.memory}ull,']
    lines += [f"    kLayers, {len(listed)}, {CHUNK},", "};"]
    return "\n".join([*lines, ""])


def _programs(number: int, layer: LayerPrograms) -> Iterator[str]:
    rows = []
    for place, program in enumerate(layer.programs):
        micro_ops = encode_micro_ops(program.micro_ops, program.device)
        parts = (("kMicroOps", micro_ops), ("kStream", program.stream))
        for name, data in parts:
            yield f"constexpr std::uint8_t {name}{number}_{place}[] = {{"
            yield from _bytes(data)
            yield "};"
        at = (program.micro_ops_at, program.weights_at, program.values_at, program.results_at)
        addresses = ", ".join(f"{address}ull" for address in at)
        names = f"kMicroOps{number}_{place}, {len(micro_ops)}, kStream{number}_{place}"
        count = len(program.instructions)
        rows.append(f"    {{{program.layer.rows}, {addresses}, {names}, {count}}},")
    yield f"constexpr AcceleratorProgram kPrograms{number}[] = {{"
    yield from rows
    yield "};"
    yield ""


def _bytes(data: bytes) -> Iterator[str]:
    for at in range(0, len(data), BYTES_A_LINE):
        yield "    " + "".join(f"{byte}," for byte in data[at : at + BYTES_A_LINE])


def _escaped(text: str) -> str:
    """Text for a C string: printable ASCII, as a name in a message."""
    return "".join(
        c if c.isalnum() or c in "-_. " else "?" for c in text.encode("ascii", "replace").decode()
    )
