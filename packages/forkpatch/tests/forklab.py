# SPDX-License-Identifier: Apache-2.0
"""Throw-away upstreams and forks for the engine's tests: real git repositories and wheels."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forkpatch.cli.main import main
from forkpatch.git.calls import neutral_environment
from groundwork.hashing import sha256_of

PACKAGE = Path(__file__).resolve().parents[1]
AUTHOR = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_AUTHOR_DATE": "2026-01-02T03:04:05+0200",
    "GIT_COMMITTER_DATE": "2026-01-02T03:04:05+0200",
}
FORMAT = ("--zero-commit", "--full-index", "--no-signature", "--no-stat", "-N")
WHEEL_NAME = "calc-1.0-py3-none-any.whl"

CORE = b"""def add(a, b):
    check(a)
    check(b)
    return a + b


def sub(a, b):
    check(a)
    check(b)
    return a - b


def mul(a, b):
    check(a)
    check(b)
    return a * b


def check(a):
    if a is None:
        raise ValueError(a)
"""
FILES: dict[str, bytes] = {
    "LICENSE": b"free\n",
    "README.md": b"outside the included paths\n",
    "python/calc/__init__.py": b"from calc.core import add, mul, sub\n",
    "python/calc/core.py": CORE,
    "python/calc/dos.py": b"A = 1\r\nB = 2\r\nC = 3\r\n",
    "python/calc/tail.py": b"X = 1\nY = 2",
    "python/calc/tool.sh": b"#!/bin/sh\nexit 0\n",
    "src/gpu.cu": b"excluded\n",
    "src/run.c": b"int run(void)\n{\n    return 0;\n}\n",
}
EXECUTABLE = "python/calc/tool.sh"


def start(root: Path, *words: str) -> int:
    """Start a verb in a process of its own, silently; returns its id.

    A traceback ends in exit code 3, which no verb has.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 3
    try:
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        code = main(["--root", str(root), *words])
    finally:
        os._exit(code)


def wait_for_git(root: Path) -> None:
    """Wait until no git process of a killed run holds the fork any more."""
    for path in root.glob(".work/.forkpatch.lock"):
        with path.open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)


