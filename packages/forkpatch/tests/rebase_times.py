# SPDX-License-Identifier: Apache-2.0
"""Forkpatch, git rebase, stgit, gbp pq and quilt at the same two rebases, as a table.

    uv run --package forkpatch python packages/forkpatch/tests/rebase_times.py CLONE OLD NEW

The first rebase is of the written cases (``heldout.py``, ``lookalikes.py``, ``misplacement.py``),
whose right results are known. A stop is needless if git's merge of the case is right. Forkpatch's
merge is called for one case at a time, since it looks into all files of a tree.

The second rebase is of commits of CLONE, a clone of any project with its history: the first ones
after tag NEW that git puts on both OLD and NEW without a conflict. Its time is the median of some
runs, on files that the page cache has. Where a tool stops, the patch is skipped, and that time
counts. A tool that is not installed is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from forklab import AUTHOR, PACKAGE
from heldout import heldout
from lookalikes import lookalikes, renamed
from misplaced import Bench, Placed, by_merge, judged, make_bench
from misplacement import MisplacementCase, named

from forkpatch.git.calls import neutral_environment
from forkpatch.git.merge import merge_data

_PATCHED, _OLD, _NEW = "refs/heads/patched", "refs/heads/old", "refs/heads/new"
_GIT_STOP = ("git", "log", "-1", "--format=%s", "REBASE_HEAD")


class Verdict(StrEnum):
    """Outcome of a written case."""

    RIGHT = "right"
    CAUGHT = "error caught"
    STOPPED = "needless stop"
    MISSED = "silent error"


@dataclass(frozen=True)
class Work:
    """A series to move.

    Attributes:
        clone: a repository with branches: old and new, and patched, which is old with the series.
        upstream: a repository with tags of both versions.
        tags: these tags.
        source: folder of the forkpatch that is run.
    """

    clone: Path
    upstream: Path
    tags: tuple[str, str]
    source: Path


@dataclass(frozen=True)
class Moved:
    """One run of a tool.

    Attributes:
        tree: the folder that has the files afterwards.
        cpu: seconds, of the tool and all that it starts.
        stops: the names of the patches at which it stopped.
    """

    tree: Path
    cpu: float
    stops: tuple[str, ...]


Tool = Callable[[Work, Path], Moved]


def call(place: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Run a program as a fixed person, without the settings of this machine."""
    environment = neutral_environment({**AUTHOR, "GIT_ALLOW_PROTOCOL": "file"})
    done = subprocess.run(words, cwd=place, env=environment, capture_output=True, check=False)
    if check and done.returncode:
        raise SystemExit(f"{' '.join(words[:4])}: {done.stderr.decode('utf-8', 'replace')}")
    return done


def line(place: Path, *words: str) -> str:
    """The output of a program that prints one line."""
    return call(place, *words).stdout.decode().strip()


def run_to_end(
    place: Path, begin: Sequence[str], stopped: Callable[[], str], skip: Sequence[str]
) -> tuple[float, tuple[str, ...]]:
    """Run a rebase, and skip each patch at which it stops; its CPU time, and their names."""
    stops: list[str] = []
    spent, code = _timed(place, begin)
    while code:
        stops.append(stopped())
        if stops.count(stops[-1]) > 1:
            raise SystemExit(f"{skip[0]}: {stops[-1]} could not be skipped")
        more, code = _timed(place, skip)
        spent += more
    return spent, tuple(stops)


def _timed(place: Path, words: Sequence[str]) -> tuple[float, int]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = call(place, *words, check=False).returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, code


def forkpatch(work: Work, place: Path) -> Moved:
    """Forkpatch: the series is read from its files, and the new one is written."""
    os.environ["XDG_CACHE_HOME"], os.environ["PYTHONPATH"] = str(place / "cache"), str(work.source)
    # An installed program is compiled once.
    os.environ["PYTHONPYCACHEPREFIX"] = str(place.parent / "compiled")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

    def command(*words: str) -> tuple[str, ...]:
        return sys.executable, "-m", "forkpatch", "--root", str(place), *words

    def stopped() -> str:
        status = call(place, *command("rebase", "up", "--status", "--json", "-")).stdout
        name: str = json.loads(status)["conflicts"][0]["patch"]
        return name.removesuffix(".patch")

    old, new = work.tags
    call(place, *command("init", str(work.upstream), "--name", "up", "--tag", old))
    call(place, *command("adopt", "up", str(work.clone), "patched", "--no-overlays"))
    call(place, *command("lock", "--add", "up=new", "--tag", new))
    skip = command("rebase", "up", "--skip", "it stopped")
    spent, stops = run_to_end(place, command("rebase", "up", "new"), stopped, skip)
    call(place, *command("apply", "--release", "new"))
    return Moved(place / ".work/new/up", spent, stops)


