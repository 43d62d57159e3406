# SPDX-License-Identifier: Apache-2.0
"""The verbs ``edit`` and ``export``: commits written as patch files, always the same bytes.

Git's output depends on the configuration of the user and of the repository. The export
therefore runs in an empty repository of its own that only borrows the objects.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forkpatch.errors import IntegrityError, UserError
from forkpatch.git.calls import Git, init_repository
from forkpatch.model.fork import Fork, TreePlan, plan_tree
from forkpatch.model.lock import Upstream
from forkpatch.model.patchfile import SERIES, SUFFIX, Patch, parse_patch, read_series
from forkpatch.safety import check_name
from forkpatch.series.record import RECORD, format_record, is_recorded, record_of
from forkpatch.sources.obtain import SourceOptions, obtain
from forkpatch.tree.apply import Applied, ApplyState, apply_release, write_tree
from forkpatch.tree.swap import recover, scratch_beside, swap_in, work_lock
from forkpatch.tree.worktree import NAME_TRAILER, OVERLAYS_REF, local_changes, read_stamp

FORMAT_PATCH = (
    *("format-patch", "--stdout", "-1", "--zero-commit", "--full-index", "--no-signature"),
    *("--no-stat", "--no-numbered", "--no-color", "--no-ext-diff", "--no-textconv"),
)
_NAME_LINE = re.compile(rf"^{NAME_TRAILER}: (.+)\n?", re.MULTILINE)
_MAX_NAME = 60


@dataclass(frozen=True)
class Exported:
    """A patch file as the export makes it."""

    name: str
    data: bytes

    def parse(self) -> Patch:
        """The patch that the file holds."""
        return parse_patch(self.data, self.name)


@dataclass(frozen=True)
class ExportReport:
    """Changes that an export made, or would make.

    Attributes:
        folder: folder of the series.
        patches: the names, in order.
        changes: a line for each file that differs.
    """

    upstream: str
    version: str
    folder: Path
    patches: tuple[str, ...]
    changes: tuple[str, ...]


@contextmanager
def neutral_repository(objects: Path) -> Iterator[Git]:
    """An empty repository with no configuration that reads the objects in ``objects``."""
    with tempfile.TemporaryDirectory(prefix="forkpatch-") as folder:
        git = init_repository(Path(folder) / "neutral.git")
        alternates = Path(folder) / "neutral.git/objects/info"
        alternates.mkdir(exist_ok=True)
        (alternates / "alternates").write_text(f"{objects.resolve()}\n", encoding="utf-8")
        yield git


def export_commits(objects: Path, commits: Sequence[str]) -> tuple[Exported, ...]:
    """The patch files of a chain of commits.

    Raises:
        UserError: a commit is a merge, or two carry the same file name.
    """
    exported: list[Exported] = []
    with neutral_repository(objects) as git:
        names: set[str] = set()
        for commit in commits:
            raw = git.run("cat-file", "commit", commit).stdout
            head, _, message = raw.partition(b"\n\n")
            if head.count(b"\nparent ") != 1:
                raise UserError(
                    f"commit {commit[:12]} is a merge",
                    remedy="make the history a straight line: git rebase",
                )
            text = message.decode("utf-8", "surrogateescape")
            name = _file_name(text, names, commit)
            names.add(name)
            clean = _without_name(text).encode("utf-8", "surrogateescape")
            oid = git.run(
                "hash-object", "-t", "commit", "-w", "--stdin", stdin=head + b"\n\n" + clean
            )
            data = git.run(*FORMAT_PATCH, oid.stdout.decode("ascii").strip()).stdout
            exported.append(Exported(name, data))
    return tuple(exported)


def write_commit(git: Git, head: bytes, message: bytes) -> str:
    """Write a commit object with these header lines; returns its id."""
    command = ("hash-object", "-t", "commit", "-w", "--stdin")
    return git.run(*command, stdin=head + b"\n\n" + message).stdout.decode("ascii").strip()


def _file_name(message: str, taken: set[str], commit: str) -> str:
    """The file name that the commit carries, else one from its subject."""
    carried = _NAME_LINE.findall(message)
    if carried:
        name = check_name(carried[-1].strip(), f"{NAME_TRAILER} of commit {commit[:12]}:")
        if name in taken:
            raise UserError(
                f"two commits carry the name {name}",
                remedy=f"join them (git rebase -i), or drop the line {NAME_TRAILER} of one",
            )
        return name
    return new_name(message.partition("\n")[0], taken)


def new_name(subject: str, taken: Iterable[str]) -> str:
    """A file name from a subject: its words, short, and not taken yet."""
    words = re.sub(r"\[[^\]]*\]", "", subject).lower()
    stem = re.sub(r"[^a-z0-9]+", "-", words).strip("-")[:_MAX_NAME].rstrip("-") or "patch"
    name, count, known = f"{stem}{SUFFIX}", 1, set(taken)
    while name in known:
        count += 1
        name = f"{stem}-{count}{SUFFIX}"
    return name


def _without_name(message: str) -> str:
    return _NAME_LINE.sub("", message).rstrip("\n") + "\n"


def format_series(names: Sequence[str], old: str) -> str:
    """The text of a series: a comment stays above the patch that it stood above."""
    above: dict[str, str] = {}
    pending = ""
    for line in old.splitlines(keepends=True):
        name = line.partition("#")[0].strip()
        if name:
            above[name] = pending + line.rstrip("\n") + "\n"
            pending = ""
        else:
            pending += line
    return "".join(above.get(name, f"{name}\n") for name in names) + pending


def write_series(folder: Path, patches: Sequence[Exported], record: str) -> tuple[str, ...]:
    """Write a series, its files and its record to ``folder``, atomically.

    Returns:
        A line for each file that was changed.
    """
    changes = series_changes(folder, patches, record)
    if not changes:
        return ()
    scratch = scratch_beside(folder)
    try:
        if folder.is_dir():
            old = {*read_series(folder), SERIES, RECORD}
            for path in folder.iterdir():
                if path.name not in old:
                    target = scratch / path.name
                    shutil.copytree(path, target) if path.is_dir() else shutil.copy2(path, target)
        for name, data in _files(folder, patches, record).items():
            (scratch / name).write_bytes(data)
        swap_in(scratch, folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return changes


def series_changes(folder: Path, patches: Sequence[Exported], record: str) -> tuple[str, ...]:
    """A line for each file of a series that is not as it would be written."""
    wanted = _files(folder, patches, record)
    listed = read_series(folder)
    changes = []
    for name, data in wanted.items():
        path = folder / name
        if not path.is_file():
            changes.append(f"{name}: new")
        elif path.read_bytes() != data:
            changes.append(f"{name}: changed")
    changes += [f"{name}: removed" for name in listed if name not in wanted]
    return tuple(changes)


def _files(folder: Path, patches: Sequence[Exported], record: str) -> dict[str, bytes]:
    old = ""
    with contextlib.suppress(OSError):
        old = (folder / SERIES).read_text("utf-8")
    files = {patch.name: patch.data for patch in patches}
    files[SERIES] = format_series([patch.name for patch in patches], old).encode()
    if record:
        files[RECORD] = record.encode()
    return files


def planned(fork: Fork, upstream: Upstream, patches: Sequence[Exported]) -> TreePlan:
    """The tree that these patch files give."""
    pristine = obtain(upstream, fork.cache, SourceOptions()).pristine
    return plan_tree(fork, upstream, pristine, tuple(patch.parse() for patch in patches))


def export_upstream(
    fork: Fork, release: str, upstream: Upstream, *, check: bool = False, force: bool = False
) -> ExportReport:
    """Write the commits of a patched tree back to its series.

    Args:
        fork: the fork.
        release: the release whose tree it is.
        upstream: the upstream whose tree it is.
        check: write nothing.
        force: write over patch files that changed since the tree was built.

    Raises:
        UserError: there is no tree, it has changes that are in no commit, or the patch files
            changed since it was built.
        UserError: a commit cannot be a patch: a merge, or a change to an overlay.
    """
    folder, series = fork.tree_folder(release, upstream), fork.patch_folder(upstream)
    with work_lock(fork.settings.work / release):
        recover(folder.parent)
        recover(series.parent)
        commits = _commits(folder, upstream)
        patches = export_commits(folder / ".git/objects", commits)
        plan = planned(fork, upstream, patches)
        _check_faithful(fork, plan, folder, upstream)
        found = record_of(fork, plan)
        record = format_record(found) if is_recorded(series, found) else ""
        changes = series_changes(series, patches, record)
        if not check:
            if changes and not force:
                _check_not_outdated(fork, folder, upstream)
            write_series(series, patches, record)
            _rebuild(plan, folder, release)
    names = tuple(patch.name for patch in patches)
    return ExportReport(upstream.name, upstream.version, series, names, changes)


def _check_not_outdated(fork: Fork, folder: Path, upstream: Upstream) -> None:
    """Raise when the tree was not built from the patch files that an export would replace."""
    stamp = read_stamp(folder)
    now = tuple((patch.name, patch.sha256) for patch in fork.series(upstream))
    if stamp is not None and stamp.inputs.patches != now:
        raise UserError(
            f"the series of {upstream} changed since {folder} was built",
            remedy="take the files: forkpatch apply --discard;"
            " or the tree: forkpatch export --force",
        )


def _commits(folder: Path, upstream: Upstream) -> list[str]:
    stamp = read_stamp(folder)
    if stamp is None:
        raise UserError(
            f"{folder} is no patched tree", remedy=f"type: forkpatch edit {upstream.name}"
        )
    if stamp.version != upstream.version:
        raise UserError(f"{folder} holds {stamp.version}, not {upstream}")
    loose = [line for line in local_changes(folder, stamp) if not line.startswith("it has other")]
    if loose:
        raise UserError(
            f"{folder} has changes that are in no commit: {'; '.join(loose[:5])}",
            remedy="commit them (git commit, or git commit --fixup and git rebase -i --autosquash)",
        )
    git = Git(folder / ".git", folder)
    start = git.text("rev-parse", "--verify", OVERLAYS_REF)
    if git.run("merge-base", "--is-ancestor", start, "HEAD", ok=(0, 1)).returncode:
        raise UserError(
            f"{folder}: its history no longer begins at {OVERLAYS_REF}",
            remedy=f"put it back: git rebase --onto {OVERLAYS_REF}",
        )
    return git.text("rev-list", "--reverse", f"{start}..HEAD").split()


def _check_faithful(fork: Fork, plan: TreePlan, folder: Path, upstream: Upstream) -> None:
    """Raise unless the series gives the very files that were committed, overlays left alone."""
    git = Git(folder / ".git", folder)
    expected = dict(plan.weave.changes())
    start = git.text("rev-parse", "--verify", OVERLAYS_REF)
    out = git.run("diff-tree", "-r", "-z", "--no-renames", "--raw", start, "HEAD").stdout
    fields = out.decode("utf-8", "surrogateescape").split("\0")[:-1]
    changed = {path: meta.split(" ") for meta, path in zip(fields[::2], fields[1::2], strict=True)}
    for path, meta in changed.items():
        if path in plan.overlays:
            raise UserError(
                f"a commit changes {path}, which is an overlay",
                remedy=f"change {fork.overlay_folder(upstream) / path} instead",
            )
        file = expected.pop(path, None)
        if (file.blob if file else "0" * 40) != meta[3]:
            raise IntegrityError(f"{path}: the exported series does not give what was committed")


def _rebuild(plan: TreePlan, folder: Path, release: str) -> None:
    """Build the tree from what was exported, so that it and its stamp fit the series."""
    stamp = read_stamp(folder)
    git = Git(folder / ".git", folder)
    same_head = stamp is not None and git.text("rev-parse", "HEAD") == stamp.head
    inputs = tuple((patch.name, patch.sha256) for patch in plan.patches)
    if stamp is None or not same_head or stamp.inputs.patches != inputs:
        write_tree(plan, folder, release, stamp.source if stamp else "")


def open_for_edit(fork: Fork, release: str | None, name: str, options: SourceOptions) -> Applied:
    """Bring the patched tree up to date for editing; work that is in it stays.

    Raises:
        UserError: the upstream is missing, or not of the release.
    """
    chosen, upstreams = fork.lock.release(release)
    for upstream in upstreams:
        folder = fork.tree_folder(chosen, upstream)
        stamp = read_stamp(folder)
        if upstream.name == name and stamp and local_changes(folder, stamp):
            patches = tuple(patch for patch, _ in stamp.inputs.patches)
            overlays = tuple(path for path, _, _ in stamp.inputs.overlays)
            return Applied(
                *(name, stamp.version, stamp.source, stamp.tree, folder),
                *(patches, overlays, ApplyState.CURRENT),
            )
    _, applied = apply_release(fork, release, options, only=name)
    return applied[0]
