# SPDX-License-Identifier: Apache-2.0
"""The verb upstream-tests, on an upstream with tests of its own."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from forklab import ForkLab, core, message

from forkpatch.model.record import SymbolPlace
from forkpatch.model.settings import load_settings
from forkpatch.regression import runner
from forkpatch.regression.selection import read_table, reason_to_run, touched_by_places
from forkpatch.tree.fork import open_fork
from groundwork.locks import locked

pytestmark = pytest.mark.slow
CORE_PATH = "python/calc/core.py"
TESTS = b"""import os, signal
import pytest
from calc import core
from calc.core import add, sub

with open(os.environ["RUNS"], "a") as runs:
    runs.write("imported\\n")

@pytest.fixture(autouse=True)
def noted(request):
    with open(os.environ["RUNS"], "a") as runs:
        runs.write(request.node.name + "\\n")

def test_add():
    assert add(1, 2) == 3

def test_sub():
    assert sub(2, 1) == 1

def test_wrong_for_long():
    assert add(1, 1) == 3

def test_mended():
    assert core.mul(2, 3) == 7

def test_skipped():
    pytest.skip("no board here")

def test_crash():
    os.kill(os.getpid(), signal.SIGSEGV)

@pytest.mark.parametrize("n", [1, 2])
def test_after_all(n):
    assert os.environ["CALC_MODE"] == "strict"
"""
FILES = {
    "tests/conftest.py": b"",
    "tests/test_core.py": TESTS,
    "tests/test_fast.py": b"from calc.core import mul\ndef test_mul(): assert mul(2, 3) == 6\n",
    "tests/test_time.py": b"""import time
from calc.core import add
def test_quick(): assert add(1, 1) == 2
def test_endless(): time.sleep(600)
def test_after_it(): assert add(1, 2) == 3
""",
    "tests/test_slow_start.py": b"""import os, time
from calc.core import add
flag = os.environ["RUNS"] + ".begun"
if not os.path.exists(flag):
    open(flag, "w").close()
    time.sleep(600)
def test_it(): assert add(1, 1) == 2
""",
    "tests/test_elsewhere.py": b"def test_nothing():\n    pass\n",
}
TABLE = """folder = "tests"
python = "python"
packages = ["calc.core"]
run = ["tests/test_core.py", "tests/test_fast.py"]
[left-out]
"tests/test_time.py" = "long"
"tests/test_slow_start.py" = "long"
[commits]
"1.0" = "{commit}"
[environment]
CALC_MODE = "strict"
"""


@pytest.fixture
def tested(lab: ForkLab, monkeypatch: pytest.MonkeyPatch) -> ForkLab:
    """A fork whose one patch changes ``sub`` and ``mul``, and whose upstream has tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("RUNS", str(lab.root / "runs.txt"))
    patch = lab.repo.patch({CORE_PATH: core(sub="b - a", mul="a * b + 1")}, message("Turn"))
    lab.add_patch("turn.patch", patch)
    commit = lab.repo.commit(dict(FILES), "Tests")
    (lab.patches.parent / "upstream-tests.toml").write_text(TABLE.format(commit=commit))
    lab.ok("record")
    return lab


def run(lab: ForkLab, *words: str) -> tuple[int, dict[str, tuple[str, str, str]]]:
    """Exit code, and change and both outcomes of each test."""
    done = lab.run("upstream-tests", "--json", "-", *words)
    found = {
        one["test"].rpartition("::")[2]: (
            one["change"],
            one["before"]["outcome"],
            one["after"]["outcome"],
        )
        for one in done.json["tests"]
    }
    return done.code, found


def runs(lab: ForkLab) -> list[str]:
    """The tests that were run since the last call."""
    path = lab.root / "runs.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def test_every_test_on_both_trees(tested: ForkLab) -> None:
    code, found = run(tested, "--jobs", "2")
    assert code == 1
    assert found == {
        "test_add": ("same", "passed", "passed"),
        "test_sub": ("worse", "passed", "failed"),
        "test_wrong_for_long": ("fails on both", "failed", "failed"),
        "test_mended": ("better", "failed", "passed"),
        "test_skipped": ("same", "skipped", "skipped"),
        "test_crash": ("fails on both", "crashed", "crashed"),
        "test_after_all[1]": ("same", "passed", "passed"),
        "test_after_all[2]": ("same", "passed", "passed"),
        "test_mul": ("worse", "passed", "failed"),
    }
    # Each test once on each side, whatever became of the one before it.
    assert sorted(one for one in runs(tested) if one != "imported") == sorted(
        name for name in found if name != "test_mul" for _ in range(2)
    )
    # Nothing is run again; what a run that was killed had begun is.
    assert run(tested)[1] == found
    assert runs(tested) == []
    cut_after(tested, "test_mended")
    assert run(tested)[1] == found
    assert [one for one in runs(tested) if one != "imported"] == [
        "test_skipped",
        "test_crash",
        "test_after_all[1]",
        "test_after_all[2]",
    ]
    done = tested.run("upstream-tests", "test_core")
    assert done.code == 1
    assert "worse: tests/test_core.py::test_sub: passed -> failed: assert -1 == 1" in done.err
    assert "8 tests compared" in done.out


