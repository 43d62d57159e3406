# SPDX-License-Identifier: Apache-2.0
"""Patches that a merge misplaces, or that pass for upstream's and are not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from forklab import CORE, FILES, ForkLab, Link, core, git
from misplaced import Placed, by_git, by_merge, by_verb, make_bench
from misplacement import TONGUES, generated, named

from forkpatch.git.calls import Git

CORE_PATH = "python/calc/core.py"


def moves(lab: ForkLab, *steps: Mapping[str, bytes | None]) -> list[str]:
    """Commit upstream's changes on top of 1.0, and pin the last as version 2.0."""
    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    commits = [lab.repo.commit(files, f"Upstream step {n}") for n, files in enumerate(steps)]
    git(lab.repo.path, "tag", "v2.0")
    lab.ok("lock", "--add", "calc=2.0")
    return commits


def grown(lab: ForkLab, files: Mapping[str, bytes]) -> None:
    """Let version 1.0 have more files."""
    lab.repo.commit(files, "Grow")
    git(lab.repo.path, "tag", "-f", "v1.0")
    lab.locked(tag="")


@pytest.mark.parametrize("language", TONGUES)
def test_no_generated_case_is_misplaced_in_silence(tmp_path: Path, language: str) -> None:
    harmless = next(c for c in generated(language, 99) if c.change.startswith("nothing"))
    bench = make_bench(tmp_path, [harmless, *generated(language, 6)])
    ours, theirs = by_merge(bench), by_git(bench, tmp_path)
    assert Placed.WRONG in theirs, "git gets these right: they show nothing"
    assert ours[0] is Placed.RIGHT and Placed.WRONG not in ours


def test_no_named_case_is_misplaced_in_silence_by_the_verb(tmp_path: Path, home: Path) -> None:
    bench = make_bench(tmp_path, list(named())[9::6])
    assert set(by_git(bench, tmp_path)) == {Placed.WRONG}
    assert set(by_verb(bench, tmp_path)) == {Placed.STOPPED}


SOFTMAX = b"""import tvm


def softmax(x, axis):
    shape = x.shape
    rank = len(shape)
    return tvm.extern(shape, [x], "%s.softmax", rank, axis)
"""
CUDNN, MIOPEN = "python/calc/cudnn.py", "python/calc/miopen.py"


@pytest.fixture
def contrib(lab: ForkLab) -> ForkLab:
    """Two files with a function of the same name; the patch makes one call the other's library."""
    grown(lab, {CUDNN: SOFTMAX % b"cudnn", MIOPEN: SOFTMAX % b"miopen"})
    lab.change("miopen.patch", {CUDNN: SOFTMAX % b"miopen"})
    return lab


def rebased(lab: ForkLab) -> Any:
    return lab.run("rebase", "calc", "2.0", "--json", "-").json


def test_function_of_the_same_name_in_another_file_does_not_stand_for_the_patch(
    contrib: ForkLab,
) -> None:
    moves(contrib, {CUDNN: b'"""Softmax."""\n' + SOFTMAX % b"cudnn"})
    (patch,) = rebased(contrib)["patches"]
    assert (patch["outcome"], patch["reason"]) == ("clean", "")


def test_nor_does_it_when_the_patched_function_is_gone(contrib: ForkLab) -> None:
    moves(contrib, {CUDNN: b"import tvm\n"})
    (conflict,) = rebased(contrib)["plan"]["conflicts"]
    assert conflict["kind"] == "conflict"  # the other file had that function before


def backport(lab: ForkLab, *later: Mapping[str, bytes | None]) -> list[str]:
    """A patch that upstream has as a commit of its own, and what upstream did after it."""
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")})
    return moves(lab, {"LICENSE": b"2\n"}, {CORE_PATH: core(sub="b - a")}, *later)


def test_backport_whose_own_commit_is_the_conflict_is_upstream(lab: ForkLab) -> None:
    commits = backport(lab, {CORE_PATH: core(sub="b - a - 0")})
    (patch,) = rebased(lab)["patches"]
    assert patch["outcome"] == "dropped"
    assert patch["reason"] == f"already upstream: {commits[1][:12]} Upstream step 1"


def test_backport_that_upstream_took_back_is_not(lab: ForkLab) -> None:
    backport(lab, {CORE_PATH: CORE}, {CORE_PATH: core(sub="a - b - 0")})
    (conflict,) = rebased(lab)["plan"]["conflicts"]
    assert conflict["kind"] == "conflict"


