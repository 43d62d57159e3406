# SPDX-License-Identifier: Apache-2.0
"""Cells of a matrix (zoo, bench) on the workers of a Dask scheduler.

Scheduler and workers run this project's code: ``nox -s farm -- scheduler``, and ``--worker`` of a
command. A worker takes cells of its own command alone, from clients whose code is the same.
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
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from boardfarm.protocol import Address, check_address
from crosslab.errors import LabError, UserError
from groundwork.hashing import digest

# What decides a cell's result, beside TVM's version and its options.
CODE = ("VERSIONS.lock", "cores", "kernels", "overlays", "patches", "runner", "scripts")
# A cell that ends as many workers is at fault itself.
ATTEMPTS = 3
CONNECT_SECONDS = 30.0
LOOK_SECONDS = 10.0
START = "nox -s farm -- scheduler --port PORT"


@dataclass(frozen=True)
class CodeLabel:
    """Code and release of a cell, which its client and its worker have in common.

    Attributes:
        command: module of it.
        code: digest of whatever decides a result.
        release: of the trees; empty where the command does not say.
    """

    command: str
    code: str
    release: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.command, self.release, self.code)))

    @property
    def whose(self) -> str:
        """For messages."""
        return f" for release {self.release}" if self.release else ""


@dataclass(frozen=True)
class MatrixCell:
    """One cell of a matrix.

    Attributes:
        module: whose ``compute_cell(options)`` makes its result.
        options: of the module's command, those aside that are the worker's own (trees, folders).
        label: of the workers that may compute it.
    """

    module: str
    options: tuple[str, ...]
    label: CodeLabel

    def __str__(self) -> str:
        return " ".join(self.options)


def add_options(add: Callable[..., Any]) -> None:
    """Add the options of a command whose cells can be computed elsewhere."""
    add("--scheduler", metavar="HOST:PORT", help="compute on the workers of this Dask scheduler")
    add("--worker", metavar="HOST:PORT", help="compute what clients of this scheduler ask for")
    add("--worker-port", type=int, default=0, metavar="PORT", help="of a worker behind a tunnel")
    add("--force", action="store_true", help="take a scheduler's address that others reach, too")


def path_options(paths: Mapping[str, Path | None]) -> list[str]:
    """A machine's own trees and folders as options; those that it has not are left out."""
    return [text for name, path in paths.items() if path for text in (name, str(path.resolve()))]


def scheduler_of(args: argparse.Namespace, say: Callable[[str], None]) -> Address | None:
    """The scheduler that the options name, as a client's or a worker's.

    Raises:
        UserError: both are given, it is no address, other machines reach it, or none answers.
    """
    if args.scheduler and args.worker:
        raise UserError("--scheduler and --worker: a command is one of them")
    text = args.scheduler or args.worker
    if not text:
        return None
    address = Address.parse(text.removeprefix("tcp://"))
    if warning := check_address(address, force=args.force):
        say(f"warning: {warning}")
    try:
        socket.create_connection(address.pair, CONNECT_SECONDS).close()
    except OSError as error:
        why = f"no scheduler answers at {address}: {error.strerror or error}"
        raise UserError(why, remedy=f"start one: {START}") from error
    return address


def label_of(
    module: str, project: Path, *parts: str, release: str = "", elsewhere: bool = False
) -> CodeLabel:
    """Label of a command's code: a cell goes to workers of the same label.

    Args:
        module: of the command.
        project: the project's root.
        parts: whatever else has to be the same.
        release: whose trees compute.
        elsewhere: not in this environment, but in one that has the release's TVM.
    """
    try:
        tvm = _locked_tvm(project, release) if elsewhere else version("apache-tvm")
    except PackageNotFoundError:
        tvm = "none"
    files = [project / name for name in CODE if (project / name).exists()]
    return CodeLabel(module, digest(module, tvm, *CODE, *files, *parts), release)


def _locked_tvm(project: Path, release: str) -> str:
    """TVM's version in a release.

    Raises:
        UserError: the lock has no such release.
    """
    lock = project / "VERSIONS.lock"
    releases = tomllib.loads(lock.read_text("utf-8"))["releases"] if lock.is_file() else {}
    if release not in releases:
        known = ", ".join(releases) or "none"
        raise UserError(f"no release {release} in {lock}", remedy=f"its releases: {known}")
    return str(releases[release]["tvm"])


