# SPDX-License-Identifier: Apache-2.0
"""The survey judges modules by our passes on this machine, and goes on from kept outcomes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from support import shared_builds

from crosslab.errors import UserError
from torchroad.cli import main
from torchroad.survey.cli import PACKAGES, made_from
from torchroad.survey.outcome import Outcome, Report, Verdict

pytestmark = pytest.mark.slow
# Architectures that torch exports to ONNX; ShuffleNet v2's import is refused.
EXPORTED = (
    *("ResNet", "DenseNet", "GoogLeNet", "SqueezeNet", "MobileNetV2", "MobileNetV3"),
    *("ShuffleNetV2", "MNASNet", "EfficientNet", "RegNet", "ConvNeXt", "ViT", "DINOv2"),
    *("RoBERTa", "DistilBERT"),
)


def survey(report: Path, *words: str) -> int:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: nox -s torch and nox -s tests install it")
    where = ["--tvm-tree", str(shared_builds.tvm_tree()), "--cache", str(shared_builds.CACHE)]
    return main(["survey", *where, "--json", str(report), *words])


def test_a_survey_goes_on_and_finds_a_module_right_on_kernels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "survey.json"
    report = Report.read(file, made_from(shared_builds.tvm_tree()))
    report.add(Outcome("Conv2d 2", "module", Verdict.REFUSED))
    assert survey(file, "--kind", "module", "Conv2d 2", "ConvTranspose2d 2") == 0
    told = capsys.readouterr().out
    assert "ConvTranspose2d 2 " in told
    assert "Conv2d 2 " not in told
    first, second = json.loads(file.read_text(encoding="utf-8"))["outcomes"]
    assert first["verdict"] == "refused"
    assert (second["verdict"], second["share"]) == ("right", 1.0)
    assert second["error"] < 1e-6


def test_tests_of_onnx_are_right_or_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "survey.json"
    assert survey(file, "--kind", "onnx", "test_Conv2d_groups", "test_operator_pad") == 0
    first, last = json.loads(file.read_text(encoding="utf-8"))["outcomes"]
    assert (first["verdict"], first["share"]) == ("right", 1.0)
    assert last["verdict"] == "refused"
    assert last["told"].endswith("Pad with the mode reflect")


@pytest.mark.thorough
def test_no_test_of_onnx_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "survey.json"
    assert survey(file, "--kind", "onnx") == 0
    outcomes = json.loads(file.read_text(encoding="utf-8"))["outcomes"]
    verdicts = [outcome["verdict"] for outcome in outcomes]
    assert verdicts.count("right") >= 115
    assert set(verdicts) == {"right", "refused"}


@pytest.mark.long
def test_architectures_that_torch_exports_are_right_or_refused(tmp_path: Path) -> None:
    for package in PACKAGES:
        pytest.importorskip(package, reason="nox -s torch -- survey installs it")
    file = tmp_path / "survey.json"
    names = [f"{name} in ONNX" for name in EXPORTED]
    assert survey(file, "--kind", "onnx-architecture", *names) == 0
    outcomes = json.loads(file.read_text(encoding="utf-8"))["outcomes"]
    assert [o["name"] for o in outcomes if o["verdict"] == "refused"] == ["ShuffleNetV2 in ONNX"]


def test_names_choose_modules_or_their_settings() -> None:
    pytest.importorskip("torch")
    from torchroad.survey.worker import chosen  # noqa: PLC0415 - it imports torch

    cases = dict.fromkeys(("Linear 1", "Linear 2", "T5 encoder"))
    spec = {"names": ["Linear", "T5 encoder"], "done": ["Linear 1"], "first": None}
    assert chosen(spec, cases) == ["Linear 2", "T5 encoder"]
    with pytest.raises(UserError, match="'Linea' is no case of the survey"):
        chosen({**spec, "names": ["Linea"]}, cases)


def test_a_report_of_other_sources_is_not_taken(tmp_path: Path) -> None:
    report = Report.read(tmp_path / "survey.json", "these")
    report.add(Outcome("Linear 1", "module", Verdict.WRONG, 0.5))
    assert [one.name for one in Report.read(report.file, "these").faults] == ["Linear 1"]
    assert not Report.read(report.file, "others").outcomes
    assert "| modules of torch.nn | 1 | 0 (0.0%) | 0 | 1 | 0 |" in report.summary()


def test_outputs_may_be_as_far_from_float64_as_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    from torchroad.example import make_example  # noqa: PLC0415 - it imports torch
    from torchroad.survey.worker import judge_outputs  # noqa: PLC0415 - it imports torch

    class Cancelling(torch.nn.Module):  # type: ignore[misc]
        """Loses digits of float32: the last bits of x, a million times as large."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1e6) - 1e6

    example = make_example(lambda: (Cancelling(), (torch.tensor([0.1, 0.7]),)), Path())
    theirs = example.outputs()[0].numpy()
    assert judge_outputs(example, [theirs]).error == 0
    exact = example.in_double().outputs()[0].numpy().astype(theirs.dtype)
    nearer = judge_outputs(example, [exact])
    assert nearer.right
    assert nearer.error < 1e-6
    assert "torch's float32" in nearer.told[0]
    assert not judge_outputs(example, [2 * theirs - exact + 0.1]).right
