# SPDX-License-Identifier: Apache-2.0
"""The picture of a finished run: drawn from its report, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crosslab.errors import UserError
from crosslab.job.summary import main

REPORT = {
    "model": "tiny",
    "quantization": "q4f32_1",
    "activations": "int8",
    "path": "mlc-llm",
    "target": "riscv64-rvv256",
    "prompt": "Hello?",
    "prompt_tokens": [1, 2, 3],
    "text": "Good day.",
    "tokens": [4, 5],
    "reference_tokens": [4, 5],
    "checked": True,
    "max_logit_error": 1e-5,
    "logit_error_bound": 1e-2,
    "int8_rounding_error": 2e-2,
    "tensorized": [{"symbol": "gemm"}, {}],
    "prefill_seconds": [0.5],
    "decode_seconds": [0.1],
    "counters": {"prefill": {"insns": 2_000_000}, "decode_per_token": None},
    "seconds": {"model": 1.0},
}


def picture(folder: Path, report: str) -> str:
    """The text of the picture that is drawn from a report."""
    (folder / "report.json").write_text(report, encoding="utf-8")
    target = folder / "picture.svg"
    assert main(["--report", str(folder / "report.json"), "--output", str(target)]) == 0
    return target.read_text(encoding="utf-8").replace("&#160;", " ")


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({}, "2, equal"),
        ({}, "1.0e-05 of the largest (bound 1e-02); int8 activations change 2.0e-02"),
        ({"reference_tokens": [4, 6]}, "2, NOT the reference&#x27;s"),
        ({"checked": False, "reference_tokens": None, "max_logit_error": None}, "2, not checked"),
    ],
)
def test_the_picture_says_what_was_compared(
    tmp_path: Path, change: dict[str, object], shown: str
) -> None:
    assert shown in picture(tmp_path, json.dumps(REPORT | change))


@pytest.mark.parametrize("report", ["{", "[]", '{"prompt": "Hello?"}'])
def test_what_is_no_report_is_refused(tmp_path: Path, report: str) -> None:
    with pytest.raises(UserError, match="no report of this version") as caught:
        picture(tmp_path, report)
    assert "nox -s build_and_test" in caught.value.remedy
