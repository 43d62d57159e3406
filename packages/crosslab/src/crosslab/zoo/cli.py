# SPDX-License-Identifier: Apache-2.0
"""``crosslab zoo``: compile, run and check model families in all quantizations."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from crosslab.assemble.recipe_options import OF_SESSIONS, read_recipe, recipe_options
from crosslab.compile.mlc import MlcTools
from crosslab.errors import UserError, supply_mlc
from crosslab.host.toolchain import find_cross, require_qemu
from crosslab.job.job_options import read_omissions
from crosslab.models.families import Family, chosen, families
from crosslab.models.formats import FORMATS, MLC_FORMATS
from crosslab.remote import (
    Cell,
    CodeLabel,
    add_options,
    compute,
    label_of,
    scheduler_of,
    serve_worker,
)
from crosslab.zoo.job import Spec
from crosslab.zoo.outcome import FamilyOutcome, FamilyStatus, MatrixKey
from crosslab.zoo.processes import outcomes_here
from crosslab.zoo.reference import need_packages
from crosslab.zoo.table import (
    cell,
    document,
    merged,
    read_report,
    with_real_sizes,
    write_report,
)
from groundwork.command_line import Parser, output_file, output_folder, seconds_of
from groundwork.files import atomic_write

TIMEOUT = 1800.0
ABOUT = Path(__file__).with_name("about.md")
# Options beside which only these have an effect, and those on trees and folders.
_SHOWN = ("core", "vlen", "quantization", "family", "real", "releases", "report", "docs")
ALONE = {"list": (), "report_only": _SHOWN, "worker": ("scheduler", "worker_port", "force")}

_progress = Console(stderr=True, highlight=False)
_answers = Console(highlight=False)


def parser() -> Parser:
    """Return the parser of the command's options."""
    shared = recipe_options(
        *("project", "release", "tvm-tree", "mlc-tree", "applied", "core", "vlen"),
        *("quantization", "tuned", "cache"),
        tvm_tree={"required": False},
        mlc_tree={"help": "patched MLC-LLM tree; the zoo cannot run without it"},
        core={"help": "compile for this core, by the name of its file in cores/"},
        quantization={"action": "append", "default": [], "help": "only in this format (all)"},
    )
    options = Parser(
        prog="crosslab zoo",
        description="Compile small models of every family for RVV through MLC-LLM, run them "
        "under QEMU, and compare their answers with those of transformers.",
        parents=[shared],
    )
    add = options.add_argument
    add("--plain-tree", type=Path, help="TVM without our kernels, to see if it fails there, too")
    add("--family", action="append", default=[], metavar="NAME", help="only this family (all)")
    add(
        "--real",
        type=int,
        nargs="?",
        const=0,
        metavar="LAYERS",
        help="in the sizes of the published models, with so many layers (each kind of layer once);"
        " notes memory and time of the conversion and the compilation",
    )
    add("--jobs", type=int, help="families at a time (1)")
    limit = f"seconds for each family ({TIMEOUT:g})"
    add("--timeout", type=seconds_of, default=TIMEOUT, help=limit)
    add("--rerun", action="store_true", help="run families again that were right")
    add("--report-only", action="store_true", help="run nothing; show the report, write --docs")
    add("--list", action="store_true", help="print the names of the families and exit")
    add(
        "--json",
        type=output_file,
        dest="report",
        help="report (PROJECT/out/zoo.json, or zoo-CORE.json)",
    )
    add(
        "--docs",
        type=output_file,
        metavar="FILE",
        help="write the table as Markdown, like docs/zoo.md; with --real, an existing page gets"
        " the rows of real sizes alone",
    )
    add(
        "--work",
        type=output_folder,
        metavar="DIR",
        help="write each compiled model's work there, for cost",
    )
    add_options(add)
    add(
        "--releases",
        metavar="R,...",
        type=lambda text: tuple(filter(None, text.split(","))),
        default=(),
        help="with --scheduler: the releases to compute (this one)",
    )
    return options


