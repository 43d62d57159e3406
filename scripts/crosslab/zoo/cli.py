# SPDX-License-Identifier: Apache-2.0
"""``crosslab zoo``: model families x quantizations, compiled, run and compared."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from common.files import atomic_write
from crosslab.cached_build import default_cache
from crosslab.compile.mlc import MlcTools
from crosslab.compile.targets import VLENS
from crosslab.errors import LabError, UserError
from crosslab.host.toolchain import find_cross, require_qemu
from crosslab.job.job_options import read_omissions
from crosslab.models.formats import FORMATS
from crosslab.zoo.families import chosen, families
from crosslab.zoo.job import Spec
from crosslab.zoo.outcome import FamilyOutcome, FamilyStatus, first_reason
from crosslab.zoo.reference import need_packages
from crosslab.zoo.table import cell, document, merged, read_report, write_report

SUPPLY_MLC = (
    "give a git clone of https://github.com/mlc-ai/mlc-llm: "
    "nox -s zoo -- --mirror mlc-llm=PATH_OR_URL"
)
TIMEOUT = 1800.0
SCRIPTS = Path(__file__).resolve().parents[2]
ABOUT = Path(__file__).with_name("about.md")

_progress = Console(stderr=True, highlight=False)
_answers = Console(highlight=False)


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    options = argparse.ArgumentParser(
        prog="crosslab zoo",
        description="Compile small models of every family for RVV through MLC-LLM, run them "
        "under QEMU, and compare them with transformers.",
        allow_abbrev=False,
    )
    add = options.add_argument
    add("--project", type=Path, default=Path(), help="the project's root (.)")
    add("--release", default="unnamed", help="name of the release, for the report")
    add("--tvm-tree", type=Path, help="patched TVM tree")
    add("--mlc-tree", type=Path, help="patched MLC-LLM tree; without it there is nothing to do")
    add("--plain-tree", type=Path, help="TVM without our kernels, to tell whose a failure is")
    add("--applied", type=Path, metavar="FILE", help="report of forkpatch apply --json")
    add("--family", action="append", default=[], metavar="NAME", help="of these alone (all)")
    add("--quantization", action="append", default=[], choices=FORMATS, help="(all)")
    add("--vlen", type=int, choices=VLENS, default=256, help="bits in a vector register (256)")
    add("--jobs", type=int, default=1, help="families at a time (1)")
    add("--timeout", type=float, default=TIMEOUT, help=f"seconds for one ({TIMEOUT:g})")
    add("--rerun", action="store_true", help="also those that are right in the report already")
    add("--report-only", action="store_true", help="run nothing; show the report, write --docs")
    add("--list", action="store_true", help="name the families and end")
    add("--json", type=Path, dest="report", help="report (PROJECT/out/zoo.json)")
    add("--docs", type=Path, metavar="FILE", help="write the table there, as docs/zoo.md has it")
    add(
        "--work", type=Path, metavar="DIR", help="write the work of compiled models there, for cost"
    )
    add("--cache", type=Path, default=default_cache(), help="folder of finished builds")
    return options


@dataclass
class FamilyProcesses:
    """Runs specs in processes of their own.

    Attributes:
        timeout: seconds after which one is ended.
        running: what is running now, to be ended with the command.
    """

    timeout: float
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: bool = False

    def run(self, spec: Spec) -> FamilyOutcome:
        """One family in one quantization.

        Raises:
            LabError: the process itself failed; UserError's code is kept.
        """
        own = (spec.family, spec.quantization)
        logs = spec.cache / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        log = logs / f"zoo-{spec.family}-{spec.quantization}.log"
        with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
            asked, told = Path(folder) / "spec.json", Path(folder) / "outcome.json"
            asked.write_text(json.dumps(spec.table()), encoding="utf-8")
            try:
                code = self._wait([str(asked), str(told)], log)
            except subprocess.TimeoutExpired:
                reason = f"it took more than {self.timeout:g} s"
                return FamilyOutcome(
                    *own, FamilyStatus.TIMEOUT, reason=reason, seconds=self.timeout
                )
            if code == 0:
                return FamilyOutcome.read(json.loads(told.read_text(encoding="utf-8")))
        said = first_reason(log.read_text(encoding="utf-8", errors="replace"))
        message = f"{spec.family}, {spec.quantization}: {said}"
        raise LabError(message, remedy=f"all it said is in {log}", exit_code=2 if code == 2 else 1)

    def _wait(self, arguments: Sequence[str], log: Path) -> int:
        command = [sys.executable, "-m", "crosslab.zoo.job", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
        with log.open("wb") as sink:
            # A session of its own: what it starts is ended with it.
            process = subprocess.Popen(
                command, env=environment, stdout=sink, stderr=sink, start_new_session=True
            )
            with self._known(process):
                try:
                    return process.wait(self.timeout)
                except subprocess.TimeoutExpired:
                    _end(process)
                    raise

    @contextmanager
    def _known(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        with self.lock:
            self.running.add(process)
            if self.stopped:
                _end(process)
        try:
            yield
        finally:
            with self.lock:
                self.running.discard(process)

    def stop(self) -> None:
        """End all that is running, and whatever would start."""
        with self.lock:
            self.stopped = True
            for process in self.running:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def main(argv: Sequence[str]) -> int:
    """Fill the report; 1 when a family is wrong, does not compile or does not run.

    Raises:
        UserError: an option is not right, or MLC-LLM, torch or a tool is missing.
        LabError: a process of ours fails.
    """
    args = parser().parse_args(argv)
    if args.list:
        for family in families().values():
            print(f"{family.name:12} {family.like}")
        return 0
    wanted = chosen(args.family)
    report = args.report or args.project / "out" / "zoo.json"
    known = read_report(report)
    formats = list(dict.fromkeys(args.quantization)) or list(FORMATS)
    asked = [(f.name, quantization) for quantization in formats for f in wanted]
    if not args.report_only:
        _check(args)
        about = {"release": args.release, "vlen": args.vlen}
        todo = _specs(args, _todo(args, asked, known))
        done = _run_all(args, todo, lambda new: write_report(report, about, merged(known, new)))
        known = merged(known, done)
    shown = [o for o in known if (o.family, o.quantization) in asked]
    _answers.print(_terminal(shown))
    _progress.print(f"[bold]report[/] {report}", soft_wrap=True)
    if args.docs:
        text = document(list(families().values()), known, ABOUT.read_text(encoding="utf-8"))
        atomic_write(args.docs, text)
    return 0 if all(o.outcome is FamilyStatus.RIGHT for o in shown) else 1


def _check(args: argparse.Namespace) -> None:
    if args.tvm_tree is None:
        raise UserError("no TVM tree was given", remedy="nox -s zoo gives it; or --tvm-tree DIR")
    if args.mlc_tree is None:
        missing = read_omissions(args.applied)
        why = next((o.why for o in missing if o.what == "mlc-llm"), "no tree of it was given")
        raise UserError(
            f"the zoo compiles with MLC-LLM, and it is not here: {why}", remedy=SUPPLY_MLC
        )
    if args.jobs < 1:
        raise UserError(f"--jobs {args.jobs}", remedy="give 1 or more")
    MlcTools(mlc_tree=args.mlc_tree, tvm_tree=args.tvm_tree).check()
    need_packages()
    require_qemu()
    find_cross()


def _specs(args: argparse.Namespace, asked: Sequence[tuple[str, str]]) -> list[Spec]:
    trees = (args.mlc_tree.resolve(), args.tvm_tree.resolve())
    plain = args.plain_tree.resolve() if args.plain_tree else None
    work = args.work.resolve() if args.work else None
    if work:
        work.mkdir(parents=True, exist_ok=True)
    vlen, cache = int(args.vlen), args.cache.resolve()
    return [Spec(name, format_, *trees, plain, vlen, cache, work) for name, format_ in asked]


def _todo(
    args: argparse.Namespace, asked: Sequence[tuple[str, str]], known: Sequence[FamilyOutcome]
) -> list[tuple[str, str]]:
    if args.rerun or args.work:
        return list(asked)
    # What was right once is not asked again; what was not may have been mended.
    right = {(o.family, o.quantization) for o in known if o.outcome is FamilyStatus.RIGHT}
    todo = [pair for pair in asked if pair not in right]
    if kept := len(asked) - len(todo):
        _progress.print(f"{kept} are right in the report already (--rerun runs them again)")
    return todo


def _run_all(args: argparse.Namespace, specs: Sequence[Spec], save: Any) -> list[FamilyOutcome]:
    runner, done = FamilyProcesses(args.timeout), list[FamilyOutcome]()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(*columns, TimeElapsedColumn(), console=_progress, transient=True) as bar,
        ThreadPoolExecutor(args.jobs) as pool,
    ):
        task = bar.add_task("zoo", total=len(specs))
        futures = {pool.submit(runner.run, spec): spec for spec in specs}
        try:
            for future in as_completed(futures):
                outcome = future.result()
                done.append(outcome)
                save(done)
                bar.update(task, advance=1)
                name = f"{outcome.family} {outcome.quantization}"
                bar.console.print(f"{name}: {cell(outcome)}, {outcome.seconds:g} s", markup=False)
        except BaseException:
            for future in futures:
                future.cancel()
            runner.stop()
            raise
    return done


def _terminal(outcomes: Sequence[FamilyOutcome]) -> Table:
    table = Table("family", "quantization", "outcome", "kernels", "reason")
    for o in outcomes:
        table.add_row(
            o.family,
            o.quantization,
            cell(o).replace("*", ""),
            f"{o.tensorized}/{o.total}",
            o.reason.replace("[", "\\["),
        )
    return table
