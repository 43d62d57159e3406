# SPDX-License-Identifier: Apache-2.0
"""``git am -3`` and forkpatch on the same cases of misplacement, as a table.

``python packages/forkpatch/tests/misplaced.py`` prints the named cases and the
count of 100 generated ones per language (``--count N``); ``--list`` names every one that either
got wrong or that forkpatch stopped for without need. Exit 1 when forkpatch got one wrong.

The named cases are rebased by the verb; the generated ones go through the merge that it uses.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from misplacement import TONGUES, MisplacementCase, generated, named

from forkpatch.git.calls import Git, init_repository, neutral_environment
from forkpatch.git.objects import Commit, TreeFile, write_commits
from forkpatch.model.patchfile import Patch, parse_patch
from forkpatch.rebase.merging import merge_patches
from forkpatch.series.mailbox import export_commits
from forkpatch.symbols.newbase import NewBase
from forkpatch.tree.fork import PatchStep

AUTHOR = b"Ada <ada@example.org>"


class Placed(StrEnum):
    """Result of a merge, judged by what is right."""

    RIGHT = "right"
    STOPPED = "stopped"
    WRONG = "WRONG, in silence"


@dataclass(frozen=True)
class Bench:
    """A repository that holds many cases, each in a folder of its own.

    Attributes:
        base: the commit of the old versions.
        new: the commit of upstream's new ones.
        files: the patch of each case.
        commits: the commit of each patch.
    """

    git: Git
    cases: Sequence[MisplacementCase]
    base: str
    new: str
    files: Sequence[bytes]
    commits: Sequence[str]

    def path(self, number: int) -> str:
        """Path of the file of a case."""
        return f"n{number}/{self.cases[number].path}"

    def other(self, number: int) -> str:
        """Path of another file of a case."""
        return f"n{number}/src/other{self.cases[number].suffix}"

    def patch(self, number: int) -> Patch:
        """The patch of a case."""
        return parse_patch(self.files[number], f"n{number}.patch")


def make_bench(folder: Path, cases: Iterable[MisplacementCase]) -> Bench:
    """Write the repository of some cases."""
    every = tuple(cases)
    git = init_repository(folder / "repo.git")
    bench = Bench(git, every, "", "", (), ())

    def commit(message: str, files: Mapping[str, str], parent: str = "") -> Commit:
        changes = {path: TreeFile("100644", text.encode()) for path, text in files.items()}
        return Commit(f"{message}\n".encode(), AUTHOR, changes=changes, parent=parent)

    numbers = range(len(every))
    before = {bench.path(n): every[n].base for n in numbers}
    before |= {bench.other(n): every[n].elsewhere_before for n in numbers}
    start = commit("Base", {path: text for path, text in before.items() if text})
    patches = [commit(f"Patch n{n}", {bench.path(n): every[n].patched}) for n in numbers]
    ids = write_commits(git, "refs/heads/main", [start, *patches])
    files = {bench.path(n): every[n].new for n in numbers}
    for n in numbers:
        if every[n].elsewhere:
            files[bench.other(n)] = every[n].elsewhere
    (new,) = write_commits(git, "refs/heads/new", [commit("New", files, ids[0])])
    exported = export_commits(folder / "repo.git/objects", ids[1:])
    return Bench(git, every, ids[0], new, tuple(one.data for one in exported), ids[1:])


def by_git(bench: Bench, folder: Path) -> list[Placed]:
    """Result of ``git am -3`` for each case."""
    environment = neutral_environment(
        {"GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "a@b", "GIT_ALLOW_PROTOCOL": "file"}
    )

    def git(*args: str, stdin: bytes = b"") -> int:
        command = ["git", "-C", str(folder / "tree"), *args]
        done = subprocess.run(
            command, env=environment, input=stdin, capture_output=True, check=False
        )
        return done.returncode

    (folder / "tree").mkdir()
    assert git("clone", "-q", "-b", "new", str(bench.git.git_dir), ".") == 0
    found = []
    for number, data in enumerate(bench.files):
        code = git("am", "-q", "-3", stdin=data)
        text = (folder / "tree" / bench.path(number)).read_text()
        if code:
            assert git("am", "--abort") == 0
        found.append(judged(bench.cases[number], None if code else text))
    return found


def by_merge(bench: Bench) -> list[Placed]:
    """Result of forkpatch's merge for each case: merged, dropped as upstream's, or stopped."""
    found = []
    for number, case in enumerate(bench.cases):
        path, patch = bench.path(number), bench.patch(number)
        before, after = {path: case.base.encode()}, {path: case.patched.encode()}
        step = PatchStep(patch, Commit(b""), before, after)
        base = NewBase(bench.git, bench.new, bench.base)
        names = path, bench.other(number)  # each case is one by itself
        base.diffs = {name: diff for name, diff in base.diffs.items() if name in names}
        moves, _ = merge_patches(bench.git, bench.new, [(step, bench.commits[number])], base)
        found.append(judged(case, moves[0].after[path].decode() if moves else None))
    return found


def by_verb(bench: Bench, folder: Path) -> list[Placed]:
    """Result of the verb ``rebase`` for each case; whatever it stops for is skipped."""
    fork = folder / "fork"
    series = fork / "patches/cases/1"
    series.mkdir(parents=True)
    names = [f"n{number}.patch" for number in range(len(bench.cases))]
    for name, data in zip(names, bench.files, strict=True):
        (series / name).write_bytes(data)
    (series / "series").write_text("".join(f"{name}\n" for name in names))
    roots = ", ".join(f'"n{number}"' for number in range(len(bench.cases)))
    versions = "".join(
        f'[upstreams.cases.versions."{version}"]\ncommit = "{commit}"\n'
        f'include = [{roots}]\ntree = ""\n'
        for version, commit in (("1", bench.base), ("2", bench.new))
    )
    lock = fork / "VERSIONS.lock"
    lock.write_text(
        'default-release = "r"\n[python]\npins = ["x==1"]\n[releases.r]\ncases = "1"\n'
        f'[upstreams.cases]\nurl = "{bench.git.git_dir}"\n{versions}'
    )
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(folder / "cache"),
    }

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "forkpatch", "--root", str(fork), *args]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )

    def succeed(*args: str) -> None:
        done = run(*args)
        assert done.returncode == 0, done.stderr

    succeed("lock")
    done, stopped = run("rebase", "cases", "2"), set()
    while done.returncode:
        assert done.returncode == 1, done.stderr
        said = [line for line in done.stdout.splitlines() if not line.startswith("cases: from ")]
        stopped.add(said[0].partition(":")[0])
        done = run("rebase", "cases", "--skip", "it stopped")
    lock.write_text(lock.read_text().replace('cases = "1"', 'cases = "2"'))
    succeed("apply")
    texts = [(fork / ".work/r/cases" / bench.path(n)).read_text() for n in range(len(names))]
    return [
        judged(case, None if name in stopped else text)
        for case, name, text in zip(bench.cases, names, texts, strict=True)
    ]


def judged(case: MisplacementCase, text: str | None) -> Placed:
    """The verdict on a case's file after a merge, None if the merge stopped."""
    if text is None:
        return Placed.STOPPED
    return Placed.RIGHT if text == case.right else Placed.WRONG


