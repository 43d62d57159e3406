# SPDX-License-Identifier: Apache-2.0
"""The fork at another commit of its own repository."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forkpatch.errors import UserError
from forkpatch.git.calls import Git, GitError
from forkpatch.git.objects import list_tree, read_blobs
from forkpatch.model.settings import load_settings
from forkpatch.safety import FILE_MODES, check_path
from forkpatch.tree.fork import Fork, open_fork


@contextmanager
def fork_at(fork: Fork, revision: str) -> Iterator[Fork]:
    """Yield the fork of another commit, in a temporary folder during the block.

    Raises:
        UserError: the fork is not in a git repository, or the commit is missing or has no fork.
    """
    git, commit, prefix = _find(fork, revision)
    settings = fork.settings
    names = ["pyproject.toml", *(_name(fork, path) for path in (settings.lock, settings.patches))]
    wanted = [f"{prefix}{name}" for name in (*names, _name(fork, settings.overlays))]
    listed = list_tree(git, commit, *wanted)
    contents = read_blobs(git, (oid for mode, oid in listed.values() if mode in FILE_MODES))
    with tempfile.TemporaryDirectory(prefix="forkpatch-") as name:
        root = Path(name).resolve()
        for path, (mode, oid) in listed.items():
            if mode in FILE_MODES:
                target = root / check_path(path, revision).removeprefix(prefix)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(contents[oid] or b"")
                target.chmod(int(mode, 8) & 0o777)
        try:
            yield open_fork(load_settings(root))
        except UserError as error:  # replace paths below the temporary folder
            what = error.what.replace(f"{root}/", f"{revision}:").replace(str(root), revision)
            raise UserError(what, remedy=error.remedy) from error


def merge_base(fork: Fork, revision: str) -> str:
    """Return the merge base of a revision and the fork's HEAD.

    Raises:
        UserError: the revision is missing, or has no commit in common with HEAD.
    """
    git, commit, _ = _find(fork, revision)
    bases = git.run("merge-base", "HEAD", commit, ok=(0, 1)).stdout.decode("ascii").split()
    if not bases:
        raise UserError(f"{revision} and HEAD have no commit in common", remedy="fetch the history")
    return bases[0]


def _find(fork: Fork, revision: str) -> tuple[Git, str, str]:
    """Return the repository of the fork, the commit, and the path of the fork's root in it."""
    root = fork.settings.root
    try:
        output = Git().text("-C", str(root), "rev-parse", "--absolute-git-dir", "--show-prefix")
        folder, _, prefix = output.partition("\n")
        git = Git(Path(folder))
        name = f"{revision}^{{commit}}"
        return git, git.text("rev-parse", "--verify", "--end-of-options", name), prefix
    except GitError as error:
        raise UserError(
            f"{root} is not in a git repository that has {revision}",
            remedy="name a branch, tag or commit of the fork's own repository; fetch it first",
        ) from error


def _name(fork: Fork, path: Path) -> str:
    """Return a path relative to the fork's root."""
    return path.relative_to(fork.settings.root).as_posix()
