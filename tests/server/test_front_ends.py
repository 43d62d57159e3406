# SPDX-License-Identifier: Apache-2.0
"""Requests as two front ends send them: Continue, and Open WebUI's proxy of Ollama.

Neither can be installed here: Continue is an editor's extension, Open WebUI needs 200 packages. The
fields are those of their sources (Continue in June 2026, Open WebUI 0.12.4); the texts are ours.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from served import CHAT, JSON_TYPE, Reply, Served

SYSTEM = {"role": "system", "content": "d"}
USER = {"role": "user", "content": "abc"}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file.",
        "parameters": {
            "type": "object",
            "required": ["path"],
            "properties": {"path": {"type": "string", "description": "from the root"}},
        },
    },
}
CALL = {"function": {"name": "read_file", "arguments": {"path": "a"}}}
# Continue sends each option that is set, and always the length of its context.
CONTINUE = {
    "options": {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "num_predict": 6,
        "stop": ["<|im_end|>", "/src/"],
        "num_ctx": 8192,
        "mirostat": 0,
        "num_thread": 4,
        "use_mmap": True,
        "min_p": 0.05,
        "num_gpu": 0,
    },
    "keep_alive": 1800,
}
# Open WebUI sends what a user has set of its panel "Advanced Params".
WEBUI = {
    "options": {
        "temperature": 0.8,
        "seed": 7,
        "mirostat_eta": 0.1,
        "mirostat_tau": 5.0,
        "num_batch": 512,
        "num_keep": 24,
        "num_predict": 6,
        "repeat_last_n": 64,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "use_mlock": False,
    },
    "keep_alive": "5m",
    "think": False,
}


def lines(reply: Reply) -> list[dict[str, Any]]:
    """The objects of a stream, of which the last alone is done."""
    assert reply.status == 200, reply.body
    assert reply.headers["Content-Type"] == "application/x-ndjson"
    read = [json.loads(line) for line in reply.body.decode().splitlines()]
    assert [part["done"] for part in read] == [False] * (len(read) - 1) + [True]
    return read


CONVERSATIONS = {
    "continue": {"messages": [SYSTEM, USER], **CONTINUE},
    "continue, an agent": {"messages": [SYSTEM, USER], "tools": [WEATHER], **CONTINUE},
    "continue, after a call": {
        "messages": [
            SYSTEM,
            USER,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "abcd"},
        ],
        **CONTINUE,
    },
    "open webui": {"messages": [USER], **WEBUI},
    "open webui, an empty message": {"messages": [{"role": "system"}, USER], **WEBUI},
    "open webui, after a call": {
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"index": 0, "id": "call_1", **CALL}],
            },
            {"role": "tool", "content": "abcd", "tool_call_id": "call_1"},
        ],
        "tools": [WEATHER],
        **WEBUI,
    },
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_chat(tiny_server: Served, name: str) -> None:
    server = tiny_server  # its chat template has calls
    asked = {"model": f"{server.model}:latest", **CONVERSATIONS[name]}
    parts = lines(server.post("/api/chat", {**asked, "stream": True}))
    assert {part["message"]["role"] for part in parts} == {"assistant"}
    text = "".join(part["message"]["content"] for part in parts)
    calls = [call for part in parts for call in part["message"].get("tool_calls", ())]
    assert text or calls
    assert all(isinstance(call["function"]["arguments"], dict) for call in calls)
    assert parts[-1]["done_reason"] in ("length", "stop")
    whole = server.post("/api/chat", {**asked, "stream": False}).json()
    assert whole["message"]["role"] == "assistant"
    if "seed" in asked["options"]:
        assert whole["message"]["content"] == text


def test_a_line_is_completed(server: Served) -> None:
    """Continue writes the marks of its template itself if the server's has no suffix."""
    shown = server.post("/api/show", {"name": server.model}).json()
    assert ".Suffix" not in shown.get("template", "")
    asked = {"model": server.model, "prompt": "<fim_prefix>a<fim_suffix>b<fim_middle>", "raw": True}
    parts = lines(server.post("/api/generate", {**asked, **CONTINUE, "stream": True}))
    assert "".join(part["response"] for part in parts)
    refused = server.post("/api/generate", {**asked, "suffix": "b", "stream": True})
    assert refused.status == 400
    assert "suffix" in refused.json()["error"]


def test_the_list_of_models(server: Served) -> None:
    """Open WebUI shows a server only if all of these answer; without a key it sends no header."""
    about = JSON_TYPE | {"Authorization": "Bearer "}
    asked = {path: server.ask("GET", path, headers=about) for path in ("/api/tags", "/api/ps")}
    for reply in asked.values():
        (model,) = reply.json()["models"]
        assert model["model"] == model["name"] == f"{server.model}:latest"
    assert server.ask("GET", "/api/version", headers=about).json()["version"]
    shown = server.post("/api/show", {"model": f"{server.model}:latest"}).json()
    assert {"capabilities", "details", "model_info"} <= set(shown)
    assert [model["id"] for model in server.ask("GET", "/v1/models").json()["data"]] == [
        server.model
    ]


def test_unloading_and_other_models(server: Served) -> None:
    """A server of one model keeps it; test_several_models.py has the other."""
    unload = {"model": f"{server.model}:latest", "keep_alive": 0, "prompt": ""}
    assert server.post("/api/generate", unload).json()["done_reason"] == "load"
    for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete"), ("POST", "/api/copy")):
        reply = server.ask(method, path, {"model": "other", "name": "other"})
        assert (reply.status, type(reply.json()["error"])) == (404, str), path


def test_vectors(server: Served) -> None:
    asked = {"model": f"{server.model}:latest", "input": ["abc", "d"], "truncate": True}
    assert len(server.post("/api/embed", asked).json()["embeddings"]) == 2
    assert server.post("/api/embeddings", {"model": server.model, "prompt": "abc"}).json()[
        "embedding"
    ]


def test_the_title_of_a_conversation(server: Served) -> None:
    """Open WebUI's tasks go to the same model by OpenAI's protocol, with fields that are null."""
    asked = {
        "model": server.model,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "abc"}]}],
        "stream": False,
        "max_tokens": 6,
        "stop": None,
        "tools": None,
        "logit_bias": None,
    }
    answer = server.post(CHAT, asked).json()
    assert answer["choices"][0]["message"]["content"]
