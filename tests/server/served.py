# SPDX-License-Identifier: Apache-2.0
"""A server of the runner as a process of its own, and plain HTTP to talk to it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
JSON_TYPE = {"Content-Type": "application/json"}
_LISTENS = re.compile(r"(\S+) listens at http://[^:/]+:(\d+)\n")


@dataclass(frozen=True)
class Reply:
    """An answer of the server: status, headers, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json()["error"]
        assert set(found) == {"message", "type", "param", "code"}
        return found


@dataclass(frozen=True)
class Served:
    """A running server."""

    process: subprocess.Popen[str]
    model: str
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | str | dict[str, Any] | None = None,
        headers: Mapping[str, str] = JSON_TYPE,
    ) -> Reply:
        data = json.dumps(body) if isinstance(body, dict) else body
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, data, dict(headers))
            reply = connection.getresponse()
            return Reply(reply.status, dict(reply.headers), reply.read())
        finally:
            connection.close()

    def post(self, path: str, body: bytes | str | dict[str, Any], **headers: str) -> Reply:
        return self.ask("POST", path, body, JSON_TYPE | headers)

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream, which ends as it has to."""
        reply = self.post(path, {**body, "stream": True})
        assert reply.status == 200, reply.body
        assert reply.headers["Content-Type"] == "text/event-stream"
        parts = reply.body.decode().split("\n\n")
        assert parts[-2:] == ["data: [DONE]", ""]
        return [json.loads(p.removeprefix("data: ")) for p in parts[:-2] if p.startswith("data: ")]

    def response_events(self, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream of /v1/responses, whose lines have their types."""
        reply = self.post(RESPONSES, {**body, "stream": True})
        assert reply.status == 200, reply.body
        *parts, last = reply.body.decode().split("\n\n")
        assert last == ""
        events = []
        for part in parts:
            name, data = part.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        return events

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def numbers(self) -> dict[str, float]:
        """The counts of /metrics."""
        text = self.ask("GET", "/metrics").body.decode()
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    def resident(self) -> int:
        """Bytes of the process that are in memory."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGESIZE")

    def peak(self) -> int:
        """The most bytes of the process that were in memory at once."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"^VmHWM:\s*(\d+) kB$", text, re.MULTILINE)[0]) << 10

    def computed(self) -> float:
        """Seconds that the process has computed."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def raw(path: str, body: str, **headers: str) -> bytes:
    """The bytes of a request."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (JSON_TYPE | headers).items()]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def old_stream(server: Served, path: str, **body: Any) -> bytes:
    """All that a client of HTTP/1.0 gets that asks for a stream."""
    asked = raw(path, json.dumps({**body, "stream": True})).replace(b"HTTP/1.1", b"HTTP/1.0")
    with server.connect() as connection:
        connection.sendall(asked)
        return received(connection)


def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for something to come true."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def words(params: Path, *more: str) -> list[str]:
    """The command line that serves a model beside its tokenizer."""
    files = ["--params", str(params), "--tokenizer", str(params.parent / "tokenizer.bin")]
    return ["serve", *files, "--port", "0", "--name", "tiny", *more]


@contextmanager
def serving(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    may_die: bool = False,
) -> Iterator[Served]:
    """Run a server; when the block ends it has to stop at once, without a leak or an error.

    ``may_die``: the block may kill it.
    """
    log = folder / "server.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # without a terminal, as a service
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = _LISTENS.fullmatch(line)
        assert found, (line, log.read_text()[-3000:])
        yield Served(process, found[1], int(found[2]), log)
        if may_die and process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()[-3000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
