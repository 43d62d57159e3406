# SPDX-License-Identifier: Apache-2.0
"""Results that the page shows: the files of each part, and the command that writes them."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ResultFiles:
    """Result files of a part, and the nox session that writes them.

    Attributes:
        files: glob below the project's root; JSON, or CSV with a header.
        session: name of the session.
        options: options of the session.
    """

    files: str
    session: str
    options: str = ""

    @property
    def command(self) -> str:
        """The command to type."""
        return f"nox -s {self.session}{' -- ' if self.options else ''}{self.options}"


SOURCES = {
    "answer": ResultFiles("out/build_and_test.json", "build_and_test"),
    "status": ResultFiles("out/status.json", "report"),
    "record": ResultFiles("out/record.json", "report"),
    "necessity": ResultFiles(
        "out/necessity.json", "patches", "necessity --json out/necessity.json"
    ),
    "map": ResultFiles("out/map.json", "patches", "probe"),
    "bench": ResultFiles("out/bench.json", "bench"),
    "host": ResultFiles("out/host.json", "host_bench"),
    "zoo": ResultFiles("out/zoo.json", "zoo"),
    "cost": ResultFiles(
        "out/cost/*.csv", "cost", "--model smollm2 --scheme all --csv out/cost/smollm2.csv"
    ),
    "artefacts": ResultFiles("dist/*/*/*/MANIFEST.json", "build_and_test"),
}


@dataclass(frozen=True)
class Evidence:
    """The results of a part, or the reason why they are missing.

    Attributes:
        found: parsed files by path below the project's root; empty when missing.
        why: reason why the part is missing; empty for a present part.
        command: command that makes the part again.
    """

    found: dict[str, Any]
    why: str
    command: str

    @property
    def first(self) -> Any:
        """The content of a part's only file."""
        return next(iter(self.found.values()))


def gather(root: Path) -> dict[str, Evidence]:
    """Read every part's files below ``root``; an unreadable file makes its part missing."""
    return {name: _read(root, source) for name, source in SOURCES.items()}


def _read(root: Path, source: ResultFiles) -> Evidence:
    """Read the files of a part."""
    contents: dict[str, Any] = {}
    for path in sorted(root.glob(source.files)):
        name = path.relative_to(root).as_posix()
        try:
            contents[name] = _parsed(path)
        except (OSError, ValueError, csv.Error) as error:
            return Evidence({}, f"{name} cannot be read: {error}", source.command)
    why = "" if contents else f"{source.files}: not there"
    return Evidence(contents, why, source.command)


def _parsed(path: Path) -> Any:
    """Return the content of a JSON file, or the rows of a CSV file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".csv":
        return json.loads(text)
    rows = list(csv.DictReader(text.splitlines()))
    if not rows:
        raise ValueError("no rows")
    return rows
