# SPDX-License-Identifier: Apache-2.0
"""Cycles of cores: the decoder against the assembler, tables, stand-ins, and the sums."""

from __future__ import annotations

import argparse
import math
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from support.shared_builds import PROJECT, cross

from crosslab.cores.core import ASSUMPTIONS, Cost, core_names, core_option, read_core
from crosslab.cores.cycles import cycles_of, name_of
from crosslab.errors import UserError
from crosslab.run.decode import Instruction, Unit, decode
from crosslab.run.measurement import Executed, Histogram, Kind

CORES = PROJECT / "cores"
E32M8, E32M1, E8M2, E8M1 = 0b010_011, 0b010_000, 1, 0
FMACC = Instruction("vfmacc.vf", Unit.ARITHMETIC)
LOAD = Instruction("vle32.v", Unit.MEMORY, element_width=32)
STRIDED = Instruction("vlse32.v", Unit.MEMORY, element_width=32)
ADD = Instruction("add")


def operands(name: str) -> str:
    """Registers for a mnemonic as the tables name it; enough for the assembler."""
    mnemonic, *more = name.split()
    mask = ",v0.t" if "masked" in more else ""
    head, _, form = mnemonic.partition(".")
    if mnemonic.startswith(("vl", "vs")) and form == "v" and any(c.isdigit() for c in head[2:]):
        stride = ",x0" if "zero" in more else ",t0"
        strided = head.startswith(("vlse", "vsse")) and not head.startswith(("vlseg", "vsseg"))
        strided |= head.startswith(("vlsseg", "vssseg"))
        return f"v8,(a0){stride if strided else ''}{mask}"
    if head in ("vlm", "vsm"):
        return "v8,(a0)"
    special = {
        **{"vmv.x.s": "t0,v8", "vfmv.f.s": "ft0,v8", "vmv.s.x": "v8,t0", "vfmv.s.f": "v8,ft0"},
        **{"vmv.v.v": "v8,v16", "vmv.v.x": "v8,t0", "vmv.v.i": "v8,1", "vfmv.v.f": "v8,ft0"},
        **{"vid.v": "v8", "vcpop.m": "t0,v16", "vfirst.m": "t0,v16", "vcompress.vm": "v8,v16,v24"},
    }
    if mnemonic in special:
        return special[mnemonic] + mask
    if form in ("m", "v", "r", "vf2", "vf4", "vf8") or "cvt" in head:
        return "v8,v16" + mask
    if form == "mm":
        return "v8,v16,v24"
    kind = form.removesuffix("m")[-1]
    other = {"v": "v24", "x": "t0", "i": "3", "f": "ft0", "s": "v24"}[kind]
    fused = ("mac", "madd", "msub", "msac", "nmsac")
    order = any(mark in head for mark in fused) and not head.startswith("vmadc")
    pair = f"{other},v16" if order else f"v16,{other}"
    return f"v8,{pair}{',v0' if form.endswith('m') else mask}"


def test_the_decoder_reads_what_the_assembler_wrote(tmp_path: Path) -> None:
    names = sorted(read_core(CORES, "spacemit-x60").cycles)
    tools, source, made = cross(), tmp_path / "all.s", tmp_path / "all.o"
    text = "".join(f"{name.split()[0]} {operands(name)}\n" for name in names)
    source.write_text(f".option norvc\n.option norelax\n{text}")
    plain = [flag for flag in tools.cc if not flag.startswith(("-march", "-mcpu"))]
    zig = "ziglang" in tools.cc
    arch = "-mcpu=generic_rv64+m+a+f+d+c+v+zvfh" if zig else "-march=rv64gcv_zvfh"
    subprocess.run([*plain, arch, "-c", str(source), "-o", str(made)], check=True)
    data = made.read_bytes()
    code = data[data.index(struct.pack("<I", _first(data))) :][: 4 * len(names)]
    seen = [decode(word) for (word,) in struct.iter_unpack("<I", code)]
    got = [i.mnemonic + " zero" * i.zero_stride + " masked" * i.masked for i in seen]
    # Two comparisons of vectors are others with their operands swapped.
    swapped = {"vmfgt.vv": "vmflt.vv", "vmfge.vv": "vmfle.vv"}
    want = [" ".join([swapped.get(n.split()[0], n.split()[0]), *n.split()[1:]]) for n in names]
    assert got == want
    assert all(i.vector for i in seen)


