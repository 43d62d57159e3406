# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, and what tests of a page in it need; without them they are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from crosslab.host.optional_tools import find_browser

playwright = pytest.importorskip(
    "playwright.sync_api", reason="a browser is driven by playwright, which is not installed"
)
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe-core is not installed"
)


@pytest.fixture(scope="module", name="browser")
def started() -> Iterator[Any]:
    """The browser, which reads pages of our own alone."""
    found = find_browser()
    if found is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        # A sandbox cannot be had as root in a container.
        chromium = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()
