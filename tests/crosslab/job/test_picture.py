# SPDX-License-Identifier: Apache-2.0
"""Pictures of a finished run and of a chat: drawn, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.shared_builds import PROJECT

from crosslab.errors import LabError, UserError
from crosslab.host.toolchain import Emulator
from crosslab.job import picture as drawn
from crosslab.job.picture import main
from crosslab.job.summary import summary

REPORT = {
    "model": "tiny",
    "quantization": "q4f32_1",
    "activations": "int8",
    "kv_cache": "float32",
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
    "fault": "",
    "right": True,
    "roundings": {"count": 12345, "other": 6, "farthest": 2e-3},
    "int8_cost": {"logit_error": 2e-2, "steps": 1, "first": [1, 7], "perplexity": [20.5, 20.25]},
    "int8_words": ["day", "night"],
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
        ({"prompt": "[/]", "text": "a[0] [bold]b"}, "a[0] [bold]b"),
        ({"model": "[tiny]"}, "[tiny], q4f32_1"),
        (
            {
                "accelerator": "vta",
                "device": {
                    "instructions": 4321,
                    "gemm_steps": 1_500_000,
                    "read_bytes": 10**6,
                    "written_bytes": 10**6,
                    "tokens_written": 64,
                },
            },
            "4,321 instructions, 1.5 M steps of its core, 2 MB moved",
        ),
        ({}, "1.0e-05 of the largest (bound 1e-02)"),
        ({}, "6 of 12,345 are not the reference"),
        ({}, "int8 activations change logits by 2.0e-02, 1 of 2 tokens,"),
        ({}, "from 20.25 to 20.50"),
        ({"reference_tokens": [4, 6]}, "2, equal but for 1 equally likely"),
        ({"kv_cache": "int8"}, "riscv64-rvv256, int8 activations, int8 KV cache"),
        ({"reference_tokens": [4, 6], "right": False}, "2, NOT the reference&#x27;s"),
        ({"checked": False, "reference_tokens": None, "max_logit_error": None}, "2, not checked"),
    ],
)
def test_the_picture_says_what_was_compared(
    tmp_path: Path, change: dict[str, object], shown: str
) -> None:
    assert shown in picture(tmp_path, json.dumps(REPORT | change))


def test_the_tutorial_explains_each_row() -> None:
    counts = dict.fromkeys(
        ("instructions", "gemm_steps", "read_bytes", "written_bytes", "tokens_written"), 1
    )
    more = {"stored_weights_error": 1e-3, "device": counts, "schedules": "2 of 3"}
    table = summary(REPORT | more | {"kernel_values": {"MLC_RVV_ROWS": 7}})
    rows = {str(cell).removeprefix("[bold]").removesuffix("[/]") for cell in table.columns[0].cells}
    text = (PROJECT / "docs" / "first-answer.md").read_text(encoding="utf-8")
    lines = (line.split("|") for line in text.splitlines() if line.startswith("| "))
    assert rows <= {name for cells in lines for name in cells[1].strip().split(", ")}


@pytest.mark.parametrize("report", ["{", "[]", '{"prompt": "Hello?"}'])
def test_what_is_no_report_is_refused(tmp_path: Path, report: str) -> None:
    with pytest.raises(UserError, match="no report of this version") as caught:
        picture(tmp_path, report)
    assert "nox -s build_and_test" in caught.value.remedy


# Says each message backwards, as a model's chat says and saves its answers.
CHAT = """#!/usr/bin/env python3
import json, os, sys
assert sys.argv[1:] == ["chat", "--temperature", "0"], sys.argv
assert os.environ["MLC_RVV_EMULATOR"].startswith("/usr/bin/true -cpu ")
messages = []
for line in sys.stdin.read().splitlines():
    if line.startswith("/save "):
        with open(line.split()[1], "w") as file:
            json.dump(messages, file)
    else:
        messages += [{"role": "user", "content": line}]
        messages += [{"role": "assistant", "content": line[::-1]}]
"""


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished model without a model."""
    qemu = Emulator(Path("/usr/bin/true"), (10, 0, 0), plugins=False)
    monkeypatch.setattr(drawn, "require_qemu", lambda: qemu)
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "run.sh").write_text(CHAT)
    (folder / "run.sh").chmod(0o755)
    return folder


def test_a_chat_is_drawn(chat: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "chat.svg"
    words = ["--chat", str(chat), "--say", "ab [c]", "xyz"]
    assert main([*words, "--output", str(target)]) == 0
    text = target.read_text(encoding="utf-8").replace("&#160;", " ")
    for shown in ("./run.sh chat --temperature 0", " ab [c]", "]c[ ba", "zyx", "tiny on an"):
        assert shown in text


def test_a_chat_that_fails_is_not_drawn(chat: Path, tmp_path: Path) -> None:
    target = tmp_path / "chat.svg"
    (chat / "run.sh").write_text("#!/bin/sh\necho no tokens >&2\nexit 1\n")
    with pytest.raises(LabError, match="ended with exit code 1:\nno tokens"):
        main(["--chat", str(chat), "--say", "a", "--output", str(target)])
    (chat / "run.sh").unlink()
    with pytest.raises(UserError, match="not a finished model"):
        main(["--chat", str(chat), "--say", "a", "--output", str(target)])
    assert not target.exists()
