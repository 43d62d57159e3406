# SPDX-License-Identifier: Apache-2.0
"""``crosslab farm``: starts, lists and ends boards that join TVM's RPC tracker."""

from __future__ import annotations

import argparse
import importlib
import itertools
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from boardfarm.agent import Agent, say_line
from boardfarm.agent_tarball import NAME, write_agent
from boardfarm.board_program import build_board
from boardfarm.emulated import EmulatedBoard
from boardfarm.meter import Meter
from boardfarm.options import trees
from boardfarm.processes import (
    FarmProcess,
    FarmState,
    SchedulerState,
    answers,
    await_boards,
    free_port,
    joined_boards,
    start_process,
    start_scheduler,
    start_tracker,
    state_file,
)
from boardfarm.protocol import check_name
from crosslab.address import Address, check_address
from crosslab.assemble.recipe_options import OF_SESSIONS, ONE_VLEN, vlens_of
from crosslab.cores.core import Core
from crosslab.errors import UserError
from crosslab.run.counter_plugin import build_counter
from crosslab.run.emulator import GuestMachine
from groundwork.command_line import LAST_PORT, Parser, port_of
from groundwork.locks import locked

MOST_BOARDS = 256
SCHEDULER = "scheduler.json"
VERBS = {
    "up": "start a tracker and boards; start again those that ended",
    "status": "show the processes and the boards that have joined the tracker",
    "down": "end the boards, the tracker and the scheduler",
    "board": "run one board until stopped",
    "pack": "make a tarball that turns a real board into a board of this farm",
    "scheduler": "start a Dask scheduler; zoo and bench compute on its workers",
}
TUNING = {
    "tune": "search schedules of TIR functions on the boards: tune --help",
    "tune-kernels": "search values of the kernels' parameters for a core: tune-kernels --help",
}

# Options with an effect on each verb, beside trees and folders.
BOARDS = ("core", "vlen", "join", "key", "board_port", "force")
USED = {"up": (*BOARDS, "boards", "port"), "board": BOARDS, "scheduler": ("port", "foreground")}

TUNERS = {"tune": "boardfarm.tune.cli", "tune-kernels": "boardfarm.tune.kernels"}

_console = Console(stderr=True, highlight=False)


