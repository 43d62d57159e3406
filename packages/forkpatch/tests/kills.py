# SPDX-License-Identifier: Apache-2.0
"""Runs killed at random moments: every verb that writes, alone and two at once.

    uv run --package forkpatch python packages/forkpatch/tests/kills.py --count 500 --seed 1

Each turn copies a small fork, starts a verb (or two), and sends SIGKILL to one after a random part
of the time that it takes. Then the verb is run again, as a user would. A turn is bad when anything
traps the user: a verb fails that should not, the series are not what an undisturbed run gives, or
something is left behind. The table goes to standard output; exit code 1 after a bad turn.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from forklab import FILES, ForkLab, Repo, core, git, message, start, wait_for_git

from forkpatch.cli.main import main as forkpatch

CORE_PATH = "python/calc/core.py"
# Verbs that have something to do in whatever state a scene begins.
_BESIDE = (
    "apply",
    "export",
    "record",
    "edit",
    "lock",
    "tree",
    "export --format",
    "submit --output",
)
# Scratch of ours anywhere but in the cache, which other forks may be writing to and which drops it
# by its age; and of git's in a repository that a verb writes to.
_LEFT = (
    "**/.forkpatch-new-*",
    "**/.forkpatch-old-*",
    "fork/**/.*.new-????????",
    "clone/.git/**/*.lock",
)
# Another verb wrote the series that a rebase makes: it says so, and --abort is the way out.
_OVERTAKEN = "changed since the rebase began"
_AGAIN = ("exists", "already", "no rebase", "has a branch", "cannot be split")


def run(root: Path, words: list[str]) -> tuple[int, str]:
    """Exit code and output of a verb, in this process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = forkpatch(["--root", str(root), *words])
    return code, out.getvalue()


@dataclass
class Scene:
    """A verb, and the fork in the state in which it has something to do.

    Attributes:
        words: the verb with its options, in which ``{place}`` is the folder of the turn.
        again: what a user types after it was killed; the verb itself by default.
        expected: what an undisturbed run leaves, see :func:`content`.
        span: seconds that such a run takes.
    """

    name: str
    folder: Path
    words: list[str]
    again: Callable[[Path], list[str]] | None = None
    expected: dict[str, bytes] = field(default_factory=dict)
    span: float = 0.0

    def start(self, root: Path) -> int:
        """Start the verb; returns its process id."""
        return start(root, *self.typed(root))

    def typed(self, root: Path) -> list[str]:
        """The verb and its options for the fork of this turn."""
        return [word.format(place=root.parent) for word in self.words]

    def measure(self, place: Path) -> None:
        """Run the verb undisturbed."""
        root = copy(self.folder, place)
        began = time.monotonic()
        _, status = os.waitpid(self.start(root), 0)
        assert os.waitstatus_to_exitcode(status) == 0, (self.name, run(root, self.typed(root)))
        self.span = time.monotonic() - began
        self.expected = content(root)
        shutil.rmtree(place)

    def retry(self, root: Path) -> str:
        """Run the verb again; returns the reason why a user is stuck, if one is."""
        words = self.again(root) if self.again else self.typed(root)
        code, out = run(root, words) if words else (0, "")
        if _OVERTAKEN in out:
            words = ["rebase", "calc", "--abort"]
            code, out = run(root, words)
        if code and not any(word in out for word in _AGAIN):
            return f"{' '.join(words)}: exit {code}: {out.strip()}"
        return ""


def copy(template: Path, place: Path) -> Path:
    """A copy of a fork with its upstream and cache; returns its root."""
    shutil.copytree(template, place, symlinks=True)
    os.environ["XDG_CACHE_HOME"] = str(place / "cache")
    return place / "fork"


def content(root: Path) -> dict[str, bytes]:
    """Everything that verbs are to write: the fork, outputs outside of it, branches of a clone."""
    place = root.parent
    tops = (root / "patches", root / "overlays", place / "made")
    files = [root / "VERSIONS.lock", *(path for top in tops for path in top.rglob("*"))]
    found = {str(one.relative_to(place)): one.read_bytes() for one in files if is_output(one)}
    if (root / ".work/r1/calc/.git").is_dir():
        found["tree"] = git(root / ".work/r1/calc", "log", "--format=%T %s").encode()
    if (place / "clone").is_dir():
        found["clone"] = git(place / "clone", "for-each-ref", "refs/heads").encode()
    return found


def is_output(path: Path) -> bool:
    """True for a file that a verb writes; git's own, in a tree, are none."""
    return path.is_file() and not path.is_symlink() and ".git" not in path.parts


def leftovers(root: Path) -> list[str]:
    """Scratch of a run in the fork, beside its outputs, or in the clone."""
    place = root.parent
    return [str(path.relative_to(place)) for pattern in _LEFT for path in place.glob(pattern)]


