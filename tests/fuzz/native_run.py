# SPDX-License-Identifier: Apache-2.0
"""The runner's C++ readers under libFuzzer, with address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from support import text_probe  # noqa: E402 - the folder beside this one

from crosslab.host.toolchain import Toolchain  # noqa: E402
from crosslab.tokenizer.device_tokenizer import pack  # noqa: E402

NAMES = ("tokenizer", "prompt", "index", "arguments", "tensors", "rows", "picture")
SERVER_NAMES = ("http", "chat", "completion", "response", "ollama-chat", "ollama-generate")


def build(tools: Toolchain, cache: Path, *, server: bool = False) -> Path:
    """The program that fuzzes the files' readers, or the server's."""
    name = "server_fuzz" if server else "runner_fuzz"
    return text_probe.build_probe(tools, cache, name, target=name)


def search(program: Path, name: str, work: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Search from the kept corpus; new inputs and failures go to ``work``."""
    found = work / f"runner-{name}"
    found.mkdir(parents=True, exist_ok=True)
    shutil.copytree(HERE / "corpus" / f"runner-{name}", found, dirs_exist_ok=True)
    table = work / "tokenizer.bin"
    table.write_bytes(pack(text_probe.trained("llama3", whole_words=True)))
    environment = {**os.environ, "RUNNER_FUZZ": name, "RUNNER_FUZZ_TABLE": str(table)}
    # A table of 100 bytes must not take gigabytes, nor seconds; bounded_time.h bounds its work.
    bounds = ["-rss_limit_mb=2048", "-malloc_limit_mb=512", "-timeout=20", "-max_len=65536"]
    command = [str(program), *bounds, *options, f"-artifact_prefix={work}/{name}-", str(found)]
    # The child of a shell: Linux takes the peak memory of the starting process over to its child.
    command = ["sh", "-c", '"$@"; exit $?', "sh", *command]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
