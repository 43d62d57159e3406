# SPDX-License-Identifier: Apache-2.0
"""The cost model's bytes and cycles of a layer under a mapping; the search for the best mapping.

:mod:`costmodel.estimate` computes the tiles, the bytes of DRAM and the overlap of tiles; the
device's description gives the time of a tile on the cores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from accelerator.device import Device, MemoryId
from accelerator.errors import AcceleratorError
from accelerator.layer import LinearLayer
from accelerator.program import HALVES, Mapping, room_of, taken
from costmodel.accelerator.hardware import Level
from costmodel.accelerator.scheme import Scheme
from costmodel.estimate.pipeline import Steps, duration, many_steps
from costmodel.estimate.tiling import sizes

BITS = 8
Array = npt.NDArray[np.int64]
_COLUMNS, _ROWS = (1, 0, 2), (0, 1, 2)  # loops over m, n, k, outermost first


@dataclass(frozen=True)
class MappingCost:
    """The cost model's bytes of DRAM and cycles for a layer under a mapping."""

    mapping: Mapping
    bytes: int
    cycles: float


def predict(layer: LinearLayer, mapping: Mapping, device: Device) -> MappingCost:
    """Return the cost model's bytes and cycles of a layer under a mapping."""
    return _predictions(layer, [mapping], device)[0]