def main(argv: Sequence[str]) -> int:
    """Complete the report, or be a worker; return 1 if a requested family is not right.

    Raises:
        UserError: an option is wrong, or MLC-LLM, torch or a tool is missing.
        LabError: a subprocess of the zoo fails.
    """
    options = parser()
    args, families_asked = options.read(argv, partial(_checked, options))
    if args.list:
        for family in families().values():
            print(f"{family.name:12} {family.like}")
        return 0
    formats = list(dict.fromkeys(args.quantization)) or list(MLC_FORMATS)
    recipe = read_recipe(args, formats[0])
    if args.worker:
        _check(args)
        serve_worker(args.scheduler, _label(args, args.release), args, _say)
        return 0
    stem = f"zoo-{args.core}" if args.core else "zoo"
    report = args.report or args.project / "out" / f"{stem}.json"
    known = read_report(report)
    releases = list(dict.fromkeys(args.releases)) or [args.release]
    axes = (families_asked, recipe.vlens, releases)
    requested = [
        MatrixKey(f.name, q, v, r, 0 if args.real is None else f.layers)
        for q, (f, v, r) in product(formats, product(*axes))
    ]
    if not args.report_only:
        _check(args)
        todo = _todo(args, requested, known)
        done = _run_all(args, todo, lambda new: write_report(report, merged(known, new)))
        known = merged(known, done)
    selected = [o for o in known if o.key in requested]
    if not selected:
        raise UserError(f"{report} has no result of these", remedy="leave out --report-only")
    _answers.print(_terminal(selected))
    _progress.print("[bold]report[/]", report, soft_wrap=True)
    if args.docs:
        every = list(families().values())
        if args.real is not None and args.docs.is_file():
            text = with_real_sizes(args.docs.read_text(encoding="utf-8"), every, known)
        else:
            text = document(every, known, ABOUT.read_text(encoding="utf-8"))
        atomic_write(args.docs, text)
    return 0 if all(o.outcome is FamilyStatus.RIGHT for o in selected) else 1


def _checked(options: Parser, args: argparse.Namespace) -> tuple[argparse.Namespace, list[Family]]:
    """Check the options; return them, with the scheduler's address, and the requested families."""
    for name, used in ALONE.items():
        if getattr(args, name):
            beside = f"--{name.replace('_', '-')}"
            options.refuse_unused(args, {*OF_SESSIONS, "plain_tree", name, *used}, beside)
    if args.jobs is not None and args.jobs < 1:
        raise UserError(f"--jobs {args.jobs}", remedy="give 1 or more")
    if args.real is not None and args.real < 0:
        raise UserError(f"--real {args.real}", remedy="give the number of layers, or none")
    _check_matrix(args)
    args.scheduler = scheduler_of(args, _say)
    asked = chosen(args.family)
    if args.real is None:
        return args, asked
    # Without --family, those whose sizes are known.
    return args, [f.of_real_size(args.real) for f in asked if args.family or f.real]


def _check_matrix(args: argparse.Namespace) -> None:
    if args.scheduler:
        if args.jobs:
            why = "--jobs: workers compute a family at a time"
            raise UserError(why, remedy="leave out --jobs, and start more workers")
        if args.work:
            why = "--work: workers do not send their files"
            raise UserError(why, remedy="leave out --work")
        if args.core:
            why = "--core: workers do not compile for one core"
            raise UserError(why, remedy="leave out --core and --tuned")
    if args.tuned and not args.core:
        raise UserError(
            "--tuned needs --core", remedy="name the core that the database was tuned for"
        )
    if args.work and len(set(args.vlen or ())) > 1:
        raise UserError("--work is written for one VLEN only", remedy="give one --vlen")
    if args.releases and not (args.scheduler or args.report_only):
        why = "--releases: this machine has the trees of one release only"
        raise UserError(why, remedy="give --scheduler HOST:PORT, or --release R alone")


def _check(args: argparse.Namespace) -> None:
    if args.tvm_tree is None:
        raise UserError("no TVM tree was given", remedy="run nox -s zoo, or give --tvm-tree DIR")
    if args.mlc_tree is None:
        missing = read_omissions(args.applied)
        why = next((o.why for o in missing if o.what == "mlc-llm"), "no tree of it was given")
        raise UserError(
            f"the zoo compiles with MLC-LLM, which is missing: {why}", remedy=supply_mlc("zoo")
        )
    MlcTools(mlc_tree=args.mlc_tree, tvm_tree=args.tvm_tree).check()
    need_packages()
    require_qemu()
    find_cross()


