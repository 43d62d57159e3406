# SPDX-License-Identifier: Apache-2.0
"""The pages about this project's own rebases say what is kept of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkpatch.model.fork import open_fork
from forkpatch.model.settings import load_settings
from forkpatch.rebase.result import RECORD_FILE, as_markdown, read_rebase_record

ROOT = Path(__file__).resolve().parents[3]
RECORDS = sorted((ROOT / "patches").glob(f"*/*/{RECORD_FILE}"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: "-".join(path.parts[-3:-1]))
def test_page_of_a_rebase_is_what_the_command_writes(path: Path) -> None:
    fork = open_fork(load_settings(ROOT))
    name, version = path.parts[-3:-1]
    upstream = fork.lock.upstream(name, version)
    series = [patch.name for patch in fork.series(upstream)]
    page = ROOT / "docs" / f"rebase-{name}-{version}.md"
    record = read_rebase_record(fork, upstream)
    assert page.read_text(encoding="utf-8") == as_markdown(upstream, record, series), (
        f"type: forkpatch rebase {name} {version} --report {page.relative_to(ROOT)}"
    )
    kept = {one.patch for one in record.patches if one.outcome != "dropped"}
    assert kept <= set(series)
