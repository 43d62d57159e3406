# SPDX-License-Identifier: Apache-2.0
"""The cost model's bytes and cycles of a layer under a mapping; the search for the best mapping.

:mod:`costmodel.estimate` computes the tiles, the bytes of DRAM and the overlap of tiles; the
device's description gives the time of a tile on the cores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from accelerator.boxes import Range, results_of, window_of
from accelerator.device import Device, MemoryId
from accelerator.errors import AcceleratorError
from accelerator.layer import Layer
from accelerator.program import HALVES, Mapping, MappingCost, fits, micro_op_counts
from costmodel.accelerator.hardware import Level
from costmodel.accelerator.scheme import Scheme
from costmodel.estimate.pipeline import Steps, duration, many_steps
from costmodel.estimate.tiling import DIMENSIONS, repeats, sizes
from costmodel.estimate.transfer import MovedBits
from costmodel.search.bounded import in_order_of_bounds

BITS = 8
BESIDE_STORES = 0.8  # part of the loads; the others run while the ALU shifts sums
Array = npt.NDArray[np.int64]
_COLUMNS, _ROWS = "nmk", "mnk"  # loops over tiles, outermost first


def predict(layer: Layer, mapping: Mapping, device: Device) -> MappingCost:
    """Return the cost model's bytes and cycles of a layer under a mapping."""
    return _Prediction(layer, [mapping], device).costs()[0]


