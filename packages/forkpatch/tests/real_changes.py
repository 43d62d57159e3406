# SPDX-License-Identifier: Apache-2.0
"""Precision and recall of ``rebase``: on written cases, and on changes of real histories.

    python packages/forkpatch/tests/real_changes.py [NAME=GITDIR...] --count 100

The written cases are those of ``heldout.py`` and ``lookalikes.py``, with their right results.

For each project, commits are drawn from its history. A commit is taken back to an older base, as a
maintainer who carried it there would have it, and from there moved to its own parent: once by git's
merge, and once by ``rebase`` as a series of one patch. The commit's own tree is the right result.

- A *false stop* is a patch that git moves to the right result and forkpatch does not.
- A *missed error* is a patch for which both report success with another result.

The table goes to standard output; ``--list`` names each false stop and each error, with the reason
that forkpatch gives. Exit code 1 when more than 1 % are false stops, or an error is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from heldout import heldout
from lookalikes import lookalikes, renamed
from misplaced import Placed, by_merge, make_bench
from misplacement import MisplacementCase

from forkpatch.errors import ForkError, PatchError
from forkpatch.git.calls import Git, init_repository
from forkpatch.git.merge import merge_data
from forkpatch.git.objects import Commit, list_tree, read_blobs, write_commits
from forkpatch.model.patchfile import parse_patch
from forkpatch.output import counted
from forkpatch.rebase.merging import merge_patches
from forkpatch.series.mailbox import export_commits
from forkpatch.symbols.newbase import NewBase
from forkpatch.tree.fork import PatchStep
from groundwork.errors import USER_MISTAKE

_DAY = 24 * 3600
_DISTANCES = (30, 120, 365)  # days between the old base and the new one
_MOST_FILES = 20  # of a commit; those with more are moves and clean-ups


class Verdict(StrEnum):
    """Outcome of one change."""

    RIGHT = "right"
    STOPPED = "false stop"
    CAUGHT = "error caught"
    MISSED = "missed error"


@dataclass(frozen=True)
class RealChange:
    """A commit of a project, and where it is moved from.

    Attributes:
        commit: the commit, with its parent as the new base.
        old: the old base.
        patch: the commit as it is on the old base.
    """

    commit: str
    old: str
    patch: str


@dataclass(frozen=True)
class Judged:
    """A change with its outcome, and what forkpatch said of it."""

    change: RealChange
    verdict: Verdict
    said: str = ""


class History:
    """A project's history, and a repository beside it for what is written."""

    def __init__(self, mirror: Path, folder: Path) -> None:
        self.git = init_repository(folder / "repo.git")
        (folder / "repo.git/objects/info").mkdir(exist_ok=True)
        git_dir = mirror / ".git" if (mirror / ".git").exists() else mirror
        alternates = folder / "repo.git/objects/info/alternates"
        alternates.write_text(f"{git_dir.resolve()}/objects\n")
        self._folder = folder
        self._head = Git(git_dir).text("rev-parse", "HEAD")

    def commits(self, since: str, until: str) -> list[str]:
        """The commits of a span of time that have one parent."""
        span = ("--min-parents=1", f"--since={since}", f"--until={until}")
        return self.git.text("rev-list", "--no-merges", *span, self._head).split()

    def drawn(self, commits: Iterable[str]) -> Iterator[RealChange]:
        """Those of some commits that git takes back to an older base, and from there forward."""
        for number, commit in enumerate(commits):
            parent, when = self.git.text("log", "-1", "--format=%P %ct", commit).split()
            paths = self._changed(parent, commit)
            if not 0 < len(paths) <= _MOST_FILES:
                continue
            then = int(when) - _DISTANCES[number % len(_DISTANCES)] * _DAY
            old = self.git.text("rev-list", "-1", f"--before={then}", parent).strip()
            if not old or not self._changed(old, parent, *paths):
                continue  # nothing that the patch changes has changed
            tree = self._taken_back(commit, old)
            if tree:
                message = Commit(b"Change it\n", tree=tree, parent=old)
                (patch,) = write_commits(self.git, "refs/heads/x", [message])
                if self._lines(old, patch) == self._lines(parent, commit):
                    yield RealChange(commit, old, patch)

    def _changed(self, old: str, new: str, *paths: str) -> list[str]:
        options = ("-r", "--name-only", "--no-renames", "-z")
        return self.git.text("diff-tree", *options, old, new, "--", *paths).split("\0")[:-1]

    def _lines(self, old: str, new: str) -> Counter[bytes]:
        """The lines that go and come between two commits."""
        diff = self.git.run("diff-tree", "-p", "-U0", "--no-renames", old, new).stdout
        return Counter(line for line in diff.split(b"\n") if line[:1] in (b"+", b"-"))

    def _trees(self, *commits: str) -> list[str]:
        return self.git.text("rev-parse", *(f"{one}^{{tree}}" for one in commits)).split()

    def _taken_back(self, commit: str, old: str) -> str:
        """The tree of ``old`` with a later commit; empty with a conflict, or without a change."""
        before, after, tree = self._trees(f"{commit}^", commit, old)
        base, ours = write_commits(
            self.git, "refs/heads/b", [Commit(b"x\n", tree=one) for one in (before, tree)]
        )
        theirs = Commit(b"x\n", tree=after, parent=base)
        found = self._merged(ours, *write_commits(self.git, "refs/heads/c", [theirs]))
        return "" if found == tree else found

    def _merged(self, ours: str, theirs: str) -> str:
        """The tree of git's own merge; empty with a conflict."""
        done = self.git.run("merge-tree", "--write-tree", ours, theirs, ok=(0, 1))
        return "" if done.returncode else done.stdout.decode().split()[0]

    def judge(self, change: RealChange) -> Judged | None:
        """Compare git's merge of a change, and forkpatch's, with the commit; None in a conflict."""
        before, right = self._trees(f"{change.commit}^", change.commit)
        tree = self._merged(f"{change.commit}^", change.patch)
        if tree in ("", before):
            return None
        is_right = tree == right
        try:
            said = self._moved(change)
        except PatchError:
            return None  # it changes the pin of a submodule, which is part of the lock
        if said is None:
            return Judged(change, Verdict.RIGHT if is_right else Verdict.MISSED)
        return Judged(change, Verdict.STOPPED if is_right else Verdict.CAUGHT, said)

    def _moved(self, change: RealChange) -> str | None:
        """Move a change as ``rebase`` does; None when it says that all went well."""
        objects = self._folder / "repo.git/objects"
        (exported,) = export_commits(objects, [change.patch])
        patch = parse_patch(exported.data, "x.patch")
        before, after = (
            self._files(commit, paths)
            for commit, paths in (
                (change.old, [one.old for one in patch.files if one.old]),
                (change.patch, [one.new for one in patch.files if one.new]),
            )
        )
        after |= {path: after.get(path, b"") for path in before}
        step, new = PatchStep(patch, Commit(b""), before, after), f"{change.commit}^"
        moves, errors = merge_patches(
            self.git, new, [(step, change.patch)], NewBase(self.git, new, change.old)
        )
        if moves:
            return None
        return "; ".join(f"{path}: {error.detail}" for path, error in errors) or "conflict"

    def _files(self, commit: str, paths: Sequence[str]) -> dict[str, bytes]:
        listed = list_tree(self.git, commit, *paths) if paths else {}
        found = read_blobs(self.git, (oid for _, oid in listed.values()))
        return {path: found[oid] or b"" for path, (_, oid) in listed.items()}


