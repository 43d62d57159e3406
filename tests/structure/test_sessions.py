# SPDX-License-Identifier: Apache-2.0
"""Rules of the list of sessions: it fits on a page, and a session holds no logic."""

from __future__ import annotations

import ast
from pathlib import Path

NOXFILE = Path(__file__).resolve().parents[2] / "noxfile.py"
MOST_SESSIONS = 20
MOST_LINES = 15


def test_the_list_of_sessions_fits_on_a_page() -> None:
    body = ast.parse(NOXFILE.read_text(encoding="utf-8")).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    assert 0 < len(functions) <= MOST_SESSIONS
    length = {f.name: (f.end_lineno or 0) - f.lineno + 1 for f in functions}
    assert {name: n for name, n in length.items() if n > MOST_LINES} == {}
