# SPDX-License-Identifier: Apache-2.0
"""An emulator that loads plugins: the system's QEMU, or else a pinned build of Debian's."""

from __future__ import annotations

import platform
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from elftools.elf.elffile import ELFFile
from rich.console import Console

from crosslab.cached_build import cached_build
from crosslab.errors import UserError
from crosslab.host.toolchain import QEMU, Emulator, require_qemu
from crosslab.models.sources.pins import read_pinned
from crosslab.project import PROJECT
from groundwork import apt
from groundwork.hashing import digest

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PROGRAM = f"usr/bin/{QEMU}"
REMEDY = (
    "run again with access to Debian's packages, or put a qemu-riscv64 with plugins first on PATH"
)

_console = Console(stderr=True, highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class PinnedQemu:
    """Pinned packages of Debian with an emulator and its libraries.

    Attributes:
        version: version of the emulator.
        megabytes: download size of all packages.
        packages: path in Debian's pool, without architecture, to the sha256 by architecture.
    """

    version: str
    megabytes: int
    packages: Mapping[str, Mapping[str, str]]


def counting_qemu(cache: Path) -> Emulator:
    """Return an emulator that loads plugins; download one with apt, once, if necessary.

    Args:
        cache: folder of finished builds.

    Raises:
        UserError: there is no emulator, or no emulator with plugins can be downloaded.
    """
    qemu = require_qemu()
    return qemu if qemu.plugins else _fetched(qemu, cache)


@lru_cache
def _fetched(system: Emulator, cache: Path) -> Emulator:
    pin = read_pinned(
        PROJECT,
        "emulators",
        QEMU,
        lambda entry: PinnedQemu(entry["version"], entry["megabytes"], entry["packages"]),
    )
    architecture = ARCHITECTURES.get(platform.machine(), "")
    packages = pin.packages.items()
    files = {
        f"{name}_{architecture}.deb": sha256.get(architecture, "") for name, sha256 in packages
    }

    def make(out: Path) -> None:
        _console.print(
            f"{system.path} loads no plugins, which count instructions; QEMU {pin.version} of "
            f"Debian 12 counts them: {len(files)} packages of Debian, {pin.megabytes} MB, are "
            f"downloaded now and unpacked in {cache}; the system stays as it is"
        )
        archives = apt.archives()
        for file, sha256 in files.items():
            package = out / "package.deb"
            if reason := _download(file, sha256, archives, package):
                raise UserError(
                    f"{system.path} was built without plugins, so that it cannot count "
                    f"instructions, and {Path(file).name} cannot be fetched: {reason}",
                    remedy=REMEDY,
                )
            _unpack(package, out)
            package.unlink()

    key = digest(repr(sorted(files.items())), Path(__file__))
    folder = cached_build(cache, "qemu", key, make)
    program = folder / QEMU
    with program.open("rb") as stream:
        (interpreter,) = ELFFile(stream).iter_segments("PT_INTERP")
        # The library path is an option: the guest would see an environment variable.
        loader = (interpreter.get_interp_name(), "--library-path", str(folder))
    version = tuple(map(int, pin.version.split(".")))
    return Emulator(program, version, plugins=True, loader=loader)


def _download(file: str, sha256: str, archives: Sequence[str], package: Path) -> str:
    """Download a package from the first archive that has it; return an error, or an empty text."""
    reasons = []
    for archive in archives if sha256 else ():
        reasons.append(apt.download(f"{archive}/pool/main/{file}", sha256, package))
        if not reasons[-1]:
            return ""
    return (reasons or ["apt has no archive of Debian for this machine"])[0]


def _unpack(package: Path, out: Path) -> None:
    """Extract a package's libraries, and any emulator in it, into one folder, all side by side."""
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as unpacking,
        tarfile.open(fileobj=unpacking.stdout, mode="r|") as content,
    ):
        # Python 3.11.3 and older have no filters; the packages are the pinned ones in any case.
        content.extraction_filter = getattr(tarfile, "data_filter", None)
        for member in content:
            path = Path(member.name)
            if path == Path(PROGRAM) or ".so." in path.name:
                member.name = path.name
                content.extract(member, out)
