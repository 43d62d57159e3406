# SPDX-License-Identifier: Apache-2.0
"""Draw the chat page of a running server (``./run.sh serve``) after some messages.

Call: ``uv run python tests/server/page_picture.py URL FILE.png MESSAGE...``
"""

from __future__ import annotations

import sys

from playwright.sync_api import expect, sync_playwright

from crosslab.host.optional_tools import find_browser

SIZE = {"width": 760, "height": 420}
PATIENCE = 600_000  # milliseconds: an emulated model takes its time


def main(url: str, target: str, *messages: str) -> None:
    """Send the messages, one after another, and draw the page when the last is answered."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(url)
        for count, message in enumerate(messages, 1):
            page.keyboard.type(message)
            page.keyboard.press("Enter")
            expect(page.locator(".turn")).to_have_count(2 * count)
            expect(page.locator("#state")).to_contain_text("tokens in", timeout=PATIENCE)
        page.screenshot(path=target)
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