def _first(data: bytes) -> int:
    """The first word of ``.text``, by the section table of the ELF file."""
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", data, offset + i * size) for i in range(count)]
    text = next(s for s in sections if s[2] & 4 and s[5])
    return int(struct.unpack_from("<I", data, text[4])[0])


@pytest.mark.parametrize(
    ("word", "name"),
    [
        (0x00B50533, "add"),  # add a0, a0, a1
        (0x02B50533, "mul"),
        (0x02B54533, "div"),
        (0x00053503, "load"),
        (0x00052507, "fload"),
        (0x00B53023, "store"),
        (0x00A52027, "fstore"),
        (0x00B50463, "branch"),
        (0x0000006F, "jump"),
        (0x10B5252F, "atomic"),
        (0x00B57553, "fma"),  # fadd.s
        (0x18B57553, "fdiv"),
        (0x20B50553, "fmove"),  # fsgnj.s
        (0x852E, "add"),  # c.mv a0, a1
        (0x8082, "jump"),  # ret
        (0xC119, "branch"),  # c.beqz
        (0x6108, "load"),  # c.ld
        (0xE108, "store"),  # c.sd
        (0x2108, "fload"),  # c.fld
        (0x0505, "add"),  # c.addi
        (0x7C102013, "add"),  # a mark
    ],
)
def test_scalar_instructions_are_told_by_class(word: int, name: str) -> None:
    assert decode(word) == Instruction(name)


def test_every_table_is_whole() -> None:
    names = core_names(CORES)
    assert {"spacemit-x60", "spacemit-x100", "tenstorrent-ascalon-x"} <= set(names)
    for key in names:
        core = read_core(CORES, key)
        assert len(core.cycles) > 480
        figures = [f for row in core.cycles.values() for f in row.values() if not math.isnan(f)]
        assert min(figures) > 0


def test_the_page_lists_the_cores() -> None:
    page = (CORES / "README.md").read_text(encoding="utf-8").partition("| file | core |")[2]
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)) == core_names(CORES)


def test_costs_come_from_the_table_or_what_stands_in() -> None:
    core = read_core(CORES, "spacemit-x60")
    assert core.cost(Kind(FMACC, E32M8)).cycles == 8
    assert core.cost(Kind(FMACC, E32M8)).assumed == ""
    assert core.cost(Kind(LOAD, E32M1)).cycles == 2.45
    whole = core.cost(Kind(Instruction("vl8re32.v", Unit.MEMORY, registers=8), E8M1))
    assert whole.cycles == core.cost(Kind(LOAD, E32M8)).cycles
    assert "whole-register load" in whole.assumed
    assert core.cost(Kind(ADD)).assumed
    # Loads of 32 bits while SEW is 16 and LMUL 1: groups of two registers.
    assert core.cost(Kind(LOAD, 0b001_000)).cycles == 4.35
    masked = Instruction("vredsum.vs", Unit.ARITHMETIC, masked=True)
    assert not math.isnan(core.cost(Kind(masked, E32M1)).cycles)
    for unknown in (Kind(FMACC), Kind(Instruction("vector crypto", Unit.ARITHMETIC), E8M1)):
        assert math.isnan(core.cost(unknown).cycles)


def test_strided_accesses_are_paid_by_the_element() -> None:
    core = read_core(CORES, "spacemit-x60")
    kind = Kind(STRIDED, E32M8)
    assert core.elements(kind) == 64
    full = core.total(kind, Executed(runs=10, elements=640))
    assert full == pytest.approx(10 * 64.04)
    assert core.total(kind, Executed(runs=10, elements=160)) == pytest.approx(full / 4)
    segments = Kind(Instruction("vlseg4e32.v", Unit.MEMORY, element_width=32), E32M1)
    assert core.elements(segments) == 32


