# SPDX-License-Identifier: Apache-2.0
"""The project's own Llama, compiled on the patched tree: for the host and for RVV."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from support.shared_builds import cross, runtime, tvm_tree
from support.tiny_runner import GQA, tensorizing

from crosslab.assemble.link import LinkRequest, link_runner
from crosslab.cached_build import default_cache
from crosslab.compile.driver import (
    CompiledModel,
    CompileRequest,
    compile_llama,
    tree_environment,
)
from crosslab.compile.targets import LabTarget
from crosslab.cores.core import CORES as CORE_FILES
from crosslab.cores.core import core_names, core_option
from crosslab.errors import LabError, UserError
from crosslab.models.compare import compare
from crosslab.models.config import LlamaConfig
from crosslab.models.formats import weight_formats
from crosslab.models.llama_params import param_shapes, random_params
from crosslab.models.params import read_params
from crosslab.models.reference import Answer, answer
from crosslab.run.emulator import GuestMachine, run_guest

pytestmark = pytest.mark.slow

TOLERANCE = weight_formats()["q0f32"].tolerance
PROJECT = Path(__file__).resolve().parents[2]
CACHE = default_cache()
SEED = 20

NEW = 6
# float32 sums in another order, against the largest logit.
CLOSE = 1e-5


def prompt(config: LlamaConfig, length: int) -> list[int]:
    draw = np.random.default_rng(SEED)
    return [int(t) for t in draw.integers(0, config.vocab, length)]


@dataclass(frozen=True)
class Built:
    """A compiled model with its parameters and the request that made it."""

    request: CompileRequest
    model: CompiledModel
    params: Path

    def reference(self, tokens: list[int]) -> Answer:
        return answer(self.request.config, read_params(self.params), tokens, max_new=NEW)


def build(request: CompileRequest) -> Built:
    model = compile_llama(request, CACHE)
    return Built(request, model, random_params(request.config, SEED, CACHE))


@pytest.fixture(scope="module")
def host() -> Built:
    return build(tensorizing(LabTarget("host")))


def native(built: Built, chunks: list[list[int]], output: Path) -> tuple[list[int], np.ndarray]:
    spec = {
        "library": str(built.model.library),
        "params": str(built.params),
        "chunks": chunks,
        "max_new": NEW,
        "stop": [],
        "max_seq": 128,
        "output": str(output / "answer.npz"),
    }
    (output / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "crosslab.compile.native", str(output / "spec.json")],
        env=tree_environment(built.request.tvm_tree),
        check=True,
    )
    with np.load(output / "answer.npz") as answered:
        return answered["tokens"].tolist(), answered["logits"]


# Chunks that are no multiples of a tile.
@pytest.mark.parametrize("split", [[37], [20, 17], [36, 1], [1, 36], [16, 8, 13]])
def test_host_library_says_what_the_reference_says(
    host: Built, split: list[int], tmp_path: Path
) -> None:
    tokens = prompt(GQA, sum(split))
    ends = np.cumsum(split).tolist()
    chunks = [tokens[end - size : end] for size, end in zip(split, ends, strict=True)]
    said, logits = native(host, chunks, tmp_path)
    verdict = compare(said, logits, host.reference(tokens), TOLERANCE)
    assert verdict.same_tokens
    assert verdict.logit_error < CLOSE


def test_prefill_attention_is_tensorized(host: Built) -> None:
    done = {(e["function"], e["block"]) for e in host.model.tensorized if e["symbol"]}
    for function in ("batch_prefill_paged_kv_cpu", "batch_prefill_ragged_kv"):
        assert {(function, "S_gemm"), (function, "O_gemm")} <= done
    declined = [e for e in host.model.tensorized if not e["symbol"]]
    assert all(e["reason"] for e in declined)


def test_metadata_names_the_parameters_in_order(host: Built) -> None:
    listed = {p["name"]: tuple(p["shape"]) for p in host.model.metadata["params"]}
    assert list(listed.items()) == list(param_shapes(GQA).items())
    assert host.model.metadata["prefill_chunk_size"] == 64
    assert host.model.metadata["kv_cache"]["num_key_value_heads"] == 2


def test_tvm_reads_the_parameters_as_the_reference_does(host: Built) -> None:
    code = (
        "import sys, numpy, tvm\n"
        "from tvm.contrib.tvmjs import load_tensor_cache\n"
        "stored, _ = load_tensor_cache(sys.argv[1], tvm.cpu())\n"
        "numpy.savez(sys.argv[2], **{n: v.numpy() for n, v in stored.items()})\n"
    )
    output = host.params.parent / f".{os.getpid()}-tvm.npz"
    try:
        environment = tree_environment(host.request.tvm_tree)
        command = [sys.executable, "-c", code, str(host.params), str(output)]
        subprocess.run(command, env=environment, check=True)
        ours = read_params(host.params)
        with np.load(output) as theirs:
            assert set(theirs.files) == set(ours)
            for name in theirs.files:
                np.testing.assert_array_equal(theirs[name], ours[name], name)
    finally:
        output.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def rvv(emulator: None) -> Built:
    cross()
    return build(tensorizing(LabTarget("riscv64", 128)))


@pytest.fixture(scope="module")
def runner(rvv: Built) -> Path:
    request = LinkRequest(
        runtime=runtime(),
        toolchain=cross(),
        library=rvv.model.library,
        vlens=(rvv.request.target.vlen,),
    )
    return link_runner(request, CACHE)


@pytest.mark.parametrize(("vlen", "chunk"), [(128, 64), (256, 21), (1024, 64)])
def test_rvv_library_says_what_the_reference_says(
    rvv: Built, runner: Path, vlen: int, chunk: int, tmp_path: Path
) -> None:
    tokens = prompt(GQA, 37)
    logits = tmp_path / "logits.bin"
    arguments = ["--params", str(rvv.params), "--tokens", ",".join(map(str, tokens))]
    arguments += ["--max-new", str(NEW), "--prefill-chunk", str(chunk)]
    arguments += ["--logits", str(logits), "--json"]
    result = run_guest(runner, arguments, GuestMachine(vlen=vlen))
    said = json.loads(result.stdout)
    assert len(said["prefill_seconds"]) == -(-37 // chunk)
    rows = np.fromfile(logits, np.float32).reshape(len(said["tokens"]), -1)
    verdict = compare(said["tokens"], rows, rvv.reference(tokens), TOLERANCE)
    assert verdict.same_tokens
    assert verdict.logit_error < CLOSE


def test_the_same_request_is_compiled_once(rvv: Built) -> None:
    before = rvv.model.library.stat().st_mtime_ns
    again = compile_llama(rvv.request, CACHE)
    assert again.library == rvv.model.library
    assert again.library.stat().st_mtime_ns == before


def test_what_cannot_be_compiled_is_refused(tmp_path: Path) -> None:
    request = CompileRequest(tmp_path, GQA, LabTarget("riscv64", 256))
    with pytest.raises(UserError, match="is not a TVM tree") as caught:
        compile_llama(request, tmp_path / "cache")
    assert "apply_patches" in caught.value.remedy
    tree = replace(request, tvm_tree=tvm_tree())
    with pytest.raises(UserError, match="no kernels in"):
        compile_llama(replace(tree, kernels=tmp_path), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_an_unknown_step_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    request = CompileRequest(tvm_tree(), GQA, LabTarget("host"), steps=("-fusion",))
    with pytest.raises(LabError, match="steps: unknown -fusion; the steps are: rows, attention"):
        compile_llama(request, tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache").iterdir() if p.is_dir()]


@pytest.mark.parametrize(("name", "vlen"), [("riscv64", 0), ("riscv64", 300), ("arm", 128)])
def test_an_unknown_target_is_refused(name: str, vlen: int) -> None:
    with pytest.raises(UserError):
        LabTarget(name, vlen)


CORES = core_names(CORE_FILES)
# Hints, cache operations, constant time and those of the privileged levels: compilers make none.
NOT_COMPILED = re.compile(r"s\w+|zic(64b|bo\w|c\w+|ntr)|zi(hint\w+|hpm|fencei)|za64rs|zawrs|zv?kt")


@pytest.mark.parametrize("tune", sorted({core_option(name).llvm for name in CORES} - {""}))
@pytest.mark.parametrize("zvfh", [False, True])
def test_a_target_that_is_tuned_has_the_same_instructions(tune: str, zvfh: bool) -> None:
    target = pytest.importorskip("tvm.target")

    def features(of: LabTarget) -> set[str]:
        table = {n: v for n, v in of.table().items() if n not in ("host", "vector-width")}
        return set(map(str, target.codegen.llvm_get_cpu_features(target.Target(table))))

    plain, tuned = (features(LabTarget("riscv64", 512, zvfh, name)) for name in ("", tune))
    # Names with hyphens and of vendors' cores only tune.
    more = {name for name in tuned - plain if re.fullmatch(r"[a-z]|[xz][a-z0-9]+", name)}
    assert not {name for name in more if not NOT_COMPILED.fullmatch(name)}
    assert not {name for name in plain - tuned if "-" not in name}


def test_the_host_part_of_a_target_carries_the_same_attributes() -> None:
    table = LabTarget("riscv64", 512).table()
    host = table.pop("host")
    assert host == table
    assert "+zvl512b" in table["mattr"]
    assert "+v" not in table["mattr"]
