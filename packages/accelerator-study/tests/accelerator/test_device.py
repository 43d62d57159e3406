# SPDX-License-Identifier: Apache-2.0
"""Descriptions of devices: those that are shipped, and mistakes in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelerator.device import DEVICES, MemoryId, load_device
from accelerator.extension.unit import load_target
from costmodel.accelerator.settings import shipped_names
from costmodel.errors import CostError

DEFAULT = "vta-1x16x16"


def test_default_is_vtas() -> None:
    device = load_device(DEFAULT)
    depths = [device.depth(m) for m in list(MemoryId)[:5]]
    assert depths == [8192, 1024, 2048, 2048, 2048]
    assert [device.element(m) for m in MemoryId] == [4, 256, 16, 64, 16, 16]
    assert device.peak == 256


def test_shipped_devices_can_be_read() -> None:
    names = shipped_names(DEVICES)
    assert [load_target(name).name for name in names] == names
    assert load_device("vta-16x16x16").batch == 16


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(CostError, match="there is no device 'tpu'") as caught:
        load_device("tpu")
    assert DEFAULT in caught.value.remedy


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("batch = 1", "batch = 3", "a power of two"),
        ("inputs = 16", "inputs = 0", "a power of two"),
        ("batch = 1\n", "", r"\[gemm\] lacks 'batch'"),
        ('accumulator = "32 bit"', 'accumulator = "16 bit"', "must be 32 bit"),
        ('input = "32 KiB"', 'input = "33 KiB"', "a power of two"),
        ('input = "32 KiB"', 'input = "16 B"', "holds 1 elements"),
        ('accumulator = "128 KiB"', 'accumulator = "1 MiB"', "a micro-op has 32 bits"),
        ('accumulator = "128 KiB"', 'accumulator = "512 MiB"', "indices over 16 bits"),
        ('micro_op = "32 KiB"', 'micro_op = "64 KiB"', "half an instruction has 64 bits"),
        ('bandwidth = "8 B/cycle"', 'bandwidth = "0 B/cycle"', "must be positive"),
        ('bandwidth = "8 B/cycle"', 'bandwidth = "8"', "has no unit"),
        ('clock = "100 MHz"', 'clock = "0 MHz"', "must be positive"),
        ('interval = "1 cycle"', 'interval = "0 cycles"', "at least 1"),
        ('latency = "5 cycles"', 'latency = "2.5 cycles"', "whole number"),
        ("[memory]", "[memory]\nbanks = 2", "unknown key 'banks'"),
        ("schema = 1", "schema = 2", "only schema 1"),
        (f'name = "{DEFAULT}"', 'name = "a/b"', "files are called after it"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (DEVICES / f"{DEFAULT}.toml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "device.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(CostError, match=message) as caught:
        load_device(str(path))
    assert "device.toml:" in str(caught.value)
