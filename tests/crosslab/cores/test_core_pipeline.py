# SPDX-License-Identifier: Apache-2.0
"""A core's pipeline: registers of instructions, and the time of short sequences by hand."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from support.shared_builds import PROJECT, cross

from crosslab.cores import llvm_latencies
from crosslab.cores.core import Core, core_option
from crosslab.cores.object_loops import code_of, cycles_of_loop, loops_of, main
from crosslab.cores.pipeline import pipeline_cycles
from crosslab.errors import UserError
from crosslab.run.decode import decode
from crosslab.run.measurement import INDEX_RUNS, Counts, Measurement, Segment
from crosslab.run.operands import FLOAT, VECTOR, VSTATE, operands

X60 = core_option("spacemit-x60")
V = range(VECTOR, VECTOR + 32)


def x(*numbers: int) -> set[int]:
    return set(numbers)


def f(number: int) -> set[int]:
    return {FLOAT + number}


def v(first: int, count: int) -> set[int]:
    return set(V[first : first + count])


# Assembly, LMUL, registers that are read and written. SEW is 32.
REGISTERS = [
    ("add a0, a1, a2", 1, x(11, 12), x(10)),
    ("ld a0, 8(sp)", 1, x(2), x(10)),
    ("sd a0, 8(s0)", 1, x(8, 10), x()),
    ("addi a0, a0, 1", 1, x(10), x(10)),
    ("li a0, 5", 1, x(), x(10)),
    ("mv a0, a1", 1, x(11), x(10)),
    ("beqz s0, .", 1, x(8), x()),
    ("ret", 1, x(1), x()),
    ("flw fa0, 0(a0)", 1, x(10), f(10)),
    ("fmadd.s fa0, fa1, fa2, fa3", 1, f(11) | f(12) | f(13), f(10)),
    ("fcvt.s.w fa0, a1", 1, x(11), f(10)),
    ("feq.s a0, fa1, fa2", 1, f(11) | f(12), x(10)),
    ("vsetvli a0, a1, e32, m4, ta, ma", 1, x(11), x(10, VSTATE)),
    ("vsetivli zero, 4, e32, m4, ta, ma", 1, x(), x(VSTATE)),
    ("vle32.v v8, (a0)", 4, x(10, VSTATE), v(8, 4)),
    ("vle8.v v8, (a0)", 4, x(10, VSTATE), v(8, 1)),
    ("vse32.v v8, (a0), v0.t", 2, x(10, VSTATE) | v(0, 1) | v(8, 2), x()),
    ("vlse32.v v8, (a0), a1", 2, x(10, 11, VSTATE), v(8, 2)),
    ("vluxei16.v v8, (a0), v4", 4, x(10, VSTATE) | v(4, 2), v(8, 4)),
    ("vlseg3e32.v v8, (a0)", 2, x(10, VSTATE), v(8, 6)),
    ("vl4re32.v v8, (a0)", 1, x(10, VSTATE), v(8, 4)),
    ("vfmacc.vf v8, fa0, v16", 4, x(VSTATE) | f(10) | v(8, 4) | v(16, 4), v(8, 4)),
    ("vfadd.vv v8, v16, v24", 4, x(VSTATE) | v(16, 4) | v(24, 4), v(8, 4)),
    ("vwmacc.vx v8, a0, v16", 2, x(10, VSTATE) | v(8, 4) | v(16, 2), v(8, 4)),
    ("vwadd.wv v8, v16, v24", 2, x(VSTATE) | v(16, 4) | v(24, 2), v(8, 4)),
    ("vnsrl.wi v8, v16, 4", 2, x(VSTATE) | v(16, 4), v(8, 2)),
    ("vzext.vf4 v8, v16", 4, x(VSTATE) | v(16, 1), v(8, 4)),
    ("vmsgt.vx v0, v16, a0", 4, x(10, VSTATE) | v(16, 4), v(0, 1)),
    ("vmand.mm v0, v1, v2", 4, x(VSTATE) | v(1, 2), v(0, 1)),
    ("vcpop.m a0, v0", 4, x(VSTATE) | v(0, 1), x(10)),
    ("vredsum.vs v8, v16, v24", 4, x(VSTATE) | v(16, 4) | v(24, 1), v(8, 1)),
    ("vmerge.vvm v8, v16, v24, v0", 2, x(VSTATE) | v(0, 1) | v(16, 2) | v(24, 2), v(8, 2)),
    ("vfmv.f.s fa0, v8", 4, x(VSTATE) | v(8, 1), f(10)),
    ("vmv.x.s a0, v8", 4, x(VSTATE) | v(8, 1), x(10)),
    ("vmv2r.v v8, v16", 1, v(16, 2), v(8, 2)),
    ("vmv.v.x v8, a0", 2, x(10, VSTATE), v(8, 2)),
    ("vmv.v.v v8, v16", 2, x(VSTATE) | v(16, 2), v(8, 2)),
    ("vfmv.s.f v8, fa0", 2, x(VSTATE) | f(10), v(8, 1)),
    ("vid.v v8", 2, x(VSTATE), v(8, 2)),
]


def assembled(text: str, folder: Path) -> Path:
    """An object of some lines, with compressed instructions and without relaxation."""
    source, target = folder / "code.S", folder / "code.o"
    source.write_text(f"\t.globl code\n\t.type code, @function\ncode:\n{text}\n", encoding="utf-8")
    plain = [flag for flag in cross().cc if not flag.startswith("-march")]
    flags = ["-march=rv64gcv", "-mno-relax", "-c", str(source), "-o", str(target)]
    subprocess.run([*plain, *flags], check=True)
    return target


def words_of(path: Path) -> list[int]:
    """The instructions of an object."""
    return [word for _, code in code_of(path) for word in code.values()]


def test_registers_of_instructions(tmp_path: Path) -> None:
    words = words_of(assembled("\n".join(text for text, *_ in REGISTERS), tmp_path))
    for (text, lmul, reads, writes), word in zip(REGISTERS, words, strict=True):
        found = operands(word, decode(word), 32, Fraction(lmul))
        assert (set(found.reads), set(found.writes)) == (reads - {0}, writes - {0}), text


def round_of(body: str, folder: Path, core: Core = X60) -> float:
    """Cycles of a round of a loop."""
    head = "vsetvli zero, zero, e32, m1, ta, ma\n1:\n"
    (loop,) = loops_of(assembled(f"{head}{body}\naddi a5, a5, -1\nbnez a5, 1b\nret", folder))
    assert loop.symbol == "code"
    return cycles_of_loop(core, loop)


CHAIN = "vfmacc.vf v8, fa0, v16\n" * 8
APART = "\n".join(f"vfmacc.vf v{8 + i}, fa0, v16" for i in range(8))


def test_a_chain_costs_latencies_and_independent_instructions_the_throughput(
    tmp_path: Path,
) -> None:
    latency, _ = X60.require_pipeline().latencies.of("vfmacc.vf", "e32m1")
    assert latency == 5
    assert round_of(CHAIN, tmp_path) == 8 * latency
    assert round_of(APART, tmp_path) == 8


def test_a_group_is_used_register_by_register(tmp_path: Path) -> None:
    body = "vsetvli zero, zero, e32, m8, ta, ma\nvfmacc.vf v8, fa0, v16\nvfmacc.vf v8, fa0, v16"
    assert round_of(body, tmp_path) == pytest.approx(16, abs=1)


def test_loads_run_beside_arithmetic_unless_they_overwrite_its_operands(tmp_path: Path) -> None:
    load = X60.cycles["vle64.v"]["e64m1"]
    third, *others = APART.split("\n")
    mixed = "\n".join([third, *(f"vle32.v v{24 + i}, (a0)\n{o}" for i, o in enumerate(others))])
    assert round_of(mixed, tmp_path) == pytest.approx(7 * load, abs=1)
    chain = "vle32.v v16, (a0)\nvfmul.vv v8, v16, v16"
    # The second round's load waits until v16 is read, the product for the load.
    assert round_of(chain, tmp_path) > load + 1


def test_scalar_instructions_run_ahead_as_far_as_the_queue_is_long(tmp_path: Path) -> None:
    products = "vfmacc.vf v8, fa0, v16\nvfmacc.vf v24, fa0, v16\n" * 2
    sums = "\n".join(["addi a0, a0, 1"] * 40)
    body = f"vsetvli zero, zero, e32, m8, ta, ma\n{products}{sums}"
    pipeline = X60.require_pipeline()
    short, long = (
        round_of(body, tmp_path, replace(X60, pipeline=replace(pipeline, queue=queue)))
        for queue in (1, 16)
    )
    # Four products of eight cycles; the fourth waits in the queue until the third begins.
    assert long == pytest.approx(43, abs=3)
    assert short == pytest.approx(long + 2 * 8, abs=3)


def test_out_of_order_the_rounds_of_a_loop_overlap(tmp_path: Path) -> None:
    body = "fmul.s fa0, fa1, fa1\nfmul.s fa2, fa0, fa0\nfmul.s fa3, fa2, fa2"
    pipeline = X60.require_pipeline()
    window = replace(X60, pipeline=replace(pipeline, window=64, issue=4))
    assert round_of(body, tmp_path) >= 10
    assert round_of(body, tmp_path, window) == pytest.approx(3, abs=0.5)


def test_rounds_after_the_first_cost_the_steady_state(tmp_path: Path) -> None:
    """A segment that runs 100 times in a row, as the counter reports it."""
    words = words_of(assembled(CHAIN, tmp_path))
    vtype = 2 << 3  # e32, m1
    segments = {7: Segment(0x1000, tuple(words))}
    runs = ((7, vtype, INDEX_RUNS, 99, 7, vtype, 0), (7, vtype, INDEX_RUNS, 1, -1, 0, 0))
    measured = Measurement(Counts(), (Counts(),), 1, segments, (runs,))
    (cycles,) = pipeline_cycles(X60, measured).values()
    assert cycles == pytest.approx(100 * 8 * 5, rel=0.01)


def test_a_core_without_a_pipeline_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = assembled("1: addi a0, a0, -1\nbnez a0, 1b\nret", tmp_path)
    with pytest.raises(UserError) as refused:
        main([str(target), "--core", "xuantie-c908"])
    assert "--core spacemit-x60" in str(refused.value.remedy)
    assert main([str(target)]) == 0
    assert "code" in capsys.readouterr().out


def test_an_object_without_loops_is_refused(tmp_path: Path) -> None:
    target = assembled("ret", tmp_path)
    assert list(loops_of(target)) == []
    with pytest.raises(UserError, match="not an ELF"):
        list(loops_of(Path(__file__)))


def test_a_program_of_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not for riscv64"):
        main([sys.executable])
    # The class of the file, in its fifth byte: 1 is for 32 bits.
    whole = bytearray(assembled("ret", tmp_path).read_bytes())
    whole[4] = 1
    narrow = tmp_path / "narrow.o"
    narrow.write_bytes(whole)
    with pytest.raises(UserError, match="RISC-V, 32 bits"):
        list(loops_of(narrow))


def test_a_loop_may_end_a_function(tmp_path: Path) -> None:
    (loop,) = loops_of(assembled("1:\naddi a0, a0, -1\nbnez a0, 1b", tmp_path))
    assert loop.symbol == "code"
    assert len(loop.instructions) == 2


def test_latencies_are_what_llvm_says() -> None:
    if shutil.which(llvm_latencies.TOOL) is None:
        pytest.skip(f"{llvm_latencies.TOOL} is not installed")
    stored = (PROJECT / "cores" / "latencies" / "spacemit-x60.toml").read_text(encoding="utf-8")
    some = ("vfmacc.vf", "vle32.v", "vcpop.m", "vwmacc.vx", "vfwcvt.f.f.v", "vmerge.vvm", "vid.v")
    few = replace(X60, cycles={name: X60.cycles[name] for name in some})
    lines = list(llvm_latencies.table_of(few, "spacemit-x60"))
    assert all(line in stored for line in lines)
    assert all(any(line.startswith(f'"{name}"') for line in lines) for name in some)
    every = [llvm_latencies.assembly(name) for name in llvm_latencies.mnemonics_of(X60)]
    assert len(every) > 400
