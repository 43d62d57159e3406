# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""An emulated board, and upstream's own RPCRunner on it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import shared_builds

pytest.importorskip("tornado")
tvm = pytest.importorskip("tvm")

from tvm import rpc, te
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, RPCConfig, RPCRunner, RunnerInput

from boardfarm.agent import Agent
from boardfarm.board_program import build_board
from boardfarm.emulated import EmulatedBoard
from boardfarm.meter import Meter
from boardfarm.processes import free_port, start_tracker
from crosslab.address import Address
from crosslab.cached_build import default_cache
from crosslab.compile.targets import LabTarget
from crosslab.cores.core import read_core
from crosslab.host.toolchain import find_cross
from crosslab.run.counter_plugin import build_counter
from crosslab.run.emulator import GuestMachine

pytestmark = pytest.mark.usefixtures("counting_emulator")

CORES = Path(__file__).parents[4] / "cores"
KEY = "test"
ROWS, COLUMNS, DEPTH = 8, 16, 16


@pytest.fixture(scope="module")
def ended() -> list[str]:
    """The sessions' ends, in order."""
    return []


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory, ended: list[str]) -> Iterator[Address]:
    """A tracker that one emulated X60 has joined."""
    cache, address = default_cache(), Address("127.0.0.1", free_port())
    board = EmulatedBoard(
        program=build_board(shared_builds.tvm_tree(), cache),
        counter=build_counter(cache),
        machine=GuestMachine(vlen=256),
        costs=Meter(read_core(CORES, "spacemit-x60")),
    )
    process = start_tracker(address, tmp_path_factory.mktemp("farm") / "tracker.log")
    agent = Agent(address, KEY, board.session, board.costs.unit, "x60", say=ended.append)
    thread = threading.Thread(target=agent.serve, daemon=True)
    thread.start()
    yield address
    agent.stopped.set()
    thread.join(10)
    process.end()


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A matrix product for the board: function and shared library."""
    a = te.placeholder((ROWS, DEPTH), name="A")
    b = te.placeholder((DEPTH, COLUMNS), name="B")
    k = te.reduce_axis((0, DEPTH), name="k")
    c = te.compute((ROWS, COLUMNS), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    function = te.create_prim_func([a, b, c])
    library = tvm.compile(tvm.IRModule({"main": function}), LabTarget("riscv64", 256).table())
    file = tmp_path_factory.mktemp("product") / "product.so"
    cross = find_cross()
    library.export_library(
        str(file),
        fcompile=tvm.support.cc.cross_compiler(cross.cc[0], options=[*cross.cc[1:], *cross.link]),
    )
    return function, file


def test_upstreams_runner_returns_the_same_cycles_in_every_session(
    tracker: Address, product: tuple[Any, Path]
) -> None:
    function, file = product
    runner = RPCRunner(
        RPCConfig(tracker.host, tracker.port, KEY, session_timeout_sec=120),
        EvaluatorConfig(number=1, repeat=2, min_repeat_ms=0),
    )
    asked = RunnerInput(str(file), "cpu", ArgInfo.from_prim_func(function))
    results = [runner.run([asked])[0].result() for _ in range(2)]
    assert [result.error_msg for result in results] == [None, None]
    cycles = [round(float(s) * 1e9) for result in results for s in result.run_secs]
    assert len(cycles) == 4
    assert len(set(cycles)) == 1
    # One multiply-add each, at most 32 lanes a cycle; and not the emulator's time, which is ms.
    assert ROWS * COLUMNS * DEPTH / 32 < cycles[0] < 100 * ROWS * COLUMNS * DEPTH


def test_the_board_computes_what_numpy_does(
    tracker: Address, product: tuple[Any, Path], ended: list[str]
) -> None:
    session = rpc.connect_tracker(*tracker.pair).request(KEY, session_timeout=120)
    session.upload(str(product[1]))
    device, module = session.cpu(), session.load_module(product[1].name)
    random = np.random.default_rng(0)
    shapes = ((ROWS, DEPTH), (DEPTH, COLUMNS), (ROWS, COLUMNS))
    arrays = [random.random(shape, dtype=np.float32) for shape in shapes]
    remote = [tvm.runtime.tensor(array, device) for array in arrays]
    module["main"](*remote)
    np.testing.assert_allclose(remote[2].numpy(), arrays[0] @ arrays[1], rtol=1e-5)
    with pytest.raises(Exception, match="not the name of a file"):
        session.upload(bytearray(b"x"), "../outside")


def test_the_third_mark_reports_and_begins_anew(tmp_path: Path) -> None:
    source = tmp_path / "program.S"
    region = ".word 0x7c102013\n{}\n.word 0x7c202013\n"
    body = region.format("nop\n" * 5) + ".word 0x7c302013\n" + region.format("nop\n" * 7)
    source.write_text(
        ".option norvc\n.option norelax\n.globl _start\n_start:\n"
        f"{body} li a0, 0\n li a7, 93\n ecall\n"
    )
    program, report = tmp_path / "program", tmp_path / "counts.json"
    cross = find_cross()
    subprocess.run(
        [*cross.cc, *cross.link, "-nostdlib", "-static", str(source), "-o", str(program)],
        check=True,
    )
    counter = build_counter(default_cache())
    option = f"{counter.plugin},out={report}"
    command = [*counter.qemu.command, "-plugin", option, str(program)]
    subprocess.run(command, check=True, timeout=60)
    # What is left at the end is what came after the report: the second region alone.
    assert Meter(None).read(report) == 7
