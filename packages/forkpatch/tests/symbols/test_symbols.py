# SPDX-License-Identifier: Apache-2.0
"""Symbols of hunks, and their drift on another base."""

from __future__ import annotations

import json

import pytest
from forklab import CORE, FILES, ForkLab, core

from forkpatch.git.objects import blob_id
from forkpatch.model.patchfile import read_patch
from forkpatch.model.record import PatchRecord, Record, SymbolPlace
from forkpatch.symbols.outline import MODULE, Outline, outline
from forkpatch.tree.drift import Drift, compare

PYTHON = b'''"""Doc."""
import os


@decorator
class Box:
    size = 1

    def put(self, x):
        def inner():
            return x  # comment
        return inner


def put(y):
    return y
'''
C = b"""#include <x.h>
/* add numbers */
int add(int a, int b)
{
    return a + b; // sum
}

static int sub(int a, int b) {
label:
    return a - b;
}
"""


@pytest.mark.parametrize(
    ("line", "name"),
    [(1, MODULE), (5, "Box"), (7, "Box"), (9, "Box.put"), (11, "Box.put.inner"), (16, "put")],
)
def test_python_lines_are_in_their_innermost_definition(line: int, name: str) -> None:
    assert Outline("a.py", PYTHON).at(line).name == name


def test_language_without_a_grammar_has_one_symbol() -> None:
    known = Outline("a.kt", C)
    assert not known.is_parsed
    assert {known.at(line).name for line in (1, 5, 10)} == {MODULE}
    assert known.body(MODULE) != Outline("a.kt", C + b"\n").body(MODULE)


def test_layout_comments_and_positions_do_not_change_a_body() -> None:
    python = b"# new head\n\n" + PYTHON.replace(b"# comment", b"# other").replace(
        b"    return y", b"    return (\n        y\n    )"
    )
    before, after = Outline("a.py", PYTHON), Outline("a.py", python)
    assert {n: s.body for n, s in before.symbols.items()} == {
        n: s.body for n, s in after.symbols.items()
    }
    c = (
        C.replace(b"// sum", b"// difference")
        .replace(b"a + b", b"a  +\n    b")
        .replace(b"add numbers", b"what it does")
    )
    before, after = Outline("a.c", C), Outline("a.c", c)
    assert list(before.symbols) == [MODULE, "add", "sub"]
    assert [s.body for s in before.symbols.values()] == [s.body for s in after.symbols.values()]


@pytest.mark.parametrize("first", range(4))
def test_versions_of_a_file_are_outlined_as_each_one_alone(first: int) -> None:
    functions = [b"int f%d(int a)\n{\n    return a + %d;\n}\n" % (n, n) for n in range(9)]
    whole, twice = b"".join(functions), b"".join([*functions, functions[-1]])
    guarded = whole.replace(functions[4], b"#if A\n%b#endif\n" % functions[4])
    versions = [
        *(whole, twice, guarded, b"", whole + b"}\n", twice.replace(b"+ 8", b"- 8")),
        *(b"".join(functions[1:]), guarded.replace(b"+ 4", b"- 4"), b"x" + whole, whole[:-1]),
        guarded.replace(functions[1], b"").replace(b"+ 6", b"\n+ 6") + functions[1],
    ]
    every = [outline(f"{first}.c", data) for data in versions]  # the others are parsed later
    for one in [*every[first:], *every[:first]]:
        alone = Outline(one.path, one.data)
        assert list(one.symbols.values()) == list(alone.symbols.values())
        assert all(one.body(name) == alone.body(name) for name in alone.symbols)


def test_meaning_and_comment_signs_in_strings_do_change_a_body() -> None:
    changed = Outline("a.py", PYTHON.replace(b"return y", b"return -y"))
    assert changed.body("put") != Outline("a.py", PYTHON).body("put")
    one, other = (
        Outline("a.c", b'int f()\n{\n    g("x // %s");\n}\n' % text) for text in (b"1", b"2")
    )
    assert one.body("f") != other.body("f") and one.body("f")


def test_file_without_any_symbol_is_one_place() -> None:
    for data in (b"", b"\n", b"  indented\n"):
        assert list(Outline("a.c", data).symbols) == [MODULE]
        assert Outline("a.c", data).at(1).name == MODULE


def test_file_that_is_no_python_is_still_outlined() -> None:
    assert Outline("a.py", b"print 'x'\ndef f(x):\n    exec x\n").at(3).name == "f"


def places(lab: ForkLab) -> dict[str, list[str]]:
    record = json.loads((lab.patches / "derived.json").read_text())
    return {
        name: [place["symbol"] for place in entry["places"]]
        for name, entry in record["patches"].items()
    }


def test_record_names_what_each_patch_changes(lab: ForkLab) -> None:
    lab.change("one.patch", {"python/calc/core.py": core(sub="b - a")})
    more = core(sub="b - a").replace(
        b"    return b - a\n", b"    return b - a\n\n\ndef div(a):\n    pass\n"
    )
    lab.change("two.patch", {"python/calc/core.py": more, "src/run.c": b"int run(void)\n{\n}\n"})
    lab.change("three.patch", {"python/calc/new.py": b"A = 1\n"})
    lab.ok("record", "calc")
    assert places(lab) == {
        "one.patch": ["sub"],
        "two.patch": [MODULE, "run"],
        "three.patch": [MODULE],
    }
    assert lab.ok("record", "--check").code == 0
    assert "up to date" in lab.ok("record").out


