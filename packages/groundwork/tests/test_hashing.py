# SPDX-License-Identifier: Apache-2.0
"""Cache keys depend on content and relative paths alone."""

import hashlib
from pathlib import Path

from groundwork.hashing import digest, sha256_by_path, sha256_of


def make(folder: Path) -> Path:
    (folder / "sub" / "__pycache__").mkdir(parents=True)
    (folder / "b.txt").write_text("b")
    (folder / "sub" / "a.txt").write_text("a")
    (folder / "sub" / "__pycache__" / "a.pyc").write_text(str(folder))
    return folder


def test_a_folder_counts_with_its_content_and_not_its_place(tmp_path: Path) -> None:
    one, other = make(tmp_path / "one"), make(tmp_path / "other")
    assert digest(one, "x") == digest(other, "x")
    assert sha256_by_path(one) == {
        "b.txt": hashlib.sha256(b"b").hexdigest(),
        "sub/a.txt": sha256_of(one / "sub" / "a.txt"),
    }
    (other / "b.txt").rename(other / "c.txt")
    assert digest(one, "x") != digest(other, "x")


def test_parts_do_not_run_into_each_other() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("ab") == digest(b"ab") and len(digest("ab")) == 16