def compare(cases: Iterable[MisplacementCase], *, verb: bool) -> list[tuple[str, Placed, Placed]]:
    """Name of each case, git's result, and forkpatch's."""
    with tempfile.TemporaryDirectory(prefix="misplaced-") as name:
        folder = Path(name)
        bench = make_bench(folder, cases)
        ours = by_verb(bench, folder) if verb else by_merge(bench)
        theirs = by_git(bench, folder)
        names = [case.name for case in bench.cases]
    return list(zip(names, theirs, ours, strict=True))


def _print_named(count: int) -> int:
    rows = compare(list(named())[:count], verb=True)
    print("| case | git am -3 | forkpatch rebase |\n|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    return sum(ours is Placed.WRONG for _, _, ours in rows)


def main(arguments: Sequence[str]) -> int:
    """Print the tables; returns 1 when forkpatch got a case wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="generated cases per language")
    parser.add_argument("--list", action="store_true", help="name what was wrong or stopped")
    options = parser.parse_args(arguments)
    wrong = _print_named(len(list(named())))
    heads = [f"{who}: {one}" for who in ("git am -3", "forkpatch") for one in Placed]
    print(f"\n| generated | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    listed = []
    for language in TONGUES:
        rows = compare(generated(language, options.count), verb=False)
        counts = [Counter(row[1] for row in rows), Counter(row[2] for row in rows)]
        cells = [str(count[one]) for count in counts for one in Placed]
        print(f"| {len(rows)} of {language} | {' | '.join(cells)} |", flush=True)
        wrong += counts[1][Placed.WRONG]
        listed += [row for row in rows if row[2] is Placed.WRONG or row[1:] == _NEEDLESS]
    if options.list:
        print(
            *(f"{name}: git {theirs}, forkpatch {ours}" for name, theirs, ours in listed), sep="\n"
        )
    return 1 if wrong else 0


_NEEDLESS = (Placed.RIGHT, Placed.STOPPED)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
