# SPDX-License-Identifier: Apache-2.0
"""The verb ``import-series``: import of a quilt-style series of another project.

Such patches are plain diffs, with or without a head in the style of Debian's DEP-3, under any
prefix, and their line numbers may be off. A hunk is accepted where it states its lines, else
where its lines are the only ones of that kind in the file; anything less certain stops the
import, and nothing is written. What comes out is in this engine's own form and exact.
"""

from __future__ import annotations

import email.utils
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from forkpatch.errors import PatchError, UserError
from forkpatch.git.objects import Commit, list_tree, read_blobs
from forkpatch.model.diffs import FileDiff, Hunk
from forkpatch.model.fork import Fork
from forkpatch.model.lock import Upstream
from forkpatch.model.patchfile import SERIES, Patch, parse_patch
from forkpatch.model.record import format_record
from forkpatch.model.weave import Weave, split_lines
from forkpatch.safety import check_path
from forkpatch.series.derive import record_of
from forkpatch.series.mailbox import Exported, export_commits, new_name, planned, write_series
from forkpatch.sources.cache import Pristine
from forkpatch.sources.obtain import SourceOptions, obtain
from forkpatch.tree.swap import scratch_beside
from forkpatch.tree.worktree import build_repository, patch_commit

_FIELD = re.compile(r"^([A-Za-z][A-Za-z-]*):[ \t]*(.*)$")
_OLD_NAME = re.compile(rb"^--- ([^\t\n]+)[^\n]*\n\+\+\+ ([^\t\n]+)[^\n]*\n(?=@@ )", re.MULTILINE)
_NOISE = re.compile(
    rb"^(?:Index: .*|=+|diff --git .*|diff .*|index [0-9a-f]+\.\..*)\n", re.MULTILINE
)
_NO_DATE = "0 +0000"


@dataclass(frozen=True)
class ImportReport:
    """Result of an import.

    Attributes:
        patches: the names, in order.
        shifted: the hunks that were not at the lines they state, and where they are.
    """

    upstream: str
    version: str
    folder: Path
    patches: tuple[str, ...]
    shifted: tuple[str, ...]


@dataclass(frozen=True)
class _Entry:
    name: str
    strip: int


def import_series(
    fork: Fork, upstream: Upstream, source: Path, options: SourceOptions
) -> ImportReport:
    """Import the series in the folder ``source`` as the series of an upstream version.

    Raises:
        UserError: there is no series, or the upstream version has one already.
        PatchError: a patch cannot be read, or its place is not certain.
    """
    target = fork.patch_folder(upstream)
    if target.exists():
        raise UserError(f"{target} exists", remedy="remove it, or import to another version")
    pristine = obtain(upstream, fork.cache, options).pristine
    listed = list_tree(pristine.git, pristine.tree)
    contents: dict[str, bytes] = {}

    def read(path: str) -> bytes:
        if path not in contents:
            oid = listed[path][1]
            contents[path] = read_blobs(pristine.git, [oid])[oid] or b""
        return contents[path]

    weave = Weave({path: mode for path, (mode, _) in listed.items()}, read)
    commits = [Commit(f"{upstream}\n".encode(), tree=upstream.tree)]
    shifted: list[str] = []
    for entry in read_quilt_series(source):
        patch = _parse(source / entry.name, entry, weave.patches)
        state = weave.changes()
        files = []
        for diff in patch.files:
            made = state.get(diff.old or "")
            known = made.data if made else read(diff.old) if diff.old in listed else b""
            files.append(_settle(diff, split_lines(known), entry.name, shifted))
        patch = replace(patch, files=tuple(files))
        weave.apply(patch)
        after = weave.changes()
        commits.append(patch_commit(patch, {path: after.get(path) for path in patch.paths}))
    patches = _export(pristine, commits, target)
    plan = planned(fork, upstream, patches)
    write_series(target, patches, format_record(record_of(fork, plan)))
    return ImportReport(
        upstream.name,
        upstream.version,
        target,
        tuple(patch.name for patch in patches),
        tuple(shifted),
    )


def _export(pristine: Pristine, commits: list[Commit], target: Path) -> tuple[Exported, ...]:
    scratch = scratch_beside(target)
    try:
        _, ids = build_repository(scratch, pristine, commits)
        return export_commits(scratch / ".git/objects", ids[1:])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read_quilt_series(folder: Path) -> tuple[_Entry, ...]:
    """The entries of a quilt series: a name, perhaps ``-pN``, perhaps a comment."""
    path = folder / SERIES
    if not path.is_file():
        raise UserError(f"{path}: there is no series", remedy="name the folder that holds one")
    entries = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        check_path(words[0], f"{path}:{number}")
        strip = next((int(word[2:]) for word in words[1:] if re.fullmatch(r"-p\d+", word)), 1)
        entries.append(_Entry(words[0], strip))
    return tuple(entries)


