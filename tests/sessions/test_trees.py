# SPDX-License-Identifier: Apache-2.0
"""Options of a session: those of the patched trees, companions to install, the command's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sessions.trees import split_options


def test_options_are_parted_and_the_commands_own_are_handed_on() -> None:
    own = ["--accelerator", "mine.toml", "--threads", "2"]
    words = ["--release", "2026.08", own[0], own[1], "--with", "accelerator-study", *own[2:]]
    session: Any = SimpleNamespace(name="build_and_test", posargs=[*words, "--offline"])
    trees, companions, command = split_options(session, "crosslab", "build-and-test")
    assert trees == ["--offline", "--release", "2026.08"]
    assert companions == ["accelerator-study"]
    assert command == own
