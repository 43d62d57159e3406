# SPDX-License-Identifier: Apache-2.0
"""``--accelerator DEVICE``: a companion package has the device, else the message names it."""

from __future__ import annotations

import importlib.metadata
import shutil
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from crosslab.assemble import offload
from crosslab.errors import UserError
from crosslab.job.job_options import parse_job

ROOT = Path(__file__).resolve().parents[3]
VTA = ("--accelerator", "vta-1x16x16")


def installed(*entries: EntryPoint) -> object:
    return lambda *, group: importlib.metadata.EntryPoints(entries).select(group=group)


def test_without_a_companion_the_message_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload, "entry_points", installed())
    with pytest.raises(UserError, match="mlc-rvv-accelerator-study is not installed") as refused:
        parse_job(["--tvm-tree", str(tmp_path), *VTA])
    assert "-- --with accelerator-study --accelerator vta-1x16x16" in refused.value.remedy


def test_attention_without_an_accelerator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--attention device") as refused:
        parse_job(["--tvm-tree", str(tmp_path), "--attention", "device"])
    assert refused.value.remedy == "add --accelerator DEVICE"


def test_an_entry_point_names_what_gives_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = EntryPoint("study", "accelerator.host.offload:find", offload.OFFLOADS)
    pytest.importorskip("accelerator", reason="needs packages/accelerator-study")
    monkeypatch.setattr(offload, "entry_points", installed(entry))
    options = ["--tvm-tree", str(tmp_path), "--project", str(tmp_path), *VTA]
    shutil.copy(ROOT / "VERSIONS.lock", tmp_path)
    job = parse_job(options)
    assert job.offload and job.recipe.mode == job.offload.mode
    assert job.offload.about == {"accelerator": "vta-1x16x16", "attention": "cpu"}
    assert [one.name for one in job.recipe.mode.extras] == [
        "call_accelerator",
        "describe_int8_weights",
    ]
    assert job.report == tmp_path / "out" / "build_and_test-vta-1x16x16.json"
    whole = parse_job([*options, "--attention", "device"])
    assert whole.recipe.mode.extras[-1].name == "attend_on_accelerator"
    for other in (["--activations", "int8"], ["--weights", "stored"], ["--quantization", "q0f16"]):
        with pytest.raises(UserError, match="rounds float32 weights and activations itself"):
            parse_job([*options, *other])
