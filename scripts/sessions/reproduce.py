# SPDX-License-Identifier: Apache-2.0
"""Build the main job's artefact twice, in two places that differ in all that must not matter.

``python -m sessions.reproduce [options of build-and-test]`` clones the committed state of this
project to two places, builds in both from empty build caches, packs both, and compares all files.
The two differ in: path (one with a space and a letter outside ASCII), home, user
name, umask, time zone, language, hash seed, folder for scratch files, the order in which files
were made, and SOURCE_DATE_EPOCH. They share this machine's tools and Python packages.
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
from pathlib import Path

from platformdirs import user_cache_path

from groundwork.command_line import Parser
from groundwork.files import atomic_write_json

ROOT = Path(__file__).resolve().parents[2]
# Before the checkout's own packages, which are installed.
SOURCES = ("scripts", "packages/groundwork/src", "packages/forkpatch/src")
REPORT = ROOT / "out" / "reproduce.json"
# Inputs, known by their hash: fetched once. All that is built is built twice.
FETCHED = ("forkpatch/trees", "forkpatch/wheels", "forkpatch/mirrors.json", "crosslab/asset-*")
MEMORY = Path("/dev/shm")
ROOM = 4 << 30


@dataclass(frozen=True)
class Place:
    """One of the two builds.

    Attributes:
        name: for messages.
        project: where the clone is.
        home: its own home, with cache and scratch folder.
        variables: what its environment has otherwise.
        umask: its umask.
    """

    name: str
    project: Path
    home: Path
    variables: Mapping[str, str]
    umask: int

    def environment(self) -> dict[str, str]:
        """The environment of its commands."""
        scratch = self.home / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        own = {
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "TMPDIR": str(scratch),
            "PYTHONPATH": os.pathsep.join(str(self.project / folder) for folder in SOURCES),
            "PYTHONNOUSERSITE": "1",
        }
        kept = {k: v for k, v in os.environ.items() if k not in ("SOURCE_DATE_EPOCH", "LC_ALL")}
        return {**kept, **own, **self.variables}

    def run(self, *arguments: str) -> None:
        """Run a module of the clone.

        Raises:
            subprocess.CalledProcessError: it fails; what it says is on the terminal.
        """
        print(f"{self.name}: {' '.join(arguments[:2])}", flush=True)
        command = [sys.executable, "-m", *arguments]
        subprocess.run(
            command, cwd=self.project, env=self.environment(), umask=self.umask, check=True
        )


def places(scratch: Path, elsewhere: Path) -> tuple[Place, Place]:
    """Two places that differ as much as one machine allows.

    Args:
        scratch: folder for the first, and for both homes.
        elsewhere: folder for the second clone, on another file system if there is one.
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
    """Clone the committed state; backwards makes the files in the opposite order."""
    place.project.parent.mkdir(parents=True, exist_ok=True)
    command = ["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(place.project)]
    subprocess.run(command, check=True)
    if backwards:
        made = place.project.with_name("in order")
        place.project.rename(made)
        for path in sorted(made.rglob("*"), reverse=True):
            target = place.project / path.relative_to(made)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_dir():
                shutil.copy2(path, target, follow_symlinks=False)
        shutil.rmtree(made)


def bring_inputs(place: Place) -> None:
    """Give a place what was fetched before; it is verified by hash there as anywhere."""
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
    """Build and pack in one place; the folder of the artefact."""
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


def compare(one: Path, other: Path) -> tuple[list[str], list[str]]:
    """Equal files of two folders, and the differences of the others."""
    equal, differ = [], []
    names = {p.relative_to(top) for top in (one, other) for p in top.rglob("*") if p.is_file()}
    for name in sorted(names):
        missing = [place for place in (one, other) if not (place / name).is_file()]
        if missing:
            differ.append(f"{name}: only in one of them")
        elif (one / name).read_bytes() == (other / name).read_bytes():
            equal.append(str(name))
        else:
            differ.append(f"{name}: {_difference(one / name, other / name)}")
    return equal, differ


def _difference(one: Path, other: Path) -> str:
    a, b = one.read_bytes(), other.read_bytes()
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    at = min(len(a), len(b)) if first is None else first
    return f"{len(a)} and {len(b)} bytes, different from byte {at} on"


def order_differs(one: Place, other: Place) -> bool:
    """Check that some folder lists its files in another order."""
    folders = ("scripts/crosslab", "runner", "kernels/rvv")
    return any(
        os.listdir(one.project / name) != os.listdir(other.project / name)  # noqa: PTH208
        for name in folders
    )


def _scratch_root() -> Path | None:
    """A folder in memory, whose file system lists files in the order of their creation."""
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
        return MEMORY
    return None


def main(arguments: list[str]) -> int:
    """Build twice and compare; return 1 if a file differs."""
    about = "Build the artefact twice under different conditions and compare the bytes. "
    about += "Options other than --help go to build_and_test: nox -s build_and_test -- --help."
    parser = Parser(prog="nox -s reproduce --", description=about)
    _, options = parser.parse_known_args(arguments)
    if subprocess.check_output(["git", "status", "--short"], cwd=ROOT):
        print("note: uncommitted changes are not built")
    start = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="reproduce-") as folder,
        tempfile.TemporaryDirectory(prefix="reproduce-", dir=_scratch_root()) as elsewhere,
    ):
        pair = places(Path(folder), Path(elsewhere))
        for place in pair:
            clone(place, backwards=place is pair[1])
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
