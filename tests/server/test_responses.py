# SPDX-License-Identifier: Apache-2.0
"""/v1/responses on a scripted answerer: read as chats, written as items and events."""

from __future__ import annotations

from typing import Any

import pytest
from served import CHAT, RESPONSES, Served

INPUT: dict[str, Any] = {"input": "abc", "max_output_tokens": 7}


def said(server: Served, *messages: dict[str, Any]) -> tuple[str, int]:
    """The answer to a chat, and the tokens of its prompt."""
    body = server.post(CHAT, {"messages": [*messages], "max_tokens": 7}).json()
    return body["choices"][0]["message"]["content"], body["usage"]["prompt_tokens"]


def test_a_text_is_answered(server: Served) -> None:
    reply = server.post(RESPONSES, {**INPUT, "store": True, "metadata": {"a": "b"}})
    body = reply.json()
    text, tokens = said(server, {"role": "user", "content": "abc"})
    (item,) = body["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "incomplete")
    assert [(p["type"], p["text"]) for p in item["content"]] == [("output_text", text)]
    assert (body["object"], body["status"]) == ("response", "incomplete")
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["usage"]["input_tokens"] == tokens
    assert body["usage"]["output_tokens"] == 7
    assert (body["store"], body["metadata"], body["max_output_tokens"]) == (False, {"a": "b"}, 7)
    assert reply.headers["X-Ignored-Fields"] == "store"


def test_items_become_messages(server: Served) -> None:
    system = {"role": "system", "content": "b"}
    user = {"role": "user", "content": "abc"}
    answer = {"role": "assistant", "content": "cab"}
    parts = [{"type": "output_text", "text": "c", "annotations": []}]
    parts.append({"type": "output_text", "text": "ab", "annotations": []})
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "abc"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": parts},
        user,
    ]
    reply = server.post(RESPONSES, {**INPUT, "instructions": "b", "input": items})
    text, tokens = said(server, system, user, answer, user)
    assert reply.json()["output"][0]["content"][0]["text"] == text
    assert reply.json()["usage"]["input_tokens"] == tokens
    assert reply.headers["X-Ignored-Fields"] == "input[1]"


def test_events_make_the_response(server: Served) -> None:
    events = server.response_events(**INPUT)
    whole = server.post(RESPONSES, INPUT).json()
    kinds = [event["type"].removeprefix("response.") for event in events]
    start = ["created", "in_progress", "output_item.added", "content_part.added"]
    end = ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert kinds == [*start, *["output_text.delta"] * (len(kinds) - 8), *end]
    deltas = [event["delta"] for event in events if "delta" in event]
    assert "".join(deltas) == whole["output"][0]["content"][0]["text"]
    assert len(deltas) > 2
    last = events[-1]["response"]
    for body in (last, whole):
        for name in ("id", "created_at"):
            del body[name]
        del body["output"][0]["id"]
    assert last == whole


UNIQUE = {"type": "array", "uniqueItems": True}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 3}, "input"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "robot", "content": "a"}]}, "input[0].role"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0].content[0].type",
    ),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    (
        {
            "text": {
                "format": {"type": "json_schema", "name": "n", "strict": True, "schema": UNIQUE}
            }
        },
        "text.format.schema.uniqueItems",
    ),
]


def test_what_would_change_the_response_is_refused_by_name(server: Served) -> None:
    for change, param in BAD:
        reply = server.post(RESPONSES, {**INPUT, **change})
        assert (reply.status, reply.error["param"]) == (400, param), (change, reply.body)
    long = server.post(RESPONSES, {"input": "abc " * 5000})
    assert (long.error["param"], long.error["code"]) == ("input", "context_length_exceeded")


def test_openais_client(server: Served) -> None:
    openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
    text, _ = said(server, {"role": "user", "content": "abc"})
    asked = {"model": "scripted", **INPUT}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        assert client.responses.create(**asked).output_text == text
        with client.responses.stream(**asked) as stream:
            deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
            assert "".join(deltas) == text
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            client.responses.create(**asked, previous_response_id="resp_1")
