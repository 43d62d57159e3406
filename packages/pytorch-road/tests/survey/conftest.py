# SPDX-License-Identifier: Apache-2.0
"""The survey of many models: each is right, or refused by name; a table has a row for each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.shared_builds import CACHE

from crosslab.errors import UserError

# Heads of the tables, by the property of a test with a row.
HEADS = {
    "survey": "| case | verdict | largest error | on kernels |",
    "ulp": "| VLEN | function | largest error, and its argument | torch on this CPU |",
}


@pytest.fixture
def passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a library for this machine, with the configuration of the passes."""
    from crosslab.assemble.kernels import KernelTarget, cached_kernels  # noqa: PLC0415
    from crosslab.compile.driver import LibraryRequest  # noqa: PLC0415
    from crosslab.compile.modes import ESTIMATE, KernelMode  # noqa: PLC0415

    request = LibraryRequest(
        form="shared",
        kernels=cached_kernels(KernelTarget.HOST, CACHE),
        # The attribute noalias slows LLVM down on this machine without a gain.
        steps=("-noalias",),
        mode=KernelMode(extras=(ESTIMATE,)),
    )
    for name, value in request.configure(tmp_path).items():
        monkeypatch.setenv(name, value)
    return tmp_path


@pytest.fixture
def survey(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Assert that a case is right, or refused if it should be, and add a row to the table."""

    def judge(case: Callable[[], Any], *, refused: bool = False) -> None:
        try:
            judged = case()
        except UserError as refusal:
            reason = refusal.what.strip().splitlines()[-1].rpartition(": ")[2].strip()
            record_property("survey", f"refused: {reason} | | ")
            assert refused, refusal.what
            return
        share = "" if judged.share is None else f"{judged.share:.1%}"
        verdict = "right" if judged.right else "wrong"
        record_property("survey", f"{verdict} | {judged.error:.1e} | {share}")
        assert judged.right, f"error {judged.error:.1e}; {judged.note}"
        assert not refused, "the case is right now; remove it from the refused ones"

    return judge


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the rows that tests recorded as tables in Markdown."""
    reports = [one for kind in ("passed", "failed") for one in terminalreporter.getreports(kind)]
    for table, head in HEADS.items():
        rows = [
            f"| {report.nodeid.partition('[')[2].removesuffix(']')} | {row} |"
            for report in reports
            for recorded, row in report.user_properties
            if recorded == table
        ]
        if rows:
            terminalreporter.section(table)
            rule = "|---" * (head.count("|") - 1) + "|"
            terminalreporter.write_line("\n".join([head, rule, *rows]))
        if rows and table == "survey":
            counts = Counter(re.split(" [|] |: ", row)[1] for row in rows)
            listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
            terminalreporter.write_line(f"{len(rows)} rows: {listed}")
