# SPDX-License-Identifier: Apache-2.0
"""The verbs check and necessity."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tomlkit
from forklab import CORE, ForkLab, core, git, message

CORE_PATH = "python/calc/core.py"


@pytest.fixture
def clean(lab: ForkLab) -> ForkLab:
    """A fork with one patch in which nothing is wrong."""
    require = '["subject", "reason", "Upstream-Status", "Test"]'
    (lab.root / "pyproject.toml").write_text(f"[tool.forkpatch]\nrequire = {require}\n")
    (lab.root / "tests").mkdir()
    (lab.root / "tests/test_x.py").write_text("def test_x():\n    pass\n")
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn sub")
    lab.repo.commit({CORE_PATH: CORE}, "Back")
    lab.ok("lock", "--mirror", f"calc={lab.repo.path}")
    lab.ok("record")
    return lab


def findings(lab: ForkLab) -> list[str]:
    done = lab.run("check", "--json", "-")
    found = [f"{one['where']}: {one['what']}" for one in done.json["findings"]]
    assert done.code == (1 if found else 0)
    assert all(one["fix"] for one in done.json["findings"])
    return found


def rewrite(lab: ForkLab, old: bytes, new: bytes, *, record: bool = True) -> None:
    path = lab.patches / "turn.patch"
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    if record:
        lab.ok("record")


def test_nothing_wrong_is_no_finding(clean: ForkLab) -> None:
    assert findings(clean) == []
    assert clean.ok("check").out == "no findings\n"


def test_file_that_git_ignores_is_a_finding_until_it_is_added(clean: ForkLab) -> None:
    (clean.overlays / "lib").mkdir(parents=True)
    (clean.overlays / "__pycache__").mkdir()
    for name in ("lib/x.py", "lib/x.py.orig", "__pycache__/x.py", "y.py"):
        (clean.overlays / name).write_text("A = 1\n")
    (clean.patches / "turn.patch~").write_text("")
    (clean.root / ".gitignore").write_text("lib/\n*.patch\n*.orig\n__pycache__/\n*~\n")
    assert findings(clean) == []  # it is in no repository
    git(clean.root, "init", "-q")
    said = "git ignores it, so that a commit of the fork would lack it"
    wanted = ["patches/calc/1.0/turn.patch", "overlays/calc/lib/x.py"]
    assert findings(clean) == [f"{path}: {said}" for path in wanted]
    git(clean.root, "add", "-f", *wanted)
    assert findings(clean) == []


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        (b"Upstream-Status: Pending\n", b"", ":9: no Upstream-Status trailer"),
        (b"Pending", b"Maybe", ":8: Upstream-Status 'Maybe' is not one of the forms"),
        (b"Pending", b"Submitted", ":8: Upstream-Status 'Submitted' is not one of the forms"),
        (b"test_x.py::test_x", b"test_x.py::test_y", "tests/test_x.py has no test_y"),
        (b"test_x.py::", b"test_z.py::", "there is no file tests/test_z.py"),
        (b"Test: tests", b"Touches: x\nTest: tests", ":9: Touches is derived"),
        (b"Because it matters.\n\n", b"", ":4: the message does not say why"),
        (b"Turn sub", b"Turn " + b"s" * 80, ":4: the subject has 85 characters"),
        (b"+    return b - a\n", b"+    return b - a \n", ":20: a line added"),
        (b"+    return b - a\n", b"+  \treturn b - a\n", "indented by blanks and then a tab"),
        (b" \n \n def mul", b"\n \n def mul", "an empty context line lost its leading blank"),
    ],
)
def test_each_lint_finds_its_fault(clean: ForkLab, old: bytes, new: bytes, finding: str) -> None:
    rewrite(clean, old, new)
    (found,) = findings(clean)
    assert found.startswith("patches/calc/1.0/turn.patch:")
    assert finding in found


def test_a_message_follows_the_policy_of_its_fork(clean: ForkLab) -> None:
    rewrite(clean, b"Because it matters.\n\n", b"")
    rewrite(clean, b"Upstream-Status: Pending\n", b"")
    assert len(findings(clean)) == 2
    (clean.root / "pyproject.toml").write_text('[tool.forkpatch]\nrequire = ["Signed-off-by"]\n')
    assert findings(clean) == ["patches/calc/1.0/turn.patch:7: no Signed-off-by trailer"]
    (clean.root / "pyproject.toml").unlink()
    assert findings(clean) == []


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (b"return b - a", b"return b - 2 * a", 12),
    ],
)
def test_edit_by_hand_that_an_export_would_change_is_named(
    clean: ForkLab, old: bytes, new: bytes, line: int
) -> None:
    rewrite(clean, old, new)
    named = f"patches/calc/1.0/turn.patch:{line}: an export would change this line"
    assert findings(clean) == [named]
    clean.ok("apply")
    clean.ok("export")
    assert findings(clean) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"From 0", b"From 1"),
        (b"Subject: [PATCH] Turn sub", b"Subject: [PATCH 1/9] Turn\n sub"),
    ],
)
def test_patch_of_another_tool_is_taken_as_it_is(clean: ForkLab, old: bytes, new: bytes) -> None:
    rewrite(clean, old, new)
    before = (clean.patches / "turn.patch").read_bytes()
    assert findings(clean) == []
    clean.ok("apply")
    clean.ok("export")
    assert (clean.patches / "turn.patch").read_bytes() == before


def test_file_of_git_format_patch_is_taken_as_it_is(clean: ForkLab) -> None:
    where, name = clean.patches, "0001-Free.patch"
    clean.repo.commit({"LICENSE": b"freer\n"}, message("Free"))
    git(clean.repo.path, "format-patch", "-q", "-1", "-o", str(where))
    with (where / "series").open("a") as series:
        series.write(f"{name}\n")
    before = (where / name).read_bytes()
    assert b"\n-- \n" in before and not before.startswith(b"From 0")
    clean.ok("record")
    assert findings(clean) == []
    clean.ok("apply")
    clean.ok("export")
    assert (where / name).read_bytes() == before


def test_accepted_forms_of_upstream_status(clean: ForkLab) -> None:
    old = b"Pending"
    for new in (
        b"Submitted [https://example.org/pull/1]",
        b"Backport [0123abcd]",
        b"Inappropriate [only for our boards]",
    ):
        rewrite(clean, old, new)
        assert findings(clean) == []
        old = new


def test_series_and_files_are_compared(clean: ForkLab) -> None:
    (clean.patches / "other.patch").write_text("")
    with (clean.patches / "series").open("a") as series:
        series.write("ghost.patch\n")
    unlisted, missing = findings(clean)
    assert unlisted == "patches/calc/1.0/other.patch: series does not list it"
    assert missing == "patches/calc/1.0/ghost.patch: No such file or directory"
    (clean.patches / "series").write_text("turn.patch\nturn.patch # again\n")
    twice = findings(clean)[0]
    assert twice == "patches/calc/1.0/series:2: turn.patch is listed twice"


def test_wrong_hunk_count_is_named(clean: ForkLab) -> None:
    rewrite(clean, b"@@ -7,7 +7,7 @@", b"@@ -7,8 +7,7 @@", record=False)
    (found,) = findings(clean)
    assert "malformed diff" in found


def test_mode_change_is_named(clean: ForkLab) -> None:
    (clean.repo.path / "src/run.c").chmod(0o755)
    clean.change("mode.patch", {})
    clean.ok("record")
    assert findings(clean) == []  # git has modes
    lock = clean.root / "VERSIONS.lock"
    wheel = {"package": "calc", "version": "1.0", "map": {"calc": "python/calc"}, "files": []}
    document = tomlkit.parse(lock.read_text())
    document["upstreams"]["calc"]["versions"]["1.0"]["wheel"] = wheel
    lock.write_text(tomlkit.dumps(document))
    (mode,) = findings(clean)
    assert "the mode of src/run.c changes from 100644 to 100755" in mode


def test_outdated_symbols_and_colliding_overlay_are_named(clean: ForkLab) -> None:
    (clean.patches / "derived.json").write_text("{}")
    (found,) = findings(clean)
    assert found == "patches/calc/1.0/derived.json: derived.json is out of date"
    (clean.overlays).mkdir(parents=True)
    (clean.overlays / "LICENSE").write_text("")
    (found,) = findings(clean)
    assert "collides with the file LICENSE" in found


def test_check_without_the_tree_says_what_it_did_not_check(clean: ForkLab) -> None:
    clean.forget()
    done = clean.ok("check")
    assert "not checked: calc 1.0: the tree of calc 1.0 is not in the cache" in done.out
    assert done.out.splitlines()[-1] == "no findings in what was checked; not checked: calc 1.0"
    assert clean.ok("check", "--json", "-").json["unchecked"] == ["calc 1.0"]


def test_check_names_the_command_that_fetches_a_tree(clean: ForkLab) -> None:
    clean.repo.commit({"LICENSE": b"freer\n"}, "Two")
    git(clean.repo.path, "tag", "v2.0")
    clean.ok("lock", "--add", "calc=2.0")
    clean.forget()
    for version in ("1.0", "2.0"):
        command = f"record calc --version {version} --check"
        assert f"to fetch it: forkpatch {command}\n" in clean.ok("check").out
        clean.ok(*command.split())
    assert clean.ok("check").out == "no findings\n"


def test_a_damaged_record_is_found_and_written_anew(clean: ForkLab) -> None:
    (clean.patches / "derived.json").write_text("{}")
    assert clean.run("check").out.endswith("1 finding\n")
    clean.ok("record")
    assert clean.ok("check").out == "no findings\n"


TESTS = """
import os, sys, pathlib
sys.path.insert(0, str(pathlib.Path(os.environ["FORKPATCH_TREES"]) / "calc/python"))
import pytest
from calc import core