def test_backport_that_upstream_edited_back_is_not(lab: ForkLab) -> None:
    backport(lab, {CORE_PATH: core(sub="a - b - 0")})
    (conflict,) = rebased(lab)["plan"]["conflicts"]
    assert conflict["kind"] == "conflict"


LOOP = b"def f(xs):\n    log = print\n    for x in xs:\n        use(x)\n    return xs\n"
WORK = b"    one(x)\n    two(x)\n    three(x)\n    four(x)\n    five(x)\n    six(x)\n"
FIRST, SECOND = (b"int %s(int x)\n{\n%s}\n\n" % (name, WORK) for name in (b"first", b"second"))


def more(function: bytes) -> bytes:
    return function.replace(b"four(x)", b"four(x + 1)")


def other(function: bytes) -> bytes:
    return function.replace(b"four(x)", b"four(&x)")


@pytest.mark.parametrize(
    ("old", "patched", "steps"),
    [
        pytest.param(
            LOOP,
            LOOP.replace(b"use(x)\n", b"use(x)\n        log(xs)\n"),
            [LOOP.replace(b"use(x)\n", b"use(x)\n    log(xs)\n")],
            id="behind the loop",
        ),
        pytest.param(
            b"a = 1\nnames = a b\nx = 1\n",
            b"a = 1\nnames = ab c\nx = 1\n",
            [b"a = 1\nnames = a bc\nx = 1\n"],
            id="other words",
        ),
        pytest.param(
            FIRST + SECOND,
            more(FIRST) + SECOND,
            [FIRST + more(SECOND), other(FIRST) + more(SECOND)],
            id="in the twin",
        ),
        pytest.param(
            FIRST + SECOND,
            more(FIRST) + SECOND,
            [SECOND + FIRST, more(SECOND) + FIRST, more(SECOND) + other(FIRST)],
            id="in the twin, which has its place",
        ),
        pytest.param(None, b"a b\nc\nd\n", [b"ab\nc\nd\n"], id="in a file of other words"),
    ],
)
def test_commit_with_the_patch_id_at_another_place_is_not_the_patch(
    lab: ForkLab, old: bytes | None, patched: bytes, steps: list[bytes]
) -> None:
    path = "src/x.txt" if old is None else "src/x.c"
    if old is not None:
        grown(lab, {path: old})
    lab.change("x.patch", {path: patched})
    moves(lab, *({path: data} for data in steps))
    (conflict,) = rebased(lab)["plan"]["conflicts"]
    assert (conflict["path"], conflict["kind"]) == (path, "conflict")


@pytest.mark.parametrize("suffix", ["png", "js"])
def test_added_file_with_lines_that_are_no_arguments_is_compared_with_added_files(
    lab: ForkLab, suffix: str
) -> None:
    """A line with a NUL or of 200 KB cannot be given to git."""
    first = b"\x89PNG one line \0\1" if suffix == "png" else b"x" * 200_000
    data = first + b"\nanother line \0\nand a third line \0\n"
    lab.change("icon.patch", {f"python/calc/icon.{suffix}": data})
    moves(lab, {f"src/icon2.{suffix}": data})
    (conflict,) = rebased(lab)["plan"]["conflicts"]
    assert conflict["detail"] == f"upstream adds src/icon2.{suffix}"


OPS = "python/calc/ops.py"


def test_added_file_that_git_takes_for_a_renamed_one_is_compared_with_the_patch(
    lab: ForkLab,
) -> None:
    """Git merges the lines of the removed file into it: here, in another function."""
    git(lab.repo.path, "config", "diff.renames", "false")
    lab.change("move.patch", {CORE_PATH: None, OPS: core(sub="b - a")})
    sub = CORE[CORE.index(b"def sub") : CORE.index(b"def mul")].rstrip() + b"\n"
    moves(lab, {CORE_PATH: CORE.replace(b"def sub(", b"def neg(") + b"\n\n" + sub})
    (conflict,) = rebased(lab)["plan"]["conflicts"]
    assert (conflict["path"], conflict["kind"]) == (OPS, "misplaced")
    assert "other lines than the patch" in conflict["detail"]


