# SPDX-License-Identifier: Apache-2.0
"""Resolutions of conflicts, kept with the fork for reuse.

Each resolution is a folder of ``patches/<upstream>/resolutions``. Its ``resolution.json`` names the
patch and every file in which the resolved commit differs from git's merge. ``<n>.preimage`` is file
``n`` with git's conflicts; ``<n>.postimage`` is the resolved file. Files that merged without a
conflict are recorded, too: a change that follows its function into another file is made there.

A resolution is used when the same patch meets the same conflicts, all of its files can be made, and
the resulting patch equals the recorded patch, line for line and in the same functions. A file that
upstream renamed is recognized by its content before the merge.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from forkpatch.errors import ForkError
from forkpatch.git.calls import Git
from forkpatch.git.merge import changed_lines, marked, merge_data
from forkpatch.git.objects import (
    changed_files,
    list_tree,
    read_blobs,
    read_index,
    tree_id,
    unmerged,
)
from forkpatch.model.stored import plain, read_stored
from forkpatch.safety import FILE_MODES, TREE_MODES, check_own, check_path
from forkpatch.symbols.outline import outline
from groundwork.files import atomic_write, atomic_write_json

FOLDER = "resolutions"
_FILE = "resolution.json"
_STAGES = ("1", "2", "3")

#: Mode and blob id of a file by git's stage: 0 for a clean merge, 1 to 3 for a conflict.
Stages = Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class RecordedFile:
    """A file of a resolution: its stages after git's merge, and its mode after the resolution.

    The mode is empty for a removed file.
    """

    path: str
    before: Stages
    after: str


@dataclass(frozen=True)
class Resolution:
    """A kept resolution; ``change`` and ``result`` are hashes of :func:`change_of`.

    Attributes:
        patch: name of the patch when it was resolved, for readers.
        change: the patch on its old base.
        result: the resolved patch on the new base.
    """

    patch: str
    change: str
    result: str
    files: tuple[RecordedFile, ...]
    folder: Path = field(default=Path(), compare=False)

    @property
    def conflicts(self) -> set[str]:
        """Paths of the files with conflicts."""
        return {file.path for file in self.files if set(file.before) & set(_STAGES)}


def change_of(git: Git, old: str, new: str, names: Mapping[str, str] | None = None) -> str:
    """Return a hash of the lines that change between two commits or trees, with their symbols.

    Context, line numbers and unchanged lines do not count. ``names`` replaces names of files.
    """
    rows = []
    for path, (old_mode, new_mode, old_id, new_id) in changed_files(git, old, new).items():
        blobs = read_blobs(git, (old_id, new_id))
        before, after = blobs[old_id] or b"", blobs[new_id] or b""
        (ranges,) = changed_lines([(before, after)])
        lines = [
            [
                (outline(path, data).at(row + 1).name, data.split(b"\n")[row].hex())
                for one in ranges
                for row in range(one[side], one[side] + one[side + 1])
            ]
            for data, side in ((before, 0), (after, 2))
        ]
        rows.append(((names or {}).get(path, path), old_mode, new_mode, lines))
    if names:
        rows.sort(key=lambda row: os.fsencode(row[0]))  # as git does
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def remember(git: Git, kept: Path, patch: str, trees: tuple[str, str, str]) -> None:
    """Keep a resolution with the fork.

    ``trees``: the patch's commit on the old base, the commit it was merged onto, the resolved tree.
    The repository has the index that git's merge left; without conflicts, nothing is kept.
    """
    original, head, resolved = trees
    merged, after = read_index(git), list_tree(git, resolved)
    final: dict[str, Stages] = {path: {"0": entry} for path, entry in after.items()}
    paths = sorted(path for path in {*merged, *final} if merged.get(path) != final.get(path))
    files = tuple(
        RecordedFile(path, merged.get(path, {}), after[path][0] if path in after else "")
        for path in paths
    )
    if not any(set(file.before) & set(_STAGES) for file in files):
        return  # an earlier forkpatch began the rebase, and kept no index
    change, result = change_of(git, f"{original}^", original), change_of(git, head, resolved)
    record = Resolution(patch, change, result, files)
    preimages = [_marked(git, file.before) for file in files]
    key = hashlib.sha256(record.change.encode())
    for file, preimage in zip(files, preimages, strict=True):
        if file.path in record.conflicts:
            key.update(json.dumps([file.path, *(() if preimage else file.before.items())]).encode())
            key.update(preimage or b"")
    folder = kept / f"{PurePosixPath(patch).stem[:60]}-{key.hexdigest()[:16]}"
    if folder.exists():
        shutil.rmtree(folder)
    contents = read_blobs(git, (after[path][1] for path in paths if path in after))
    for number, (file, preimage) in enumerate(zip(files, preimages, strict=True)):
        if preimage is not None:
            atomic_write(folder / f"{number}.preimage", preimage)
        if file.after:
            atomic_write(folder / f"{number}.postimage", contents[after[file.path][1]] or b"")
    atomic_write_json(folder / _FILE, plain(record))


def replay(git: Git, kept: Path, original: str, head: str) -> tuple[str, list[str]]:
    """Resolve the conflicts in the index as recorded, without changing the working tree.

    Returns:
        The resulting tree; empty if no recorded resolution can be used, with the reasons.
    """
    resolutions, reasons = [], []
    for path in sorted(kept.iterdir()) if kept.is_dir() else ():
        try:
            resolutions.append(_read(path))
        except (OSError, ValueError, KeyError, TypeError, RecursionError, ForkError) as error:
            reasons.append(f"{path} is not used: {error or 'it cannot be read'}; remove it")
    change = change_of(git, f"{original}^", original) if resolutions else ""
    trees = set()
    for record in resolutions:
        if record.change != change:
            continue
        tree, reason = _applied(git, record, head)
        trees |= {tree} if tree else set()
        reasons += [f"{record.folder} is not used: {reason}"] if reason else []
    if len(trees) > 1:
        return "", [f"{kept}: several resolutions are recorded for it, which differ"]
    return (trees.pop(), []) if trees else ("", reasons)


def _applied(git: Git, record: Resolution, head: str) -> tuple[str, str]:
    """Return the tree that a resolution gives; if it does not apply, an empty id and the reason."""
    merged = read_index(git)
    left = unmerged(merged)
    moved = _renamed(record, merged, left)
    files_now = tuple(replace(item, path=moved.get(item.path, item.path)) for item in record.files)
    record = replace(record, files=files_now)
    if left != record.conflicts:
        return "", "the conflicts are in other files"
    files = {path: entry for path, held in merged.items() for entry in (held.get("0"),) if entry}
    for number, file in enumerate(record.files):
        files.pop(file.path, None)
        held = merged.get(file.path, {})
        data = _resolved(git, record, number, held)
        if data is None and (file.after or held != file.before):
            return "", f"{file.path} is not the same as when it was resolved"
        if data is not None:
            blob = git.text("hash-object", "-w", "--no-filters", "--stdin", stdin=data)
            files[file.path] = file.after, blob
    tree = tree_id(git, files)
    if change_of(git, head, tree, {now: was for was, now in moved.items()}) != record.result:
        return "", "the patch would differ from the resolved one"
    return tree, ""


def _renamed(record: Resolution, merged: Mapping[str, Stages], left: set[str]) -> dict[str, str]:
    """Return the new names of conflicting files that upstream renamed, by recorded name."""
    lost, new = record.conflicts - left, left - record.conflicts
    base_entries = {file.path: file.before.get("1") for file in record.files if file.path in lost}
    renames = {}
    for path, base in base_entries.items():
        same = [name for name in new if base and merged[name].get("1") == base]
        if len(same) == 1 and list(base_entries.values()).count(base) == 1:
            renames[path] = same[0]
    return renames


def _resolved(git: Git, record: Resolution, number: int, held: Stages) -> bytes | None:
    """Return the content of a resolved file; None when it is removed or cannot be made."""
    file = record.files[number]
    if not file.after:
        return None
    resolved = (record.folder / f"{number}.postimage").read_bytes()
    if held == file.before:
        return resolved
    if file.path not in record.conflicts:
        return None
    preimage, current = record.folder / f"{number}.preimage", _marked(git, held)
    if current is None or not preimage.is_file():
        return None
    # The result is the recorded file if the conflict is the same; None if this merge conflicts.
    return merge_data(current, preimage.read_bytes(), resolved)


def _marked(git: Git, held: Stages) -> bytes | None:
    """Return a text file with git's conflicts, in markers without commit ids; None for others."""
    if set(held) != set(_STAGES) or any(mode not in FILE_MODES for mode, _ in held.values()):
        return None
    blobs = read_blobs(git, (oid for _, oid in held.values()))
    base, ours, theirs = (blobs[held[stage][1]] or b"" for stage in _STAGES)
    return marked(ours, base, theirs)


def _read(folder: Path) -> Resolution:
    """Read a kept resolution.

    Raises:
        UserError: a file is a symbolic link or not a regular file, or its path leaves the tree.
        ValueError: the folder lacks a file, or a mode is wrong.
    """
    if not check_own(folder / _FILE).is_file():
        raise ValueError(f"it has no {_FILE}")
    record = replace(read_stored(Resolution, folder / _FILE), folder=folder)
    for number, file in enumerate(record.files):
        check_path(file.path, str(folder / _FILE))
        if file.after not in ("", *TREE_MODES):
            raise ValueError(f"mode {file.after!r} of {file.path}")
        check_own(folder / f"{number}.preimage")
        if file.after and not check_own(folder / f"{number}.postimage").is_file():
            raise ValueError(f"{number}.postimage is missing")
    return record
