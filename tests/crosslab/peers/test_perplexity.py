# SPDX-License-Identifier: Apache-2.0
"""``crosslab perplexity`` on a tiny model; a script answers for llama.cpp's program.

The build of the program takes minutes, so that these tests replace it, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from support import tiny_model
from support.models.gguf_rewrite import Encoded, rewrite
from support.shared_builds import PROJECT

from crosslab.assemble.pinned_archive import read_archive
from crosslab.errors import LabError, UserError
from crosslab.host.toolchain import CompilerKind, find_native
from crosslab.models.sources.gguf_families import rope_scaling
from crosslab.models.sources.gguf_import import import_gguf, open_gguf
from crosslab.models.weights_file import F32
from crosslab.peers import llama_cpp_programs, perplexity
from crosslab.peers.gguf_export import FORMATS
from crosslab.peers.gguf_rewrite import rewrite_gguf
from crosslab.peers.perplexity import StoredModel, main, read_windows

TEXT = "The licence of a model says who may use it, and for what.\r\n" * 8
WINDOW = 16


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with a width that 256 divides and others that only 32 divides."""
    monkeypatch.setattr(tiny_model, "WIDE", 256)
    path = tmp_path / "tiny.gguf"
    tiny_model.write_gguf(path)
    (tmp_path / "text.txt").write_bytes(TEXT.encode())
    return path


def run(file: Path, *options: str) -> int:
    folder = file.parent
    given = ["--text", str(folder / "text.txt"), "--window", str(WINDOW)]
    return main([str(file), *given, "--cache", str(folder / "cache"), *options])


Answer = Callable[..., dict[str, Any]]


