# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""The agent of a real board: its tarball, what it refuses, and what it measures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support import shared_builds

pytest.importorskip("tornado")
tvm = pytest.importorskip("tvm")

from tvm import rpc, te

from boardfarm.agent_tarball import NAME, write_agent
from boardfarm.board_program import build_board
from boardfarm.processes import free_port, joined_boards, start_tracker
from boardfarm.real_board import EVENTS, check_program
from crosslab.address import Address
from crosslab.cached_build import default_cache
from crosslab.errors import UserError
from crosslab.host.toolchain import SYSROOT, find_native, require_qemu
from crosslab.run.emulator import GuestMachine

PROJECT = Path(__file__).parents[4]
KEY = "desk"


def unpacked(program: Path, folder: Path) -> Path:
    tarball = write_agent(program, PROJECT, folder / "dist")
    subprocess.run(["tar", "xf", str(tarball), "-C", str(folder)], check=True)
    return folder / NAME


def join(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    line = [str(folder / "join.sh"), *arguments]
    variables = {**os.environ, "PYTHONPATH": "", **variables}
    return subprocess.run(
        line, capture_output=True, text=True, check=False, timeout=60, env=variables
    )


def test_the_tarball_needs_pythons_own_library_alone_and_is_the_same_again(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"no program")
    program.chmod(0o755)
    folder = unpacked(program, tmp_path)
    first = (tmp_path / "dist" / f"{NAME}.tar").read_bytes()
    assert write_agent(program, PROJECT, tmp_path / "again").read_bytes() == first
    code = f"import sys; sys.path.insert(0, {str(folder / 'agent')!r})\n"
    code += "import boardfarm.real_board as found; print(found.__file__)"
    line = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(folder / "agent/boardfarm/real_board.py")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["203.0.113.1:9190", "--key", KEY], "not on this machine's loopback"),
        (["127.0.0.1:9190", "--key", "a b"], "--key 'a b'"),
        (["127.0.0.1:9190", "--key", "../x"], "--key '../x'"),
        (["127.0.0.1:9190", "--key", KEY, "--core", "../../x"], "--core '../../x'"),
        (["nowhere", "--key", KEY], "is not HOST:PORT"),
        (["127.0.0.1:9190"], "--key"),
    ],
)
def test_a_board_refuses_what_it_cannot_join(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"no program")
    done = join(unpacked(program, tmp_path), *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
@pytest.mark.usefixtures("emulator")
def test_the_agent_ends_when_the_kernel_does_not_count(tmp_path: Path) -> None:
    folder = unpacked(build_board(shared_builds.tvm_tree(), default_cache()), tmp_path)
    machine = GuestMachine(vlen=256)
    emulator = f"{require_qemu().path} -cpu {machine.cpu} -L {SYSROOT}"
    done = join(folder, "127.0.0.1:9190", "--key", KEY, MLC_RVV_EMULATOR=emulator)
    assert done.returncode == 2, done.stderr
    assert "the kernel does not count cycles (perf_event_open: " in done.stderr
    assert "--measure task-clock" in done.stderr


@pytest.mark.long
def test_a_board_measures_by_its_kernels_counters(tmp_path: Path) -> None:
    program = build_board(shared_builds.tvm_tree(), default_cache(), find_native())
    try:
        check_program([str(program)], "task-clock")
    except UserError as error:
        pytest.skip(error.what)
    folder, address = unpacked(program, tmp_path), Address("127.0.0.1", free_port())
    a = te.placeholder((256, 256), name="A")
    k = te.reduce_axis((0, 256), name="k")
    c = te.compute((256, 256), lambda i, j: te.sum(a[i, k] * a[j, k], axis=k), name="C")
    library = tmp_path / "product.so"
    tvm.compile(tvm.IRModule({"main": te.create_prim_func([a, c])}), "llvm").export_library(library)
    tracker = start_tracker(address, tmp_path / "tracker.log")
    line = [str(folder / "join.sh"), str(address), "--key", KEY, "--measure", "task-clock"]
    line += ["--core", "spacemit-x60"]
    board = subprocess.Popen(line, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": ""})
    try:
        end = time.monotonic() + 30
        while not (boards := joined_boards(address, KEY)) and time.monotonic() < end:
            time.sleep(0.1)
        assert boards == [(EVENTS["task-clock"], "spacemit-x60")]
        session = rpc.connect_tracker(*address.pair).request(KEY, session_timeout=60)
        session.upload(str(library))
        device, module = session.cpu(), session.load_module(library.name)
        data = np.random.default_rng(0).random((256, 256), dtype=np.float32)
        remote = [tvm.runtime.tensor(x, device) for x in (data, np.zeros_like(data))]
        timed = [
            module.time_evaluator("main", device, number=n, repeat=1)(*remote).mean for n in (1, 4)
        ]
        np.testing.assert_allclose(remote[1].numpy(), data @ data.T, rtol=1e-4)
        # 16.8 million multiply-adds: neither nothing nor a wall clock's seconds.
        assert all(1e-5 < seconds < 1 for seconds in timed)
    finally:
        board.send_signal(signal.SIGTERM)
        board.wait(10)
        tracker.end()
