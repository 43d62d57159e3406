# SPDX-License-Identifier: Apache-2.0
"""The server with a real model: natively with sanitizers, and once in the emulator."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
import served
from served import CHAT, TEXT, Served, words
from support import shared_builds, text_probe, tiny_runner, tool_templates
from support.tiny_runner import LONG, VLEN

from crosslab.artifact.dist import RUN
from crosslab.assemble.link import link_runner
from crosslab.models.params import read_params
from crosslab.models.reference import answer
from crosslab.run.emulator import GuestMachine
from crosslab.tokenizer.device_tokenizer import pack

NEW = 12
PROMPTS = ("a cab", "hello there", "b", "what is that?", "xyz", "no", "the end", "abc abc")
FAULTS, REQUESTS = 60, 200
GROWTH = 5 << 20  # bytes
ROUNDS = 8  # until the sanitizer's allocator has grown to what threads and sizes need


@pytest.fixture(scope="module")
def params(tiny_params: Path) -> Path:
    return tiny_params


@pytest.fixture(scope="module")
def server(tiny_server: Served) -> Served:
    return tiny_server


def test_answers_match_a_schema(server: Served) -> None:
    schema = {
        "type": "object",
        "properties": {
            "word": {"type": "string", "maxLength": 5},
            "kind": {"enum": ["cab", "bed", 3]},
            "counts": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        },
        "required": ["word", "kind", "counts"],
    }
    format_ = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    asked = {"messages": [{"role": "user", "content": "a cab"}], "response_format": format_}
    asked |= {"temperature": 1, "seed": 1, "n": 8}
    choices = server.post(CHAT, asked).json()["choices"]
    said = [json.loads(c["message"]["content"]) for c in choices]
    for one in said:
        jsonschema.validate(one, schema)
        assert list(one) == ["word", "kind", "counts"]
    assert len({json.dumps(one) for one in said}) > 4
    assert {c["finish_reason"] for c in choices} == {"stop"}
    streamed = server.stream(CHAT, **{**asked, "n": 1})
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in streamed)
    assert text == choices[0]["message"]["content"]
    asked["response_format"] = {"type": "json_object"}
    whole = server.post(CHAT, {**asked, "max_tokens": 200}).json()["choices"]
    ended = [c for c in whole if c["finish_reason"] == "stop"]
    assert ended
    assert all(type(json.loads(c["message"]["content"])) is dict for c in ended)


def function(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def test_answers_call_tools(server: Served) -> None:
    tools = [
        function("cab", count={"enum": [1, 22, 333]}),
        function("bed", to={"enum": ["a", "b"]}),
    ]
    messages = [{"role": "user", "content": "a cab"}]
    asked = {"messages": messages, "tools": tools, "temperature": 1, "max_tokens": 600}
    whole = 0
    for seed in range(8):
        more = {"tool_choice": "required", "seed": seed}
        (choice,) = server.post(CHAT, {**asked, **more}).json()["choices"]
        if choice["finish_reason"] == "length":
            continue  # many blanks, or many calls
        whole += 1
        assert choice["finish_reason"] == "tool_calls"
        calls = choice["message"]["tool_calls"]
        assert choice["message"]["content"] is None and calls
        for call in calls:
            said = call["function"]
            schema = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
            jsonschema.validate(json.loads(said["arguments"]), schema[said["name"]])
        assert len({call["id"] for call in calls}) == len(calls)
        events = [e["choices"][0] for e in server.stream(CHAT, **asked, **more)]
        streamed: list[dict[str, Any]] = []
        for part in (d for e in events for d in e["delta"].get("tool_calls", [])):
            if "id" in part:
                streamed.append(part["function"])
            else:
                streamed[part["index"]]["arguments"] += part["function"]["arguments"]
        assert streamed == [call["function"] for call in calls]
        assert events[-1]["finish_reason"] == "tool_calls"
    assert whole >= 3
    chosen = {"tool_choice": {"type": "function", "function": {"name": "bed"}}}
    more = {**chosen, "parallel_tool_calls": False}
    (choice,) = server.post(CHAT, {**asked, **more}).json()["choices"]
    assert [c["function"]["name"] for c in choice["message"]["tool_calls"]] == ["bed"]
    answered = [
        *messages,
        choice["message"],
        {"role": "tool", "tool_call_id": "x", "content": "it is"},
    ]
    (free,) = server.post(CHAT, {**asked, "messages": answered, "max_tokens": 9}).json()["choices"]
    assert free["message"]["content"] and "tool_calls" not in free["message"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_port_that_is_taken_is_told_before_anything_is_read(
    host_runner: Path, tmp_path: Path, shared: bool
) -> None:
    """Also by a program that would share it."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=shared) as other:
        port = str(other.getsockname()[1])
        done = subprocess.run(
            # There is no model at all.
            [str(host_runner), *words(tmp_path / "params", "--port", port)],
            env={**os.environ, **tiny_runner.host_environment()},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 2
    assert f"cannot listen at http://127.0.0.1:{port}: the port is in use" in done.stderr


@pytest.mark.parametrize(("host", "refused"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_a_server_for_other_machines_needs_a_key(
    host_runner: Path, tmp_path: Path, host: str, refused: bool
) -> None:
    done = subprocess.run(
        # There is no model; the server says so later.
        [str(host_runner), *words(tmp_path / "params", "--port", "0", "--host", host)],
        env={**os.environ, **tiny_runner.host_environment()},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert ("needs --api-key-file" in done.stderr) is refused


@pytest.fixture(scope="module")
def expected(params: Path) -> dict[str, str]:
    """The reference's greedy answers to the prompts, in the model's chat."""
    tokenizer = text_probe.tiny(LONG.vocab, tool_templates.HERMES)
    weights = read_params(params)
    said = {}
    for prompt in PROMPTS:
        ids = tokenizer.chat_ids(prompt)
        whole = answer(LONG, weights, ids, max_new=NEW, stop=tokenizer.stop_ids)
        said[prompt] = tokenizer.decode(whole.tokens)
    return said


def asked(prompt: str, **more: object) -> dict[str, object]:
    messages = [{"role": "user", "content": prompt}]
    return {"messages": messages, "max_tokens": NEW, "temperature": 0, **more}


def said(server: Served, prompt: str) -> str:
    reply = server.post(CHAT, asked(prompt))
    assert reply.status == 200, reply.body
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text


def streamed(server: Served, prompt: str) -> str:
    events = server.stream(CHAT, **asked(prompt))
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)


def test_greedy_answers_are_the_references(server: Served, expected: dict[str, str]) -> None:
    assert {prompt: said(server, prompt) for prompt in PROMPTS} == expected
    assert {prompt: streamed(server, prompt) for prompt in PROMPTS} == expected
    assert len(set(expected.values())) > 3


def test_four_at_once_get_what_each_gets_alone(server: Served, expected: dict[str, str]) -> None:
    for at_once in (PROMPTS[:4], PROMPTS[4:]):
        with ThreadPoolExecutor(4) as clients:
            answers = clients.map(lambda prompt: streamed(server, prompt), at_once * 2)
            assert list(answers) == [expected[prompt] for prompt in at_once * 2]
    many = server.post(CHAT, asked(PROMPTS[0], n=4)).json()["choices"]
    assert {choice["message"]["content"] for choice in many} == {expected[PROMPTS[0]]}


def test_the_clients_of_others(server: Served, expected: dict[str, str]) -> None:
    openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
    prompt = PROMPTS[1]
    text = expected[prompt]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        chunks = list(client.chat.completions.create(model="tiny", stream=True, **asked(prompt)))
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == text
        stop = text[4:6]
        whole = client.chat.completions.create(model="tiny", stop=[stop], **asked(prompt))
        assert whole.choices[0].message.content == text[: text.index(stop)]
        assert whole.choices[0].finish_reason == "stop"
        seeded = {**asked(prompt), "temperature": 1.5, "seed": 7, "max_tokens": 30}
        first, second = (
            client.chat.completions.create(model="tiny", **seeded).choices[0].message.content
            for _ in range(2)
        )
        assert first == second
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="tiny", **{**asked("a " * 2000)})


def fault(server: Served, kind: int) -> None:
    """A client that does something wrong; what it gets is its own affair."""
    body = json.dumps(asked("a cab", stream=kind % 2 == 0, max_tokens=600)).encode()
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head = head % CHAT.encode() + b"Content-Length: %d\r\n\r\n"
    with suppress(OSError), server.connect() as connection:
        match kind % 6:
            case 0:  # leaves in the middle of a stream
                connection.sendall(head % len(body) + body)
                connection.recv(200)
            case 1:  # leaves without waiting
                connection.sendall(head % len(body) + body)
            case 2:  # sends half of a body
                connection.sendall(head % len(body) + body[: len(body) // 2])
            case 3:  # too large
                connection.sendall(head % (64 << 20) + b" " * 100_000)
                connection.recv(1000)
            case 4:  # no JSON
                connection.sendall(head % 9 + b'{"a": \xff}}')
                assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")
            case 5:  # slow
                for byte in head[:40]:
                    connection.sendall(bytes([byte]))
                connection.shutdown(socket.SHUT_WR)


def mixed(server: Served, expected: dict[str, str], seed: int) -> list[str]:
    """All requests, a part of them with faults, eight at once; answers that are wrong."""
    order = [True] * FAULTS + [False] * (REQUESTS - FAULTS)
    random.Random(seed).shuffle(order)
    wrong: list[str] = []
    lock = threading.Lock()

    def one(number: int) -> None:
        if order[number]:
            fault(server, number)
            return
        prompt = PROMPTS[number % len(PROMPTS)]
        got = streamed(server, prompt) if number % 3 else said(server, prompt)
        if got != expected[prompt]:
            with lock:
                wrong.append(f"{prompt}: {got}")

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(one, range(REQUESTS)))
    return wrong


def test_faults_harm_nobody_else(server: Served, expected: dict[str, str]) -> None:
    # Rounds alike: what each loses would be seen in every one.
    before, grown = server.resident(), GROWTH
    for turn in range(ROUNDS):
        assert mixed(server, expected, turn) == []
        after = server.resident()
        before, grown = after, after - before
        if grown < GROWTH:
            break
    assert grown < GROWTH
    numbers = server.numbers()
    assert numbers["mlc_rvv_answers_cancelled_total"] > 0
    assert numbers["mlc_rvv_answers_failed_total"] == 0
    assert server.ask("GET", "/health").status == 200


@pytest.mark.usefixtures("emulator")
def test_serves_in_the_emulator(params: Path, tmp_path: Path, expected: dict[str, str]) -> None:
    program = link_runner(tiny_runner.riscv_request(), shared_builds.CACHE)
    qemu = text_probe.in_guest(program)
    for wrong, message in (
        (("--max-new", "3"), "--max-new is not an option of serve"),
        (("--temperature", "-1"), "temperature: -1 is outside 0 to 100"),
        (("--name", "own/er"), "--name: 'own/er' must not contain a slash"),
        (("--cors", "example.org"), "--cors: 'example.org' is not an origin"),
        (("--cors", "https://a.org/x"), "--cors: 'https://a.org/x' is not an origin"),
    ):
        command = [*qemu, *words(params, *wrong)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
    assert GuestMachine(vlen=VLEN).cpu == qemu[2]
    with served.serving([*qemu, *words(params)], tmp_path, {"TVM_NUM_THREADS": "1"}) as server:
        assert streamed(server, PROMPTS[0]) == expected[PROMPTS[0]]
        assert server.post(TEXT, {"prompt": "", "max_tokens": 1}).status == 400


def test_openais_client_parses_and_calls(server: Served) -> None:
    openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    trip = pydantic.create_model("trip", to=(Literal["a", "b"], ...), days=(Literal[1, 22], ...))
    messages = [{"role": "user", "content": "a cab"}]
    asked = {"model": "tiny", "messages": messages, "seed": 3, "max_tokens": 600}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        parsed = client.chat.completions.parse(**asked, response_format=trip)
        said = parsed.choices[0].message.parsed
        assert said.to in ("a", "b")
        tool = openai.pydantic_function_tool(trip, name="trip")
        more = {"tools": [tool], "tool_choice": "required"}
        (call, *_) = client.chat.completions.parse(**asked, **more).choices[0].message.tool_calls
        assert call.function.name == "trip"
        assert type(call.function.parsed_arguments) is trip


def test_langchain_binds_tools_and_structures(server: Served) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    trip = pydantic.create_model("trip", to=(Literal["a", "b"], ...), days=(Literal[1, 22], ...))
    chat = langchain.ChatOpenAI(
        base_url=f"{server.url}/v1", api_key="none", model="tiny", seed=3, max_retries=0
    )
    calls = chat.bind_tools([trip], tool_choice="required").invoke("a cab").tool_calls
    assert calls and {call["name"] for call in calls} == {"trip"}
    for method in ("json_schema", "function_calling"):
        said = chat.with_structured_output(trip, method=method).invoke("a cab")
        assert type(said) is trip


def test_litellm_streams_calls(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no network
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")
    stream = litellm.completion(
        model="openai/tiny",
        api_base=f"{server.url}/v1",
        api_key="none",
        messages=[{"role": "user", "content": "a cab"}],
        tools=[function("cab", count={"enum": [1, 22, 333]})],
        tool_choice="required",
        stream=True,
        seed=3,
        max_tokens=600,
    )
    whole = litellm.stream_chunk_builder(list(stream))
    (call, *_) = whole.choices[0].message.tool_calls
    assert (call.function.name, type(json.loads(call.function.arguments)["count"])) == ("cab", int)


def test_hang_up_reads_keys_and_names_again(
    host_runner: Path, params: Path, tmp_path: Path
) -> None:
    keys, names, journal = (tmp_path / name for name in ("keys", "names", "journal"))
    keys.write_text("first\n")
    names.write_text("other\n")
    about = {**tiny_runner.host_environment(), "NOTIFY_SOCKET": str(journal)}
    files = ("--api-key-file", str(keys), "--alias-file", str(names))
    command = [str(host_runner), *words(params, *files, "--log-level", "debug")]

    def asked(key: str, model: str) -> int:
        head = {"Authorization": f"Bearer {key}"}
        return running.ask("GET", f"/v1/models/{model}", None, head).status

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(journal))
        manager.settimeout(20)
        with served.serving(command, tmp_path, about) as running:
            assert manager.recv(100) == b"READY=1"
            assert (asked("first", "other"), asked("second", "other")) == (200, 401)
            keys.write_text("second\n")
            names.write_text("renamed\n")
            running.process.send_signal(signal.SIGHUP)
            served.until(lambda: asked("second", "renamed") == 200)
            assert (asked("first", "renamed"), asked("second", "other")) == (401, 404)
            keys.write_text("")
            running.process.send_signal(signal.SIGHUP)
            served.until(lambda: "SIGHUP changed nothing" in running.log.read_text())
            assert asked("second", "renamed") == 200
            running.ask("GET", "/a%0Arunner:%20forged%22", None, {})
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(20) == 0
            assert manager.recv(100) == b"STOPPING=1"
    log = running.log.read_text()
    assert re.search(r'^runner: 127\.0\.0\.1 "GET /v1/models/other" 401 \d+ ms$', log, re.MULTILINE)
    assert '"GET /a?runner: forged?" 404' in log
    assert "refused with 401: this server needs a key" in log
    assert "runner: when it was built, its answer was right\n" in log


def test_a_service_is_told_that_it_is_ready(
    host_runner: Path, params: Path, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        about = {**tiny_runner.host_environment(), "NOTIFY_SOCKET": str(tmp_path / "notify")}
        command = ["sh", "-c", 'eval "$SET"; exec "$@" 2>"$LOG"', "sh", str(host_runner)]
        # The journal's stream by device and inode, which only the process itself knows.
        about["SET"] = 'export JOURNAL_STREAM=$(stat -c %d:%i "$LOG")'
        about["LOG"] = str(tmp_path / "journal")
        (tmp_path / "journal").touch()
        with served.serving([*command, *words(params)], tmp_path, about) as running:
            manager.settimeout(20)
            assert manager.recv(100) == b"READY=1"
            running.ask("GET", "/nothing")
        lines = (tmp_path / "journal").read_text().splitlines()
        assert any(re.match(r'<6>runner: 127\.0\.0\.1 "GET /nothing" 404', one) for one in lines)


def test_several_models_are_served(host_runner: Path, params: Path, tmp_path: Path) -> None:
    """By the run.sh of each; options of serve reach all."""
    for name in ("first", "second"):
        at = tmp_path / "models" / name
        at.mkdir(parents=True)
        shutil.copy(RUN, at)
        for file, target in (("runner", host_runner), ("params", params)):
            (at / file).symlink_to(target)
        (at / "tokenizer.bin").symlink_to(params.parent / "tokenizer.bin")
    # run.sh hands programs for another computer to an emulator.
    about = {**tiny_runner.host_environment(), "MLC_RVV_EMULATOR": "env"}
    keys = tmp_path / "keys"
    keys.write_text("first\n")
    options = ["--models", str(tmp_path / "models"), "--cache-memory", "9", "--max-seq", "96"]
    options += ["--queue", "8", "--api-key-file", str(keys)]
    key = {"Authorization": "Bearer first"}
    asked = {"messages": [{"role": "user", "content": "a cab"}], "max_tokens": 9, "temperature": 0}
    files = ("--params", str(params), "--tokenizer", str(params.parent / "tokenizer.bin"))
    command = [str(host_runner), "serve", *files, "--port", "0"]
    with served.serving([*command, *options], tmp_path, about) as running:
        answers = {
            name: running.post(CHAT, {**asked, "model": name}, **key).json()["choices"][0]
            for name in ("first", "second")
        }
        assert answers["first"] == answers["second"]
        assert answers["first"]["message"]["content"]
        many = running.post(CHAT, {**asked, "model": "second", "n": 9}, **key)
        assert (many.status, many.error["param"]) == (400, "n")
        shown = running.post("/api/show", {"model": "second"}, **key).json()
        assert shown["model_info"]["mlc-rvv.context_length"] == 96
    for wrong, message in (
        (("--alias", "x"), "the models have the names of their folders"),
        (("--typo", "3"), "unknown option '--typo'"),
        (("--max-new", "3"), "--max-new is not an option of serve"),
        (("--api-key-file", ""), "--api-key-file needs a value"),
    ):
        done = subprocess.run(
            [*command, *options, *wrong], env=about, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert message in done.stderr


def test_the_form_of_an_answer_leaves_no_room_for_thoughts(
    host_runner: Path, params: Path, tmp_path: Path
) -> None:
    """Of a model whose prompts end with <think>."""
    thinking = tool_templates.HERMES.replace(
        "assistant\n{% endif %}", "assistant\n<think>{% endif %}"
    )
    table = tmp_path / "tokenizer.bin"
    table.write_bytes(pack(text_probe.tiny(LONG.vocab, thinking + "{# </think> #}")))
    (tmp_path / "params").symlink_to(params)
    command = [str(host_runner), *words(tmp_path / "params")]
    asked = {"messages": [{"role": "user", "content": "a cab"}], "seed": 3, "max_tokens": 600}
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["ab", 3]}}}
    with served.serving(command, tmp_path, tiny_runner.host_environment()) as running:
        thought = running.post(CHAT, {**asked, "max_tokens": 9}).json()["choices"][0]["message"]
        assert thought["reasoning_content"]
        said = running.post(CHAT, {**asked, "response_format": schema}).json()["choices"][0]
        assert json.loads(said["message"]["content"]) in ("ab", 3)
        assert not said["message"].get("reasoning_content")
        tools = [function("bed", to={"enum": ["a", "b"]})]
        forced = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
        (call,) = running.post(CHAT, {**asked, **forced}).json()["choices"][0]["message"][
            "tool_calls"
        ]
        assert call["function"]["name"] == "bed"