def git_rebase(work: Work, place: Path) -> Moved:
    """Git: ``git rebase --onto NEW OLD``, in a clone that has the series checked out."""
    clone = _cloned(work, place)
    begin = ("git", "rebase", "-q", "--onto", _NEW, _OLD, "patched")
    skip = ("git", "rebase", "--skip")
    return Moved(clone, *run_to_end(clone, begin, lambda: line(clone, *_GIT_STOP), skip))


def stgit(work: Work, place: Path) -> Moved:
    """StGit: the series as a stack that is pushed on NEW; 0.19's ``stg rebase`` cannot stop."""
    clone = _cloned(work, place)
    call(clone, "stg", "init")
    call(clone, "stg", "uncommit", "--to", _OLD, "--exclusive")
    go_on = "[ $(stg series --unapplied --count) = 0 ] || stg push --all"
    skip = ("sh", "-c", f"git reset -q --hard && stg delete --top && {{ {go_on}; }}")
    begin = ("sh", "-c", f"stg rebase --nopush {_NEW} && stg push --all")
    return Moved(clone, *run_to_end(clone, begin, lambda: line(clone, "stg", "top"), skip))


def gbp(work: Work, place: Path) -> Moved:
    """git-buildpackage: ``gbp pq rebase``, with the series as the patch queue of NEW."""
    clone = _cloned(work, place)
    call(clone, "git", "checkout", "-q", "-b", "patch-queue/new")
    begin, skip = ("gbp", "pq", "rebase"), ("git", "rebase", "--skip")
    return Moved(clone, *run_to_end(clone, begin, lambda: line(clone, *_GIT_STOP), skip))


def quilt(work: Work, place: Path) -> Moved:
    """Quilt: ``quilt push -a`` on NEW, with patch(1)'s usual fuzz."""
    clone = _cloned(work, place)
    written = line(clone, "git", "format-patch", "--no-numbered", "-o", "patches", f"{_OLD}..")
    names = [Path(name).name for name in written.splitlines()]
    (clone / "patches/series").write_text("".join(f"{name}\n" for name in names))
    call(clone, "git", "checkout", "-q", _NEW)
    go_on = "! quilt next || quilt push -a"
    skip = ("sh", "-c", f"quilt delete -n && {{ {go_on}; }}")

    def stopped() -> str:
        return Path(line(clone, "quilt", "next")).stem.partition("-")[2]

    return Moved(clone, *run_to_end(clone, ("quilt", "push", "-a"), stopped, skip))


def _cloned(work: Work, place: Path) -> Path:
    clone = place / "clone"
    call(place, "git", "clone", "-q", "-s", "-b", "patched", str(work.clone), str(clone))
    for ref in (_OLD, _NEW):
        call(clone, "git", "fetch", "-q", str(work.clone), f"{ref}:{ref}")
    return clone


#: Name, program and function of each tool; the first one's time is the measure of the others.
TOOLS: tuple[tuple[str, str, Tool], ...] = (
    ("git rebase", "git", git_rebase),
    ("stg push --all", "stg", stgit),
    ("gbp pq rebase", "gbp", gbp),
    ("quilt push -a", "quilt", quilt),
    ("forkpatch rebase", sys.executable, forkpatch),
)


def written() -> list[MisplacementCase]:
    """All written cases."""
    return [*heldout(), *lookalikes(), *renamed(), *named()]


def work_of_cases(bench: Bench, source: Path) -> Work:
    """The written cases as a series; each is in a folder of its own."""
    upstream = bench.git.git_dir
    assert upstream is not None
    for tag, commit in (("v1", bench.base), ("v2", bench.new)):
        bench.git.run("update-ref", f"refs/tags/{tag}", commit)
    clone = upstream.parent / "clone"
    call(upstream.parent, "git", "clone", "-q", "-n", str(upstream), str(clone))
    _set_versions(clone, ("v1", "v2"))
    call(clone, "git", "update-ref", _PATCHED, "origin/main")
    return Work(clone, upstream, ("v1", "v2"), source)


