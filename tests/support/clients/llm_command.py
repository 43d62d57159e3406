# SPDX-License-Identifier: Apache-2.0
"""The command llm, asking a server that speaks OpenAI's protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def said_by_llm(base: str, model: str, words: list[str], folder: Path, key: str = "") -> str:
    """Standard output of the command, which keeps its settings in a folder.

    Args:
        base: address of the server's ``/v1``.
        model: its name there.
        words: the prompt and further options.
        folder: for the settings.
        key: the server's; empty: it wants none.
    """
    pytest.importorskip("llm", reason="llm is not installed")
    about = f"- model_id: board\n  model_name: {model}\n  api_base: {base}\n"
    if key:
        about += "  api_key_name: board\n"
        (folder / "keys.json").write_text(json.dumps({"board": key}), encoding="utf-8")
    (folder / "extra-openai-models.yaml").write_text(about, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "board", *words],
        env={**os.environ, "LLM_USER_PATH": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
