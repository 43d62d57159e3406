# SPDX-License-Identifier: Apache-2.0
"""A model's products on a device: lowered, proved, run, timed, and compared with the estimate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from accelerator import functional
from accelerator.device import Device
from accelerator.errors import AcceleratorError
from accelerator.extension.lowering import ExtensionProgram
from accelerator.functional import Counts
from accelerator.isa.instructions import Queue
from accelerator.layer import (
    EXACT,
    Int32,
    Layer,
    LinearLayer,
    Pooling,
    Requantisation,
    named_apart,
)
from accelerator.lowering import lower
from accelerator.mapping import best
from accelerator.pooling import pool
from accelerator.program import MappingCost, Program
from accelerator.timing import Cause, Timing, simulate
from costmodel.estimate.product import Role
from costmodel.estimate.workload import Item, Phase


@dataclass(frozen=True)
class StudiedLayer:
    """A layer's program on a device, its predicted cost and its simulated times.

    Attributes:
        count: number of such layers in the model.
        predicted: by the cost model; timing: simulated, with the same mapping.
        single: simulated with the same tiles in one half of each buffer, without overlap.
    """

    layer: Layer
    count: int
    program: Program
    predicted: MappingCost
    timing: Timing
    single: Timing

    @property
    def cycle_error(self) -> float:
        """The relative error of the predicted cycles against the simulated cycles."""
        return self.predicted.cycles / self.timing.cycles - 1

    @property
    def useful(self) -> float:
        """The layer's multiply-accumulates a cycle, relative to the GEMM core's peak."""
        return self.layer.macs / (self.timing.cycles * self.program.device.peak)


def products(
    phase: Phase, requantisation: Requantisation = EXACT, attention: bool = True
) -> list[tuple[LinearLayer, int]]:
    """Return the distinct products of a phase, and the count of each.

    The second product of a kind is named ``KIND 2``.

    Attention has a product of queries by keys and a product of probabilities by values for each
    head of keys and values, whose ``rows`` are the queries that share the head. Their results are
    exact sums, as the softmax between them is in floats; so are those of other products without
    weights, such as attention's without a cache.

    Args:
        phase: of a model.
        requantisation: form of the results of linear layers.
        attention: include products without weights.
    """
    counts: dict[LinearLayer, int] = {}
    for item in phase.items:
        gemm, linear = item.gemm, _is_linear(item)
        if linear or attention:
            form = requantisation if linear else EXACT
            layer = LinearLayer(item.kind, gemm.m, gemm.n, gemm.k, form, linear)
            counts[layer] = counts.get(layer, 0) + item.count * gemm.batch
    return named_apart(counts)


def not_lowered(phase: Phase, attention: bool) -> list[str]:
    """Return a line for each kind of product of a phase that :func:`products` leaves out.

    Calls of unknown work follow. A line has the count and, for a call, the reason.
    """
    left = Counter[str]()
    for item in phase.items:
        if not attention and not _is_linear(item):
            left[item.kind] += item.count * item.gemm.batch
    return [*(f"{kind} x{count}" for kind, count in left.items()), *phase.unclassified]


def _is_linear(item: Item) -> bool:
    return item.gemm.weight and item.gemm.role is Role.PRODUCT


def study(layer: Layer, count: int, device: Device) -> StudiedLayer:
    """Lower a layer with the best mapping and simulate its time.

    Raises:
        AcceleratorError: no mapping fits the device.
    """
    if isinstance(layer, Pooling):
        program, predicted = pool(layer, device)
        single, _ = pool(layer, device, halves=1)
    else:
        predicted = best(layer, device)
        program = lower(layer, predicted.mapping, device)
        single = lower(layer, replace(predicted.mapping, halves=1), device)
    return StudiedLayer(
        layer,
        count,
        program,
        predicted,
        simulate(program.instructions, device),
        simulate(single.instructions, device),
    )


def execute(
    program: Program | ExtensionProgram, operands: tuple[Any, ...], proved: bool = False
) -> tuple[Int32, Counts]:
    """Run a program on operands; return its result and the counts of the run.

    Args:
        program: to run.
        operands: in the shapes of the layer's ``operands``.
        proved: check the stream, and compare the result with integer numpy.

    Raises:
        AcceleratorError: the stream has a fault, or a result differs; the exit code is 1, since
            the lowering made the stream, not the user.
    """
    memory = program.image(*operands)
    unit = program.unit if isinstance(program, ExtensionProgram) else program.device
    where = f"{program.layer.name} on {unit.name}"
    try:
        if proved and isinstance(program, Program):
            _ = program.proved
        counts = functional.run(unit, program.stream, memory)
    except AcceleratorError as error:
        raise AcceleratorError(f"{where}: {error.what}", exit_code=1) from error
    found = program.result(memory)
    wrong = int((found != program.layer.reference(*operands)).sum()) if proved else 0
    if wrong:
        raise AcceleratorError(f"{where}: {wrong} results differ from numpy's", exit_code=1)
    return found, counts


def prove(program: Program | ExtensionProgram, seed: int = 0) -> Counts:
    """Check a program on random operands, as :func:`execute` does; return the counts of the run."""
    return execute(program, program.layer.operands(seed), proved=True)[1]


def utilisation(studied: Iterable[StudiedLayer], single: bool = False) -> float:
    """Return the part of all cycles in which the core multiplies; ``single``: without overlap."""
    parts = spent((e.count, e.single if single else e.timing) for e in studied)
    return parts[Queue.COMPUTE.name].get(Cause.MULTIPLY, 0.0)


def spent(timings: Iterable[tuple[int, Timing]]) -> dict[str, dict[str, float]]:
    """Return the part of all cycles by queue and cause, without causes of zero cycles.

    ``timings`` has the count and the timing of each layer.
    """
    listed = list(timings)
    total = sum(count * timing.cycles for count, timing in listed)
    parts: dict[str, dict[str, float]] = {}
    for queue in Queue:
        causes = {
            cause.value: sum(count * timing.spent[queue][cause] for count, timing in listed) / total
            for cause in Cause
        }
        parts[queue.name] = {cause: part for cause, part in causes.items() if part > 0}
    return parts