def test_sub(): assert core.sub(1, 2) == 1
def test_mul_runs(): assert core.mul(2, 2) == 4
def test_add(): assert core.add(1, 1) == 2
def test_wrong(): assert core.add(1, 1) == 3
def test_skipped(): pytest.skip("no board here")

@pytest.fixture
def built(): assert core.add(2, 2) == 5, "it does not build"
def test_unbuilt(built): pass
"""


def test_necessity_gives_each_verdict(lab: ForkLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (lab.root / "tests").mkdir()
    (lab.root / "tests/test_calc.py").write_text(TESTS)
    series = (
        ("needed", CORE_PATH, core(sub="b - a"), "test_sub"),
        ("superfluous", CORE_PATH, core(sub="b - a", mul="b * a"), "test_mul_runs"),
        ("unseen", "python/calc/dos.py", b"A = 1\r\nB = 2\r\nC = 4\r\n", "test_add"),
        ("wrong", "src/run.c", b"int run(void)\n{\n    return 1;\n}\n", "test_wrong"),
        ("skipped", "python/calc/tail.py", b"X = 1\nY = 3", "test_skipped"),
        ("unbuilt", "LICENSE", b"ours\n", "test_unbuilt"),
    )
    for name, path, data, test in series:
        trailer = message(name, f"tests/test_calc.py::{test}")
        lab.add_patch(f"{name}.patch", lab.repo.patch({path: data}, trailer))
    other = core(sub="(b - a)", mul="b * a")
    lab.add_patch("follows.patch", lab.repo.patch({CORE_PATH: other}, "No trailer\n"))
    done = lab.run("necessity", "--json", "-")
    assert done.code == 1
    found = {one["patch"]: (one["verdict"], one["along"]) for one in done.json}
    assert found == {
        "needed.patch": ("needed", ["follows.patch"]),
        "superfluous.patch": ("not needed", []),
        "unseen.patch": ("test does not see it", []),
        "wrong.patch": ("cannot tell", []),
        "skipped.patch": ("cannot tell", []),
        "unbuilt.patch": ("cannot tell", []),
        "follows.patch": ("cannot tell", []),
    }
    reasons = {one["patch"]: one["reason"] for one in done.json}
    assert "assert -1 == 1" in reasons["needed.patch"]
    assert "python/calc/dos.py: <file> broken" in reasons["unseen.patch"]
    assert "no board here" in reasons["skipped.patch"]
    assert "did not run" in reasons["unbuilt.patch"]
    assert reasons["follows.patch"] == "it has no Test trailer"
    assert lab.run("necessity", "needed").code == 0
    assert list((lab.root / ".work").glob("necessity-*")) == []


def test_file_that_differs_from_another_in_case_only_is_said(clean: ForkLab) -> None:
    clean.change("loud.patch", {"src/RUN.c": b"int RUN;\n"}, subject="Shout")
    overlay = clean.overlays / "license"
    overlay.parent.mkdir(parents=True)
    overlay.write_text("free\n")
    clean.ok("record")
    assert findings(clean) == [
        "overlays/calc/license: license and LICENSE differ in case only",
        "patches/calc/1.0/loud.patch: src/RUN.c and src/run.c differ in case only",
    ]


def test_findings_are_kept_until_something_changes(clean: ForkLab) -> None:
    rewrite(clean, b"    return b - a\n", b"    return b - 2 * a\n")
    (finding,) = findings(clean)
    kept = clean.root / ".work/checks.json"
    before = kept.stat().st_mtime_ns
    assert findings(clean) == [finding] and kept.stat().st_mtime_ns == before
    clean.ok("apply")
    clean.ok("export")
    assert findings(clean) == []
    (clean.patches / "derived.json").write_text("{}\n")
    assert "derived.json is out of date" in findings(clean)[0]


def test_a_test_without_an_end_is_stopped_with_what_it_started(
    lab: ForkLab, tmp_path: Path
) -> None:
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    (lab.root / "pyproject.toml").write_text(
        f"[tool.forkpatch]\ntest = ['sh', '-c', 'sleep 600 > {fifo} & wait']\n"
    )
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn")
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        done = lab.run("necessity", "--timeout", "0.5")
        assert done.code == 1 and "no end within" in done.out
        assert os.read(reader, 1) == b""  # else BlockingIOError: the process holds it open
    finally:
        os.close(reader)


@pytest.mark.parametrize("seconds", ["0", "-5", "nan", "inf", "1e12", "soon"])
def test_a_time_that_is_none_is_refused(
    lab: ForkLab, capsys: pytest.CaptureFixture[str], seconds: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        lab.run("necessity", f"--timeout={seconds}")
    assert stop.value.code == 2 and "seconds above 0" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["null", "[]", '{"a": 1}', '{"a": {"findings": 1, "notes": []}}'])
def test_damaged_findings_are_found_again(clean: ForkLab, text: str) -> None:
    assert findings(clean) == []
    (clean.root / ".work/checks.json").write_text(text)
    assert findings(clean) == []
