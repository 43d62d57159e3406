# SPDX-License-Identifier: Apache-2.0
"""Objects that let a runner drive a device: the runtime in C++, a simulator, and programs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from accelerator.device import NATIVE, Device
from accelerator.extension.unit import MatrixUnit
from accelerator.host.image import attention_sizes, programs_of, source
from crosslab.build.link import WARNINGS
from crosslab.build.runtime import Runtime, sanitizer_flags
from crosslab.cached_build import cached_build
from crosslab.host.objects import compile_objects
from crosslab.host.toolchain import Toolchain
from groundwork.hashing import digest

# The simulator is what takes the time of an answer.
FLAGS = ("-O3", "-g0", "-ffunction-sections", "-fdata-sections")
IMAGE = "image.cc"
_PACKAGE = Path(__file__).parents[1]
_LOWERING = (
    *("host/image.py", "lowering.py", "program.py", "mapping.py", "layer.py", "isa"),
    *("extension/lowering.py", "extension/encoding.py", "extension/unit.py"),
)


def folders_of(device: Device | MatrixUnit) -> tuple[str, ...]:
    """Folders of the C++ sources that drive a device, in ``native/``."""
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
    """Objects to link into a runner; the same inputs are compiled once.

    Args:
        device: what the runner drives.
        sizes: outputs and inputs of the model's layers.
        width: of a head, where attention's products are the device's; else 0.
        runtime: TVM's, whose headers are used.
        toolchain: what it was compiled with.
        cache: folder of finished builds.
        sanitizers: instrument with these.

    Raises:
        AcceleratorError: a layer does not fit the device.
        LabError: compiling fails.
    """
    wanted = sorted({*sizes, *attention_sizes(width)})
    # With sanitizers what counts is the compiler's time, as in the runner itself.
    plain = ("-O0",) if sanitizers else ()
    flags = [*runtime.compile_flags, *FLAGS, *plain, *WARNINGS, *sanitizer_flags(sanitizers)]
    key = digest(
        runtime.folder.name,
        toolchain.digest,
        shlex.join([*FLAGS, *plain, *WARNINGS, *sanitizers]),
        repr(device),
        repr(wanted),
        *(NATIVE / folder for folder in folders_of(device)),
        *(_PACKAGE / name for name in _LOWERING),
    )

    def make(out: Path) -> None:
        text = source(device, [programs_of(outputs, inputs, device) for outputs, inputs in wanted])
        (out / IMAGE).write_text(text, encoding="utf-8")
        found = [
            path for folder in folders_of(device) for path in sorted((NATIVE / folder).glob("*.cc"))
        ]
        sources = [path.relative_to(NATIVE).as_posix() for path in found]
        maps = [f"-ffile-prefix-map={place}={name}" for place, name in _places(runtime, out)]
        command = [*toolchain.cxx, *flags, *maps, f"-I{NATIVE}"]
        compile_objects("accelerator", command, sources, NATIVE, out)
        compile_objects("programs", command, [IMAGE], out, out)

    folder = cached_build(cache, f"accelerator-driver-{toolchain.machine}", key, make)
    return tuple(sorted(folder.glob("*.o")))


def _places(runtime: Runtime, out: Path) -> list[tuple[Path, str]]:
    """Folders, and their replacements in the objects."""
    return [(NATIVE, "."), (out, "image"), (runtime.folder, "runtime")]
