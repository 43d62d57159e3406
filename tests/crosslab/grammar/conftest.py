# SPDX-License-Identifier: Apache-2.0
"""The program that writes random answers within a grammar."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import shared_builds, text_probe

from crosslab.host.toolchain import Toolchain


@pytest.fixture(scope="session")
def probe(sanitizers: Toolchain) -> Path:
    return text_probe.build_probe(sanitizers, shared_builds.CACHE, "grammar_probe")
