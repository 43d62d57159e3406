# SPDX-License-Identifier: Apache-2.0
"""History of an upstream, read from a mirror that has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forkpatch.git.calls import Git, GitError, git_repo
from forkpatch.model.diffs import split_lines
from forkpatch.sources.repository import local_clones


@dataclass(frozen=True)
class UpstreamCommit:
    """An upstream commit."""

    commit: str
    subject: str

    def __str__(self) -> str:
        return f"{self.commit[:12]} {self.subject}"


class History:
    """The commits of a repository, read with GitPython: one git process answers all questions."""

    def __init__(self, git: Git) -> None:
        self.git = git
        self._repo = git_repo(git)

    @classmethod
    def find(cls, places: Sequence[str], *commits: str) -> History | None:
        """Return the history of the first mirror here that has all ``commits``; None without."""
        clones = (git for git in local_clones(places) if all(map(git.commit, commits)))
        git = next(clones, None)
        return cls(git) if git else None

    def dates(self, commits: Sequence[str]) -> dict[str, int]:
        """Date of each commit, in seconds since 1970."""
        return {oid: self._repo.commit(oid).committed_date for oid in commits}

    def commits(self, old: str, new: str, *paths: str) -> Iterator[UpstreamCommit]:
        """Yield the commits after ``old`` up to ``new`` that touch ``paths``, the oldest first."""
        found = self._repo.iter_commits(
            f"{old}..{new}", paths=list(paths) or "", reverse=True, topo_order=True
        )
        for commit in found:
            subject = str(commit.summary)
            yield UpstreamCommit(commit.hexsha, subject)

    def read(self, commit: str, path: str) -> bytes | None:
        """A file's content at a commit; None when it is not there, or not in this mirror."""
        from git.exc import GitError as HistoryError  # noqa: PLC0415 - for this verb only

        try:
            blob = self._repo.commit(commit).tree / path
            data: bytes = blob.data_stream.read()
        except (KeyError, ValueError, HistoryError):
            return None
        return data

    def same_change(
        self, old: str, new: str, paths: Sequence[str], diff: bytes, reverse: bytes
    ) -> UpstreamCommit | None:
        """Return the last commit after ``old`` up to ``new`` whose change of ``paths`` is ``diff``.

        Changes are compared by git's patch-id. None: no commit has the change, it was taken back
        later, or the mirror is partial.

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
        """Return patch-id and commit of each diff of a log; a bare diff's commit is zeros."""
        out = self.git.text("patch-id", "--stable", stdin=diff).splitlines()
        return [(patch_id, commit) for patch_id, commit in map(str.split, out)] or [("", "")]

    def broke(self, old: str, new: str, path: str, block: Sequence[bytes]) -> UpstreamCommit | None:
        """Return the first commit that leaves ``path`` without the lines ``block``; or None."""
        from git.exc import GitError as HistoryError  # noqa: PLC0415 - for this verb only

        try:
            for commit in self.commits(old, new, path):
                data = self.read(commit.commit, path)
                lines, size = split_lines(data or b""), len(block)
                starts = range(len(lines) - size + 1)
                if not any(lines[at : at + size] == list(block) for at in starts):
                    return commit
        except HistoryError:
            return None
        return None
