# SPDX-License-Identifier: Apache-2.0
"""Location of the patched trees that the tests run on."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def trees() -> Path:
    """Folder of the patched trees: ``FORKPATCH_TREES``, or those of the lock's default release."""
    named = os.environ.get("FORKPATCH_TREES")
    if named:
        return Path(named).resolve()
    lock = tomllib.loads((ROOT / "VERSIONS.lock").read_text(encoding="utf-8"))
    return ROOT / ".work" / str(lock["default-release"])
