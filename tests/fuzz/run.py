# SPDX-License-Identifier: Apache-2.0
"""Fuzz the readers for as long as asked: ``python tests/fuzz/run.py --seconds 600``.

With atheris installed half of the search is guided by coverage; without it, all of it changes the
corpus at random.
What a reader fails on is kept under out/fuzz.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import mutate
import native_run
import targets

from crosslab.cached_build import default_cache
from crosslab.errors import LabError
from crosslab.host.toolchain import find_native

CORPUS = Path(__file__).parent / "corpus"
COVERAGE_GUIDED = Path(__file__).with_name("coverage_guided.py")
OUT = Path("out/fuzz")
TAIL = 40  # lines of a failed search that are shown


def seeds_of(name: str) -> list[bytes]:
    """The kept files of a target."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def search(name: str, seconds: float, seed: int) -> Counter[str]:
    """Give a target changed seeds for a while; what it failed on, and how often."""
    seeds, source, found = seeds_of(name), random.Random(f"{name}{seed}"), Counter[str]()
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = mutate.mutated(seeds, source)
        count += 1
        try:
            targets.call(name, data)
        except targets.EscapedError as error:
            cause = error.__cause__ or error
            trace = traceback.extract_tb(cause.__traceback__)
            place = next((f for f in reversed(trace) if "/crosslab/" in f.filename), trace[-1])
            key = f"{type(cause).__name__} at {Path(place.filename).name}:{place.lineno}"
            if not found[key]:
                OUT.mkdir(parents=True, exist_ok=True)
                (OUT / f"{name}-{len(found)}").write_bytes(data)
                print(f"{name}: {key}: {str(cause)[:200]}", flush=True)
            found[key] += 1
    print(f"{name}: {count} inputs, {len(found)} findings", flush=True)
    return found


def main(argv: Sequence[str]) -> int:
    """Fuzz every target, or the named ones; 1 when one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help="names (all)")
    parser.add_argument("--seconds", type=float, default=60, help="for each target (60)")
    parser.add_argument("--seed", type=int, default=0, help="of the random changes")
    args = parser.parse_args(argv)
    unknown = sorted(set(args.targets) - set(targets.TARGETS))
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(targets.TARGETS)}")
    names = args.targets or list(targets.TARGETS)
    guided = importlib.util.find_spec("atheris") is not None
    seconds = args.seconds / 2 if guided else args.seconds
    with targets.bounded_memory():
        failed = [name for name in names if search(name, seconds, args.seed)]
    if not guided:
        print("no coverage-guided search: atheris is not installed")
    for name in names if guided else ():
        command = [sys.executable, str(COVERAGE_GUIDED), name, str(OUT), str(seconds)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if not said(f"{name}, coverage-guided", done):
            failed.append(name)
    # Outside of the bound: the sanitizers reserve terabytes of address space for their shadow.
    if not args.targets:
        failed += native(args.seconds)
    return 1 if failed else 0


def said(name: str, done: subprocess.CompletedProcess[str]) -> bool:
    """Tell how a search by libFuzzer ended; whether it found nothing."""
    lines = done.stderr.strip().splitlines() or ["it said nothing"]
    last = next((line for line in reversed(lines) if line.startswith("Done ")), lines[-1])
    print(f"{name}: {last}", flush=True)
    if done.returncode != 0:
        print("\n".join(lines[-TAIL:]), flush=True)
    return done.returncode == 0


def native(seconds: float) -> list[str]:
    """The runner's own readers and its server; the names of those that failed."""
    try:
        files = native_run.build(find_native(), default_cache())
        server = native_run.build(find_native(), default_cache(), server=True)
    except (LabError, subprocess.CalledProcessError) as error:
        print(f"the runner's readers are left out: no libFuzzer here ({error})")
        return []
    failed = []
    programs = dict.fromkeys(native_run.NAMES, files)
    programs |= dict.fromkeys(native_run.SERVER_NAMES, server)
    for name, program in programs.items():
        done = native_run.search(program, name, OUT.resolve(), f"-max_total_time={seconds:.0f}")
        if not said(f"runner-{name}", done):
            failed.append(f"runner-{name}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
