# SPDX-License-Identifier: Apache-2.0
"""Mirror test of Debian's series: imported, compared with dpkg-source's tree, and given back.

    uv run --package forkpatch python packages/forkpatch/tests/debian_series.py FOLDER

For each source package (``.dsc``) of FOLDER: its pristine tree becomes an upstream, its
``debian/patches`` is imported and applied, the tree is compared with what ``dpkg-source -x`` gives,
file by file with modes, and ``export --format debian`` with the files of ``debian/patches``, byte
for byte. The table goes to standard output; exit code 1 when something differs or is refused.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from forkpatch.cli.main import main as forkpatch
from forkpatch.foreign.sources import parse_list
from forkpatch.git.calls import neutral_environment

PERSON = {"GIT_AUTHOR_NAME": "x", "GIT_AUTHOR_EMAIL": "x@localhost"}
PERSON |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in PERSON.items()}
_NOT_PATCHED = ("debian", ".pc")


@dataclass(frozen=True)
class MirrorResult:
    """Outcome for one package.

    Attributes:
        shifted: hunks that were not at the lines that they state.
        tree: the files in which our tree and dpkg-source's differ.
        series: the files in which what was exported and ``debian/patches`` differ.
    """

    package: str
    patches: int
    shifted: int = 0
    files: int = 0
    tree: tuple[str, ...] = ()
    series: tuple[str, ...] = ()
    refused: str = ""

    @property
    def row(self) -> str:
        """A row of the table."""
        if self.refused:
            return f"{self.package:44} {self.patches:7} refused: {self.refused}"
        tree, series = (
            "identical" if not names else f"{len(names)} differ ({names[0]})"
            for names in (self.tree, self.series)
        )
        return (
            f"{self.package:44} {self.patches:7} {self.shifted:7} {self.files:6} {tree:10} {series}"
        )


def mirror(dsc: Path, folder: Path) -> MirrorResult:
    """Mirror one package in the empty folder ``folder``."""
    pristine, patched = folder / "upstream", folder / "patched"
    unpack(dsc, pristine, "--skip-patches")
    unpack(dsc, patched)
    patches = pristine / "debian/patches"
    if not (patches / "series").is_file():
        return MirrorResult(dsc.stem, 0, refused="it has no debian/patches/series")
    wanted = bytes_below(patches)
    count = len(listed(patches)) - 1
    shutil.copytree(patches, folder / "patches")
    fork = make_fork(folder, pristine, commit_tree(pristine))
    code, out, err = run(fork, "import-series", "up", "--nearest", str(folder / "patches"))
    if code:
        return MirrorResult(dsc.stem, count, refused=err.partition(": ")[2].splitlines()[0])
    shifted = out.count("\nmoved: ") + out.startswith("moved: ")
    output = folder / "back"
    for words in (
        ("apply",),
        ("export", "--check"),
        ("export", "up", "--format", "debian", "--output", str(output)),
    ):
        code, out, err = run(fork, *words)
        if code:
            return MirrorResult(dsc.stem, count, refused=f"{words[0]}: {err or out}".strip())
    ours, theirs = (content_of(place) for place in (fork / ".work/r/up", patched))
    return MirrorResult(
        dsc.stem,
        count,
        shifted,
        len(theirs),
        differences(ours, theirs),
        differences(bytes_below(output), wanted),
    )


def bytes_below(folder: Path) -> dict[str, bytes]:
    """The bytes of each file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def unpack(dsc: Path, target: Path, *options: str) -> None:
    """Unpack a source package."""
    command = ["dpkg-source", "--no-check", "-q", *options, "-x", str(dsc), str(target)]
    subprocess.run(command, check=True, capture_output=True)


def listed(folder: Path) -> list[str]:
    """The series, and the patches that it lists."""
    text = (folder / "series").read_text("utf-8")
    return ["series", *(line.file for line in parse_list(text, "series") if line.file)]


def commit_tree(tree: Path, *, keep_debian: bool = False) -> str:
    """Commit all files of a tree, in a repository that is made when it is missing; the id."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(tree), "-c", "init.defaultBranch=master", *words]
        environment = neutral_environment(PERSON)
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        return done.stdout.strip()

    if not keep_debian:
        shutil.rmtree(tree / "debian")
    if not (tree / ".git").is_dir():
        git("init", "-q")
        (tree / ".git/info").mkdir(exist_ok=True)
        (tree / ".git/info/attributes").write_text("* -text -filter -ident !eol\n")
    git("add", "-A", "-f")
    git("commit", "-q", "-m", "Pristine")
    return git("rev-parse", "HEAD")


def make_fork(folder: Path, upstream: Path, commit: str) -> Path:
    """A fork in ``folder`` of the one version of an upstream, locked."""
    fork = folder / "fork"
    fork.mkdir()
    names = sorted(path.name for path in upstream.iterdir() if path.name != ".git")
    include = ", ".join(f'"{name}"' for name in names)
    (fork / "VERSIONS.lock").write_text(
        f'[releases.r]\nup = "1"\n[upstreams.up]\nurl = "{upstream}"\n'
        f'[upstreams.up.versions."1"]\ncommit = "{commit}"\ninclude = [{include}]\ntree = ""\n'
    )
    code, out, err = run(fork, "lock")
    assert code == 0, out + err
    return fork


def run(fork: Path, *words: str) -> tuple[int, str, str]:
    """Exit code and output of a verb."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = forkpatch(["--root", str(fork), *words])
    return code, out.getvalue(), err.getvalue()


def content_of(tree: Path) -> dict[str, tuple[str, bytes]]:
    """Kind and bytes of each file of a tree, without what is not patched."""
    return {
        path.relative_to(tree).as_posix(): found
        for path in _walk(tree)
        for found in [
            ("link", os.fsencode(path.readlink()))
            if path.is_symlink()
            else ("program" if path.stat().st_mode & 0o100 else "file", path.read_bytes())
        ]
    }


def _walk(tree: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(tree):
        top = Path(place) == tree
        folders[:] = [f for f in folders if f != ".git" and not (top and f in _NOT_PATCHED)]
        links = [f for f in folders if Path(place, f).is_symlink()]
        yield from (Path(place, name) for name in [*names, *links])


def differences(one: Mapping[str, object], other: Mapping[str, object]) -> tuple[str, ...]:
    """The names of the files in which two sets differ."""
    names = sorted(one.keys() | other.keys())
    return tuple(name for name in names if one.get(name) != other.get(name))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of .dsc files and what belongs to them")
    folder = parser.parse_args().folder
    print(f"{'package':44} patches shifted  files tree       series", flush=True)
    bad = 0
    for dsc in sorted(folder.resolve().glob("*.dsc")):
        with tempfile.TemporaryDirectory(prefix="mirror-") as name:
            os.environ["XDG_CACHE_HOME"] = f"{name}/cache"
            result = mirror(dsc, Path(name))
        print(result.row, flush=True)
        bad += bool(result.refused or result.tree or result.series)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
