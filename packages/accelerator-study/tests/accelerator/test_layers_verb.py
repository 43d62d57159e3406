# SPDX-License-Identifier: Apache-2.0
"""``accelerator layers`` on work files: names of files, and work that the device does not do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from accelerator.cli import main

NONE = {"grain": "none", "group": 0, "scale_bits": 0, "zero_bits": 0}
DEVICE = "vta-16x16x16"


def product(weight: str, m: int, n: int, k: int, weighted: bool = True) -> dict[str, Any]:
    plain = {"name": weight, "bits": 16, "index": "[i,k]", "quantization": NONE}
    return {
        **{"function": "fused", "block": "matmul", "kind": "gemm", "c_dtype": "float16"},
        **{"batch": 1, "m": m, "n": n, "k": k, "count": 1},
        **{"a": {**plain, "weight": False}, "b": {**plain, "weight": weighted}},
    }


def work(path: Path, *products: dict[str, Any], **further: Any) -> Path:
    """Write a work file whose decode has these products; return its path."""
    entry = {"products": products, "others": [], "unclassified": [], **further}
    path.write_text(json.dumps({"schema": 1, "entries": {"decode": entry}}))
    return path


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("device", [DEVICE, "spacemit-ime"])
def test_files_of_layers_stay_in_their_folder(device: str, tmp_path: Path) -> None:
    model = work(tmp_path / "evil.work.json", product("x/../../../evil", 16, 16, 16))
    out = tmp_path / "deep" / "streams"
    words = ["layers", device, "--model", str(model), "--phase", "decode:8"]
    assert main([*words, "--streams", str(out)]) == 0
    assert files(tmp_path) == ["deep/streams/decode-8-x-..-..-..-evil.bin", "evil.work.json"]


def test_layers_of_a_kind_and_other_sizes_have_files_of_their_own(tmp_path: Path) -> None:
    model = work(tmp_path / "m.work.json", *(product("q_weight", 16, n, 16) for n in (16, 32, 16)))
    streams, out = tmp_path / "streams", tmp_path / "out.json"
    words = ["layers", DEVICE, "--model", str(model), "--phase", "decode:8"]
    assert main([*words, "--streams", str(streams), "--json", str(out)]) == 0
    assert files(streams) == ["decode-8-q-2.bin", "decode-8-q.bin"]
    (phase,) = json.loads(out.read_text())["phases"]
    named = [(row["layer"], row["extents"], row["count"]) for row in phase["layers"]]
    assert named == [("q", [16, 16, 16], 2), ("q 2", [16, 32, 16], 1)]


@pytest.mark.parametrize("device", [DEVICE, "spacemit-ime"])
def test_layers_whose_names_give_one_name_of_a_file_have_files_of_their_own(
    device: str, tmp_path: Path
) -> None:
    products = (product(name, 16, n, 16) for name, n in (("a b", 16), ("a-b", 32), ("a/b", 48)))
    model = work(tmp_path / "m.work.json", *products)
    words = ["layers", device, "--model", str(model), "--phase", "decode:8"]
    assert main([*words, "--streams", str(tmp_path / "streams")]) == 0
    stems = ("decode-8-a-b", "decode-8-a-b-2", "decode-8-a-b-3")
    assert files(tmp_path / "streams") == sorted(f"{stem}.bin" for stem in stems)


@pytest.mark.parametrize("device", [DEVICE, "spacemit-ime"])
def test_attention_without_a_cache_is_lowered_and_unknown_work_is_named(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = [{"callee": "my[kernel]", "count": 3, "reason": "a packed function"}]
    products = [product("q_weight", 16, 16, 16), {**product("key", 8, 24, 16, False), "batch": 2}]
    model = work(tmp_path / "m.work.json", *products, unclassified=unknown)
    out = tmp_path / "out.json"
    words = ["layers", device, "--model", str(model), "--phase", "decode:8", "--json", str(out)]
    for attention, found, cpu in (
        ("device", [("q", 1), ("matmul", 2)], []),
        ("cpu", [("q", 1)], ["matmul x2"]),
    ):
        assert main([*words, "--attention", attention]) == 0
        said = capsys.readouterr().out
        record = json.loads(out.read_text())
        part = record["phases"][0] if "phases" in record else record
        assert [(row["layer"], row["count"]) for row in part["layers"]] == found
        left = [*cpu, "my[kernel] x3: a packed function"]
        where = "" if "phases" in record else "decode:8, "
        assert part["not_lowered"] == [where + line for line in left]
        assert [f"not lowered: {line}" for line in part["not_lowered"]] == [
            line for line in said.splitlines() if line.startswith("not lowered")
        ]


def test_a_phase_without_products_for_the_device_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = work(tmp_path / "m.work.json", product("key", 8, 24, 16, weighted=False))
    words = ["layers", DEVICE, "--model", str(model), "--phase", "decode:8"]
    assert main(words) == 0
    assert main([*words, "--attention", "cpu"]) == 2
    assert "has no matrix product that a device can do" in capsys.readouterr().err
