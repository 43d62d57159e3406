# SPDX-License-Identifier: Apache-2.0
"""Ollama's API on a scripted answerer: by its own client, and field by field."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from served import CHAT, Served

ollama = pytest.importorskip("ollama", reason="Ollama's client is not installed")

MESSAGES = [{"role": "user", "content": "abc"}]
SIX = {"num_predict": 6}


@pytest.fixture
def client(server: Served) -> Any:
    return ollama.Client(host=server.url)


@pytest.fixture
def said(server: Served) -> str:
    asked = {"messages": MESSAGES, "max_tokens": 6}
    text: str = server.post(CHAT, asked).json()["choices"][0]["message"]["content"]
    return text


def test_a_chat(client: Any, server: Served, said: str) -> None:
    whole = client.chat(model=server.model, messages=MESSAGES, options=SIX)
    assert whole.message.content == said
    assert (whole.done, whole.done_reason, whole.eval_count) == (True, "length", 6)
    assert whole.prompt_eval_count > 0
    assert whole.total_duration > 0
    datetime.fromisoformat(whole.created_at)
    parts = list(client.chat(model=server.model, messages=MESSAGES, options=SIX, stream=True))
    assert "".join(part.message.content for part in parts) == said
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == 6
    assert {part.model for part in parts} == {f"{server.model}:latest"}


def test_a_prompt(client: Any, server: Served, said: str) -> None:
    asked = {"model": f"{server.model}:latest", "options": SIX}
    assert client.generate(prompt="abc", **asked).response == said
    parts = list(client.generate(prompt="abc", stream=True, **asked))
    assert "".join(part.response for part in parts) == said
    raw = client.generate(prompt="a b", raw=True, **{**asked, "options": {"num_predict": 3}})
    assert raw.response == "b a"
    with_system = client.generate(prompt="abc", system="d", **asked)
    assert with_system.prompt_eval_count > raw.prompt_eval_count
    assert client.generate(model=server.model, prompt="").done_reason == "load"
    assert client.chat(model=server.model, messages=[]).done_reason == "load"


def test_models(client: Any, server: Served) -> None:
    (model,) = client.list().models
    assert model.model == f"{server.model}:latest"
    (running,) = client.ps().models
    assert running.model == model.model
    shown = client.show(model.model)
    assert "completion" in shown.capabilities
    assert shown.modelinfo["mlc-rvv.context_length"] > 0
    assert server.ask("GET", "/api/version").json()["version"].count(".") == 2
    with pytest.raises(ollama.ResponseError, match="does not have that model") as refused:
        client.chat(model="llama3", messages=MESSAGES)
    assert refused.value.status_code == 404


def test_vectors(client: Any, server: Served) -> None:
    whole = client.embed(model=server.model, input=["abc", "d"])
    assert [len(vector) for vector in whole.embeddings] == [2, 2]
    assert whole.prompt_eval_count > 0
    short = client.embed(model=server.model, input="abc", dimensions=1)
    assert [list(vector) for vector in short.embeddings] == [[1.0]]
    with pytest.raises(ollama.ResponseError, match="dimensions: must be at most 2"):
        client.embed(model=server.model, input="abc", dimensions=3)
    assert list(client.embeddings(model=server.model, prompt="abc").embedding) == list(
        whole.embeddings[0]
    )


def test_messages_come_as_the_template_takes_them(server: Served) -> None:
    call = {"function": {"name": "f", "arguments": {"a": [1, {"b": 2}]}}}
    theirs = [
        {"role": "user", "content": "abc", "images": []},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "d", "tool_name": "f"},
    ]
    function = {"name": "f", "arguments": json.dumps(call["function"]["arguments"])}
    ours = [
        {"role": "user", "content": "abc"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": function}]},
        {"role": "tool", "content": "d", "name": "f"},
    ]
    asked = {"messages": theirs, "stream": False, "options": SIX}
    reply = server.post("/api/chat", asked).json()
    other = server.post(CHAT, {"messages": ours, "max_tokens": 6}).json()
    assert reply["prompt_eval_count"] == other["usage"]["prompt_tokens"]
    assert reply["message"]["content"] == other["choices"][0]["message"]["content"]


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("/api/chat", {}, "messages: is missing"),
    ("/api/chat", {"messages": 3}, "messages: must be a list"),
    ("/api/chat", {"messages": [3]}, "messages[0]: must be an object"),
    ("/api/chat", {"messages": [{"role": "user", "images": ["aGk="]}]}, "messages[0].images[0]: "),
    ("/api/chat", {"messages": MESSAGES, "options": []}, "options: must be an object"),
    ("/api/chat", {"messages": MESSAGES, "options": {"top_p": "1"}}, "options.top_p: "),
    ("/api/chat", {"messages": MESSAGES, "options": {"num_predict": 0.5}}, "options.num_predict"),
    ("/api/chat", {"messages": MESSAGES, "options": {"stop": 3}}, "options.stop: "),
    ("/api/chat", {"messages": MESSAGES, "format": "xml"}, "format: "),
    ("/api/chat", {"messages": MESSAGES, "format": {"$anchor": "a"}}, "format.$anchor: "),
    ("/api/chat", {"messages": MESSAGES, "stream": "no"}, "stream: "),
    ("/api/chat", {"messages": MESSAGES, "tools": [{"type": "x"}]}, "tools[0].type: "),
    ("/api/chat", {"messages": [{"role": "user", "images": "aGk="}]}, "messages[0].images: "),
    ("/api/chat", {"messages": [{"role": "system", "images": ["a"]}]}, "messages[0].images: "),
    (
        "/api/chat",
        {"messages": [{"role": "user", "content": [PICTURE], "images": ["aGk="]}]},
        "messages[0].images: cannot be used beside pictures in content",
    ),
    ("/api/generate", {"prompt": "a", "images": ["aGk="]}, "images[0]: this model reads only"),
    ("/api/generate", {"prompt": "a", "images": [3]}, "images[0]: "),
    ("/api/generate", {"prompt": "a", "images": ["a"], "raw": True}, "images: "),
    ("/api/generate", {"prompt": ["a"]}, "prompt: "),
    ("/api/generate", {"prompt": "a", "suffix": "b"}, "suffix: "),
    ("/api/generate", {"prompt": "a", "context": [1]}, "context: "),
    ("/api/generate", {"prompt": "a", "raw": True, "system": "b"}, "system: "),
    ("/api/embed", {}, "input: is missing"),
    ("/api/embeddings", {"prompt": 3}, "prompt: "),
    ("/api/show", {"model": 3}, "model: "),
]


def test_errors_name_the_field_in_ollamas_form(server: Served) -> None:
    for path, body, message in BAD:
        reply = server.post(path, body)
        assert reply.status == 400, (path, body, reply.body)
        assert reply.json()["error"].startswith(message), reply.body
    reply = server.ask("POST", "/api/chat", b"{")
    assert (reply.status, list(reply.json())) == (400, ["error"])
    assert list(server.ask("GET", "/api/none").json()) == ["error"]


def test_what_changes_nothing_is_named(server: Served) -> None:
    asked = {"messages": MESSAGES, "stream": False, "options": {**SIX, "num_ctx": 9}, "draft": 1}
    reply = server.post("/api/chat", {**asked, "keep_alive": "5m", "think": False, "tools": []})
    assert reply.status == 200
    assert reply.headers["X-Ignored-Fields"] == "options.num_ctx, draft"


def test_a_seed_of_minus_one_is_another_each_time(server: Served) -> None:
    asked = {"prompt": "a", "stream": False, "options": {**SIX, "seed": -1}}
    reply = server.post("/api/generate", asked)
    assert (reply.status, "X-Ignored-Fields" in reply.headers) == (200, False)


def test_a_stream_ends_with_its_error(server: Served) -> None:
    # The scripted answer follows no grammar.
    asked = {"messages": MESSAGES, "options": SIX, "format": {"type": "integer"}}
    reply = server.post("/api/chat", asked)
    assert reply.headers["Content-Type"] == "application/x-ndjson"
    *lines, last = [json.loads(line) for line in reply.body.splitlines()]
    assert last["error"].startswith("the answer does not match its schema: ")
    assert not any(line["done"] for line in lines)
