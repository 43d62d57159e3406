# SPDX-License-Identifier: Apache-2.0
"""Files that are written whole or not at all: aside first, then put in place."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

NEW_MODE = 0o644


def write_text(path: Path, text: str) -> None:
    """Write ``text``; a file that is there keeps its mode, its folder is made.

    Raises:
        OSError: it cannot be written; what was there is there still.
    """
    if path.exists() and not path.is_file():
        # A terminal or a pipe: there is nothing to put in place.
        path.write_text(text, encoding="utf-8")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode if path.exists() else NEW_MODE
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as stream:
        aside = Path(stream.name)
        try:
            stream.write(text)
            stream.flush()
            aside.chmod(mode)
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


def write_json(path: Path, value: object) -> None:
    """Write ``value`` as JSON, as :func:`write_text` does."""
    write_text(path, json.dumps(value, indent=2) + "\n")
