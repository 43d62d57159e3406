# SPDX-License-Identifier: Apache-2.0
"""Upstream's tests on two sides, with an upstream that has tests of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from groundwork.errors import CommandError
from sessions.upstream_runs import FILE, Result, Runner, Side, SuiteFile, compare
from sessions.upstream_suite import (
    Suite,
    choose,
    mirror_with,
    read_table,
    reason_to_run,
    touched_by,
    write_suite,
)

TESTS = {
    "tests/test_core.py": """import os, signal
import pytest
from calc import core
from calc.core import add, sub

@pytest.fixture(autouse=True)
def noted(request):
    with open(os.environ["RUNS"], "a") as runs:
        runs.write(request.node.name + "\\n")

def test_add(): assert add(1, 2) == 3
def test_sub(): assert sub(2, 1) == 1
def test_wrong_for_long(): assert add(1, 1) == 3
def test_mended(): assert core.mul(2, 3) == 7
def test_skipped(): pytest.skip("no board here")
@pytest.mark.xfail
def test_expected(): assert False
def test_crash(): os.kill(os.getpid(), signal.SIGSEGV)
class TestAll:
    @pytest.mark.parametrize("n", [1, 2])
    def test_after_all(self, n): assert os.environ["CALC_MODE"] == "strict"
""",
    "tests/test_gone.py": "from calc.core import gone\ndef test_gone(): assert gone() == 1\n",
    "tests/test_time.py": """import time
def test_quick(): pass
def test_endless(): time.sleep(600)
def test_after_it(): pass
""",
    "tests/test_elsewhere.py": "def test_nothing(): pass\n",
}
CORE = """def add(a, b): return a + b
def sub(a, b): return {sub}
def mul(a, b): return {mul}
"""
TABLE = """folder = "tests"
python = "python"
packages = ["calc.core"]
run = ["tests/test_core.py", "tests/test_gone.py", "tests/test_time.py"]
left-out = {}
[environment]
CALC_MODE = "strict"
"""


def commit(folder: Path, files: dict[str, str]) -> str:
    """Write the files to a new repository; its commit."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    git = ("git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@b.c")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "x")):
        subprocess.run([*git, *words], check=True)
    done = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """Upstream's tests, written out of its repository."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    (tmp_path / "table.toml").write_text(TABLE)
    table, oid = read_table(tmp_path / "table.toml"), commit(tmp_path / "clone", TESTS)
    mirror = mirror_with([str(tmp_path / "none"), str(tmp_path / "clone")], oid)
    assert table and mirror and mirror_with([str(tmp_path / "clone")], "0" * 40) is None
    return write_suite("calc", table, mirror, oid, tmp_path / "suite")


def make_side(tmp_path: Path, name: str, core: str) -> Side:
    commit(tmp_path / name, {"python/calc/__init__.py": "", "python/calc/core.py": core})
    return Side(name, {"calc": tmp_path / name}, Path(sysconfig.get_path("purelib")))


@pytest.mark.slow
def test_every_test_on_both_sides(suite: Suite, tmp_path: Path) -> None:
    old = CORE.format(sub="a - b", mul="a * b") + "def gone(): return 1\n"
    sides = [make_side(tmp_path, "pristine", old)]
    sides += [make_side(tmp_path, "ours", CORE.format(sub="b - a", mul="a * b + 1"))]
    runner = Runner(Path(sys.executable), tmp_path / "out", timeout=60)

    def found() -> dict[str, tuple[str, str, str]]:
        results = [
            runner.run([SuiteFile(suite, side, path) for path in suite.table.run[:2]])
            for side in sides
        ]
        return {
            one.test.partition("::")[2]: (one.change, one.before.outcome, one.after.outcome)
            for one in compare(*results)
        }

    first = found()
    assert first == {
        "test_add": ("same", "passed", "passed"),
        "test_sub": ("worse", "passed", "failed"),
        "test_wrong_for_long": ("fails on both", "failed", "failed"),
        "test_mended": ("better", "failed", "passed"),
        "test_skipped": ("same", "skipped", "skipped"),
        "test_expected": ("same", "expected failure", "expected failure"),
        "test_crash": ("fails on both", "crashed", "crashed"),
        "TestAll::test_after_all[1]": ("same", "passed", "passed"),
        "TestAll::test_after_all[2]": ("same", "passed", "passed"),
        "test_gone": ("worse", "passed", "failed"),
    }
    # Each test once on each side; nothing is run again until a tree changes.
    runs = (tmp_path / "runs").read_text()
    assert len(runs.splitlines()) == 18
    assert found() == first
    assert (tmp_path / "runs").read_text() == runs
    commit(tmp_path / "ours", {"python/calc/core.py": CORE.format(sub="a - b", mul="a * b")})
    assert found()["test_sub"] == ("same", "passed", "passed")


@pytest.mark.slow
def test_a_test_without_end_costs_its_own_outcome_alone(suite: Suite, tmp_path: Path) -> None:
    side = make_side(tmp_path, "ours", CORE)
    file = SuiteFile(suite, side, "tests/test_time.py")
    (found,) = Runner(Path(sys.executable), tmp_path / "out", timeout=3).run([file]).values()
    assert [(test.rpartition("_")[2], one.outcome) for test, one in found.items()] == [
        ("quick", "passed"),
        ("endless", "crashed"),
        ("it", "passed"),
    ]
    (found,) = Runner(Path(sys.executable), tmp_path / "out", 60, only="quick").run([file]).values()
    assert found == {"tests/test_time.py::test_quick": Result("passed")}


@pytest.mark.slow
def test_an_interrupt_ends_the_tests(suite: Suite, tmp_path: Path) -> None:
    side = make_side(tmp_path, "ours", CORE)
    runner = Runner(Path(sys.executable), tmp_path / "out", timeout=600)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    signal.alarm(4)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        runner.run([SuiteFile(suite, side, "tests/test_time.py")])
    assert time.monotonic() - start < 600
    assert not list((tmp_path / "out").rglob("*.xml"))


def test_what_touches_the_changes(suite: Suite, tmp_path: Path) -> None:
    touched = touched_by([("python/calc/core.py", "sub")], suite.table)
    assert choose(suite, touched) == {
        "tests/test_core.py": "imports calc.core",
        "tests/test_gone.py": "imports calc.core",
    }
    (tmp_path / "table.toml").write_text(TABLE.replace('["calc.core"]', '["calc", "calc.deep"]'))
    table = read_table(tmp_path / "table.toml")
    assert table
    about = {"calc": b"import calc\n", "two": b"import calc.deep.two\n", "none": b"import os\n"}
    deep, near = (
        touched_by([(path, FILE)], table)
        for path in ("python/calc/deep/one.py", "python/calc/core.py")
    )
    assert [one for one in about if reason_to_run(about[one], deep, table, wide=False)] == ["two"]
    chosen = [one for one in about if reason_to_run(about[one], near, table, wide=False)]
    assert chosen == ["calc", "two"]


@pytest.mark.parametrize(
    ("text", "said"),
    [("folder = 1\n", "it has folder"), (TABLE, "in both lists"), ("x", "TOMLDecodeError")],
)
def test_a_table_that_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    both = text.replace("left-out = {}", '[left-out]\n"tests/test_core.py" = "long"')
    (tmp_path / "table.toml").write_text(both)
    with pytest.raises(CommandError) as error:
        read_table(tmp_path / "table.toml")
    assert said in str(error.value)
    assert error.value.exit_code == 2
