# SPDX-License-Identifier: Apache-2.0
"""``accelerator workload``: the work file of a model, and the road from it to an estimate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm", reason="the models are built with apache-tvm")
from accelerator.cli import main, read_model
from accelerator.workload.gpt2 import export
from costmodel.cli import main as estimate
from costmodel.estimate.workload import bind_phase
from crosslab.errors import UserError

SMALL = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 128,
    "vocab_size": 100,
}


def test_a_config_becomes_a_work_file_that_can_be_estimated(tmp_path: Path) -> None:
    config, work = tmp_path / "config.json", tmp_path / "deep" / "small.work.json"
    config.write_text(json.dumps(SMALL), encoding="utf-8")
    assert main(["workload", str(config), "--output", str(work)]) == 0
    out = tmp_path / "out.json"
    assert estimate(["--model", str(work), "--json", str(out), "--quiet"]) == 0
    prefill, decode = json.loads(out.read_text(encoding="utf-8"))
    weights = 2 * 12 * 64 * 64
    assert decode["total"]["macs"] == weights + 100 * 64 + 2 * 2 * 1024 * 64
    assert prefill["total"]["macs"] == 512 * weights + 100 * 64 + 2 * 2 * 512 * 512 * 64
    again = tmp_path / "again.json"
    assert main(["workload", str(work), "--output", str(again)]) == 0
    assert again.read_bytes() == work.read_bytes()


def test_an_estimate_of_a_config_is_that_of_its_work_file(tmp_path: Path) -> None:
    config, work = tmp_path / "config.json", tmp_path / "small.work.json"
    config.write_text(json.dumps(SMALL), encoding="utf-8")
    assert main(["workload", str(config), "--output", str(work)]) == 0
    out = [tmp_path / name for name in ("file.json", "config-out.json", "layers.json")]
    assert main(["estimate", "--model", str(work), "--json", str(out[0]), "--quiet"]) == 0
    assert main(["--model", str(config), "--json", str(out[1]), "--quiet"]) == 0
    assert out[0].read_bytes() == out[1].read_bytes()
    device = ["layers", "vta-1x16x16", "--phase", "decode:8", "--attention", "cpu"]
    assert main([*device, "--model", str(config), "--json", str(out[2])]) == 0
    (phase,) = json.loads(out[2].read_text(encoding="utf-8"))["phases"]
    assert phase["tokens"] == 1 and phase["layers"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read as a model"),
        ("{", "cannot be read as a model"),
        ("[" * 100000, "cannot be read as a model"),
        ("{}", "is neither a config.json, a work file nor an IRModule"),
        ('{"model_type": "mamba"}', "model_type 'mamba' is not supported"),
    ],
)
def test_another_file_than_a_model_is_refused(
    tmp_path: Path, text: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert main(["workload", str(path), "--output", str(tmp_path / "x.work.json")]) == 2
    assert message in capsys.readouterr().err


def test_a_configuration_that_lacks_a_size_is_refused() -> None:
    with pytest.raises(UserError, match="lacks n_layer"):
        export({name: size for name, size in SMALL.items() if name != "n_layer"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_head": 0}, "n_head is 0"),
        ({"n_head": 5}, "n_embd, 64, is not a multiple of n_head, 5"),
        ({"n_embd": True}, "n_embd is True"),
        ({"n_embd": 0}, "n_embd is 0"),
        ({"vocab_size": -5}, "vocab_size is -5"),
        ({"n_layer": -1}, "n_layer is -1"),
        ({"n_positions": None}, "n_positions is None"),
        ({"n_inner": "128"}, "n_inner is '128'"),
        ({"n_inner": 0}, "n_inner is 0"),
    ],
)
def test_a_configuration_with_a_wrong_size_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**SMALL, **changes}), encoding="utf-8")
    assert main(["workload", str(config), "--output", str(tmp_path / "x.work.json")]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("inner", "columns"), [(96, 96), (None, 4 * 64)])
def test_the_feed_forward_has_the_width_of_the_configuration(
    inner: int | None, columns: int, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**SMALL, "n_inner": inner}), encoding="utf-8")
    phase = bind_phase(read_model(config), "decode", 8, {})
    sizes = {item.kind: (item.gemm.n, item.gemm.k) for item in phase.items}
    assert (sizes["c_fc"], sizes["c_proj"]) == ((columns, 64), (64, columns))
