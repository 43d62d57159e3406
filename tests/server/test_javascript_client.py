# SPDX-License-Identifier: Apache-2.0
"""Ollama's own JavaScript client, on a served model."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from served import Served
from support.shared_builds import CACHE, PROJECT

from crosslab.cached_build import cached_build
from groundwork.hashing import digest

CLIENT = PROJECT / "tests" / "support" / "clients" / "node"


@pytest.fixture(scope="module")
def packages() -> Path:
    """A folder with the pinned npm packages."""
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} is not installed")
    locks = [CLIENT / "package.json", CLIENT / "package-lock.json"]

    def make(out: Path) -> None:
        for path in locks:
            shutil.copy(path, out)
        options = ["--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(["npm", "ci", *options], cwd=out, capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"npm cannot install the client: {done.stderr.decode()[-300:]}")

    return cached_build(CACHE, "node-clients", digest(*locks), make)


@pytest.fixture(scope="module")
def got(packages: Path, tiny_server: Served) -> dict[str, Any]:
    words = ["node", str(CLIENT / "ollama_examples.mjs"), tiny_server.url, tiny_server.model]
    done = subprocess.run(
        words, cwd=packages, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_chats_and_prompts(got: dict[str, Any]) -> None:
    assert got["chat"]
    assert got["chatStream"] == {"whole": got["chat"], "done": True, "reason": "length"}
    assert got["generate"] == got["chat"]
    assert got["generateStream"] == {"whole": got["chat"], "done": True, "reason": "length"}


def test_structured_answers_and_calls(got: dict[str, Any]) -> None:
    assert set(got["structured"]) == {"fits"}
    assert isinstance(got["structured"]["fits"], bool)
    # A model with random weights need not call; a call has whole arguments.
    assert all(isinstance(call["arguments"], dict) for call in got["calls"])


def test_models_and_vectors(got: dict[str, Any], tiny_server: Served) -> None:
    name = f"{tiny_server.model}:latest"
    assert got["list"] == got["ps"] == [name]
    assert got["embed"][0] == got["embed"][1] > 0
    assert "completion" in got["show"]
    assert got["version"].count(".") == 2


def test_an_error_reaches_the_client(got: dict[str, Any]) -> None:
    assert got["unknown"]["status"] == 404
    assert "does not have that model" in got["unknown"]["message"]