def parser() -> Parser:
    """Return the parser of the command line of ``crosslab farm``."""
    about = "count cycles of this core, by the name of its file in cores/"
    options = Parser(
        prog="crosslab farm",
        parents=[trees("core", "vlen", core={"help": about}, vlen=ONE_VLEN)],
        description="Start emulated boards that join TVM's RPC tracker, and tune on them. The "
        "timer of a board counts cycles of --core, or instructions without it.",
        epilog="\n".join(f"{name:12} {text}" for name, text in {**VERBS, **TUNING}.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = options.add_argument
    add("verb", choices=VERBS, metavar="VERB", help="see below")
    add(
        "--boards",
        type=int,
        default=1,
        metavar="N",
        help="emulated boards to run on this machine (1); 0: start only a tracker",
    )
    add("--join", metavar="HOST:PORT", help="join this tracker instead of starting one")
    add("--key", help="name by which clients request these boards (rvv and the vector length)")
    add("--port", type=port_of, default=0, help="port of the new tracker or scheduler (any)")
    add("--board-port", type=port_of, default=0, help="port of the first board, for a tunnel (any)")
    add("--foreground", action="store_true", help=argparse.SUPPRESS)
    add("--force", action="store_true", help="accept an address that other machines can reach")
    return options


def main(argv: Sequence[str]) -> int:
    """Run a verb of ``crosslab farm`` and return its exit code.

    Raises:
        UserError: an option is wrong, or a tool is missing.
        LabError: a process does not start.
    """
    if tuner := TUNERS.get(argv[0]) if argv else None:
        # Imported here: the other verbs do not need TVM.
        return int(importlib.import_module(tuner).main(argv[1:]))
    options = parser()
    args = options.read(argv, partial(_checked, options))
    file = state_file(args.project)
    if args.verb == "board":
        return _board(args)
    if args.verb == "scheduler" and args.foreground:
        from boardfarm.scheduler import serve_scheduler  # noqa: PLC0415 - Dask starts slowly

        with suppress(KeyboardInterrupt):
            serve_scheduler(Address("127.0.0.1", _port(args)), say_line)
        return 0
    file.parent.mkdir(parents=True, exist_ok=True)
    verbs = {"pack": _pack, "up": _up, "down": _down, "status": _status, "scheduler": _scheduler}
    with locked(file.with_name("lock"), "the farm"):
        return verbs[args.verb](args, file)


def _checked(options: Parser, args: argparse.Namespace) -> argparse.Namespace:
    """Return the options of a verb after a check of their values and of their effect."""
    options.refuse_unused(args, {*OF_SESSIONS, *USED.get(args.verb, ())}, args.verb)
    _core(args)
    if args.verb == "up":
        _boards(args)
        if args.join and args.port:
            raise UserError(f"--port {args.port} is for a new tracker", remedy="leave out --port")
    if args.verb == "board" and not args.join:
        raise UserError("farm board needs a tracker", remedy="give --join HOST:PORT")
    if args.join:
        Address.parse(args.join)
    elif args.force:
        raise UserError("--force accepts a tracker", remedy="add --join HOST:PORT")
    if args.key:
        check_name(args.key)
    return args


def _core(args: argparse.Namespace) -> tuple[Core | None, int]:
    """Return the requested core, if any, and the bits of the boards' vector registers."""
    core: Core | None = args.core
    asked = [args.vlen] if args.vlen else []
    return core, vlens_of(asked, [core] if core else [])[0]


def _board(args: argparse.Namespace) -> int:
    core, vlen = _core(args)
    tracker = Address.parse(args.join)
    if warning := check_address(tracker, force=args.force):
        say_line(f"warning: {warning}")
    board = EmulatedBoard(
        program=build_board(_tree(args), args.cache),
        counter=build_counter(args.cache),
        machine=GuestMachine(vlen=vlen, zvfh=core is not None and core.zvfh),
        costs=Meter(core),
    )
    costs, key = board.costs, _key(args, vlen)
    Agent(tracker, key, board.session, costs.unit, costs.database, port=args.board_port).run()
    return 0


def _key(args: argparse.Namespace, vlen: int) -> str:
    return check_name(str(args.key or f"rvv{vlen}"))


def _tree(args: argparse.Namespace) -> Path:
    if args.tvm_tree is None:
        raise UserError("no TVM tree was given", remedy="run nox -s farm, or give --tvm-tree DIR")
    return Path(args.tvm_tree)


def _up(args: argparse.Namespace, file: Path) -> int:
    wanted = _boards(args)
    core, vlen = _core(args)
    key, meter = _key(args, vlen), Meter(core)
    joined = Address.parse(args.join) if args.join else None
    if joined and (warning := check_address(joined, force=args.force)):
        _console.print(f"[yellow]warning:[/] {warning}", soft_wrap=True)
    # Build before any process starts, so that a failure leaves no process behind.
    build_board(_tree(args), args.cache)
    build_counter(args.cache)
    before = same_farm(FarmState.read(file), joined, args.port, (key, meter.unit, vlen))
    own = before.tracker if before and not args.port else Address("127.0.0.1", _port(args))
    address = joined or own
    service = before.service if before else None
    if joined is None and not (service and service.alive and answers(address)):
        if service:
            service.end()
        service = start_tracker(address, file.with_name("tracker.log"))
    boards = [board for board in before.boards if board.alive] if before else []
    state = FarmState(address, key, meter.unit, vlen, service, tuple(boards))
    state.write(file)
    options = ["farm", "board", "--join", str(address), "--key", key, "--vlen", str(vlen)]
    options += ["--project", str(args.project.resolve()), "--tvm-tree", str(_tree(args).resolve())]
    options += ["--cache", str(args.cache), *(["--core", core.key] if core else [])]
    options += ["--force"] * args.force
    while len(boards) < wanted:
        number = free_number(boards)
        port = args.board_port + number if args.board_port else 0
        log = file.with_name(board_log(number))
        boards.append(start_process("crosslab", [*options, "--board-port", str(port)], log))
        # Write at once, so that `down` finds the board even after a failure.
        replace(state, boards=tuple(boards)).write(file)
    for board in boards[wanted:]:
        board.end()
    state = replace(state, boards=tuple(boards[:wanted]))
    state.write(file)
    if joined is None:
        await_boards(state, len(state.boards))
    return _status(args, file)


def board_log(number: int) -> str:
    """Return the name of the log of a board with this number, which is added to --board-port."""
    return f"board-{number}.log"


def free_number(boards: Sequence[FarmProcess]) -> int:
    """Return the smallest number that none of these boards has: the others may have ended."""
    logs = {Path(board.log).name for board in boards}
    return next(number for number in itertools.count() if board_log(number) not in logs)


def _pack(args: argparse.Namespace, _file: Path) -> int:
    tarball = write_agent(
        build_board(_tree(args), args.cache), args.project, args.project.resolve() / "dist"
    )
    print(f"{tarball}\non the board: tar xf {tarball.name} && {NAME}/join.sh --help")
    return 0


def _scheduler(args: argparse.Namespace, farm: Path) -> int:
    file = farm.with_name(SCHEDULER)
    known = SchedulerState.read(file)
    if known is None or not known.process.alive:
        known = start_scheduler(Address("127.0.0.1", _port(args)), file)
    print(f"scheduler {known.address}: answers; `down` ends it")
    return 0


def _boards(args: argparse.Namespace) -> int:
    # With 0 boards, a new tracker waits for boards of other machines.
    least = 0 if args.verb == "up" and not args.join else 1
    if not least <= args.boards <= MOST_BOARDS:
        remedy = f"give a number from {least} to {MOST_BOARDS}"
        raise UserError(f"--boards {args.boards}", remedy=remedy)
    if args.board_port and args.board_port + args.boards - 1 > LAST_PORT:
        raise UserError(
            f"--board-port {args.board_port}: {args.boards} boards need ports above {LAST_PORT}",
            remedy=f"give at most {LAST_PORT + 1 - args.boards}",
        )
    return int(args.boards)


def _port(args: argparse.Namespace) -> int:
    return int(args.port) or free_port()


def same_farm(
    known: FarmState | None, joined: Address | None, port: int, boards: tuple[str, str, int]
) -> FarmState | None:
    """Return the known farm if it fits the request, else None.

    A farm that has ended fits if it and the request have a tracker of their own, and the same key.
    The tracker's address is then used again, unless the request has a port.

    Args:
        known: the farm in the state file, if any.
        joined: the tracker to join; None: the farm has a tracker of its own.
        port: of the requested tracker; 0: any.
        boards: name by which clients request the boards, unit that the boards count, and bits of
            their vector registers.

    Raises:
        UserError: a running farm has another tracker or other boards.
    """
    if known is None or not any(p.alive for p in (known.service, *known.boards) if p):
        own = known and known.service and joined is None and known.key == boards[0]
        return known if own else None
    wanted = joined or Address(known.tracker.host, port or known.tracker.port)
    same_tracker = (known.tracker, known.service is not None) == (wanted, joined is None)
    if same_tracker and (known.key, known.measure, known.vlen) == boards:
        return known
    raise UserError(
        f"another farm is up: {known.key}, {known.measure}, VLEN {known.vlen}, at {known.tracker}",
        remedy="end it first: nox -s farm -- down",
    )


def _down(_args: argparse.Namespace, file: Path) -> int:
    kept = file.with_name(SCHEDULER)
    if scheduler := SchedulerState.read(kept):
        scheduler.process.end()
        kept.unlink()
        print(f"ended: the scheduler {scheduler.address}")
    state = FarmState.read(file)
    if state is None:
        print("no farm is up")
        return 0
    for process in (*state.boards, *([state.service] if state.service else [])):
        process.end()
    file.unlink()
    print(f"ended: {len(state.boards)} boards" + (" and the tracker" if state.service else ""))
    return 0


def _status(_args: argparse.Namespace, file: Path) -> int:
    """Print the farm's state; return 1 unless the tracker and all boards run."""
    state = FarmState.read(file)
    if state is None:
        print("no farm is up; start one: nox -s farm -- up --boards N --core NAME")
        return 1
    alive = sum(board.alive for board in state.boards)
    answering = answers(state.tracker)
    print(f"tracker {state.tracker}: {'answers' if answering else 'does not answer'}")
    print(f"boards of this machine: {alive} of {len(state.boards)} run, measuring {state.measure}")
    joined = Counter(joined_boards(state.tracker, state.key))
    print(f"boards that have joined as {state.key}: {joined.total()}")
    for board, count in sorted(joined.items()):
        print(f"  {count} measuring {board.measure}, for the database {board.core}")
    whole = answering and alive == len(state.boards)
    if not whole:
        print(
            "some processes have ended: start them again with the same `up`, or end all with `down`"
        )
    return 0 if whole else 1
