# SPDX-License-Identifier: Apache-2.0
"""Candidates that crash, hang or lie, on an emulated board that goes on working."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from sleeping_boards import KEY, boards_in_threads
from support import shared_builds

pytest.importorskip("tornado")
pytest.importorskip("tvm")

from boardfarm.board_program import build_board
from boardfarm.emulated import EmulatedBoard
from boardfarm.meter import Meter
from boardfarm.processes import free_port, start_tracker
from boardfarm.tune.trial import TrialQuestion, answer_of, trial
from crosslab.address import Address
from crosslab.cached_build import default_cache
from crosslab.host.toolchain import find_cross
from crosslab.run.counter_plugin import build_counter
from crosslab.run.emulator import GuestMachine

pytestmark = [pytest.mark.usefixtures("counting_emulator"), pytest.mark.thorough]

# The calling convention of TVM's functions; the argument does not change.
FUNCTION = "int __tvm_ffi_main(void *self, const void *args, int count, void *result) {{ {} }}"
BODIES = {
    "honest": "return 0;",
    "crash": "*(volatile int *)8 = 1; return 0;",
    "hang": 'for (;;) __asm__ volatile("");',
    # data of the DLTensor that the first argument's eight bytes at 8 point to
    "lie": "(**(float ***)((char *)args + 8))[1] = 9; return 0;",
}


def _library(folder: Path, name: str) -> Path:
    source, library = folder / f"{name}.c", folder / f"{name}.so"
    source.write_text(FUNCTION.format(BODIES[name]))
    cross = find_cross()
    command = [*cross.cc, *cross.link, "-O1", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    return library


def test_candidates_at_fault_are_told_apart_and_the_board_goes_on(tmp_path: Path) -> None:
    cache, address = default_cache(), Address("127.0.0.1", free_port())
    program = build_board(shared_builds.tvm_tree(), cache)
    board = EmulatedBoard(
        program=program,
        counter=build_counter(cache),
        machine=GuestMachine(vlen=256),
        costs=Meter(None),
    )
    files = {name: _library(tmp_path, name) for name in BODIES}
    patient = TrialQuestion(address, KEY, ((4,),), ("float32",), seconds=120)
    hasty = TrialQuestion(address, KEY, ((4,),), ("float32",), seconds=4)
    tracker = start_tracker(address, tmp_path / "tracker.log")
    try:
        with boards_in_threads(address, [board.session]):
            right = {0: answer_of(patient, files["honest"], [0]).arrays[0]}
            reasons = {
                name: trial(hasty if name == "hang" else patient, str(files[name]), right)[1]
                for name in ("crash", "hang", "lie")
            }
            cost, reason = trial(patient, str(files["honest"]), right)
    finally:
        tracker.end()
    assert reasons["crash"].startswith("lost: ")
    assert reasons["hang"].startswith("hung: did not end within 4 s")
    assert reasons["lie"].startswith("wrong: argument 0")
    assert reason == "" and cost > 0
