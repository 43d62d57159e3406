# SPDX-License-Identifier: Apache-2.0
"""``crosslab package``: finished models become tarballs that are the same bytes each time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from crosslab.artifact import verify
from crosslab.artifact.dist import entries_of
from crosslab.artifact.manifest import MANIFEST, file_entry
from crosslab.artifact.tarball import write_tar
from crosslab.artifact.verify import ArtifactProblem, check_files
from crosslab.errors import LabError, UserError
from groundwork.command_line import Parser

ABOUT = (
    "Put finished models of dist/ into tarballs; a model gives the same bytes each time. "
    "'verify TARBALL_OR_FOLDER' checks one instead: verify --help."
)
MAKE = "make it with: nox -s build_and_test"
NAME_ONE = "give a folder dist/RELEASE/TARGET/MODEL, or none for all; or: verify TARBALL"

_console = Console(highlight=False, soft_wrap=True)


def main(argv: Sequence[str]) -> int:
    """Write a tarball for each folder, or check one; print its name and sha256.

    Raises:
        UserError: there is no such folder, or it is not a finished model.
        LabError: a folder or a tarball differs from its manifest.
    """
    if argv[:1] == ["verify"]:
        return verify.main(argv[1:])
    parser = Parser(prog="crosslab package", description=ABOUT)
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="FOLDER", help="finished models (all of dist/)"
    )
    parser.add_argument(
        "--project", type=Path, default=Path(), help="root folder of the project (.)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder for the tarballs (PROJECT/dist)"
    )
    args = parser.parse_args(argv)
    dist = args.project.resolve() / "dist"
    folders = [folder.resolve() for folder in args.folders] or finished(dist)
    if not folders:
        raise UserError(f"no finished model in {dist}", remedy=MAKE)
    for folder in folders:
        target = package(folder, args.output or dist)
        _console.print(f"{target}\n  sha256 {file_entry('', target).sha256}", markup=False)
    return 0


def finished(dist: Path) -> list[Path]:
    """The finished models of a project: ``dist/<release>/<target>/<model>``."""
    return sorted(path.parent for path in dist.glob(f"*/*/*/{MANIFEST}"))


def package(folder: Path, output: Path) -> Path:
    """Write one tarball of a folder that equals its manifest.

    Raises:
        UserError: the folder is not a finished model.
        LabError: it was changed since it was written.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}", remedy=NAME_ONE)
    try:
        manifest = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise UserError(f"{folder} holds no {MANIFEST}: {error.strerror}", remedy=MAKE) from error
    findings, table = check_files(manifest, entries_of(folder))
    if not findings and not table["inputs"]["upstreams"]:
        findings = [ArtifactProblem(MANIFEST, "does not list the patches in its trees")]
    if findings:
        lines = "".join(f"\n  {finding}" for finding in findings)
        raise LabError(f"{folder} differs from its manifest:{lines}", remedy=MAKE)
    name = "-".join(("mlc-rvv", table["release"], table["target"], folder.name))
    target = output / f"{name}.tar"
    write_tar(target, {f"{name}/{e.path}": folder / e.path for e in entries_of(folder)})
    return target