def test_renamed_file_is_compared_with_the_one_that_the_patch_renames(lab: ForkLab) -> None:
    """Two files are equal, and git pairs the old and new names in another way than the patch."""
    lines = b"".join(b"int v%d;\n" % number for number in range(9))
    grown(lab, {"src/a.c": lines, "src/b.c": lines})
    lab.change("move.patch", {"src/a.c": None, "src/b.c": None, "src/x.c": lines, "src/y.c": lines})
    path = lab.patches / "move.patch"
    pairs = re.findall(r"rename from (.*)\nrename to (.*)\n", path.read_text())
    assert sorted(old for old, _ in pairs) == ["src/a.c", "src/b.c"]
    swapped = str.maketrans({"x": "y", "y": "x"})
    head, mark, diff = path.read_text().partition("diff --git")
    path.write_text(head + mark + re.sub(r"src/[xy]", lambda at: at[0].translate(swapped), diff))
    moves(lab, {"src/a.c": b"int more;\n" + lines})
    assert {one["kind"] for one in rebased(lab)["plan"]["conflicts"]} == {"misplaced"}


@pytest.mark.parametrize("side", ["patch", "upstream"])
@pytest.mark.parametrize("is_renamed", [False, True])
def test_link_to_a_folder_whose_files_are_gone_stops(
    lab: ForkLab, side: str, *, is_renamed: bool
) -> None:
    files: dict[str, bytes | None] = {"src/v1/a.c": b"int a;\n" * 5, "src/v1/b.c": b"int b;\n" * 9}
    grown(lab, {path: data for path, data in files.items() if data})
    there = {path.replace("v1", "v2"): data for path, data in files.items()} if is_renamed else {}
    gone, link = {**dict.fromkeys(files), **there}, {"src/latest": Link(b"v1")}
    lab.change("x.patch", link if side == "patch" else gone)
    moves(lab, gone if side == "patch" else link)
    (conflict,) = rebased(lab)["plan"]["conflicts"]
    assert conflict["kind"] == "misplaced"
    now = "renamed src/v1/a.c to src/v2/a.c" if is_renamed else "removed src/v1"
    to = "upstream links src/latest to src/v1"
    expected = f"upstream {now}, to which it links" if side == "patch" else to
    assert conflict["detail"] == expected


@pytest.mark.parametrize("is_text", [True, False])
def test_link_to_a_folder_that_several_patches_empty_stops_at_the_last(
    lab: ForkLab, *, is_text: bool
) -> None:
    """A binary file is merged by git alone."""
    data = b"int a;\n" if is_text else b"\0"
    grown(lab, {"src/v1/a": data, "src/v1/b": data + data})
    lab.change("a.patch", {"src/v1/a": None})
    lab.change("b.patch", {"src/v1/b": None})
    moves(lab, {"src/latest": Link(b"v1")})
    (conflict,) = rebased(lab)["plan"]["conflicts"]
    assert conflict["patch"] == "b.patch"
    assert conflict["detail"] == "upstream links src/latest to src/v1"


def test_link_that_never_had_a_target_does_not_stop(lab: ForkLab) -> None:
    """A patch before it removes the target, on the old base, too."""
    lab.change("gone.patch", {"src/run.c": None})
    lab.change("link.patch", {"src/latest": Link(b"run.c")})
    moves(lab, {"LICENSE": b"2\n"})
    assert [one["outcome"] for one in rebased(lab)["patches"]] == ["clean", "clean"]


def test_link_to_a_folder_with_a_file_that_is_left_does_not_stop(lab: ForkLab) -> None:
    grown(lab, {"src/v1/a.c": b"int a;\n", "src/v1/b.c": b"int b;\n"})
    lab.change("x.patch", {"src/latest": Link(b"v1"), "src/v1/b.c": None})
    moves(lab, {"src/v1/a.c": None, "src/v1/c.c": b"int c;\n", "src/newest": Link(b"v1")})
    assert [one["outcome"] for one in rebased(lab)["patches"]] == ["clean"]


NEW = b"    return times(a, b)\n"
MORE = b"\n\ndef more(a):\n    check(a)\n    left = a.left\n    return left + a.right\n"
TOOL = b"import sys\n\n\ndef tool():\n    return sys.argv\n"
TABLE = b"#include <a.h>\n#include <b.h>\n#include <c.h>\n#include <d.h>\n#include <e.h>\n"
INCLUDE = b"#include <more.h>\n"