def cut_after(lab: ForkLab, test: str) -> None:
    """Leave of our side's record what was written when the test after ``test`` had begun."""
    (path,) = (lab.root / "out/upstream-tests").glob("*/ours/calc/tests.test_core.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if f'{test}", "outcome' in line)
    path.write_text("".join(lines[: at + 2]) + lines[at + 2][:20])


def test_a_test_without_end_costs_its_own_outcome_alone(tested: ForkLab) -> None:
    table = tested.patches.parent / "upstream-tests.toml"
    text = table.read_text().replace('"tests/test_time.py" = "long"\n', "")
    table.write_text(text.replace('"tests/test_fast.py"', '"tests/test_time.py"'))
    code, found = run(tested, "test_time", "--test-timeout", "10", "--jobs", "2")
    assert code == 1  # test_fast is in neither list
    assert found == {
        "test_quick": ("same", "passed", "passed"),
        "test_endless": ("fails on both", "timed out", "timed out"),
        "test_after_it": ("same", "passed", "passed"),
    }


def test_some_of_a_file_s_tests(tested: ForkLab) -> None:
    some = {"test_add": ("same", "passed", "passed")}
    assert run(tested, "test_core", "--only", "_add") == (0, some)
    assert [one for one in runs(tested) if one != "imported"] == ["test_add", "test_add"]
    # What was not asked for is still to be run.
    assert len(run(tested, "test_core")[1]) == 8
    assert "test_add" not in runs(tested)


def test_an_interrupt_says_nothing_of_a_test(tested: ForkLab) -> None:
    table = tested.patches.parent / "upstream-tests.toml"
    text = table.read_text().replace('"tests/test_slow_start.py" = "long"\n', "")
    text = text.replace("[left-out]", '[left-out]\n"tests/test_fast.py" = "long"')
    table.write_text(text.replace(', "tests/test_fast.py"]', ', "tests/test_slow_start.py"]'))
    process = tested.spawn("upstream-tests", "slow_start")
    flag = tested.root / "runs.txt.begun"
    while not flag.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    told = b"forkpatch upstream-tests: interrupted: run it again to go on\n"
    assert (process.returncode, said) == (130, told)
    assert run(tested, "slow_start") == (0, {"test_it": ("same", "passed", "passed")})


def test_another_patch_makes_our_side_run_again(tested: ForkLab) -> None:
    run(tested, "test_fast")
    runs(tested)
    patch = tested.patches / "turn.patch"
    data = patch.read_bytes().replace(b"a * b + 1", b"a * b + 0")
    patch.write_bytes(data)
    tested.ok("record")
    code, found = run(tested, "test_fast")
    assert (code, found) == (0, {"test_mul": ("same", "passed", "passed")})


def test_a_file_that_cannot_be_imported_any_more_is_worse(tested: ForkLab) -> None:
    patch = tested.patches / "turn.patch"
    tested.repo.commit({CORE_PATH: core()}, "Back")
    renamed = core().replace(b"def mul(", b"def times(")
    files: dict[str, bytes | None] = {CORE_PATH: renamed, "python/calc/__init__.py": b""}
    patch.write_bytes(tested.repo.patch(files, message("Turn")))
    tested.ok("record")
    code, found = run(tested, "test_fast")
    assert code == 1
    assert found == {"test_mul": ("worse", "passed", "failed")}


def test_what_touches_the_fork_s_changes_has_to_be_listed(tested: ForkLab) -> None:
    done = tested.ok("upstream-tests", "--choose")
    assert done.out.splitlines()[1:] == [
        "  tests/test_core.py: imports calc.core",
        "  tests/test_fast.py: imports calc.core",
        "  tests/test_slow_start.py: imports calc.core",
        "  tests/test_time.py: imports calc.core",
    ]
    table = tested.patches.parent / "upstream-tests.toml"
    table.write_text(table.read_text().replace(', "tests/test_fast.py"', ""))
    done = tested.run("upstream-tests", "--choose")
    assert done.code == 1
    assert "tests/test_fast.py is in neither list, and it imports calc.core" in done.err
    table.write_text(
        table.read_text().replace("[left-out]", '[left-out]\n"tests/test_fast.py" = "slow"')
    )
    assert tested.run("upstream-tests", "--choose").code == 0


@pytest.mark.parametrize("gone", ["commit", "mirror", "table", "broken"])
def test_it_says_what_it_cannot_do(tested: ForkLab, gone: str) -> None:
    table = tested.patches.parent / "upstream-tests.toml"
    if gone == "commit":
        table.write_text(table.read_text().replace('"1.0" = "', '"1.0" = "0'))
    elif gone == "mirror":
        mirrors = tested.cache / "mirrors.json"
        known: dict[str, Any] = json.loads(mirrors.read_text())
        mirrors.write_text(json.dumps({name: [] for name in known}))
    elif gone == "table":
        table.unlink()
    else:
        table.write_text("folder = 1\n")
    done = tested.run("upstream-tests")
    said = {
        "commit": "no mirror has 0",
        "mirror": "--mirror calc=PATH",
        "table": "the fork lists no tests of upstream's",
        "broken": "it has folder, python",
    }
    assert done.code == 2
    assert said[gone] in done.err


def test_nothing_that_passes_is_no_comparison(tested: ForkLab) -> None:
    table = tested.patches.parent / "upstream-tests.toml"
    table.write_text('before = "raise KeyError(1)"\n' + table.read_text())
    done = tested.run("upstream-tests", "test_fast")
    assert done.code == 1
    assert "no test passes on the pristine trees" in done.err


def test_necessity_says_which_of_them_notice(tested: ForkLab) -> None:
    tested.repo.commit({CORE_PATH: core()}, "Back")
    unseen = {"python/calc/dos.py": b"A = 1\r\nB = 2\r\nC = 4\r\n"}
    tested.add_patch("unseen.patch", tested.repo.patch(dict(unseen), message("Turn C")))
    done = tested.run("necessity", "--upstream-tests", "--json", "-")
    assert {one["patch"]: one["noticed"] for one in done.json} == {
        "turn.patch": ["tests/test_core.py::test_mended"],
        "unseen.patch": None,
    }
    table = tested.patches.parent / "upstream-tests.toml"
    table.write_text('before = "raise KeyError(1)"\n' + table.read_text())
    done = tested.run("necessity", "--upstream-tests", "turn")
    assert done.code == 1
    assert "turn.patch: no upstream test that touches it passes on our trees" in done.err


def test_the_tests_of_the_smallest_package_are_run_for_a_patch(tested: ForkLab) -> None:
    table = tested.patches.parent / "upstream-tests.toml"
    table.write_text(table.read_text().replace('["calc.core"]', '["calc", "calc.deep"]'))
    table_of = read_table(open_fork(load_settings(tested.root)), "calc")
    assert table_of is not None
    deep = touched_by_places([SymbolPlace("python/calc/deep/one.py", "<file>", "")], table_of)
    near = touched_by_places([SymbolPlace("python/calc/core.py", "<file>", "")], table_of)
    about = {"calc": b"import calc\n", "two": b"import calc.deep.two\n", "none": b"import os\n"}
    chosen = {
        place: [one for one in about if reason_to_run(about[one], touched, table_of, wide=False)]
        for place, touched in (("deep", deep), ("near", near))
    }
    assert chosen == {"deep": ["two"], "near": ["calc", "two"]}
    assert all(reason_to_run(about[one], deep, table_of, wide=True) for one in ("calc", "two"))


def test_nothing_of_it_is_left_in_the_repository(tested: ForkLab, tmp_path: Path) -> None:
    run(tested, "test_fast")
    assert not list(tested.root.glob("tests/**/test_fast.py"))


def test_runs_that_share_records_wait_for_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tests = runner.TestRunner(tmp_path / "records", timeout=1)
    tests.run([])
    other = threading.Thread(target=tests.run, args=([],))
    said = ""
    with locked(tmp_path / "records/.lock", "records"):
        other.start()
        while "is in use by process" not in said:
            assert other.is_alive()
            said += capsys.readouterr().err
            time.sleep(0.01)
    other.join(timeout=60)
    assert not other.is_alive()
