# SPDX-License-Identifier: Apache-2.0
"""Independence of forkpatch from the projects that use it, in text and imports."""

from __future__ import annotations

import ast
import re
import sys

import pytest
from forklab import SCRIPTS, ForkLab

from forkpatch.cli.main import main

ENGINE = sorted(
    path for path in (SCRIPTS / "forkpatch").rglob("*") if path.suffix in {".md", ".py", ".toml"}
)
DEPENDENCIES = {
    *("common", "forkpatch", "git", "packaging", "platformdirs", "pytest", "rich", "tomlkit"),
    "tree_sitter",
}


def test_no_file_names_a_project_that_uses_the_engine() -> None:
    assert len(ENGINE) > 30
    for path in ENGINE:
        found = re.search(r"\b(mlc|tvm|risc-?v|rvv|llama|llm|crosslab)\b", path.read_text(), re.I)
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


def test_every_verb_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["--help"])
    assert leaving.value.code == 0
    verbs = re.findall(r"^    ([a-z]\S+)", capsys.readouterr().out, re.MULTILINE)
    assert len(verbs) == 18
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
