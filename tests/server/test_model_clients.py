# SPDX-License-Identifier: Apache-2.0
"""Programs that work with a real model: evaluation, agents, and pages as they ask."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import CHAT, RESPONSES, TEXT, Served
from support.clients.llm_command import said_by_llm
from support.tiny_runner import LONG

from crosslab.models.int8_error import log_probabilities
from crosslab.models.params import read_params
from crosslab.models.reference import ReferenceLlama

READ = "the cab of bed 12 and a cab, what is that? no end of the bed, hello there "
SEED = {"seed": 3}  # with which a random model ends its calls
TRIP = {"type": "object", "properties": {"to": {"enum": ["a", "b"]}}, "required": ["to"]}


def tokens_of(server: Served, text: str) -> list[int]:
    tokens: list[int] = server.post("/tokenize", {"prompt": text}).json()["tokens"]
    return tokens


def perplexity(params: Path, ids: Sequence[int]) -> float:
    """By the reference, without what comes before the first token."""
    logits = ReferenceLlama(LONG, read_params(params)).read_all(ids)
    return math.exp(-float(log_probabilities(logits, ids).mean()))


def test_prompts_are_scored_as_by_the_reference(server: Served, tiny_params: Path) -> None:
    ids = tokens_of(server, READ * 2)
    expected = perplexity(tiny_params, ids)
    greedy = {"prompt": ids, "temperature": 0, "logprobs": 1}
    asked = {**greedy, "max_tokens": 0, "echo": True}
    for more in ({}, {"max_tokens": 2}):  # again, when the prompt's beginning is in the cache
        (choice,) = server.post(TEXT, {**asked, **more}).json()["choices"]
        first, *scores = choice["logprobs"]["token_logprobs"][: len(ids)]
        assert first is None
        assert math.exp(-sum(scores) / len(scores)) == pytest.approx(expected, rel=1e-4)
        assert choice["text"].startswith(READ * 2)
    last = choice["logprobs"]
    ahead = server.post(TEXT, {**greedy, "max_tokens": 2}).json()["choices"]
    assert last["tokens"][-2:] == ahead[0]["logprobs"]["tokens"]
    assert last["token_logprobs"][-2:] == pytest.approx(
        ahead[0]["logprobs"]["token_logprobs"], abs=1e-4
    )
    whole = {**asked, "prompt": (ids * 20)[: LONG.context]}
    assert server.post(TEXT, whole).status == 200
    assert server.post(TEXT, {**whole, "max_tokens": 1}).status == 400


@pytest.fixture
def server(tiny_server: Served) -> Served:
    return tiny_server


def test_lm_evaluation_harness(
    server: Served, tiny_params: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    harness = pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    texts, choices = tmp_path / "texts.json", tmp_path / "choices.json"
    texts.write_text(json.dumps({"text": READ}), "utf-8")
    asked = {"question": "a cab or a", "answers": [" bed", " cab"], "right": 0}
    choices.write_text(json.dumps(asked), "utf-8")
    local = {"dataset_path": "json", "test_split": "test"}
    rolling = {
        **{"task": "read", "output_type": "loglikelihood_rolling", **local},
        "dataset_kwargs": {"data_files": {"test": str(texts)}},
        **{"doc_to_text": "", "doc_to_target": "text"},
        "metric_list": [{"metric": "byte_perplexity"}],
    }
    chosen = {
        **{"task": "choose", "output_type": "multiple_choice", **local},
        "dataset_kwargs": {"data_files": {"test": str(choices)}},
        **{"doc_to_text": "question", "doc_to_choice": "answers", "doc_to_target": "right"},
        "metric_list": [{"metric": "acc"}],
    }
    model = {"model": "tiny", "base_url": f"{server.url}{TEXT}", "max_length": LONG.context}
    found = harness.simple_evaluate(
        model="local-completions", model_args=model, tasks=[rolling, chosen], bootstrap_iters=0
    )["results"]
    # The harness begins with the end token, and tells the mean of bytes.
    ids = [*tokens_of(server, "<|end|>"), *tokens_of(server, READ)]
    ours = perplexity(tiny_params, ids)
    theirs = found["read"]["byte_perplexity,none"] ** (len(READ) / (len(ids) - 1))
    assert theirs == pytest.approx(ours, rel=1e-4)
    assert found["choose"]["acc,none"] in (0.0, 1.0)


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_openais_agents(server: Served, kind: str) -> None:
    agents = pytest.importorskip("agents", reason="openai-agents is not installed")
    import openai  # noqa: PLC0415

    agents.set_tracing_disabled(True)
    trips: list[str] = []

    async def travel(context: Any, arguments: str) -> str:
        trips.append(json.loads(arguments)["to"])
        return "it is there"

    async def run() -> Any:
        address = {"base_url": f"{server.url}/v1", "api_key": "none", "max_retries": 0}
        async with openai.AsyncOpenAI(**address) as client:
            models = {
                "chat": agents.OpenAIChatCompletionsModel,
                "responses": agents.OpenAIResponsesModel,
            }
            agent = agents.Agent(
                name="traveller",
                instructions="travel",
                model=models[kind](model="tiny", openai_client=client),
                model_settings=agents.ModelSettings(
                    tool_choice="required",
                    parallel_tool_calls=False,
                    max_tokens=600,
                    extra_body=SEED,
                ),
                tools=[agents.FunctionTool("travel", "travels", TRIP, travel)],
            )
            first = await agents.Runner.run(agent, "a cab")
            streamed = agents.Runner.run_streamed(agent, "a cab")
            async for _ in streamed.stream_events():
                pass
            return first.final_output, streamed.final_output

    # After a call the choice is the model's, and a random one writes no calls.
    first, second = asyncio.run(run())
    assert first == second
    assert len(trips) == 2 and set(trips) <= {"a", "b"}


def test_openais_client_parses_responses(server: Served) -> None:
    openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
    format_ = {"type": "json_schema", "name": "trip", "schema": TRIP, "strict": True}
    tool = {"type": "function", "name": "travel", "parameters": TRIP, "strict": True}
    asked: dict[str, Any] = {"model": "tiny", "max_output_tokens": 600, "extra_body": SEED}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        said = client.responses.create(input="a cab", text={"format": format_}, **asked)
        assert json.loads(said.output_text)["to"] in ("a", "b")
        more = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
        with client.responses.stream(input="a cab", **more, **asked) as stream:
            kinds = [event.type for event in stream]
            called = stream.get_final_response()
        assert "response.function_call_arguments.delta" in kinds
        (call,) = called.output
        assert call.name == "travel" and json.loads(call.arguments)["to"] in ("a", "b")
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "it is"}
        told = client.responses.create(
            input=[{"role": "user", "content": "a cab"}, *called.output, result],
            **{**asked, "tools": [tool], "max_output_tokens": 9},
        )
        assert told.usage.input_tokens > called.usage.input_tokens


def test_openais_client_gets_vectors_of_texts(server: Served, tiny_params: Path) -> None:
    openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
    # The second takes several calls of the model, and several others one.
    texts = ["a cab", READ * 2, "no end", *("abc"[n % 3] * (n + 1) for n in range(9))]
    ids = [tokens_of(server, text) for text in texts]
    params, vectors = read_params(tiny_params), []
    for one in ids:
        states = ReferenceLlama(LONG, params).states(one).astype(np.float64)
        vectors.append(states.mean(0) / np.linalg.norm(states.mean(0)))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        # Unless told otherwise the client asks for base64.
        for given, form in ((texts, {}), (ids, {"encoding_format": "float"}), (texts, {})):
            made = client.embeddings.create(model="tiny", input=given, **form)
            assert [each.index for each in made.data] == [*range(len(texts))]
            assert made.usage.prompt_tokens == sum(map(len, ids))
            got = np.array([each.embedding for each in made.data])
            assert np.abs(got - np.array(vectors)).max() < 1e-5
        (alone,) = client.embeddings.create(model="tiny", input=ids[0]).data
        assert alone.embedding == pytest.approx(made.data[0].embedding, abs=1e-6)
        for wrong in ({"input": []}, {"input": "a", "dimensions": 10_000}, {"input": [[97]]}):
            with pytest.raises(openai.BadRequestError) as refused:
                client.embeddings.create(model="tiny", **wrong)
            assert refused.value.param == next(reversed(wrong))


def test_llm_has_a_chat(server: Served, tmp_path: Path) -> None:
    words = ["-o", "max_tokens", "6", "-o", "temperature", "0"]
    first = said_by_llm(f"{server.url}/v1", "tiny", [*words, "a cab"], tmp_path)
    messages = [{"role": "user", "content": "a cab"}]
    asked = {"max_tokens": 6, "temperature": 0}

    def said() -> str:
        body = server.post(CHAT, {**asked, "messages": messages}).json()
        text: str = body["choices"][0]["message"]["content"]
        return text

    assert first.rstrip("\n") == said().rstrip("\n")
    second = said_by_llm(f"{server.url}/v1", "tiny", [*words, "-c", "and b"], tmp_path)
    messages += [{"role": "assistant", "content": said()}, {"role": "user", "content": "and b"}]
    assert second.rstrip("\n") == said().rstrip("\n")


def test_requests_of_open_webui(server: Served) -> None:
    """What its backend sends, by its documentation of connections and its request's form."""
    assert server.ask("GET", "/v1/models").json()["data"][0]["id"] == "tiny"
    chat = {
        "stream": True,
        "model": "tiny",
        "messages": [{"role": "user", "content": "a cab"}],
        "stream_options": {"include_usage": True},
        "max_tokens": 9,
    }
    *events, last = server.stream(CHAT, **{k: v for k, v in chat.items() if k != "stream"})
    # It asks for no temperature, so that a random model may end before.
    assert 0 < last["usage"]["completion_tokens"] <= 9
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in events)
    title = {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"title of: {text}"}],
        "stream": False,
        "max_completion_tokens": 9,
        "metadata": {"task": "title_generation", "chat_id": "c", "task_body": {}},
    }
    reply = server.post(CHAT, title)
    assert reply.status == 200
    assert reply.json()["choices"][0]["message"]["role"] == "assistant"
    assert (
        server.post(RESPONSES, {"model": "tiny", "input": "a", "max_output_tokens": 1}).status
        == 200
    )
