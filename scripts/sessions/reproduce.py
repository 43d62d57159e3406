# SPDX-License-Identifier: Apache-2.0
"""Build the main job's artefact twice, in two places that differ in all irrelevant conditions.

``python -m sessions.reproduce [options of build-and-test]`` clones the committed state of this
project to two places, builds in both from empty build caches, packs both, and compares all files.
The places differ in: path (one with a space and a letter outside ASCII), home, user name, umask,
time zone, language, hash seed, folder for scratch files, the order in which files were made, and
SOURCE_DATE_EPOCH. They share this machine's tools and Python packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from platformdirs import user_cache_path

from groundwork.command_line import Parser, at_first_look
from groundwork.errors import FAILURE, USER_MISTAKE, CommandError, exit_code_of
from groundwork.files import atomic_write_json

ROOT = Path(__file__).resolve().parents[2]
# In front of the installed packages of this checkout.
SOURCES = ("scripts", *(f"packages/{name}/src" for name in ("crosslab", "groundwork", "forkpatch")))
REPORT = ROOT / "out" / "reproduce.json"
# Options that this command chooses, such as caches of their own, or that do not change the files.
OWN = (
    *("--release", "--applied", "--tvm-tree", "--mlc-tree", "--project", "--cache"),
    *("--json", "--again"),
)
# Options with a path that the user may give from the folder of the command.
PATHS = ("--model", "--tuned")
# Inputs with known hashes are fetched once. All outputs are built twice.
FETCHED = ("forkpatch/trees", "forkpatch/wheels", "forkpatch/mirrors.json", "crosslab/asset-*")
MEMORY = Path("/dev/shm")
ROOM = 4 << 30


@dataclass(frozen=True)
class Place:
    """Folders and environment of one of the two builds.

    Attributes:
        name: name in messages.
        project: folder of the clone.
        home: home folder, with cache and scratch folder.
        variables: environment variables that differ from this process.
        umask: umask of the build.
    """

    name: str
    project: Path
    home: Path
    variables: Mapping[str, str]
    umask: int

    def environment(self) -> dict[str, str]:
        """Return the environment of the build's commands."""
        scratch = self.home / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        folders = {
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "TMPDIR": str(scratch),
            "PYTHONPATH": os.pathsep.join(str(self.project / folder) for folder in SOURCES),
            "PYTHONNOUSERSITE": "1",
        }
        kept = {k: v for k, v in os.environ.items() if k not in ("SOURCE_DATE_EPOCH", "LC_ALL")}
        return {**kept, **folders, **self.variables}

    def run(self, *arguments: str) -> None:
        """Run a module of the clone.

        Raises:
            CommandError: the module fails; its output is on the terminal.
        """
        print(f"{self.name}: {' '.join(arguments[:2])}", flush=True)
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(
            command, cwd=self.project, env=self.environment(), umask=self.umask, check=False
        )
        if done.returncode:
            what = f"{' '.join(arguments[:2])} failed in {self.project}; its message is above"
            is_mistake = done.returncode == USER_MISTAKE
            raise CommandError(what, exit_code=USER_MISTAKE if is_mistake else FAILURE)


def places(scratch: Path, elsewhere: Path) -> tuple[Place, Place]:
    """Return two places that differ as much as a machine allows.

    Args:
        scratch: folder for the first clone, and for both homes.
        elsewhere: folder for the second clone, on another file system if possible.
    """
    plain = Place(
        name="first",
        project=scratch / "a" / "project",
        home=scratch / "a" / "home",
        variables={"TZ": "UTC", "USER": "one", "LOGNAME": "one", "LANG": "C.UTF-8"}
        | {"PYTHONHASHSEED": "1"},
        umask=0o022,
    )
    odd = elsewhere / "b" / "ünother place" / "further" / "down"
    other = Place(
        name="second",
        project=odd / "project",
        home=scratch / "b" / "the home of two",
        variables={"TZ": "Pacific/Chatham", "USER": "two", "LOGNAME": "two", "LANG": "C"}
        | {"PYTHONHASHSEED": "2", "SOURCE_DATE_EPOCH": "1000000000"},
        umask=0o077,
    )
    return plain, other


