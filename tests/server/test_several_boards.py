# SPDX-License-Identifier: Apache-2.0
"""Three servers behind nginx, by the configuration of docs/several-boards.md; one of them dies."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import served
from served import CHAT, Served
from support import text_probe
from support.shared_builds import PROJECT

from crosslab.tokenizer.device_tokenizer import pack

BOARDS = 3
REQUESTS = 30
BODY = {"messages": [{"role": "user", "content": "a b c"}], "max_tokens": 10}


@pytest.fixture
def boards(program: Path, tmp_path: Path) -> Iterator[list[Served]]:
    table = tmp_path / "tokenizer.bin"
    table.write_bytes(pack(text_probe.tiny(97)))
    words = [str(program), str(table), "64", "0.02", "127.0.0.1"]
    with ExitStack() as stack:
        running = []
        for number in range(BOARDS):
            (folder := tmp_path / str(number)).mkdir()
            running.append(stack.enter_context(served.serving(words, folder, may_die=True)))
        yield running


@pytest.fixture
def proxy(boards: list[Served], tmp_path: Path) -> Iterator[Served]:
    """The proxy, as a server to talk to."""
    if not shutil.which("nginx"):
        pytest.skip("nginx is not installed")
    page = (PROJECT / "docs/several-boards.md").read_text()
    found = re.search(r"```nginx\n(.*?)```", page, re.DOTALL)
    assert found
    text = found[1]
    for number, board in enumerate(boards, 1):
        text = text.replace(f"board{number}:8000", f"127.0.0.1:{board.port}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = text.replace("listen 8080", f"listen 127.0.0.1:{port}")
    text = text.replace("http {", "http {\n    access_log off;", 1)
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/pid;\nerror_log {tmp_path}/log;\n{text}")
    command = ["nginx", "-p", str(tmp_path), "-c", "nginx.conf", "-g", "daemon off;"]
    with subprocess.Popen(command) as process:
        served.until((tmp_path / "pid").exists)
        yield replace(boards[0], port=port)
        process.terminate()


def outcome(proxy: Served, *, stream: bool) -> str:
    """How a request ends: whole, cut, or an HTTP status."""
    try:
        reply = proxy.post(CHAT, {**BODY, "stream": stream})
    except (OSError, served.http.client.HTTPException):
        return "cut"
    if reply.status != 200:
        return str(reply.status)
    if stream:
        return "whole" if reply.body.endswith(b"data: [DONE]\n\n") else "cut"
    return "whole" if json.loads(reply.body)["choices"][0]["message"]["content"] else "empty"


def all_at_once(proxy: Served, *, stream: bool, kills: Served | None = None) -> Counter[str]:
    """The outcomes of requests that begin together; a board dies when it answers some of them."""
    outcomes: list[str] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(outcome(proxy, stream=stream)))
        for _ in range(REQUESTS)
    ]
    for thread in threads:
        thread.start()
    if kills is not None:
        served.until(lambda: len(outcomes) > 0)
        kills.process.kill()
    for thread in threads:
        thread.join()
    return Counter(outcomes)


def test_all_boards_answer(proxy: Served, boards: list[Served]) -> None:
    assert all_at_once(proxy, stream=False) == {"whole": REQUESTS}
    for board in boards:
        answers = re.search(
            r"mlc_rvv_answers_total (\d+)", board.ask("GET", "/metrics").body.decode()
        )
        assert answers
        assert int(answers[1]) > REQUESTS // (2 * BOARDS)


def test_a_dead_board_loses_no_request(proxy: Served, boards: list[Served]) -> None:
    """Those that it has not begun to answer go to another board."""
    assert all_at_once(proxy, stream=False, kills=boards[1]) == {"whole": REQUESTS}
    assert all_at_once(proxy, stream=False) == {"whole": REQUESTS}


def test_a_dead_board_cuts_the_streams_in_its_hands(proxy: Served, boards: list[Served]) -> None:
    outcomes = all_at_once(proxy, stream=True, kills=boards[1])
    assert outcomes.keys() <= {"whole", "cut"}
    assert 0 < outcomes["cut"] <= REQUESTS // 2
