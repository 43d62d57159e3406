# SPDX-License-Identifier: Apache-2.0
"""Files as git sees them, and streams of them written into a repository in one go."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path

from forkpatch.git.calls import Git, GitError
from groundwork.files import naming

# A blob above the threshold goes to the pack as it is read; git's own is 512 MB.
# Fast compression: a tree grows by a tenth. A repository that is gone soon needs none, nor deltas.
_KEPT = ("-c", "core.bigFileThreshold=16m", "-c", "core.compression=1", "fast-import")
_BRIEF = ("-c", "core.compression=0", "fast-import", "--depth=0")
_MOST_READERS = 4
_AT_ONCE = 256  # names that a pipe holds, so that git never waits for us while we wait for it
IDENTITY = b"forkpatch <forkpatch@localhost>"
#: The same for git's environment.
COMMITTER = {"GIT_COMMITTER_NAME": "forkpatch", "GIT_COMMITTER_EMAIL": "forkpatch@localhost"}
EPOCH = b"0 +0000"
_ID = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class TreeFile:
    """One file of a tree: its mode as git writes it (``100644``), and its bytes."""

    mode: str
    data: bytes

    @property
    def blob(self) -> str:
        """The git blob id of the bytes."""
        return blob_id(self.data)


#: New contents by path; None removes the file.
Changes = dict[str, TreeFile | None]


@dataclass(frozen=True)
class Commit:
    """A commit to be written: what it changes against the one before it.

    Attributes:
        message: the message, byte for byte.
        author: ``Name <email>``.
        date: ``<seconds since 1970> <+hhmm>``.
        changes: new contents by path; None removes the file.
        files: more new contents, which need not be in memory at once.
        tree: start from this tree of the repository instead of the parent's.
        parent: the commit of the repository that the first of a chain follows.
    """

    message: bytes
    author: bytes = IDENTITY
    date: bytes = EPOCH
    changes: Mapping[str, TreeFile | None] = field(default_factory=dict)
    files: Iterable[tuple[str, TreeFile]] = ()
    tree: str = ""
    parent: str = ""


def blob_id(data: bytes) -> str:
    """The id git gives to a file with these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def write_commits(
    git: Git, ref: str, commits: Iterable[Commit], *, chained: bool = True, brief: bool = False
) -> list[str]:
    """Write a chain of commits and point ``ref`` at the last.

    The ids depend on nothing but the arguments. Unless ``chained``, each follows its own parent.
    If ``brief``, the repository is gone soon, and its objects are not compressed.

    Returns:
        The commit ids, in order.
    """
    count, loose = 0, git.objects if brief else None
    # In a file, not in memory: a tree may be larger than that.
    with tempfile.TemporaryFile(dir=git.git_dir) as stream:
        with naming(git.git_dir or Path()):
            stream.write(b"feature done\n")
            for count, commit in enumerate(commits, 1):
                parent = f":{count - 1}" if chained and count > 1 else commit.parent
                linked = replace(commit, parent=parent)
                stream.writelines(_commit_command(ref, count, linked, loose))
            stream.writelines(b"get-mark :%d\n" % mark for mark in range(1, count + 1))
            stream.write(b"done\n")
            stream.seek(0)
        out = git.run(
            *(_BRIEF if brief else _KEPT), "--quiet", "--force", "--date-format=raw", stdin=stream
        )
    return out.stdout.decode("ascii").split()


def _commit_command(ref: str, mark: int, commit: Commit, loose: Path | None) -> Iterator[bytes]:
    """Yield the command for a commit; with a folder ``loose`` of objects, its blobs go there."""
    yield b"reset %s\n" % ref.encode() if mark == 1 else b""
    yield b"commit %s\nmark :%d\n" % (ref.encode(), mark)
    yield b"author %s %s\n" % (commit.author, commit.date)
    yield b"committer %s %s\n" % (IDENTITY, commit.date)
    yield from _data(commit.message)
    yield b"from %s\n" % commit.parent.encode() if commit.parent else b""
    yield b'M 040000 %s ""\n' % commit.tree.encode() if commit.tree else b""
    # What goes comes first: a folder may take the place of a file, or a file of a folder.
    changes = sorted(commit.changes.items(), key=lambda one: (one[1] is not None, one[0]))
    for path, file in chain(changes, commit.files):
        name = _quoted(path)
        if file is None:
            yield b"D %s\n" % name
        elif loose:
            yield b"M %s %s %s\n" % (file.mode.encode(), _write_loose(loose, file.data), name)
        else:
            yield b"M %s inline %s\n" % (file.mode.encode(), name)
            yield from _data(file.data)


def _write_loose(objects: Path, data: bytes) -> bytes:
    """Write a blob as a file of its own, without compression; return its id.

    Fast-import hashes four times what it writes, and takes several times as long.
    """
    oid = blob_id(data)
    target = objects / oid[:2] / oid[2:]
    target.parent.mkdir(exist_ok=True)
    scratch = target.with_name(f"tmp_obj_{oid[2:]}")  # as git names it, which removes old ones
    scratch.write_bytes(zlib.compress(b"blob %d\0" % len(data) + data, 0))
    scratch.replace(target)
    return oid.encode()


def _data(data: bytes) -> Iterator[bytes]:
    yield b"data %d\n" % len(data)
    yield data
    yield b"\n"


def _quoted(path: str) -> bytes:
    """A path for fast-import, which reads C-style quotes."""
    raw = path.encode("utf-8", "surrogateescape")
    return b'"%s"' % raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")


