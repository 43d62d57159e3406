# SPDX-License-Identifier: Apache-2.0
"""The runner's C++ readers under libFuzzer: the corpus, and a bounded number of its changes."""

from __future__ import annotations

from pathlib import Path

import native_run
import pytest
from support import shared_builds

from crosslab.host.toolchain import Toolchain
from crosslab.tokenizer.device_tokenizer import MAGIC, VERSION

RUNS = 4000


@pytest.fixture(scope="module")
def program(sanitizers: Toolchain) -> Path:
    tools = shared_builds.sanitizing("fuzzer,address,undefined")
    return native_run.build(tools, shared_builds.CACHE)


@pytest.fixture(scope="module")
def server_program(sanitizers: Toolchain) -> Path:
    tools = shared_builds.sanitizing("fuzzer,address,undefined")
    return native_run.build(tools, shared_builds.CACHE, server=True)


def test_the_kept_tokenizers_are_of_the_format_that_is_read() -> None:
    """With another version, no input would reach what lies behind it."""
    kept = sorted((native_run.HERE / "corpus" / "runner-tokenizer").iterdir())
    assert {path.name for path in kept} >= {"pieces.bin", "tiny.bin", "tool.bin"}
    for path in kept:
        assert path.read_bytes().startswith(MAGIC + VERSION.to_bytes(4, "little")), path.name


@pytest.mark.parametrize("name", native_run.SERVER_NAMES)
def test_no_bytes_break_the_server(server_program: Path, tmp_path: Path, name: str) -> None:
    done = native_run.search(server_program, name, tmp_path, f"-runs={RUNS}", "-seed=1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Done {RUNS} runs" in done.stderr


@pytest.mark.parametrize("name", native_run.NAMES)
def test_no_input_breaks_the_runner(program: Path, tmp_path: Path, name: str) -> None:
    done = native_run.search(program, name, tmp_path, f"-runs={RUNS}", "-seed=1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Done {RUNS} runs" in done.stderr
