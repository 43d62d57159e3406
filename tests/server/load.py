# SPDX-License-Identifier: Apache-2.0
"""Measure a running server that is otherwise idle.

``stall``: the longest wait between two tokens of a stream while another client's long prompt is
read, as a multiple of the stream's mean wait without it.
``faults``: requests of which most have faults, from several clients at once: the server's memory,
descriptors and threads before, during and after them, and whether the other answers are as before.
The exit code is 1 if an answer differs, or if more is held afterwards than the bars allow.
``bodies``: how long the largest bodies take, and the memory that many of them leave.

Call: ``uv run python tests/server/load.py stall PORT [WORDS_OF_THE_PROMPT]``
      ``uv run python tests/server/load.py faults PORT PID MINUTES``
      ``uv run python tests/server/load.py bodies PORT PID``
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CHAT = "/v1/chat/completions"
CLIENTS = 12
ANSWER = 300  # tokens of the stream that is watched
SHORT = 24  # tokens of an answer that is compared
MIB = 1 << 20
LARGEST = 4 * MIB  # a body that the server reads
QUESTION = "What is it?"
KEY = "the-key-of-the-load"  # for a server that has keys
KEPT_MIB = 30  # the bar for resident memory after the load
FULL = 0.9  # part of the KV cache's pages that count as all of them
SETTLES = 8  # seconds until the server has closed what clients left


def asked(prompt: str, tokens: int, *, stream: bool) -> bytes:
    messages = [{"role": "user", "content": prompt}]
    about = {"messages": messages, "temperature": 0, "max_tokens": tokens, "stream": stream}
    return json.dumps(about).encode()


def post(port: int, body: bytes) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    about = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    connection.request("POST", CHAT, body, about)
    return connection.getresponse()


def arrivals(port: int, tokens: int) -> Iterator[float]:
    """The times at which the pieces of a stream arrive."""
    reply = post(port, asked("Count from one to one thousand.", tokens, stream=True))
    assert reply.status == 200, reply.read()
    for line in reply:
        if b'"content"' in line:
            yield time.monotonic()


def stall(port: int, words: int) -> None:
    """Print the waits of a stream alone, and beside a long prompt."""
    times = list(arrivals(port, ANSWER))
    alone = [b - a for a, b in itertools.pairwise(times)]
    mean = statistics.mean(alone)
    spans: list[tuple[float, float]] = []

    def read_long() -> None:
        start = time.monotonic()
        # Another text each time, as the server keeps what it has read.
        text = " ".join(random.Random().choices(("river", "stone", "cloud", "house"), k=words))
        reply = post(port, asked(text, 1, stream=False))
        told = json.loads(reply.read())
        if reply.status != 200:
            print("the long prompt is refused:", told["error"]["message"])
            return
        usage = told["usage"]
        spans.append((start, time.monotonic()))
        print(f"the prompt: {usage['prompt_tokens']} tokens in {spans[0][1] - start:.1f} s")

    other = threading.Thread(target=read_long)
    waits, last = [], None
    for number, now in enumerate(arrivals(port, ANSWER)):
        if number == 20:
            other.start()
        if last is not None:
            waits.append((last, now))
        last = now
    other.join()
    if not spans:
        sys.exit(1)
    begin, end = spans[0]
    beside = [b - a for a, b in waits if b > begin and a < end]
    longest = [round(wait / mean, 1) for wait in sorted(beside)[-5:]]
    print(f"a token alone: {mean * 1e3:.1f} ms in the mean")
    middle = statistics.median(beside) / mean
    print(f"beside it: {len(beside)} waits, median {middle:.1f} tokens' time")
    print(f"the longest: {longest} tokens' time (bar: 10)")


def whole_answer(port: int) -> str:
    reply = post(port, asked(QUESTION, SHORT, stream=False))
    body = reply.read()
    assert reply.status == 200, body
    return str(json.loads(body)["choices"][0]["message"]["content"])


def whole_stream(port: int) -> str:
    """The joined text of a stream that ends as it should."""
    lines = post(port, asked(QUESTION, SHORT, stream=True)).read().decode().split("\n\n")
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    deltas = [choice["delta"] for event in events for choice in json.loads(event)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def head(size: int, key: str = KEY) -> bytes:
    kind = ("Host: localhost", "Content-Type: application/json", f"Authorization: Bearer {key}")
    about = (*kind, f"Content-Length: {size}")
    return "\r\n".join((f"POST {CHAT} HTTP/1.1", *about, "", "")).encode()


def send(port: int, data: bytes, *, wait: bool = True) -> str:
    """Send bytes, read the status if there is one, and leave."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 60) as connection:
        with suppress(OSError):  # the server may answer, and close, before all is sent
            connection.sendall(data)
        if wait:
            return connection.recv(12).partition(b" ")[2].decode() or "closed"
    return "left"


