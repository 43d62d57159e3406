# SPDX-License-Identifier: Apache-2.0
"""Dump of the module after each pass of a compile, as TVMScript, with a page of the changes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tvm

# Passes that only run other passes on the same module: TVM's, and the project's hooks.
_LIST = re.compile("sequential|Rvv(Fusion|Scheduling|Emission)")
_SHOWN_LINES, _SHOWN_COLUMNS = 48, 112


@tvm.instrument.pass_instrument
class ModuleDump:
    """Instrument that writes the module before the first pass and after each pass that changed it.

    ``000-input.py`` is the module before all passes; ``012-FuseOps.py``, the twelfth later file, is
    the module after the pass FuseOps. ``README.md`` lists all passes in order with the changed
    lines. A pass that another pass runs, on its own module, is part of the outer pass.

    Attributes:
        folder: target folder, created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[str] = []
        self._text = ""
        self._rows: list[str] = []
        self._files = 0

    def run_before_pass(self, module: Any, info: Any) -> None:
        """Before the first pass, write the module."""
        if not self._rows:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._text = module.script()
            (self.folder / "000-input.py").write_text(self._text, encoding="utf-8")
            title = "<!-- SPDX-License-Identifier: Apache-2.0 -->\n# A model through the passes"
            self._rows.append(f"{title}\n\n`000-input.py`\n\n```text\n{self._text}\n```\n")
        self._running.append(str(info.name))

    def run_after_pass(self, module: Any, info: Any) -> None:
        """Write the module if the pass changed it; skip a pass that another pass runs."""
        self._running.pop()
        name = str(info.name)
        if not all(_LIST.fullmatch(outer) for outer in self._running) or _LIST.fullmatch(name):
            return
        text = module.script()
        if text == self._text:
            self._rows.append(f"`{name}` changes nothing.\n")
            return
        self._files += 1
        file = f"{self._files:03d}-{re.sub('[^A-Za-z0-9_.-]', '-', name)}.py"
        (self.folder / file).write_text(text, encoding="utf-8")
        self._rows.append(f"## {name}\n\n`{file}`\n\n{_shown(self._text, text)}")
        self._text = text

    def exit_pass_ctx(self) -> None:
        """Write the page of all passes."""
        if self._rows:
            (self.folder / "README.md").write_text("\n".join(self._rows), encoding="utf-8")


def _shown(old: str, new: str) -> str:
    """Return the first lines of the difference, and the number of omitted lines."""
    lines = list(_changed(old, new))
    omitted = len(lines) - _SHOWN_LINES
    rest = f"\n… {omitted} more lines\n" if omitted > 0 else ""
    return "\n".join(["```diff", *lines[:_SHOWN_LINES], "```", rest])


def _changed(old: str, new: str) -> Iterator[str]:
    for line in difflib.unified_diff(old.splitlines(), new.splitlines(), n=1, lineterm=""):
        if not line.startswith(("---", "+++", "@@")):
            yield line if len(line) <= _SHOWN_COLUMNS else f"{line[: _SHOWN_COLUMNS - 1]}…"