def test_record_holds_the_base_and_the_blobs_that_the_series_leans_on(lab: ForkLab) -> None:
    lab.change("one.patch", {"python/calc/core.py": core(sub="b - a")})
    lab.overlays.mkdir(parents=True)
    (lab.overlays / "shadows.toml").write_text(
        '[[shadow]]\npath = "src/run.c"\nsymbol = "run"\nby = "x.c"\nwhy = "faster"\n'
    )
    before = (lab.root / "VERSIONS.lock").read_bytes()
    lab.ok("record")
    assert (lab.root / "VERSIONS.lock").read_bytes() == before
    path = lab.patches / "derived.json"
    record = json.loads(path.read_text())
    assert record["base"] in (lab.root / "VERSIONS.lock").read_text()
    assert record["blobs"] == {
        name: blob_id(FILES[name]) for name in ("python/calc/core.py", "src/run.c")
    }
    path.write_text(path.read_text().replace(blob_id(FILES["src/run.c"]), "1" * 40))
    assert "derived.json differs" in lab.run("record", "--check").out
    found = lab.run("check").out
    assert "patches/calc/1.0/derived.json: derived.json is out of date" in found
    assert "forkpatch record calc --version 1.0" in found


def test_statement_appended_to_a_function_counts_for_the_function(lab: ForkLab) -> None:
    longer = CORE.replace(b"    return a - b\n", b"    return a - b\n    log(a)\n")
    lab.change("one.patch", {"python/calc/core.py": longer})
    lab.ok("record")
    assert places(lab) == {"one.patch": ["sub"]}


def record_with(**body: str) -> Record:
    places = tuple(SymbolPlace("a.py", n, b) for n, b in body.items())
    return Record("x", {}, {"p.patch": PatchRecord(sha256="", places=places)}, ())


def body(name: str, data: bytes = CORE) -> str:
    return Outline("a.py", data).body(name) or ""


def test_each_kind_of_drift_is_told_apart() -> None:
    old = record_with(sub=body("sub"))

    def drifts(base: bytes, now: Record, path: str = "a.py") -> list[tuple[str, Drift]]:
        return [(f.symbol, f.drift) for f in compare(old, now, {path: base})]

    assert drifts(CORE, old) == [("sub", Drift.UNCHANGED)]
    assert drifts(core(sub="0"), old) == [("sub", Drift.CHANGED)]
    assert drifts(CORE, old, "b.py") == [("sub", Drift.MOVED)]
    gone = CORE[: CORE.index(b"def sub")] + CORE[CORE.index(b"def mul") :]
    assert drifts(gone, old) == [("sub", Drift.GONE)]
    inside = CORE.replace(b"def sub(a, b):", b"class Box:\n  def sub(a, b):").replace(
        b"    check(a)\n    check(b)\n    return a - b", b"    check(a); check(b); return a - b"
    )
    assert drifts(inside, old) == [("sub", Drift.MOVED)]
    wrong = record_with(mul=body("mul"))
    assert drifts(gone, wrong) == [("sub", Drift.GONE), ("mul", Drift.MISPLACED)]


def test_hunk_in_another_function_on_a_new_base_stops_apply(lab: ForkLab) -> None:
    lab.change("one.patch", {"python/calc/core.py": core(sub="b - a")})
    lab.repo.commit({"python/calc/core.py": CORE}, "Back")
    lab.ok("record")
    # sub and mul change places, and mul now says what sub said: the hunk still fits its lines.
    names = (
        CORE.replace(b"def sub", b"def x")
        .replace(b"def mul", b"def sub")
        .replace(b"def x", b"def mul")
    )
    lab.repo.commit({"python/calc/core.py": names}, "Swap")
    patch = lab.patches / "one.patch"
    data = patch.read_bytes().replace(b" def mul", b" def x").replace(b" def sub", b" def mul")
    patch.write_bytes(data.replace(b" def x", b" def sub"))
    record_file = lab.patches / "derived.json"
    record = json.loads(record_file.read_text())
    record["patches"]["one.patch"]["sha256"] = read_patch(patch).sha256
    record_file.write_text(json.dumps(record))
    lab.locked(tag="")
    done = lab.run("apply")
    assert done.code == 2
    assert "one.patch: python/calc/core.py: mul: misplaced (it changed sub before)" in done.err
    assert not lab.tree.exists()


def test_shadowed_symbol_that_upstream_changes_is_drift(lab: ForkLab) -> None:
    lab.overlays.mkdir(parents=True)
    (lab.overlays / "shadows.toml").write_text(
        '[[shadow]]\npath = "python/calc/core.py"\nsymbol = "mul"\nby = "m.py"\nwhy = "speed"\n'
    )
    lab.ok("record")
    lab.repo.commit({"python/calc/core.py": core(mul="b * a")}, "Turn")
    lab.locked(tag="")
    done = lab.run("record", "--check")
    assert done.code == 1
    assert "overlay: python/calc/core.py: mul: body changed" in done.out
    start, end = CORE.index(b"def mul"), CORE.index(b"def check")
    moved = {"python/calc/core.py": CORE[:start] + CORE[end:], "python/calc/m.py": CORE[start:end]}
    lab.repo.commit(moved, "Move")
    lab.locked(tag="")
    done = lab.run("record", "--check")
    assert "core.py: mul: moved (now python/calc/m.py: mul)" in done.out
    lab.repo.commit({"python/calc/m.py": None}, "Remove")
    lab.locked(tag="")
    assert "core.py: mul: gone" in lab.run("record", "--check").out
