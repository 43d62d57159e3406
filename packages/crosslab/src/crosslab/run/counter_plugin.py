# SPDX-License-Identifier: Apache-2.0
"""Build of the plugin that counts instructions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from crosslab.cached_build import cached_build
from crosslab.host.objects import run_compiler
from crosslab.host.toolchain import Emulator, find_native
from crosslab.run.counting_qemu import counting_qemu
from groundwork.hashing import digest

PLUGIN = Path(__file__).parents[1] / "native" / "counter"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
WARNINGS = ("-Wall", "-Wextra", "-Werror")

# The plugin interface by QEMU's version: see native/counter/qemu_plugin_api.h.
PLUGIN_API = (((9, 1), 3), ((9, 0), 2), ((0,), 1))


@dataclass(frozen=True)
class Counter:
    """An emulator with a counting plugin that was compiled for the emulator."""

    qemu: Emulator
    plugin: Path


def build_counter(cache: Path) -> Counter:
    """Compile the counting plugin, once, for an emulator that loads plugins.

    Raises:
        UserError: there is no compiler, or no emulator that loads plugins.
        LabError: the plugin does not compile.
    """
    qemu = counting_qemu(cache)
    api = next(number for version, number in PLUGIN_API if qemu.version >= version)
    toolchain = find_native()
    command = [*toolchain.cc, *FLAGS, *WARNINGS, f"-DMLC_RVV_PLUGIN_API={api}", "counter.c"]

    def make(out: Path) -> None:
        output = ["-o", str(out / "counter.so"), "-lpthread"]
        run_compiler("compiling the counter", [*command, *output], PLUGIN)

    key = digest(toolchain.digest, " ".join(command), PLUGIN)
    return Counter(qemu, cached_build(cache, "counter", key, make) / "counter.so")
