# SPDX-License-Identifier: Apache-2.0
"""Computation of the cells of zoo and bench on the workers of a Dask scheduler.

``--worker`` starts a worker, ``--scheduler`` sends cells to the workers. A worker accepts only
cells of its own command, from clients with the same code. The package board-farm starts the
scheduler.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import socket
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from crosslab.address import Address, check_address
from crosslab.errors import LabError, UserError
from groundwork.command_line import at_first_look, port_of
from groundwork.hashing import digest

# The files that decide the result of a cell.
CODE = ("VERSIONS.lock", "cores", "kernels", "overlays", "packages", "patches", "runner")
# A cell fails when this many workers ended while they computed it.
ATTEMPTS = 3
CONNECT_SECONDS = 30.0
LOOK_SECONDS = 10.0


@dataclass(frozen=True)
class CodeLabel:
    """Label of code and release that a client and its workers share.

    Attributes:
        module: module with the function ``compute_cell(args)``, which computes a cell.
        code: digest of all inputs that determine a result.
        release: release of the trees; empty if the command does not give it.
    """

    module: str
    code: str
    release: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.module, self.release, self.code)))

    @property
    def note(self) -> str:
        """Text about the release for messages; empty without a release."""
        return f" for release {self.release}" if self.release else ""


@dataclass(frozen=True, eq=False)
class Cell:
    """A cell of a table.

    Attributes:
        name: name for messages.
        label: label of workers that may compute the cell.
        values: parsed options of the command; the worker adds its own trees and folders.
    """

    name: str
    label: CodeLabel
    values: Mapping[str, Any]


def add_options(add: Callable[..., Any]) -> None:
    """Add the options of a command whose cells workers can compute, by a parser's ``add``."""
    add("--scheduler", metavar="HOST:PORT", help="compute on the workers of this Dask scheduler")
    add("--worker", metavar="HOST:PORT", help="be a worker of this Dask scheduler")
    add("--worker-port", type=port_of, default=0, metavar="PORT", help="port of the worker (any)")
    add("--force", action="store_true", help="accept a scheduler that other machines can reach")


def scheduler_of(args: argparse.Namespace, say: Callable[[str], None]) -> Address | None:
    """Return the address of the scheduler from the options; None for this machine.

    A first look neither imports Dask nor connects to the scheduler.

    Raises:
        UserError: both options are given, or neither with an option of theirs, the address is not
            valid, other machines can reach it and ``--force`` is not given, no scheduler answers,
            or Dask is not installed.
    """
    if args.scheduler and args.worker:
        raise UserError("give --scheduler or --worker, not both")
    if args.worker_port and not args.worker:
        raise UserError("--worker-port is the port of a worker", remedy="add --worker HOST:PORT")
    if args.force and not (args.scheduler or args.worker):
        raise UserError(
            "--force accepts a scheduler", remedy="add --scheduler HOST:PORT or --worker HOST:PORT"
        )
    text = args.scheduler or args.worker
    if not text:
        return None
    address = Address.parse(text.removeprefix("tcp://"))
    warning = check_address(address, force=args.force)
    if at_first_look():
        return address
    if warning:
        say(f"warning: {warning}")
    if not find_spec("distributed"):
        remedy = "the package board-farm brings it: nox -s SESSION -- --with board-farm ..."
        raise UserError("Dask is not installed", remedy=remedy)
    try:
        socket.create_connection(address.pair, CONNECT_SECONDS).close()
    except OSError as error:
        why = f"no scheduler answers at {address}: {error.strerror or error}"
        raise UserError(why, remedy="start one: nox -s farm -- scheduler --port PORT") from error
    return address


def label_of(
    module: str, project: Path, *parts: str, release: str = "", own: bool = True
) -> CodeLabel:
    """Return the label of a command's code, TVM's version and ``parts``.

    Args:
        module: module of the command.
        project: the project's root.
        parts: other values that client and worker must share.
        release: release of the trees.
        own: True: the release is installed in this environment; False: look up its TVM in the lock.

    Raises:
        UserError: ``own`` is False, and the lock does not have the release.
    """
    try:
        tvm = version("apache-tvm") if own else _locked_tvm(project / "VERSIONS.lock", release)
    except PackageNotFoundError:
        tvm = "none"
    files = [project / name for name in CODE if (project / name).exists()]
    return CodeLabel(module, digest(module, tvm, *CODE, *files, *parts), release)


