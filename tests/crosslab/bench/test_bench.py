# SPDX-License-Identifier: Apache-2.0
"""The bench: what it refuses, what it counts, and what its reports say."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import gguf
import pytest
from rich.console import Console
from support import tiny_model
from support.bench_options import parse_bench
from support.shared_builds import PROJECT, cross, tvm_tree

from crosslab.address import Address
from crosslab.bench.cli import main
from crosslab.bench.options import Bench, Variant
from crosslab.bench.peers import formats_beside
from crosslab.bench.rows import Function, Row, write_rows
from crosslab.bench.table import HEADINGS, show
from crosslab.errors import UserError
from crosslab.models.config import LlamaConfig, write_config
from crosslab.models.llama_params import fuse_weights, random_model, random_weights
from crosslab.run.measurement import Counts, phase_counts
from sessions.ladder import LADDER, NAMES, SOME, on_release

BASE = [
    "--project",
    str(PROJECT),
    "--tvm-tree",
    "T",
    "--variant",
    "upstream=U",
    "--variant",
    "step=S",
    "--variant",
]
WITHOUT_MLC = [*BASE, "ours=O,kernels"]
WITH_MLC = [*BASE[:5], "upstream=U,mlc=M", *BASE[6:], "ours=O,mlc=N,kernels"]
# Every promised field of a row; more may stand beside them.
FIELDS = {
    *("model", "variant", "phase", "tokens", "quantization", "vlen", "threads"),
    *("insns", "vector", "vsetvl", "vmem", "lmul_weighted", "activations", "kv_cache"),
    *("layers", "core", "cycles_serial", "cycles_vec_serial"),
}
TINY = LlamaConfig(64, 96, 2, 1, 32, 1, 64, context=64)
COUNTED = Row(
    model="S",
    variant="upstream",
    phase="prefill",
    tokens=128,
    quantization="q0f32",
    vlen=256,
    threads=1,
    insns=225_774_893,
    vector=55_553_000,
    vsetvl=14_292_000,
    vmem=27_638_000,
    lmul_weighted=280_560_000,
    prompt=128,
    path="own",
)

SHIPPED = replace(
    COUNTED,
    variant="llama.cpp F32",
    insns=50_000_000,
    path=None,
    layers="as shipped",
    source="its best",
    kernels=(("ggml_gemm_q4_0_16x1_q8_0", 0.61), ("ggml_vec_dot_q4_0_q8_0", 0.3)),
)


@contextmanager
def worker(scheduler: Address, *options: str) -> Iterator[None]:
    command = [sys.executable, "-m", "crosslab", "bench", *options, "--worker", str(scheduler)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        # The worker says first what it reuses.
        assert f"joined {scheduler}\n" in iter(process.stderr.readline, "")
        try:
            yield
        finally:
            process.kill()


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "COLUMNS": "200",
    }
    command = [sys.executable, "-m", "crosslab", "bench", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--quantization", "q4f32_1"], "--mirror mlc-llm="),
        (["--path", "mlc-llm"], "--mirror mlc-llm="),
        (["--quantization", "q4"], "q4f32_1"),
        (["--vlen", "300"], "1024"),
        (["--model", "L"], "config.json"),
        (["--against", "llama.cpp"], "there are: upstream, step"),
        (["--prefill", "128", "0"], "--prefill"),
        (["--prefill", "32761"], "32768"),
        (["--decode", "2"], "--decode"),
        (["--depth", "-1"], "a depth of 0 or more"),
        (["--depth", "32700"], "8 generated ones, after 32700 of --depth, do not fit"),
        (["--depth", "8", "--together", "2"], "leave out --depth"),
        (["--threads", "0"], "--threads"),
        (["--variant", "more=T,fast"], "NAME=TREE"),
        (["--core", "x59"], "'x59' is not a known core; choose from"),
        (["--caches"], "--core spacemit-x60"),
        (["--together", "9"], "1 to 8 sequences"),
        (["--together", "4", "--decode", "5"], "--decode 8"),
        (["--caches", "--core", "xuantie-c908"], "no [memory]"),
        (["--caches", "--core", "spacemit-x60", "--threads", "2"], "one core"),
        (["--core", "xuantie-c908", "--vlen", "256"], "--vlen 256: xuantie-c908 has 128"),
        (["--quantization", "gguf", "--activations", "float32"], "leave out --activations"),
        (["--gguf", "Q4_K_M"], "add --quantization gguf"),
        (["--quantization", "q0f32", "gguf", "--weights", "stored"], "leave out --weights stored"),
    ],
)
def test_what_cannot_be_is_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((UserError, SystemExit)) as caught:
        parse_bench([*WITHOUT_MLC, *options])
    if isinstance(caught.value, SystemExit):
        assert caught.value.code == 2
        assert said in capsys.readouterr().err
    else:
        assert caught.value.exit_code == 2
        assert said in str(caught.value)


def test_a_mistake_ends_with_2_and_a_remedy() -> None:
    done = bench(*WITHOUT_MLC, "--quantization", "q4f32_1")
    assert done.returncode == 2
    assert "--mirror mlc-llm=" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_config_of_another_kind_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "mamba"}', encoding="utf-8")
    with pytest.raises(UserError, match="mamba"):
        parse_bench([*WITHOUT_MLC, "--model", str(config)])


def test_the_own_definition_takes_float32_alone() -> None:
    with pytest.raises(UserError, match="q0f32 only"):
        parse_bench([*WITH_MLC, "--quantization", "q4f32_1", "--path", "own"])


def test_variants_are_read_whole() -> None:
    assert Variant.parse("a=t") == Variant("a", Path("t"))
    read = Variant.parse("a=t,mlc=m,kernels,steps=attention+linear")
    assert read == Variant("a", Path("t"), Path("m"), True, ("attention", "linear"))
    # Without kernels, passes run where they are named.
    passes = {
        text: Variant.parse(text).passes for text in ("a=t", "a=t,kernels", "a=t,steps=linear")
    }
    assert list(passes.values()) == [(), None, ("linear",)]
    for wrong in ("a", "=t", "a=", "a=t,mlc=", "a=t,step=b"):
        with pytest.raises(UserError):
            Variant.parse(wrong)


def test_the_ladder_is_made_of_trees_that_can_be(tmp_path: Path) -> None:
    tvm_tree()
    for number, chosen in enumerate(sorted({step.tvm for step in LADDER} - {()})):
        command = [sys.executable, "-m", "forkpatch", "tree", "tvm", *chosen, "--offline"]
        done = subprocess.run(
            [*command, "--output", str(tmp_path / str(number))],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert [step.name for step in LADDER][:: len(LADDER) - 1] == ["upstream", "ours"]


def test_upstream_keeps_the_names_that_mlc_llm_uses() -> None:
    names, other = f"{NAMES}older.patch", "kv-cache.patch"
    assert on_release(LADDER[0].tvm, [other, names]) == ("--only", names)
    assert on_release(LADDER[0].tvm, [other]) == LADDER[0].tvm
    assert on_release(LADDER[1].tvm, [other, *SOME]) == LADDER[1].tvm
    assert set(LADDER[1].tvm) - set(on_release(LADDER[1].tvm, [other, names])) == set(SOME)
    folders = (PROJECT / "patches" / "tvm").iterdir()
    found = [sorted(path.name for path in folder.glob(f"{NAMES}*.patch")) for folder in folders]
    assert any(found), "no series gives names back"


def test_against_leaves_two_variants() -> None:
    assert [v.name for v in parse_bench(WITHOUT_MLC).variants] == ["upstream", "step", "ours"]
    chosen = parse_bench([*WITHOUT_MLC, "--against", "upstream"])
    assert [v.name for v in chosen.variants] == ["upstream", "ours"]


def test_lists_and_paths_of_options() -> None:
    options = ["--prefill", "32", "64", "--prefill", "32", "--quantization", "q4f32_1", "q0f32"]
    read: Bench = parse_bench([*WITH_MLC, *options, "--vlen", "128", "--model", "smollm2"])
    assert (read.prompts, read.recipe.vlens) == ((32, 64), (128,))
    assert (read.model, read.asset, read.config) == ("smollm2", "smollm2-135m", None)
    assert [read.path_of(q) for q in read.quantizations] == ["mlc-llm", "own"]
    # A step without an MLC-LLM tree is one of the own definition's only.
    assert [v.name for v in read.variants_of("q4f32_1")] == ["upstream", "ours"]
    assert len(read.variants_of("q0f32")) == 3
    assert replace(read, path="mlc-llm").path_of("q0f32") == "mlc-llm"
    both = parse_bench([*WITH_MLC, "--quantization", "gguf", "q0f32"])
    assert [both.mode_of(q).activations for q in both.quantizations] == ["int8", "float32"]


def gguf_of(folder: Path, architecture: str) -> Path:
    """Write a GGUF file that names its architecture, and has no tensors."""
    writer = gguf.GGUFWriter(folder / f"{architecture}.gguf", architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return folder / f"{architecture}.gguf"


@pytest.mark.parametrize(("architecture", "path"), [("llama", "own"), ("phi3", "mlc-llm")])
def test_a_gguf_file_is_counted_in_its_blocks(architecture: str, path: str, tmp_path: Path) -> None:
    file = gguf_of(tmp_path, architecture)
    read = parse_bench([*WITH_MLC, "--model", str(file), "--peer", "llama.cpp"])
    assert (read.model, read.file, read.quantizations) == (file.name, file, ("gguf",))
    assert read.path_of("gguf") == path
    assert [variant.name for variant in read.variants_of("gguf")] == ["ours"]
    assert formats_beside(read, "gguf") == (file.name,)


def test_a_gguf_file_of_mlc_llm_s_families_needs_its_tree(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs MLC-LLM, which is missing"):
        parse_bench([*WITHOUT_MLC, "--model", str(gguf_of(tmp_path, "phi3"))])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--quantization", "gguf", "q0f32"], "leave out --quantization"),
        (["--gguf", "Q4_0"], "leave out --gguf"),
        (["--core", "spacemit-x60", "--predict"], "leave out --predict"),
        (["--prefill", "0"], "prompts of 1 token or more"),
    ],
)
def test_options_that_do_not_fit_a_gguf_file_are_refused(
    options: list[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        parse_bench([*WITH_MLC, "--model", str(gguf_of(tmp_path, "llama")), *options])
    assert said in str(caught.value)


def test_a_gguf_file_without_tokens_to_generate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="bert reads texts and generates no tokens"):
        parse_bench([*WITH_MLC, "--model", str(gguf_of(tmp_path, "bert"))])
    with pytest.raises(UserError, match="is not a GGUF file"):
        parse_bench([*WITH_MLC, "--model", str(tmp_path / "none.gguf")])


def test_decode_is_the_mean_of_the_steps_after_the_first() -> None:
    regions = [Counts(insns=n) for n in (100, 50, 9, 4, 7)]
    assert phase_counts(regions, 2) == (Counts(insns=150), Counts(insns=6))
    assert phase_counts(regions[2:], 0) == (Counts(), Counts(insns=6))
    assert phase_counts(regions[:3], 2)[1] == Counts(insns=9)
    assert phase_counts(regions[:2], 2)[1] is None


def test_tables_fit_a_narrow_terminal() -> None:
    function = Function("_ZN3tvm" + "7runtime" * 20, 1_000_000, 2_000_000, 0.25)
    ours = replace(COUNTED, variant="ours", functions=(function,))
    huge = replace(COUNTED, variant="vectors", insns=87_654_321_000)
    rows = [COUNTED, ours, huge, SHIPPED]
    sink = io.StringIO()
    show(rows, Console(file=sink, width=80))
    lines = sink.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split() == " ".join(HEADINGS).split() for line in lines)
    assert any("llama.cpp F32*" in line and "50.000" in line for line in lines)
    products = "ggml_gemm_q4_0_16x1_q8_0 61%, ggml_vec_dot_q4_0_q8_0 30% (not repacked)"
    assert f"llama.cpp F32*, prefill: its best; its products: {products}" in " ".join(
        " ".join(lines).split()
    )
    assert any("_ZN3tvm" in line and "25.0%" in line for line in lines)
    assert any("87,654" in line for line in lines)


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    report = tmp_path / "out" / "bench.json"
    write_rows([COUNTED, SHIPPED], report)
    counted, peer = json.loads(report.read_text(encoding="utf-8"))
    assert set(counted) >= FIELDS
    assert (counted["layers"], peer["layers"], peer["insns"]) == ("", "as shipped", 50_000_000)
    assert [p.name for p in report.parent.iterdir()] == ["bench.json"]
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OSError):  # the command line makes it a refusal
        write_rows([COUNTED], tmp_path / "file" / "bench.json")


def test_random_models_hold_the_same_weights_on_both_paths(tmp_path: Path) -> None:
    model = random_model(TINY, 3, tmp_path)
    ours = dict(random_weights(TINY, 3))
    theirs = dict(fuse_weights(model, TINY))
    assert list(ours) == list(theirs)
    assert all((ours[name] == theirs[name]).all() for name in ours)


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """Options that count a tiny model with kernels and without."""
    cross()
    write_config(TINY, tmp_path / "config.json")
    tree = tvm_tree()
    variants = [f"upstream={tree}", f"ours={tree},kernels"]
    return [
        *("--project", str(PROJECT), "--tvm-tree", str(tree)),
        *(word for variant in variants for word in ("--variant", variant)),
        *("--model", str(tmp_path / "config.json"), "--prefill", "9", "--decode", "3"),
    ]


def counted(report: Path, options: list[str]) -> list[dict[str, Any]]:
    assert main([*options, "--json", str(report)]) == 0
    rows: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))
    return rows


@pytest.mark.usefixtures("counting_emulator")
def test_a_small_model_is_counted(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--profile", "--core", "spacemit-x60", "--caches"]
    rows = counted(tmp_path / "bench.json", [*options, *more])
    assert [(row["variant"], row["phase"], row["tokens"]) for row in rows] == [
        ("upstream", "prefill", 9),
        ("ours", "prefill", 9),
        ("upstream", "decode", 3),
        ("ours", "decode", 3),
    ]
    for row in rows:
        # One thread shares no work, and only a peer's kernels are named.
        assert set(row) == {field.name for field in fields(Row)} - {"work", "kernels"}
        assert (row["vlen"], row["threads"], row["prompt"]) == (256, 1, 9)
        assert 0 < row["vmem"] < row["vector"] < row["insns"] < row["lmul_weighted"]
        assert 0 < len(row["functions"]) <= 20
        assert sum(f["insns"] for f in row["functions"]) <= row["insns"] * 1.2
        cycles = row["cycles"]
        assert row["core"] == "spacemit-x60"
        assert row["insns"] / 2 < row["cycles_vec_serial"] < row["cycles_serial"]
        assert sum(cycles["units"].values()) == pytest.approx(row["cycles_serial"], abs=3)
        assert len(cycles["kinds"]) == 10
        assert sum(cycles["unmeasured"].values()) < 0.02
        memory = row["memory"]
        assert 0 < memory["misses_l2"] * 64 == memory["bytes_read"]
        assert memory["misses_l2"] <= memory["misses_l1"]
        fastest = 1.6e9 * row["tokens"] / row["cycles_pipeline"]
        assert 0 < row["tokens_per_second"] < 1.001 * fastest
    kernels = {f["symbol"] for f in rows[1]["functions"] if f["symbol"].startswith("mlc_f32_")}
    assert kernels
    assert not kernels & {f["symbol"] for f in rows[0]["functions"]}
    printed = capsys.readouterr().out
    assert "millions of cycles on SpacemiT X60" in printed
    assert "Banana Pi BPI-F3" in printed


@pytest.mark.thorough
@pytest.mark.usefixtures("counting_emulator")
def test_counts_are_the_same_on_another_machine_and_behind_a_depth(
    options: list[str], tmp_path: Path, scheduler: Address
) -> None:
    report = tmp_path / "bench.json"
    # Without a profile both phases come from one run, and are the same.
    rows = counted(report, [*options, "--profile"])
    with worker(scheduler, *options[:8]):
        others = counted(report, [*options, "--scheduler", str(scheduler)])
    for row, other in zip(others, rows, strict=True):
        assert (row["variant"], row["phase"]) == (other["variant"], other["phase"])
        assert row["insns"] == pytest.approx(other["insns"], rel=0.01)
    # Behind 20 tokens that were not computed, a token takes what it takes behind a prompt of 29.
    steps = []
    for longer in (["--depth", "20"], ["--prefill", "29"]):
        read = [Row(**row) for row in counted(report, [*options, *longer])]
        steps.append(
            [r.insns for r in read if r.phase == "decode" and 29 in (r.prompt, r.prompt + r.depth)]
        )
    assert len(steps[0]) == 2
    assert steps[0] == pytest.approx(steps[1], rel=0.01)
    assert all(deep > short["insns"] for deep, short in zip(steps[0], rows[2:], strict=True))


@pytest.mark.thorough
@pytest.mark.usefixtures("counting_emulator")
def test_a_gguf_file_is_counted(options: list[str], tmp_path: Path) -> None:
    tiny_model.write_gguf(tmp_path / "tiny.gguf")
    rows = counted(tmp_path / "bench.json", [*options, "--model", str(tmp_path / "tiny.gguf")])
    assert [(row["variant"], row["phase"], row["tokens"]) for row in rows] == [
        ("ours", "prefill", 9),
        ("ours", "decode", 3),
    ]
    assert {(row["model"], row["quantization"]) for row in rows} == {("tiny.gguf", "gguf")}
