# SPDX-License-Identifier: Apache-2.0
"""Each thread's share of the work."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support import shared_builds

from crosslab.bench.thread_work import ThreadWork, thread_work
from crosslab.run.counter import count_guest
from crosslab.run.emulator import GuestMachine
from crosslab.run.measurement import PhaseRegions
from crosslab.run.symbols import Symbols


def test_shares_of_work() -> None:
    work = ThreadWork((40, 20, 20, 20), (("serial", 20),), 20)
    assert work.imbalance == pytest.approx(1.6)
    assert work.serial_share == pytest.approx(0.2)
    assert work.idle == 0


def test_threads_that_did_nothing_are_counted() -> None:
    assert ThreadWork((4000, 3900, 12, 0), (), 0).idle == 2
    assert ThreadWork((0, 0), (), 0).idle == 0


@pytest.mark.usefixtures("emulator")
def test_the_work_of_each_thread_is_its_own(tmp_path: Path) -> None:
    source = tmp_path / "work.c"
    source.write_text(
        """
        #include <pthread.h>
        static volatile unsigned long sink;
        __attribute__((noinline)) void share(long n) { while (n--) sink++; }
        __attribute__((noinline)) void alone(long n) { while (n--) sink++; }
        __attribute__((noinline)) void Yield(long n) { while (n--) sink++; }
        static void *run(void *n) { share((long)n); Yield(100000); return 0; }
        int main(void) {
          pthread_t one;
          __asm__ volatile(".word 0x7c102013");
          pthread_create(&one, 0, run, (void *)20000);
          share(60000);
          alone(20000);
          pthread_join(one, 0);
          __asm__ volatile(".word 0x7c202013");
          return 0;
        }
        """
    )
    program, tools = tmp_path / "work", shared_builds.cross()
    command = [*tools.cc, "-O2", "-static", str(source), "-o", str(program), *tools.link]
    subprocess.run([*command, "-lpthread"], check=True)
    shared_builds.need_emulator(plugins=True)
    machine = GuestMachine(vlen=256, timeout=60)
    _, measured = count_guest(program, [], machine, shared_builds.CACHE)
    phase = PhaseRegions((0,), 1)
    work = thread_work(measured, phase, 2, Symbols.of(program), None)
    # 80,000 rounds here and 20,000 there; waiting is left out.
    assert work.threads[0] / work.threads[1] == pytest.approx(4, rel=0.1)
    assert work.serial[0][0] == "alone"
    assert work.serial_share == pytest.approx(0.2, abs=0.03)
