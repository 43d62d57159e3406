# SPDX-License-Identifier: Apache-2.0
"""Times of one rebase by forkpatch, git rebase, stgit and gbp pq, on real commits.

    uv run --package forkpatch python packages/forkpatch/tests/rebase_times.py CLONE OLD NEW

The series is made of commits of CLONE, a clone of any project with its history: the first ones
after tag NEW that git puts on both OLD and NEW without a conflict. Each tool moves them from OLD to
NEW, on files that the page cache has. A tool that is not installed is left out; times are medians.
Forkpatch goes on where it stops, with ``--accept``, and the time of that counts.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from forklab import AUTHOR, PACKAGE

from forkpatch.git.calls import neutral_environment

_MOST_STOPS = 20
_PATCHED, _OLD, _NEW = "refs/heads/patched", "refs/heads/old", "refs/heads/new"


@dataclass(frozen=True)
class Work:
    """The work that each tool does.

    Attributes:
        clone: a repository with branches: old and new, and patched, which is old with the series.
        tags: the tags of both versions in the upstream's repository.
    """

    clone: Path
    upstream: Path
    tags: tuple[str, str]
    folder: Path


@dataclass(frozen=True)
class Measured:
    """One run of a tool: its exit code, seconds, and how often it stopped and was continued."""

    tool: str
    code: int
    seconds: float
    cpu: float
    stops: int = 0


def call(place: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Run a program as a fixed person, without the settings of this machine."""
    environment = neutral_environment({**AUTHOR, "GIT_ALLOW_PROTOCOL": "file"})
    done = subprocess.run(words, cwd=place, env=environment, capture_output=True, check=False)
    if check and done.returncode:
        raise SystemExit(f"{' '.join(words[:4])}: {done.stderr.decode('utf-8', 'replace')}")
    return done


def prepare(upstream: Path, tags: tuple[str, str], count: int, folder: Path) -> Work:
    """Make the clone that has the series."""
    clone = folder / "clone"
    call(folder, "git", "clone", "-q", "-n", "-s", str(upstream), str(clone))
    for ref, tag in zip((_OLD, _NEW), tags, strict=True):
        call(clone, "git", "update-ref", ref, f"refs/tags/{tag}^{{commit}}")
    places = tuple(folder / ref.rpartition("/")[2] for ref in (_NEW, _OLD))
    for place, ref in zip(places, (_NEW, _OLD), strict=True):
        call(clone, "git", "worktree", "add", "-q", "--detach", str(place), ref)
    listed = call(clone, "git", "rev-list", "--reverse", "--no-merges", f"{_NEW}..HEAD").stdout
    found = 0
    for commit in listed.decode().split():
        found += found < count and _picked(places, commit)
    if found < count:
        raise SystemExit(f"only {found} commits go on both versions without a conflict")
    head = call(places[1], "git", "rev-parse", "HEAD").stdout.decode().strip()
    call(clone, "git", "update-ref", _PATCHED, head)
    return Work(clone, upstream, tags, folder)


def _picked(places: Sequence[Path], commit: str) -> bool:
    """Put a commit on what is checked out at all places, or on none of them."""
    before = [call(place, "git", "rev-parse", "HEAD").stdout.decode().strip() for place in places]
    if not any(call(one, "git", "cherry-pick", commit, check=False).returncode for one in places):
        return True
    for place, head in zip(places, before, strict=True):
        call(place, "git", "reset", "-q", "--hard", head)
    return False


