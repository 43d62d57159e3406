# SPDX-License-Identifier: Apache-2.0
"""OpenAI's protocol over HTTP, on a scripted answerer: what is taken, refused, and written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import served
from served import CHAT, JSON_TYPE, TEXT, Served
from support import text_probe
from support.shared_builds import PROJECT

from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from crosslab.tokenizer.device_tokenizer import pack

ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 7}
PLAIN = {"prompt": "a b", "max_tokens": 3}


def test_a_chat_is_answered(server: Served) -> None:
    reply = server.post(CHAT, {**ASKED, "model": server.model})
    body = reply.json()
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert body["object"] == "chat.completion"
    assert body["model"] == server.model == "scripted"
    usage = body["usage"]
    assert usage["completion_tokens"] == 7
    assert usage["total_tokens"] == usage["prompt_tokens"] + 7
    streamed = server.stream(CHAT, **ASKED)
    deltas = [event["choices"][0]["delta"] for event in streamed]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert "".join(d.get("content", "") for d in deltas) == choice["message"]["content"]
    assert len({event["id"] for event in streamed}) == 1
    assert all(event["object"] == "chat.completion.chunk" for event in streamed)
    ends = [event["choices"][0]["finish_reason"] for event in streamed]
    assert (ends[-1], set(ends[:-1])) == ("length", {None})
    assert not any("usage" in event for event in streamed)


def test_a_text_goes_on(server: Served) -> None:
    body = server.post(TEXT, PLAIN).json()
    assert body["object"] == "text_completion"
    assert body["choices"][0]["text"] == "b a"
    # OpenAI's own limit where nobody says one.
    assert server.post(TEXT, {"prompt": "a b"}).json()["usage"]["completion_tokens"] == 16
    ids = server.post(TEXT, {"prompt": [1, 2, 3], "max_tokens": 3}).json()
    assert ids["choices"][0]["text"] == "cba"
    assert ids["usage"]["prompt_tokens"] == 3


def test_bytes_without_tokens_are_counted_in_a_header(server: Served) -> None:
    reply = server.post(TEXT, {**PLAIN, "prompt": ["a Z", "b"]})
    assert (reply.status, reply.headers["X-Dropped-Bytes"]) == (200, "1")
    messages = [{"role": "user", "content": "ZZ a"}]
    reply = server.post(CHAT, {**ASKED, "messages": messages, "stream": True})
    assert reply.headers["X-Dropped-Bytes"] == "2"
    assert "X-Dropped-Bytes" not in server.post(TEXT, PLAIN).headers


def test_usage_ends_a_stream_that_asks_for_it(server: Served) -> None:
    events = server.stream(CHAT, **ASKED, stream_options={"include_usage": True})
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == server.post(CHAT, ASKED).json()["usage"]


def test_several_answers_to_several_prompts(server: Served) -> None:
    asked = {"prompt": ["a b", "xyz"], "n": 2, "max_tokens": 3}
    body = server.post(TEXT, asked).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in body["choices"]] == ["b a", "b a", "zyx", "zyx"]
    assert body["usage"]["prompt_tokens"] == 6
    assert body["usage"]["completion_tokens"] == 12
    texts = ["", "", "", ""]
    for event in server.stream(TEXT, **asked):
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == ["b a", "b a", "zyx", "zyx"]


def test_log_probabilities(server: Served) -> None:
    chat = server.post(CHAT, {**ASKED, "logprobs": True, "top_logprobs": 1}).json()["choices"][0]
    content = chat["logprobs"]["content"]
    assert len(content) == 7
    assert "".join(entry["token"] for entry in content) == chat["message"]["content"]
    assert all(bytes(e["bytes"]).decode() == e["token"] for e in content)
    assert all([t["logprob"] for t in e["top_logprobs"]] == [-0.5] for e in content)
    lists = server.post(TEXT, {**PLAIN, "logprobs": 1}).json()["choices"][0]["logprobs"]
    assert lists == {
        "tokens": ["b", " ", "a"],
        "token_logprobs": [-0.5] * 3,
        "top_logprobs": [{"b": -0.5}, {" ": -0.5}, {"a": -0.5}],
        "text_offset": [0, 1, 2],
    }


def test_text_offsets_count_characters(program: Path, tmp_path: Path) -> None:
    table = tmp_path / "tokenizer.bin"
    table.write_bytes(pack(text_probe.trained("qwen2")))
    with served.serving([str(program), str(table), "8", "0", "127.0.0.1"], tmp_path) as running:
        asked = {"model": "scripted", "prompt": "aße", "max_tokens": 3, "logprobs": 0}
        lists = running.post(TEXT, asked).json()["choices"][0]["logprobs"]
        assert lists["tokens"] == ["e", "ß", "a"]
        assert lists["text_offset"] == [0, 1, 2]
        choices = [event["choices"][0] for event in running.stream(TEXT, **asked)]
        pieces = [c["logprobs"]["text_offset"] for c in choices if c["logprobs"]]
        assert [offset for piece in pieces for offset in piece] == [0, 1, 2]


def test_a_text_goes_on_with_its_blank(program: Path, tmp_path: Path) -> None:
    """Of a tokenizer that drops the first blank of an answer."""
    table = tmp_path / "tokenizer.bin"
    plain = text_probe.by_character("prepend", strips=True)
    settings = {**plain.settings, "chat_template": text_probe.TEMPLATE}
    table.write_bytes(pack(ChatTokenizer(plain.tokenizer, settings)))
    with served.serving([str(program), str(table), "8", "0", "127.0.0.1"], tmp_path) as running:
        asked = {"prompt": "The fox is", "max_tokens": 3, "echo": True, "logprobs": 0}
        choice = running.post(TEXT, asked).json()["choices"][0]
        assert choice["text"].startswith("The fox is is fox")
        offsets, names = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
        for offset, name in zip(offsets[2:], names[2:], strict=True):  # behind BOS and its blank
            assert choice["text"][offset:].startswith(name)
        assert offsets[:3] == [0, 0, 0]
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "fox is"}]
        said = running.post(CHAT, {"messages": messages, "max_tokens": 2}).json()
        assert said["choices"][0]["message"]["content"].startswith(" is")
        said = running.post(CHAT, {"messages": messages[:1], "max_tokens": 2}).json()
        assert not said["choices"][0]["message"]["content"].startswith(" ")


def test_a_prompt_is_repeated_with_its_log_probabilities(server: Served) -> None:
    asked = {"prompt": ["ab", [2, 3, 1]], "max_tokens": 2, "echo": True, "logprobs": 1}
    body = server.post(TEXT, asked).json()
    assert [c["text"] for c in body["choices"]] == ["abba", "bcaac"]
    first, second = (c["logprobs"] for c in body["choices"])
    assert first == {
        "tokens": ["a", "b", "b", "a"],
        "token_logprobs": [None, -0.5, -0.5, -0.5],
        "top_logprobs": [None, {"b": -0.5}, {"b": -0.5}, {"a": -0.5}],
        "text_offset": [0, 1, 2, 3],
    }
    assert second["tokens"] == ["b", "c", "a", "a", "c"]
    only = server.post(TEXT, {**asked, "prompt": "ab", "max_tokens": 0}).json()
    (choice,) = only["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5]
    assert only["usage"]["completion_tokens"] == 0
    plain = {"prompt": "ab", "max_tokens": 2, "echo": True}
    (choice,) = server.post(TEXT, plain).json()["choices"]
    assert (choice["text"], choice["logprobs"]) == ("abba", None)
    for more in ({}, {"logprobs": 0}, {"max_tokens": 0}):
        whole = server.post(TEXT, {**plain, **more}).json()["choices"][0]
        events = [e["choices"][0] for e in server.stream(TEXT, **{**plain, **more})]
        assert "".join(e["text"] for e in events) == whole["text"]
        streamed = [t for e in events if e["logprobs"] for t in e["logprobs"]["tokens"]]
        assert streamed == (whole["logprobs"] or {"tokens": []})["tokens"]


def test_texts_become_tokens_and_back(server: Served) -> None:
    reply = server.post("/tokenize", {"prompt": "abZ", "return_token_strs": True})
    assert reply.headers["X-Dropped-Bytes"] == "1"
    tokens = reply.json()["tokens"]
    assert reply.json() == {
        "count": 2,
        "max_model_len": 4096,
        "tokens": tokens,
        "token_strs": ["a", "b"],
    }
    assert server.post("/detokenize", {"tokens": tokens}).json() == {"prompt": "ab"}
    chat = server.post("/tokenize", {"messages": ASKED["messages"]}).json()
    assert chat["count"] == server.post(CHAT, ASKED).json()["usage"]["prompt_tokens"]
    assert chat["token_strs"] is None
    text = server.post("/detokenize", {"tokens": chat["tokens"]}).json()["prompt"]
    assert server.post("/tokenize", {"prompt": text}).json()["tokens"] == chat["tokens"]
    for path, body, param in (
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": ASKED["messages"]}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [0, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [*tokens, 2**31 - 1]}, "tokens"),
    ):
        reply = server.post(path, body)
        assert (reply.status, reply.error["param"]) == (400, param), (path, body)
    assert server.post("/tokenize", {"prompt": "a", "model": "gpt"}).status == 404
    odd = server.post("/detokenize", {"tokens": tokens, "surprise": 1})
    assert odd.headers["X-Ignored-Fields"] == "surprise"
    info = server.ask("GET", "/tokenizer_info").json()
    (end,) = server.post("/tokenize", {"prompt": info["eos_token"]}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": [end]}).json()["prompt"] == info["eos_token"]


MORE = {"surprise": 1, "reasoning_effort": "high", "\u00e9\n": [1]}


def test_unknown_fields_are_listed(server: Served) -> None:
    odd = [{"role": "user", "content": "abc", "mood": "good"}]
    reply = server.post(CHAT, {**ASKED, **MORE, "messages": odd, "model": "other"})
    assert reply.status == 200
    listed = reply.headers["X-Ignored-Fields"].split(", ")
    assert sorted(listed) == ["???", "messages[0].mood", "reasoning_effort", "surprise"]
    assert "X-Ignored-Fields" not in server.post(CHAT, ASKED).headers


def test_a_strict_server_refuses_unknown_fields(start: Callable[..., Served]) -> None:
    server = start(4, 0.0, "127.0.0.1", "", "", "strict")
    assert server.post(CHAT, ASKED).status == 200
    reply = server.post(CHAT, {**ASKED, "surprise": 1})
    assert (reply.status, reply.error["param"]) == (400, "surprise")
    reply = server.post(CHAT, {**ASKED, **_schema(WITHOUT_TWINS, strict=False)})
    assert (reply.status, reply.error["param"]) == (400, f"{SCHEMA}.uniqueItems")


def test_keywords_without_a_grammar_are_named(server: Served) -> None:
    # This engine heeds no grammar, so that its answers do not match.
    reply = server.post(CHAT, {**ASKED, **_schema(WITHOUT_TWINS, strict=False)})
    assert (reply.status, reply.headers["X-Checked-Fields"]) == (500, f"{SCHEMA}.uniqueItems")
    plain = server.post(CHAT, {**ASKED, **_schema({"type": "array"}, strict=False)})
    assert (plain.status, "X-Checked-Fields" in plain.headers) == (500, False)


def test_messages_come_as_the_template_takes_them(server: Served) -> None:
    def tokens(*messages: dict[str, Any]) -> int:
        reply = server.post(CHAT, {"messages": [*messages], "max_tokens": 1})
        assert reply.status == 200, reply.body
        return int(reply.json()["usage"]["prompt_tokens"])

    user = {"role": "user", "content": "abc"}
    one = tokens(user)
    assert tokens(user, user) > one
    assert tokens(user, {"role": "system", "content": "b"}, user) > tokens(user, user)
    assert tokens(user, {"role": "assistant", "content": "ab"}) > one
    empty = {"role": "assistant", "content": None, "tool_calls": []}
    assert tokens(user, empty, user) == tokens(user, {**empty, "content": ""}, user)


def test_what_changes_nothing_is_taken(server: Served) -> None:
    neutral = {"n": 1, "stop": None, "user": "me", "metadata": {"a": "b"}, "store": False}
    neutral |= {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}}
    neutral |= {"temperature": 0, "top_p": 1, "seed": 5, "logit_bias": {"3": 0}, "top_k": -1}
    neutral |= {"modalities": ["text"], "frequency_penalty": 0.0, "stream": False}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]
    asked = {"messages": [{"role": "user", "content": parts, "name": "x"}], "max_tokens": 7}
    said = server.post(CHAT, {**asked, **neutral}).json()["choices"]
    assert said == server.post(CHAT, ASKED).json()["choices"]


SCHEMA = "response_format.json_schema.schema"
WITHOUT_TWINS = {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True}


def _schema(schema: Any, *, strict: bool = True) -> dict[str, Any]:
    about = {"name": "n", "strict": strict, **({} if schema is None else {"schema": schema})}
    return {"response_format": {"type": "json_schema", "json_schema": about}}


def _tools(name: Any = "f") -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": name}}]}


DATA_URL = "data:image/png;base64,iVBORw0KGgo="


def _picture(url: object) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def _shows(part: dict[str, Any], role: str = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": [part]}]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "a"}] * 1025}, "messages"),
    ({"messages": _shows({"type": "input_audio"})}, "messages[0].content[0].type"),
    ({"messages": _shows({"type": "image_url"})}, "messages[0].content[0].image_url"),
    ({"messages": _shows(_picture("http://a/b.png"))}, "messages[0].content[0].image_url.url"),
    ({"messages": _shows(_picture(3))}, "messages[0].content[0].image_url.url"),
    # This model reads only text.
    ({"messages": _shows(_picture(DATA_URL))}, "messages[0].content[0].image_url.url"),
    ({"messages": _shows(_picture(DATA_URL), role="system")}, "messages[0].content"),
    (
        {"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]},
        "messages[0].tool_calls[0]",
    ),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_object", "more": 1}}, "response_format.more"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (_schema(None), "response_format.json_schema.schema"),
    (_schema(3), "response_format.json_schema.schema"),
    (_schema({"properties": {"a": {"not": {"const": 1}}}}), f"{SCHEMA}.properties.a.not"),
    (_schema(WITHOUT_TWINS), f"{SCHEMA}.uniqueItems"),
    (_schema({"type": "string", "pattern": "(?=a)b"}), SCHEMA),
    (_schema({"enum": ["x" * 70_000]}), "response_format"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "search"}]}, "tools[0].type"),
    (_tools(name="a b"), "tools[0].function.name"),
    ({**_tools(None), "response_format": {"type": "json_object"}}, "tools[0].function.name"),
    ({**_tools(), "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({**_tools(), "tool_choice": {"type": "allowed_tools", "tools": [1]}}, "tool_choice"),
    ({**_tools(), "tool_choice": "maybe"}, "tool_choice"),
    ({**_tools(), "tool_choice": {"function": {"name": "other"}}}, "tool_choice"),
    # This model's template has no calls.
    (_tools(), "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{}]}, "functions"),
    ({"functions": []}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"store": True}, "store"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": 1.5}, "n"),
    ({"n": "2"}, "n"),
    ({"temperature": "hot"}, "temperature"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1e300}, "max_tokens"),
    ({"max_completion_tokens": 3}, "max_tokens"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": [1]}, "stop"),
    ({"stop": "a" * 1025}, "stop"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"1": "a"}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"seed": 1 << 64}, "seed"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"more": True}}, "stream_options.more"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
]


def test_an_answer_that_does_not_match_its_schema_is_an_error(server: Served) -> None:
    asked = {**ASKED, **_schema({"type": "integer"})}
    reply = server.post(CHAT, asked)
    assert reply.status == 500
    assert reply.error["message"].startswith("the answer does not match its schema: ")
    *events, last = server.stream(CHAT, **asked)
    assert last["error"]["message"] == reply.error["message"]
    assert {event["choices"][0]["finish_reason"] for event in events} == {None}


def test_what_would_change_the_answer_is_refused_by_name(server: Served) -> None:
    for change, param in BAD:
        reply = server.post(CHAT, {**ASKED, **change})
        assert (reply.status, reply.error["param"]) == (400, param), (change, reply.body)
        assert reply.error["message"].startswith(f"{param}: ")
        assert reply.error["type"] == "invalid_request_error"
    for change, code in (
        (_tools(), "unsupported_tools"),
        (_schema({"not": {"const": 1}}), "unsupported_schema"),
    ):
        assert server.post(CHAT, {**ASKED, **change}).error["code"] == code
    for change, param in (
        ({"echo": 1}, "echo"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [[1, -1]]}, "prompt[0][1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [[1], [2, "a"]]}, "prompt[1][1]"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"] * 17}, "prompt"),
        ({"prompt": ["a"] * 16, "n": 2}, "n"),
        ({"messages": []}, "messages"),
    ):
        reply = server.post(TEXT, {**PLAIN, **change})
        assert (reply.status, reply.error["param"]) == (400, param), (change, reply.body)


VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 2**31, 2**63, 1e300, -0.5),
    *("", "a", "é" * 3, [], [[]], [None], [3], ["a"], {}, {"a": None}, {"type": "function"}),
]
CORPUS = PROJECT / "tests" / "fuzz" / "corpus"
BODIES = [
    (CHAT, "runner-chat/full.json"),
    (CHAT, "runner-chat/tools.json"),
    (TEXT, "runner-completion/full.json"),
    ("/v1/responses", "runner-response/items.json"),
    ("/api/chat", "runner-ollama-chat/chat.json"),
    ("/api/generate", "runner-ollama-generate/prompt.json"),
]


def changed(body: Any) -> Iterator[Any]:
    """A body with each of its values, at any depth, replaced by each of VALUES."""
    if isinstance(body, dict | list):
        for key, value in list(body.items() if isinstance(body, dict) else enumerate(body)):
            for other in (*VALUES, *changed(value)):
                copy: Any = body.copy()
                copy[key] = other
                yield copy


@pytest.mark.parametrize(("path", "seed"), BODIES)
def test_no_value_of_a_field_is_a_failure_of_the_server(
    server: Served, path: str, seed: str
) -> None:
    whole = json.loads((CORPUS / seed).read_text())
    bodies = list(changed(whole))
    for body in Random(7).sample(bodies, min(len(bodies), 400)):
        reply = server.post(path, body)
        assert reply.status < 500 or b"does not match its schema" in reply.body, (body, reply.body)


# Values that are read from the text of the body.
IN_TEXT = ("schema", "parameters", "arguments")


def nulls(body: Any) -> Iterator[tuple[Any, Any]]:
    """A body with each of its fields, at any depth, as null, and without that field."""
    if isinstance(body, dict | list):
        for key, value in list(body.items() if isinstance(body, dict) else enumerate(body)):
            if isinstance(body, dict):
                yield {**body, key: None}, {k: v for k, v in body.items() if k != key}
            for changes in () if key in IN_TEXT else nulls(value):
                one, other = body.copy(), body.copy()
                one[key], other[key] = changes
                yield one, other


@pytest.mark.parametrize("most", [(1 << 31) - 1, 10**12, 1 << 53])
def test_as_many_tokens_as_fit(tiny_server: Served, most: int) -> None:
    stop = {"stop": ["a"], "seed": 1}
    chat = {"messages": ASKED["messages"], "max_completion_tokens": most, **stop}
    assert tiny_server.post(CHAT, chat).status == 200
    assert tiny_server.post(TEXT, {"prompt": "a", "max_tokens": most, **stop}).status == 200
    ollama = {"prompt": "a", "options": {"num_predict": most, **stop}, "stream": False}
    assert tiny_server.post("/api/generate", ollama).status == 200


@pytest.mark.parametrize("seed", [(1 << 63) - 1, -(1 << 63), (1 << 64) - 1, 3.0])
def test_seeds_have_64_bits(server: Served, seed: float) -> None:
    assert server.post(TEXT, {"prompt": "a", "max_tokens": 1, "seed": seed}).status == 200


@pytest.mark.parametrize(("path", "seed"), BODIES)
def test_null_is_the_same_as_no_field(server: Served, path: str, seed: str) -> None:
    def told(body: Any) -> tuple[int, Any]:
        reply = server.post(path, body)
        if reply.status < 400:
            return reply.status, None
        error = reply.json()["error"]
        return reply.status, error.split(":")[0] if isinstance(error, str) else error["param"]

    for null, absent in nulls(json.loads((CORPUS / seed).read_text())):
        assert told(null) == told(absent), null


def test_a_body_may_begin_with_a_byte_order_mark(server: Served) -> None:
    for path, body in ((CHAT, ASKED), ("/tokenize", {"prompt": "abc"})):
        plain = server.post(path, json.dumps(body))
        marked = server.post(path, b"\xef\xbb\xbf" + json.dumps(body).encode())
        assert (plain.status, marked.status) == (200, 200), marked.body


@pytest.mark.parametrize(
    ("prompts", "name", "message"),
    [
        (["a", 1], "prompt[1]", "must be a text or a list of token ids"),
        ([[1, 2], 3], "prompt[1]", "must be a text or a list of token ids"),
        (["a", []], "prompt[1]", "is an empty list"),
        ([1, "a"], "prompt[1]", "must be a whole number"),
    ],
)
def test_a_prompt_of_a_wrong_kind_is_refused_by_its_place(
    server: Served, prompts: list[object], name: str, message: str
) -> None:
    reply = server.post(TEXT, {"prompt": prompts, "max_tokens": 1})
    assert reply.status == 400
    assert reply.error["param"] == name
    assert message in reply.error["message"]


def test_bodies_that_are_no_json_are_refused(server: Served) -> None:
    good = json.dumps(ASKED)
    for body, message in (
        (b"", "not JSON"),
        (b"[]", "must be a JSON object"),
        (good[:-1].encode(), "not JSON"),
        (good.encode() + b"x", "not JSON"),
        (good.replace("7", "NaN").encode(), "not JSON"),
        (good.replace("7", "1e999").encode(), "not JSON"),
        (good.replace("7", "07").encode(), "not JSON"),
        (good.replace("abc", "a\\ud800c").encode(), "not JSON"),
        (good.replace("abc", "a\nc").encode(), "not JSON"),
        (good.replace("abc", "é").encode("latin-1"), "is not UTF-8"),
        (b"\xef\xbb\xbf" * 2 + good.encode(), "byte order mark"),
        (good.replace("{", '{"n":1,"n":2,', 1).encode(), "the body: the field 'n' appears twice"),
        (b"[" * 100_000, "nested more than 32 deep"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "nested more than 32 deep"),
    ):
        reply = server.post(CHAT, body)
        assert reply.status == 400, body[:80]
        assert message in reply.error["message"], reply.body
    for count, message in (
        (250_000, "messages: has 250001 messages; send at most 1024"),
        (1_300_000, "the body: has more than 262144 values"),
    ):
        # Reading takes a time that grows with the length alone: it took hours.
        reply = server.post(CHAT, '{"messages":[' + "{}," * count + "{}]}")
        assert (reply.status, message in reply.error["message"]) == (400, True)
    for text, count in (
        ("a" * 4_000_000, "more than 4096"),
        ("ab " * 1_300_000, "more than 4096"),
        ("a" * 5_000, "5000"),
    ):
        reply = server.post(TEXT, {"prompt": text})
        said = f"prompt: the text has {count} tokens; send at most 4096"
        assert (reply.status, reply.error["message"]) == (400, said)
    # A bracket in a text does not count as a bracket.
    deep = {"messages": [{"role": "user", "content": "a" + "[" * 100 + '"{'}], "max_tokens": 7}
    assert server.post(CHAT, deep).status == 200


def test_paths_and_methods(server: Served) -> None:
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("GET", "/v1/models/none", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/health", 405),
        ("OPTIONS", "/v1/models", 405),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", 404),
        ("GET", "/v1/models/..%2f..%2fhealth", 404),
        ("GET", "//health", 404),
        ("GET", "/health/", 404),
        ("GET", "/v1/models%00", 404),
        ("BREW", "/health", 400),
    ):
        reply = server.ask(method, path)
        assert (reply.status, method, path) == (status, method, path)
        assert reply.error["message"]
    assert server.ask("DELETE", "/health").headers["Allow"] == "GET, HEAD"
    assert server.ask("HEAD", "/health").status == 200
    unknown = server.post(CHAT, {**ASKED, "model": "gpt"})
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")


def test_models_health_and_numbers(server: Served) -> None:
    (about,) = server.ask("GET", "/v1/models").json()["data"]
    assert about["id"] == server.model
    assert server.ask("GET", f"/v1/models/{server.model}").json() == about
    assert server.ask("GET", "/health").json() == {"status": "ok", "model": server.model}
    before = server.numbers()
    server.post(CHAT, ASKED)
    server.ask("GET", "/made/up")
    after = server.numbers()
    grown = {name for name, value in after.items() if value > before.get(name, 0)}
    assert 'mlc_rvv_http_requests_total{path="/v1/chat/completions",code="200"}' in grown
    assert "mlc_rvv_answers_total" in grown
    assert not any("made" in name for name in after)


@pytest.mark.parametrize("browser", ["Origin", "Sec-Fetch-Site", "Referer"])
def test_a_page_sends_json_alone(server: Served, browser: str) -> None:
    of_page = {browser: "http://evil.example"}
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        headers = {"Content-Type": kind} | of_page
        assert server.ask("POST", CHAT, json.dumps(ASKED), headers).status == 415
    assert server.ask("POST", CHAT, json.dumps(ASKED), of_page).status == 415


def test_other_programs_need_no_type_of_the_body(server: Served) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # as `curl -d` sends it
    large = ASKED | {"user": "u" * 20000}
    for headers in (form, {"Content-Type": "text/plain"}, {}):
        assert server.ask("POST", CHAT, json.dumps(ASKED), headers).status == 200
        assert server.ask("POST", CHAT, json.dumps(large), headers).status == 200
    assert server.ask("POST", CHAT, "a=b", form).status == 400
    parts = {"Content-Type": "multipart/form-data"}
    assert server.ask("POST", CHAT, json.dumps(ASKED), parts).status == 415
    assert server.post(CHAT, b"x", **{"Content-Encoding": "gzip"}).status == 415
    charset = {"Content-Type": "application/json; charset=utf-8"}
    assert server.ask("POST", CHAT, json.dumps(ASKED), charset).status == 200


def test_a_page_of_another_site_is_kept_out(server: Served) -> None:
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", ""):
        assert server.ask("GET", "/v1/models", None, {"Host": host}).status == 403
    for host in ("localhost", f"LOCALHOST:{server.port}", "127.0.0.1", f"[::1]:{server.port}"):
        assert server.ask("GET", "/v1/models", None, {"Host": host}).status == 200
    reply = server.ask("GET", "/v1/models", None, {"Origin": "https://evil.example"})
    assert not any(name.startswith("Access-Control") for name in reply.headers)


def test_a_key_and_another_origin(start: Callable[..., Served]) -> None:
    key, origin = "secret-key-of-16", "https://friend.example"
    server = start(4, 0.0, "127.0.0.1", f"another,{key}", origin)
    for given in ("", key, f"Basic {key}", "Bearer", "Bearer ", f"Bearer {key}x", "Bearer secret"):
        headers = JSON_TYPE | ({"Authorization": given} if given else {})
        for method, path in (("GET", "/v1/models"), ("POST", CHAT), ("GET", "/metrics")):
            reply = server.ask(method, path, json.dumps(ASKED), headers)
            assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
            assert reply.headers["WWW-Authenticate"] == "Bearer"
    right = JSON_TYPE | {"Authorization": f"bearer  {key}"}
    reply = server.ask("POST", CHAT, json.dumps(ASKED), right)
    assert reply.status == 200
    assert reply.headers["Access-Control-Allow-Origin"] == origin
    assert server.ask("GET", "/health").status == server.ask("GET", "/").status == 200
    preflight = server.ask("OPTIONS", CHAT, None, {"Origin": origin})
    assert preflight.status == 204
    # Clients in pages send further headers; "*" does not cover Authorization.
    allowed = preflight.headers["Access-Control-Allow-Headers"].split(", ")
    assert {"*", "Authorization"} <= {*allowed}
    exposed = reply.headers["Access-Control-Expose-Headers"].split(", ")
    assert {"Retry-After", "X-Checked-Fields", "X-Dropped-Bytes", "X-Ignored-Fields"} <= {*exposed}
    assert key not in server.log.read_text()


def test_an_encoder_answers_nothing(start: Callable[..., Served]) -> None:
    server = start(4, 0.0, "127.0.0.1", "", "", "encodes")
    chat = {"messages": [{"role": "user", "content": "a"}]}
    for path, body in (
        ("/v1/chat/completions", chat),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
        ("/api/chat", {"model": server.model, **chat}),
        ("/api/generate", {"model": server.model, "prompt": "a"}),
    ):
        reply = server.post(path, body)
        assert reply.status == 400, path
        assert "this model gives vectors of texts, and answers nothing" in reply.body.decode()
    # Many texts pass through a short queue.
    reply = server.post("/v1/embeddings", {"input": ["ab", "c"] * 8})
    assert (reply.status, len(reply.json()["data"])) == (200, 16)
    shown = server.post("/api/show", {"model": server.model}).json()
    assert shown["capabilities"] == ["embedding"]
