# SPDX-License-Identifier: Apache-2.0
"""The list of kernels, the object made from it, and what a user's mistakes bring."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from crosslab.assemble.kernel_list import read_parameters
from crosslab.assemble.kernels import (
    INDEX,
    KERNELS,
    OBJECT,
    ORDERED_FOR,
    Kernel,
    KernelTarget,
    build_kernels,
    compiler_for,
    list_header,
    read_kernels,
)
from crosslab.assemble.kernels_cli import main
from crosslab.cores.core import CORES, read_core
from crosslab.cores.object_loops import cycles_of_loop, cycles_of_units, loops_of
from crosslab.errors import LabError, UserError
from crosslab.host.toolchain import Toolchain
from crosslab.loops.library import read_loops
from crosslab.models.formats import packings

GOOD = '[[kernel]]\nproduct = "qk"\ndtype = "float32"\nq_tile = [8]\nkv_tile = [16]\nd = [64]\n'


def symbols(object_file: Path, kind: str) -> set[str]:
    nm = shutil.which("llvm-nm-19") or shutil.which("nm")
    if nm is None:
        pytest.skip("not installed: llvm-nm-19 or nm")
    done = subprocess.run(
        [nm, kind, "--format=posix", str(object_file)], capture_output=True, text=True, check=True
    )
    return {line.split()[0] for line in done.stdout.splitlines()}


@pytest.fixture(scope="module", params=[t.value for t in KernelTarget])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        compiler_for(KernelTarget(request.param))
    except UserError as error:
        pytest.skip(error.what)
    directory = tmp_path_factory.mktemp("library")
    main(["--target", request.param, "--output", str(directory)])
    return directory


@pytest.mark.slow
def test_the_object_holds_the_kernels_of_the_index(library: Path) -> None:
    index = json.loads((library / INDEX).read_text())
    listed = {kernel["symbol"] for kernel in index["kernels"]}
    assert listed == {kernel.symbol for kernel in read_kernels()}
    listed |= {routine["symbol"] for routine in index["routines"]}
    assert listed >= {f"mlc_rvv_gemm_{weights}" for weights in packings()}
    assert symbols(library / index["object"], "--defined-only") >= listed


@pytest.mark.slow
def test_the_object_needs_no_library(library: Path) -> None:
    needed = symbols(library / OBJECT, "--undefined-only") - {"_GLOBAL_OFFSET_TABLE_"}
    assert needed == set()


@pytest.mark.slow
def test_nothing_but_the_result_is_left(library: Path) -> None:
    assert {path.name for path in library.iterdir()} == {INDEX, OBJECT}


@pytest.fixture(scope="module")
def objects(cross: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels for riscv64, with the targets of branches."""
    directory = tmp_path_factory.mktemp("objects")
    build_kernels(KernelTarget.RISCV64, directory, extra_flags=["-mno-relax"])
    return directory / OBJECT


@pytest.mark.slow
def test_ordered_loops_are_near_what_their_units_take(objects: Path) -> None:
    """Those as wide as their description; narrower ones wait for the chains of their sums."""
    core, widest = read_core(CORES, ORDERED_FOR), dict[str, int]()
    for one in read_loops(KERNELS / "loops"):
        if not one.needs:
            widest[f"{one.name}_m{one.lmuls[0]}"] = 0
    for loop in loops_of(objects):
        if loop.symbol in widest:
            widest[loop.symbol] += 1
            units = cycles_of_units(core, loop)
            assert cycles_of_loop(core, loop) <= 1.25 * max(units.values()), loop.symbol
    assert set(widest.values()) == {1}


@pytest.mark.slow
def test_the_kernels_spill_no_vector_register(objects: Path) -> None:
    """Whole-register loads and stores are what a spill compiles to; the kernels use none.

    In what is written without intrinsics, the compiler's own loops copy with them.
    """
    if shutil.which("llvm-objdump-19") is None:
        pytest.skip("not installed: llvm-objdump-19")
    listing = subprocess.run(
        ["llvm-objdump-19", "-d", "--no-show-raw-insn", str(objects)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    common = "".join(source.read_text() for source in (KERNELS / "common").glob("*.c"))
    spills, mnemonics, function = set(), set(), ""
    for line in listing.splitlines():
        if found := re.match(r"[0-9a-f]+ <([^.].*)>:$", line):
            function = found[1]
        elif line.startswith(" "):
            mnemonics.add(line.split()[1])
            if re.match(r"v[ls][1248]r", line.split()[1]) and f"{function}(" not in common:
                spills.add(function)
    assert "vfmacc.vf" in mnemonics
    assert spills == set()


def test_every_listed_attention_shape_is_there() -> None:
    listed = set(read_kernels())
    for product in ("qk", "pv"):
        for kv_tile in (16, 32):
            for d in (64, 80, 96, 128):
                assert Kernel(product, "float32", 16, kv_tile, d) in listed


def test_header_has_every_kernel_once() -> None:
    header = list_header(read_kernels())
    for kernel in read_kernels():
        assert header.count(f"X({kernel.symbol}, ") == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("schema = 1\n[[kernel]\n", "cannot be read"),
        ("schema = 7\n" + GOOD, "schema is 7"),
        ("schema = 1\n", "lists no kernel"),
        ("schema = 1\n" + GOOD + GOOD, "twice: mlc_rvv_qk_f32_8x16x64"),
        ("schema = 1\n" + GOOD.replace("qk", "kq"), "kernel table 1: product"),
        ("schema = 1\n" + GOOD.replace("[64]", "64"), "d must be a list"),
        ("schema = 1\n" + GOOD.replace("[64]", "[-64]"), "d must be a list"),
        ("schema = 1\n" + GOOD.replace("d =", "e ="), "d must be a list"),
    ],
)
def test_a_bad_list_is_the_users_mistake(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "kernels.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=complaint):
        read_kernels(path)


@pytest.mark.slow
def test_a_shape_the_kernels_cannot_do_does_not_compile(cross: Toolchain, tmp_path: Path) -> None:
    root = tmp_path / "kernels"
    shutil.copytree(KERNELS, root)
    listing = root / "kernels.toml"
    listing.write_text(listing.read_text().replace("q_tile = [16]", "q_tile = [6]"))
    output = tmp_path / "out"
    output.mkdir()
    (output / INDEX).write_text("of an earlier build")
    with pytest.raises(LabError, match="whole number of row blocks") as failure:
        build_kernels(KernelTarget.RISCV64, output, root=root)
    assert failure.value.exit_code == 1
    assert [f.read_text() for f in output.iterdir()] == ["of an earlier build"]


def test_a_parameter_is_a_constant_of_the_sources() -> None:
    sources = [*KERNELS.glob("rvv/*.[ch]"), *KERNELS.glob("common/*.[ch]")]
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in sources)))
    assert sorted(n for n in read_parameters() if f"MLC_RVV_{n.upper()}" not in words) == []


def test_an_unknown_compiler_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no-such-compiler cannot be started") as failure:
        build_kernels(KernelTarget.HOST, tmp_path, compiler=["no-such-compiler"])
    assert failure.value.exit_code == 2
