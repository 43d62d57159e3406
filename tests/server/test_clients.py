# SPDX-License-Identifier: Apache-2.0
"""Programs that people use: OpenAI's own client, curl, llm, and Prometheus."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from served import CHAT, Served, until
from support.clients.llm_command import said_by_llm

openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")

MESSAGES = [{"role": "user", "content": "abc"}]
FOUR = {"model": "scripted", "messages": MESSAGES, "max_tokens": 6}


@pytest.fixture
def said(server: Served) -> str:
    text: str = server.post(CHAT, FOUR).json()["choices"][0]["message"]["content"]
    return text


def test_openai(server: Served, said: str) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == [server.model]
        whole = client.chat.completions.create(**FOUR)
        assert whole.choices[0].message.content == said
        assert whole.usage.completion_tokens == 6
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(client.chat.completions.create(**FOUR, **options, logprobs=True))
        texts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
        assert "".join(texts) == said
        assert chunks[-1].usage == whole.usage
        assert chunks[-2].choices[0].finish_reason == "length"
        text = client.completions.create(model="scripted", prompt="a b", max_tokens=3, logprobs=1)
        assert text.choices[0].text == "b a"
        assert text.choices[0].logprobs.tokens == ["b", " ", "a"]
        with pytest.raises(openai.BadRequestError, match=r"response_format\.type"):
            client.chat.completions.create(**FOUR, response_format={"type": "xml"})
        with pytest.raises(openai.NotFoundError, match="does not have that model"):
            client.chat.completions.create(**{**FOUR, "model": "gpt"})


def test_openai_stops_in_the_middle(start: Callable[..., Served]) -> None:
    server = start(4, 0.02)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        asked = {**FOUR, "max_tokens": 4000, "stream": True}
        with client.chat.completions.create(**asked) as stream:
            first = next(iter(stream))
        assert first.choices[0].delta.role == "assistant"
        until(lambda: server.numbers()["mlc_rvv_answers_cancelled_total"] == 1)


def test_curl(server: Served, said: str) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    command = [curl, "--silent", "--no-buffer", "--fail", "--json", json.dumps(FOUR)]
    done = subprocess.run([*command, f"{server.url}{CHAT}"], capture_output=True, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == said


@pytest.mark.parametrize("stream", [True, False])
def test_llm(server: Served, said: str, tmp_path: Path, stream: bool) -> None:
    words = ["-o", "max_tokens", "6", "abc", *([] if stream else ["--no-stream"])]
    text = said_by_llm(f"{server.url}/v1", "scripted", words, tmp_path)
    assert text.rstrip("\n") == said.rstrip("\n")


def test_prometheus(server: Served, said: str) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="its client is not installed")
    assert said
    reply = server.ask("GET", "/metrics")
    assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = reply.body.decode()
    families = list(parser.text_string_to_metric_families(text))
    assert all(f.documentation and f.type in ("counter", "gauge") for f in families)
    assert len({f.name for f in families}) == len(families)
    samples = {(s.name, *sorted(s.labels.items())): s.value for f in families for s in f.samples}
    assert len(samples) == len([line for line in text.splitlines() if not line.startswith("#")])
    asked = (("code", "200"), ("path", CHAT))
    assert samples["mlc_rvv_http_requests_total", *asked] >= 1
    assert samples["mlc_rvv_answers_total",] >= 1
