# SPDX-License-Identifier: Apache-2.0
"""``crosslab kernel-bench``: instructions per multiply-add of every kernel.

Each kernel runs once under the counter, and is compared with the least instructions that its tile
allows (:mod:`crosslab.bench.instruction_lower_bound`). The exit code is 1 if a kernel needs more
than :data:`MOST` times as many.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, JustifyMethod
from rich.table import Table

from crosslab.assemble.kernel_list import KERNELS
from crosslab.assemble.kernels import (
    OBJECT,
    Kernel,
    KernelTarget,
    cached_kernels,
    list_header,
    read_kernels,
)
from crosslab.assemble.recipe_options import DEFAULT_VLEN, recipe_options
from crosslab.bench import instruction_lower_bound as bound
from crosslab.cores.core import Core
from crosslab.host.objects import run_compiler
from crosslab.host.toolchain import find_cross
from crosslab.models.formats import packings
from crosslab.run.counter import count_guest
from crosslab.run.emulator import GuestMachine
from crosslab.run.measurement import Measurement
from groundwork.command_line import Parser

SOURCE = Path(__file__).parents[1] / "native" / "kernel_bench" / "bench.c"
# Largest ratio to the least instructions; the order of loops is optimized for cycles instead.
MOST = 1.25
# Outputs and inputs of layers; the widths are not multiples of a tile.
LAYERS = [(768, 256), (1376, 256), (256, 688), (960, 576), (576, 1536), (900, 320), (2048, 2048)]
# Rows of prompts: whole tiles, remainders, and few rows, for which a panel hardly pays.
ROWS = [(128, LAYERS[:-1]), (100, LAYERS[-2:]), (16, LAYERS[:4]), (7, LAYERS[:4]), (4, LAYERS[3:4])]
SINGLE = [*LAYERS, (512, 256), (1000, 320)]


@dataclass(frozen=True)
class Case:
    """A kernel call: a kernel by the name that the program accepts, and three sizes.

    Attributes:
        kernel: kind and weights of a linear kernel, as gemm_f32, or the symbol of an attention
            kernel.
        sizes: rows, outputs, inputs; or q_tile, kv_tile, d.
        product: product of an attention kernel, "qk" or "pv"; empty for a linear kernel.
    """

    kernel: str
    sizes: tuple[int, int, int]
    product: str = ""

    @property
    def macs(self) -> int:
        """Number of multiply-adds."""
        return self.sizes[0] * self.sizes[1] * self.sizes[2]

    def floor(self, vlen: int) -> float:
        """Return the lower bound of the call's instructions."""
        m, n, k = self.sizes
        if self.product:
            columns, depth = (n, k) if self.product == "qk" else (k, n)
            return bound.attention(self.product, m, columns, depth, vlen)
        return bound.linear(self.kernel, m, n, k, vlen)


def cases() -> Iterator[Case]:
    """Yield the calls to measure: linear layers, then every attention kernel."""
    for weights in packings():
        for rows, layers in ROWS:
            yield from (Case(f"gemm_{weights}", (rows, *layer)) for layer in layers)
    for weights in packings():
        yield from (Case(f"gemv_{weights}", (1, *layer)) for layer in SINGLE)
    yield from map(attention_case, read_kernels())


def attention_case(kernel: Kernel) -> Case:
    """Return the call of an attention kernel."""
    return Case(kernel.symbol, (kernel.q_tile, kernel.kv_tile, kernel.d), kernel.product)


@dataclass(frozen=True)
class Figures:
    """Instructions of a call; ``least`` is the lower bound."""

    insns: int
    lmul_weighted: int
    least: float

    @property
    def ratio(self) -> float:
        """Instructions divided by the lower bound."""
        return self.insns / self.least


def measure(
    program: Path, cases: Sequence[Case], vlen: int, cache: Path
) -> list[tuple[Case, Figures]]:
    """Run calls under the counter; return each call's instructions.

    Raises:
        LabError: the program fails.
    """
    measured = count(program, cases, vlen, cache)
    return [
        (case, Figures(region.insns, region.lmul_weighted, case.floor(vlen)))
        for case, region in zip(cases, measured.regions, strict=True)
    ]


def count(program: Path, cases: Sequence[Case], vlen: int, cache: Path) -> Measurement:
    """Run calls under the counter, with a region for each call.

    Raises:
        LabError: the program fails.
    """
    words = [word for case in cases for word in (case.kernel, *map(str, case.sizes))]
    return count_guest(program, [str(vlen // 4), *words], GuestMachine(vlen), cache)[1]


def build(
    folder: Path,
    cache: Path,
    parameters: Mapping[str, int] | None = None,
    core: Core | None = None,
    flags: Sequence[str] = (),
) -> Path:
    """Link the bench program with the kernels; return its path in ``folder``.

    Args:
        folder: receives the program.
        cache: folder of finished builds.
        parameters: values of kernel parameters in place of the list's.
        core: core to compile for, as with ``--core``; None: all cores.
        flags: further compiler options.

    Raises:
        LabError: the kernels or the program do not compile.
    """
    toolchain, program = find_cross(), folder / "bench"
    tune = core.llvm if core else ""
    compiled = cached_kernels(
        KernelTarget.RISCV64, cache, parameters, core=core, tune=tune, flags=flags
    )
    (folder / "mlc_rvv_kernel_list.h").write_text(list_header(read_kernels()), encoding="utf-8")
    include = [f"-I{folder}", f"-I{KERNELS / 'include'}"]
    command = [*toolchain.cc, *toolchain.link, "-O1", "-static", *include]
    command += [str(SOURCE), str(compiled / OBJECT), "-o", str(program)]
    run_compiler("compiling the kernels' bench", command, folder)
    return program


def table_of(vlen: int, figures: Sequence[tuple[Case, Figures]]) -> Table:
    """Return the table of a vector length, in instructions per multiply-add."""
    table = Table(title=f"VLEN {vlen}: instructions a multiply-add")
    for title in ("kernel", "sizes", "all", "LMUL-weighted", "floor", "ratio"):
        justify: JustifyMethod = "left" if title == "kernel" else "right"
        table.add_column(title, justify=justify, no_wrap=True)
    for case, row in figures:
        each = (row.insns / case.macs, row.lmul_weighted / case.macs, row.least / case.macs)
        ratio = f"{row.ratio:.3f}" + (" !" if row.ratio > MOST else "")
        sizes = "x".join(map(str, case.sizes))
        table.add_row(
            case.product or case.kernel, sizes, *(f"{figure:.4f}" for figure in each), ratio
        )
    return table


def main(argv: Sequence[str]) -> int:
    """Print a table for each vector length; return 1 if a kernel needs too many instructions.

    Raises:
        UserError: a tool is missing.
        LabError: the kernels do not compile or run.
    """
    options = Parser(
        prog="crosslab kernel-bench",
        description="Count each kernel's instructions per multiply-add, and compare them with the "
        "fewest that its tile allows. The exit code is 1 when a kernel needs too many.",
        parents=[recipe_options("vlen", "cache", vlen={"default": (DEFAULT_VLEN,)})],
    )
    args = options.parse_args(argv)
    above = 0
    with tempfile.TemporaryDirectory(prefix="kernel-bench-") as folder:
        program = build(Path(folder), args.cache)
        for vlen in args.vlen:
            figures = measure(program, list(cases()), vlen, args.cache)
            Console(highlight=False).print(table_of(vlen, figures))
            above += sum(row.ratio > MOST for _, row in figures)
    if above:
        print(f"{above} above {MOST} times the floor, marked by !", file=sys.stderr)
    return 1 if above else 0