def write_quilt(folder: Path) -> Path:
    """A series of quilt's with one patch."""
    folder.mkdir()
    diff = f"--- a/{CORE_PATH}\n+++ b/{CORE_PATH}\n@@ -2,1 +2,2 @@\n     check(a)\n+    log(a)\n"
    (folder / "log.patch").write_text(diff)
    (folder / "series").write_text("log.patch\n")
    return folder


def edit_series(place: Path, old: str, new: str) -> None:
    """Replace a text of a fork's series."""
    series = place / "fork/patches/calc/1.0/series"
    series.write_text(series.read_text().replace(old, new))


def change_tree(place: Path, body: bytes, subject: str = "", terms: bytes = b"free\n") -> None:
    """Change files of a fork's patched tree, in a commit if it has a subject."""
    tree = place / "fork/.work/r1/calc"
    (tree / CORE_PATH).write_bytes(body)
    (tree / "LICENSE").write_bytes(terms)
    if subject:
        git(tree, "commit", "-qam", subject)


def scenes(folder: Path) -> list[Scene]:
    """Every verb that writes, with a fork for it."""
    base = folder / "base"
    os.environ["XDG_CACHE_HOME"] = str(base / "cache")
    repo = Repo.create(folder / "upstream", FILES)
    git(repo.path, "tag", "v1.0")
    (base / "fork").mkdir(parents=True)
    lab = ForkLab(base / "fork", base, repo)
    lab.write_lock()
    first = repo.head
    edits = {"a": core(sub="b - a"), "b": core(sub="b - a", mul="0")}
    for name, body in edits.items():
        lab.add_patch(f"{name}.patch", repo.patch({CORE_PATH: body}, message(name)))
    git(repo.path, "checkout", "-q", "--detach", first)
    second = repo.commit({"src/run.c": b"int run(int);\n"}, "Second")
    third = repo.commit({CORE_PATH: core(sub="a + 1")}, "Third")
    with (lab.root / "VERSIONS.lock").open("a") as lock:
        for version, commit in (("2.0", second), ("3.0", third)):
            lock.write(
                f'\n[upstreams.calc.versions."{version}"]\ncommit = "{commit}"\n'
                'include = ["python/calc", "src", "LICENSE"]\nexclude = ["src/*.cu"]\n'
            )
    foreign = write_quilt(folder / "foreign")

    def derived(name: str, of: str, *verbs: list[str]) -> Path:
        root = copy(folder / of, folder / name)
        for words in verbs:
            code, out = run(root, words)
            assert code in (0, 1), out
        return folder / name

    locked = derived("locked", "base", ["lock"], ["record"])
    applied = derived("applied", "locked", ["apply"])
    more = derived("more", "applied")
    change_tree(more, core(sub="b - a", mul="0", add="7"), "More")
    loose = derived("loose", "applied")
    change_tree(loose, core(sub="b - a - 1", mul="1"))
    wide = derived("wide", "applied")
    change_tree(wide, core(sub="b - a", mul="0", add="7"), "Wide", b"ours\n")
    bare = derived("bare", "applied")
    (bare / "fork/patches/calc/1.0/derived.json").unlink()
    stale = derived("stale", "applied")
    edit_series(stale, "b.patch\n", "")
    optional = derived("optional", "applied")
    edit_series(optional, "b.patch", "b.patch [fast]")
    stopped = derived("stopped", "applied", ["rebase", "calc", "3.0"])
    (stopped / "fork/.work/rebase/calc/tree" / CORE_PATH).write_bytes(core(sub="b - 1"))
    going = derived("going", "stopped")
    git(repo.path, "checkout", "-q", "-b", "ours", "v1.0")
    repo.commit({CORE_PATH: core(mul="9")}, "Ours")
    empty = derived("empty", "locked")
    shutil.rmtree(empty / "fork/patches")
    blank = folder / "blank"
    (blank / "fork").mkdir(parents=True)
    cloned = derived("cloned", "applied")
    shutil.copytree(repo.path, cloned / "clone")

    def rebase_again(root: Path) -> list[str]:
        if (root / ".work/rebase/calc/plan.json").exists():
            return ["rebase", "calc", "--continue"]
        return [] if (root / "patches/calc/2.0").exists() else ["rebase", "calc", "2.0"]

    def continue_again(root: Path) -> list[str]:
        under_way = (root / ".work/rebase/calc/plan.json").exists()
        return ["rebase", "calc", "--continue"] if under_way else []

    return [
        Scene("apply", stale, ["apply"]),
        Scene("apply --with", optional, ["apply", "--with", "fast"]),
        Scene("edit", locked, ["edit", "calc"]),
        Scene("export", more, ["export"]),
        Scene("export --own", more, ["export", "--own"]),
        Scene("absorb", loose, ["absorb", "calc"]),
        Scene("split", wide, ["split", "calc", "wide"]),
        Scene("bisect", applied, ["bisect", "calc", "--", "grep", "-q", "a [*] b", CORE_PATH]),
        Scene("push", cloned, ["push", "calc", "{place}/clone", "series"]),
        Scene("lock", base, ["lock"]),
        Scene("lock --add", locked, ["lock", "--add", "calc=4.0", "--commit", third]),
        Scene("record", bare, ["record"]),
        Scene("rebase", applied, ["rebase", "calc", "2.0"], rebase_again),
        Scene("rebase --continue", going, ["rebase", "calc", "--continue"], continue_again),
        Scene("rebase --abort", stopped, ["rebase", "calc", "--abort"]),
        Scene(
            "import-series", applied, ["import-series", "calc", str(foreign), "--version", "2.0"]
        ),
        Scene("adopt", empty, ["adopt", "calc", str(repo.path), "ours", "--version", "1.0"]),
        Scene("init", blank, ["init", str(repo.path), "--name", "calc", "--tag", "v1.0"]),
        Scene("tree", applied, ["tree", "calc", "--output", "{place}/made/tree"]),
        Scene(
            "export --format",
            applied,
            ["export", "calc", "--format", "debian", "--output", "{place}/made/debian"],
        ),
        Scene(
            "submit --output",
            applied,
            ["submit", "calc", "--onto", second, "--output", "{place}/made/submit"],
        ),
        Scene(
            "submit --branch",
            cloned,
            ["submit", "calc", "--onto", second, "--branch", "up", "--repository", "{place}/clone"],
        ),
    ]


