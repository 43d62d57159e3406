# SPDX-License-Identifier: Apache-2.0
"""A model answers by way of SpacemiT's vmadot, and with the same bits as without it.

QEMU has no vmadot: support/native/vmadot.c, linked into the runner, executes it when the CPU
refuses it. So the words that run are those of the artefact.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support import shared_builds
from support.gguf_bytes import write_model

from crosslab.assemble.recipe import Recipe
from crosslab.assemble.runner import build_runner, store_params
from crosslab.assemble.runtime import Runtime
from crosslab.cached_build import cached_build
from crosslab.compile.modes import KernelMode
from crosslab.cores.core import core_option
from crosslab.host.objects import run_compiler
from crosslab.host.toolchain import Toolchain
from crosslab.models.config import LlamaConfig
from crosslab.models.formats import GGUF
from crosslab.models.sources.asset import fetch_asset
from crosslab.models.sources.gguf_import import import_gguf
from crosslab.models.sources.pins import read_pins
from crosslab.run.emulator import GuestMachine, run_guest
from groundwork.hashing import digest

pytestmark = [pytest.mark.usefixtures("emulator"), pytest.mark.thorough]

VLEN = 256
SIZES: dict[str, Any] = {
    "hidden": 256,
    "intermediate": 512,
    "heads": 4,
    "kv_heads": 2,
    "layers": 1,
    "vocab": 131,
}
CONFIG = LlamaConfig(**SIZES, head_dim=64, context=256, family="qwen2", qkv_bias=True)
# Blocks of 32 inputs, with minimums and without, where a prompt has many rows; others by vectors.
TYPES = {
    **{"embed_tokens": "Q8_0", "q_proj": "Q4_0", "k_proj": "Q8_0", "v_proj": "Q5_1"},
    **{"o_proj": "Q5_K", "gate_proj": "Q4_K", "up_proj": "Q4_K", "down_proj": "Q6_K"},
}
# A template around a question, as the pinned model has it.
QUESTION = "1,9690,198,2683,359,253,5356,5646,11173,3365,3511,308,34519,28,7018,411,407,19712,8182"


def unit_of_tests(_: Runtime, toolchain: Toolchain) -> tuple[Path, ...]:
    """The object that executes vmadot."""

    def make(out: Path) -> None:
        command = [*toolchain.cc, "-O2", "-c", str(shared_builds.VMADOT), "-o", "vmadot.o"]
        run_compiler("compiling vmadot.c", command, out)

    key = digest(toolchain.digest, shared_builds.VMADOT)
    return (cached_build(shared_builds.CACHE, "vmadot", key, make) / "vmadot.o",)


class Built:
    """A runner with the unit of the tests, and its parameters."""

    def __init__(self, model: Path, params: Path = shared_builds.CACHE) -> None:
        tree = shared_builds.tvm_tree()
        recipe = Recipe(
            GGUF,
            (VLEN,),
            tree,
            tree,
            model,
            mode=KernelMode("tiles", "int8"),
            cores=(core_option("spacemit-x60"),),
            context=256,
        )
        self.program = build_runner(recipe, shared_builds.CACHE, parts=unit_of_tests).program
        self.params = store_params(recipe, params)

    def answer(self, tokens: str, new: int, folder: Path, **set_to: str) -> tuple[bytes, int]:
        """Logits, and how many vmadot were executed."""
        logits = folder / "logits.bin"
        machine = GuestMachine(VLEN, 2, environment={"MLC_RVV_COUNT_VMADOT": "1", **set_to})
        arguments = ["--params", str(self.params), "--tokens", tokens, "--max-new", str(new)]
        arguments += ["--logits", str(logits), "--json"]
        result = run_guest(self.program, arguments, machine)
        assert len(json.loads(result.stdout)["tokens"]) == new
        # The child that tries the unit leaves without a word.
        found = re.findall(r"^vmadot: (\d+)$", result.stderr, re.MULTILINE)
        assert len(found) == 1, result.stderr
        return logits.read_bytes(), int(found[0])


def check(built: Built, tokens: str, new: int, folder: Path) -> None:
    with_unit, some = built.answer(tokens, new, folder)
    without, none = built.answer(tokens, new, folder, MLC_RVV_IME="0")
    assert some > 0
    assert none == 0
    assert with_unit == without


def test_a_model_of_many_formats(tmp_path: Path) -> None:
    model = write_model(CONFIG, {"model_type": "qwen2"}, TYPES, tmp_path)
    # The cache knows a model's parameters by its folder's name, which an import makes of a hash.
    built = Built(model, tmp_path / "cache")
    check(built, ",".join(map(str, range(1, 20))), 2, tmp_path)


@pytest.mark.long
def test_the_pinned_model(tmp_path: Path) -> None:
    asset = read_pins(shared_builds.PROJECT).asset("smollm2-135m")
    file = fetch_asset(asset, shared_builds.CACHE)
    check(Built(import_gguf(file, shared_builds.CACHE, blocks=True)), QUESTION, 3, tmp_path)
