# SPDX-License-Identifier: Apache-2.0
"""Rules of the list of sessions: it fits on a page, and a session holds no logic."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOXFILE = ROOT / "noxfile.py"
MOST_SESSIONS = 20
MOST_LINES = 15
# Modules that sessions run, by the package that holds them; what installs the lab has all three.
HOLDS = {"crosslab": ("crosslab", "report", "sessions"), "forkpatch": ("forkpatch",)}
LAB = {"prepare", "install_lab", "install_for_tests"}


def sessions() -> list[ast.FunctionDef]:
    body = ast.parse(NOXFILE.read_text(encoding="utf-8")).body
    return [node for node in body if isinstance(node, ast.FunctionDef)]


def test_the_list_of_sessions_fits_on_a_page() -> None:
    functions = sessions()
    assert 0 < len(functions) <= MOST_SESSIONS
    length = {f.name: (f.end_lineno or 0) - f.lineno + 1 for f in functions}
    assert {name: n for name, n in length.items() if n > MOST_LINES} == {}


def test_a_session_installs_what_it_runs() -> None:
    lacking = {}
    for function in sessions():
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        named = [(ast.unparse(call.func).rpartition(".")[2], words_of(call)) for call in calls]
        installed = {word for name, words in named if name == "install" for word in words}
        if LAB & {name for name, _ in named}:
            installed |= set(HOLDS)
        held = {module for package in installed for module in HOLDS.get(package, ())}
        run = {words[0].partition(".")[0] for name, words in named if name == "run_module"}
        ours = {module for modules in HOLDS.values() for module in modules}
        if missing := run & ours - held:
            lacking[function.name] = missing
    assert lacking == {}


def words_of(call: ast.Call) -> list[str]:
    constants = (a.value for a in call.args if isinstance(a, ast.Constant))
    return [value for value in constants if isinstance(value, str)]
