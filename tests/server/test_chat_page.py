# SPDX-License-Identifier: Apache-2.0
"""The chat page in a headless Chromium, on a server with a scripted answerer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from served import Served, until
from support.clients.browser import axe, playwright, started  # noqa: F401 - the fixture browser

PHONE, DESK = 390, 1200


def opened(browser: Any, server: Served, width: int, **more: Any) -> tuple[Any, list[str]]:
    """The page, and what it says on the console or asks of other addresses."""
    page = browser.new_page(viewport={"width": width, "height": 700}, **more)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    asked = (server.url, "data:")
    page.on("request", lambda r: r.url.startswith(asked) or said.append(f"asked {r.url}"))
    page.goto(server.url)
    playwright.expect(page.locator("#model")).to_have_text("scripted")
    return page, said


def state(page: Any, text: str) -> None:
    """Wait until the page says how the answer goes."""
    playwright.expect(page.locator("#state")).to_contain_text(text, timeout=20_000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_chats_by_keyboard(browser: Any, server: Served, width: int, scheme: str) -> None:
    page, said = opened(browser, server, width, color_scheme=scheme)
    page.keyboard.type("abc")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("a b")
    page.keyboard.press("Enter")
    state(page, "tokens in")
    turns = [e.inner_text() for e in page.query_selector_all(".turn > div")]
    assert turns[0] == "abc\na b"
    assert "b a\ncba" in turns[1]
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.type("more")
    page.keyboard.press("Enter")
    playwright.expect(page.locator(".turn")).to_have_count(4)
    state(page, "tokens in")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = axe.Axe().run(page)
    assert found.response["passes"], "axe looked at nothing"
    assert found.violations_count == 0, found.generate_report()
    assert not said
    page.get_by_role("button", name="New chat").click()
    assert page.query_selector_all(".turn") == []
    page.close()


def test_stops_in_the_middle(browser: Any, start: Callable[..., Served]) -> None:
    server = start(4, 0.02)
    page, said = opened(browser, server, DESK)
    page.get_by_text("Settings").click()
    page.get_by_label("Longest answer, tokens").fill("4000")
    page.get_by_label("Message", exact=True).fill("abc")
    page.keyboard.press("Enter")
    playwright.expect(page.locator(".turn").nth(1)).to_contain_text("cba")
    page.keyboard.press("Escape")
    state(page, "stopped")
    assert len(page.query_selector_all(".turn")) == 2
    until(lambda: server.numbers()["mlc_rvv_running"] == 0)
    assert server.numbers()["mlc_rvv_answers_cancelled_total"] == 1
    assert not said
    page.close()


def test_says_what_is_wrong(browser: Any, start: Callable[..., Served]) -> None:
    server = start(4, 0.0, "127.0.0.1", "the-right-key")
    page = browser.new_page()
    page.goto(server.url)
    page.get_by_label("Message", exact=True).fill("abc")
    page.get_by_role("button", name="Send").click()
    page.wait_for_selector(".error")
    assert "this server needs a key" in page.inner_text(".error")
    # The question is not lost.
    assert page.get_by_label("Message", exact=True).input_value() == "abc"
    page.get_by_text("Settings").click()
    page.get_by_label("Key").fill("the-right-key")
    page.get_by_role("button", name="Send").click()
    state(page, "tokens in")
    page.close()