def _locked_tvm(lock: Path, release: str) -> str:
    releases = tomllib.loads(lock.read_text("utf-8"))["releases"] if lock.is_file() else {}
    if release not in releases:
        known = ", ".join(releases) or "none"
        raise UserError(f"{lock} does not have the release {release}", remedy=f"it has: {known}")
    return str(releases[release]["tvm"])


def compute(
    scheduler: Address, cells: Sequence[Cell], say: Callable[[str], None]
) -> Iterator[tuple[Cell, Any]]:
    """Compute cells on workers; yield each cell with its result, in the order of completion.

    When a worker ends, another worker computes its cell.

    Args:
        scheduler: address of the scheduler.
        cells: cells to compute.
        say: receives a line when no worker is left for some cells.

    Raises:
        UserError: no worker has the label of a cell, or a cell raised it.
        LabError: a cell fails, or ``ATTEMPTS`` workers ended while they computed it.
    """
    from distributed import Client, KilledWorker, wait  # noqa: PLC0415 - it is optional

    labels = dict.fromkeys(cell.label for cell in cells)
    with Client(f"tcp://{scheduler}", timeout=CONNECT_SECONDS) as client:
        for label in labels:
            _require_worker(label, _labels_at(client), scheduler)
        futures = dict[Any, Cell]()
        for label in labels:
            labelled = [cell for cell in cells if cell.label == label]
            keys = [f"{label}-{digest(repr(sorted(cell.values.items())))}" for cell in labelled]
            submitted = client.map(run_cell, labelled, key=keys, resources={str(label): 1})
            futures |= zip(submitted, labelled, strict=True)
        warned = set[CodeLabel]()
        while futures:
            try:
                done = wait([*futures], timeout=LOOK_SECONDS, return_when="FIRST_COMPLETED").done
            except TimeoutError:
                present = {name for names in _labels_at(client) for name in names}
                missing = {c.label for c in futures.values() if str(c.label) not in present}
                for label in missing - warned:
                    say(f"no worker{label.note} is left: start one with --worker {scheduler}")
                warned |= missing
                continue
            for future in done:
                cell = futures.pop(future)
                try:
                    yield cell, future.result()
                except KilledWorker as error:
                    why = f"{cell.name}: {ATTEMPTS} workers ended while they computed it"
                    raise LabError(why) from error


def run_cell(cell: Cell) -> Any:
    """Compute a cell on a worker, with the worker's own trees and folders."""
    from distributed import get_worker  # noqa: PLC0415

    args = argparse.Namespace(**{**vars(get_worker().own_args), **cell.values})
    return importlib.import_module(cell.label.module).compute_cell(args)


def _labels_at(client: Any) -> list[Mapping[str, float]]:
    return [worker["resources"] for worker in client.scheduler_info()["workers"].values()]


def _require_worker(
    label: CodeLabel, workers: Sequence[Mapping[str, float]], scheduler: Address
) -> None:
    if any(str(label) in labels for labels in workers):
        return
    other = "other code or another release" if label.release else "other code"
    joined = f"{len(workers)} joined, with {other}, or for another command"
    options = f"only --release {label.release}" if label.release else "no other options"
    raise UserError(
        f"no worker at {scheduler} computes this{label.note}: "
        f"{joined if workers else 'none joined'}",
        remedy=f"on the same commit, run the same command with --worker {scheduler} and {options}",
    )


def serve_worker(
    scheduler: Address, label: CodeLabel, args: argparse.Namespace, say: Callable[[str], None]
) -> None:
    """Compute one cell at a time until stopped or until the scheduler ends.

    Args:
        scheduler: address of the scheduler.
        label: label of this code.
        args: parsed options of the command, with this machine's trees and folders.
        say: receives a line for each event.
    """
    from distributed import Worker  # noqa: PLC0415

    logging.disable(logging.INFO)

    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="worker-") as folder:
            worker = Worker(
                f"tcp://{scheduler}",
                nthreads=1,
                resources={str(label): 1},
                local_directory=folder,
                memory_limit=None,  # the emulator and the compiler are other processes
                host="127.0.0.1" if scheduler.is_loopback else None,
                port=args.worker_port,
                dashboard_address="127.0.0.1:0",
            )
            worker.own_args = args
            async with worker:
                say(f"joined {scheduler}")
                await worker.finished()
        say("ended")

    asyncio.run(run())
