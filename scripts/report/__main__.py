# SPDX-License-Identifier: Apache-2.0
"""``python -m report``: write the page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from groundwork.command_line import Parser, output_file
from groundwork.errors import USER_MISTAKE
from groundwork.files import atomic_write
from report.page import render, sections


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, and print the missing parts; return the exit code."""
    parser = Parser(prog="report", description="One HTML page of all results.")
    parser.add_argument("--root", type=Path, default=Path(), help="the project (default: .)")
    parser.add_argument("--output", type=output_file, help="default: ROOT/out/report.html")
    args = parser.parse_args(argv)
    if not (args.root / "VERSIONS.lock").is_file():
        print(
            f"report: {args.root} holds no VERSIONS.lock\n"
            "  run it in the project's folder, or name that with --root",
            file=sys.stderr,
        )
        return USER_MISTAKE
    output: Path = args.output or args.root / "out" / "report.html"
    parts = sections(args.root)
    try:
        atomic_write(output, render(parts))
    except OSError as error:
        print(f"report: {output} cannot be written: {error}", file=sys.stderr)
        return USER_MISTAKE
    for part in parts:
        if part.why:
            print(f"missing: {part.title} ({part.why}); {part.command}")
    print(f"{output}: {len(parts)} sections, {sum(not p.why for p in parts)} with results")
    return 0


if __name__ == "__main__":
    sys.exit(main())
