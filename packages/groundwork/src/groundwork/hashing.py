# SPDX-License-Identifier: Apache-2.0
"""SHA-256 of files, folders, and lists of inputs."""

from __future__ import annotations

import hashlib
from pathlib import Path

KEY_LENGTH = 16


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, 64 hexadecimal digits.

    Raises:
        OSError: the file cannot be read.
    """
    return _file_digest(path).hex()


def sha256_by_path(folder: Path, pattern: str = "**/*") -> dict[str, str]:
    """Return the SHA-256 of each file below ``folder``, by relative path in sorted order.

    Compiled Python (``__pycache__``) is excluded.
    """
    files = _files(folder, pattern)
    return {file.relative_to(folder).as_posix(): sha256_of(file) for file in files}


def digest(*parts: str | bytes | Path) -> str:
    """Hash strings, bytes, files and folders to a cache key of 16 hexadecimal digits.

    The hash includes a file's content, or the sorted relative paths and contents of a folder's
    files, but not the location of the file or folder, so that clones share a cache.

    Raises:
        OSError: a path does not exist, or cannot be read.
    """
    total = hashlib.sha256()
    for part in parts:
        total.update(_path_digest(part) if isinstance(part, Path) else _bytes_digest(part))
    return total.hexdigest()[:KEY_LENGTH]


def _bytes_digest(part: str | bytes) -> bytes:
    return hashlib.sha256(part.encode() if isinstance(part, str) else part).digest()


def _file_digest(path: Path) -> bytes:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def _path_digest(path: Path) -> bytes:
    if not path.is_dir():
        return _file_digest(path)
    total = hashlib.sha256()
    for file in _files(path, "**/*"):
        total.update(_bytes_digest(file.relative_to(path).as_posix()))
        total.update(_file_digest(file))
    return total.digest()


def _files(folder: Path, pattern: str) -> list[Path]:
    paths = folder.glob(pattern)
    return sorted(p for p in paths if p.is_file() and "__pycache__" not in p.parts)