def judged(history: History, count: int, seed: str, since: str, until: str) -> Iterator[Judged]:
    """Outcomes of ``count`` changes of a project that git moves without a conflict."""
    commits = history.commits(since, until)
    random.Random(seed).shuffle(commits)
    for change in history.drawn(commits):
        one = history.judge(change)
        if one is not None:
            yield one
            count -= 1
        if not count:
            return


def written(cases: Iterable[MisplacementCase]) -> Iterator[tuple[str, Verdict]]:
    """Name and outcome of each written case."""
    with tempfile.TemporaryDirectory(prefix="real-") as folder:
        bench = make_bench(Path(folder), cases)
        for case, ours in zip(bench.cases, by_merge(bench), strict=True):
            texts = (text.encode() for text in (case.new, case.base, case.patched))
            merged = merge_data(*texts)
            if ours is Placed.STOPPED:
                needless = merged is not None and merged.decode() == case.right
                yield case.name, Verdict.STOPPED if needless else Verdict.CAUGHT
            else:
                yield case.name, Verdict.RIGHT if ours is Placed.RIGHT else Verdict.MISSED


def _print_row(name: str, verdicts: Sequence[Verdict], start: float) -> Counter[Verdict]:
    counts = Counter(verdicts)
    cells = [len(verdicts), *(counts[one] for one in Verdict)]
    seconds = time.perf_counter() - start
    print(f"| {name} | {' | '.join(map(str, cells))} | {seconds:.0f} |", flush=True)
    return counts


