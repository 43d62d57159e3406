# SPDX-License-Identifier: Apache-2.0
"""Trees with some of the patches; dependencies follow from the lines themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from forklab import CORE, ForkLab, core

PATH = "python/calc/core.py"


@pytest.fixture
def three(lab: ForkLab) -> ForkLab:
    """Patches on add (which makes the file longer), on sub, and on what the first one added."""
    longer = core(add="total(\n        a,\n        b,\n    )")
    lab.change("long.patch", {PATH: longer})
    both = longer.replace(b"return a - b", b"return b - a")
    lab.change("turn.patch", {PATH: both})
    lab.change("swap.patch", {PATH: both.replace(b"        a,\n", b"        c,\n")})
    lab.overlays.mkdir(parents=True)
    (lab.overlays / "extra.py").write_text("E = 1\n")
    return lab


def variant(lab: ForkLab, *args: str) -> tuple[bytes, bool]:
    out = lab.home / "variant"
    lab.ok("tree", "calc", *args, "--output", str(out))
    return (out / PATH).read_bytes(), (out / "extra.py").exists()


def test_patch_is_taken_out_from_under_one_that_it_shifts(three: ForkLab) -> None:
    found, overlay = variant(three, "--without", "long", "swap.patch")
    assert found == core(sub="b - a")
    assert overlay


def test_only_upto_and_pristine(three: ForkLab, tmp_path: Path) -> None:
    cases = {
        ("--only", "turn"): (core(sub="b - a"), True),
        ("--upto", "long"): (core(add="total(\n        a,\n        b,\n    )"), True),
        ("--upto", "long", "--no-overlays"): (
            core(add="total(\n        a,\n        b,\n    )"),
            False,
        ),
        ("--pristine",): (CORE, False),
    }
    for number, (args, (data, overlay)) in enumerate(cases.items()):
        out = tmp_path / str(number)
        three.ok("tree", "calc", *args, "--output", str(out))
        assert (out / PATH).read_bytes() == data
        assert (out / "extra.py").exists() is overlay


def test_patch_that_needs_a_missing_one_is_named(three: ForkLab, tmp_path: Path) -> None:
    done = three.run("tree", "calc", "--without", "long", "--output", str(tmp_path / "v"))
    assert done.code == 2
    assert "swap.patch cannot be without a patch that is left out" in done.err
    assert "--without swap.patch" in done.err
    done = three.run("tree", "calc", "--only", "swap", "--output", str(tmp_path / "v"))
    assert done.code == 2
    assert "take as well: --only long.patch swap.patch" in done.err
    assert not (tmp_path / "v").exists()


def test_output_that_is_not_empty_is_refused(three: ForkLab, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("")
    done = three.run("tree", "calc", "--pristine", "--output", str(tmp_path / "full"))
    assert done.code == 2
    assert "not empty" in done.err


def test_patch_on_a_file_that_another_makes_or_moves_needs_it(lab: ForkLab, tmp_path: Path) -> None:
    lab.change("make.patch", {"python/calc/new.py": b"A = 1\nB = 2\n"})
    lab.change("edit.patch", {"python/calc/new.py": b"A = 1\nB = 3\n"})
    lab.change("free.patch", {"src/run.c": b"int run(void)\n{\n    return 5;\n}\n"})
    done = lab.run("tree", "calc", "--without", "make", "--output", str(tmp_path / "v"))
    assert done.code == 2 and "edit.patch cannot be without" in done.err
    lab.ok("tree", "calc", "--only", "free", "--output", str(tmp_path / "w"))
    assert not (tmp_path / "w/python/calc/new.py").exists()


def test_line_put_where_another_patch_removed_one_needs_it(lab: ForkLab, tmp_path: Path) -> None:
    lines = CORE.splitlines(keepends=True)
    without = b"".join(lines[:1] + lines[2:])  # check(a) of add is gone
    lab.change("cut.patch", {PATH: without})
    put = without.splitlines(keepends=True)
    put.insert(1, b"    log(a)\n")
    lab.change("put.patch", {PATH: b"".join(put)})
    done = lab.run("tree", "calc", "--without", "cut", "--output", str(tmp_path / "v"))
    assert done.code == 2 and "put.patch cannot be without" in done.err
