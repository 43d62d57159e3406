# SPDX-License-Identifier: Apache-2.0
"""``crosslab package``: put finished models into reproducible tarballs or Debian packages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from crosslab.artifact import verify
from crosslab.artifact.deb import write_deb
from crosslab.artifact.dist import OBJECTS, entries_of, name_of
from crosslab.artifact.manifest import MANIFEST, Verdict, file_entry, verdict_of
from crosslab.artifact.tarball import write_tar
from crosslab.artifact.verify import WRONG_ANSWER, check_files
from crosslab.errors import LabError, UserError
from groundwork.command_line import Parser, output_folder

ABOUT = (
    "Put finished models of dist/ into tarballs; a model gives the same bytes each time. "
    "'verify TARBALL_OR_FOLDER' checks one instead: verify --help."
)
MAKE = "make it with: nox -s build_and_test"
NAME_ONE = "give a folder dist/RELEASE/TARGET/MODEL, or none for all; or: verify TARBALL"
# Reasons to refuse a model, by verdict.
REFUSED = {
    Verdict.WRONG: WRONG_ANSWER,
    None: f"{MANIFEST} does not say whether its answer was right",
}
BUILD_AGAIN = (
    "build it again: nox -s model -- MODEL, or nox -s build_and_test; the summary shows the "
    "difference. To pack other models, name them: nox -s package -- dist/RELEASE/TARGET/MODEL"
)

_console = Console(highlight=False, soft_wrap=True)


def main(argv: Sequence[str]) -> int:
    """Write tarballs or Debian packages of finished models, or verify one; print paths and hashes.

    Raises:
        UserError: a folder does not exist, or is not a finished model with a right answer.
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
        "--output", type=output_folder, metavar="DIR", help="folder for the tarballs (PROJECT/dist)"
    )
    parser.add_argument(
        "--deb",
        action="store_true",
        help="write Debian packages for riscv64, with a service, instead of tarballs",
    )
    args = parser.parse_args(argv)
    dist = args.project.resolve() / "dist"
    folders = [folder.resolve() for folder in args.folders] or finished(dist)
    if not folders:
        raise UserError(f"no finished model in {dist}", remedy=MAKE)
    output = args.output or dist
    for target in debs(folders, output) if args.deb else package(folders, output):
        _console.print(f"{target}\n  sha256 {file_entry('', target).sha256}", markup=False)
    return 0


def finished(dist: Path) -> list[Path]:
    """Return the folders of a project's finished models: ``dist/<release>/<target>/<model>``."""
    return sorted(path.parent for path in dist.glob(f"*/*/*/{MANIFEST}"))


def package(folders: Iterable[Path], output: Path) -> list[Path]:
    """Write the tarballs of finished models, and of their objects; return the paths.

    All folders are checked before the first tarball is written.

    Raises:
        UserError: a folder is not a finished model, or the verdict is "wrong" or missing.
        LabError: a folder was changed after it was written, or its objects are of another build.
    """
    targets: dict[Path, Path] = {}
    for folder in folders:
        if folder in targets:
            continue
        _, targets[folder] = _checked(folder, output)
        objects = folder.with_name(folder.name + OBJECTS)
        if objects.is_dir():
            about, targets[objects] = _checked(objects, output)
            if about.get("runner") != file_entry("runner", folder / "runner").sha256:
                raise LabError(f"{objects} is of another build than {folder}", remedy=MAKE)
    for folder, target in targets.items():
        top = target.stem
        write_tar(target, {f"{top}/{e.path}": folder / e.path for e in entries_of(folder)})
    return list(targets.values())


def debs(folders: Iterable[Path], output: Path) -> list[Path]:
    """Write the Debian packages of finished models; return the paths.

    All folders are checked before the first package is written; those of objects are left out.

    Raises:
        UserError: a folder is not a finished model, its verdict is "wrong" or missing, or there is
            no ``dpkg-deb``.
        LabError: a folder was changed after it was written, or ``dpkg-deb`` failed.
    """
    abouts: dict[Path, dict[str, Any]] = {}
    for folder in folders:
        if not folder.name.endswith(OBJECTS):
            abouts[folder] = _checked(folder, output)[0]
            if not (folder / "run.sh").is_file():
                raise UserError(
                    f"{folder} has no run.sh for a service: the board has no tokenizer for it",
                    remedy="leave out --deb, or name other models",
                )
    return [write_deb(folder, about, output) for folder, about in abouts.items()]


def tarball_of(folder: Path, release: str, target: str, output: Path) -> Path:
    """Return the path in ``output`` of a finished model's tarball."""
    return output / f"{name_of(folder, release, target)}.tar"


def _checked(folder: Path, output: Path) -> tuple[dict[str, Any], Path]:
    """Check that a folder may be packed; return its manifest's table and its tarball's path."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}", remedy=NAME_ONE)
    try:
        manifest = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise UserError(f"{folder} holds no {MANIFEST}: {error.strerror}", remedy=MAKE) from error
    findings, table = check_files(manifest, entries_of(folder))
    if findings:
        lines = "".join(f"\n  {finding}" for finding in findings)
        raise LabError(f"{folder} differs from its manifest:{lines}", remedy=MAKE)
    tarball = tarball_of(folder, table["release"], table["target"], output)
    if reason := REFUSED.get(verdict_of(table)):
        old = f"; {tarball} is from an earlier build" if tarball.exists() else ""
        raise UserError(f"{folder} is not packed: {reason}{old}", remedy=BUILD_AGAIN)
    if not table["inputs"]["upstreams"]:
        what = f"{MANIFEST} does not list the patches in its trees"
        raise LabError(f"{folder} is not packed: {what}", remedy=MAKE)
    return table, tarball
