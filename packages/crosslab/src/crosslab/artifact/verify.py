# SPDX-License-Identifier: Apache-2.0
"""``crosslab package verify``: check a tarball or a folder against its manifest, without unpacking.

The result is a list of problems. A tarball from an unknown source is good if: each file of the
manifest is in it once with the manifest's hash; it holds no other file; no path leaves its folder;
the bill of materials is valid by CycloneDX's schema; and the bill and ``SHA256SUMS`` list the same
files.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from crosslab.artifact.dist import entries_of
from crosslab.artifact.manifest import (
    MANIFEST,
    MAXIMUM_BYTES,
    SBOM,
    SUMS,
    Entry,
    ManifestError,
    Verdict,
    entry_of,
    file_entry,
    parse,
    render_sums,
    verdict_of,
)
from crosslab.artifact.sbom import sbom_problem
from crosslab.artifact.tarball import (
    end_of,
    has_content,
    is_canonical,
    member_problem,
    plain_members,
)
from crosslab.errors import UserError
from groundwork.command_line import Parser
from groundwork.errors import printable

ABOUT = "Check a tarball, without unpacking it, or an unpacked folder against its own manifest."
KEPT = (MANIFEST, SBOM, SUMS)
SHOWN = 20
WRONG_ANSWER = "when it was built, its answer was wrong, or it gave none"
ANSWERS = {
    Verdict.RIGHT: "its answer is the reference's",
    Verdict.UNCHECKED: "its answer was not compared with a reference",
    None: f"{MANIFEST} does not say whether its answer is right",
}
_SHA256 = re.compile("[0-9a-fA-F]{64}")

_console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class ArtifactProblem:
    """A problem of an artefact: path of the file, and description."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def main(argv: Sequence[str]) -> int:
    """Check a tarball or a folder; return 1 for a problem or a recorded wrong answer, else 0.

    Raises:
        UserError: the file or folder does not exist, or the file is not a tar archive; --sha256 is
            malformed, or given with a folder.
    """
    parser = Parser(prog="crosslab package verify", description=ABOUT)
    parser.add_argument(
        "artifact", type=Path, metavar="TARBALL_OR_FOLDER", help="tarball or folder to check"
    )
    parser.add_argument(
        "--sha256", metavar="HEX", help="sha256 that the publisher of the tarball gives"
    )
    args = parser.parse_args(argv)
    if args.sha256 is not None and not _SHA256.fullmatch(args.sha256):
        raise UserError(
            f"--sha256 {args.sha256} is not a sha256", remedy="give 64 hexadecimal digits"
        )
    path = args.artifact
    if path.is_dir():
        if args.sha256 is not None:
            raise UserError(
                "--sha256 is the hash of a tarball, and a folder has none",
                remedy="give the tarball, or leave out --sha256",
            )
        findings, table = verify_folder(path)
        return _report(path, findings, table)
    findings, table = verify_tarball(path)
    sha256 = file_entry("", path).sha256
    if args.sha256 is not None and args.sha256.lower() != sha256:
        findings = [ArtifactProblem(str(path), f"its sha256 is {sha256}"), *findings]
    if code := _report(path, findings, table):
        return code
    advice = "equal to --sha256" if args.sha256 is not None else "compare it with its publisher's"
    _console.print(f"  sha256 {sha256}: {advice}")
    return 0


def _report(path: Path, findings: Sequence[ArtifactProblem], table: Mapping[str, Any]) -> int:
    """Print problems or a summary; return 1 for a problem or a recorded wrong answer, else 0."""
    for finding in findings[:SHOWN]:
        _console.print(f"wrong: {printable(str(finding))}", markup=False, style="red")
    if len(findings) > SHOWN:
        _console.print(f"and {len(findings) - SHOWN} more")
    if findings:
        _console.print(f"{path}: changed after it was made; do not use it", markup=False)
        return 1
    what = " ".join(str(table.get(key)) for key in ("model", "quantization", "target", "release"))
    verdict = verdict_of(table)
    if verdict is Verdict.WRONG:
        _console.print(f"wrong: {path} did not change: {WRONG_ANSWER}", markup=False, style="red")
        _console.print("do not use it; build it again: nox -s model -- MODEL")
        return 1
    count = len(table["files"])
    _console.print(f"{path}: good: {what}, {count} files; {ANSWERS[verdict]}", markup=False)
    return 0


def verify_folder(folder: Path) -> tuple[list[ArtifactProblem], dict[str, Any]]:
    """Return the problems of a folder, and its manifest's table (empty if unreadable).

    Raises:
        UserError: a file cannot be read.
    """
    try:
        entries = entries_of(folder)
        kept = {name: (folder / name).read_bytes() for name in KEPT if (folder / name).is_file()}
    except OSError as error:
        raise UserError(
            f"cannot read {error.filename}: {error.strerror}", remedy="check its permissions"
        ) from error
    return _check(kept, entries)


