# SPDX-License-Identifier: Apache-2.0
"""``serve --models``: a server of several models, whose own servers answer without a model."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import served
from served import CHAT, Served
from support import shared_builds, text_probe

from crosslab.host.toolchain import Toolchain
from crosslab.tokenizer.device_tokenizer import pack

NAMES = ("large", "medium", "small")
BYTES = {"large": 3000, "medium": 2000, "small": 1000}  # of their parameters
CACHE = 500
BODY = {"messages": [{"role": "user", "content": "a b c"}], "max_tokens": 6}


@pytest.fixture(scope="module")
def router(sanitizers: Toolchain) -> Path:
    return text_probe.build_probe(sanitizers, shared_builds.CACHE, "scripted_router")


@pytest.fixture
def folder(program: Path, tmp_path: Path) -> Path:
    """Artefacts whose run.sh notes its process and starts a scripted server."""
    for name in NAMES:
        at = tmp_path / "models" / name
        (at / "params").mkdir(parents=True)
        index = '{"records": []}'
        (at / "params/tensor-cache.json").write_text(index)
        (at / "params/shard.bin").write_bytes(bytes(BYTES[name] - len(index)))
        (at / "tokenizer.bin").write_bytes(pack(text_probe.tiny(97)))
        words = f"{program} {at}/tokenizer.bin 64 0.02 127.0.0.1"
        (at / "run.sh").write_text(
            f'[ "$1 $2 $3 $8 $9" = "serve --name {name} --of {name}" ] || exit 2\n'
            f"echo $$ >>{at}/processes\nSCRIPTED_NAME={name} exec {words}\n"
        )
    (tmp_path / "models/other").mkdir()
    return tmp_path / "models"


Start = Callable[..., Served]
# Freed memory that is held back to find its later use is no leak, nor are stacks of calls.
_KEPT = ("quarantine_size_mb=0", "thread_local_quarantine_size_kb=0", "malloc_context_size=0")
NO_QUARANTINE = {"ASAN_OPTIONS": ":".join(_KEPT)}


@pytest.fixture
def start(router: Path, folder: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts the router with memory for some bytes."""
    with ExitStack() as stack:

        def run(memory: int, *, may_die: bool = False) -> Served:
            words = [str(router), str(folder), str(memory), str(CACHE)]
            running = served.serving(words, tmp_path, NO_QUARANTINE, may_die=may_die)
            return stack.enter_context(running)

        yield run


def processes(folder: Path, name: str) -> list[int]:
    """The processes of a model's server so far."""
    path = folder / name / "processes"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def alive(process: int) -> bool:
    return Path(f"/proc/{process}/exe").exists()


def running(server: Served) -> set[str]:
    models = server.ask("GET", "/api/ps").json()["models"]
    return {model["name"].removesuffix(":latest") for model in models}


def answer(server: Served, model: str, **more: object) -> int:
    reply = server.post(CHAT, {**BODY, "model": model, **more})
    if reply.status == 200 and not more:
        assert reply.json()["model"] == model
    return reply.status


def test_all_models_are_listed_and_none_is_loaded(start: Start) -> None:
    server = start(10_000)
    listed = server.ask("GET", "/v1/models").json()["data"]
    assert [model["id"] for model in listed] == [*NAMES]
    tags = server.ask("GET", "/api/tags").json()["models"]
    assert {tag["name"]: tag["size"] for tag in tags} == {f"{n}:latest": BYTES[n] for n in NAMES}
    assert server.ask("GET", "/v1/models/small").json()["id"] == "small"
    assert running(server) == set()
    assert answer(server, "unknown") == 404
    assert server.post(CHAT, {**BODY, "model": "unknown"}).error["code"] == "model_not_found"
    assert server.ask("GET", "/v1/models/unknown").status == 404
    assert server.post(CHAT, {**BODY, "model": 3}).error["param"] == "model"


