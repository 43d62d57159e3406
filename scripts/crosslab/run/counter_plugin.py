# SPDX-License-Identifier: Apache-2.0
"""The emulator's plugin that counts instructions."""

from __future__ import annotations

from pathlib import Path

from crosslab.cached_build import cached_build
from crosslab.errors import UserError
from crosslab.host.objects import run_compiler
from crosslab.host.toolchain import find_native, require_qemu
from groundwork.hashing import digest

PLUGIN = Path(__file__).parents[1] / "native" / "counter"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
WARNINGS = ("-Wall", "-Wextra", "-Werror")

# The plugin interface by QEMU's version: see native/counter/qemu_plugin_api.h.
PLUGIN_API = (((9, 1), 3), ((9, 0), 2), ((0,), 1))


def build_plugin(cache: Path) -> Path:
    """Compile the plugin for the installed emulator, once.

    Raises:
        UserError: there is no emulator, or none that loads plugins, or no compiler.
        LabError: it does not compile.
    """
    qemu = require_qemu()
    if not qemu.plugins:
        have = ".".join(map(str, qemu.version))
        raise UserError(
            f"{qemu.path} ({have}) was built without plugins: it cannot count instructions",
            remedy="put a qemu-riscv64 with plugins first on PATH; Debian 12's qemu-user has them",
        )
    api = next(number for version, number in PLUGIN_API if qemu.version >= version)
    toolchain = find_native()
    command = [*toolchain.cc, *FLAGS, *WARNINGS, f"-DMLC_RVV_PLUGIN_API={api}", "counter.c"]

    def make(out: Path) -> None:
        output = ["-o", str(out / "counter.so"), "-lpthread"]
        run_compiler("compiling the counter", [*command, *output], PLUGIN)

    key = digest(toolchain.digest, " ".join(command), PLUGIN)
    return cached_build(cache, "counter", key, make) / "counter.so"
