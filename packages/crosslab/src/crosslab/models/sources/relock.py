# SPDX-License-Identifier: Apache-2.0
"""``crosslab lock``: look up the pinned models again; rewrite their hashes, or name differences."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import tomlkit

from crosslab.models.sources.asset import look_up
from crosslab.models.sources.pins import LOCK_NAME, read_pins
from groundwork.command_line import Parser
from groundwork.files import atomic_write

NOT_PINNED = ("name", "licence")


def main(argv: Sequence[str]) -> int:
    """Download every pinned model again, and write changed hashes into VERSIONS.lock.

    With ``--check``, write nothing; return 1 if a hash or version differs.

    Raises:
        LabError: a model cannot be downloaded.
    """
    parser = Parser(prog="crosslab lock", description=__doc__)
    parser.add_argument("--project", type=Path, default=Path())
    parser.add_argument("--check", action="store_true", help="change nothing; name differences")
    args = parser.parse_args(argv)
    path = args.project / LOCK_NAME
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    differs = False
    for name, pinned in read_pins(args.project).assets.items():
        with tempfile.TemporaryDirectory(prefix="asset-") as folder:
            current = asdict(look_up(pinned, Path(folder)))
        for field, value in asdict(pinned).items():
            if field not in NOT_PINNED and current[field] != value:
                differs = True
                print(f"model {name}: {field} is {current[field]}, pinned {value}")
                document["assets"][name][field] = current[field]
    if differs and not args.check:
        atomic_write(path, tomlkit.dumps(document))
    return 1 if differs and args.check else 0
