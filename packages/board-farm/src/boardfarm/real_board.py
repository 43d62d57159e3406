# SPDX-License-Identifier: Apache-2.0
"""The agent of a real board: it joins a tracker and measures with the counters of the kernel.

It imports the standard library only, because it runs from a tarball on the board's own python3.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from boardfarm.agent import Agent, say_line
from boardfarm.board_session import BoardSession
from boardfarm.protocol import check_name
from crosslab.address import Address, check_address
from crosslab.errors import LabError, UserError
from groundwork.errors import exit_code_of

# Values of the program's argument METER, with their names for people.
EVENTS = {"cycles": "cycles of the board", "task-clock": "nanoseconds of the board's task clock"}
# The command that runs the program on a machine of another architecture.
EMULATOR = "MLC_RVV_EMULATOR"


def main(argv: Sequence[str]) -> int:
    """Serve the tracker's clients until stopped, and return 0.

    Raises:
        UserError: an option is wrong, or the kernel does not count.
        LabError: the program does not run here.
    """
    options = argparse.ArgumentParser(prog="join.sh", description=__doc__, allow_abbrev=False)
    add = options.add_argument
    add("tracker", metavar="HOST:PORT", help="address of the tracker, or of a tunnel to it")
    add("--key", required=True, help="name by which clients request this board")
    add("--measure", choices=EVENTS, default="cycles", help="unit that the board counts (cycles)")
    add("--core", help="core whose database stores the results (the key)")
    add("--port", type=int, default=0, help="port of this board, for a tunnel (any)")
    add("--force", action="store_true", help="accept an address that other machines can reach")
    program = Path(__file__).parents[2] / "board"
    add("--program", type=Path, default=program, help=argparse.SUPPRESS)
    args = options.parse_args(argv)
    tracker, key = Address.parse(args.tracker), check_name(args.key)
    core = check_name(args.core, "--core") if args.core else key
    if warning := check_address(tracker, force=args.force):
        say_line(f"warning: {warning}")
    emulator = shlex.split(os.environ.get(EMULATOR, ""))
    check_program([*emulator, str(args.program)], args.measure)
    board = BoardSession(args.program, args.measure, emulator)
    Agent(tracker, key, board.session, EVENTS[args.measure], core, port=args.port).run()
    return 0


def check_program(command: Sequence[str], measure: str) -> None:
    """Check that the board's program runs here, and that the kernel counts ``measure``.

    Raises:
        UserError: the kernel does not count.
        LabError: the program does not run here.
    """
    try:
        done = subprocess.run(
            [*command, "check", measure], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise LabError(
            f"{command[0]} does not run here: {error.strerror}",
            remedy=f"on another machine set {EMULATOR} to an emulator's command",
        ) from error
    message = done.stderr.strip().removeprefix("board: ")
    if done.returncode == 1:
        raise UserError(message)
    if done.returncode:
        raise LabError(f"{shlex.join(command)} ended with {done.returncode}: {message}")


if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: main(sys.argv[1:]), UserError, "join.sh"))