def work_of_commits(
    upstream: Path, tags: tuple[str, str], count: int, folder: Path, source: Path
) -> Work:
    """The first commits after the new tag that go on both versions, as a series."""
    clone = folder / "clone"
    call(folder, "git", "clone", "-q", "-n", "-s", str(upstream), str(clone))
    _set_versions(clone, tags)
    places = (folder / "new", folder / "old")
    for place, ref in zip(places, (_NEW, _OLD), strict=True):
        call(clone, "git", "worktree", "add", "-q", "--detach", str(place), ref)
    listed = line(clone, "git", "rev-list", "--reverse", "--no-merges", f"{_NEW}..HEAD")
    found = 0
    for commit in listed.split():
        found += found < count and _picked(places, commit)
    if found < count:
        raise SystemExit(f"only {found} commits go on both versions without a conflict")
    call(clone, "git", "update-ref", _PATCHED, line(places[1], "git", "rev-parse", "HEAD"))
    return Work(clone, upstream, tags, source)


def _set_versions(clone: Path, tags: tuple[str, str]) -> None:
    for ref, tag in zip((_OLD, _NEW), tags, strict=True):
        call(clone, "git", "update-ref", ref, f"refs/tags/{tag}^{{commit}}")


def _picked(places: Sequence[Path], commit: str) -> bool:
    """Put a commit on what is checked out at all places, or on none of them."""
    before = [line(place, "git", "rev-parse", "HEAD") for place in places]
    if not any(call(one, "git", "cherry-pick", commit, check=False).returncode for one in places):
        return True
    for place, head in zip(places, before, strict=True):
        call(place, "git", "reset", "-q", "--hard", head)
    return False


def placed(bench: Bench, moved: Moved) -> list[Placed]:
    """What a tool made of each written case."""
    stopped = {int(name.rpartition("n")[2]) for name in moved.stops}
    files = ((moved.tree / bench.path(number)).read_text() for number in range(len(bench.cases)))
    return [
        judged(case, None if number in stopped else text)
        for number, (case, text) in enumerate(zip(bench.cases, files, strict=True))
    ]


def verdicts(cases: Sequence[MisplacementCase], found: Sequence[Placed]) -> Counter[Verdict]:
    """The number of cases with each outcome."""
    names = {Placed.RIGHT: Verdict.RIGHT, Placed.WRONG: Verdict.MISSED}
    return Counter(
        names.get(one) or (Verdict.STOPPED if _git_is_right(case) else Verdict.CAUGHT)
        for case, one in zip(cases, found, strict=True)
    )


def _git_is_right(case: MisplacementCase) -> bool:
    merged = merge_data(*(text.encode() for text in (case.new, case.base, case.patched)))
    return merged is not None and merged.decode() == case.right


def main() -> int:
    """Print the table; returns 1 if forkpatch makes a silent error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("clone", type=Path, metavar="CLONE", help="a clone, with its history")
    parser.add_argument("old", metavar="OLD", help="tag to move the series from")
    parser.add_argument("new", metavar="NEW", help="tag to move it to")
    parser.add_argument("--count", type=int, default=63, help="patches (default: 63)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each tool (default: 5)")
    parser.add_argument(
        "--source", type=Path, default=PACKAGE / "src", metavar="DIR", help="another forkpatch"
    )
    options = parser.parse_args()
    source, tags = options.source.resolve(), (options.old, options.new)
    with tempfile.TemporaryDirectory(prefix="rebase-times-") as name:
        folder = Path(name)
        bench = make_bench(folder, written())
        cases = work_of_cases(bench, source)
        (folder / "real").mkdir()
        real = work_of_commits(
            options.clone.resolve(), tags, options.count, folder / "real", source
        )
        print(f"{len(bench.cases)} written cases; {options.count} commits, {' to '.join(tags)}\n")
        installed = [tool for tool in TOOLS if shutil.which(tool[1])]
        runs: dict[str, list[Moved]] = {title: [] for title, _, _ in installed}
        for _ in range(options.runs):  # in turns: what else this machine does is the same for all
            for title, _, tool in installed:
                with tempfile.TemporaryDirectory(dir=folder) as place:
                    runs[title].append(tool(real, Path(place)))
        print(f"| tool | {' | '.join(Verdict)} | stops in the commits | CPU, s | CPU, of git's |")
        print(f"|---|{'---|' * (len(Verdict) + 3)}", flush=True)
        reference = missed = 0.0
        for title, _, tool in installed:
            if tool is forkpatch:
                counts = verdicts(bench.cases, by_merge(bench))
            else:
                with tempfile.TemporaryDirectory(dir=folder) as place:
                    counts = verdicts(bench.cases, placed(bench, tool(cases, Path(place))))
            cpu = statistics.median(one.cpu for one in runs[title])
            reference = reference or cpu
            cells = [counts[one] for one in Verdict] + [len(runs[title][0].stops)]
            print(
                f"| {title} | {' | '.join(map(str, cells))} | {cpu:.1f} | {cpu / reference:.1f} |",
                flush=True,
            )
            missed = counts[Verdict.MISSED]
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
