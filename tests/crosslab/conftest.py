# SPDX-License-Identifier: Apache-2.0
"""A small model's folder, and a Dask scheduler, as tests of crosslab take them."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.models.model_folder import write_folder, write_tokenizer

from crosslab.address import Address


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tokenizer as a folder has it."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def plain(tokenizer: Path, tmp_path: Path) -> Path:
    """Folder of a plain Llama."""
    return write_folder(tmp_path / "My Llama", "plain", tokenizer)


@pytest.fixture
def scheduler() -> Iterator[Address]:
    """Address of a Dask scheduler."""
    pytest.importorskip("boardfarm.scheduler")
    with socket.create_server(("127.0.0.1", 0)) as door:
        address = Address("127.0.0.1", door.getsockname()[1])
    command = [
        sys.executable,
        "-m",
        "crosslab",
        "farm",
        "scheduler",
        "--foreground",
        "--port",
        str(address.port),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == f"scheduler at {address}\n".encode()
        yield address
        process.terminate()