def wait_for_orphans(place: Path) -> None:
    """Wait until the git processes of a killed run, which work below ``place``, have ended."""
    while any(place in cwd.parents for cwd in working_folders()):
        time.sleep(0.01)


def working_folders() -> Iterator[Path]:
    """The current folder of each process that may be looked at."""
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            yield link.readlink()


def turn(scene: Scene, other: Scene | None, place: Path, chance: random.Random) -> Iterator[str]:
    """Kill a verb, alone or beside another one; yields what is wrong afterwards."""
    root = copy(scene.folder, place)
    pid = scene.start(root)
    beside = other.start(root) if other else 0
    time.sleep(chance.uniform(0.0, 1.1) * scene.span * (2 if other else 1))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if other:
        _, status = os.waitpid(beside, 0)
        code = os.waitstatus_to_exitcode(status)
        if code not in (0, 1, 2):
            yield f"{other.name} beside it: exit {code}"
    wait_for_git(root)
    wait_for_orphans(place)
    code, out = run(root, ["status"])
    if (code or "broken" in out) and "forkpatch init" not in out:
        yield f"status: exit {code}: {out.strip()}"
    if reason := scene.retry(root):
        yield reason
    if other is None:
        if content(root) != scene.expected:
            yield "the series are not what an undisturbed run gives"
    else:
        for words in (["apply", "--discard"], ["record"], ["export", "--check"]):
            code, out = run(root, words)
            if code:
                yield f"{words[0]} afterwards: exit {code}: {out.strip()}"
    run(root, ["status"])
    if left := leftovers(root):
        yield f"left behind: {left[0]}"


def killed(count: int, seed: int, *, say: Callable[[str], None] = print) -> dict[str, Counter[str]]:
    """Kill ``count`` runs, about half of them beside another verb; returns the counts by verb."""
    chance = random.Random(seed)
    table: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        every = scenes(Path(name))
        for scene in every:
            scene.measure(Path(name, "turn"))
        for number in range(count):
            scene = every[number % len(every)]
            beside = [one for one in every if one.folder == scene.folder]
            if scene.name != "init":  # others need a fork to begin with
                beside += [one for one in every if one.name in _BESIDE and one not in beside]
            other = chance.choice(beside) if chance.random() < 0.5 else None
            row = table.setdefault(scene.name, Counter())
            row["beside another" if other else "alone"] += 1
            for problem in turn(scene, other, Path(name, "turn"), chance):
                row["bad"] += 1
                say(f"turn {number}: {scene.name}{f' | {other.name}' if other else ''}: {problem}")
            shutil.rmtree(Path(name, "turn"))
    return table


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    table = killed(options.count, options.seed)
    columns = ("alone", "beside another", "bad")
    print(f"{'verb killed':20} {columns[0]:>6} {columns[1]:>15} {columns[2]:>4}")
    for name, row in table.items():
        print(f"{name:20} {row[columns[0]]:6} {row[columns[1]]:15} {row['bad']:4}")
    bad = sum(row["bad"] for row in table.values())
    total = sum(row[column] for row in table.values() for column in columns[:2])
    print(f"{total} kills, seed {options.seed}: {bad} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
