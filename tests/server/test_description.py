# SPDX-License-Identifier: Apache-2.0
"""The server's description of itself: true of its answers, fit for generators of clients."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from served import CHAT, RESPONSES, TEXT, Served
from support import tiny_runner
from support.shared_builds import PROJECT

CHAT_BODY = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 3}
ASKED: dict[str, dict[str, Any]] = {
    CHAT: CHAT_BODY,
    TEXT: {"prompt": "ab", "max_tokens": 3, "echo": True, "logprobs": 2},
    RESPONSES: {"input": "abc", "max_output_tokens": 3},
    "/v1/embeddings": {"input": ["ab", "c"], "encoding_format": "float"},
    "/tokenize": {"prompt": "ab", "return_token_strs": True},
    "/detokenize": {"tokens": [1, 2]},
    "/api/chat": {
        "messages": CHAT_BODY["messages"],
        "stream": False,
        "options": {"num_predict": 3},
    },
    "/api/generate": {"prompt": "abc", "stream": False, "options": {"num_predict": 3}},
    "/api/embed": {"input": ["ab", "c"]},
    "/api/embeddings": {"prompt": "ab"},
    "/api/show": {"model": "scripted"},
}
STREAMED = (CHAT, TEXT)


@pytest.fixture(scope="module")
def openapi(server: Served) -> dict[str, Any]:
    document: dict[str, Any] = server.ask("GET", "/openapi.json").json()
    return document


def check(openapi: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    resolved = {**schema, "components": openapi["components"]}
    jsonschema.Draft202012Validator(resolved).validate(value)


def content(openapi: dict[str, Any], path: str, method: str) -> dict[str, Any]:
    answers = openapi["paths"][path][method]["responses"]
    return {kind: about["schema"] for kind, about in answers["200"]["content"].items()}


def test_all_paths_stand_beside_those_of_other_servers(openapi: dict[str, Any]) -> None:
    page = (PROJECT / "docs/api.md").read_text(encoding="utf-8")
    table = page.partition("## Beside llama-server and Ollama")[2].partition("## A message")[0]
    listed = set(re.findall(r"^\| `(\w+ [^`]+)` \| (?:works|differs) \|", table, re.MULTILINE))
    described = {
        f"{method.upper()} {path.replace('{model}', ':model')}"
        for path, about in openapi["paths"].items()
        for method in about
    }
    assert listed == described


def test_answers_are_as_described(server: Served, openapi: dict[str, Any]) -> None:
    posts = {path for path, about in openapi["paths"].items() if "post" in about}
    assert posts == set(ASKED)
    for path, body in ASKED.items():
        asked = openapi["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        check(openapi, asked["schema"], body)
        kinds = content(openapi, path, "post")
        reply = server.post(path, body)
        assert (reply.status, path) == (200, path), reply.body
        check(openapi, kinds["application/json"], reply.json())
    for path in STREAMED:
        events = server.stream(path, **ASKED[path], stream_options={"include_usage": True})
        for event in events:
            check(openapi, content(openapi, path, "post")["text/event-stream"], event)
    for line in server.post("/api/chat", {**ASKED["/api/chat"], "stream": True}).body.splitlines():
        kinds = content(openapi, "/api/chat", "post")
        check(openapi, kinds["application/x-ndjson"], json.loads(line))
    for path, name in ((CHAT, "Error"), ("/api/chat", "OllamaError")):
        check(openapi, openapi["components"]["schemas"][name], server.post(path, {}).json())
    for path in (path for path, about in openapi["paths"].items() if "get" in about):
        reply = server.ask("GET", path.replace("{model}", server.model))
        assert reply.status == 200
        schema = content(openapi, path, "get").get("application/json")
        if schema is not None:
            check(openapi, schema, reply.json())


def test_fields_are_as_described(server: Served, openapi: dict[str, Any]) -> None:
    """A field that is refused is refused with its name; no field of the tables is unknown."""
    for path, body in ASKED.items():
        name = openapi["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        schema = openapi["components"]["schemas"][name["schema"]["$ref"].rpartition("/")[2]]
        assert set(schema.get("required", ())) <= set(body)
        refused = {}
        for field, about in schema["properties"].items():
            what = about.get("description", "")
            ollama = path.startswith("/api/")
            reply = server.post(path, {**body, field: 3 if ollama else {"odd": 1}})
            if what.startswith("ignored"):
                assert reply.status == 200, (path, field, reply.body)
            else:
                error = reply.json()["error"]
                named = error.partition(":")[0] if ollama else error["param"].partition(".")[0]
                refused[field] = (reply.status, named)
        assert refused == {field: (400, field) for field in refused}


def test_the_page_is_the_commands_output(host_runner: Path) -> None:
    def printed(option: str) -> str:
        command = [str(host_runner), "serve", option]
        environment = tiny_runner.host_environment()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    page = (PROJECT / "docs" / "api.md").read_text("utf-8")
    assert page == printed("--describe"), "run: RUNNER serve --describe > docs/api.md"
    assert json.loads(printed("--openapi"))["openapi"] == "3.1.0"


def test_openapi_is_valid(openapi: dict[str, Any]) -> None:
    validator = pytest.importorskip(
        "openapi_spec_validator", reason="openapi-spec-validator is not installed"
    )
    validator.validate(openapi)


def test_a_generator_makes_a_client(
    server: Served, openapi: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openapi_python_client", reason="openapi-python-client is not installed")
    (tmp_path / "openapi.json").write_text(json.dumps(openapi), "utf-8")
    config = tmp_path / "config.yaml"
    config.write_text("post_hooks: []\npackage_name_override: generated\n", "utf-8")
    options = ["--path", "openapi.json", "--meta", "none", "--fail-on-warning"]
    options += ["--output-path", "generated", "--config", str(config)]
    command = [sys.executable, "-m", "openapi_python_client", "generate", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.syspath_prepend(tmp_path)
    from generated import Client, models  # noqa: PLC0415
    from generated.api.default import post_tokenize  # noqa: PLC0415

    with Client(base_url=server.url) as client:
        asked = models.TokenizeRequest(prompt="ab")
        assert post_tokenize.sync(client=client, body=asked).count == 2
