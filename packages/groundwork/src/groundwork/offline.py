# SPDX-License-Identifier: Apache-2.0
"""The option ``--offline`` of a session: the programs that the session starts ask no server."""

from __future__ import annotations

import os
from collections.abc import Sequence

MARK = "MLC_RVV_OFFLINE"
#: Each of these programs reads its own variable; :func:`offline` reads ours.
VARIABLES = dict.fromkeys(
    ("PIP_NO_INDEX", "UV_OFFLINE", "HF_HUB_OFFLINE", "VIRTUALENV_NO_PERIODIC_UPDATE", MARK), "1"
)
REMEDY = "type the same command once without --offline"


def heed(words: Sequence[str]) -> None:
    """Set the variables for this process and its children if a session's option asks for it.

    Args:
        words: of the command line; options of a session follow ``--``.
    """
    if "--" in words and "--offline" in words[words.index("--") :]:
        os.environ.update(VARIABLES)


def offline() -> bool:
    """True if no server may be asked."""
    return MARK in os.environ
