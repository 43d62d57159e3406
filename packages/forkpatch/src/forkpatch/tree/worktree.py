# SPDX-License-Identifier: Apache-2.0
"""A patched tree: a git repository with the base, the overlays, and a commit for each patch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from forkpatch.git.calls import BRANCH, Git, GitError, init_repository
from forkpatch.git.objects import Commit, TreeFile, blob_id, list_tree, write_commits
from forkpatch.model.overlays import equals
from forkpatch.model.patchfile import Patch
from forkpatch.model.stored import read_stored
from forkpatch.sources.cache import Pristine
from groundwork.files import atomic_write_json

FORMAT = 1  # part of every stamp: after a change of the tree format, old trees are stale
OWN_REFS = "refs/forkpatch/"
BASE_REF = f"{OWN_REFS}base"
OVERLAYS_REF = f"{OWN_REFS}overlays"
OTHER_COMMITS = "it has other commits than the series"
APPLIED_REF = f"{OWN_REFS}applied"
PREVIOUS_REF = f"{OWN_REFS}previous"
NAME_TRAILER = "Forkpatch-Name"
_STAMP = "forkpatch.json"
# Folders of a tree's repository that only the user fills: hooks, resolutions, linked worktrees.
_KEPT = ("hooks", "rr-cache", "worktrees")
# Settings, and the commits whose parents a shallow fetch left out.
_KEPT_FILES = ("config", "config.worktree", "shallow")
# Caches of Python, which writes them again when needed.
_TRACE = re.compile(r"(?:^|/)(?:__pycache__|\.(?:pytest|mypy|ruff)_cache)/|\.pyc$")
_EXCLUDES = "__pycache__/\n*.pyc\n.pytest_cache/\n.mypy_cache/\n.ruff_cache/\n"


@dataclass(frozen=True)
class Inputs:
    """Inputs of a patched tree.

    Attributes:
        base: tree id of the pristine upstream.
        patches: name and sha256 of each patch, in order.
        overlays: path, mode and blob id of each overlay file.
        placed: hash of the lines at which shared patches stand; empty without shared patches.
        conditions: name and condition of each patch with a condition.
    """

    base: str
    patches: tuple[tuple[str, str], ...]
    overlays: tuple[tuple[str, str, str], ...]
    placed: str = ""
    conditions: tuple[tuple[str, str], ...] = ()

    def differences(self, old: Inputs) -> tuple[str, ...]:
        """Return the differences from ``old``, in words."""
        messages = [] if self.base == old.base else ["the base is another"]
        messages += differences("patch", dict(self.patches), dict(old.patches))
        messages += differences(
            "overlay",
            {path: (mode, blob) for path, mode, blob in self.overlays},
            {path: (mode, blob) for path, mode, blob in old.overlays},
        )
        messages += differences("condition of", dict(self.conditions), dict(old.conditions))
        if not messages and self.patches != old.patches:
            messages.append("the order of the series changed")
        if not messages and self.placed != old.placed:
            messages.append("a patch of another version stands at other lines")
        return tuple(messages)


@dataclass(frozen=True)
class Stamp:
    """Description of a patched tree, stored in its repository.

    Attributes:
        options: options that chose among the patches with conditions.
    """

    format: int
    release: str
    upstream: str
    version: str
    source: str
    inputs: Inputs
    head: str
    tree: str
    options: tuple[str, ...] = ()


def make_inputs(base: str, patches: Sequence[Patch], overlays: Mapping[str, TreeFile]) -> Inputs:
    """Return the inputs of the tree of ``patches`` and ``overlays`` on the tree id ``base``."""
    moved = {patch.name: patch.positions for patch in patches if patch.home}
    placed = hashlib.sha256(json.dumps(moved).encode()).hexdigest() if moved else ""
    return Inputs(
        base=base,
        patches=tuple((patch.name, patch.sha256) for patch in patches),
        overlays=tuple(
            (path, file.mode, blob_id(file.data)) for path, file in sorted(overlays.items())
        ),
        placed=placed,
        conditions=tuple(
            (patch.name, str(patch.condition)) for patch in patches if patch.condition.options
        ),
    )


def build_repository(
    folder: Path, pristine: Pristine, commits: Sequence[Commit], *, checkout: bool = True
) -> tuple[Git, list[str]]:
    """Make a git repository in the empty ``folder`` with these commits.

    The repository uses no other repository.

    Args:
        folder: the folder.
        pristine: base whose objects are copied; no commit is made of it.
        commits: the commits; the first has the base's tree as its ``tree``.
        checkout: write the files; otherwise the repository is gone soon, and its objects are not
            compressed.

    Returns:
        The repository, and the ids of ``commits``.
    """
    git = init_repository(folder / ".git", folder)
    add_objects(git, pristine)
    write_excludes(folder)
    ids = write_commits(git, f"refs/heads/{BRANCH}", commits, brief=not checkout)
    if checkout:
        git.run("read-tree", "-u", "--reset", "HEAD")
    return git, ids


def write_excludes(folder: Path, patterns: Sequence[str] = ()) -> None:
    """Let git ignore caches of Python in a tree, and build outputs that match ``patterns``."""
    text = _EXCLUDES + "".join(f"{pattern}\n" for pattern in patterns)
    (folder / ".git" / "info" / "exclude").write_text(text, encoding="utf-8")


def add_objects(git: Git, pristine: Pristine) -> None:
    """Copy the objects of a pristine tree into a repository."""
    target = git.objects / "pack"
    target.mkdir(parents=True, exist_ok=True)
    for pack in (pristine.git.objects / "pack").iterdir():
        if not (target / pack.name).exists():
            shutil.copyfile(pack, target / pack.name)


def carry_over(old: Path, new: Path) -> None:
    """Copy a user's work from a tree to its replacement: objects, references, settings.

    References are branches, tags, the stash and all others of the user, with their logs. The tree's
    last commit stays under PREVIOUS_REF, so that dropped work can be found.
    """
    source, target = old / ".git", new / ".git"
    if not (source / "objects").is_dir():
        return
    for path in (source / "objects").rglob("*"):
        link = target / "objects" / path.relative_to(source / "objects")
        if path.is_file() and not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, link)  # objects never change
    for name in _KEPT:
        if (source / name).is_dir():
            shutil.copytree(
                *(source / name, target / name),
                symlinks=True,
                ignore=shutil.ignore_patterns("*.lock", "*.ipc"),  # of a git at work
                dirs_exist_ok=True,
            )
    for name in _KEPT_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    before, after = Git(source), Git(target, new)
    listed = before.text("for-each-ref", "--format=%(objectname) %(refname)")
    pairs = (line.split(" ", 1) for line in listed.splitlines())
    refs = {ref: oid for oid, ref in pairs if not ref.startswith(OWN_REFS)}
    refs.pop(f"refs/heads/{BRANCH}", None)
    if last := before.commit("HEAD"):
        refs[PREVIOUS_REF] = last
    commands = "".join(f"update {ref} {oid}\n" for ref, oid in refs.items())
    after.run("update-ref", "--stdin", stdin=os.fsencode(commands))
    for ref in refs:  # all entries of the stash but the last are in its log alone
        log = source / "logs" / ref
        if log.is_file():
            (target / "logs" / ref).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, target / "logs" / ref)


def keep_builds(old: Path, new: Path) -> None:
    """Move the build outputs of the old tree, which git ignores, to the new tree.

    Unchanged files keep their times, so that a build in the tree continues incrementally.
    """
    git, after = Git(old / ".git", old), Git(new / ".git", new)
    with contextlib.suppress(GitError, OSError):  # a damaged tree keeps nothing
        command = ("ls-files", "-z", "--others", "--ignored", "--directory", "--exclude-standard")
        built = [name.rstrip("/") for name in git.fields(*command) if not _TRACE.search(name)]
        if not built:
            return
        before, current = (list_tree(repository, "HEAD") for repository in (git, after))
        same = [path for path, entry in current.items() if before.get(path) == entry]
        for path in same:
            if not os.path.lexists(old / path):
                continue
            state = (old / path).lstat()
            times = (state.st_atime_ns, state.st_mtime_ns)
            os.utime(new / path, ns=times, follow_symlinks=False)
        after.run("update-index", "-q", "--refresh")
        for name in built:
            if not os.path.lexists(new / name) and (new / name).parent.is_dir():
                (old / name).rename(new / name)


def patch_commit(patch: Patch, changes: Mapping[str, TreeFile | None]) -> Commit:
    """Return the commit of a patch; a trailer holds its file name and its condition."""
    return Commit(
        message=with_name(
            patch.message,
            f"{patch.name} {patch.condition}".rstrip(),
            has_trailers=bool(patch.trailers),
        ).encode("utf-8", "surrogateescape"),
        author=patch.author.encode("utf-8", "surrogateescape"),
        date=patch.date.encode("ascii"),
        changes=changes,
    )


def with_name(message: str, name: str, *, has_trailers: bool) -> str:
    """Return ``message`` with the patch's file name as its last trailer."""
    gap = "" if has_trailers else "\n"
    return f"{message.rstrip()}\n{gap}{NAME_TRAILER}: {name}\n"


