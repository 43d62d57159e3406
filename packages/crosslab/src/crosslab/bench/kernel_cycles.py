# SPDX-License-Identifier: Apache-2.0
"""``crosslab kernel-cycles``: cycles of each kernel by unit of a core.

Each kernel runs once under the counter. Its cycles are compared with the lower bound by the core's
table (:mod:`crosslab.cores.lower_bound`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from crosslab.assemble.kernels import IME_STAND_IN, read_kernels
from crosslab.assemble.recipe_options import recipe_options
from crosslab.bench.kernel_bench import Case, attention_case, build, count
from crosslab.cores import lower_bound
from crosslab.cores.core import Core, core_option
from crosslab.cores.cycles import Cycles
from crosslab.cores.lower_bound import CycleBound
from crosslab.cores.pipeline import all_cycles
from crosslab.models.formats import int8_kernels, packings
from crosslab.run.decode import Unit
from groundwork.command_line import Parser

# Rows, outputs, inputs: rows of a prompt, and a few rows.
SIZES = ((128, 768, 256), (128, 256, 688), (7, 960, 576), (4, 768, 256))
SINGLE = ((1, 768, 256), (1, 576, 1536))
# GGUF formats with different lengths of sums; their blocks have up to 256 inputs.
GGUF = ("q4_0", "q8_0", "q4_k", "q6_k")
GGUF_SIZES = ((128, 768, 256), (7, 960, 768), (1, 768, 256), (1, 576, 1536))
DEFAULT_CORE = (core_option("spacemit-x60"),)
# Widths of attention heads.
DIMENSIONS = (48, 64, 128)


@dataclass(frozen=True)
class KernelCycles:
    """Cycles of a kernel call, the lower bound of each unit, and executed instructions."""

    cycles: Cycles
    bound: CycleBound
    insns: int

    @property
    def ratio(self) -> float:
        """Vec-serial cycles divided by the lower bound of vec-serial cycles."""
        return self.cycles.vec_serial / self.bound.vec_serial


def tiled_cases() -> Iterator[Case]:
    """Yield the calls to measure: linear layers (tiles, int8, GGUF), then attention's kernels."""
    for weights, packing in packings().items():
        yield from (Case(f"gemm_{weights}_tiles", sizes) for sizes in SIZES)
        kind = "gemv" if packing else "gemm"
        yield from (Case(f"{kind}_{weights}_tiles", sizes) for sizes in SINGLE)
    for weights in sorted(int8_kernels()):
        yield from (Case(f"gemm_{weights}_int8", sizes) for sizes in (*SIZES, *SINGLE))
    yield from (Case(f"gemm_gguf_{name}", sizes) for name in GGUF for sizes in GGUF_SIZES)
    yield from (attention_case(kernel) for kernel in read_kernels() if kernel.d in DIMENSIONS)


def bound_of(case: Case, core: Core) -> CycleBound:
    """Return the lower bound of a call's cycles."""
    m, n, k = case.sizes
    if case.product:
        return lower_bound.attention(core, m, *((n, k) if case.product == "qk" else (k, n)))
    return lower_bound.linear(core, case.kernel, m, n, k)


def measure_cycles(
    program: Path, cases: Sequence[Case], core: Core, cache: Path
) -> list[tuple[Case, KernelCycles]]:
    """Run calls under the counter; return each call's cycles.

    Raises:
        LabError: the program fails.
    """
    measured = count(program, cases, core.vlen, cache)
    return [
        (case, KernelCycles(all_cycles(core, measured, [i]), bound_of(case, core), region.insns))
        for i, (case, region) in enumerate(zip(cases, measured.regions, strict=True))
    ]


def cycles_table(core: Core, figures: Sequence[tuple[Case, KernelCycles]]) -> Table:
    """Return the table of cycles per multiply-add by unit, with the bound and ratios."""
    table = Table(title=f"{core.name}: instructions and cycles a multiply-add / at least, by unit")
    table.add_column("kernel", no_wrap=True)
    for title in (
        "sizes",
        "instructions",
        *(unit.value for unit in Unit),
        "vec-serial",
        "ratio",
        "pipeline",
        "ratio",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for case, row in figures:
        pairs = [(row.cycles.units[unit.value], row.bound.of(unit)) for unit in Unit]
        pairs.append((row.cycles.vec_serial, row.bound.vec_serial))
        cells = (f"{took / case.macs:.3f} / {least / case.macs:.3f}" for took, least in pairs)
        sizes = "x".join(map(str, case.sizes))
        piped = ("", "")
        if (took := row.cycles.pipeline) is not None:
            piped = (f"{took / case.macs:.3f}", f"{took / row.bound.vec_serial:.2f}")
        insns = f"{row.insns / case.macs:.3f}"
        table.add_row(case.product or case.kernel, sizes, insns, *cells, f"{row.ratio:.2f}", *piped)
    return table


def main(argv: Sequence[str]) -> int:
    """Print the cycles of all kernels for each core.

    Raises:
        UserError: a tool is missing.
        LabError: the kernels do not compile or run.
    """
    options = Parser(
        prog="crosslab kernel-cycles",
        description="Print each kernel's cycles on a core by unit, beside the fewest that the "
        "core's table allows.",
        parents=[recipe_options("core", "cache", core={"nargs": "+", "default": DEFAULT_CORE})],
    )
    options.add_argument(
        "--matrix-unit",
        action="store_true",
        help="count prompts by SpacemiT's matrix unit, with vmacc.vv in place of vmadot",
    )
    args = options.parse_args(argv)
    flags = IME_STAND_IN if args.matrix_unit else ()
    with tempfile.TemporaryDirectory(prefix="kernel-cycles-") as folder:
        for core in args.core:
            program = build(Path(folder), args.cache, core=core, flags=flags)
            figures = measure_cycles(program, list(tiled_cases()), core, args.cache)
            Console(highlight=False, width=150).print(cycles_table(core, figures))
    return 0
