# SPDX-License-Identifier: Apache-2.0
"""README.md of an artefact names the commands of run.sh, and messages that exist."""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path

import pytest
from support.shared_builds import PROJECT

from crosslab.artifact.board_readme import board_readme
from crosslab.artifact.dist import RUN
from crosslab.artifact.manifest import Entry
from crosslab.models.config import LlamaConfig
from crosslab.models.llama_params import param_shapes, random_weights
from crosslab.models.params import INDEX_FILE, memory_of, write_params

ABOUT = {"model": "M", "quantization": "Q", "vlens": [256, 128], "zvfh": False}
ABOUT |= {"verdict": "right", "links_again": False}
ABOUT |= {"holds": {"runner": "a program", "params": "the parameters"}}
ENTRIES = [
    Entry("params/shard.bin", 3 * 2**20 + 1, "0" * 64),
    Entry("runner", 2 * 2**20, "0" * 64),
]
# Seven MiB in memory, half of it in the files.
SHARDS = [{"nbytes": 7 << 19, "records": [{"shape": [7 << 18], "dtype": "float32"}]}]


def rows(text: str, title: str) -> list[str]:
    """The first cells of a section's table."""
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (.*?) \|", section, re.MULTILINE)[1:]


def test_names_every_command() -> None:
    done = subprocess.run([RUN, "--help"], capture_output=True, text=True, check=False)
    verbs = set(re.findall(r"\./run\.sh ([a-z]+)", done.stdout))
    assert verbs == {"chat", "serve", "install", "uninstall", "bench", "pull", "verify"}
    commands = rows(board_readme(ABOUT, "M", ENTRIES, SHARDS), "Commands")
    assert {c.strip("`").split()[1] for c in commands} == {'"PROMPT"', *verbs}


def test_names_messages_that_the_programs_print() -> None:
    sources = [RUN, *(PROJECT / "runner").rglob("*.cc")]
    # A message of several literals is one text.
    printed = "".join(path.read_text(encoding="utf-8") for path in sources)
    printed = re.sub(r'"\s*\+?\s*"', "", printed)
    named = [
        message
        for cell in rows(board_readme(ABOUT, "M", ENTRIES, SHARDS), "When it fails")
        for message in re.findall(r"`(.*?)`", cell)
    ]
    assert len(named) >= 6
    assert [message for message in named if message not in printed] == []


@pytest.mark.parametrize(("zvfh", "said"), [(False, False), (True, True)])
def test_says_what_the_board_must_have(*, zvfh: bool, said: bool) -> None:
    text = board_readme({**ABOUT, "zvfh": zvfh}, "M", ENTRIES, SHARDS)
    assert ("Zvfh" in text) is said
    assert "128 or 256 bits" in text
    assert "shorter than 128 bits" in text
    assert "6 MiB on the disk" in text
    assert "7 MiB of memory for the parameters (4 MiB in the files: bfloat16 there" in text
    assert rows(text, "What is in this folder") == ["`runner`", "`params`"]


def test_float32_takes_its_size_in_memory(tmp_path: Path) -> None:
    """However it is stored."""
    config = LlamaConfig(64, 128, 2, 1, 32, 1, 97)
    write_params(random_weights(config, 1), tmp_path)
    index = json.loads((tmp_path / INDEX_FILE).read_text(encoding="utf-8"))
    assert memory_of(index["records"]) == sum(
        4 * math.prod(shape) for shape in param_shapes(config).values()
    )


@pytest.mark.parametrize("encodes", [False, True])
def test_says_that_a_model_gives_vectors_alone(*, encodes: bool) -> None:
    text = board_readme({**ABOUT, "encodes": encodes}, "M", ENTRIES, SHARDS)
    assert ("gives vectors of texts, and answers nothing" in text) is encodes