def test_a_request_loads_its_model(start: Start, folder: Path) -> None:
    server = start(10_000)
    assert answer(server, "small") == 200
    assert running(server) == {"small"}
    # Without a name it is the model that was asked last; Ollama's names have a tag.
    assert server.post(CHAT, BODY).json()["model"] == "small"
    assert (
        server.post("/api/chat", {**BODY, "model": "large:latest", "stream": False}).status == 200
    )
    assert running(server) == {"small", "large"}
    events = server.stream(CHAT, **BODY, model="medium")
    assert {event["model"] for event in events} == {"medium"}
    lines = server.post("/api/chat", {**BODY, "model": "small"}).body.splitlines()
    assert json.loads(lines[-1])["done"]
    old = served.old_stream(server, CHAT, **BODY, model="small")
    assert b"chunked" not in old.lower()
    assert old.endswith(b"data: [DONE]\n\n")
    refused = server.post(CHAT, {"model": "small", "messages": 3})
    assert (refused.status, refused.error["param"]) == (400, "messages")
    assert [len(processes(folder, name)) for name in NAMES] == [1, 1, 1]


def test_metrics_have_what_the_first_process_knows(start: Start) -> None:
    server = start(10_000)
    assert answer(server, "small") == 200
    numbers = server.numbers()
    assert numbers['mlc_rvv_http_requests_total{path="/v1/chat/completions",code="200"}'] == 1
    assert numbers["process_resident_memory_bytes"] > 0
    assert not [name for name in numbers if "answers" in name or "prompt" in name]


def test_a_model_that_loads_reads_its_keys_again_afterwards(start: Start, folder: Path) -> None:
    at = folder / "small"
    serves = (at / "run.sh").read_text().splitlines()[-1]
    (at / "run.sh").write_text(
        f"echo $$ >{at}/processes; trap 'echo >{at}/reloaded' HUP; trap 'kill $!' TERM\n"
        f"until [ -e {at}/goes-on ]; do sleep 0.05; done\n"
        f"({serves}) &\nwait; wait\n"
    )
    # Under nohup, the shell could not trap the signal.
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    server = start(10_000)
    signal.signal(signal.SIGHUP, inherited)
    request = threading.Thread(target=answer, args=(server, "small"))
    request.start()
    served.until(lambda: processes(folder, "small") != [])
    server.process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert not (at / "reloaded").exists()  # it would have ended the server
    (at / "goes-on").touch()
    request.join()
    served.until((at / "reloaded").exists)


def test_the_model_unused_for_the_longest_time_is_unloaded(start: Start, folder: Path) -> None:
    server = start(BYTES["large"] + BYTES["medium"] + 2 * CACHE)
    for name in ("large", "medium", "large", "small"):
        assert answer(server, name) == 200
    assert running(server) == {"large", "small"}
    assert not alive(processes(folder, "medium")[0])
    assert answer(server, "medium") == 200
    assert running(server) == {"small", "medium"}
    assert len(processes(folder, "large")) == 1
    assert answer(server, "large") == 200
    assert len(processes(folder, "large")) == 2