def verify_tarball(path: Path) -> tuple[list[ArtifactProblem], dict[str, Any]]:
    """Return the problems of a tarball, and its manifest's table (empty if unreadable).

    Raises:
        UserError: the file does not exist, or is not a tar archive.
    """
    try:
        with path.open("rb") as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            return _verify(archive, stream)
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}",
            remedy="give a tarball that nox -s package wrote: dist/*.tar",
        ) from error
    except tarfile.TarError as error:
        raise UserError(
            f"{path} is not a tar archive: {error}",
            remedy="make an uncompressed tarball with: nox -s package",
        ) from error


def _verify(
    archive: tarfile.TarFile, raw: IO[bytes]
) -> tuple[list[ArtifactProblem], dict[str, Any]]:
    findings: list[ArtifactProblem] = []
    entries: list[Entry] = []
    kept: dict[str, bytes] = {}
    top, end = "", 0
    try:
        for member in plain_members(archive):
            top = top or member.name.partition("/")[0]
            if problem := member_problem(member, top):
                findings.append(ArtifactProblem(repr(member.name), problem))
                continue
            if not is_canonical(member, raw, end):
                findings.append(
                    ArtifactProblem(
                        repr(member.name), "its header differs from those that package writes"
                    )
                )
            path, end = member.name.removeprefix(f"{top}/"), end_of(member)
            stream = archive.extractfile(member)
            assert stream is not None  # it is a plain file
            if path in KEPT:
                kept[path] = stream.read(MAXIMUM_BYTES)
                stream.seek(0)
            entries.append(_read(path, member.size, stream))
        if has_content(raw, end):
            findings.append(ArtifactProblem("the archive", "data follow its end"))
    # For a damaged header, tarfile also raises other errors than its own.
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        findings.append(ArtifactProblem("the archive", f"it is damaged or cut short: {error}"))
    problems, table = _check(kept, entries)
    return [*findings, *problems], table


def _check(
    kept: Mapping[str, bytes], entries: Sequence[Entry]
) -> tuple[list[ArtifactProblem], dict[str, Any]]:
    """Compare files with manifest, bill of materials and sums; return problems and manifest."""
    if MANIFEST not in kept:
        return [ArtifactProblem(MANIFEST, "is missing")], {}
    problems, table = check_files(kept[MANIFEST], entries)
    problems += _check_bill(kept.get(SBOM, b""), entries)
    sums = render_sums(entry for entry in entries if entry.path not in (MANIFEST, SUMS))
    if kept.get(SUMS) not in (None, sums.encode(errors="surrogateescape")):
        problems.append(ArtifactProblem(SUMS, "differs from the files"))
    return problems, table


def _read(path: str, size: int, stream: IO[bytes]) -> Entry:
    entry = entry_of(path, stream)
    if entry.bytes != size:
        raise tarfile.ReadError(f"{path} ends early")
    return entry


def check_files(
    manifest: bytes, entries: Iterable[Entry]
) -> tuple[list[ArtifactProblem], dict[str, Any]]:
    """Compare the entries of files with a manifest.

    Returns:
        the differences, and the manifest's table, which is empty if the manifest is malformed.
    """
    try:
        table, listed = parse(manifest)
    except ManifestError as error:
        return [ArtifactProblem(MANIFEST, str(error))], {}
    findings: list[ArtifactProblem] = []
    seen: set[str] = set()
    for entry in entries:
        if entry.path in seen:
            findings.append(ArtifactProblem(entry.path, "occurs twice"))
        seen.add(entry.path)
        if entry.path == MANIFEST:
            continue
        if entry.path not in listed:
            findings.append(ArtifactProblem(entry.path, "is not in the manifest"))
        elif entry != listed[entry.path]:
            expected = listed[entry.path]
            findings.append(
                ArtifactProblem(
                    entry.path,
                    f"differs from the manifest: {entry.bytes} bytes, sha256 "
                    f"{entry.sha256}; the manifest has {expected.bytes}, {expected.sha256}",
                )
            )
    findings += [ArtifactProblem(path, "is missing") for path in sorted(listed) if path not in seen]
    return findings, table


def _check_bill(bill: bytes, entries: Iterable[Entry]) -> list[ArtifactProblem]:
    if not bill:
        return [ArtifactProblem(SBOM, "is missing")]
    try:
        text = bill.decode("utf-8")
        if problem := sbom_problem(text):
            return [ArtifactProblem(SBOM, f"is not valid CycloneDX: {problem}")]
        components = json.loads(text).get("components", [])
    except (ValueError, RecursionError) as error:
        return [ArtifactProblem(SBOM, f"is not JSON: {error}")]
    listed = {
        str(component["name"]): {h["content"] for h in component.get("hashes", [])}
        for component in components
        if component["type"] == "file"
    }
    shipped = {entry.path: {entry.sha256} for entry in entries if entry.path not in KEPT}
    differ = sorted(p for p in listed.keys() | shipped.keys() if listed.get(p) != shipped.get(p))
    return [ArtifactProblem(path, f"differs from its entry in {SBOM}") for path in differ]