@lru_cache(maxsize=256)
def best(layer: Layer, device: Device, weights: tuple[int, int] | None = None) -> MappingCost:
    """Return the mapping with the fewest predicted cycles, then the fewest bytes.

    Args:
        layer: the layer to map.
        device: the device that multiplies.
        weights: the outputs and inputs of a tile, in blocks, that the mapping must have; None:
            any.

    Raises:
        AcceleratorError: no tile fits the device's buffers.
    """
    shape, form = layer.geometry(device), layer.requantisation
    extents = (shape.rows.outputs, shape.columns.outputs, shape.outputs, shape.inputs)
    sides = [np.array(sizes(extent, 1), dtype=np.int64) for extent in extents]
    if weights is not None:
        sides[2:] = [np.array([side], dtype=np.int64) for side in weights]
    grid = [each.ravel() for each in np.meshgrid(*sides, indexing="ij")]
    fitting = fits(shape, form, tuple(grid), HALVES, device)
    # The previous tile's bytes leave between steps; with fewer steps the cores wait for STORE.
    enough = fitting & (-(-shape.inputs // grid[3]) >= min(form.width, shape.inputs))
    places = np.flatnonzero(enough if enough.any() else fitting)
    if not len(places):
        raise AcceleratorError(f"{layer.name}: no tile fits {device.name}")
    mappings = [
        Mapping(rows, outputs, inputs, outermost, columns=columns)
        for rows, columns, outputs, inputs in np.stack(grid, axis=1)[places].tolist()
        for outermost in (False, True)
    ]
    costs: dict[int, MappingCost] = {}

    def simulated(chosen: Array) -> list[float]:
        listed = chosen.tolist()
        predicted = _Prediction(layer, [mappings[at] for at in listed], device).costs()
        costs.update(zip(listed, predicted, strict=True))
        return [cost.cycles for cost in predicted]

    in_order_of_bounds(_Prediction(layer, mappings, device).bounds(), simulated)
    return min(costs.values(), key=lambda p: (p.cycles, p.bytes))


def alu_cycles(layer: Layer, device: Device) -> int:
    """Return the ALU's cycles for each accumulator: addition, shift, saturation, byte shifts."""
    form = layer.requantisation
    operands = 2 * form.channels + (form.residual is not None)
    residual = form.residual or 0
    immediates = 2 * (form.shift > 0) + (residual != 0) + (residual < 0)
    immediates += len(form.clips(layer.summands)) + form.width - 1
    return operands * device.alu_interval + immediates * device.alu_immediate


@dataclass
class _Prediction:
    """The cost of a layer under each of ``mappings``, which have equal ``halves``."""

    layer: Layer
    mappings: list[Mapping]
    device: Device

    def __post_init__(self) -> None:
        self.shape = self.layer.geometry(self.device)
        self.form = self.layer.requantisation
        self.bits = BITS * self.device.dram_bandwidth
        # Only scales stay on the CPU: operands are int8, results have the requantisation's width.
        width = BITS * self.form.width
        self.scheme = Scheme("w8a8", BITS, BITS, 4 * BITS, width)
        sides = np.array([each.sides for each in self.mappings], dtype=np.int64).T
        self.rows, self.columns, self.outputs, self.inputs = sides
        shape = self.shape
        extents = (shape.rows.outputs, shape.columns.outputs, shape.outputs, shape.inputs)
        self.trips = [-(-e // side) for e, side in zip(extents, sides, strict=True)]
        self.tiles = shape.bundles * self.trips[0] * self.trips[1] * self.trips[2]

    def bounds(self) -> npt.NDArray[np.float64]:
        """Return a lower bound of each mapping's cycles: the core's or memory's, the larger."""
        shape, device = self.shape, self.device
        steps = self.tiles * self.trips[3]
        work = shape.sums * shape.inputs * shape.kernel * device.gemm_interval
        work += shape.sums * (alu_cycles(self.layer, device) + device.gemm_interval)
        drains = 1 if shape.kernel == 1 else shape.kernel * self.inputs
        core = shape.bundles * work + steps * drains * (device.gemm_latency - 1)
        moved, latencies = self._operands()
        values, weights = self._fetched()
        memory = (moved + values + weights) / device.dram_bandwidth
        first = shape.rows.samples(self.rows) * shape.columns.samples(self.columns) * self.inputs
        fill = first * device.element(MemoryId.INPUT)
        fill += self.outputs * self.inputs * shape.kernel * device.element(MemoryId.WEIGHT)
        begin = fill / device.dram_bandwidth
        return np.asarray(np.maximum(core + latencies, memory) + begin, dtype=np.float64)

    def _operands(self) -> tuple[Array, Array]:
        """Return the bytes of the ALU's operands and of the results; cycles of the operands."""
        shape, device, form = self.shape, self.device, self.form
        results = shape.bundles * shape.sums * device.element(MemoryId.OUTPUT)
        pixels = self.trips[0] * self.trips[1]
        channels = 2 * shape.bundles * shape.outputs * device.element(MemoryId.ACCUMULATOR)
        loaded = pixels * channels * form.channels + results * (form.residual is not None)
        waits = self.tiles * (form.channels + (form.residual is not None)) * device.dram_latency
        return loaded + results * form.width, loaded / device.dram_bandwidth + waits

    def _fetched(self) -> tuple[Array, Array]:
        """Return the bytes of values and of weights that LOAD fetches."""
        shape, device, trips = self.shape, self.device, self.trips
        loops = dict(zip(DIMENSIONS, (trips[0] * trips[1], *trips[2:]), strict=True))
        first = np.array([each.rows_outermost for each in self.mappings])
        of_values, of_weights = (
            np.where(first, *(repeats(order, loops, operand) for order in (_ROWS, _COLUMNS)))
            for operand in "AB"
        )
        rows, columns = (
            _held(axis, side)
            for axis, side in ((shape.rows, self.rows), (shape.columns, self.columns))
        )
        values = shape.bundles * rows * columns * shape.inputs * device.element(MemoryId.INPUT)
        weights = shape.outputs * shape.inputs * shape.kernel * shape.bundles
        return values * of_values, weights * of_weights * device.element(MemoryId.WEIGHT)

    def costs(self) -> list[MappingCost]:
        """Return the bytes and cycles of each mapping."""
        shape, device = self.shape, self.device
        values, weights = self._fetched()
        operands, _ = self._operands()
        halves = self.mappings[0].halves
        counts = micro_op_counts(shape, self.form, self.outputs, self.inputs, halves)
        moved = values + weights + operands
        micro_ops = sum(counts) * device.element(MemoryId.MICRO_OP)
        cycles = self._cycles(moved)
        return [
            MappingCost(each, int(b), float(c))
            for each, b, c in zip(self.mappings, moved + micro_ops, cycles, strict=True)
        ]

    def _steps(self) -> Steps:
        """Return the steps of a bundle, in elements and in bits, with A's latencies among them."""
        shape, device = self.shape, self.device
        extents = shape.outputs * device.outputs, shape.inputs * device.inputs
        tiles = [self.rows, self.outputs * device.outputs, self.inputs * device.inputs]
        orders = [_ROWS if each.rows_outermost else _COLUMNS for each in self.mappings]
        places = [[DIMENSIONS.index(loop) for loop in order] for order in orders]
        # A position of the picture has a batch of results, and a weight each kernel position.
        scaled = replace(
            self.scheme,
            output=self.scheme.output * device.batch,
            weight=self.scheme.weight * shape.kernel,
        )
        return many_steps(
            (shape.rows.outputs, *extents, True, True),
            tiles,
            np.array(places).T,
            scaled,
            frozenset(),
            (shape.columns.outputs, self.columns, self._window),
        )

    def _window(self, row: Any, column: Any, rows: Any, columns: Any, channels: Any) -> Any:
        """Return the bits of tiles' windows; the latency of a transfer counts as bus time."""
        shape, device = self.shape, self.device
        blocks = -(-channels // device.inputs)
        whole = (self.columns, self.inputs)
        box = window_of(shape, Range(row, rows), Range(column, columns), Range(0, blocks), whole)
        data = box.rows.count * box.columns.count * channels * device.batch * BITS
        return data + box.transfers * device.dram_latency * self.bits

    def _cycles(self, moved: Array) -> Array:
        """Return the cycles of each mapping, given the bytes that it moves."""
        device, shape = self.device, self.shape
        latency = device.dram_latency
        whole = self._steps()
        dram = Level("dram", None, self.bits, self.bits, latency, 0.0, 0.0, shared=True)
        # A queue begins a transfer when its previous transfer ends: latency counts as bus time.
        begins = latency * self.bits
        fetched, following = (
            each.activation + each.weight + begins * (each.weight > 0)
            for each in (whole.fetched, whole.following)
        )
        # The bytes of a tile leave one by one during the steps of the next tile; the last's wait.
        tiled = self.tiles
        size = whole.m * whole.n * device.batch * self.scheme.output
        leaving = size * (tiled - 1) / (tiled * self.trips[3])
        stores = self._stores(whole)
        delayed = replace(
            whole,
            fetched=MovedBits(fetched),
            following=MovedBits(following),
            stored=whole.stored + begins * stores * self.form.width * (whole.stored > 0),
            before=leaving,
        )
        core, (idle, operands) = self._core_cycles(whole), self._operand_cycles(whole)
        core = core + whole.new * (idle + operands)
        if self.mappings[0].halves == 1:
            return np.asarray(duration(delayed, core, dram, False, shape.bundles))
        # Operands share the memory with the store that just began, and with loads beside them.
        loading = np.minimum(following / self.bits / np.maximum(core, 1), 1)
        shared = operands * loading + np.minimum(leaving / self.bits, operands)
        core = core + whole.new * shared
        ahead = following + whole.new * operands * self.bits
        delayed = replace(delayed, following=MovedBits(ahead))
        cycles = duration(delayed, core, dram, True, shape.bundles)
        # A tile's last multiplication frees its operands: the ALU's time hides a load more, that
        # of the next tile's second step.
        ahead = dram.cycles(ahead, leaving) - core
        second_step = whole.new & ~whole.done & ~whole.first
        last_step = whole.done & ~whole.new & ~whole.last
        waits, slack = (
            (whole.times * np.maximum(each, 0)).sum(axis=0)
            for each in (ahead * second_step, -ahead * last_step)
        )
        cycles = cycles - shape.bundles * np.minimum(waits, slack)
        begin, second = (
            (whole.first * dram.cycles(each, 0)).sum(axis=0) for each in (fetched, following)
        )
        moving = moved / device.dram_bandwidth
        return np.maximum(cycles, self._storing(moving, begin, second, stores.max(axis=0)))

    def _stores(self, listed: Steps) -> Array:
        """Return the number of transfers that store a byte of each result of a step's tile."""
        shape = self.shape
        outputs = listed.n // self.device.outputs
        rows = listed.m // np.minimum(self.columns, shape.columns.outputs)
        columns = np.broadcast_to(self.columns, np.shape(rows))
        box = results_of(shape, Range(0, np.maximum(rows, 1)), Range(0, columns), Range(0, outputs))
        return np.asarray(box.transfers)

    def _storing(self, moving: Any, begin: Any, second: Any, stores: Array) -> Array:
        """Return each mapping's cycles if only COMPUTE and STORE wait, for each other.

        STORE moves a byte of a tile's sums before the ALU shifts the next byte down. A tile's first
        byte leaves after its requantisation, the others between the steps of the next tile. Three
        tiles of mean size show the time of a tile; loads share the memory with the stores.

        Args:
            moving: cycles in which the memory moves all bytes, for each mapping.
            begin: cycles of the first fetch, for each mapping.
            second: cycles of the second fetch, for each mapping.
            stores: transfers of a byte of a tile.
        """
        leaving = self.shape.bundles * self.shape.sums / self.tiles
        leaving *= self.device.element(MemoryId.OUTPUT) / self.device.dram_bandwidth
        later = np.maximum(moving - self.tiles * self.form.width * leaving - begin, 0)
        alone = self._stored(leaving, second, stores)
        # Two transfers at once get half the bandwidth each, never less.
        shared = leaving * (1 + BESIDE_STORES * np.minimum(later / alone, 1))
        cycles: Array = begin + self._stored(shared, second, stores)
        return cycles

    def _stored(self, leaving: Any, second: Any, stores: Array) -> Any:
        """Return the cycles from first step to last store; ``leaving``: to move a tile's byte."""
        device, shape, tiles, width = self.device, self.shape, self.tiles, self.form.width
        sums = shape.bundles * shape.sums / tiles
        move = leaving + stores * device.dram_latency
        shift = sums * device.alu_immediate
        narrow = sums * alu_cycles(self.layer, device) - (width - 1) * shift
        # More steps than these leave no more time between the bytes.
        steps = np.minimum(self.trips[3], 2 * width)
        work = sums * shape.inputs * shape.kernel * device.gemm_interval
        work = (work + self.trips[3] * (device.gemm_latency - 1)) / steps
        ends = []
        core = store = np.zeros(len(self.mappings))
        for tile in range(3):
            core = core + sums * device.gemm_interval
            due = np.zeros(len(self.mappings))
            for step in range(1, int(steps.max()) + 1):
                if (tile, step) in ((0, 2), (1, 1)):
                    core = np.where(steps >= step, np.maximum(core, second), core)
                core = core + work * (step <= steps)
                wanted = np.minimum(width - 1, -(-step * width // steps)) * (tile > 0)
                for byte in range(1, width):
                    leaves = (due < byte) & (byte <= wanted)
                    core = np.where(leaves, np.maximum(core, store) + shift, core)
                    store = np.where(leaves, np.maximum(core, store) + move, store)
                due = wanted
            core = core + narrow
            store = np.maximum(core, store) + move
            ends.append(store + (width - 1) * (shift + move))
        return np.choose(np.minimum(tiles, 3) - 1, ends) + np.maximum(tiles - 3, 0) * (
            ends[2] - ends[1]
        )

    def _core_cycles(self, listed: Steps) -> Array:
        """Return the cycles of the COMPUTE queue for the tile of each step."""
        device, shape = self.device, self.shape
        outputs, k = listed.n // device.outputs, listed.k // device.inputs
        pixels = listed.m
        sums = pixels * outputs * device.gemm_interval
        if shape.kernel == 1:
            again = np.where(k > 1, np.maximum(sums, device.gemm_latency), sums)
            work = k * again + device.gemm_latency - 1
        else:
            work = k * shape.kernel * (sums + device.gemm_latency - 1)
        # The ALU shifts a byte down for each store but the first, between the next tile's steps.
        between = (self.form.width - 1) * device.alu_immediate
        spread = between * (self.tiles - 1) / (self.tiles * self.trips[3])
        alu = listed.done * (alu_cycles(self.layer, device) - between) + listed.last * between
        cycles: Array = work + listed.new * sums + pixels * outputs * (spread + alu)
        return cycles

    def _operand_cycles(self, listed: Steps) -> tuple[Array, Array]:
        """Return the cycles of latency to load the ALU's operands of a tile, and to move them."""
        device, form = self.device, self.form
        outputs = listed.n // device.outputs
        waits = form.channels * device.dram_latency + np.zeros_like(outputs)
        size = form.channels * 2 * outputs * device.element(MemoryId.ACCUMULATOR)
        if form.residual is not None:
            waits = waits + self._stores(listed) * device.dram_latency
            size = size + listed.m * outputs * device.element(MemoryId.OUTPUT)
        return waits, size / device.dram_bandwidth


def _held(axis: Any, tile: Array) -> Array:
    """Return the samples inside the picture that all tiles of a size fetch, for each size."""
    totals = {}
    for side in np.unique(tile).tolist():
        at = np.arange(0, axis.outputs, side)
        span = axis.span(at, np.minimum(side, axis.outputs - at))
        totals[side] = int(span.count.sum())
    return np.array([totals[side] for side in tile.tolist()], dtype=np.int64)
