# SPDX-License-Identifier: Apache-2.0
"""``crosslab torch``: a PyTorch model is compiled for RVV, run under QEMU, compared with torch."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from common.files import atomic_write_json
from crosslab.build.runner import Clock
from crosslab.cached_build import default_cache
from crosslab.compile.driver import IR_FOLDER
from crosslab.compile.schedules import Schedules, add_tuned, check_database
from crosslab.compile.targets import VLENS
from crosslab.cores.core import read_core
from crosslab.errors import UserError
from crosslab.host.toolchain import require_qemu
from crosslab.job.job_options import vlen_of
from crosslab.pytorch.job import TOLERANCE, TorchResult, build, judge
from crosslab.pytorch.program import TorchModel, import_model
from crosslab.run.emulator import GuestMachine

_progress = Console(stderr=True, highlight=False)
_answers = Console(highlight=False)


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    options = argparse.ArgumentParser(
        prog="crosslab torch",
        description="Export a model of PyTorch, compile it for RVV, run it in the emulator, "
        "compare with torch. FACTORY is a function without arguments that returns (module, inputs) "
        "or (module, inputs, {input: {axis: NAME}}), where NAME is a size that may vary.",
        allow_abbrev=False,
    )
    add = options.add_argument
    add("model", metavar="FILE.py:FACTORY", help="the function that makes the model")
    add(
        "--dynamic", action="append", default=[], metavar="NAME=MIN:MAX",
        help="let a size vary; the example, the least and the most are run",
    )  # fmt: skip
    add("--project", type=Path, default=Path(), help="the project's root (.)")
    add("--release", default="unnamed", help="name of the release, for the report")
    add("--tvm-tree", type=Path, required=True, help="patched TVM tree")
    add("--mlc-tree", type=Path, help=argparse.SUPPRESS)
    add("--applied", type=Path, help=argparse.SUPPRESS)
    add("--vlen", type=int, choices=VLENS, help="bits in a vector register (256)")
    add("--core", metavar="NAME", help="count its cycles: a core, a file in PROJECT/cores")
    add("--dump-ir", type=Path, metavar="DIR", help="write the module after each pass there")
    add_tuned(add)
    add("--json", type=Path, dest="report", help="report (PROJECT/out/torch.json)")
    add("--cache", type=Path, default=default_cache(), help="folder of finished builds")
    return options


def main(argv: Sequence[str]) -> int:
    """Do it; 1 when an output is not torch's.

    Raises:
        UserError: an option, the model, torch or a tool is not right.
        LabError: a step fails.
    """
    args = parser().parse_args(argv)
    model = TorchModel.parse(args.model, args.dynamic)
    if not (args.tvm_tree / "python" / "tvm").is_dir():
        raise UserError(f"{args.tvm_tree} is no TVM tree", remedy="nox -s apply_patches")
    project, clock = args.project.resolve(), Clock()
    vlen = vlen_of(project, args.vlen, args.core)
    core = read_core(project / "cores", args.core) if args.core else None
    if args.dump_ir and args.dump_ir.exists():
        raise UserError(f"--dump-ir: {args.dump_ir} exists", remedy="name a new folder")
    check_database(args.tuned)
    require_qemu()
    with tempfile.TemporaryDirectory(prefix="torch-") as scratch:
        _progress.print(f"importing {model.name}")
        with clock.step("import"):
            program = import_model(model, args.tvm_tree, Path(scratch))
        dump = args.dump_ir is not None
        kept = {"dump_ir": dump, "tuned": args.tuned}
        runner = build(program, args.tvm_tree, vlen, args.cache, clock, **kept)
        if dump:
            shutil.copytree(runner.library.folder / IR_FOLDER, args.dump_ir)
            _progress.print(f"[bold]passes[/] {args.dump_ir / 'README.md'}", soft_wrap=True)
        _progress.print(f"emulator: {len(program.sizes)} runs")
        with clock.step("emulator"):
            machine = GuestMachine(vlen=vlen)
            result = judge(program, runner, machine, core, args.cache, Path(scratch))
    about = {"model": model.name, "release": args.release, "vlen": vlen, "core": args.core}
    report = args.report or project / "out" / "torch.json"
    schedules = Schedules.read(runner.library.folder)
    table = {**about, **report_of(result), "seconds": clock.seconds, **asdict(schedules)}
    atomic_write_json(report, table)
    show(result)
    _answers.print(schedules.told, soft_wrap=True)
    _progress.print(f"[bold]report[/] {report}", soft_wrap=True)
    return 0 if result.right else 1


def report_of(result: TorchResult) -> dict[str, Any]:
    """The verdict as a table for machines."""
    return {
        "right": result.right,
        "tolerance": TOLERANCE,
        "cases": [asdict(case) for case in result.cases],
        "multiply_adds": asdict(result.work),
        "share_on_kernels": round(result.work.share, 4),
    }


def show(result: TorchResult) -> None:
    """Print a line for each case, and the kernels' share."""
    table = Table()
    for title in ("sizes", "error", "instructions", "by LMUL", "cycles", "verdict"):
        table.add_column(title, justify="left" if title in ("sizes", "verdict") else "right")
    for case in result.cases:
        sizes = ", ".join(f"{name}={size}" for name, size in case.sizes.items()) or "the example's"
        counts, cycles = case.counts, case.cycles
        table.add_row(
            sizes,
            f"{case.error:.1e}",
            f"{counts.insns:,}" if counts else "-",
            f"{counts.lmul_weighted:,}" if counts else "-",
            f"{cycles.serial:,}" if cycles else "-",
            "right" if case.right else f"[bold red]wrong[/] (bound {TOLERANCE:g})",
        )
    _answers.print(table)
    work = result.work
    _answers.print(
        f"{work.share:.1%} of {work.total:,} multiply-adds are done by kernels"
        + "".join(f"\n  not: {name}, {amount:,}" for name, amount in work.plain.items())
    )