def git(folder: Path, *args: str, stdin: bytes = b"", **env: str) -> str:
    """Run git as a fixed person, deaf to this machine's configuration."""
    environment = neutral_environment({**AUTHOR, "GIT_ALLOW_PROTOCOL": "file", **env})
    done = subprocess.run(
        ["git", "-c", "init.defaultBranch=main", *args],
        cwd=folder,
        env=environment,
        input=stdin,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")


class Link(bytes):
    """The target of a symbolic link."""


@dataclass
class Repo:
    """An upstream's git repository."""

    path: Path

    @classmethod
    def create(cls, path: Path, files: Mapping[str, bytes]) -> Repo:
        path.mkdir(parents=True)
        git(path, "init", "-q")
        (path / ".git" / "info").mkdir(exist_ok=True)
        (path / ".git" / "info" / "attributes").write_text("* -text\n")
        repo = cls(path)
        repo._commit(files, "Begin")
        return repo

    def commit(self, files: Mapping[str, bytes | None], message: str) -> str:
        self._commit(files, message)
        return self.head

    def _commit(self, files: Mapping[str, bytes | None], message: str) -> None:
        for name, data in files.items():
            target = self.path / name
            if target.is_symlink() or data is None:
                target.unlink()
            if data is None:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(data, Link):
                target.unlink(missing_ok=True)
                target.symlink_to(os.fsdecode(data))
                continue
            target.write_bytes(data)
            if name.endswith(".sh"):
                target.chmod(0o755)
        git(self.path, "add", "-A")
        git(self.path, "commit", "-q", "--allow-empty", "-m", message)

    @property
    def head(self) -> str:
        return git(self.path, "rev-parse", "HEAD")

    def patch(self, files: Mapping[str, bytes | None], message: str) -> bytes:
        """Commit ``files`` and export the commit as the fork's patches are exported."""
        self._commit(files, message)
        out = git(self.path, "format-patch", *FORMAT, "-1", "--stdout")
        return out.encode("utf-8", "surrogateescape") + b"\n"


def message(subject: str, test: str = "tests/test_x.py::test_x") -> str:
    return f"{subject}\n\nBecause it matters.\n\nUpstream-Status: Pending\nTest: {test}\n"


def make_wheel(folder: Path, files: Mapping[str, bytes], name: str = WHEEL_NAME) -> Path:
    """A wheel of package ``calc`` that holds ``files`` (by their path in git)."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for git_path, data in files.items():
            if git_path == "README.md":
                continue
            archive.writestr(wheel_member(git_path), data)
        archive.writestr("calc/_version.py", b"version = '1.0'\n")
        archive.writestr("calc/lib/native.so", b"\x7fELF")
        version = name.split("-")[1]
        info = f"calc-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: calc\nVersion: {version}\n"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def wheel_member(git_path: str) -> str:
    inside = git_path.removeprefix("python/calc/")
    return f"calc/{inside}"


@dataclass(frozen=True)
class Run:
    """Exit code and output of one run of the command line."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class ForkLab:
    """A fork of ``calc`` 1.0, an upstream repository, and an empty cache of its own."""

    root: Path
    home: Path
    repo: Repo
    capsys: pytest.CaptureFixture[str] | None = None

    @property
    def patches(self) -> Path:
        return self.root / "patches" / "calc" / "1.0"

    @property
    def overlays(self) -> Path:
        return self.root / "overlays" / "calc"

    @property
    def tree(self) -> Path:
        return self.root / ".work" / "r1" / "calc"

    def run(self, *args: str) -> Run:
        if self.capsys is None:
            return Run(main(["--root", str(self.root), *args]), "", "")
        self.capsys.readouterr()
        code = main(["--root", str(self.root), *args])
        captured = self.capsys.readouterr()
        return Run(code, captured.out, captured.err)

    def ok(self, *args: str) -> Run:
        done = self.run(*args)
        assert done.code == 0, done.err + done.out
        return done

    def spawn(self, *args: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "forkpatch", "--root", str(self.root), *args]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def write_lock(
        self, *, wheel: Path | None = None, optional: bool = False, url: str = "", tag: str = "v1.0"
    ) -> None:
        """Write a lock without hashes; the verb ``lock`` fills them in."""
        text = f"""# kept comment
default-release = "r1"
[python]
pins = ["x==1"]
[releases.r1]
calc = "1.0"
[upstreams.calc]
url = "{url or self.repo.path}"
optional = {str(optional).lower()}
[upstreams.calc.versions."1.0"]
tag = "{tag}"
commit = "{self.repo.head}"
include = ["python/calc", "src", "LICENSE"]
exclude = ["src/*.cu"]
tree = ""
"""
        if wheel:
            text += f"""[upstreams.calc.versions."1.0".wheel]
package = "calc"
version = "1.0"
exclude = ["python/calc/_version.py", "python/calc/lib/*"]
map = {{ "calc/src" = "src", "calc/LICENSE" = "LICENSE", "calc" = "python/calc" }}
files = [{{ name = "{wheel.name}", sha256 = "{sha256_of(wheel)}" }}]
"""
        (self.root / "VERSIONS.lock").write_text(text)

    def locked(self, **options: Any) -> None:
        """Write a lock and let the engine fill in its hashes, from the repository."""
        self.write_lock(**options)
        self.ok("lock", "--mirror", f"calc={self.repo.path}")

    def edit_lock(self, old: str, new: str) -> None:
        path = self.root / "VERSIONS.lock"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def forget(self, *, mirrors: bool = True) -> None:
        """Empty the cache."""
        for path in sorted(self.cache.rglob("*"), reverse=True):
            if path.name == "mirrors.json" and not mirrors:
                continue
            path.rmdir() if path.is_dir() and not any(path.iterdir()) else None
            path.unlink() if path.is_file() else None

    @property
    def cache(self) -> Path:
        return self.home / "cache" / "forkpatch" / "forkpatch"

    def add_patch(self, name: str, data: bytes) -> None:
        self.patches.mkdir(parents=True, exist_ok=True)
        (self.patches / name).write_bytes(data)
        with (self.patches / "series").open("a") as series:
            series.write(f"{name}\n")

    def change(self, name: str, edits: Mapping[str, bytes | None], **options: str) -> None:
        """Add a patch that gives files these contents, on top of the patches before."""
        self.add_patch(name, self.repo.patch(edits, message(options.get("subject", name))))


def core(**bodies: str) -> bytes:
    """CORE with the ``return`` lines of some functions replaced."""
    text = CORE.decode()
    for name, body in bodies.items():
        sign = {"add": "+", "sub": "-", "mul": "*"}[name]
        text = text.replace(f"    return a {sign} b\n", f"    return {body}\n")
    return text.encode()


def copy_of(template: Path, folder: Path, patch: pytest.MonkeyPatch) -> ForkLab:
    """A copy of the template's upstream, fork and cache, with a cache of its own."""
    for name in ("upstream", "fork", "home/cache"):
        shutil.copytree(template / name, folder / name, symlinks=True)
    patch.setenv("XDG_CACHE_HOME", str(folder / "home/cache"))
    lab = ForkLab(folder / "fork", folder / "home", Repo(folder / "upstream"))
    for path in (lab.root / "VERSIONS.lock", lab.cache / "mirrors.json"):
        path.write_text(path.read_text().replace(str(template), str(folder)))
    return lab