def compute(
    scheduler: Address, cells: Sequence[MatrixCell], say: Callable[[str], None]
) -> Iterator[tuple[MatrixCell, Any]]:
    """Let workers compute cells; yields each with its result as it is done.

    A cell whose worker ends is given to another one. What runs when the caller stops is finished by
    its worker, and thrown away.

    Args:
        scheduler: its address.
        cells: what to compute.
        say: gets a line where workers are missing.

    Raises:
        UserError: no worker of a cell's label has joined; or a cell's own.
        LabError: a cell fails, or ended every worker that took it.
    """
    from distributed import Client, KilledWorker, wait  # noqa: PLC0415 - not in every environment

    with Client(f"tcp://{scheduler}", timeout=CONNECT_SECONDS) as client:
        for label in dict.fromkeys(cell.label for cell in cells):
            _need_worker(client, label, scheduler)
        futures = {
            client.submit(
                run_cell,
                cell,
                key=f"{cell.label}-{digest(*cell.options)}",
                resources={str(cell.label): 1},
            ): cell
            for cell in cells
        }
        warned = set[CodeLabel]()
        while futures:
            with suppress(TimeoutError):
                wait(list(futures), timeout=LOOK_SECONDS, return_when="FIRST_COMPLETED")
            done = [future for future in futures if future.done()]
            for future in done:
                cell = futures.pop(future)
                try:
                    yield cell, future.result()
                except KilledWorker as error:
                    raise LabError(
                        f"{cell}: {ATTEMPTS} workers ended while they computed it"
                    ) from error
            if not done:
                there = {label for labels in _workers(client) for label in labels}
                left = {cell.label for cell in futures.values() if str(cell.label) not in there}
                for label in left - warned:
                    who = f"no worker{label.whose} is left at {scheduler}"
                    say(f"{who}; waiting for one: --worker {scheduler}")
                warned |= left


def run_cell(cell: MatrixCell) -> Any:
    """Compute a cell; runs on a worker, whose own options come first."""
    from distributed import get_worker  # noqa: PLC0415

    module = importlib.import_module(cell.module)
    return module.compute_cell([*get_worker().own_options, *cell.options])


def _workers(client: Any) -> list[Mapping[str, float]]:
    """Labels of each worker."""
    return [worker["resources"] for worker in client.scheduler_info()["workers"].values()]


def _need_worker(client: Any, label: CodeLabel, scheduler: Address) -> None:
    workers = _workers(client)
    if any(str(label) in labels for labels in workers):
        return
    others = len(workers)
    code = "other code, of another release" if label.release else "other code"
    why = f"{others} have, all with {code} or for another command" if others else "none has"
    own = f"--release {label.release} as its only other option" if label.release else "no options"
    raise UserError(
        f"no worker at {scheduler} computes this{label.whose}: {why}",
        remedy=f"on the same commit: the same command with --worker {scheduler} and {own}",
    )


def serve_scheduler(address: Address, say: Callable[[str], None]) -> None:
    """Be a scheduler until stopped.

    Raises:
        UserError: the address is taken.
    """
    from distributed import Scheduler  # noqa: PLC0415

    # Its own account of every connection.
    logging.disable(logging.INFO)

    async def run() -> None:
        try:
            async with Scheduler(
                host=address.host,
                port=address.port,
                dashboard_address="127.0.0.1:0",
                allowed_failures=ATTEMPTS - 1,
            ) as scheduler:
                say(f"scheduler at {scheduler.address.removeprefix('tcp://')}")
                await scheduler.finished()
        except OSError as error:
            raise UserError(
                f"{address}: {error.strerror or error}", remedy="give another --port"
            ) from error

    asyncio.run(run())


def serve_worker(
    scheduler: Address, label: CodeLabel, own: Sequence[str], port: int, say: Callable[[str], None]
) -> None:
    """Be a worker, of one cell at a time, until stopped or the scheduler ends.

    Args:
        scheduler: its address.
        label: of this code.
        own: options of the command that are this machine's: trees and folders.
        port: where the scheduler reaches it; 0: any.
        say: gets a line for each event.
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
                # A cell's emulator and compiler are processes of their own.
                memory_limit=None,
                host="127.0.0.1" if scheduler.is_loopback else None,
                port=port,
                dashboard_address="127.0.0.1:0",
            )
            worker.own_options = tuple(own)
            async with worker:
                say(f"joined {scheduler}")
                await worker.finished()
        say("ended")

    asyncio.run(run())
