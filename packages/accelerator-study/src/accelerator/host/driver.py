# SPDX-License-Identifier: Apache-2.0
"""Objects that let a runner drive a device: the C++ runtime, a simulator, and the programs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from accelerator.device import NATIVE, Device
from accelerator.extension.unit import MatrixUnit
from accelerator.host.image import attention_sizes, programs_of, source
from crosslab.assemble.runtime import Runtime, sanitizer_flags
from crosslab.cached_build import cached_build
from crosslab.host.objects import run_compiler
from crosslab.host.toolchain import Toolchain
from groundwork.hashing import digest

# An answer spends most of its time in the simulator.
FLAGS = ("-O3", "-g0", "-ffunction-sections", "-fdata-sections")
WARNINGS = ("-Wall", "-Wextra", "-Werror")
IMAGE = "image.cc"
_PACKAGE = Path(__file__).parents[1]
# Files and folders of the package that decide an image's source.
LOWERING = (
    *("host/image.py", "lowering.py", "program.py", "mapping.py", "layer.py", "boxes.py", "isa"),
    *("device.py", "functional.py"),
    *("extension/lowering.py", "extension/encoding.py", "extension/unit.py"),
)


def folders_of(device: Device | MatrixUnit) -> tuple[str, ...]:
    """Return the folders in ``native/`` with the C++ sources that drive a device."""
    return ("runtime", "extension" if isinstance(device, MatrixUnit) else "vta")


def driver_objects(
    device: Device | MatrixUnit,
    sizes: Iterable[tuple[int, int]],
    width: int,
    runtime: Runtime,
    toolchain: Toolchain,
    cache: Path,
    sanitizers: tuple[str, ...] = (),
) -> tuple[Path, ...]:
    """Compile the objects that a runner links to drive a device, or find them in the cache.

    Args:
        device: the device that the runner drives.
        sizes: outputs and inputs of the model's layers.
        width: of a head, if the device computes attention's products; else 0.
        runtime: TVM's runtime, which provides the headers.
        toolchain: the compiler of the runtime.
        cache: folder of finished builds.
        sanitizers: names of the sanitizers to compile with.

    Raises:
        AcceleratorError: a layer does not fit the device.
        LabError: a compiler fails.
    """
    wanted = sorted({*sizes, *attention_sizes(width)})
    # With sanitizers the compiler's time matters more than the simulator's, as in the runner.
    plain = ("-O0",) if sanitizers else ()
    flags = [*runtime.compile_flags, *FLAGS, *plain, *WARNINGS, *sanitizer_flags(sanitizers)]
    key = digest(
        runtime.folder.name,
        toolchain.digest,
        shlex.join([*FLAGS, *plain, *WARNINGS, *sanitizers]),
        repr(device),
        repr(wanted),
        *(NATIVE / folder for folder in folders_of(device)),
        *(_PACKAGE / name for name in LOWERING),
    )

    def make(out: Path) -> None:
        text = source(device, [programs_of(outputs, inputs, device) for outputs, inputs in wanted])
        (out / IMAGE).write_text(text, encoding="utf-8")
        paths = [
            path for folder in folders_of(device) for path in sorted((NATIVE / folder).glob("*.cc"))
        ]
        # Objects name sources by these short paths.
        places = ((NATIVE, "."), (out, "image"), (runtime.folder, "runtime"))
        maps = [f"-ffile-prefix-map={prefix}={name}" for prefix, name in places]
        command = [*toolchain.cxx, *flags, *maps, f"-I{NATIVE}"]
        sources = [*map(str, paths), str(out / IMAGE)]
        run_compiler("compiling the device's driver", [*command, "-c", *sources], out)

    folder = cached_build(cache, f"accelerator-driver-{toolchain.machine}", key, make)
    return tuple(sorted(folder.glob("*.o")))
