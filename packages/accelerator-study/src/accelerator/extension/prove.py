# SPDX-License-Identifier: Apache-2.0
"""Proof of a layer's program for a matrix unit: a run on random operands, compared with numpy."""

from __future__ import annotations

from accelerator.errors import AcceleratorError
from accelerator.extension.functional import ExtensionCounts, run
from accelerator.extension.lowering import ExtensionProgram, lower_extension
from accelerator.extension.unit import MatrixUnit
from accelerator.layer import LinearLayer


def prove_extension(
    layer: LinearLayer, unit: MatrixUnit, seed: int = 0
) -> tuple[ExtensionProgram, ExtensionCounts]:
    """Lower a layer, simulate its program, and compare the sums with integer numpy.

    Returns:
        the program, and the counts of its run.

    Raises:
        AcceleratorError: a sum differs, or the simulator refuses the program; the exit code is 1,
            since the lowering made the program, not the user.
    """
    program = lower_extension(layer, unit)
    values, weights = layer.operands(seed)
    memory = program.image(values, weights)
    where = f"{layer.name} on {unit.name}"
    try:
        counts = run(unit, program.stream, memory)
    except AcceleratorError as error:
        raise AcceleratorError(f"{where}: {error.what}", exit_code=1) from error
    wrong = int((program.result(memory) != layer.reference(values, weights)).sum())
    if wrong:
        raise AcceleratorError(f"{where}: {wrong} sums differ from numpy's", exit_code=1)
    return program, counts