def _print_rates(counts: Counter[Verdict]) -> None:
    wrong = counts[Verdict.CAUGHT] + counts[Verdict.MISSED]
    stops = counts[Verdict.CAUGHT] + counts[Verdict.STOPPED]
    print(f"\nPrecision: {counts[Verdict.CAUGHT]} of {counted(stops, 'stop')} justified.")
    print(f"Recall: {counts[Verdict.CAUGHT]} of {counted(wrong, 'wrong merge')} stopped.")


def main(arguments: Sequence[str]) -> int:
    """Print the table; returns 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("projects", nargs="*", metavar="NAME=GITDIR", help="histories")
    parser.add_argument("--count", type=int, default=100, help="changes per project (100)")
    parser.add_argument("--seed", default="", help="of the choice of changes")
    parser.add_argument("--since", default="2000-01-01", help="oldest commit (2000-01-01)")
    parser.add_argument("--until", default="2099-12-31", help="newest commit (2099-12-31)")
    parser.add_argument("--list", action="store_true", help="name false stops and errors")
    options = parser.parse_args(arguments)
    print(f"| cases | number | {' | '.join(Verdict)} | seconds |\n|---|{'---|' * 6}")
    total: Counter[Verdict] = Counter()
    listed: list[str] = []
    for name, cases in WRITTEN.items():
        start, rows = time.perf_counter(), list(written(cases()))
        total += _print_row(name, [verdict for _, verdict in rows], start)
        listed += [f"{one} {case}" for case, one in rows if one in _FAULTS]
    for name, _, mirror in (one.partition("=") for one in options.projects):
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="real-") as folder:
            span = (options.seed, options.since, options.until)
            try:
                found = list(judged(History(Path(mirror), Path(folder)), options.count, *span))
            except (ForkError, OSError) as error:
                print(
                    f"{name}: {mirror} is no repository with its whole history and all files:"
                    f" {error}\n  name a full clone: git clone --bare URL",
                    file=sys.stderr,
                )
                return USER_MISTAKE
        total += _print_row(name, [one.verdict for one in found], start)
        listed += [
            f"{one.verdict} {name} {one.change.commit[:12]} on {one.change.old[:12]}: {one.said}"
            for one in found
            if one.verdict is not Verdict.RIGHT
        ]
    _print_rates(total)
    if options.list:
        print(*listed, sep="\n")
    few = total[Verdict.STOPPED] * 100 <= sum(total.values())
    return 0 if few and not total[Verdict.MISSED] else 1


WRITTEN = {
    "hand-written": heldout,
    "lookalikes, the place is another one": lookalikes,
    "lookalikes, the place has another name": renamed,
}
_FAULTS = (Verdict.STOPPED, Verdict.MISSED)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
