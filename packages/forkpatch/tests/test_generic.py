# SPDX-License-Identifier: Apache-2.0
"""Independence of forkpatch from the projects that use it, in text and imports."""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys

import pytest
from forklab import PACKAGE, ForkLab, git

from forkpatch.cli import main as cli
from forkpatch.cli.main import main

ENGINE = sorted(
    path
    for folder in ("src", "docs")
    for path in (PACKAGE / folder).rglob("*")
    if path.suffix in {".md", ".py", ".toml"}
)
DEPENDENCIES = {
    *("groundwork", "forkpatch", "git", "packaging", "platformdirs", "pytest", "rich", "tomlkit"),
    *("tree_sitter", "unidiff"),
}


def test_no_file_names_a_project_that_uses_the_engine() -> None:
    assert len(ENGINE) > 30
    for path in ENGINE:
        # The page names the projects whose histories it was measured on.
        measured = r"(?ms)^## Precision and recall$.*?(?=^## |\Z)"
        text = re.sub(measured, "", path.read_text(), count=1)
        found = re.search(r"\b(mlc|tvm|risc-?v|rvv|llama|llm|crosslab)\b", text, re.I)
        assert found is None, f"{path.name}: {found}"


def test_engine_imports_nothing_but_its_dependencies() -> None:
    for path in ENGINE:
        if path.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                assert top in DEPENDENCIES or top in sys.stdlib_module_names, f"{path.name}: {name}"


def test_each_verb_is_listed_with_its_module() -> None:
    every = cli._parser(tuple(cli._VERBS))
    (verbs,) = (one for one in every._actions if isinstance(one, argparse._SubParsersAction))
    assert list(verbs.choices) == [verb for names in cli._VERBS.values() for verb in names]


def test_every_verb_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["--help"])
    assert leaving.value.code == 0
    verbs = re.findall(r"^    ([a-z]\S+)", capsys.readouterr().out, re.MULTILINE)
    assert len(verbs) == 21
    for verb in verbs:
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        text = capsys.readouterr().out
        assert f"usage: forkpatch {verb}" in text and "--json" in text


def test_folder_that_is_no_fork_is_a_user_mistake(
    lab: ForkLab, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--root", str(lab.home), "status"]) == 2
    assert "is not a fork's root" in capsys.readouterr().err
    (lab.root / "pyproject.toml").write_text("[tool.forkpatch]\ncolour = 1\n")
    done = lab.run("status")
    assert done.code == 2 and "unknown keys: colour" in done.err
    (lab.root / "pyproject.toml").write_text('[tool.forkpatch]\nlock = "other.toml"\n')
    (lab.root / "VERSIONS.lock").rename(lab.root / "other.toml")
    assert lab.run("status").code == 0
    (lab.root / "other.toml").write_text("[releases\n")
    done = lab.run("status")
    assert done.code == 2 and "other.toml" in done.err


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("patches = 3", "patches = 3 is not a string"),
        ("builds = [1]", "builds = [1] is not a list of strings"),
        ('work = "/"', "work = '/' is outside the fork"),
        ('work = ".."', "work = '..' is outside the fork"),
        ('work = "a/../."', "work = 'a/../.' is outside the fork"),
        ('patches = "/tmp/p"', "patches = '/tmp/p' is outside the fork"),
        ('overlays = "../o"', "overlays = '../o' is outside the fork"),
        ('cache = "../c"', "cache '../c' is not a plain name"),
        ('work = "patches"', "work = 'patches' holds the fork's own files"),
        ('work = "overlays/calc"', "work = 'overlays/calc' holds the fork's own files"),
        ('work = "./VERSIONS.lock"', "work = 'VERSIONS.lock' holds the fork's own files"),
        ('work = "source"', "or lies among them: source/own.c"),
    ],
)
def test_setting_of_another_type_or_outside_of_the_fork_is_refused(
    lab: ForkLab, line: str, word: str
) -> None:
    (lab.root / "source").mkdir()
    (lab.root / "source/own.c").write_text("int own;\n")
    git(lab.root, "init", "-q")
    git(lab.root, "add", "source/own.c")
    (lab.root / "pyproject.toml").write_text(f"[tool.forkpatch]\n{line}\n")
    before = sorted(lab.root.parent.rglob("*"))
    done = lab.run("apply")
    assert done.code == 2 and word in done.err and "pyproject.toml: " in done.err
    assert sorted(lab.root.parent.rglob("*")) == before


def test_work_folder_of_another_name_inside_the_fork_is_used(lab: ForkLab) -> None:
    (lab.root / "pyproject.toml").write_text('[tool.forkpatch]\nwork = "build/trees"\n')
    lab.ok("apply")
    assert (lab.root / "build/trees/r1/calc/LICENSE").is_file()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_stream_is_no_fault(lab: ForkLab, closed: str) -> None:
    command = [sys.executable, "-m", "forkpatch", "--root", str(lab.root), "status"]
    done = subprocess.run(
        ["bash", "-c", f'"$@" {closed}', "bash", *command],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert (b"calc" in done.stdout) is (">&-" not in closed.replace("2>&-", ""))