@lru_cache(maxsize=256)
def best(layer: LinearLayer, device: Device, weights: tuple[int, int] | None = None) -> MappingCost:
    """Return the mapping with the fewest predicted cycles, then the fewest bytes.

    Args:
        layer: the layer to map.
        device: the device that multiplies.
        weights: the outputs and inputs of a tile, in blocks, that the mapping must have; None:
            any.

    Raises:
        AcceleratorError: no tile fits the device's buffers.
    """
    blocks = layer.blocks(device)
    sides = [np.array(sizes(extent, 1), dtype=np.int64) for extent in blocks]
    if weights is not None:
        sides[1:] = [np.array([side], dtype=np.int64) for side in weights]
    m, n, k = (grid.ravel() for grid in np.meshgrid(*sides, indexing="ij"))
    needs = taken(m, n, k, HALVES).items()
    fits = np.all([count <= room_of(memory, device) for memory, count in needs], axis=0)
    # The previous tile's bytes leave between steps; with fewer steps the cores wait for STORE.
    enough = fits & (-(-blocks[2] // k) >= min(layer.requantisation.width, blocks[2]))
    places = np.flatnonzero(enough if enough.any() else fits)
    if not len(places):
        raise AcceleratorError(f"{layer.name}: no tile fits {device.name}")
    mappings = [
        Mapping(int(m[at]), int(n[at]), int(k[at]), rows) for at in places for rows in (False, True)
    ]
    return min(_predictions(layer, mappings, device), key=lambda p: (p.cycles, p.bytes))


def alu_steps(layer: LinearLayer) -> int:
    """Return the ALU operations on each accumulator: rounding, shift, saturation, byte shifts."""
    form = layer.requantisation
    saturation = 2 if form.saturates(layer.inputs) else 0
    return (2 if form.shift else 0) + saturation + form.width - 1


def _predictions(layer: LinearLayer, mappings: list[Mapping], device: Device) -> list[MappingCost]:
    """Return the cost of a layer under each of ``mappings``, which have equal ``halves``."""
    block = (device.batch, device.outputs, device.inputs)
    extents = tuple(b * side for b, side in zip(layer.blocks(device), block, strict=True))
    tiles = [
        np.array([getattr(each, name) for each in mappings], dtype=np.int64) * side
        for name, side in zip(("rows", "outputs", "inputs"), block, strict=True)
    ]
    orders = np.array([_ROWS if each.rows_outermost else _COLUMNS for each in mappings]).T
    # Only scales stay on the CPU: operands are int8, results have the requantisation's width.
    scheme = Scheme("w8a8", BITS, BITS, 4 * BITS, BITS * layer.requantisation.width)
    region = (extents[0], extents[1], extents[2], True, True)

    def listed(*left_out: str) -> Steps:
        return many_steps(region, tiles, orders, scheme, frozenset(left_out))

    whole, values, weights = listed(), listed("B", "C"), listed("A", "C")
    bits = BITS * device.dram_bandwidth
    dram = Level("dram", None, bits, bits, device.dram_latency, 0.0, 0.0, shared=True)
    # A queue begins a transfer when its previous transfer ends: latency counts as bus time.
    latency = device.dram_latency * bits
    fetches = 1 * (values.fetched > 0) + (weights.fetched > 0)
    following = 1 * (values.following > 0) + (weights.following > 0)
    # The bytes of a tile leave one by one during the steps of the next tile; the last tile's wait.
    trips = [-(-extent // tile) for extent, tile in zip(extents, tiles, strict=True)]
    tiled = trips[0] * trips[1]
    leaving = whole.m * whole.n * scheme.output * (tiled - 1) / (tiled * trips[2])
    stores = layer.requantisation.width * (whole.stored > 0)
    delayed = replace(
        whole,
        fetched=whole.fetched + latency * fetches,
        following=whole.following + latency * following,
        stored=whole.stored + latency * stores,
        before=leaving,
    )
    overlap = mappings[0].halves > 1
    cycles = duration(delayed, _core_cycles(whole, layer, device), dram, overlap, 1)
    moved = whole.read + whole.write
    if overlap:
        begin, second = (
            (delayed.first * dram.cycles(moves, 0)).sum(axis=0)
            for moves in (delayed.fetched, delayed.following)
        )
        cycles = np.maximum(cycles, _storing(layer, device, tiled, moved / bits, begin, second))
    element = device.element(MemoryId.MICRO_OP)
    return [
        MappingCost(each, int(b) // BITS + each.outputs * each.halves**3 * element, float(c))
        for each, b, c in zip(mappings, moved, cycles, strict=True)
    ]


def _storing(
    layer: LinearLayer, device: Device, tiles: Array, moving: Array, begin: Array, second: Array
) -> Array:
    """Return each mapping's cycles if only the shifts between a tile's bytes interrupt STORE.

    The ALU shifts sums in the buffer that STORE reads, so the two take turns. This bounds layers
    with few inputs, such as attention's scores. Loads share the memory with the stores.

    Args:
        layer: the layer to map.
        device: the device that multiplies.
        tiles: of the result, for each mapping.
        moving: cycles in which the memory moves all bytes, for each mapping.
        begin: cycles of the first fetch, for each mapping.
        second: cycles of the second fetch, for each mapping.
    """
    down, across, deep = layer.blocks(device)
    sums, width = down * across, layer.requantisation.width
    stored = sums * device.element(MemoryId.OUTPUT) * width / device.dram_bandwidth
    shifts = sums * (width - 1) * device.alu_immediate
    rounding = sums * alu_steps(layer) * device.alu_immediate - shifts
    multiplies = sums * deep * device.gemm_interval
    # Two transfers at once get half the bandwidth each, never less. Loads come evenly, also while
    # the core multiplies.
    later = np.maximum(moving - stored - begin, 0)
    waits = tiles * width * device.dram_latency
    shared = np.minimum(later * stored / (stored + shifts + waits + multiplies), stored)
    # The core multiplies the second tile before it shifts the first one's sums.
    ahead = np.where(tiles * deep > 1, second - stored / (tiles * width) - device.dram_latency, 0)
    first = begin + (multiplies + rounding) / tiles + (width > 1) * np.maximum(ahead, 0)
    cycles: Array = stored + waits + shifts + shared + first
    return cycles


def _core_cycles(listed: Steps, layer: LinearLayer, device: Device) -> Array:
    """Return the cycles of the GEMM core and the ALU for the tile of each step."""
    m, n, k = listed.m // device.batch, listed.n // device.outputs, listed.k // device.inputs
    sums = m * n * device.gemm_interval
    again = np.where(k > 1, np.maximum(sums, device.gemm_latency), sums)
    alu = m * n * alu_steps(layer) * device.alu_immediate
    cycles: Array = k * again + device.gemm_latency - 1 + listed.new * sums + listed.done * alu
    return cycles
