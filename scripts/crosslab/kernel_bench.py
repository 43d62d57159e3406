# SPDX-License-Identifier: Apache-2.0
"""``python -m crosslab.kernel_bench``: instructions a multiply-add of the linear-layer kernels.

Each kernel runs once under the counter, on shapes of real layers, beside the floor of its inner
loop: the instructions of one step of its tile over the multiply-adds of that step.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from crosslab.compile.targets import VLENS
from crosslab.counter import count_guest
from crosslab.emulator import GuestMachine
from crosslab.errors import LabError
from crosslab.kernels import KERNELS, OBJECT, KernelTarget, cached_kernels
from crosslab.stage import default_cache
from crosslab.toolchain import find_cross

SOURCE = Path(__file__).parent / "native" / "kernel_bench" / "bench.c"
# Rows, outputs, inputs: of prompts and of single tokens, with widths that no tile divides too.
SHAPES = {
    "gemm": [(128, 768, 256), (128, 1376, 256), (128, 256, 688), (128, 960, 576), (7, 960, 576)],
    "gemv": [(1, 768, 256), (1, 256, 688), (1, 960, 576), (1, 576, 1536)],
}


def floor(kind: str, vlen: int) -> float:
    """Instructions a multiply-add of the inner loop alone, with the addresses of its loads."""
    lanes = vlen // 32 * 8
    if kind.startswith("gemm"):
        return 8 / (3 * lanes)  # load, address, three scalars, three multiply-adds
    if kind == "gemv_f32":
        return 8 / (2 * lanes)  # three loads, three addresses, two multiply-adds
    return 8 / (2 * lanes // 2)  # a nibble of two rows: load, address, three for each row


def build(folder: Path, cache: Path) -> Path:
    """Link the program with the kernels.

    Raises:
        LabError: it does not compile.
    """
    toolchain, program = find_cross(), folder / "bench"
    kernels = cached_kernels(KernelTarget.RISCV64, cache) / OBJECT
    command = [*toolchain.cc, *toolchain.link, "-O1", "-static", f"-I{KERNELS / 'include'}"]
    command += [str(SOURCE), str(kernels), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"compiling the kernels' bench failed:\n{done.stderr.strip()}")
    return program


def main(argv: Sequence[str]) -> int:
    """Print the table."""
    options = argparse.ArgumentParser(prog="crosslab.kernel_bench", description=__doc__)
    options.add_argument("--vlen", type=int, choices=VLENS, default=256)
    options.add_argument("--cache", type=Path, default=default_cache())
    args = options.parse_args(argv)
    table = Table(title=f"linear-layer kernels, VLEN {args.vlen}: instructions a multiply-add")
    for title in ("kernel", "rows", "outputs", "inputs", "all", "LMUL-weighted", "floor", "ratio"):
        table.add_column(title, justify="right")
    with tempfile.TemporaryDirectory(prefix="kernel-bench-") as folder:
        program = build(Path(folder), args.cache)
        for kind in ("gemm_f32", "gemm_q4", "gemv_f32", "gemv_q4"):
            for shape in SHAPES[kind[:4]]:
                words = [kind, *map(str, shape), str(args.vlen // 4)]
                _, measured = count_guest(program, words, GuestMachine(args.vlen), args.cache)
                macs = shape[0] * shape[1] * shape[2]
                each = measured.region.insns / macs
                weighted, least = measured.region.lmul_weighted / macs, floor(kind, args.vlen)
                figures = (each, weighted, least, each / least)
                table.add_row(kind, *map(str, shape), *(f"{f:.3f}" for f in figures))
    Console(highlight=False).print(table)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except LabError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
