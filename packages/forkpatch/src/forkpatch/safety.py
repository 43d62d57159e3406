# SPDX-License-Identifier: Apache-2.0
"""Checks of names and paths from foreign files, before git or the disk uses them."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from forkpatch.errors import UnsafePathError, UserError

SYMLINK_MODE = "120000"
GITLINK_MODE = "160000"
FILE_MODES = ("100644", "100755")
#: Modes of files that a patch may make or change.
TREE_MODES = (*FILE_MODES, SYMLINK_MODE)

#: Bytes. Linux allows 4,096, which include the path of the tree's folder, and 255.
LONGEST_PATH = 2048
LONGEST_NAME = 255

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def check_name(name: str, what: str) -> str:
    """Return ``name`` of a ``what`` if it is safe as folder and argument, else raise UserError."""
    if not _NAME.fullmatch(name) or ".." in name or name.endswith(".lock"):
        raise UserError(
            f"{what} {name!r} is not a plain name",
            remedy="use letters, digits and . _ + -, beginning with a letter or digit",
        )
    return name


def check_regular(path: Path) -> Path:
    """Return ``path`` if it is a regular file or does not exist, else raise UserError.

    Reading a pipe or a device might never end.
    """
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a pipe, a socket or a device"
        raise UserError(f"{path} is {kind}, not a file", remedy="put a file in its place")
    return path


def check_own(path: Path) -> Path:
    """Return ``path`` if it is a regular file and not a link, or does not exist, else raise.

    A link's target is not in the fork's history, and may be any file of the user.
    """
    if path.is_symlink():
        raise UserError(f"{path} is a symbolic link, not a file", remedy="put a file in its place")
    return check_regular(path)


def is_object_id(value: str) -> bool:
    """Return True for a full hexadecimal object id."""
    return _COMMIT.fullmatch(value) is not None


def check_object_id(value: str, what: str) -> str:
    """Return ``value`` if it is a full object id, else raise UserError, beginning with ``what``."""
    if not is_object_id(value):
        raise UserError(
            f"{what}: {value!r} is not a full object id (40 hexadecimal digits)",
            remedy="git rev-parse NAME in a clone of the repository prints it",
        )
    return value


def check_path(path: str, where: str) -> str:
    """Return ``path`` if it names a file inside a tree, else raise; ``where`` begins the message.

    Raises:
        UnsafePathError: it is empty, absolute, too long or not plain, leaves the tree, or reaches
            into ``.git``.
    """
    reason = _unsafe(path) or _too_long(path)
    if reason:
        shown = path if len(path) <= LONGEST_NAME else f"{path[:80]} … {path[-80:]}"
        raise UnsafePathError(
            f"{where}: refused path {shown!r}: {reason}",
            remedy="name a file inside of the tree, from its root, as in src/main.c",
        )
    return path


def alike(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return the paths that differ in case only, by the path in lower case.

    A file system that ignores case holds only one file of such a group.
    """
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(path.casefold(), []).append(path)
    return {key: group for key, group in groups.items() if len(group) > 1}


def _unsafe(path: str) -> str:
    """Return why a path is unsafe; empty for a safe path."""
    if not path or path.endswith("/"):
        return "it names no file"
    if path.startswith("/") or re.match(r"[A-Za-z]:", path):
        return "it is absolute"
    if "\\" in path or any(ord(char) < 32 or ord(char) == 127 for char in path):
        return "it holds a backslash or a control character"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return "it leaves the tree or is not in its plain form"
        # HFS+ ignores some characters, NTFS trailing dots and blanks, both ignore case.
        bare = re.sub("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]", "", part)
        if bare.rstrip(". ").lower() in (".git", "git~1") or bare.lower().startswith(".git:"):
            return "it reaches into .git"
    return ""


def _too_long(path: str) -> str:
    """Return why a path is too long; empty for a path that is not."""
    names = os.fsencode(path).split(b"/")
    if sum(map(len, names)) + len(names) <= LONGEST_PATH and max(map(len, names)) <= LONGEST_NAME:
        return ""
    return f"it is longer than {LONGEST_PATH} bytes, or a name in it than {LONGEST_NAME}"


def check_no_symlink(
    path: str, modes: Mapping[str, str], where: str, *, itself: bool = True
) -> None:
    """Raise UnsafePathError when a folder above ``path`` is a symbolic link or submodule.

    With ``itself``, ``path`` must not be one either. ``modes`` has git's mode of each path.
    """
    parents = PurePosixPath(path).parents
    for candidate in (PurePosixPath(path), *parents) if itself else parents:
        if modes.get(candidate.as_posix()) in (SYMLINK_MODE, GITLINK_MODE):
            raise UnsafePathError(
                f"{where}: refused path {path!r}: {candidate} is a symbolic link or submodule"
            )


def check_link(path: str, target: bytes, where: str) -> None:
    """Raise UnsafePathError if the link ``path`` to ``target`` leaves the tree or enters .git."""
    text = os.fsdecode(target)
    reason = "" if text and "\n" not in text else "its target is empty or has several lines"
    resolved = posixpath.normpath(posixpath.join(posixpath.dirname(path), text))
    if text.startswith("/") or resolved.split("/")[0] == "..":
        reason = "it leads out of the tree"
    elif ".git" in resolved.lower().split("/"):
        reason = "it leads into .git"
    if reason:
        raise UnsafePathError(f"{where}: refused the symbolic link {path!r} to {text!r}: {reason}")
