# SPDX-License-Identifier: Apache-2.0
"""The option ``--offline`` of a session: programs that the session starts contact no server."""

from __future__ import annotations

import os
from collections.abc import Sequence

MARK = "MLC_RVV_OFFLINE"
#: Variables that pip, uv, Hugging Face and virtualenv read; :func:`offline` reads :data:`MARK`.
VARIABLES = dict.fromkeys(
    ("PIP_NO_INDEX", "UV_OFFLINE", "HF_HUB_OFFLINE", "VIRTUALENV_NO_PERIODIC_UPDATE", MARK), "1"
)
REMEDY = "type the same command once without --offline"


def heed(words: Sequence[str]) -> None:
    """Set VARIABLES for this process and its children if ``--offline`` follows ``--`` in words."""
    if "--" in words and "--offline" in words[words.index("--") :]:
        os.environ.update(VARIABLES)


def offline() -> bool:
    """Return True if this process may contact no server."""
    return MARK in os.environ
