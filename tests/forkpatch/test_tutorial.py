# SPDX-License-Identifier: Apache-2.0
"""The documentation page says what the commands say today."""

from __future__ import annotations

from tutorial import PAGE, make_page


def test_page_is_what_its_commands_print() -> None:
    assert make_page() == PAGE.read_text("utf-8")
