# SPDX-License-Identifier: Apache-2.0
"""The tutorial page shows the present output of its commands."""

from __future__ import annotations

from tutorial import PAGE, make_page


def test_page_is_what_its_commands_print() -> None:
    assert make_page() == PAGE.read_text("utf-8")
