# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's build for SpacemiT's matrix unit, in the emulator.

QEMU has no vmadot: support/native/vmadot.c executes it when the CPU refuses it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support import shared_builds
from support.shared_builds import CACHE, PROJECT, VMADOT

from crosslab.assemble.pinned_archive import read_archive
from crosslab.errors import UserError
from crosslab.host.objects import run_compiler
from crosslab.host.toolchain import CompilerKind, find_cross, require_qemu
from crosslab.host.tuning import require_tuning_clang
from crosslab.models.config import LlamaConfig
from crosslab.models.llama_params import random_model
from crosslab.peers.gguf_export import export_gguf
from crosslab.peers.llama_cpp_build import BUILDS, LIBRARY_NAMES, build_libraries
from crosslab.peers.llama_cpp_programs import DRIVER, link_program, tuned_toolchain
from crosslab.run.emulator import GuestMachine, run_guest

pytestmark = [pytest.mark.usefixtures("emulator"), pytest.mark.long]
CONFIG = LlamaConfig(512, 1024, 8, 4, 64, 1, 512, context=512)
PROMPT = ",".join(map(str, range(1, 20)))
NEW, UNIT_CPU = 6, "spacemit-x60"
IME1 = "ime1"
UNIT_BUILDS = {
    "zvfh": BUILDS["zvfh"],
    IME1: (
        *("-DGGML_RV_ZVFH=ON", "-DGGML_RV_ZBA=ON", "-DGGML_CPU_RISCV64_SPACEMIT=ON"),
        "-DSPACEMIT_RISCV_COMPILER_SUPPORT_IME1=ON",
    ),
}
# The board's CPUs with the unit, as llama.cpp names them; memory without the board's devices.
BOARD = {"SPACEMIT_CORE_ARCH": "A03C", "SPACEMIT_MEM_BACKEND": "POSIX"}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The program for the unit, and without it."""
    shared_builds.cross()
    pytest.importorskip("cmake")
    try:
        toolchain = find_cross(CompilerKind.CLANG)
        suffix = require_tuning_clang(UNIT_CPU)
    except UserError as error:
        pytest.skip(error.what)
    if suffix is None:
        pytest.skip(f"clang does not know {UNIT_CPU}")
    newer = tuned_toolchain(toolchain, suffix, UNIT_CPU)
    libraries = build_libraries(read_archive(PROJECT), CACHE, newer, "llama", UNIT_BUILDS)
    folder = tmp_path_factory.mktemp("programs")
    vmadot = folder / "vmadot.o"
    run_compiler("compiling", [*toolchain.cc, "-O2", "-c", str(VMADOT), "-o", str(vmadot)], folder)
    for build in UNIT_BUILDS:
        parts = [vmadot, *(libraries / build / name for name in LIBRARY_NAMES)]
        link_program(DRIVER, toolchain, libraries, parts, folder / build)
    return {build: folder / build for build in UNIT_BUILDS}


@pytest.mark.parametrize("format_", ["Q4_0", "Q4_K_M"])
def test_the_unit_gives_the_tokens_of_vectors(
    programs: dict[str, Path], tmp_path: Path, format_: str
) -> None:
    if format_ != "Q4_0" and require_qemu().version < (8,):
        pytest.skip("QEMU 7.2 ends at a vfncvt.rtz.xu.f.w that clang 22 writes for this format")
    model = export_gguf(random_model(CONFIG, 3, tmp_path), format_, tmp_path)
    told = {}
    for build, program in programs.items():
        machine = GuestMachine(256, environment={"MLC_RVV_COUNT_VMADOT": "1", **BOARD}, zvfh=True)
        done = run_guest(program, [str(model), PROMPT, str(NEW)], machine)
        count = re.search(r"vmadot: (\d+)", done.stderr)
        assert count is not None
        assert (int(count[1]) > 0) == (build == IME1)
        told[build] = json.loads(done.stdout)["tokens"]
    assert told[IME1] == told["zvfh"]
    assert len(told[IME1]) == NEW
