# SPDX-License-Identifier: Apache-2.0
"""A quilt series of another project, imported, rebased and exported."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from forklab import CORE, FILES, ForkLab, core, git

from forkpatch.model.patchfile import read_patch

CORE_PATH = "python/calc/core.py"
DEP3 = """Description: Turn the subtraction round
 It was the wrong way for our boards.
Author: Eva Ő <eva@example.org>
Forwarded: https://example.org/pull/7
"""


def quilt(path: str, old: bytes, new: bytes, prefix: str = "calc.orig/") -> str:
    lines = difflib.unified_diff(
        old.decode().splitlines(keepends=True),
        new.decode().splitlines(keepends=True),
        f"{prefix}{path}",
        f"calc/{path}",
    )
    return "".join(lines)


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A series in quilt's layout: DEP-3 heads, comments, -p options, an offset, a new file."""
    folder = tmp_path / "debian/patches"
    (folder / "sub").mkdir(parents=True)
    turned = core(sub="b - a")
    first = f"{DEP3}---\nIndex: calc/{CORE_PATH}\n{'=' * 60}\n{quilt(CORE_PATH, CORE, turned)}"
    (folder / "01-turn.patch").write_text(first)
    zeroed = core(sub="b - a", mul="0")
    second = quilt(CORE_PATH, turned, zeroed).replace("@@ -13,7 +13,7 @@", "@@ -11,7 +11,7 @@")
    (folder / "sub/zero.diff").write_text(f"Give zero\n\nNobody multiplies.\n\n{second}")
    made = "Forwarded: not-needed\n\n--- /dev/null\n+++ x/y/src/new.c\n@@ -0,0 +1 @@\n+int n;\n"
    (folder / "02_new-file.patch").write_text(made)
    (folder / "series").write_text(
        "# ours\n01-turn.patch\nsub/zero.diff -p1 # offset\n\n02_new-file.patch -p2\n"
    )
    return folder


def test_import_then_rebase_then_export(lab: ForkLab, foreign: Path) -> None:
    done = lab.ok("import-series", "calc", str(foreign), "--json", "-").json
    assert done["patches"] == ["turn.patch", "zero.patch", "new-file.patch"]
    assert len(done["shifted"]) == 1 and done["shifted"][0].endswith("is at line 13")
    lab.ok("apply")
    assert (lab.tree / CORE_PATH).read_bytes() == core(sub="b - a", mul="0")
    assert (lab.tree / "src/new.c").read_bytes() == b"int n;\n"
    assert lab.ok("export", "--check").out == "calc 1.0: 3 patches, unchanged\n"
    turn = read_patch(lab.patches / "turn.patch")
    assert turn.author == "Eva Ő <eva@example.org>"
    assert turn.subject == "Turn the subtraction round"
    assert "wrong way for our boards" in turn.message
    assert turn.trailer("Upstream-Status") == "Submitted [https://example.org/pull/7]"
    zero = read_patch(lab.patches / "zero.patch")
    assert "Nobody multiplies." in zero.message
    made = read_patch(lab.patches / "new-file.patch")
    assert made.trailer("Upstream-Status") == "Inappropriate [not needed upstream]"
    assert made.subject == "New file"

    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    commit = lab.repo.commit({CORE_PATH: b"import os\n" + CORE}, "Move on")
    with (lab.root / "VERSIONS.lock").open("a") as lock:
        lock.write(
            f'\n[upstreams.calc.versions."2.0"]\ncommit = "{commit}"\n'
            'include = ["python/calc", "src", "LICENSE"]\nexclude = ["src/*.cu"]\n'
        )
    lab.ok("lock")
    lab.ok("rebase", "calc", "2.0")
    lab.edit_lock('calc = "1.0"', 'calc = "2.0"')
    lab.ok("apply")
    assert (lab.tree / CORE_PATH).read_bytes() == b"import os\n" + core(sub="b - a", mul="0")
    assert lab.ok("export", "--check").out == "calc 2.0: 3 patches, unchanged\n"


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("    return a - b", "    return a : b", "its lines are not there"),
        (" def sub(a, b):\n", "", "malformed diff"),
        ("calc/python", "calc/../../python", "refused path"),
    ],
)
def test_import_is_all_or_nothing(
    lab: ForkLab, foreign: Path, old: str, new: str, word: str
) -> None:
    path = foreign / "01-turn.patch"
    path.write_text(path.read_text().replace(old, new))
    done = lab.run("import-series", "calc", str(foreign))
    assert done.code == 2
    assert word in done.err
    assert not (lab.root / "patches").exists()


def test_hunk_that_fits_in_two_places_is_not_guessed(lab: ForkLab, tmp_path: Path) -> None:
    folder = tmp_path / "series-folder"
    folder.mkdir()
    text = (
        f"--- a/{CORE_PATH}\n+++ b/{CORE_PATH}\n@@ -1,2 +1,3 @@\n     check(a)\n+    log(a)\n"
        "     check(b)\n"
    )
    (folder / "log.patch").write_text(text)
    (folder / "series").write_text("log.patch\n")
    done = lab.run("import-series", "calc", str(folder))
    assert done.code == 2
    assert "there are 3 places" in done.err