@pytest.mark.parametrize(
    ("files", "edits", "upstream", "said"),
    [
        pytest.param(
            {},
            {CORE_PATH: CORE.replace(b"return a * b", b"return b * a")},
            {CORE_PATH: CORE.replace(b"def mul", b"def old_mul") + b"\n\ndef mul(a, b):\n" + NEW},
            "mul is at line",
            id="rewritten beside a twin with its text",
        ),
        pytest.param(
            {"python/calc/tool.py": TOOL},
            {CORE_PATH: CORE + MORE},
            {"python/calc/tool.py": TOOL + MORE},
            "upstream adds the same lines to python/calc/tool.py",
            id="taken in another file",
        ),
        pytest.param(
            {"python/calc/tool.py": TOOL, CORE_PATH: CORE + MORE},
            {CORE_PATH: CORE},
            {"python/calc/tool.py": TOOL + MORE, CORE_PATH: CORE},
            "has what it removes",
            id="removed where upstream moved it",
        ),
        pytest.param(
            {"src/a.c": TABLE},
            {"src/a.c": TABLE.replace(b"#include <b", INCLUDE + b"#include <b")},
            {"src/a.c": TABLE + INCLUDE},
            "too, at line 6",
            id="one include at two places",
        ),
        pytest.param(
            {},
            {"python/calc/more.py": MORE},
            {"python/calc/other.py": MORE},
            "upstream adds python/calc/other.py",
            id="one file under two names",
        ),
    ],
)
def test_change_that_upstream_has_elsewhere_stops(
    lab: ForkLab,
    files: Mapping[str, bytes],
    edits: Mapping[str, bytes],
    upstream: Mapping[str, bytes],
    said: str,
) -> None:
    if files:
        grown(lab, files)
    lab.change("x.patch", edits)
    moves(lab, upstream)
    (conflict,) = rebased(lab)["plan"]["conflicts"]
    assert conflict["kind"] == "misplaced" and said in conflict["detail"]


TWINS = CORE + CORE.replace(b"def ", b"def other_")


def test_misplacement_beside_a_conflict_is_told_too(lab: ForkLab) -> None:
    grown(lab, {CORE_PATH: TWINS})
    patched = TWINS.replace(b"    return a - b\n", b"    return b - a\n", 1)
    patched = patched.replace(b"    return a * b\n", b"    return b * a\n", 1)
    lab.change("both.patch", {CORE_PATH: patched})
    names = TWINS.replace(b"def sub(", b"def x(").replace(b"other_sub(", b"sub(")
    new = names.replace(b"def x(", b"def other_sub(").replace(b"a * b\n", b"a * b * 1\n", 1)
    moves(lab, {CORE_PATH: new})
    found = rebased(lab)["plan"]["conflicts"]
    assert [one["kind"] for one in found] == ["conflict", "misplaced"]
    path = lab.root / ".work/rebase/calc/tree" / CORE_PATH
    path.write_bytes(
        new.replace(b"a - b\n", b"b - a\n", 1).replace(b"a * b * 1\n", b"b * a * 1\n", 1)
    )
    refused = lab.run("rebase", "calc", "--continue")
    assert refused.code == 2
    assert "misplaced still: it changes other_sub now, and changed sub before" in refused.err
    path.write_bytes(new.replace(b"a * b * 1\n", b"b * a * 1\n", 1))
    lab.ok("rebase", "calc", "--continue")


