# SPDX-License-Identifier: Apache-2.0
"""A clang that schedules code for a core: a newer one than compiles everything else."""

from __future__ import annotations

import sys
from functools import lru_cache

from crosslab.host.toolchain import OLDEST_TUNING_CLANG, clang_version, tuning_clang
from groundwork import apt

PACKAGE = "clang-22"


@lru_cache
def require_tuning_clang(cpu: str) -> str | None:
    """Return the suffix ("-22") of a clang with a scheduling model of a CPU of LLVM, or None.

    It is installed with apt-get where that is allowed. If there is none, one line on standard error
    says so, and code is compiled without the model.
    """
    suffix = tuning_clang(cpu)
    if suffix is None and not apt.refusal() and apt.knows(PACKAGE):
        size = apt.size_of([PACKAGE])
        print(f"{PACKAGE} ({size}) schedules code for {cpu}; it is installed now:", file=sys.stderr)
        apt.install([PACKAGE])
        tuning_clang.cache_clear()
        clang_version.cache_clear()
        suffix = tuning_clang(cpu)
    if suffix is None:
        print(
            f"C code is not scheduled for {cpu}: clang {OLDEST_TUNING_CLANG} or newer is not "
            f"installed; {apt.command_line([PACKAGE])}",
            file=sys.stderr,
        )
    return suffix