def leave_a_stream(port: int) -> str:
    body = asked(QUESTION, 400, stream=True)
    return send(port, head(len(body)) + body)


def leave_a_body(port: int) -> str:
    body = asked(QUESTION, 400, stream=True)
    return send(port, head(len(body)) + body[: len(body) // 2], wait=False)


def too_large(port: int) -> str:
    return send(port, head(64 * MIB) + b" " * 100_000)


def send_garbage(port: int) -> str:
    return send(port, random.randbytes(4096) + b"\r\n\r\n")


def wrong_key(port: int) -> str:
    body = asked(QUESTION, 1, stream=False)
    return send(port, head(len(body), "another") + body)


def stay_idle(port: int) -> str:
    """Until the server closes the connection, or for a minute."""
    return send(port, b"")


def no_json(port: int) -> str:
    return send(port, head(9) + b'{"a": \xff}}')


def many_messages(port: int) -> str:
    body = json.dumps({"messages": [{}] * (MIB // 4)}).encode()
    return send(port, head(len(body)) + body)


def a_large_text(port: int) -> str:
    body = asked("x" * (LARGEST - 200), 1, stream=False)
    return send(port, head(len(body)) + body)


def send_slowly(port: int) -> str:
    """A byte in 50 ms, for three seconds."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 60) as connection:
        for byte in head(100)[:60]:
            connection.sendall(bytes([byte]))
            time.sleep(0.05)
    return "left"


def read_slowly(port: int) -> str:
    """A long stream into a small buffer, of which some bytes are read."""
    body = asked(QUESTION, 200, stream=True)
    with suppress(OSError), socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", port))
        connection.sendall(head(len(body)) + body)
        for _ in range(60):
            connection.recv(8)
            time.sleep(0.05)
    return "left"


FAULTS: tuple[Callable[[int], str], ...] = (
    leave_a_stream,
    leave_a_body,
    too_large,
    send_garbage,
    wrong_key,
    stay_idle,
    no_json,
    many_messages,
    a_large_text,
    send_slowly,
    read_slowly,
)
RIGHT = (whole_answer, whole_stream)


def status(pid: int, name: str) -> int:
    """The number of a line of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(x for x in lines if x.startswith(f"{name}:")).split()[1])


@dataclass(frozen=True)
class Held:
    """What a process holds."""

    resident: float  # MiB
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Held:
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return cls(status(pid, "VmRSS") / 1024, descriptors, status(pid, "Threads"))

    def __str__(self) -> str:
        counts = f"{self.descriptors} descriptors, {self.threads} threads"
        return f"{self.resident:.1f} MiB, {counts}"

    def flat(self, before: Held) -> bool:
        """No more than the bars allow beyond what was held before."""
        return (
            self.resident - before.resident <= KEPT_MIB
            and self.descriptors <= before.descriptors
            and self.threads <= before.threads
        )


def peak(pid: int) -> float:
    """The most MiB in memory since ``forget_peak``."""
    return status(pid, "VmHWM") / 1024


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


class Load:
    """Clients that send right and faulty requests in turns."""

    def __init__(self, port: int, expected: str) -> None:
        self.port, self.expected = port, expected
        self.outcomes: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.turns = itertools.count()

    def request(self) -> None:
        """The next one; at each fifth turn a right one."""
        turn = next(self.turns)
        if turn % 5 == 4:
            text = RIGHT[turn % 2](self.port)
            outcome = "right: " + ("as before" if text == self.expected else "DIFFERS")
        else:
            fault = FAULTS[(turn - turn // 5) % len(FAULTS)]
            outcome = f"{fault.__name__}: {fault(self.port)}"
        with self.lock:
            self.outcomes[outcome] += 1

    def run_until(self, end: float) -> None:
        while time.monotonic() < end:
            self.request()

    def run_turns(self, turns: int) -> None:
        """Several at once; an exception of one of them ends the load."""
        with ThreadPoolExecutor(CLIENTS) as clients:
            for client in [clients.submit(self.request) for _ in range(turns)]:
                client.result()

    def run(self, minutes: float, pid: int) -> None:
        """Print each minute what the server holds."""
        end = time.monotonic() + 60 * minutes
        with ThreadPoolExecutor(CLIENTS) as clients:
            running = [clients.submit(self.run_until, end) for _ in range(CLIENTS)]
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(60.0, left))
                print(f"{self.outcomes.total():,} requests: {Held.of(pid)}", flush=True)
            for client in running:
                client.result()


def metric(port: int, name: str) -> float:
    """The value of a metric of the server's."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {KEY}"})
    lines = connection.getresponse().read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def fill_cache(port: int) -> None:
    """Ask different prompts until they take the pages of the KV cache.

    The system gives the cache its memory page by page, when one is first used; the server keeps a
    prompt's pages until others need them.
    """
    pages = metric(port, "mlc_rvv_pages")
    for seed in itertools.count():
        used = metric(port, "mlc_rvv_pages_used")
        print(f"the KV cache: {used:.0f} of {pages:.0f} pages are in use", flush=True)
        if used >= FULL * pages:
            return
        words = random.Random(seed).choices(("river", "stone", "cloud", "house"), k=500)
        reply = post(port, asked(" ".join(words), 1, stream=False))
        assert reply.status == 200, reply.read()
        reply.read()


def faults(port: int, pid: int, minutes: float) -> bool:
    """Print what the server holds before, during and after the load; return whether all is well."""
    fill_cache(port)
    load = Load(port, whole_answer(port))
    assert whole_stream(port) == load.expected
    load.run_turns(8 * len(FAULTS))  # what the first of each kind allocate is kept
    load.outcomes.clear()
    time.sleep(SETTLES)
    before = Held.of(pid)
    forget_peak(pid)
    load.run(minutes, pid)
    most = peak(pid)
    time.sleep(SETTLES)
    after = Held.of(pid)
    for outcome, count in sorted(load.outcomes.items()):
        print(f"{count:7,} {outcome}")
    total, same = load.outcomes.total(), load.outcomes["right: as before"]
    differ = load.outcomes["right: DIFFERS"]
    print(f"{minutes:g} minutes, {CLIENTS} clients: {total:,} requests, {differ} answers differ")
    print(f"before: {before}\nafter: {after}")
    print(f"resident {after.resident - before.resident:+.1f} MiB (bar: {KEPT_MIB})")
    print(f"peak above before: {most - before.resident:.1f} MiB (bar: 64 for bodies)")
    return same > 0 and differ == 0 and after.flat(before) and whole_answer(port) == load.expected


def timed(call: Callable[[], str]) -> str:
    start = time.monotonic()
    outcome = call()
    return f"{outcome} after {time.monotonic() - start:.2f} s"


def empty_messages(port: int, size: int) -> str:
    body = b'{"messages":[' + b",".join([b"{}"] * (size // 3)) + b"]}"
    return send(port, head(len(body)) + body)


def many_texts(port: int, count: int) -> str:
    """How many of the large texts, sent at once, have which outcome."""
    with ThreadPoolExecutor(count) as clients:
        outcomes = Counter(clients.map(a_large_text, [port] * count))
    return ", ".join(f"{n} times {outcome}" for outcome, n in outcomes.items())


def bodies(port: int, pid: int) -> None:
    """Print the times of the largest bodies, and what they leave."""
    print("240 KB of empty messages:", timed(lambda: empty_messages(port, 240_000)))
    print("4 MiB of empty messages:", timed(lambda: empty_messages(port, LARGEST - 100)))
    print("4 MiB of text:", timed(lambda: a_large_text(port)))
    time.sleep(SETTLES)
    before = Held.of(pid)
    forget_peak(pid)
    print("24 of them at once:", timed(lambda: many_texts(port, 24)))
    time.sleep(SETTLES)
    print(f"before: {before}\nafter: {Held.of(pid)}")
    print(f"peak above before: {peak(pid) - before.resident:.1f} MiB (bar: 64 for bodies)")


def main(words: list[str]) -> None:
    match words:
        case ["stall", port, *more]:
            stall(int(port), int(more[0]) if more else 600)
        case ["faults", port, pid, minutes]:
            sys.exit(0 if faults(int(port), int(pid), float(minutes)) else 1)
        case ["bodies", port, pid]:
            bodies(int(port), int(pid))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