def _parse(path: Path, entry: _Entry, taken: Collection[str]) -> Patch:
    """A quilt patch in the form of the engine's own."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PatchError(f"{path}: {error.strerror}") from error
    start = _OLD_NAME.search(data)
    if start is None:
        raise PatchError(f"{path}: it holds no diff")
    head, diff = data[: start.start()], data[start.start() :]
    author, message = _head(_NOISE.sub(b"", head).decode("utf-8", "replace"), path.stem)
    mail = (
        f"From: {author}\nDate: Thu, 1 Jan 1970 00:00:00 +0000\nSubject: x\n\n".encode()
        + _as_git(diff, entry.strip)
    )
    name = new_name(re.sub(r"^\d+[-_.]?", "", path.stem), taken)
    return replace(
        parse_patch(mail, name, str(path)), message=message, author=author, date=_NO_DATE
    )


def _as_git(diff: bytes, strip: int) -> bytes:
    """The diff with git's headers and prefixes."""

    def header(match: re.Match[bytes]) -> bytes:
        old, new = (_stripped(match.group(n), strip) for n in (1, 2))
        lines = [b"diff --git a/%s b/%s" % (old or new, new or old)]
        if not old:
            lines.append(b"new file mode 100644")
        if not new:
            lines.append(b"deleted file mode 100644")
        lines.append(b"--- a/" + old if old else b"--- /dev/null")
        lines.append(b"+++ b/" + new if new else b"+++ /dev/null")
        return b"\n".join(lines) + b"\n"

    return _OLD_NAME.sub(header, _NOISE.sub(b"", diff))


def _stripped(name: bytes, strip: int) -> bytes:
    if name == b"/dev/null":
        return b""
    return b"/".join(name.split(b"/")[strip:])


def _head(text: str, stem: str) -> tuple[str, str]:
    """Author and message from the head of a patch: DEP-3 fields, or free text."""
    fields: dict[str, str] = {}
    free: list[str] = []
    last = ""
    for line in text.replace("\n---\n", "\n").splitlines():
        field = _FIELD.match(line)
        if field:
            last = field.group(1).lower()
            fields[last] = field.group(2)
        elif line[:1] in (" ", "\t") and last:
            fields[last] += "\n" + line.strip().removeprefix(".")
        else:
            last = ""
            free.append(line)
    about = fields.get("subject") or fields.get("description") or ""
    subject, _, rest = about.partition("\n")
    body = "\n\n".join(part for part in (rest.strip(), "\n".join(free).strip()) if part)
    name, address = email.utils.parseaddr(fields.get("from") or fields.get("author") or "")
    author = f"{name} <{address}>" if address else "unknown <unknown@localhost>"
    subject = subject.strip() or re.sub(r"^\d+[-_.]?", "", stem).replace("-", " ").capitalize()
    trailers = _trailers(fields)
    return author, "\n\n".join(part for part in (subject, body, trailers) if part) + "\n"


def _trailers(fields: Mapping[str, str]) -> str:
    """Upstream-Status from DEP-3's ``Forwarded`` and ``Origin``."""
    forwarded, origin = fields.get("forwarded", ""), fields.get("origin", "")
    commit = re.search(r"\b[0-9a-f]{7,40}\b", origin)
    if origin.startswith(("upstream", "backport")) and commit:
        return f"Upstream-Status: Backport [{commit.group()}]"
    if re.match("https?://", forwarded):
        return f"Upstream-Status: Submitted [{forwarded.split()[0]}]"
    if forwarded.startswith("not-needed"):
        return "Upstream-Status: Inappropriate [not needed upstream]"
    return "Upstream-Status: Pending"


def _settle(diff: FileDiff, lines: list[bytes], name: str, shifted: list[str]) -> FileDiff:
    """The diff with every hunk at the lines where it certainly belongs."""
    hunks: list[Hunk] = []
    delta = 0
    for hunk in diff.hunks:
        old = list(hunk.old)
        at = hunk.first
        if lines[at : at + len(old)] != old:
            found = [n for n in range(len(lines) - len(old) + 1) if lines[n : n + len(old)] == old]
            if len(found) != 1:
                why = "its lines are not there" if not found else f"there are {len(found)} places"
                raise PatchError(
                    f"{name}: the hunk at line {hunk.old_start} of {diff.old}: {why}",
                    remedy="refresh the patch against this version (quilt refresh), then import",
                )
            at = found[0]
            shifted.append(f"{name}: {diff.old}:{hunk.old_start} is at line {at + 1}")
        old_start = at + (hunk.old_count > 0)
        new_start = at + delta + (hunk.new_count > 0)
        hunks.append(replace(hunk, old_start=old_start, new_start=new_start))
        delta += hunk.new_count - hunk.old_count
    return replace(diff, hunks=tuple(hunks))