def _specs(args: argparse.Namespace, keys: Sequence[MatrixKey]) -> list[Spec]:
    for name in ("mlc_tree", "tvm_tree", "plain_tree", "work", "tuned"):
        if path := getattr(args, name):
            setattr(args, name, path.resolve())
    if args.work:
        args.work.mkdir(parents=True, exist_ok=True)
    recipe = read_recipe(args, FORMATS[0])
    return [
        Spec(
            family=key.family,
            recipe=replace(recipe, quantization=key.quantization, vlens=(key.vlen,)),
            cache=args.cache,
            release=key.release,
            plain_tree=args.plain_tree,
            work=args.work,
            layers=key.layers,
        )
        for key in keys
    ]


def _todo(
    args: argparse.Namespace, requested: Sequence[MatrixKey], known: Sequence[FamilyOutcome]
) -> list[MatrixKey]:
    if args.rerun or args.work or args.tuned:
        return list(requested)
    # Skip cells that are right in the report; failures may have been fixed.
    right = {o.key for o in known if o.outcome is FamilyStatus.RIGHT}
    todo = [key for key in requested if key not in right]
    if kept := len(requested) - len(todo):
        _progress.print(f"{kept} are already right in the report (--rerun runs them again)")
    return todo


def _run_all(args: argparse.Namespace, keys: Sequence[MatrixKey], save: Any) -> list[FamilyOutcome]:
    done = list[FamilyOutcome]()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=_progress, transient=True) as bar:
        task = bar.add_task("zoo", total=len(keys))
        for outcome in _outcomes(args, keys):
            done.append(outcome)
            save(done)
            bar.update(task, advance=1)
            line = f"{outcome.key}: {cell(outcome)}, {outcome.seconds:g} s"
            line += f"; {outcome.schedules}" if outcome.schedules else ""
            bar.console.print(line, markup=False, soft_wrap=True)
    return done


def _outcomes(args: argparse.Namespace, keys: Sequence[MatrixKey]) -> Iterator[FamilyOutcome]:
    if args.scheduler is None:
        yield from outcomes_here(_specs(args, keys), args.jobs or 1, args.timeout)
        return
    labels = {release: _label(args, release) for release in {key.release for key in keys}}
    cells = [
        Cell(str(key), labels[key.release], {"timeout": args.timeout, **_axes(key)}) for key in keys
    ]
    yield from (outcome for _, outcome in compute(args.scheduler, cells, _say))


def _axes(key: MatrixKey) -> dict[str, Any]:
    """Return the options of a cell; trees and release are those of the worker."""
    cell = {"family": [key.family], "quantization": [key.quantization], "vlen": [key.vlen]}
    return {**cell, "real": key.layers}


def _label(args: argparse.Namespace, release: str) -> CodeLabel:
    plain = f"plain: {args.plain_tree is not None}"
    own = release == args.release
    return label_of(__name__, args.project, plain, release=release, own=own)


def compute_cell(args: argparse.Namespace) -> FamilyOutcome:
    """Compute a cell on a worker of its release.

    Raises:
        LabError: a subprocess fails; a UserError keeps its exit code.
    """
    key = MatrixKey(args.family[0], args.quantization[0], args.vlen[0], args.release, args.real)
    specs = _specs(args, [key])
    return next(outcomes_here(specs, 1, args.timeout))


def _say(text: str) -> None:
    _progress.print(text, markup=False, soft_wrap=True)


def _terminal(outcomes: Sequence[FamilyOutcome]) -> Table:
    table = Table("family", "quantization", "VLEN", "release", "outcome", "kernels", "reason")
    for o in outcomes:
        table.add_row(
            o.family,
            o.quantization,
            str(o.vlen),
            o.release,
            cell(o).replace("*", ""),
            f"{o.tensorized}/{o.total}",
            o.reason.replace("[", "\\["),
        )
    return table
