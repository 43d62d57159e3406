# SPDX-License-Identifier: Apache-2.0
"""The chat page in a headless Chromium, on a server with a scripted answerer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from served import Served, until
from support.clients.browser import axe, playwright, started  # noqa: F401 - the fixture browser

WIDTHS = (360, 768, 1280)
FOCUS = "document.activeElement.id || document.activeElement.localName"
MESSAGE = "Message"  # the label of the field
CHAT = "**/v1/chat/completions"
DESK = WIDTHS[-1]


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
@pytest.mark.parametrize("width", WIDTHS)
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


TEXT = """# Title
Some *emphasis*, **strong words**, `a < b`, ~~gone~~ and [a link](https://example.org/a_b).

1. one
2. two
   - inner
   - more

> quoted

| name | value |
|------|-------|
| a    | 1     |

```python
for x in range(3):
    print("**x**")
```
last_name_kept
"""
HOSTILE = (
    "<img src=x onerror=hit()>",
    "<script>hit()</script>",
    "<svg/onload=hit()>",
    "[x](javascript:hit())",
    "[x](JaVaScRiPt:hit())",
    "[x](java&#115;cript:hit())",
    "[x](data:text/html,<script>hit()</script>)",
    "[x](vbscript:hit())",
    "[x](/v1/models)",
    '[x](https://a.example/"onmouseover="hit())',
    "![x](https://a.example/pixel.png)",
    "![x](javascript:hit())",
    "<javascript:hit()>",
    '```"><img src=x onerror=hit()>\n</code></pre><script>hit()</script>\n```',
    "| <img src=x onerror=hit()> |\n|---|\n| <iframe srcdoc='<script>hit()</script>'> |",
    "<a href='javascript:hit()'>x</a><form action=//a.example><button>x",
    "<style>*{display:none}</style><base href=//a.example><meta http-equiv=refresh content=0>",
    ">" * 5000 + "x",
    "  " * 200 + "- x\n" * 50 + "*" * 3000 + "`" * 3000 + "[" * 3000 + "_" * 3000,
)
ELEMENTS = """() => [...document.querySelectorAll("#log *")].map(
    e => [e.localName, ...[...e.attributes].map(a => a.name + "=" + a.value)])"""
OURS = {"class", "type", "data-copy", "aria-label", "tabindex", "href", "target", "rel", "start"}
NAMES = {"div", "p", "h2", "hr", "em", "strong", "code", "del", "a", "ol", "ul", "li", "pre"}
NAMES |= {"table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "span", "button"}
NAMES |= {"blockquote"}


def conversation(page: Any, *answers: str) -> None:
    """Open a conversation with these answers, as the browser kept it."""
    turns: list[dict[str, str]] = []
    for answer in answers:
        turns += [{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}]
    kept = json.dumps([{"id": "1", "turns": turns}])
    page.evaluate("kept => localStorage.setItem('mlc-rvv.conversations', kept)", kept)
    page.reload()
    page.locator("#history").evaluate("e => { e.open = true }")
    page.get_by_role("navigation").get_by_role("button", name="q", exact=True).click()


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (DESK, "light")])
def test_markdown_is_drawn(browser: Any, server: Served, width: int, scheme: str) -> None:
    page, said = opened(browser, server, width, color_scheme=scheme)
    conversation(page, TEXT)
    answer = page.locator(".assistant > div")
    shape = answer.evaluate("e => e.innerHTML").replace(' start="1"', "")
    for part in (
        "<h2>Title</h2>",
        "<em>emphasis</em>, <strong>strong words</strong>, <code>a &lt; b</code>, <del>gone</del>",
        '<a href="https://example.org/a_b" target="_blank" rel="noopener noreferrer nofollow">',
        "<ol><li><p>one</p></li><li><p>two</p><ul><li><p>inner</p></li><li><p>more</p></li></ul>",
        "<blockquote><p>quoted</p></blockquote>",
        "<thead><tr><th>name</th><th>value</th></tr></thead>",
        "<tbody><tr><td>a</td><td>1</td></tr></tbody>",
        '<code>for x in range(3):\n    print("**x**")</code>',
        "<p>last_name_kept</p>",
    ):
        assert part in shape, (part, shape)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy code in python").click()
    state(page, "copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == 'for x in range(3):\n    print("**x**")'
    page.get_by_text("Settings").click()
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not said
    page.close()


def test_a_hostile_answer_runs_nothing(browser: Any, server: Served) -> None:
    page, said = opened(browser, server, DESK)
    page.add_init_script("window.hits = 0; window.hit = () => ++window.hits")
    conversation(page, *HOSTILE)
    playwright.expect(page.locator(".assistant")).to_have_count(len(HOSTILE))
    for name, *attributes in page.evaluate(ELEMENTS):
        assert name in NAMES, name
        for attribute in attributes:
            key, _, value = attribute.partition("=")
            assert key in OURS, (name, attribute)
            assert key != "href" or value.startswith(("https://", "http://", "mailto:")), value
    for button in page.query_selector_all(".assistant > div button"):
        button.click()
    assert page.evaluate("window.hits") == 0
    assert not said, said
    # Even markup that got in would not run: the policy names the page's own code by its hash.
    page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"data:,\" onerror=\"hit()\">')"
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.hits") == 0
    page.close()


def ask(page: Any, text: str) -> None:
    """Send a message, and wait until it is answered."""
    page.get_by_label(MESSAGE, exact=True).fill(text)
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#log")).to_have_attribute("aria-busy", "false")
    state(page, "tokens in")


def test_edits_regenerates_keeps_exports_and_deletes(browser: Any, server: Served) -> None:
    page, said = opened(browser, server, DESK)
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_text("Settings").click()
    page.get_by_label("System message").fill("be brief")
    page.get_by_label("Temperature").fill("0.5")
    for text in ("abc", "cab"):
        ask(page, text)
    asked: list[Any] = []
    page.on("request", lambda r: r.method == "POST" and asked.append(json.loads(r.post_data)))
    page.get_by_role("button", name="Regenerate this answer").click()
    state(page, "tokens in")
    assert [m["content"] for m in asked[-1]["messages"]][-1] == "cab"
    assert (asked[-1]["messages"][0]["content"], asked[-1]["temperature"]) == ("be brief", 0.5)
    page.get_by_role("button", name="Edit this message").first.click()
    assert page.get_by_label("Message", exact=True).input_value() == "abc"
    page.keyboard.press("Escape")
    assert page.locator(".turn").count() == 4
    page.get_by_role("button", name="Edit this message").first.click()
    page.get_by_label("Message", exact=True).fill("bed")
    page.keyboard.press("Enter")
    state(page, "tokens in")
    assert [m["content"] for m in asked[-1]["messages"]] == ["be brief", "bed"]
    assert page.locator(".turn").count() == 2
    page.reload()
    assert page.get_by_label("System message").input_value() == "be brief"
    assert page.locator(".turn").count() == 2  # the conversation that was open
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    (kept,) = json.loads(download.value.path().read_text())
    assert kept["turns"][0]["content"] == "bed"
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".turn").count() == 0
    page.get_by_role("button", name="bed", exact=True).click()
    assert page.locator(".turn").count() == 2
    page.get_by_role("button", name="Delete bed").click()
    assert page.locator(".turn").count() == 0
    page.reload()
    assert page.locator("#kept li").count() == 0
    assert not said
    page.close()


def test_reading_back_is_not_disturbed(browser: Any, start: Callable[..., Served]) -> None:
    page, said = opened(browser, start(4, 0.005), 360)
    conversation(page, *["line\n\n" * 30] * 3)
    page.locator("#most").evaluate("e => { e.value = 200 }")
    page.get_by_label("Message", exact=True).fill("abc")
    page.keyboard.press("Enter")
    end = "(e => e.scrollHeight - e.scrollTop - e.clientHeight)(document.querySelector('#turns'))"
    playwright.expect(page.locator(".assistant").last).to_contain_text("cba")
    assert page.evaluate(end) < 40
    page.evaluate("document.querySelector('#turns').scrollTop = 100")
    until(lambda: page.locator("#log").get_attribute("aria-busy") == "false")
    assert page.evaluate("document.querySelector('#turns').scrollTop") == 100
    # Paragraphs that are whole stay as they are: so does what is selected in them.
    kept = page.evaluate("""() => {
        const body = document.createElement("div"), role = "assistant";
        fill(body, { role, content: "a\\n\\nb" });
        const first = body.firstChild;
        fill(body, { role, content: "a\\n\\nbc\\n\\nd" });
        return [first === body.firstChild, body.textContent];
    }""")
    assert kept == [True, "abcd"]
    assert not said
    page.close()


def test_a_screen_reader_finds_its_way(browser: Any, server: Served) -> None:
    page, _ = opened(browser, server, DESK)
    conversation(page, "**yes**")
    log = page.get_by_role("log", name="Messages")
    assert log.get_attribute("aria-live") == "polite"
    tree = page.locator("body").aria_snapshot()
    for part in (
        '- navigation "Conversations"',
        '- heading "scripted" [level=1]',
        '- main "Conversation"',
        '- log "Messages"',
        '- strong: "yes"',
        '- button "Edit this message"',
        '- button "Regenerate this answer"',
        '- form "Your turn"',
        '- textbox "Message"',
    ):
        assert part in tree.replace("- strong: yes", '- strong: "yes"'), (part, tree)
    order = []
    page.locator("#history summary").focus()
    for _ in range(11):
        order.append(page.evaluate(FOCUS))
        page.keyboard.press("Tab")
    # After the list: the conversation and its two buttons, the message and its three (two are on).
    kept = ["summary", "button", "button", "export"]
    assert order == [*kept, "turns", "button", "button", "text", "send", "fresh", "summary"]
    page.close()


def test_failures_lose_nothing(browser: Any, server: Served) -> None:
    page, _ = opened(browser, server, DESK)
    for text in ("abc", "cab"):
        ask(page, text)
    before = page.locator("#log").inner_text()
    error = json.dumps({"error": {"message": "the queue is full"}})
    page.route(CHAT, lambda route: route.fulfill(status=429, body=error))
    page.get_by_role("button", name="Regenerate this answer").click()
    playwright.expect(page.locator(".error")).to_contain_text("the queue is full")
    page.get_by_role("button", name="Edit this message").first.click()
    page.get_by_label(MESSAGE, exact=True).fill("bed")
    page.keyboard.press("Enter")
    state(page, "failed")
    assert page.locator(".error").count() == 1
    assert page.locator("#log").inner_text().startswith(before)
    assert page.locator(".turn:not(.error)").count() == 4
    kept = page.evaluate("JSON.parse(localStorage.getItem('mlc-rvv.conversations'))")
    assert [turn["content"] for turn in kept[0]["turns"]][::2] == ["abc", "cab"]
    # The edited message is still there, and still replaces the first one.
    page.unroute(CHAT)
    page.get_by_role("button", name="Send").click()
    state(page, "tokens in")
    assert page.locator(".turn > div").first.inner_text() == "bed"
    assert page.locator(".turn").count() == 2
    page.close()


def test_thoughts_are_apart_from_the_answer(browser: Any, server: Served) -> None:
    page, said = opened(browser, server, DESK)
    deltas = ({"reasoning_content": "so *it* "}, {"reasoning_content": "is"}, {"content": "yes"})
    choices: list[dict[str, Any]] = [{"delta": delta} for delta in deltas]
    choices.append({"delta": {}, "finish_reason": "length"})
    events: list[dict[str, Any]] = [{"choices": [choice]} for choice in choices]
    events.append({"choices": [], "usage": {"completion_tokens": 7}})
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    asked: list[Any] = []

    def answer(route: Any) -> None:
        asked.append(json.loads(route.request.post_data)["messages"])
        route.fulfill(content_type="text/event-stream", body=body)

    page.route(CHAT, answer)
    ask(page, "is it?")
    state(page, "7 tokens in")
    state(page, "ended by the limit of tokens")
    thoughts = page.locator(".assistant details")
    assert not thoughts.evaluate("e => e.open")
    assert thoughts.locator("p").text_content() == "so it is"
    playwright.expect(page.locator(".assistant > div > p")).to_have_text("yes")
    ask(page, "sure?")
    assert asked[1][1] == {"role": "assistant", "content": "yes"}
    assert not said
    page.close()