def tree_id(git: Git, files: Mapping[str, tuple[str, str]]) -> str:
    """Write the tree of files, path -> (mode, object id); return its id. Blobs may be lacking."""
    with tempfile.TemporaryDirectory(dir=git.git_dir) as folder:
        index = {"GIT_INDEX_FILE": f"{folder}/index"}
        lines = (f"{mode} {oid}\t{path}\0" for path, (mode, oid) in files.items())
        text = "".join(lines).encode("utf-8", "surrogateescape")
        git.run("update-index", "-z", "--index-info", stdin=text, env=index)
        written = git.run("write-tree", "--missing-ok", env=index).stdout
    return written.decode("ascii").strip()


def list_tree(git: Git, treeish: str, *paths: str) -> dict[str, tuple[str, str]]:
    """Return files and submodules below ``paths`` (default: all): path -> (mode, object id)."""
    if git.git_dir is not None and not paths and _ID.fullmatch(treeish):
        return dict(_whole_tree(git.git_dir, treeish))
    return _listed(git, treeish, paths)


@lru_cache(maxsize=4)
def _whole_tree(git_dir: Path, oid: str) -> dict[str, tuple[str, str]]:
    """The files of a tree or commit: an id never names another one."""
    return _listed(Git(git_dir), oid, ())


def _listed(git: Git, treeish: str, paths: Sequence[str]) -> dict[str, tuple[str, str]]:
    files = {}
    for record in git.fields("ls-tree", "-r", "-z", "--full-tree", treeish, "--", *paths):
        meta, _, path = record.partition("\t")
        mode, _kind, oid = meta.split(" ")
        files[path] = (mode, oid)
    return files


def changed_files(git: Git, old: str, new: str) -> dict[str, tuple[str, str, str, str]]:
    """Old mode, new mode, old id and new id of each file that differs; zeros for no file.

    A rename is a file that goes and one that comes.
    """
    command = ("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--no-commit-id")
    fields = git.fields(*command, old, new)
    found = {}
    for meta, path in zip(fields[::2], fields[1::2], strict=True):
        old_mode, new_mode, old_id, new_id, _ = meta.removeprefix(":").split(" ")
        found[path] = (old_mode, new_mode, old_id, new_id)
    return found


def read_index(git: Git) -> dict[str, dict[str, tuple[str, str]]]:
    """Mode and id of each file of the index by path, then stage: 1 to 3 are of a conflict."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for record in git.fields("ls-files", "-s", "-z"):
        meta, _, path = record.partition("\t")
        mode, oid, stage = meta.split(" ")
        found.setdefault(path, {})[stage] = mode, oid
    return found


def unmerged(index: Mapping[str, Mapping[str, object]]) -> set[str]:
    """The paths with conflicts in an index."""
    return {path for path, stages in index.items() if "0" not in stages}


def read_blobs(git: Git, names: Iterable[str]) -> dict[str, bytes | None]:
    """Contents of objects by name; None for those that the repository lacks.

    Names are object ids, or revisions in ASCII.
    """
    wanted = sorted(set(names))
    return dict(zip(wanted, stream_blobs(git, wanted), strict=True)) if wanted else {}


def read_available(git: Git, oids: Iterable[str]) -> dict[str, bytes | None]:
    """Return contents of blobs; None for a blob that a partial mirror lacks."""
    ids = set(oids)
    try:
        return read_blobs(git, ids)
    except GitError:
        return dict.fromkeys(ids) | read_blobs(git, ids & object_ids(git))


def object_ids(git: Git) -> set[str]:
    """Return the ids of all objects of a repository; a query of a missing one would fetch it."""
    listed = git.run("cat-file", "--batch-all-objects", "--batch-check=%(objectname)").stdout
    return set(listed.decode("ascii").split())


def stream_blobs(git: Git, names: Sequence[str]) -> Iterator[bytes | None]:
    """The contents of objects, in order and one at a time; None for one that is lacking.

    Raises:
        GitError: git ended before it gave all of them.
    """
    process = _reader(git.git_dir)
    assert process.stdin is not None and process.stdout is not None
    left = len(names)
    try:
        for start in range(0, len(names), _AT_ONCE):
            asked = names[start : start + _AT_ONCE]
            process.stdin.write("".join(f"{name}\n" for name in asked).encode("ascii"))
            process.stdin.flush()
            for name in asked:
                head = process.stdout.readline().split()
                size = int(head[2]) if len(head) == 3 else -1
                data = process.stdout.read(size + 1) if size >= 0 else b""
                if not head or len(data) != size + 1:
                    said = process.communicate()[1].decode("utf-8", "replace")
                    raise GitError(["cat-file"], -1, f"fatal: {name} is cut off; {said.strip()}")
                left -= 1
                yield data[:size] if size >= 0 else None
    except OSError as error:
        raise GitError(["cat-file"], -1, f"fatal: {error}") from error
    finally:
        if left:  # answers that nobody reads
            end_readers()


#: Processes that read objects, by path and inode of the repository: another one may come to a path.
_READERS: dict[tuple[Path | None, int], subprocess.Popen[bytes]] = {}


def _reader(git_dir: Path | None) -> subprocess.Popen[bytes]:
    """Return a process that reads a repository's objects until :func:`end_readers`."""
    key = git_dir, (git_dir or Path()).stat().st_ino
    if key not in _READERS:
        if len(_READERS) == _MOST_READERS:
            end_readers()
        _READERS[key] = Git(git_dir).start("cat-file", "--batch")
    return _READERS[key]


def end_readers() -> None:
    """End the processes that read objects; a later reading starts them again."""
    while _READERS:
        process = _READERS.popitem()[1]
        process.kill()
        process.communicate()
