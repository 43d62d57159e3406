# SPDX-License-Identifier: Apache-2.0
"""Texts of other people cannot control a terminal."""

from __future__ import annotations

import pytest

from groundwork.errors import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünïcode 漢字 🙂\u200d\n\ttabs", "plain, ünïcode 漢字 🙂\u200d\n\ttabs"),
        ("red \x1b[31m", "red \\x1b[31m"),
        ("bell\a back\b over\r", "bell\\x07 back\\x08 over\\r"),
        ("turned \u202e", "turned \\u202e"),
        (b"no text \xff".decode("utf-8", "surrogateescape"), "no text \\udcff"),
        ("c1 \x9b", "c1 \\x9b"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
