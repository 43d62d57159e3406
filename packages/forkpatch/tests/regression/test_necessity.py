# SPDX-License-Identifier: Apache-2.0
"""Files that are made to fail where a patch's place is used."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from forkpatch.model.record import SymbolPlace
from forkpatch.regression.necessity import spoil
from forkpatch.symbols.outline import MODULE

REACHED = "forkpatch: this place was reached"
FUNCTIONS = {
    "plain": 'def f():\n    """Say."""\n    return 1\n',
    "one line": "def f(): return 1\n",
    "tabs": "def f():\n\treturn 1\n",
    "decorated": "import functools\n\n\n@functools.cache\ndef f():\n    return 1\n",
    "decorated first": "import functools\n\n\ndef f():\n    @functools.cache\n    def g():\n"
    "        return 1\n\n    return g()\n",
    "letters": "def f(ä='ö'): x = 'ü'; return x\n",
    "futures": "from __future__ import (\n    annotations,\n)\n\n\ndef f():\n    return 1\n",
}


def spoiled(folder: Path, path: str, symbol: str, text: str) -> str:
    (folder / path).write_text(text)
    place = SymbolPlace(path, symbol, "")
    assert spoil(folder, [place]) == (f"{path}: {symbol}",)
    return (folder / path).read_text()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_fails_when_it_runs_and_not_before(name: str, tmp_path: Path) -> None:
    spoiled(tmp_path, "a.py", "f", FUNCTIONS[name])
    module = runpy.run_path(str(tmp_path / "a.py"))
    with pytest.raises(RuntimeError, match=REACHED):
        module["f"]()


def test_a_file_of_python_fails_at_its_import(tmp_path: Path) -> None:
    spoiled(tmp_path, "a.py", MODULE, "X = 1\n")
    with pytest.raises(RuntimeError, match=REACHED):
        runpy.run_path(str(tmp_path / "a.py"))


def test_other_files_fail_without_a_comment(tmp_path: Path) -> None:
    """A line #error is a comment in most languages."""
    text = spoiled(tmp_path, "a.c", "f", "int f(void)\n{\n    return 1;\n}\n\nint x;\n")
    assert text.splitlines()[4] == f"#error {REACHED}"
    text = spoiled(tmp_path, "a.js", "f", "function f() {\n  return 1;\n}\nlet x = f();\n")
    assert text == "let x = f();\n"
    for path in ("a.yml", "CMakeLists.txt", "a.sh"):
        assert spoiled(tmp_path, path, "gone", "x: 1\n") == ""
