# SPDX-License-Identifier: Apache-2.0
"""Files as git sees them, and streams of them written into a repository in one go."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from forkpatch.git.calls import Git

IDENTITY = b"forkpatch <forkpatch@localhost>"
EPOCH = b"0 +0000"


@dataclass(frozen=True)
class TreeFile:
    """One file of a tree: its mode as git writes it (``100644``), and its bytes."""

    mode: str
    data: bytes

    @property
    def blob(self) -> str:
        """The git blob id of the bytes."""
        return blob_id(self.data)


@dataclass(frozen=True)
class Commit:
    """A commit to be written: what it changes against the one before it.

    Attributes:
        message: the message, byte for byte.
        author: ``Name <email>``.
        date: ``<seconds since 1970> <+hhmm>``.
        changes: new contents by path; None removes the file.
        tree: start from this tree of the repository instead of the parent's.
        parent: the commit of the repository that the first of a chain follows.
    """

    message: bytes
    author: bytes = IDENTITY
    date: bytes = EPOCH
    changes: Mapping[str, TreeFile | None] = field(default_factory=dict)
    tree: str = ""
    parent: str = ""


def blob_id(data: bytes) -> str:
    """The id git gives to a file with these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def write_commits(git: Git, ref: str, commits: Iterable[Commit]) -> list[str]:
    """Write a chain of commits and point ``ref`` at the last.

    The ids depend on nothing but the arguments.

    Returns:
        The commit ids, in order.
    """
    stream = [b"feature done\n"]
    count = 0
    for count, commit in enumerate(commits, 1):
        stream += _commit_command(ref, count, commit)
    stream += [b"get-mark :%d\n" % mark for mark in range(1, count + 1)]
    stream.append(b"done\n")
    out = git.run("fast-import", "--quiet", "--force", "--date-format=raw", stdin=b"".join(stream))
    return out.stdout.decode("ascii").split()


def _commit_command(ref: str, mark: int, commit: Commit) -> list[bytes]:
    parent = commit.parent if mark == 1 else f":{mark - 1}"
    parts = [
        b"reset %s\n" % ref.encode() if mark == 1 else b"",
        b"commit %s\nmark :%d\n" % (ref.encode(), mark),
        b"author %s %s\ncommitter %s %s\n" % (commit.author, commit.date, IDENTITY, commit.date),
        _data(commit.message),
        b"from %s\n" % parent.encode() if parent else b"",
        b'M 040000 %s ""\n' % commit.tree.encode() if commit.tree else b"",
    ]
    # What goes comes first: a folder may take the place of a file, or a file of a folder.
    for path, file in sorted(commit.changes.items(), key=_goes_first):
        name = _quoted(path)
        if file is None:
            parts.append(b"D %s\n" % name)
        else:
            parts += [b"M %s inline %s\n" % (file.mode.encode(), name), _data(file.data)]
    return parts


def _goes_first(change: tuple[str, TreeFile | None]) -> tuple[bool, str]:
    return change[1] is not None, change[0]


def _data(data: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(data), data)


def _quoted(path: str) -> bytes:
    """A path for fast-import, which reads C-style quotes."""
    raw = path.encode("utf-8", "surrogateescape")
    return b'"%s"' % raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")


def list_tree(git: Git, treeish: str, *paths: str) -> dict[str, tuple[str, str]]:
    """All files below ``paths`` of a tree: path -> (mode, object id)."""
    out = git.run("ls-tree", "-r", "-z", "--full-tree", treeish, "--", *paths).stdout
    files = {}
    for record in out.split(b"\0")[:-1]:
        meta, _, path = record.partition(b"\t")
        mode, _kind, oid = meta.decode("ascii").split(" ")
        files[path.decode("utf-8", "surrogateescape")] = (mode, oid)
    return files


def read_blobs(git: Git, names: Iterable[str]) -> dict[str, bytes | None]:
    """Contents of objects, in one call; None for those that the repository lacks.

    Args:
        git: the repository.
        names: object ids, or ``<commit>:<path>`` with a checked path.
    """
    wanted = sorted(set(names))
    if not wanted:
        return {}
    text = "".join(f"{name}\n" for name in wanted)
    data = git.run("cat-file", "--batch", stdin=text.encode("utf-8", "surrogateescape")).stdout
    contents: dict[str, bytes | None] = {}
    at = 0
    for name in wanted:
        end = data.index(b"\n", at)
        head = data[at:end]
        at = end + 1
        if head.endswith(b" missing"):
            contents[name] = None
            continue
        size = int(head.rpartition(b" ")[2])
        contents[name] = data[at : at + size]
        at += size + 1
    return contents