@pytest.fixture
def answer(file: Path, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Let the peer's program answer as ours in float32, with changes; returns its answer."""
    script = file.with_name("reader")
    monkeypatch.setattr(perplexity, "build_native", lambda *_: script)

    def given(**changes: Any) -> dict[str, Any]:
        model = StoredModel.of_file(file, file.parent / "cache")
        tokens = model.tokens_of(TEXT)
        found = read_windows(model, tokens[: 2 * WINDOW], WINDOW).tolist()
        table = {"bytes": 1000, "first": [], "tokens": tokens, "log_probabilities": found}
        table |= changes
        # Run by the shell: it leaves if it is not given the model, the text, the window and count.
        text = json.dumps(table)
        words = f'"{file} {file.parent}/text.txt {WINDOW} 2"'
        script.write_text(f"#!/bin/sh\n[ \"$*\" = {words} ] || exit 3\ncat <<'E'\n{text}\nE\n")
        script.chmod(0o755)
        return table

    return given


def test_the_table_has_the_peer_last_and_differences(
    file: Path, answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    answer()
    assert run(file, "--peer", "llama.cpp", "--windows", "2") == 0
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if "ours, " in line or "│ llama.cpp" in line]
    ours, theirs = ([cell.strip() for cell in line.split("│")[1:-1]] for line in lines)
    assert (ours[0], theirs[0], theirs[1]) == ("ours, float32 activations", "llama.cpp", "0.00")
    assert ours[3] == theirs[3]
    assert theirs[4:] == ["0.0000", "0.000"]
    assert "32 tokens in windows of 16, each without a first token" in printed
    assert "splits the text into the same tokens" in printed


def test_int8_activations_have_a_row_of_their_own(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(file, "--format", "Q4_0") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "│ ours, " in line]
    assert len(lines) == 2
    plain, rounded = ([cell.strip() for cell in line.split("│")[1:-1]] for line in lines)
    # 4.5 bits, and the norms.
    assert 4.5 < float(plain[2]) == float(rounded[2]) < 4.6
    assert 0 < float(rounded[4]) < 0.05


def test_other_tokens_of_the_peer_fail(file: Path, answer: Answer) -> None:
    tokens = answer()["tokens"]
    answer(tokens=[*tokens[:5], tokens[5] + 1, *tokens[6:]])
    with pytest.raises(LabError, match=r"splits the text with other tokens: at 5 \[") as caught:
        run(file, "--peer", "llama.cpp", "--windows", "2")
    assert "--peer" in caught.value.remedy
    answer(first=[0], log_probabilities=[-1.0] * 2 * WINDOW)
    with pytest.raises(LabError, match="begins every text with other tokens"):
        run(file, "--peer", "llama.cpp", "--windows", "2")


@pytest.mark.parametrize(
    "changes",
    [
        {"log_probabilities": [-1.0, "x"]},
        {"log_probabilities": [-1.0]},
        {"log_probabilities": [float("nan")]},
        {"tokens": 3},
    ],
)
def test_an_answer_of_another_form_is_refused(
    file: Path, answer: Answer, changes: dict[str, Any]
) -> None:
    answer(**changes)
    with pytest.raises(LabError, match="answer of llama"):
        run(file, "--peer", "llama.cpp", "--windows", "2")


def test_a_failure_of_the_peer_says_what_to_do(file: Path, answer: Answer) -> None:
    answer()
    with pytest.raises(LabError, match="exit code 3") as caught:
        run(file, "--peer", "llama.cpp", "--windows", "1")
    assert "leave out --peer" in caught.value.remedy


def test_bad_input_is_refused_with_what_to_type(file: Path) -> None:
    empty, other = file.with_name("empty.txt"), file.with_name("other.gguf")
    empty.write_text("", encoding="utf-8")
    other.write_bytes(b"GGUF" + b"\xff" * 64)
    for options, what in (
        (["--text", str(empty)], "has 0 tokens"),
        (["--text", "missing.txt"], "cannot read the text missing.txt"),
        (["--text", str(other)], "cannot read the text"),
        (["--window", "1"], "--window 1: the model reads windows of 2 to 256 tokens"),
        (["--window", "257"], "--window 257"),
        (["--windows", "0"], "--windows 0"),
    ):
        with pytest.raises(UserError, match=what) as caught:
            run(file, *options)
        assert caught.value.remedy and caught.value.exit_code == 2
    for model, what in (
        (other, "is not a GGUF file"),
        (file.with_name("no.gguf"), "is not there"),
        (file.parent, "is not a GGUF file"),
    ):
        with pytest.raises(UserError, match=what) as caught:
            main([str(model)])
        assert caught.value.remedy


def test_a_rewritten_file_has_the_same_tokenizer_and_near_numbers(file: Path) -> None:
    before, fields = open_gguf(file)
    after, copied = open_gguf(rewrite_gguf(file, "Q4_K_M", file.parent / "cache"))
    same = {name for name in fields if name.startswith(("tokenizer.", "llama."))}
    assert {n: fields[n] for n in same} == {n: copied[n] for n in same}
    kinds = {str(tensor.name): tensor.tensor_type.name for tensor in after.tensors}
    assert kinds["token_embd.weight"] == "Q8_0"
    assert kinds["blk.0.attn_q.weight"] == "Q5_0"
    assert kinds["blk.0.attn_norm.weight"] == "F32"
    for old, new in zip(before.tensors, after.tensors, strict=True):
        want, got = (gguf.dequantize(one.data, one.tensor_type) for one in (old, new))
        assert np.abs(got - want).max() <= 0.15 * np.abs(want).max()


def test_experts_are_rewritten_and_routers_are_not(tmp_path: Path) -> None:
    path = tmp_path / "experts.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(8)
    values = np.random.default_rng(1).normal(0, 0.05, (3, 64, 256)).astype(np.float32)
    for name in ("ffn_down_exps.weight", "ffn_gate_exps.weight"):
        writer.add_tensor(f"blk.0.{name}", values)
    for name in ("ffn_gate_inp.weight", "ffn_gate_exps.bias"):
        writer.add_tensor(f"blk.0.{name}", values[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    after, _ = open_gguf(rewrite_gguf(path, "Q4_K_M", tmp_path / "cache"))
    tensors = {str(tensor.name): tensor for tensor in after.tensors}
    assert {name: tensor.tensor_type.name for name, tensor in tensors.items()} == {
        # The first layer of eight has better down projections, of experts, too.
        "blk.0.ffn_down_exps.weight": "Q6_K",
        "blk.0.ffn_gate_exps.weight": "Q4_K",
        "blk.0.ffn_gate_inp.weight": "F32",
        "blk.0.ffn_gate_exps.bias": "F32",
    }
    down = tensors["blk.0.ffn_down_exps.weight"]
    got = gguf.dequantize(down.data, down.tensor_type)
    assert got.shape == values.shape
    assert np.abs(got - values).max() <= 0.03 * np.abs(values).max()


@pytest.mark.parametrize("kind", ["I8", "I16", "I32", "F64"])
def test_a_type_that_the_package_cannot_convert_is_refused_by_name(
    kind: str, tmp_path: Path
) -> None:
    tiny, other = tmp_path / "tiny.gguf", tmp_path / "other.gguf"
    tiny_model.write_gguf(tiny)
    dtype = {"I8": np.int8, "I16": np.int16, "I32": np.int32, "F64": np.float64}[kind]

    def encode(name: str, values: F32) -> Encoded | None:
        return (kind, values.astype(dtype)) if name == "blk.0.attn_q.weight" else None

    rewrite(tiny, other, encode=encode)
    with pytest.raises(UserError, match=rf"other\.gguf: the type {kind} of blk\.0\.attn_q"):
        rewrite_gguf(other, "Q8_0", tmp_path / "cache")
    with pytest.raises(UserError, match=rf"other\.gguf: the type {kind} of blk\.0\.attn_q"):
        import_gguf(other, tmp_path / "cache")


@pytest.mark.parametrize("config", [{}, {"head_dim": None, "rope_theta": 1e4}])
def test_rotary_factors_of_a_model_without_rotary_positions_are_refused(
    config: dict[str, Any],
) -> None:
    with pytest.raises(UserError, match=r"rope_freqs\.weight does not belong to a gpt2 model"):
        rope_scaling({"model_type": "gpt2", **config}, np.ones(32, np.float32))


@pytest.mark.parametrize(
    ("name", "width", "tied", "kind"),
    [
        ("blk.1.ffn_down.weight", 256, True, "Q5_K"),
        ("blk.0.ffn_down.weight", 256, True, "Q6_K"),
        ("blk.0.ffn_down.weight", 96, True, "Q8_0"),
        ("token_embd.weight", 256, True, "Q6_K"),
        ("token_embd.weight", 256, False, "Q5_K"),
        ("blk.1.attn_q.weight", 96, False, "Q5_1"),
    ],
)
def test_formats_of_a_mix(name: str, width: int, tied: bool, kind: str) -> None:
    assert FORMATS["Q5_K_M"].kind_of(name, width, 8, tied=tied).name == kind


def test_zig_does_not_build_the_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zig = replace(find_native(), kind=CompilerKind.ZIG, version="ziglang 0")
    monkeypatch.setattr(llama_cpp_programs, "find_native", lambda: zig)
    with pytest.raises(UserError, match="GCC or clang; this machine has ziglang 0") as caught:
        llama_cpp_programs.build_native(read_archive(PROJECT), llama_cpp_programs.READER, tmp_path)
    assert "install g++" in caught.value.remedy


def test_rows_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    tiny_model.write_gguf(path)
    with pytest.raises(UserError, match="rows of 176 weights"):
        rewrite_gguf(path, "Q8_0", tmp_path / "cache")
