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
