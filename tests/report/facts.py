# SPDX-License-Identifier: Apache-2.0
"""A small project with results of every kind, in the form that the commands write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LOCK = """\
default-release = "1"
[releases."1"]
up = "1.0"
[releases."2"]
up = "2.0"
"""
PATCH = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: A <a@example.org>
Date: Sat, 21 Nov 2026 00:00:00 +0000
Subject: [PATCH] Say <b>hello</b> & more

Because.

Upstream-Status: Pending
Test: tests/test_x.py::test_x

diff --git a/x.py b/x.py
index 78981922613b2afb6025042ff6bd878ac1994e85..61780798228d17af2d34fce4cfbdf35556832472 100644
--- a/x.py
+++ b/x.py
@@ -1 +1 @@
-a
+b
"""


STUDY = "out/cost/tiny.csv"


def _count(variant: str, insns: int, **more: Any) -> dict[str, Any]:
    row = {"model": "S", "variant": variant, "phase": "prefill", "tokens": 128}
    row |= {"quantization": "q0f32", "vlen": 256, "threads": 1, "insns": insns}
    return {**row, "lmul_weighted": 2 * insns, **more}


def _place(drift: str) -> dict[str, str]:
    return {"what": "hello.patch", "path": "x.py", "symbol": "f", "drift": drift, "detail": ""}


def _tried(version: str, outcome: str, commit: str) -> dict[str, Any]:
    row = {"upstream": "up", "set": "1.0", "version": version, "source": "git"}
    row |= {"patch": "hello.patch", "symbol_drift": "", "first_bad_commit": commit}
    return {**row, "outcome": outcome}


def _family(family: str, outcome: str, reason: str) -> dict[str, Any]:
    row = {"family": family, "quantization": "q0f32", "outcome": outcome, "reason": reason}
    return {**row, "max_logit_error": 2e-6, "tensorized": 18, "total": 20}


FACTS: dict[str, Any] = {
    "out/build_and_test.json": {
        "model": "tiny",
        "quantization": "q0f32",
        "target": "riscv64-rvv256",
        "path": "mlc-llm",
        "prompt": "Is <i>this</i> escaped?",
        "text": "Yes & no.",
        "tokens": [1, 2],
        "reference_tokens": [1, 2],
        "checked": True,
        "right": True,
        "max_logit_error": 1.7e-6,
        "counters": {"prefill": {"insns": 212_900_000}, "decode_per_token": {"insns": 13_100_000}},
    },
    "out/status.json": {
        "release": "1",
        "upstreams": [{"name": "up", "version": "1.0", "source": "cache", "state": "applied"}],
    },
    "out/record.json": [
        {"upstream": "up", "version": "1.0", "places": [_place("unchanged"), _place("changed")]}
    ],
    "out/necessity.json": [{"upstream": "up", "patch": "hello.patch", "verdict": "needed"}],
    "out/map.json": {
        "rows": [_tried("1.0", "applies", ""), _tried("2.0", "conflict", "27c2e019d0ce" * 3)]
    },
    "out/bench.json": [
        _count("upstream", 225_800_000),
        _count("ours", 12_500_000),
        _count(
            "llama.cpp F32",
            50_000_000,
            layers="as shipped",
            source="its bench",
            core="x60",
            cycles_serial=57_000_000,
            cycles_vec_serial=51_500_000,
        ),
    ],
    "out/host.json": [
        {**_count("ours", 1), "seconds": 0.125, "ratio": 4.5},
    ],
    "out/zoo.json": [_family("llama", "right", ""), _family("gpt2", "wrong", "logits differ")],
    "dist/1/riscv64/tiny/MANIFEST.json": {
        "verdict": "unchecked",
        "files": [{"path": "runner", "bytes": 7, "sha256": "ab" * 32}],
    },
}


def project(root: Path) -> Path:
    """Write the project below ``root``, with every result there is."""
    series = root / "patches" / "up" / "1.0"
    series.mkdir(parents=True)
    (root / "VERSIONS.lock").write_text(LOCK, encoding="utf-8")
    (series / "series").write_text("hello.patch\n", encoding="utf-8")
    (series / "hello.patch").write_text(PATCH, encoding="utf-8")
    study = root / STUDY
    study.parent.mkdir(parents=True)
    head = "phase,hardware,dataflow,scheme,kind,seconds,energy_pj\n"
    rows = "".join(
        f"prefill,edge,os,float16,{kind}\n"
        for kind in ("qkv,0.001,2e9", "mlp,0.002,3e9", "total,0.003,5e9")
    )
    study.write_text(head + rows, encoding="utf-8")
    for name, facts in FACTS.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts), encoding="utf-8")
    return root
