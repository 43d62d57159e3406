# SPDX-License-Identifier: Apache-2.0
"""The counter against programs whose every executed instruction is known."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import shared_builds

from crosslab.errors import LabError, UserError
from crosslab.host.toolchain import find_qemu, require_qemu
from crosslab.run import counter
from crosslab.run.counter import count_guest, run_counted
from crosslab.run.emulator import GuestMachine, run_guest
from crosslab.run.measurement import Counts, LineTraffic, Measurement
from crosslab.run.symbols import UNNAMED, Symbols

pytestmark = pytest.mark.usefixtures("emulator")

BEGIN, END = ".word 0x7c102013", ".word 0x7c202013"
EXIT = "li a0, 0\n li a7, 93\n ecall"
# Three instructions of EXIT, and whatever a test puts before it.
EXIT_COUNT = 3


def assemble(folder: Path, body: str, *, strip: bool = False) -> Path:
    """A program without any library; ``norvc`` and ``norelax`` keep one line one instruction."""
    source = folder / "program.S"
    source.write_text(
        ".option norvc\n.option norelax\n.globl _start\n.text\n"
        f"_start:\n{body}\n{EXIT}\n.bss\n.align 6\nbuffer: .zero 4096\n"
    )
    program = folder / "program"
    tools = shared_builds.cross()
    vectors = [flag for flag in tools.cc if not flag.startswith(("-march", "-mcpu"))]
    zig = "ziglang" in tools.cc
    arch = "-mcpu=generic_rv64+m+a+f+d+c+v" if zig else "-march=rv64gcv"
    link = ["-nostdlib", "-static", *(["-s"] if strip else []), *tools.link]
    subprocess.run([*vectors, arch, *link, str(source), "-o", str(program)], check=True)
    return program


def measure(program: Path, *, vlen: int = 256, caches: str = "") -> Measurement:
    shared_builds.need_emulator(plugins=True)
    machine = GuestMachine(vlen=vlen, timeout=60)
    _, measured = count_guest(program, [], machine, shared_builds.CACHE, caches=caches)
    return measured


def test_each_class_counts_where_it_belongs(tmp_path: Path) -> None:
    body = f"""
    lla a1, buffer
    li t0, 8
    vsetvli t1, t0, e32, m4, ta, ma
    {BEGIN}
    vadd.vv v8, v12, v16
    vle32.v v8, (a1)
    vsetivli x0, 4, e32, mf2, ta, ma
    vfadd.vv v8, v9, v10
    vse32.v v8, (a1)
    vmv4r.v v8, v12
    vl8re32.v v8, (a1)
    vs2r.v v8, (a1)
    flw fa0, 0(a1)
    fsd fa0, 8(a1)
    add t2, t2, t1
    {END}
    """
    measured = measure(assemble(tmp_path, body))
    # m4: vadd, vle32; mf2 counts as one: vfadd, vse32; whole registers: 4, 8, 2.
    weighted = 4 + 4 + 1 + 1 + 4 + 8 + 2 + (1 + 3)
    region = Counts(insns=11, vector=7, vsetvl=1, vmem=4, lmul_weighted=weighted)
    assert measured.regions == (region,)
    outside = Counts(insns=4 + 2 + EXIT_COUNT, vsetvl=1, lmul_weighted=4 + 2 + EXIT_COUNT)
    assert measured.whole == region + outside


@pytest.mark.parametrize("lmul", [1, 2, 4, 8])
def test_lmul_lasts_over_branches(tmp_path: Path, lmul: int) -> None:
    rounds = 1000
    body = f"""
    li t0, {rounds}
    vsetvli x0, x0, e32, m{lmul}, ta, ma
    {BEGIN}
    1: vadd.vv v8, v16, v24
    j 2f
    2: vmul.vv v8, v16, v24
    addi t0, t0, -1
    bnez t0, 1b
    {END}
    """
    measured = measure(assemble(tmp_path, body))
    assert measured.region == Counts(
        insns=5 * rounds, vector=2 * rounds, lmul_weighted=(3 + 2 * lmul) * rounds
    )


def test_regions_are_listed_in_order(tmp_path: Path) -> None:
    parts = [f"{BEGIN}\n" + "nop\n" * n + END for n in (1, 5, 0, 3)]
    measured = measure(assemble(tmp_path, "\n".join(parts)))
    assert [region.insns for region in measured.regions] == [1, 5, 0, 3]
    assert measured.region.insns == 9
    assert measured.whole.insns == 9 + 2 * len(parts) + EXIT_COUNT


def test_vtype_from_a_register_is_said_to_be_unknown(tmp_path: Path) -> None:
    body = f"""
    li t0, 0xd2
    {BEGIN}
    vsetvl t1, x0, t0
    vadd.vv v8, v12, v16
    vadd.vv v8, v12, v16
    vsetvli t1, x0, e32, m2, ta, ma
    vadd.vv v8, v12, v16
    {END}
    """
    region = measure(assemble(tmp_path, body)).region
    assert region == Counts(
        insns=5, vector=3, vsetvl=2, lmul_weighted=2 + 1 + 1 + 2, unknown_lmul=2
    )


def test_kinds_carry_vtype_and_the_elements_that_they_move(tmp_path: Path) -> None:
    body = f"""
    lla a1, buffer
    li t0, 5
    li t1, 16
    {BEGIN}
    vsetvli x0, t0, e32, m2, ta, ma
    vlse32.v v8, (a1), t1
    vlse32.v v8, (a1), x0
    vsseg2e32.v v8, (a1)
    vle32.v v8, (a1)
    vsetivli x0, 4, e16, mf2, ta, ma
    vadd.vv v8, v9, v10, v0.t
    {END}
    """
    histogram = measure(assemble(tmp_path, body)).histogram()
    seen = {
        (k.instruction.mnemonic, k.sew, float(k.lmul), k.instruction.masked): (e.runs, e.elements)
        for (_, k), e in histogram.items()
        if k.instruction.vector and not k.instruction.zero_stride
    }
    assert seen == {
        ("vlse32.v", 32, 2, False): (1, 5),
        ("vsseg2e32.v", 32, 2, False): (1, 10),
        ("vle32.v", 32, 2, False): (1, 0),
        ("vadd.vv", 16, 0.5, True): (1, 0),
    }
    (zero,) = (e for (_, k), e in histogram.items() if k.instruction.zero_stride)
    assert (zero.runs, zero.elements) == (1, 5)


def test_caches_miss_what_they_must(tmp_path: Path) -> None:
    # L1: two sets of two lines; L2: sixteen lines in one set.
    caches = "64:256:2:1024:16"
    body = f"""
    lla a1, buffer
    li t1, 128
    vsetivli x0, 8, e32, m1, ta, ma
    {BEGIN}
    call twice
    call strided
    call written
    {END}
    {EXIT}
    .type twice, @function
    twice: vle32.v v8, (a1)
    vle32.v v8, (a1)
    ret
    .type strided, @function
    strided: vlse32.v v8, (a1), t1
    vlse32.v v8, (a1), t1
    ret
    .type written, @function
    written: sd zero, 1920(a1)
    sd zero, 1984(a1)
    li t2, 24
    li a3, 2048
    add a3, a3, a1
    1: ld a2, 0(a3)
    addi a3, a3, 64
    addi t2, t2, -1
    bnez t2, 1b
    ret
    """
    program = assemble(tmp_path, body)
    measured = measure(program, caches=caches)
    lines: dict[str, LineTraffic] = {}
    for symbol, traffic in measured.traffic([0], Symbols.of(program)):
        lines[symbol] = lines.get(symbol, LineTraffic()) + traffic
    # One line, missed once.
    assert lines["twice"] == LineTraffic(misses_l1=1, misses_l2=1)
    # Eight lines of one set of two ways: all but the first are new, and none is left for the
    # second time; L2 has them then.
    assert lines["strided"] == LineTraffic(misses_l1=7 + 8, misses_l2=7)
    # Two lines are written and twenty-four read; the two go back when L2 makes place.
    assert lines["written"] == LineTraffic(misses_l1=26, misses_l2=26, written_back=2)
    assert measure(program).region == measured.region


def test_counts_by_function_add_up(tmp_path: Path) -> None:
    body = f"""
    vsetvli x0, x0, e32, m2, ta, ma
    call first
    {BEGIN}
    call first
    call second
    {END}
    {EXIT}
    .type first, @function
    first: vadd.vv v8, v16, v24
    ret
    .type second, @function
    second: nop
    nop
    ret
    """
    program = assemble(tmp_path, body)
    measured = measure(program)
    by_name = measured.functions(Symbols.of(program))
    one = Counts(insns=2, vector=1, lmul_weighted=3)
    assert by_name["first"] == one
    assert by_name["second"] == Counts(insns=3, lmul_weighted=3)
    assert sum(by_name.values(), Counts()) == measured.region
    assert Symbols.of(program).at(0) == UNNAMED


@pytest.mark.parametrize("body", [END, BEGIN, f"{BEGIN}\n{BEGIN}\n{END}"])
def test_marks_without_a_partner_are_refused(tmp_path: Path, body: str) -> None:
    with pytest.raises(LabError, match="are not in pairs"):
        measure(assemble(tmp_path, body))


def test_functions_need_symbols(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no symbols"):
        Symbols.of(assemble(tmp_path, "nop", strip=True))


def test_every_thread_is_counted(tmp_path: Path) -> None:
    rounds, workers = 5000, 3
    source = tmp_path / "threads.c"
    source.write_text(
        f"""
        #include <pthread.h>
        // All at once: a thread that begins after another ended may be given its number.
        static pthread_barrier_t all;
        static void *work(void *unused) {{
          pthread_barrier_wait(&all);
          for (int i = 0; i < {rounds}; ++i)
            asm volatile(".word 0x0d107057\\n.word 0x02880457");  // vsetvli e32,m2; vadd.vv
          return unused;
        }}
        int main(void) {{
          pthread_t threads[{workers}];
          pthread_barrier_init(&all, 0, {workers});
          asm volatile("{BEGIN}");
          for (int i = 0; i < {workers}; ++i) pthread_create(&threads[i], 0, work, 0);
          for (int i = 0; i < {workers}; ++i) pthread_join(threads[i], 0);
          asm volatile("{END}");
          return 0;
        }}
        """
    )
    program, tools = tmp_path / "threads", shared_builds.cross()
    command = [*tools.cc, "-O1", "-static", *tools.link, str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    measured = measure(program)
    assert measured.threads >= workers
    assert measured.region.vector == rounds * workers
    scalar = measured.region.insns - measured.region.vector
    assert measured.region.lmul_weighted == scalar + 2 * rounds * workers


def test_a_region_counts_the_same_again(tmp_path: Path) -> None:
    body = f"li t0, 300\n{BEGIN}\n1: addi t0, t0, -1\nbnez t0, 1b\n{END}"
    program = assemble(tmp_path, body)
    assert measure(program) == measure(program)


def test_a_crash_tells_the_signal_and_the_last_output(tmp_path: Path) -> None:
    body = """
    li a0, 1
    lla a1, text
    li a2, 8
    li a7, 64
    ecall
    unimp
    text: .ascii "so far.\\n"
    .align 2
    """
    with pytest.raises(LabError, match=r"SIGILL(.|\n)*so far\.") as caught:
        run_guest(assemble(tmp_path, body), [], GuestMachine(timeout=60))
    assert caught.value.exit_code == 1


def test_a_hang_is_ended_and_its_last_output_shown(tmp_path: Path) -> None:
    body = """
    li a0, 1
    lla a1, text
    li a2, 8
    li a7, 64
    ecall
    1: j 1b
    text: .ascii "so far.\\n"
    .align 2
    """
    with pytest.raises(LabError, match=r"did not end within 5 s; its last output:\n  so far\."):
        run_guest(assemble(tmp_path, body), [], GuestMachine(timeout=5))


def test_a_hang_without_a_word_is_ended(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"did not end within 0\.5 s; it printed nothing"):
        run_guest(assemble(tmp_path, "1: j 1b"), [], GuestMachine(timeout=0.5))


@pytest.fixture
def without_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An emulator as Debian 13 has it: it does not know ``-plugin``."""
    real = require_qemu().path
    folder = tmp_path / "bin"
    folder.mkdir()
    script = f"""#!/bin/sh
case $1 in --help) {real} --help | grep -v -e -plugin; exit 0;; esac
case " $* " in *" -plugin "*) echo "unknown option 'plugin'" >&2; exit 1;; esac
exec {real} "$@"
"""
    (folder / "qemu-riscv64").write_text(script)
    (folder / "qemu-riscv64").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    find_qemu.cache_clear()
    yield
    find_qemu.cache_clear()


