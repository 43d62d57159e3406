# SPDX-License-Identifier: Apache-2.0
"""Times and memory of forkpatch on large inputs.

    uv run --package forkpatch python packages/forkpatch/tests/sizes.py [CASE...]

Each case makes an upstream and a fork in a temporary folder and runs the verbs as processes.
Memory is the largest resident set of forkpatch itself or of one git process that it started.
``--engine DIR`` measures the engine of another checkout (its folder ``scripts``).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from forklab import FORMAT, PACKAGE, Repo, git, message

LIMIT = 280.0  # seconds


class Workshop:
    """An upstream, a fork of it, and a cache, in a folder of their own."""

    def __init__(self, folder: Path, files: Mapping[str, bytes], engine: Path) -> None:
        self.folder, self.engine = folder, engine
        self.repo = Repo.create(folder / "upstream", files)
        git(self.repo.path, "tag", "v1.0")
        self.root = folder / "fork"
        self.patches = self.root / "patches/big/1.0"
        self.patches.mkdir(parents=True)
        tops = sorted({name.partition("/")[0] for name in files})
        (self.root / "VERSIONS.lock").write_text(
            'default-release = "r1"\n[releases.r1]\nbig = "1.0"\n'
            f'[upstreams.big]\nurl = "{self.repo.path}"\n'
            f'[upstreams.big.versions."1.0"]\ntag = "v1.0"\ncommit = "{self.repo.head}"\n'
            f"include = {tops}\ntree = ''\n"
        )

    def add_patch(self, name: str, files: Mapping[str, bytes]) -> None:
        """Commit ``files`` in the upstream's repository, and add the commit to the series."""
        self.repo.commit(files, message(name))
        with (self.patches / name).open("wb") as target:
            command = ["git", "format-patch", *FORMAT, "-1", "--stdout"]
            subprocess.run(command, cwd=self.repo.path, stdout=target, check=True)
        with (self.patches / "series").open("a") as series:
            series.write(f"{name}\n")

    def run(self, *args: str) -> None:
        """Run a verb; print its seconds, seconds of CPU, largest resident set and exit code."""
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "forkpatch", "--root", str(self.root), *args],
            env={
                **os.environ,
                "PYTHONPATH": str(self.engine),
                "XDG_CACHE_HOME": str(self.folder / "cache"),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        size, ended = 0, 0
        while not ended:
            size = max(size, _resident(process.pid))
            if time.monotonic() - start > LIMIT:
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.02)
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
        process.returncode = os.waitstatus_to_exitcode(status)
        spent, cpu = time.monotonic() - start, used.ru_utime + used.ru_stime
        code = "over the limit" if process.returncode < 0 else f"exit {process.returncode}"
        times = f"{spent:8.2f} s {cpu:8.2f} s of CPU"
        print(f"  {' '.join(args):16} {times} {size / 1e6:8.0f} MB   {code}", flush=True)


def _resident(pid: int) -> int:
    """Largest resident set so far, in bytes, of a process or one of its children."""
    sizes = [0]
    try:
        tasks = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for one in (str(pid), *tasks):
            text = Path(f"/proc/{one}/status").read_text()
            sizes += [int(part.split()[0]) << 10 for part in text.split("VmHWM:")[1:]]
    except OSError:
        pass
    return max(sizes)


def hunks(folder: Path, engine: Path, count: int = 100_000) -> None:
    """A patch of 100,000 hunks in one file."""
    lines = [f"    value_{n % 97} = step(value_{n % 89}, {n})\n" for n in range(8 * count)]
    lines[::40] = [f"def function_{n}(value_0):\n" for n in range(len(lines[::40]))]
    before = "".join(lines).encode()
    for at in range(4, len(lines), 8):
        lines[at] = lines[at].replace("step", "leap")
    for suffix in ("py", "c"):
        shop = Workshop(folder / suffix, {f"src/big.{suffix}": before}, engine)
        shop.add_patch("many.patch", {f"src/big.{suffix}": "".join(lines).encode()})
        print(f"{count} hunks in one file of {len(lines)} lines, .{suffix}", flush=True)
        for verb in ("lock", "apply", "record", "check"):
            shop.run(verb)


def pins(folder: Path, engine: Path, count: int = 30_000) -> None:
    """``lock`` on 30,000 files, and again with nothing changed."""
    files = {f"src/d{n % 300}/f{n}.c": b"int x%d;\n" % n * 40 for n in range(count)}
    shop = Workshop(folder / "pins", files, engine)
    print(f"an upstream of {count} files", flush=True)
    for verb in ("lock", "lock", "apply", "apply"):
        shop.run(verb)


def line(folder: Path, engine: Path, size: int = 100_000_000) -> None:
    """A line of 100 MB that a patch changes."""
    data = b"0123456789abcde," * (size // 16)
    text = b"int before;\n" * 20 + data + b"\n" + b"int after;\n" * 20
    shop = Workshop(folder / "line", {"src/data.c": text}, engine)
    shop.add_patch("line.patch", {"src/data.c": text.replace(b"0123456789", b"9876543210", 1)})
    print(f"a line of {size // 1_000_000} MB, changed by a patch", flush=True)
    for verb in ("lock", "apply", "check"):
        shop.run(verb)


def patches(folder: Path, engine: Path, count: int = 40, files: int = 30_000) -> None:
    """A rebase of 40 clean patches on 30,000 files, and ``git rebase`` of the same commits."""
    text = "".join(
        f"int f{n}(int a)\n{{\n    a += {n};\n    return a * {n};\n}}\n\n" for n in range(8)
    )
    names = [f"src/d{n % 300}/f{n}.c" for n in range(files)]
    shop = Workshop(folder / "patches", dict.fromkeys(names, text.encode()), engine)
    for number in range(count):
        name = names[number * (files // count)]
        shop.add_patch(f"p{number}.patch", {name: text.replace("a * 4", f"a * 4{number}").encode()})
    git(shop.repo.path, "checkout", "-q", "-b", "patched")
    git(shop.repo.path, "checkout", "-q", "--detach", "v1.0")
    new = f"/* new */\n{text}".encode()
    shop.repo.commit(dict.fromkeys(names[::3], new), "Version 2.0")
    git(shop.repo.path, "tag", "v2.0")
    print(f"{count} clean patches on {files} files", flush=True)
    shop.run("lock")
    shop.run("lock", "--add", "big=2.0")
    shop.run("rebase", "big", "2.0")
    git(shop.repo.path, "checkout", "-q", "patched")
    start, used = time.monotonic(), os.times()
    git(shop.repo.path, "rebase", "-q", "--onto", "v2.0", "v1.0", "patched")
    now = os.times()
    cpu = now.children_user + now.children_system - used.children_user - used.children_system
    print(f"  git rebase       {time.monotonic() - start:8.2f} s {cpu:8.2f} s of CPU", flush=True)


CASES: dict[str, Callable[[Path, Path], None]] = {
    "hunks": hunks,
    "pins": pins,
    "line": line,
    "patches": patches,
}


def main() -> None:
    """Run the cases that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--engine", type=Path, default=PACKAGE / "src", metavar="DIR")
    options = parser.parse_args()
    for name in options.cases or CASES:
        with tempfile.TemporaryDirectory(prefix="forkpatch-sizes-") as folder:
            CASES[name](Path(folder), options.engine.resolve())


if __name__ == "__main__":
    main()