def timed(tool: str, place: Path, *words: str) -> Measured:
    """Run the command that is measured."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = call(place, *words, check=False)
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(tool, done.returncode, seconds, cpu)


def forkpatch(work: Work, place: Path, source: Path) -> Measured:
    """Forkpatch: the series is read from its files, and the new one is written."""
    os.environ["XDG_CACHE_HOME"], os.environ["PYTHONPATH"] = str(place / "cache"), str(source)

    def command(*words: str) -> tuple[str, ...]:
        return sys.executable, "-m", "forkpatch", "--root", str(place), *words

    old, new = work.tags
    call(place, *command("init", str(work.upstream), "--name", "up", "--tag", old))
    call(place, *command("adopt", "up", str(work.clone), "patched", "--no-overlays"))
    call(place, *command("lock", "--add", "up=new", "--tag", new))
    done = timed("forkpatch", place, *command("rebase", "up", "new"))
    while done.code == 1 and done.stops < _MOST_STOPS:  # each stop is a run of its own
        more = timed("forkpatch", place, *command("rebase", "up", "--accept", "as git has it"))
        seconds, cpu = done.seconds + more.seconds, done.cpu + more.cpu
        done = Measured(done.tool, more.code, seconds, cpu, done.stops + 1)
    return done


def git_rebase(work: Work, place: Path) -> Measured:
    """Git: ``git rebase --onto NEW OLD``, in a clone that has the series checked out."""
    clone = _cloned(work, place, "patched")
    return timed("git rebase", clone, "git", "rebase", "-q", "--onto", _NEW, _OLD, "patched")


def stgit(work: Work, place: Path) -> Measured:
    """StGit: ``stg rebase NEW``, with the series as its stack."""
    clone = _cloned(work, place, "patched")
    call(clone, "stg", "init")
    call(clone, "stg", "uncommit", "--to", _OLD, "--exclusive")
    return timed("stg rebase", clone, "stg", "rebase", _NEW)


def gbp(work: Work, place: Path) -> Measured:
    """git-buildpackage: ``gbp pq rebase``, with the series as the patch queue of NEW."""
    clone = _cloned(work, place, "patched")
    call(clone, "git", "checkout", "-q", "-b", "patch-queue/new")
    return timed("gbp pq rebase", clone, "gbp", "pq", "rebase")


def _cloned(work: Work, place: Path, branch: str) -> Path:
    clone = place / "clone"
    call(place, "git", "clone", "-q", "-s", "-b", branch, str(work.clone), str(clone))
    for ref in (_OLD, _NEW):
        call(clone, "git", "fetch", "-q", str(work.clone), f"{ref}:{ref}")
    return clone


def main() -> int:
    """Print the table."""
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
    tools: dict[str, Callable[[Work, Path], Measured]] = {
        "git": git_rebase,
        sys.executable: lambda work, place: forkpatch(work, place, options.source.resolve()),
        "stg": stgit,
        "gbp": gbp,
    }
    failed = False
    with tempfile.TemporaryDirectory(prefix="rebase-times-") as name:
        folder, tags = Path(name), (options.old, options.new)
        work = prepare(options.clone.resolve(), tags, options.count, folder)
        print(f"{options.count} patches from {options.old} to {options.new}")
        print(f"{'tool':14} {'seconds':>8} {'of CPU':>8} {'CPU/git':>10}", flush=True)
        reference = 0.0
        for program, tool in tools.items():
            if shutil.which(program) is None:
                print(f"{program:14} not installed")
                continue
            runs = []
            for number in range(options.runs):
                place = folder / f"{Path(program).name}-{number}"
                place.mkdir()
                runs.append(tool(work, place))
                shutil.rmtree(place)
            seconds, cpu = (statistics.median(one) for one in zip(*map(_times, runs), strict=True))
            reference = reference or cpu
            failed |= any(one.code for one in runs)
            first = runs[0]
            note = f"  {first.stops} stops" if first.stops else ""
            note += f"  exit code {first.code}" if first.code else ""
            print(f"{first.tool:14} {seconds:8.2f} {cpu:8.2f} {cpu / reference:10.1f}{note}")
    return int(failed)


def _times(run: Measured) -> tuple[float, float]:
    return run.seconds, run.cpu


if __name__ == "__main__":
    sys.exit(main())
