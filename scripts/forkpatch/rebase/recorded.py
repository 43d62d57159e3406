# SPDX-License-Identifier: Apache-2.0
"""Resolutions of conflicts, recorded by git's rerere and kept with the fork for the next time.

They lie in ``patches/<upstream>/resolutions``, in rerere's own form: a folder a conflict, with the
conflict (``preimage``) and its resolution (``postimage``). What git finds there it puts into the
working tree of a rebase when the same conflict comes again, on whatever version or branch.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from common.files import atomic_write
from forkpatch.git.calls import Git

FOLDER = "resolutions"
#: Settings of the git calls that record resolutions, or use them.
RERERE = ("-c", "rerere.enabled=true", "-c", "rerere.autoUpdate=false")
_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_FILE = re.compile(r"(?:pre|post)image(?:\.\d+)?")


def recall(git: Git, kept: Path) -> None:
    """Give the recorded resolutions of a fork to the repository of a rebase."""
    assert git.git_dir is not None
    for path in _files(kept):
        target = git.git_dir / "rr-cache" / path.relative_to(kept)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def record(git: Git, kept: Path) -> None:
    """Record the resolution that is in the working tree; keep it with the fork."""
    assert git.git_dir is not None
    git.run(*RERERE, "rerere")
    cache = git.git_dir / "rr-cache"
    for path in _files(cache):
        resolved = path.with_name(path.name.replace("preimage", "postimage"))
        target = kept / path.relative_to(cache)
        data = path.read_bytes()
        if resolved.is_file() and not (target.is_file() and target.read_bytes() == data):
            atomic_write(target, data)


def all_recalled(git: Git) -> bool:
    """True when recorded resolutions resolve every conflict in the working tree."""
    return not git.run(*RERERE, "rerere", "remaining").stdout


def _files(folder: Path) -> list[Path]:
    found = (path for path in folder.glob("*/*") if _ID.fullmatch(path.parent.name))
    return sorted(path for path in found if _FILE.fullmatch(path.name) and path.is_file())