def test_clean_patches_are_merged_without_a_look_at_other_files(
    lab: ForkLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.change("a.patch", {CORE_PATH: core(sub="b - a")})
    lab.change("b.patch", {CORE_PATH: core(sub="b - a", mul="b * a")})
    moves(lab, {CORE_PATH: b"import os\n\n\n" + CORE, "src/run.c": None})
    called: Counter[str] = Counter()
    run = Git.run

    def counted(self: Git, *args: str, **options: Any) -> Any:
        called[next(word for word in args if not word.startswith("-") and "=" not in word)] += 1
        return run(self, *args, **options)

    monkeypatch.setattr(Git, "run", counted)
    assert [one["outcome"] for one in rebased(lab)["patches"]] == ["clean", "clean"]
    # Neither is any blob searched for a word, nor any file checked out.
    assert called["merge-tree"] == 2
    assert not {"grep", "reset", "cherry-pick", "read-tree"} & set(called)


RST = b"Title\n=======\n\n" + b"".join(b"Line %d.\n" % n for n in range(9))
RST_PATH = "python/calc/notes.rst"


def test_underline_of_a_title_is_no_conflict_marker(lab: ForkLab) -> None:
    grown(lab, {RST_PATH: RST})
    lab.change("notes.patch", {RST_PATH: RST.replace(b"Line 4.", b"Line four.")})
    moves(lab, {RST_PATH: RST.replace(b"Line 4.", b"Line IV.")})
    assert lab.run("rebase", "calc", "2.0").code == 1
    path = lab.root / ".work/rebase/calc/tree" / RST_PATH
    left = RST.replace(b"Line 4.\n", b"=======\nLine four (IV).\n")
    path.write_bytes(left)
    refused = lab.run("rebase", "calc", "--continue")
    assert refused.code == 2 and "still has conflict markers" in refused.err
    more = b"\nNew\n=======\n\nText.\n"
    path.write_bytes(left.replace(b"=======\nLine four", b"Line four") + more)
    lab.ok("rebase", "calc", "--continue")
    assert b"+New\n+=======\n" in (lab.root / "patches/calc/2.0/notes.patch").read_bytes()


def test_leftovers_of_an_editor_are_named_and_not_taken(lab: ForkLab) -> None:
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")})
    moves(lab, {CORE_PATH: core(sub="a - b - 0")})
    assert lab.run("rebase", "calc", "2.0").code == 1
    tree = lab.root / ".work/rebase/calc/tree"
    (tree / CORE_PATH).write_bytes(core(sub="b - a - 0"))
    (tree / f"{CORE_PATH}.orig").write_bytes(CORE)
    (tree / "python/calc/.core.py.swp").write_bytes(b"x")
    done = lab.ok("rebase", "calc", "--continue")
    assert (
        "ignored by git, and not in turn.patch: python/calc/.core.py.swp, python/calc/core.py.orig"
        in done.err
    )
    text = (lab.root / "patches/calc/2.0/turn.patch").read_text()
    assert text.count("diff --git") == 1


def test_line_that_ends_with_a_point_is_a_place_like_others(lab: ForkLab) -> None:
    path = "python/calc/notes.txt"
    text = b"About it.\n  one\n  two\n  three\n.\n  four\n  five\n  six\n"
    grown(lab, {path: text})
    lab.change("notes.patch", {path: text.replace(b"  five", b"  5")})
    moves(lab, {path: b"\n" + text.replace(b"  one", b"  1")})
    report = lab.ok("probe", "calc", "--versions", "v2.0", "--json", "-").json
    assert [row["outcome"] for row in report["rows"]] == ["body changed"]
    (patch,) = rebased(lab)["patches"]
    assert patch["outcome"] == "clean"


@pytest.mark.parametrize("change", ["moved", "renamed", "comment", "near", "gone"])
def test_probe_says_what_a_rebase_comes_to(lab: ForkLab, change: str) -> None:
    start, end = CORE.index(b"def sub"), CORE.index(b"def mul")
    new = {
        "moved": CORE[:start] + CORE[end:] + b"\n\n" + CORE[start:end].rstrip() + b"\n",
        "renamed": CORE.replace(b"def sub(", b"def minus("),
        "comment": b"# head\n" + CORE,
        "near": CORE.replace(b"    return a - b", b"    # minus\n    return a - b"),
        "gone": CORE[:start] + CORE[end:],
    }[change]
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")})
    moves(lab, {CORE_PATH: new})
    (row,) = lab.ok("probe", "calc", "--versions", "v2.0", "--json", "-").json["rows"]
    report = rebased(lab)
    kinds = [one["kind"] for one in report.get("plan", {}).get("conflicts", [])]
    applies = row["outcome"] in ("applies", "body changed")
    assert applies == (not kinds), (row, report)
    assert (row["outcome"] == "misplaced") == (kinds == ["misplaced"])


@pytest.mark.parametrize("size", ["bytes", "lines"])
def test_file_that_is_too_large_for_a_parser_is_named(lab: ForkLab, size: str) -> None:
    path = "src/table.c"
    filler = b"\n" * 50_000 if size == "lines" else b"/*" + b"-" * (4 << 20) + b"*/\n"
    text = FILES["src/run.c"] + filler
    grown(lab, {path: text})
    lab.change("run.patch", {path: text.replace(b"return 0", b"return 1")})
    moves(lab, {path: b"\n" + text})
    done = lab.ok("rebase", "calc", "2.0")
    line = f"{path} is above 4 MB or 50,000 lines: its functions have no names here"
    assert line in done.out
    assert done.out.count("have no names") == 1


def test_language_without_a_grammar_is_named(lab: ForkLab) -> None:
    path = "src/run.kt"
    text = FILES["src/run.c"]
    grown(lab, {path: text})
    lab.change("run.patch", {path: text.replace(b"return 0", b"return 1")})
    moves(lab, {path: b"\n" + text})
    done = lab.ok("rebase", "calc", "2.0")
    assert "no grammar for .kt: its functions have no names here" in done.out


@pytest.mark.parametrize("kind", ["binary", "UTF-16"])
@pytest.mark.parametrize("end", ["continue", "skip"])
def test_file_that_is_not_text_and_that_both_change_is_a_conflict(
    lab: ForkLab, kind: str, end: str
) -> None:
    path, rows = "src/table.bin", [f"row {number}" for number in range(9)]

    def table(number: int) -> bytes:
        changed = "\n".join([*rows[:number], "changed", *rows[number:]])
        return changed.encode("utf-16") if kind == "UTF-16" else b"\0" + changed.encode()

    grown(lab, {path: table(1)})
    lab.change("table.patch", {path: table(3)})
    moves(lab, {path: table(8)})
    (conflict,) = rebased(lab)["plan"]["conflicts"]
    assert (conflict["path"], conflict["kind"]) == (path, "conflict")
    if end == "skip":
        done = lab.ok("rebase", "calc", "--skip", "upstream's table is newer")
        assert "table.patch: dropped" in done.out
        return
    (lab.root / ".work/rebase/calc/tree" / path).write_bytes(table(5))
    lab.ok("rebase", "calc", "--continue")
    assert "GIT binary patch" in (lab.root / "patches/calc/2.0/table.patch").read_text()


STEPS = b'def t():\n    expect("(P)")\n    send("c")\n    expect("x")\n    end()\n'
CALLS = b"run(\n    (\n        w()\n        if a\n    ),\n" + b"".join(
    b"    s%d(),\n" % number for number in range(9)
)


def when(text: bytes, *numbers: int) -> bytes:
    """The calls, some of them under a condition."""
    for number in numbers:
        call = b"    s%d(),\n" % number
        text = text.replace(call, b"    (\n        s%d()\n        if both\n    ),\n" % number)
    return text


@pytest.mark.parametrize(
    ("old", "patched", "new", "outcome"),
    [
        (
            STEPS,
            STEPS.replace(b'x")', b'x")\n    expect("P")'),
            STEPS.replace(b"(P)", b"P"),
            "clean",
        ),
        (CALLS, when(CALLS, 4), when(CALLS, 1, 7), "clean"),
        (CALLS, when(CALLS, 4), when(CALLS, 1), "misplaced"),
    ],
)
def test_line_that_names_no_single_thing_may_be_added_by_both(
    lab: ForkLab, old: bytes, patched: bytes, new: bytes, outcome: str
) -> None:
    path = "python/calc/steps.py"
    grown(lab, {path: old})
    lab.change("steps.patch", {path: patched})
    moves(lab, {path: new})
    report = rebased(lab)
    stops = [one["kind"] for one in report["plan"]["conflicts"]] if "plan" in report else []
    assert (stops or [one["outcome"] for one in report["patches"]]) == [outcome]


TYPES = b"""TYPES = [
    ("hbs", 1),
    ("js", [
        "*.js",
    ]),
    ("json", 1),
    ("mk", 1),
    ("md", 1),
    ("ml", 1),
]
"""
BRANCHES = b"""void serve(struct server *s)
{
\tif (s) {
\t\tif (s->runs) {
\t\t\t/* it is usable */
\t\t\tflags |= VALID;
\t\t} else {
\t\t\t/* it is down */
\t\t\tflags |= DOWN;
\t\t}
\t}
}
"""


CHECKS = b"""# A wide letter is forbidden.
refuse("L'a';")

# The rest is the same.
accept("")
"""


@pytest.mark.parametrize(
    ("suffix", "old", "edit", "changes"),
    [
        (  # an entry of several lines above the edit has a name, and so has one that is nearer now
            *(".py", TYPES, (b'    ("ml", 1)', b'    ("man", 1),\n    ("ml", 1)')),
            [(b'("hbs", 1)', b'("hbs", 2)'), (b'("mk", 1)', b'("mk", [\n        "*.mk",\n    ])')],
        ),
        (  # a condition of several lines has more blocks around what follows than a line has
            *(".c", BRANCHES, (b"flags |= VALID", b"flags |= s->mask")),
            [(b"(s->runs)", b"((s->runs) ||\n\t\t    (s->kept))")],
        ),
        (  # what the patch adds has a name of its own
            *(
                ".cmake",
                CHECKS,
                (b"\n# The", b"\n# A narrow letter is forbidden.\nrefuse(1)\n\n# The"),
            ),
            [(b"L'a';\")\n", b"L'a');\")\n\n# A wide text is forbidden.\nrefuse(2)\n")],
        ),
    ],
)
def test_lines_beside_the_block_of_an_edit_do_not_name_it(
    lab: ForkLab,
    suffix: str,
    old: bytes,
    edit: tuple[bytes, bytes],
    changes: list[tuple[bytes, bytes]],
) -> None:
    path, new = f"python/calc/beside{suffix}", old
    for before, after in changes:
        new = new.replace(before, after)
    grown(lab, {path: old})
    lab.change("beside.patch", {path: old.replace(*edit)})
    moves(lab, {path: new})
    assert [one["outcome"] for one in rebased(lab)["patches"]] == ["clean"]


def records(form: str, *names: str) -> str:
    """Records with names; each has a port of its own."""
    ports = {"newname": 20, "shop": 20, "mail": 30, "legacy": 30}
    pairs = ((name, str(ports.get(name, 10))) for name in names)
    return "".join(form.replace("NAME", name).replace("PORT", port) for name, port in pairs)


OBJECTS = '  {\n    port: PORT,\n    tls: 1,\n    path: 2,\n    name: "NAME",\n  },\n'
STANZAS = "class: box\nport: 1\ntls: 1\npath: 2\ncn: NAME\nretries: 3\ndepth: 4\n"
NODES = (
    "\tNAME: box@1 {\n\t\tport = <PORT>;\n\t\ttls = <PORT1>;\n\t\tpath = <PORT2>;\n"
    "\t\tretries = <PORT3>;\n\t};\n\n"
)
OPTIONS = "config NAME\n\tport 10\n\ttls 1\n\tpath 2\n"
NODE_OF_BOTH = records(NODES, "mail").replace("<302>;\n", "<302>;\n\t\tlimit = <556>;\n")


@pytest.mark.parametrize(
    ("suffix", "form", "edit", "new", "outcome"),
    [
        (  # upstream renames the record; a new one before it takes its name, which comes first
            *(".js", OBJECTS, ("port: 20,\n", "port: 20,\n    limit: 5,\n")),
            '  {\n    name: "shop",\n    tls_of: 1,\n  },\n'
            + records(OBJECTS, "web", "newname", "mail"),
            "misplaced",
        ),
        (
            *(".ldif", STANZAS, ("tls: 1\npath: 2\ncn: shop", "tls: 5\npath: 2\ncn: shop")),
            records(STANZAS, "web")
            + "class: box\ncn: shop\ntls_of: 1\npath_of: 2\nretries_of: 3\ndepth_of: 4\n"
            + records(STANZAS, "newname", "mail"),
            "misplaced",
        ),
        (  # both add the field; the record's old lines stand in another record alone
            *(".dts", NODES, ("<302>;\n", "<302>;\n\t\tlimit = <5>;\n")),
            records(NODES, "web", "shop", "legacy") + NODE_OF_BOTH,
            "misplaced",
        ),
        (  # the names of other blocks say nothing about a block that kept its own
            *(".kconfig", OPTIONS, ("config shop\n\tport 10\n", "config shop\n\tport 5\n")),
            records(OPTIONS, "mail", "shop", "web"),
            "clean",
        ),
    ],
)
def test_name_of_a_record_is_found_beside_its_own_lines(
    lab: ForkLab, suffix: str, form: str, edit: tuple[str, str], new: str, outcome: str
) -> None:
    path, old = f"python/calc/table{suffix}", records(form, "web", "shop", "mail")
    grown(lab, {path: old.encode()})
    lab.change("table.patch", {path: old.replace(*edit, 1).encode()})
    moves(lab, {path: new.encode()})
    report = rebased(lab)
    stops = [one["kind"] for one in report["plan"]["conflicts"]] if "plan" in report else []
    assert ({*stops} or {one["outcome"] for one in report["patches"]}) == {outcome}
