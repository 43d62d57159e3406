# SPDX-License-Identifier: Apache-2.0
"""The main job: what it refuses and says, and its whole road on the pinned model."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import mlc_tree, text_probe, tiny_model
from support.models.model_folder import write_folder
from support.models.published_tokenizers import published
from support.patched_trees import trees
from support.shared_builds import PROJECT, cross, need_emulator, tvm_tree

from crosslab.__main__ import main as crosslab_main
from crosslab.artifact import verify
from crosslab.cores.core import core_names, read_core
from crosslab.errors import LabError, UserError
from crosslab.job import model_job
from crosslab.job.job_options import Omission, parse_job, read_omissions
from crosslab.job.main_job import Question, RunResult, check_words, counters, main, omissions
from crosslab.models.sources.asset import fetch_asset
from crosslab.models.sources.pins import read_pins
from crosslab.models.weights_file import INDEX_FILE
from crosslab.run.measurement import Counts, Measurement
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def build_and_test(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command, in this process; exit code and standard error."""

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["crosslab", "build-and-test", *arguments])
        try:
            code = crosslab_main()
        except SystemExit as left:
            code = int(str(left.code))
        return code, capsys.readouterr().err

    return call


def test_quantization_without_mlc_says_how_to_supply_it(
    build_and_test: Call, tmp_path: Path
) -> None:
    code, said = build_and_test("--tvm-tree", str(tmp_path), "--quantization", "q4f32_1")
    assert code == 2
    assert "MLC-LLM, which is missing here" in said
    assert "--mirror mlc-llm=" in said


def missing_mlc(folder: Path, reason: str, remedy: str) -> Path:
    """A report of applied patches where MLC-LLM is missing."""
    mlc = {"name": "mlc-llm", "state": "missing", "reason": reason, "remedy": remedy}
    applied = folder / "apply.json"
    tvm = {"name": "tvm", "state": "applied", "reason": "", "remedy": ""}
    applied.write_text(json.dumps({"upstreams": [tvm, mlc]}))
    return applied


@pytest.mark.parametrize("text", ["", "[]", '{"upstreams": [{"name": "tvm"}]}'])
def test_a_report_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "apply.json").write_text(text)
    with pytest.raises(UserError, match="does not say which upstreams are missing"):
        read_omissions(tmp_path / "apply.json")


def test_what_forkpatch_left_out_is_not_said_again(tmp_path: Path) -> None:
    """In a process of its own: the streams are the user's."""
    need_emulator()
    applied = missing_mlc(tmp_path, "no mirror has it", "supply it with --mirror mlc-llm=PATH")
    options = ["--tvm-tree", str(tmp_path), "--project", str(tmp_path), "--applied", str(applied)]
    environment = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, "-m", "crosslab", "build-and-test", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "left out" not in done.stderr
    # The folder is no project: the next thing it looks for is the lock.
    assert "VERSIONS.lock" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    "options",
    [
        *(["--threads", "0"], ["--max-new", "0"], ["--quantization", "q3"]),
        *(["--vlen", "300"], ["--vlen", "128,"], ["--vlen", "128,256", "--core", "spacemit-x60"]),
        ["--core", "spacemit-x60,none"],
    ],
)
def test_values_that_cannot_be_are_refused(
    build_and_test: Call, options: list[str], tmp_path: Path
) -> None:
    code, said = build_and_test("--tvm-tree", str(tmp_path), *options)
    assert code == 2
    assert options[0] in said


def test_several_lengths_of_registers_make_one_artefact(tmp_path: Path) -> None:
    options = ["--tvm-tree", str(tmp_path), "--project", str(PROJECT)]
    both = parse_job([*options, "--vlen", "256,128"])
    assert both.recipe.vlens == (128, 256)
    assert both.dist.parent.name == "riscv64-rvv128-rvv256"
    cores = [read_core(PROJECT / "cores", name) for name in core_names(PROJECT / "cores")]
    named = parse_job([*options, "--core", ",".join(core.key for core in cores)])
    assert named.recipe.vlens == tuple(sorted({core.vlen for core in cores}))


