# SPDX-License-Identifier: Apache-2.0
"""``crosslab torch survey``: compiles and runs many models, and prints a table of outcomes."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from crosslab.assemble.kernels import KernelTarget, cached_kernels
from crosslab.assemble.recipe_options import recipe_options
from crosslab.compile.driver import tree_environment
from crosslab.compile.overlaypass import PASSES
from crosslab.errors import LabError, UserError
from groundwork.command_line import Parser
from groundwork.hashing import digest
from torchroad.survey import ulp
from torchroad.survey.outcome import KINDS, MARK, Outcome, Report

PACKAGES = ("torchvision", "torchaudio", "diffusers", "transformers")
SECONDS = 300.0


def parser() -> Parser:
    """Return the parser of the command line of ``crosslab torch survey``."""
    shared = recipe_options(
        *("project", "release", "tvm-tree", "mlc-tree", "applied", "cache"),
        mlc_tree={"help": argparse.SUPPRESS},
        applied={"help": argparse.SUPPRESS},
    )
    options = Parser(
        prog="crosslab torch survey",
        description="Send the modules of torch.nn, in three settings each, and small "
        "architectures through the road: exported, imported, compiled for this machine by the "
        "project's passes and kernels, compared with torch. A case with an outcome in the report "
        "is not run again.",
        parents=[shared],
        allow_abbrev=False,
    )
    add = options.add_argument
    add("names", nargs="*", metavar="NAME", help="cases, or modules in all settings (all cases)")
    add("--kind", choices=KINDS, action="append", help="only cases of this kind (all)")
    add("--first", type=int, metavar="N", help="stop after N cases; call again for the others")
    add("--again", action="store_true", help="run cases again that have an outcome")
    add(
        "--seconds", type=float, default=SECONDS, metavar="N",
        help=f"most seconds that a case may take ({SECONDS:.0f})",
    )  # fmt: skip
    add("--table", action="store_true", help="print a row for each module and architecture, too")
    add(
        "--ulp", action="store_true",
        help="print the errors of functions in units in the last place, at VLEN 128 to 1024 in "
        "QEMU, instead of the survey",
    )  # fmt: skip
    add("--json", type=Path, dest="report", help="report (PROJECT/out/torch-survey.json)")
    return options


def main(argv: Sequence[str]) -> int:
    """Run the survey; return 1 if a case in the report has the verdict wrong or failed.

    Raises:
        UserError: an option is wrong, or a package is missing.
        LabError: the surveying process fails.
    """
    args = parser().parse_args(argv)
    args.kinds = tuple(args.kind or KINDS)
    _check_packages(() if args.ulp else args.kinds)
    if args.ulp:
        print(ulp.table(args))
        return 0
    path: Path = args.report or args.project / "out" / "torch-survey.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    report = Report.read(path, made_from(args.tvm_tree))
    with tempfile.TemporaryDirectory(prefix="survey-") as scratch:
        for outcome in run_cases(args, report, Path(scratch)):
            print(outcome.line, flush=True)
            report.add(outcome)
    print(report.summary())
    if args.table:
        print(report.table())
    return 1 if report.faults else 0


def _check_packages(kinds: Sequence[str]) -> None:
    """Refuse to run without torch, or without the packages that define architectures.

    Raises:
        UserError: packages are missing; the message names them.
    """
    # The worker reads the tests in the package onnx for every kind.
    architectures = any("architecture" in kind for kind in kinds)
    wanted = ("torch", "onnx", "onnxruntime", *(PACKAGES if architectures else ()))
    if missing := [name for name in wanted if importlib.util.find_spec(name) is None]:
        raise UserError(
            f"not installed here: {', '.join(missing)}",
            remedy="nox -s torch -- survey installs them; --kind module needs torch and onnx alone",
        )


def made_from(tvm_tree: Path) -> str:
    """Return a digest of everything that outcomes depend on: importer, passes, TVM, torch."""
    own = Path(__file__).parents[1]
    return digest(own, PASSES, tvm_tree / "python", metadata.version("torch"))


def run_cases(args: argparse.Namespace, report: Report, scratch: Path) -> Iterator[Outcome]:
    """Yield the outcomes of the cases that the options choose, as they finish.

    Raises:
        UserError: no case has a given name.
        LabError: the surveying process fails.
    """
    spec = {
        "kinds": args.kinds,
        "names": args.names,
        "done": [] if args.again else list(report.outcomes),
        "first": args.first,
        "seconds": args.seconds,
        "parent": os.getpid(),
        "kernels": str(cached_kernels(KernelTarget.HOST, args.cache)),
    }
    file = scratch / "spec.json"
    file.write_text(json.dumps(spec), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "torchroad.survey.worker", str(file)],
        env=tree_environment(args.tvm_tree),
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        for line in process.stdout or ():
            # Skip lines that models print.
            if not line.startswith(MARK):
                continue
            record = json.loads(line.removeprefix(MARK))
            if "what" in record:
                raise UserError(record["what"])
            yield Outcome(**record)
    if process.returncode:
        raise LabError(f"the surveying process ended with {process.returncode}")