def test_counts_of_an_equal_run_are_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_builds.need_emulator(plugins=True)
    runs = []

    def spied(*args: object, **kwargs: object) -> object:
        runs.append(args)
        return run_guest(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(counter, "run_guest", spied)
    program = assemble(tmp_path, f"{BEGIN}\n nop\n{END}")
    read = tmp_path / "read"
    read.write_text("one")

    def count(*words: str) -> tuple[str, Measurement]:
        machine = GuestMachine(timeout=60)
        return count_guest(program, words, machine, tmp_path / "cache", inputs=read, cwd=tmp_path)

    assert count() == count()
    assert count()[1].region.insns == 1
    assert len(runs) == 1
    read.write_text("two")
    count()
    count("a")
    assert len(runs) == 3


@pytest.mark.usefixtures("without_plugins")
def test_another_emulator_counts_where_the_systems_loads_no_plugins(tmp_path: Path) -> None:
    measured = measure(
        assemble(tmp_path, f"{BEGIN}\n vsetvli t1, x0, e32, m4, ta, ma\n nop\n{END}")
    )
    assert (measured.region.insns, measured.region.vsetvl) == (2, 1)


@pytest.mark.usefixtures("without_plugins")
def test_where_nothing_can_be_counted_the_guest_runs_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = 'Dir::Etc::SourceList "/dev/null"; Dir::Etc::SourceParts "/dev/null";'
    (tmp_path / "apt.conf").write_text(settings)
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    program, cache = assemble(tmp_path, "nop"), tmp_path / "cache"
    output, counted = run_counted(program, [], GuestMachine(timeout=60), cache)
    assert (output, counted) == ("", None)
    assert "not counted: " in capsys.readouterr().err
    with pytest.raises(UserError, match=r"without plugins.* apt has no archive") as caught:
        count_guest(program, [], GuestMachine(timeout=60), cache)
    assert caught.value.remedy and "first on PATH" in caught.value.remedy