@pytest.mark.parametrize(
    ("cores", "quantization", "zvfh"),
    [
        ("spacemit-x60,spacemit-x100", "q4f16_1", True),
        ("spacemit-x60,spacemit-a100", "q4f16_1", False),
        ("spacemit-x60", "q4f32_1", False),
        (None, "q4f16_1", False),
    ],
)
def test_vectors_of_halves_are_used_where_every_core_has_them(
    tmp_path: Path, cores: str | None, quantization: str, zvfh: bool
) -> None:
    options = ["--tvm-tree", str(tmp_path), "--project", str(PROJECT), "--mlc-tree", str(tmp_path)]
    options += ["--core", cores] if cores else []
    job = parse_job([*options, "--quantization", quantization])
    assert job.recipe.zvfh == zvfh == job.recipe.targets[0].zvfh
    assert job.recipe.label.endswith("-zvfh") == zvfh


def test_int8_activations_need_packed_weights_in_tiles(
    build_and_test: Call, tmp_path: Path
) -> None:
    int8 = ["--tvm-tree", str(tmp_path), "--mlc-tree", str(tmp_path), "--activations", "int8"]
    code, said = build_and_test(*int8)
    assert code == 2
    assert "not multiplied with weights in q0f32" in said and "q4f32_1" in said
    code, said = build_and_test(*int8, "--quantization", "q4f32_1", "--weights", "stored")
    assert code == 2
    assert "leave out --weights stored" in said


def test_int8_activations_have_an_artefact_of_their_own(tmp_path: Path) -> None:
    options = ["--tvm-tree", str(tmp_path), "--mlc-tree", str(tmp_path)]
    options += ["--quantization", "q4f32_1"]
    plain, int8 = parse_job(options), parse_job([*options, "--activations", "int8"])
    assert int8.dist.name == f"{plain.dist.name}-int8"
    assert int8.recipe.mode.activations == "int8"
    assert int8.tolerance == plain.tolerance == 1e-4
    assert int8.rounds and not plain.rounds


def test_an_int8_cache_has_an_artefact_of_its_own(tmp_path: Path) -> None:
    options = ["--tvm-tree", str(tmp_path), "--mlc-tree", str(tmp_path), "--kv-cache", "int8"]
    plain, both = (
        parse_job([*options, "--quantization", "q4f32_1", "--activations", kind])
        for kind in ("float32", "int8")
    )
    assert plain.dist.name == "smollm2-135m-q4f32_1-kv-int8"
    assert both.dist.name == "smollm2-135m-q4f32_1-int8-kv-int8"
    assert plain.int8_cache
    assert not plain.int8


def test_an_int8_cache_needs_a_tvm_that_has_it(build_and_test: Call, tmp_path: Path) -> None:
    source = tmp_path / "python" / "tvm" / "relax" / "frontend" / "nn" / "llm" / "kv_cache.py"
    source.parent.mkdir(parents=True)
    source.write_text("class TIRPagedKVCache: ...\n")
    code, said = build_and_test("--tvm-tree", str(tmp_path), "--kv-cache", "int8")
    assert code == 2
    assert "has no such type" in said
    assert "kv-cache-int8-pages-cpu" in said


def test_a_missing_mlc_tree_is_named_once(tmp_path: Path) -> None:
    job = parse_job(["--tvm-tree", str(tmp_path)])
    (own,) = omissions(job)
    assert own.what == "mlc-llm"
    assert "--mirror" in own.remedy
    (told,) = read_omissions(missing_mlc(tmp_path, "offline\nand no mirror", "give a mirror"))
    assert told == Omission("mlc-llm", "offline, and no mirror", "give a mirror")
    assert omissions(replace(job, without=(told,))) == [told]
    other = Omission("counters", "no compiler")
    both = replace(job, recipe=replace(job.recipe, mlc_tree=tmp_path), without=(other,))
    assert omissions(both) == [other]
    assert (job.recipe.path, both.recipe.path) == ("tvm-only", "mlc-llm")


def test_counters_part_prefill_from_steady_decode() -> None:
    regions = tuple(Counts(insns=n) for n in (100, 50, 9, 4, 6))
    measured = Measurement(whole=Counts(insns=200), regions=regions, threads=1)
    empty = np.zeros((4, 1), np.float32)
    said = RunResult((1, 2, 3, 4), "", (), empty, (0.1, 0.1), (0.1, 0.1, 0.1), measured, 256)
    table = counters(said)
    assert table["whole"]["insns"] == 200
    assert table["prefill"]["insns"] == 150
    assert table["decode_per_token"]["insns"] == 5
    alone = replace(said, decode_seconds=(), counted=replace(measured, regions=regions[:2]))
    assert counters(alone)["decode_per_token"] is None
    assert set(counters(replace(said, counted=None)).values()) == {None}


