# SPDX-License-Identifier: Apache-2.0
"""Four patches to real TVM, in Python and C++, carried from release to release.

    uv run --package forkpatch python packages/forkpatch/tests/releases.py CLONE [VERSION...]

CLONE is a git clone of TVM with its tags. The patches are made on the first version and moved to
each one after it. Where ``rebase`` stops, the new version's file gets the same change by hand. In
each version every change has to be once in its own function, and nowhere else; the first of them
gives one function what a function of the same name says elsewhere, and is not upstream for that.
The table goes to standard output; exit code 1 when a change is lost or elsewhere.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkpatch.cli.main import main as forkpatch
from forkpatch.git.calls import neutral_environment
from forkpatch.symbols.outline import outline

VERSIONS = ("0.18.0", "0.20.0", "0.22.0", "0.26.0")
PERSON = {
    f"GIT_{role}_{key}": value
    for role in ("AUTHOR", "COMMITTER")
    for key, value in (("NAME", "Ada"), ("EMAIL", "ada@example.org"))
}


@dataclass(frozen=True)
class Change:
    """A patch: one text of a function replaced by another.

    Attributes:
        symbol: the function, by its full name.
        old: upstream's text, once in the file after ``anchor``.
    """

    name: str
    path: str
    symbol: str
    anchor: str
    old: str
    new: str

    def made_in(self, data: str) -> str:
        """The file with the change."""
        at = data.index(self.old, data.index(self.anchor))
        return data[:at] + self.new + data[at + len(self.old) :]

    def place(self, data: str) -> str:
        """The function that has the new text; or what is wrong."""
        if data.count(self.new) != 1:
            return f"it is there {data.count(self.new)} times"
        file = outline(self.path, data.encode())
        return file.at(data.count("\n", 0, data.index(self.new)) + 1).name


CHANGES = (
    Change(
        "cudnn-softmax-of-miopen",
        "python/tvm/contrib/cudnn.py",
        "softmax",
        "\ndef softmax(",
        '"tvm.contrib.cudnn.softmax.forward"',
        '"tvm.contrib.miopen.softmax.forward"',
    ),
    Change(
        "rms-norm-bias-by-identity",
        "python/tvm/relax/frontend/nn/modules.py",
        "RMSNorm.forward",
        "op.rms_norm(x, weight",
        "if self.bias:\n            out = op.add(out, self.bias)",
        "if self.bias is not None:\n            out = op.add(out, self.bias)  # ours",
    ),
    Change(
        "at-least-one-thread",
        "src/runtime/threading_backend.cc",
        "tvm::runtime::threading::MaxConcurrency()",
        "int MaxConcurrency() {",
        "max_concurrency = atoi(val);",
        "max_concurrency = std::max(1, atoi(val));",
    ),
    Change(
        "cache-folder-of-our-own",
        "src/runtime/file_utils.cc",
        "tvm::runtime::GetCacheDir()",
        "std::string GetCacheDir() {",
        'env_cache_dir) + "/tvm";',
        'env_cache_dir) + "/tvm-ours";',
    ),
)


def git(folder: Path, *words: str) -> str:
    """Run git as a fixed person; returns its output."""
    environment = neutral_environment(PERSON)
    command = ["git", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)
    return done.stdout.decode().strip()


class Carrying:
    """A fork of TVM in a folder of its own."""

    def __init__(self, clone: Path, folder: Path) -> None:
        self.clone, self.root = clone, folder / "fork"
        self.root.mkdir()
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")

    def run(self, *words: str, fail: bool = False) -> tuple[int, str]:
        """Exit code and output of a verb."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = forkpatch(["--root", str(self.root), *words])
        assert fail or code == 0, (words, out.getvalue())
        return code, out.getvalue()

    def commit_of(self, version: str) -> str:
        """The commit of a version's tag."""
        return git(self.clone, "rev-parse", f"refs/tags/v{version}^{{commit}}")

    def begin(self, version: str) -> None:
        """Make the fork, and its patches on a version."""
        include = sorted({change.path.rpartition("/")[0] for change in CHANGES})
        words = ["--name", "tvm", "--commit", self.commit_of(version), "--include", *include]
        self.run("init", str(self.clone), *words)
        self.run("apply", "--mirror", f"tvm={self.clone}")
        self.run("edit", "tvm")
        (tree,) = (path.parent for path in self.root.glob(".work/*/tvm/.git"))
        for change in CHANGES:
            path = tree / change.path
            path.write_text(change.made_in(path.read_text()))
            message = f"{change.name}\n\nTo be carried.\n\nUpstream-Status: Pending\nTest: x::y\n"
            git(tree, "commit", "-q", "-a", "-m", message)
        self.run("export")

    def move(self, old: str, new: str) -> list[str]:
        """Move the series; returns the reasons of its stops."""
        self.run("lock", "--add", f"tvm={new}", "--commit", self.commit_of(new))
        stops = []
        code, out = self.run("rebase", "tvm", new, "--from", old, fail=True)
        while code:
            stops.append(" ".join(out.split())[:150])
            assert len(stops) <= len(CHANGES), stops
            tree = self.root / ".work/rebase/tvm/tree"
            for path in git(tree, "diff", "--name-only", "--diff-filter=U").split():
                change = next(one for one in CHANGES if one.path == path)
                text = git(self.clone, "show", f"{self.commit_of(new)}:{path}") + "\n"
                (tree / path).write_text(change.made_in(text))
            code, out = self.run("rebase", "tvm", "--continue", fail=True)
        return stops

    def places(self, version: str) -> dict[str, str]:
        """The function of each change in the tree of a version."""
        target = self.root.parent / f"tree-{version}"
        releases = tomllib.loads((self.root / "VERSIONS.lock").read_text())["releases"]
        if version not in releases:
            with (self.root / "VERSIONS.lock").open("a") as file:
                file.write(f'\n[releases."{version}"]\ntvm = "{version}"\n')
        self.run("tree", "tvm", "--release", version, "--output", str(target))
        return {one.name: one.place((target / one.path).read_text()) for one in CHANGES}


def main(arguments: Sequence[str]) -> int:
    """Print the table; returns 1 when a change is not where it belongs."""
    clone, versions = Path(arguments[0]).resolve(), arguments[1:] or VERSIONS
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="releases-") as folder:
        carrying = Carrying(clone, Path(folder))
        carrying.begin(versions[0])
        pins: Any = json.loads(carrying.run("status", "--json", "-")[1])["upstreams"]
        names = [pins[0]["version"], *versions[1:]]
        for number, version in enumerate(names):
            began = time.process_time()
            stops = carrying.move(names[number - 1], version) if number else []
            spent = time.process_time() - began
            places = carrying.places(version)
            print(f"{version}: {len(stops)} stops, {spent:.1f} s of CPU of our own")
            for stop in stops:
                print(f"  stopped: {stop}")
            for change in CHANGES:
                place = places[change.name]
                right = place == change.symbol
                wrong += not right
                print(f"  {'right' if right else 'WRONG'} {change.name}: {place}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
