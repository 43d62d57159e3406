# SPDX-License-Identifier: Apache-2.0
"""History of an upstream, read from a mirror that has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from forkpatch.errors import SourceError
from forkpatch.git.calls import Git, GitError
from forkpatch.git.objects import stream_blobs
from forkpatch.sources.repository import local_path, open_repository


@dataclass(frozen=True)
class UpstreamCommit:
    """An upstream commit."""

    commit: str
    subject: str

    def __str__(self) -> str:
        return f"{self.commit[:12]} {self.subject}"


@dataclass(frozen=True)
class History:
    """The commits of a repository."""

    git: Git

    @classmethod
    def find(cls, places: Sequence[str], *commits: str) -> History | None:
        """The history of the first mirror on this machine that has all of ``commits``."""
        for place in places:
            path = local_path(place)
            try:
                if path is None or not Path(path).is_dir():
                    continue
                git = open_repository(path)
                for commit in commits:
                    git.run("cat-file", "-e", f"{commit}^{{commit}}")
            except (SourceError, GitError):
                continue
            return cls(git)
        return None

    def resolve(self, name: str) -> str | None:
        """The commit of ``name``; None when it is unknown."""
        try:
            return self.git.text("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
        except GitError:
            return None

    def contains(self, version: str, commit: str) -> bool:
        """True if ``commit`` is ``version`` or precedes it."""
        asked = self.git.run("merge-base", "--is-ancestor", commit, version, ok=range(256))
        return asked.returncode == 0

    def dates(self, commits: Sequence[str]) -> dict[str, int]:
        """Date of each commit, in seconds since 1970."""
        names = "".join(f"{oid}\n" for oid in commits).encode()
        rows = self.git.text("log", "--no-walk", "--format=%H %ct", "--stdin", stdin=names).split()
        return dict(zip(rows[::2], map(int, rows[1::2]), strict=True))

    def commits(self, old: str, new: str, *paths: str) -> Iterator[UpstreamCommit]:
        """The commits from ``old`` to ``new`` that touch ``paths``, the oldest first."""
        show = ("log", "--reverse", "--topo-order", "--format=%H %s", f"{old}..{new}", "--", *paths)
        for row in self.git.text(*show).split("\n"):
            commit, _, subject = row.partition(" ")
            if commit:
                yield UpstreamCommit(commit, subject)

    def same_change(
        self, old: str, new: str, paths: Sequence[str], diff: bytes, reverse: bytes
    ) -> UpstreamCommit | None:
        """The commit from ``old`` to ``new`` whose change of ``paths`` is ``diff``.

        Changes are compared by git's patch-id. One that was taken back later does not count.

        ``diff`` and ``reverse``, the opposite change, are outputs of ``git diff-tree -p``.
        """
        show = ("log", "-p", "--no-renames", "--full-index", "--no-ext-diff", "--no-textconv")
        try:
            log = self.git.run(*show, f"{old}..{new}", "--", *paths).stdout
        except GitError:
            return None  # a partial mirror lacks files
        (wanted, _), (opposite, _) = (self._patch_ids(one)[0] for one in (diff, reverse))
        for patch_id, commit in self._patch_ids(log):  # the newest first
            if patch_id == opposite:
                return None
            if patch_id == wanted:
                subject = self.git.text("log", "-1", "--format=%s", commit)
                return UpstreamCommit(commit, subject)
        return None

    def _patch_ids(self, diff: bytes) -> list[tuple[str, str]]:
        """Patch-id and commit of each commit of a log; the commit is zero without a log."""
        out = self.git.text("patch-id", "--stable", stdin=diff).splitlines()
        return [(patch_id, commit) for patch_id, commit in map(str.split, out)] or [("", "")]

    def broke(self, old: str, new: str, path: str, block: Sequence[bytes]) -> UpstreamCommit | None:
        """The first commit after which ``block`` is no longer in ``path``; None if unknown."""
        wanted = b"\n" + b"".join(block)
        try:
            commits = list(self.commits(old, new, path))
            contents = stream_blobs(self.git, [f"{one.commit}:{path}" for one in commits])
            pairs = zip(commits, contents, strict=True)
            return next((one for one, data in pairs if wanted not in b"\n" + (data or b"")), None)
        except (GitError, UnicodeEncodeError):  # a partial mirror; a path that is not ASCII
            return None