def write_stamp(folder: Path, stamp: Stamp) -> None:
    """Write the stamp into the tree's repository."""
    atomic_write_json(folder / ".git" / _STAMP, asdict(stamp))


def read_stamp(folder: Path) -> Stamp | None:
    """Return the stamp of the tree in ``folder``; None without a readable stamp."""
    try:
        return read_stored(Stamp, folder / ".git" / _STAMP)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def has_other_commits(folder: Path, stamp: Stamp) -> bool:
    """Return True when HEAD or the tree's branch has other commits than the tree was built with.

    Raises:
        GitError: the tree's repository cannot be read.
    """
    git = Git(folder / ".git", folder)
    head = git.text("rev-parse", "--verify", "HEAD^{commit}")
    tip = git.commit(f"refs/heads/{BRANCH}")  # it may not be checked out
    return {head, tip or head} != {stamp.head}


def local_changes(
    folder: Path, stamp: Stamp, overlays: Mapping[str, TreeFile] | None = None
) -> tuple[str, ...]:
    """Return the changes to the tree since it was built, in words; empty for none.

    A change that was also made to ``overlays``, the present ones, is left out.

    Raises:
        GitError: the tree's repository cannot be read.
    """
    git = Git(folder / ".git", folder)
    records = git.fields("status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames")
    changes = [OTHER_COMMITS] if has_other_commits(folder, stamp) else []
    named = {path for path, _, _ in stamp.inputs.overlays}.union(overlays or ())
    for record in records:
        kind, path = record[:2], record[3:]
        if overlays is not None and path in named and equals(folder / path, overlays.get(path)):
            continue
        word = "new file" if kind == "??" else "deleted" if "D" in kind else "changed"
        changes.append(f"{word}: {path}")
    return tuple(changes)


def work_in(
    folder: Path, stamp: Stamp | None, overlays: Mapping[str, TreeFile] | None = None
) -> tuple[tuple[str, ...], str]:
    """Return the changes to a tree in words, and why they are not known; empty if they are."""
    if stamp is None:
        return (), "it carries no stamp that can be read"
    try:
        return local_changes(folder, stamp, overlays), ""
    except GitError as error:
        return (), f"its repository cannot be read: {error.what}"


def differences(what: str, new: Mapping[str, object], old: Mapping[str, object]) -> list[str]:
    """Return the new, removed and changed names of two mappings, as in ``new WHAT NAME``."""
    messages = [f"new {what} {name}" for name in new if name not in old]
    messages += [f"{what} {name} is gone" for name in old if name not in new]
    messages += [f"{what} {name} changed" for name in new if name in old and new[name] != old[name]]
    return messages