def clone(place: Place, *, backwards: bool) -> None:
    """Clone the committed state; ``backwards`` makes the files in the opposite order."""
    place.project.parent.mkdir(parents=True, exist_ok=True)
    command = ["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(place.project)]
    subprocess.run(command, check=True)
    if backwards:
        ordered = place.project.with_name("in order")
        place.project.rename(ordered)
        for path in sorted(ordered.rglob("*"), reverse=True):
            target = place.project / path.relative_to(ordered)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_dir():
                shutil.copy2(path, target, follow_symlinks=False)
        shutil.rmtree(ordered)


def bring_inputs(place: Place) -> None:
    """Copy fetched inputs to a place, where their hashes are verified as usual."""
    cache = user_cache_path("mlc-rvv")
    for pattern in FETCHED:
        for source in cache.glob(pattern):
            target = place.home / "cache" / "mlc-rvv" / source.relative_to(cache)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copy2(source, target)


def build(place: Place, options: Sequence[str]) -> Path:
    """Build and pack the artefact in a place; return its folder."""
    applied = place.project / ".work" / "apply.json"
    applied.parent.mkdir(exist_ok=True)
    place.run("forkpatch", "apply", "--json", str(applied))
    report = json.loads(applied.read_text(encoding="utf-8"))
    trees = {u["name"]: u["path"] for u in report["upstreams"] if u["path"]}
    arguments = ["--release", report["release"], "--applied", str(applied), "--max-new", "1"]
    arguments += ["--tvm-tree", trees["tvm"]]
    if "mlc-llm" in trees:
        arguments += ["--mlc-tree", trees["mlc-llm"]]
    place.run("crosslab", "build-and-test", "--project", ".", *arguments, *options)
    place.run("crosslab", "package", "--project", ".")
    return place.project / "dist"


def compare(first: Path, second: Path) -> tuple[list[str], list[str]]:
    """Return the equal files of two folders, and the differences of the other files."""
    equal, differ = [], []
    names = {p.relative_to(top) for top in (first, second) for p in top.rglob("*") if p.is_file()}
    for name in sorted(names):
        missing = [place for place in (first, second) if not (place / name).is_file()]
        if missing:
            differ.append(f"{name}: only in one of them")
        elif (first / name).read_bytes() == (second / name).read_bytes():
            equal.append(str(name))
        else:
            differ.append(f"{name}: {_difference(first / name, second / name)}")
    return equal, differ


def _difference(first_file: Path, second_file: Path) -> str:
    """Return the sizes of two files and their first different byte in words."""
    a, b = first_file.read_bytes(), second_file.read_bytes()
    position = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    offset = min(len(a), len(b)) if position is None else position
    return f"{len(a)} and {len(b)} bytes, different from byte {offset} on"


def order_differs(first: Place, second: Place) -> bool:
    """Return True when some folder lists its files in another order in the other clone."""
    folders = ("packages/crosslab/src/crosslab", "runner", "kernels/rvv")
    return any(
        os.listdir(first.project / name) != os.listdir(second.project / name)  # noqa: PTH208
        for name in folders
    )


def _scratch_root() -> Path | None:
    """Return a folder in memory, whose file system lists files in creation order, or None."""
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
        return MEMORY
    return None


def absolute(words: Sequence[str]) -> list[str]:
    """Return options with absolute paths: both builds run in another folder than the user's."""
    found = []
    for before, word in pairwise(["", *words]):
        option, equals, value = word.partition("=") if word.startswith("-") else (before, "", word)
        is_path = option in PATHS and value and Path(value).exists()
        found.append(f"{option * bool(equals)}{equals}{Path(value).resolve()}" if is_path else word)
    return found


def main(arguments: Sequence[str]) -> int:
    """Build twice and compare; return 1 if a file differs, and the exit code of a failure."""
    about = "Build the artefact twice under different conditions and compare the bytes. "
    about += f"Options of build_and_test change what is built, but these: {', '.join(OWN)}."
    parser = Parser(prog="nox -s reproduce --", description=about)
    _, options = parser.parse_known_args(arguments)
    for name in (word.partition("=")[0] for word in options):
        if name in OWN:
            parser.error(f"{name} is chosen here, or changes no file: leave it out")
    if at_first_look():
        return 0
    return exit_code_of(lambda: _build_twice(absolute(options)), CommandError, "reproduce")


def _build_twice(options: Sequence[str]) -> int:
    """Build twice and compare; return 1 if a file differs.

    Raises:
        CommandError: a build fails, or git cannot read or clone this checkout.
    """
    try:
        changed = subprocess.check_output(["git", "status", "--short"], cwd=ROOT)
    except subprocess.CalledProcessError as error:
        raise CommandError(f"git cannot read {ROOT}; its message is above") from error
    if changed:
        print("note: uncommitted changes are not built")
    start = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="reproduce-") as folder,
        tempfile.TemporaryDirectory(prefix="reproduce-", dir=_scratch_root()) as elsewhere,
    ):
        pair = places(Path(folder), Path(elsewhere))
        for place in pair:
            try:
                clone(place, backwards=place is pair[1])
            except subprocess.CalledProcessError as error:
                raise CommandError(f"git cannot clone {ROOT}; its message is above") from error
            bring_inputs(place)
        reordered = order_differs(*pair)
        print(f"file order: {'differs' if reordered else 'this file system lists both alike'}")
        first, second = (build(place, options) for place in pair)
        equal, differ = compare(first, second)
    for line in differ:
        print(f"differs: {line}")
    print(f"{len(equal)} files are the same bytes, {len(differ)} are not")
    table = {"equal": equal, "differ": differ, "file_order_differed": reordered}
    table["seconds"] = round(time.monotonic() - start)
    atomic_write_json(REPORT, table)
    return 1 if differ or not equal else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