def test_a_model_stays_loaded_as_long_as_the_request_says(start: Start, folder: Path) -> None:
    server = start(10_000)
    asked = {"stream": False, **BODY}
    for name, kept in (("small", 0), ("medium", "0s"), ("large", "1h30m")):
        asked |= {"model": f"{name}:latest", "keep_alive": kept}
        assert server.post("/api/chat", asked).json()["done"]
    served.until(lambda: running(server) == {"large"})
    assert not alive(processes(folder, "small")[0])
    (model,) = server.ask("GET", "/api/ps").json()["models"]
    left = datetime.fromisoformat(model["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=89) < left <= timedelta(minutes=91)
    # The last request counts; a stream ends before its model is unloaded.
    assert answer(server, "large") == 200
    (model,) = server.ask("GET", "/api/ps").json()["models"]
    assert model["expires_at"].startswith("9999")
    lines = server.post("/api/chat", {**BODY, "model": "large", "keep_alive": "200ms"})
    assert json.loads(lines.body.splitlines()[-1])["done"]
    served.until(lambda: running(server) == set())
    # So a front end unloads a model.
    assert answer(server, "small") == 200
    unload = {"model": "small", "prompt": "", "keep_alive": 0, "stream": False}
    assert server.post("/api/generate", unload).json()["done"]
    served.until(lambda: running(server) == set())
    for wrong in (
        "5 minutes",
        "m",
        "",
        "-",
        "5",
        "1h30",
        "1..5s",
        ".5s",
        "1e3s",
        [],
        True,
        "9" * 50 + "s",
        "\u0661s",
    ):
        refused = server.post("/api/chat", {**asked, "keep_alive": wrong})
        assert (refused.status, "keep_alive" in refused.json()["error"]) == (400, True), wrong
    # OpenAI's protocol has no such field.
    assert answer(server, "small", keep_alive=0) == 200
    assert running(server) == {"small"}


def test_a_model_that_answers_is_not_unloaded(start: Start) -> None:
    server = start(BYTES["large"] + CACHE)
    outcomes = []
    answering = threading.Thread(
        target=lambda: outcomes.append(
            len(server.stream(CHAT, **{**BODY, "max_tokens": 60}, model="large"))
        )
    )
    answering.start()
    served.until(lambda: running(server) == {"large"})
    assert answer(server, "small") == 200
    answering.join()
    assert outcomes[0] > 30
    assert running(server) == {"small"}


def test_a_server_that_ends_is_started_again(start: Start, folder: Path) -> None:
    server = start(10_000)
    assert answer(server, "small") == 200
    os.kill(processes(folder, "small")[0], signal.SIGKILL)
    served.until(lambda: not alive(processes(folder, "small")[0]))
    assert answer(server, "small") == 200
    # A stream that it was sending is cut, so that the client sees it.
    with pytest.raises(http.client.IncompleteRead):
        threading.Timer(0.3, os.kill, (processes(folder, "small")[1], signal.SIGKILL)).start()
        server.stream(CHAT, **{**BODY, "max_tokens": 500}, model="small")
    (folder / "medium/run.sh").write_text("exit 1\n")
    assert answer(server, "medium") == 503
    assert answer(server, "small") == 200


def test_no_server_outlives_the_router(start: Start, folder: Path) -> None:
    server = start(10_000, may_die=True)
    assert [answer(server, name) for name in NAMES] == [200, 200, 200]
    server.process.kill()
    server.process.wait()
    served.until(lambda: not any(alive(processes(folder, name)[0]) for name in NAMES))


@pytest.mark.parametrize("seconds", [2, pytest.param(3600, marks=pytest.mark.long)])
def test_models_are_swapped_under_load_with_faults(
    start: Start, folder: Path, seconds: int
) -> None:
    """Six clients at once, while servers of models are killed: no memory or descriptor is kept."""
    server = start(BYTES["large"] + BYTES["small"] + 2 * CACHE)
    descriptors, tasks = (Path(f"/proc/{server.process.pid}/{name}") for name in ("fd", "task"))
    dice, outcomes, kills, first = random.Random(1), Counter[int](), 0, (0, 0, 0)
    end = time.monotonic() + seconds

    def ask() -> None:
        while time.monotonic() < end:
            try:
                outcomes[answer(server, dice.choice(NAMES))] += 1
            except (OSError, http.client.HTTPException):
                outcomes[0] += 1

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end:
        threads[0].join(0.5 if seconds < 10 else 5)
        name = dice.choice(NAMES)
        if (started := processes(folder, name)) and alive(started[-1]):
            os.kill(started[-1], signal.SIGKILL)
            kills += 1
        if not first[0] and time.monotonic() > end - seconds * 0.9:
            counts = [len(list(folder.iterdir())) for folder in (descriptors, tasks)]
            first = server.resident(), counts[0], counts[1]
    for thread in threads:
        thread.join()
    served.until(lambda: len(list(descriptors.iterdir())) <= first[1] + 2)
    print(f"{dict(outcomes)}, {kills} kills, resident {first[0] >> 10} to", end=" ")
    print(f"{server.resident() >> 10} KiB, loads {[len(processes(folder, n)) for n in NAMES]}")
    # A kill ends at most the answers that its server was giving.
    assert kills
    assert outcomes[200] >= outcomes.total() - 6 * kills
    assert set(outcomes) <= {200, 502, 503, 0}
    if seconds > 60:  # in seconds, the first sample is of a program that has yet to use its parts
        # The pool may grow; with its stacks and sanitizers a thread takes 10 MiB.
        threads_more = max(0, len(list(tasks.iterdir())) - first[2])
        assert server.resident() <= first[0] + (4 << 20) + threads_more * (12 << 20)
    assert answer(server, "small") == 200


def test_a_folder_without_models_is_refused(router: Path, tmp_path: Path) -> None:
    done = served.subprocess.run(
        [str(router), str(tmp_path), "1", "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "there is no folder with run.sh and params" in done.stderr