def test_words_that_are_not_the_tokenizers_are_an_error() -> None:
    tokenizer = text_probe.trained("gpt2")
    prompt, tokens = tuple(tokenizer.chat_ids("hello")), (5, 6)
    question = Question(Path(), Path(), tokenizer, prompt, (), None)
    measured = Measurement(whole=Counts(), regions=(), threads=1)
    said = RunResult(
        tokens, tokenizer.decode(tokens), prompt, np.zeros((2, 9)), (), (), measured, 256
    )
    check_words(said, question)
    with pytest.raises(LabError, match="the device decodes 'x'"):
        check_words(replace(said, text="x"), question)
    with pytest.raises(LabError, match="the device encodes the prompt as"):
        check_words(replace(said, prompt=(1,)), question)


@pytest.mark.long
@pytest.mark.usefixtures("emulator")
def test_the_pinned_model_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cross()
    options = ["--project", str(PROJECT), "--tvm-tree", str(tvm_tree()), "--release", "test"]
    options += ["--json", str(tmp_path / "report.json")]
    try:
        job = parse_job(options)
        fetch_asset(read_pins(PROJECT).asset(job.model), job.cache)
    except LabError as error:
        pytest.skip(f"the model cannot be had: {error.what}")
    assert main(options) == 0
    assert capsys.readouterr().out.strip() == "The capital of France is Paris."
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (
        report["tokens"] == report["reference_tokens"] == [504, 3575, 282, 4649, 314, 7042, 30, 2]
    )
    assert report["max_logit_error"] < 1e-3
    assert {entry["block"] for entry in report["tensorized"] if entry["symbol"]} == {
        "S_gemm",
        "O_gemm",
    }
    assert report["counters"]["prefill"]["vector"] > 0


def tokenizer_folder(name: str, folder: Path) -> Path:
    """A published tokenizer, or a small one of the same kind for the quick test."""
    if name != "trained":
        return published(name)
    folder.mkdir()
    trained = text_probe.trained("qwen2", nfc=True)
    trained.tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(trained.settings)))
    return folder


@pytest.mark.usefixtures("emulator")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen3", "trained"),
        pytest.param("qwen3", "qwen3", marks=pytest.mark.long),
        pytest.param("llama", "llama3_1", marks=pytest.mark.long),
        pytest.param("gemma", "gemma3", marks=pytest.mark.long),
    ],
)
def test_a_folder_becomes_a_tarball(family: str, name: str, tmp_path: Path) -> None:
    """Through MLC-LLM, in int4, for two register lengths: the reference's tokens on both."""
    cross()
    mlc = mlc_tree.tools().mlc_tree
    applied = trees().parent / "apply.json"
    if not applied.is_file():
        pytest.skip(f"no {applied}, which says what the trees were made from")
    folder = write_folder(tmp_path / "Small One", family, tokenizer_folder(name, tmp_path / "t"))
    if name == "trained":  # the files are found without it as well
        (folder / INDEX_FILE).unlink()
    tiny_model.make_project(tmp_path / "project")
    options = [str(folder), "--project", str(tmp_path / "project"), "--release", "test"]
    options += ["--tvm-tree", str(tvm_tree()), "--mlc-tree", str(mlc), "--applied", str(applied)]
    options += ["--quantization", "q4f32_1", "--context", "128", "--max-new", "3"]
    options += ["--vlen", "128,256"]
    assert model_job.main(options) == 0
    report = json.loads((tmp_path / "project" / "out" / "small-one.json").read_text("utf-8"))
    assert (report["checked"], report["path"]) == (True, "mlc-llm")
    assert report["tokens"] == report["reference_tokens"]
    assert len(report["tokens"]) == 3
    answers = {one["vlen"]: one for one in report["answers"]}
    assert set(answers) == {128, 256} and all(one["right"] for one in answers.values())
    prefills = [answers[vlen]["counters"]["prefill"]["insns"] for vlen in (128, 256)]
    assert prefills[0] > prefills[1]
    assert report["prompt_tokens"] == ChatTokenizer.load(folder).chat_ids(report["prompt"])
    assert {"tokenizer.bin", "run.sh", "runner"} <= {p.name for p in Path(report["dist"]).iterdir()}
    tarballs = sorted((tmp_path / "project" / "dist").glob("*.tar"))
    stem = "mlc-rvv-test-riscv64-rvv128-rvv256-small-one-q4f32_1"
    assert [tarball.name for tarball in tarballs] == [f"{stem}-objects.tar", f"{stem}.tar"]
    assert [verify.main([str(tarball)]) for tarball in tarballs] == [0, 0]
