# SPDX-License-Identifier: Apache-2.0
"""The server around a scripted answerer: HTTP without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import served
from support import shared_builds, text_probe, tiny_runner, tool_templates

from crosslab.host.toolchain import Toolchain
from crosslab.models.llama_params import random_weights
from crosslab.models.params import write_params
from crosslab.tokenizer.device_tokenizer import pack


@pytest.fixture(scope="session")
def program(sanitizers: Toolchain) -> Path:
    return text_probe.build_probe(sanitizers, shared_builds.CACHE, "scripted_server")


@pytest.fixture(scope="module")
def start(
    program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., served.Served]]:
    """Starts a server: length of its queue, seconds a token, and the program's further words."""
    with ExitStack() as running:

        def run(queue: int, pace: float, *more: str) -> served.Served:
            folder = tmp_path_factory.mktemp("server")
            table = folder / "tokenizer.bin"
            table.write_bytes(pack(text_probe.tiny(97)))
            words = [str(program), str(table), str(queue), str(pace), *(more or ("127.0.0.1",))]
            return running.enter_context(served.serving(words, folder))

        yield run


@pytest.fixture(scope="module")
def server(start: Callable[..., served.Served]) -> served.Served:
    """A quick one."""
    return start(64, 0.0)


@pytest.fixture(scope="session")
def tiny_params(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parameters of the tiny model, beside its tokenizer."""
    folder = tmp_path_factory.mktemp("tiny") / "params"
    folder.mkdir()
    write_params(random_weights(tiny_runner.LONG, 3), folder)
    tokenizer = text_probe.tiny(tiny_runner.LONG.vocab, tool_templates.HERMES)
    (folder.parent / "tokenizer.bin").write_bytes(pack(tokenizer))
    (folder.parent / "MANIFEST.json").write_text('{"verdict": "right"}')
    return folder


@pytest.fixture(scope="session")
def tiny_server(
    host_runner: Path, tiny_params: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[served.Served]:
    """The runner, serving the tiny model."""
    # Freed memory that is held back to find its later use is no leak, nor are stacks of calls.
    kept = ("quarantine_size_mb=0", "thread_local_quarantine_size_kb=0", "malloc_context_size=0")
    about = {**tiny_runner.host_environment(), "ASAN_OPTIONS": ":".join(kept)}
    command = [str(host_runner), *served.words(tiny_params, "--parallel", "4")]
    with served.serving(command, tmp_path_factory.mktemp("log"), about) as running:
        yield running
