# SPDX-License-Identifier: Apache-2.0
"""Clients that are slow, gone, many or malicious, on a scripted answerer."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from served import CHAT, RESPONSES, TEXT, Served, old_stream, raw, received, serving, until
from support import text_probe

from crosslab.tokenizer.device_tokenizer import pack

ENDLESS = {"prompt": "a b", "max_tokens": 4000}
SHORT = {"prompt": "a b", "max_tokens": 3}


@pytest.fixture(scope="module")
def patient(start: Callable[..., Served]) -> Served:
    """One that takes 20 ms a token, and lets two requests wait."""
    return start(2, 0.02)


def test_a_disconnect_ends_a_stream_at_once(patient: Served) -> None:
    before = patient.numbers()["mlc_rvv_answers_cancelled_total"]
    connection = patient.connect()
    connection.sendall(raw(TEXT, json.dumps({**ENDLESS, "stream": True})))
    assert b'"text":"b"' in connection.recv(65536) + connection.recv(65536)
    connection.close()
    until(lambda: patient.numbers()["mlc_rvv_running"] == 0, 5)
    assert patient.numbers()["mlc_rvv_answers_cancelled_total"] == before + 1


@pytest.mark.parametrize("half", [False, True])
def test_a_disconnect_ends_an_answer_that_is_no_stream(patient: Served, half: bool) -> None:
    before = patient.numbers()["mlc_rvv_answers_cancelled_total"]
    connection = patient.connect()
    connection.sendall(raw(TEXT, json.dumps(ENDLESS)))
    until(lambda: patient.numbers()["mlc_rvv_running"] == 1)
    if half:  # closed for sending alone: nobody can tell it from one that is gone
        connection.shutdown(socket.SHUT_WR)
    else:
        connection.close()
    until(lambda: patient.numbers()["mlc_rvv_running"] == 0, 5)
    assert patient.numbers()["mlc_rvv_answers_cancelled_total"] == before + 1
    connection.close()


def test_beyond_the_queue_is_429(patient: Served) -> None:
    streams = []
    for waiting in (0, 1, 2):
        streams.append(patient.connect())
        streams[-1].sendall(raw(TEXT, json.dumps({**ENDLESS, "stream": True})))
        until(lambda: patient.numbers()["mlc_rvv_running"] == 1)
        until(lambda waiting=waiting: patient.numbers()["mlc_rvv_queued"] == waiting)
    refused = patient.post(TEXT, SHORT)
    assert (refused.status, refused.error["type"]) == (429, "rate_limit_exceeded")
    assert refused.headers["Retry-After"] == "1"
    assert patient.post(TEXT, {**SHORT, "n": 2}).status == 429
    # More answers than may wait are refused for good.
    refused = patient.post(TEXT, {**SHORT, "n": 3})
    assert (refused.status, refused.error["param"]) == (400, "n")
    for stream in streams:
        stream.close()
    until(lambda: patient.numbers()["mlc_rvv_running"] == 0)
    until(lambda: patient.numbers()["mlc_rvv_queued"] == 0)
    choices = patient.post(TEXT, {**SHORT, "n": 2}).json()["choices"]
    assert [choice["text"] for choice in choices] == ["b a", "b a"]


def test_a_burst_of_streams_leaves_a_thread_for_others(start: Callable[..., Served]) -> None:
    server = start(100, 0.02)
    streams = [server.connect() for _ in range(60)]
    for stream in streams:
        stream.sendall(raw(TEXT, json.dumps({**ENDLESS, "stream": True})))
    # None of them has ended: each takes a minute.
    until(lambda: sum(server.numbers()[f"mlc_rvv_{of}"] for of in ("running", "queued")) == 60, 30)
    for stream in streams:
        stream.close()


def test_broken_requests_get_an_error(server: Served) -> None:
    for data, status in (
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 200 + b"\r\n", 400),
        (raw(CHAT, "{}", **{"Transfer-Encoding": "chunked"}), 400),
        (raw(CHAT, "{}").replace(b"Content-Length: 2", b"Content-Length: -2"), 400),
        (raw(CHAT, "{}").replace(b"Content-Length: 2", b"Content-Length: 5000000"), 413),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nRange: bytes=9-1\r\n\r\n", 416),
    ):
        with server.connect() as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            answer = received(connection)
            assert answer.startswith(f"HTTP/1.1 {status} ".encode()), (data[:60], answer[:200])
    assert server.ask("GET", "/health").status == 200


def test_what_follows_an_unreadable_head_is_no_request(server: Served) -> None:
    """A body that a page of another site wrote must not pass for the next request."""
    second = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for head in (
        b"nonsense\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nCookie: " + b"a" * 9000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nno header\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 200 + b"\r\n",
    ):
        with server.connect() as connection:
            connection.sendall(head + second)
            answer = received(connection)
        assert answer.startswith(b"HTTP/1.1 400 "), head[:60]
        assert answer.count(b"HTTP/1.1 ") == 1, answer


def test_a_body_of_chunks_is_bounded_too(server: Served) -> None:
    head = raw(CHAT, "", **{"Transfer-Encoding": "chunked"}).replace(b"Content-Length: 0\r\n", b"")
    with server.connect() as connection:
        connection.sendall(head)
        try:
            for _ in range(100):
                connection.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        except OSError:
            pass
        answer = received(connection)
    # A reset by what is still sent may overtake the answer.
    assert not answer or answer.startswith(b"HTTP/1.1 413 ")
    body = json.dumps({**SHORT}).encode()
    with server.connect() as connection:
        connection.sendall(head.replace(CHAT.encode(), TEXT.encode()))
        connection.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        assert b'"text":"b a"' in connection.recv(65536)


def test_several_requests_on_one_connection(server: Served) -> None:
    asked = raw(TEXT, json.dumps(SHORT))
    with server.connect() as connection:
        # Two at once: the second is read when the first is answered.
        connection.sendall(asked + asked)
        data = b""
        while data.count(b'"text":"b a"') < 2:
            piece = connection.recv(65536)
            assert piece, data
            data += piece


def test_http_1_0_gets_a_stream_without_chunks(server: Served) -> None:
    answer = old_stream(server, TEXT, **SHORT)
    assert b"chunked" not in answer.lower()
    assert answer.endswith(b"data: [DONE]\n\n")


def test_idle_and_slow_clients_keep_nobody_out(server: Served) -> None:
    idle = [server.connect() for _ in range(20)]
    slow = [server.connect() for _ in range(20)]
    for connection in slow:
        connection.sendall(b"POST /v1/completions HTT")
    answers: list[str] = []

    def ask() -> None:
        answers.append(server.post(TEXT, SHORT).json()["choices"][0]["text"])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["b a"] * 8
    for connection in (*idle, *slow):
        connection.close()


def test_more_connections_than_it_takes_are_closed(start: Callable[..., Served]) -> None:
    server = start(4, 0.0)
    flood = [server.connect() for _ in range(160)]
    for connection in flood:
        connection.close()

    def answers() -> bool:
        # The server may still have to close some of them, and this one too then.
        with suppress(ConnectionError):
            return server.ask("GET", "/health").status == 200
        return False

    until(answers)
    assert server.post(TEXT, SHORT).status == 200


def test_many_long_bodies_at_once_take_bounded_memory_and_time(
    program: Path, tmp_path: Path
) -> None:
    tokenizer = tmp_path / "tokenizer.bin"
    tokenizer.write_bytes(pack(text_probe.tiny(97)))
    size = (4 << 20) - 100
    bodies = [
        json.dumps({"prompt": "ab " * (size // 3)}),
        json.dumps({"prompt": "a" * size}),
    ]
    # The sanitizer would keep what is freed. It adds its own to each value of a list.
    about = {"ASAN_OPTIONS": "quarantine_size_mb=0:thread_local_quarantine_size_kb=0"}
    words = [str(program), str(tokenizer), "64", "0", "127.0.0.1"]
    with serving(words, tmp_path, about) as server, ThreadPoolExecutor(24) as clients:
        before, spent = server.peak(), server.computed()
        statuses = set(clients.map(lambda n: server.post(TEXT, bodies[n % 2]).status, range(24)))
        assert statuses <= {200, 400, 503}
        assert server.peak() - before < 64 << 20
        assert server.computed() - spent < 12


def test_long_bodies_share_a_bounded_memory(server: Served) -> None:
    body = json.dumps({"prompt": "a" * ((4 << 20) - len('{"prompt": ""}'))})
    held = [server.connect() for _ in range(3)]
    for connection in held:
        connection.sendall(raw(TEXT, body)[:-1])
    until(lambda: server.numbers()["mlc_rvv_body_bytes"] == 3 * (len(body) - 1))
    told = server.post(TEXT, SHORT)
    assert (told.status, told.headers["Retry-After"]) == (503, "1")
    for connection in held:
        connection.close()
    until(lambda: server.numbers()["mlc_rvv_body_bytes"] == 0)
    assert server.post(TEXT, body).status == 400
    assert server.post(TEXT, SHORT).status == 200


def test_slow_clients_give_way_when_all_threads_are_taken(server: Served) -> None:
    slow = [server.connect() for _ in range(100)]
    for connection in slow:
        connection.sendall(b"POST /v1/completions HTT")

    def answers() -> bool:
        # A connection beyond those that wait is closed.
        with suppress(ConnectionError), server.connect() as connection:
            connection.settimeout(10)  # each of them had 15 seconds before
            connection.sendall(raw(TEXT, json.dumps(SHORT)))
            return b'"text":"b a"' in connection.recv(65536)
        return False

    until(answers, 10)
    for connection in slow:
        connection.close()


def test_requests_as_the_standards_have_them(server: Served) -> None:
    for head, status in (
        (b"GET /v1/models HTTP/1.1", 400),
        (b"GET /v1/models HTTP/1.0", 200),
        (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: localhost", 400),
        (b"GET http://localhost/v1/models HTTP/1.1\r\nHost: evil.example", 200),
        (b"GET HTTP://localhost/v1/models HTTP/1.1\r\nHost: localhost", 200),
        (b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost", 403),
        (raw(TEXT, "", **{"Transfer-Encoding": "gzip, chunked"}).strip(), 501),
        (raw(TEXT, "", **{"Transfer-Encoding": "chunked, gzip"}).strip(), 400),
    ):
        with server.connect() as connection:
            connection.sendall(head + b"\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            answer = received(connection)
        assert answer.startswith(b"HTTP/1.1 %d " % status), (head, answer[:200])


def test_a_body_without_a_length_is_refused_at_once(server: Served) -> None:
    with server.connect() as connection:
        connection.sendall(raw(CHAT, "").replace(b"Content-Length: 0\r\n", b"") + b"{}")
        connection.settimeout(5)  # less than the time that a request has
        assert connection.recv(1000).startswith(b"HTTP/1.1 411 ")


def test_a_host_for_others_needs_a_key(program: Path, tmp_path: Path) -> None:
    table = tmp_path / "tokenizer.bin"
    table.write_bytes(pack(text_probe.tiny(97)))
    done = subprocess.run(
        [program, table, "1", "0", "0.0.0.0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--host 0.0.0.0 needs --api-key-file FILE" in done.stderr


def test_stopping_waits_for_no_client(start: Callable[..., Served]) -> None:
    server = start(4, 0.0)
    with server.connect() as connection:
        connection.sendall(raw(TEXT, json.dumps(SHORT))[:-1])
        until(lambda: server.numbers()["mlc_rvv_running"] == 0)
        server.process.terminate()
        assert server.process.wait(10) == 0, server.log.read_text()  # it waited for 15 seconds


@pytest.mark.parametrize("pace", [0.02, 60])
def test_stopping_ends_streams_with_an_error(start: Callable[..., Served], pace: float) -> None:
    """Also those that wait for their first token, and for their turn."""
    server = start(4, pace)
    asked = (
        (TEXT, ENDLESS),
        (CHAT, {"messages": [{"role": "user", "content": "a"}]}),
        (RESPONSES, {"input": "a"}),
    )
    streams = [server.connect() for _ in asked]
    for stream, (path, body) in zip(streams, asked, strict=True):
        stream.sendall(raw(path, json.dumps({**body, "stream": True})))
        assert stream.recv(100).startswith(b"HTTP/1.1 200 ")
    server.process.terminate()
    assert server.process.wait(5) == 0, server.log.read_text()
    for stream, (path, _) in zip(streams, asked, strict=True):
        with stream:
            end = received(stream)
        assert end.count(b'"code":"server_stopping"') == 1, end
        assert (b"event: error" in end) == (path == RESPONSES)
        assert (b"data: [DONE]\n\n" in end) == (path != RESPONSES)
        assert end.endswith(b"0\r\n\r\n"), end


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_ends_it_also_in_a_long_call(program: Path, tmp_path: Path, signals: int) -> None:
    """After four seconds, or at the second signal."""
    tokenizer = tmp_path / "tokenizer.bin"
    tokenizer.write_bytes(pack(text_probe.tiny(97)))
    words = [str(program), str(tokenizer), "4", "0", "127.0.0.1", "key", "", "stuck"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "listens at" in process.stdout.readline()
    for _ in range(signals):
        process.terminate()
        time.sleep(0.5)  # two at once would be one
    assert process.wait(20) == 128 + signal.SIGTERM
