# SPDX-License-Identifier: Apache-2.0
"""What the page is made from: one JSON file a part, and the command that makes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Source:
    """Where a part's facts come from.

    Attributes:
        files: below the project's root; globs are allowed.
        command: what to type to make them.
    """

    files: tuple[str, ...]
    command: str


SOURCES = {
    "answer": Source(("out/build_and_test.json",), "nox -s build_and_test"),
    "status": Source(("out/status.json",), "nox -s report"),
    "symbols": Source(("out/symbols.json",), "nox -s report"),
    "necessity": Source(
        ("out/necessity.json",), "nox -s patches -- necessity --json out/necessity.json"
    ),
    "map": Source(("out/map.json",), "nox -s patches -- probe"),
    "bench": Source(("out/bench.json",), "nox -s bench"),
    "host": Source(("out/host.json",), "nox -s host_bench"),
    "zoo": Source(("out/zoo.json",), "nox -s zoo"),
    "artefacts": Source(("dist/*/*/*/MANIFEST.json",), "nox -s package"),
}


@dataclass(frozen=True)
class Evidence:
    """The facts of one part, or why there are none.

    Attributes:
        found: the parsed files by their path below the project's root; empty when missing.
        why: said in place of a missing part; empty when it is there.
        command: makes the part anew.
    """

    found: dict[str, Any]
    why: str
    command: str

    @property
    def first(self) -> Any:
        """The facts of a part that is one file."""
        return next(iter(self.found.values()))


def gather(root: Path) -> dict[str, Evidence]:
    """Read every part's files below ``root``; a file that cannot be read makes its part missing."""
    return {name: _read(root, source) for name, source in SOURCES.items()}


def unusable(evidence: Evidence, why: str) -> Evidence:
    """The same part, missing after all: its files do not hold what the page shows."""
    return Evidence({}, f"{', '.join(evidence.found)}: {why}", evidence.command)


def _read(root: Path, source: Source) -> Evidence:
    found: dict[str, Any] = {}
    for pattern in source.files:
        for path in sorted(root.glob(pattern)):
            name = path.relative_to(root).as_posix()
            try:
                found[name] = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                return Evidence({}, f"{name} cannot be read: {error}", source.command)
    why = "" if found else f"{', '.join(source.files)}: not there"
    return Evidence(found, why, source.command)
