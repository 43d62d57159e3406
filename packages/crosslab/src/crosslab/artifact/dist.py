# SPDX-License-Identifier: Apache-2.0
"""Writer of a finished model's folder, which is ready to be copied to a board."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from crosslab.artifact.board_readme import README, board_readme
from crosslab.artifact.manifest import (
    MANIFEST,
    SBOM,
    SUMS,
    Entry,
    file_entry,
    render,
    render_sums,
)
from crosslab.artifact.sbom import Part, render_sbom, sbom_problem
from crosslab.artifact.tarball import PLAIN, PROGRAM, normalised_tar
from crosslab.cached_build import note_reused
from crosslab.compile.driver import LIBRARY
from crosslab.errors import LabError
from crosslab.models.params import INDEX_FILE

# Suffix of the folder with a finished model's objects, beside the model's folder.
OBJECTS = "-objects"
PROGRAMS = ("runner", "run.sh", "relink.sh")
RUN = Path(__file__).with_name("run.sh")
SERVICE = Path(__file__).with_name("mlc-rvv.service")

_console = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Dist:
    """Contents of a finished model's folder.

    Attributes:
        folder: target folder.
        files: source file or folder of each path in the folder. The library's tar (``model.tar``)
            is copied without dates and owners.
        about: facts of the manifest, without names, sizes and hashes.
        whole: the artefact as one component of the bill of materials.
        parts: the components of the artefact.
    """

    folder: Path
    files: Mapping[str, Path]
    about: Mapping[str, Any]
    whole: Part
    parts: tuple[Part, ...] = field(default=())


def name_of(folder: Path, release: str, target: str) -> str:
    """Return the name of a finished model's tarball, and of the folder in the tarball."""
    return "-".join(("mlc-rvv", release, target, folder.name))


def write_dist(dist: Dist) -> Path:
    """Write the folder atomically, or keep the old folder if the content is equal.

    Returns:
        path of the manifest.

    Raises:
        LabError: the bill of materials violates its schema.
    """
    final = dist.folder / MANIFEST
    dist.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{dist.folder.name}-", dir=dist.folder.parent) as at:
        fresh, old = Path(at) / "new", Path(at) / "old"
        _fill(dist, fresh)
        if _same(fresh, dist.folder):
            note_reused(f"dist/{dist.folder.name}")
            return final
        if dist.folder.exists():
            dist.folder.rename(old)
        fresh.rename(dist.folder)
    _console.print(f"dist: written ({dist.folder})", soft_wrap=True, markup=False)
    return final


def _readme(dist: Dist, folder: Path) -> str:
    index = json.loads((folder / "params" / INDEX_FILE).read_text(encoding="utf-8"))
    name = name_of(dist.folder, dist.about["release"], dist.about["target"])
    return board_readme(dist.about, name, entries_of(folder), index["records"])


def _fill(dist: Dist, folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    for name, source in sorted(dist.files.items()):
        _copy(source, folder / name)
    if RUN.name in dist.files:
        _write(folder / README, _readme(dist, folder))
    shipped = entries_of(folder)
    bill = render_sbom(dist.whole, dist.parts, shipped)
    # Validation takes seconds; a bill that an earlier run wrote is valid.
    if not _holds(dist.folder / SBOM, bill) and (problem := sbom_problem(bill)):
        raise LabError(f"the bill of materials is not valid CycloneDX: {problem}")
    _write(folder / SBOM, bill)
    shipped.append(file_entry(SBOM, folder / SBOM))
    _write(folder / SUMS, render_sums(shipped))
    shipped.append(file_entry(SUMS, folder / SUMS))
    _write(folder / MANIFEST, render(dist.about, shipped))


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def make_parents(path: Path) -> None:
    """Make the folders above a path; their modes do not depend on the umask."""
    for parent in reversed(path.parents):
        if not parent.exists():
            parent.mkdir()
            parent.chmod(0o755)


def _copy(source: Path, target: Path) -> None:
    """Copy a file or folder; file modes do not depend on the umask."""
    if source.is_dir():
        for file in sorted(p for p in source.rglob("*") if p.is_file()):
            _copy(file, target / file.relative_to(source))
        return
    make_parents(target)
    if target.name == LIBRARY:
        target.write_bytes(normalised_tar(source))
    else:
        shutil.copyfile(source, target)
    target.chmod(PROGRAM if target.name in PROGRAMS else PLAIN)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(PLAIN)


def entries_of(folder: Path) -> list[Entry]:
    """Return the manifest entry of every file in a folder, sorted by path."""
    files = ((p.relative_to(folder).as_posix(), p) for p in folder.rglob("*") if p.is_file())
    return sorted(file_entry(path, file) for path, file in files)


def _same(first: Path, other: Path) -> bool:
    return other.is_dir() and _listed(entries_of(first)) == _listed(entries_of(other))


def _listed(entries: Iterable[Entry]) -> list[tuple[str, str]]:
    return [(entry.path, entry.sha256) for entry in entries]
