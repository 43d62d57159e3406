# SPDX-License-Identifier: Apache-2.0
"""A whole small Llama on a device, and the command line."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from accelerator import model, study
from accelerator.cli import main
from accelerator.device import Device, load_device
from accelerator.errors import AcceleratorError
from accelerator.extension.unit import MatrixUnit, load_target
from accelerator.figures import busy, points
from accelerator.isa.instructions import Queue
from accelerator.layer import Int8, Int32, LinearLayer
from crosslab.models.config import LlamaConfig
from crosslab.models.llama_params import random_weights
from crosslab.models.reference import ReferenceLlama

DEVICES = [load_device("vta-1x16x16"), load_device("vta-16x16x16")]
CONFIG = LlamaConfig(48, 80, 3, 1, 16, layers=2, vocab=50, tied=True)


def small_llama() -> ReferenceLlama:
    return ReferenceLlama(CONFIG, dict(random_weights(CONFIG, 5)))


@pytest.mark.parametrize(
    "device", [*DEVICES, load_target("spacemit-ime")], ids=lambda d: str(d.name)
)
@pytest.mark.parametrize("attention", [True, False], ids=["attention", "linear"])
def test_a_small_model_is_numpys_bit_for_bit(device: Device | MatrixUnit, attention: bool) -> None:
    found = list(model.answer(small_llama(), device, [1, 2, 3, 4, 5], 4, (), attention))
    assert len(found) == 4
    assert all(at.equal and at.token == at.numpy for at in found)
    assert 0 < max(at.error for at in found) < 0.1
    assert all((at.error != at.linear) is attention for at in found)


def test_attention_in_int8_is_near_to_floats() -> None:
    random = np.random.default_rng(9)
    query, key, value = (random.normal(0, 1, (n, 24)).astype(np.float32) for n in (6, 40, 40))
    value *= random.choice([0.01, 1, 30], (40, 1)).astype(np.float32)  # a scale for each token
    visible = np.arange(40) <= np.arange(34, 40)[:, None]
    calls = []

    def sums(values: Int8, weights: Int8) -> Int32:
        calls.append((values.shape, weights.shape))
        return values.astype(np.int32) @ weights.T.astype(np.int32)

    found, _ = model.attend(query, key, value, visible, sums)
    scores = np.where(visible, query @ key.T / np.sqrt(np.float32(24)), -np.inf)
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    assert calls == [((6, 24), (40, 24)), ((6, 40), (24, 40))]
    assert np.abs(found - weights @ value).max() < 0.05 * np.abs(weights @ value).max()
    # A token that no query sees plays no part, whatever its size.
    for matrix in (key, value):
        matrix[39] *= 7
    hidden = visible & (np.arange(40) < 39)
    again, _ = model.attend(query, key, value, hidden, sums)
    shorter, _ = model.attend(query, key[:39], value[:39], hidden[:, :39], sums)
    assert np.array_equal(again, shorter)


def test_a_mixture_of_experts_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    experts = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    config = {**CONFIG.to_hf(), **experts, "architectures": ["MixtralForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(model, "import_gguf", lambda *_: tmp_path)
    with pytest.raises(AcceleratorError, match=r"a\.gguf: a mixture of experts"):
        model.load(Path("a.gguf"), tmp_path)


def test_an_answer_ends_where_the_model_does() -> None:
    first = next(iter(model.answer(small_llama(), DEVICES[1], [1, 2, 3], 1, ())))
    assert len(list(model.answer(small_llama(), DEVICES[1], [1, 2, 3], 9, [first.token]))) == 1


def test_only_rounding_lets_a_small_error_grow() -> None:
    tokens = [1, 2, 3, 4, 5]
    assert model.sensitivity(small_llama(), tokens, 0.0) == 0.0
    # As large as a step of rounding: activations fall to other steps.
    assert model.sensitivity(small_llama(), tokens, 1e-2) > 1e-3


def test_rounding_keeps_each_row_within_half_a_step() -> None:
    rows = np.random.default_rng(3).normal(0, [[1.0], [100.0]], (2, 64)).astype(np.float32)
    rounded, scale = model.quantise(rows)
    assert np.abs(rounded).max(axis=1).tolist() == [127, 127]
    assert (np.abs(rounded * scale[:, None] - rows) <= 0.501 * scale[:, None]).all()
    assert not model.quantise(np.zeros((1, 4), dtype=np.float32))[0].any()


def test_no_layer_is_above_the_roofs() -> None:
    device = DEVICES[1]
    sizes = [(1, 64, 64), (40, 300, 576), (256, 512, 512)]
    studied = [study.study(LinearLayer("a", *size), 1, device) for size in sizes]
    found = points(studied)
    for intensity, rate in found:
        assert 0 < rate <= min(device.peak, intensity * device.dram_bandwidth)
    # One row is the memory's alone; with more rows a weight is used more often.
    assert found[0][0] * device.dram_bandwidth < device.peak / 10
    assert found[0][0] < found[1][0] < found[2][0]


def test_a_timeline_has_the_time_of_each_queue() -> None:
    device = DEVICES[1]
    studied = [study.study(LinearLayer("a", *s), n, device) for s, n in (((40, 50, 60), 3),)]
    studied.append(study.study(LinearLayer("b", 64, 64, 64), 1, device))
    work = busy(studied, 50)
    assert work.shape == (4, 50)
    assert (work >= -1e-9).all() and (work <= 1 + 1e-9).all()
    cycles = sum(each.count * each.timing.cycles for each in studied)
    for row, queue in ((0, Queue.LOAD), (3, Queue.STORE)):
        spans = [
            each.count * (span.end - span.begin)
            for each in studied
            for span in each.timing.spans
            if span.queue is queue
        ]
        assert work[row].mean() * cycles == pytest.approx(sum(spans))


def test_layers_writes_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    options = ["--gemm", "40,50,60", "--prove", "--json", str(out)]
    files = ["--streams", str(tmp_path / "streams"), "--traces", str(tmp_path / "traces")]
    picture = tmp_path / "pictures" / "roofline.png"
    files += ["--roofline", str(picture)]
    assert main(["layers", "vta-16x16x16", *options, *files]) == 0
    first = picture.read_bytes()
    assert first.startswith(b"\x89PNG")
    assert main(["layers", "vta-16x16x16", "--gemm", "40,50,60", *files[-2:]]) == 0
    assert picture.read_bytes() == first
    drawn = tmp_path / "pictures" / "timeline.png"
    assert main(["layers", "vta-16x16x16", "--gemm", "40,50,60", "--timeline", str(drawn)]) == 0
    assert drawn.read_bytes().startswith(b"\x89PNG")
    (phase,) = json.loads(out.read_text(encoding="utf-8"))["phases"]
    (layer,) = phase["layers"]
    assert layer["predicted_bytes"] == layer["bytes"]
    assert "equal to numpy's bit for bit" in capsys.readouterr().out
    (stream,) = (tmp_path / "streams").iterdir()
    whole, own = sorted((tmp_path / "traces").iterdir(), key=lambda path: len(path.name))
    assert (whole.name, own.name) == ("gemm.json", "gemm-gemm.json")
    events = json.loads(own.read_text(encoding="utf-8"))["traceEvents"]
    assert len(events) == 4 + layer["instructions"] + 1
    assert whole.read_bytes() == own.read_bytes()
    assert main(["disassemble", "vta-16x16x16", str(stream)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == layer["instructions"]
    assert all(int(a.split()[0]) + 1 == int(b.split()[0]) for a, b in pairwise(lines))
    assert lines[-1].split()[2] == "finish"


def test_describe_says_what_a_description_makes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "vta-1x16x16"]) == 0
    said = capsys.readouterr().out
    assert "1 x 16 by 16 x 16; 256 multiply-accumulates a cycle at 100 MHz" in said
    assert "2048 inputs, 1024 weights, 2048 accumulators, 8192 micro-ops" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["layers", "tpu", "--gemm", "1,1,1"], "there is no device 'tpu'"),
        (["layers", "vta-1x16x16", "--gemm", "1,1"], "three positive numbers"),
        (["layers", "vta-1x16x16", "--gemm", "1,1,1", "--phase", "decode:1"], "is for --model"),
        (
            ["layers", "vta-1x16x16", "--network", "resnet18", "--attention", "cpu"],
            "is for --model",
        ),
        (
            ["layers", "vta-1x16x16", "--network", "resnet18", "--requantise", "1:5"],
            "--requantise is for --model and --gemm",
        ),
        (["layers", "vta-1x16x16", "--gemm", "1,1,1", "--requantise", "x"], "BYTES:SHIFT"),
        (["layers", "vta-1x16x16", "--gemm", "1,1,1", "--requantise", "3:0"], "to 3 bytes"),
        (["layers", "vta-1x16x16", "--gemm", "1,1,200000"], "passes 32 bits"),
        (["layers", "vta-1x16x16", "--model", "none.json"], "cannot be read"),
        (["disassemble", "vta-1x16x16", __file__], "bytes: instructions have 16|unknown opcode"),
        (["answer", "vta-1x16x16", "--gguf", __file__], "is not a GGUF file"),
        (["answer", "vta-1x16x16", "--tokens", "0"], "--tokens 0: must be at least 1"),
        (["answer", "vta-1x16x16", "--gguf", "none.gguf"], "none.gguf: the file does not exist"),
        (["disassemble", "vta-1x16x16", "none.bin"], "none.bin: the file does not exist"),
        (["describe", "tpu"], "there is no device 'tpu'"),
        (["disassemble", "spacemit-ime", "x"], "a CPU's matrix unit, not a device beside the CPU"),
    ],
)
def test_a_mistake_is_named(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "\nerror: " in f"\n{error}"
    assert any(part in error for part in message.split("|"))