def test_serial_adds_all_and_vec_serial_takes_the_larger_half() -> None:
    core = read_core(CORES, "spacemit-x60")
    histogram: Histogram = {
        ("f", Kind(FMACC, E32M8)): Executed(runs=100),
        ("g", Kind(FMACC, E32M8)): Executed(runs=300),
        ("f", Kind(LOAD, E32M8)): Executed(runs=100),
        ("f", Kind(ADD)): Executed(runs=20_000),
    }
    cycles = cycles_of(core, histogram, 2)
    assert cycles.units == {"scalar": 5000, "vector memory": 826, "vector arithmetic": 1600}
    assert cycles.serial == 7426
    assert cycles.vec_serial == 5000
    assert [(kind.kind, kind.cycles) for kind in cycles.kinds] == [
        ("add", 5000),
        ("vfmacc.vf e32m8", 1600),
        ("vle32.v e32m8", 826),
    ]
    assert cycles.kinds[1].functions == (("g", 0.75), ("f", 0.25))
    assert [(f.symbol, f.serial, f.scalar, f.share) for f in cycles.functions] == [
        ("f", 6226, 5000, 0.8384),
        ("g", 1200, 0, 0.1616),
    ]
    inside = (("add", 5000), ("vle32.v e32m8", 826), ("vfmacc.vf e32m8", 400))
    assert cycles.functions[0].kinds == inside
    assert not cycles.marked
    del histogram["f", Kind(ADD)]
    assert cycles_of(core, histogram, 2).vec_serial == 2426


def test_figures_that_lean_on_the_unmeasured_are_marked() -> None:
    core = read_core(CORES, "xuantie-c908")
    few: Histogram = {
        ("", Kind(FMACC, E32M8)): Executed(99),
        ("", Kind(STRIDED, E32M8)): Executed(1),
    }
    assert cycles_of(core, few, 1).unmeasured == {"vlse32.v e32m8": 0.01}
    assert not cycles_of(core, few, 1).marked
    few["", Kind(STRIDED, E32M8)] = Executed(3)
    assert cycles_of(core, few, 1).marked
    assert name_of(Kind(STRIDED, None)) == "vlse32.v unknown vtype"


def test_what_an_older_version_of_vectors_lacks_has_a_stand_in() -> None:
    core = read_core(CORES, "xuantie-c920")
    cost = core.cost(Kind(FMACC, E32M8))
    assert cost.cycles == core.cycles["vfmul.vf"]["e32m8"]
    assert cost.assumed == "a fused multiply-add costs what a product costs"
    assert core.cost(Kind(LOAD, E32M8)) == Cost(8)
    assert math.isnan(core.cost(Kind(STRIDED, E32M8)).cycles)


def test_a_conversion_of_bytes_costs_what_as_many_registers_of_halves_cost() -> None:
    core = read_core(CORES, "spacemit-x60")
    cost = core.cost(Kind(Instruction("vfwcvt.f.x.v", Unit.ARITHMETIC), E8M2))
    assert cost.cycles == core.cycles["vfwcvt.f.x.v"]["e16m2"]
    assert "of bytes" in cost.assumed


def test_a_core_that_is_not_there_or_is_not_right_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        argparse.ArgumentTypeError, match=r"'x60' is not a known core.*spacemit-x60"
    ):
        core_option("x60")
    shutil.copy(CORES / ASSUMPTIONS, tmp_path)
    (tmp_path / "new.toml").write_text('name = "new"\nvlen = 256\ncolumns = ["e32m1"]\n')
    with pytest.raises(UserError, match=r"cores/README\.md"):
        read_core(tmp_path, "new")
    # Adding a core is adding a file.
    with (tmp_path / "new.toml").open("a") as file:
        file.write('[cycles]\n"vfmacc.vf" = [3]\n')
    assert read_core(tmp_path, "new").cost(Kind(FMACC, E32M1)).cycles == 3


def test_a_core_has_vectors_of_halves_if_their_arithmetic_was_measured() -> None:
    having = {name: read_core(CORES, name).zvfh for name in core_names(CORES)}
    assert having["spacemit-x60"] and having["spacemit-x100"] and having["tenstorrent-ascalon-x"]
    assert not having["spacemit-a100"]