def test_import_beside_a_series_or_from_nothing_is_refused(lab: ForkLab, tmp_path: Path) -> None:
    done = lab.run("import-series", "calc", str(tmp_path))
    assert done.code == 2 and "neither a series nor patches" in done.err
    lab.change("a.patch", {"src/run.c": FILES["src/run.c"] + b"\n"})
    done = lab.run("import-series", "calc", str(tmp_path))
    assert done.code == 2 and "exists" in done.err


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ({"series": b""}, "it lists no patch"),
        ({"series": b"", "a.patch": b"x"}, "a.patch: series does not list it"),
        ({"series": b"a.patch\n", "a.patch": b"\xff\0\1"}, "a.patch: it holds no diff"),
    ],
)
def test_import_of_nothing_is_refused_and_leaves_nothing(
    lab: ForkLab, foreign: Path, tmp_path: Path, files: dict[str, bytes], word: str
) -> None:
    folder = tmp_path / "nothing"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    done = lab.run("import-series", "calc", str(folder))
    assert done.code == 2
    assert f"{folder}: nothing to import: {word}" in done.err
    assert not (lab.root / "patches").exists()
    lab.ok("import-series", "calc", str(foreign))


def test_files_that_the_series_does_not_list_are_named(lab: ForkLab, foreign: Path) -> None:
    (foreign / "sub/old.patch").write_text("nothing\n")
    done = lab.ok("import-series", "calc", str(foreign))
    assert "left out: sub/old.patch: series does not list it; an export gives it back\n" in done.out
    assert done.out.count("left out") == 1


def test_name_with_a_space_in_a_list_is_told_as_such(lab: ForkLab, foreign: Path) -> None:
    (foreign / "01-turn.patch").rename(foreign / "the turn.patch")
    (foreign / "series").write_text("the turn.patch\n")
    done = lab.run("import-series", "calc", str(foreign))
    assert done.code == 2
    assert "series:1: turn.patch after the name of a patch is not an option" in done.err
    assert "a name cannot have a space here" in done.err


def test_files_that_the_series_does_not_list_travel_with_it(lab: ForkLab, foreign: Path) -> None:
    (foreign / "sub/old.patch").write_text("nothing\n")
    (foreign / "README.Debian").write_bytes(b"\xff\0")
    (foreign / "link").symlink_to("series")
    done = lab.ok("import-series", "calc", str(foreign))
    assert "left out: link: series does not list it; it is a link\n" in done.out
    back = lab.root / "back"
    lab.ok("export", "calc", "--format", "quilt", "--output", str(back))
    for name in ("sub/old.patch", "README.Debian", "series"):
        assert (back / name).read_bytes() == (foreign / name).read_bytes()
    assert not (back / "link").exists()


@pytest.mark.parametrize(
    ("head", "word"),
    [
        ("From: A\0da <ada@example.org>\nDate: Fri, 2 Jan 2026", "holds a NUL"),
        ("From: Ada <ada@example.org>\nDate: Fri, 2 Jan 1959", "git has no dates before 1970"),
        ("From: Ada <ada@example.org>\nDate: Fri, 2 Jan " + "9" * 20, "the date 'Fri, 2 Jan 999"),
    ],
)
def test_author_and_date_that_git_cannot_write_are_named_by_file(
    lab: ForkLab, tmp_path: Path, head: str, word: str
) -> None:
    (tmp_path / "q").mkdir()
    (tmp_path / "q/series").write_text("a.patch\n")
    diff = "--- a/LICENSE\n+++ b/LICENSE\n@@ -1 +1 @@\n-free\n+freer\n"
    patch = f"{head} 03:04:05 +0200\nSubject: [PATCH] Free it\n\nWhy.\n---\n{diff}"
    (tmp_path / "q/a.patch").write_text(patch)
    done = lab.run("import-series", "calc", str(tmp_path / "q"))
    assert done.code == 2
    assert f"{tmp_path}/q/a.patch: " in done.err and word in done.err
    assert not lab.patches.exists()


def test_numbered_files_are_in_the_order_of_their_numbers(lab: ForkLab, tmp_path: Path) -> None:
    folder = tmp_path / "numbered"
    folder.mkdir()
    body = CORE
    for number in range(1, 12):
        old, body = body, b"# %d\n" % number + body
        (folder / f"{number}-c.patch").write_text(quilt(CORE_PATH, old, body))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    lab.ok("import-series", "calc", str(folder))
    lab.ok("apply")
    assert (lab.tree / CORE_PATH).read_bytes() == body
    lab.ok("export", "calc", "--format", "format-patch", "--output", str(tmp_path / "out"))
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_repository_of_a_series_stays_behind(lab: ForkLab, foreign: Path) -> None:
    git(foreign, "init", "-q")
    (foreign / "sub/.hg").mkdir()
    (foreign / "sub/.hg/store").write_text("x\n")
    lab.ok("import-series", "calc", str(foreign))
    names = {path.name for path in (lab.patches / "origin/files").rglob("*")}
    assert "01-turn.patch" in names and not names & {".git", ".hg"}
