# SPDX-License-Identifier: Apache-2.0
"""Models and sizes that a user names, and the comparison of outputs; without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from crosslab.errors import UserError
from torchroad import cli
from torchroad.cli import _checked, parser, report_of
from torchroad.job import CaseResult, TorchResult, compare
from torchroad.multiply_adds import MultiplyAdds
from torchroad.program import TorchModel, import_model


def test_a_model_is_a_file_and_a_function() -> None:
    model = TorchModel.parse("folder/net.py:make", ["n=2:64", "side=8:32"])
    assert (model.name, model.file.name) == ("net.py:make", "net.py")
    assert model.dynamic == {"n": (2, 64), "side": (8, 32)}


@pytest.mark.parametrize("text", ["net.py", ":make", "net.py:", "net.py:a-b"])
def test_another_text_names_no_model(text: str) -> None:
    with pytest.raises(UserError, match="does not name") as error:
        TorchModel.parse(text, [])
    assert "FILE.py:FACTORY" in error.value.remedy


@pytest.mark.parametrize("text", ["n", "n=4", "n=4:x", "1=2:4", "n=64:2", "n=4:4", "n=1:8"])
def test_a_size_varies_between_two_numbers(text: str) -> None:
    with pytest.raises(UserError, match="--dynamic"):
        TorchModel.parse("net.py:make", [text])


def test_a_size_has_one_range() -> None:
    with pytest.raises(UserError, match="n is given twice"):
        TorchModel.parse("net.py:make", ["n=2:4", "n=2:9"])


def test_an_answer_has_a_token() -> None:
    with pytest.raises(UserError, match="--steps 0"):
        TorchModel.parse("net.py:make", [], steps=0)


def test_a_missing_file_is_refused_first(tmp_path: Path) -> None:
    model = TorchModel.parse(f"{tmp_path}/net.py:make", [])
    with pytest.raises(UserError, match="does not exist"):
        import_model(model, tmp_path / "tree", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.onnx"], "none.onnx does not exist"),
        ([".pyenv/none.onnx"], ".pyenv/none.onnx does not exist"),
        (["none.onnx", "--dynamic", "n=2:4"], "--dynamic: a model in ONNX has fixed sizes"),
        (["none.onnx", "--paged"], "--paged: a model in ONNX"),
        (["none.onnx", "--steps", "3"], "--steps: a model in ONNX"),
        (["none.onnx", "--prompt", "Hi"], "--prompt: none.onnx is not a model for transformers"),
        (
            ["net.py:make", "--prompt", "Hi"],
            "--prompt: net.py:make is not a model for transformers",
        ),
    ],
)
def test_an_option_that_does_not_fit_the_model_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parser().read([*words, "--tvm-tree", "."], _checked)


def test_outputs_are_compared_with_their_largest() -> None:
    wanted = {"output_0": np.float32([1000, 1]), "output_1": np.int64([3])}
    near = {"output_0": np.float32([1000, 1.05]), "output_1": np.int64([3])}
    error, right = compare(near, wanted)
    assert right
    assert error == pytest.approx(5e-5, rel=1e-3)
    far = {**near, "output_0": np.float32([1000.5, 1])}
    assert compare(far, wanted) == (pytest.approx(5e-4, rel=1e-3), False)


@pytest.mark.parametrize(
    "got",
    [
        {},
        {"output_0": np.float32([[1, 2]])},
        {"output_0": np.float64([1, 2])},
        {"output_0": np.float32([1, np.nan])},
        {"output_0": np.float32([1, np.inf])},
    ],
)
def test_what_is_no_number_or_of_another_shape_is_wrong(got: dict[str, np.ndarray]) -> None:
    assert compare(got, {"output_0": np.float32([1, 2])}) == (float("inf"), False)


def test_an_infinite_error_is_valid_json() -> None:
    case = CaseResult({}, float("inf"), False, None, None)
    report = report_of(TorchResult((case,), MultiplyAdds(0, 0, {})))
    assert json.loads(json.dumps(report, allow_nan=False))["cases"][0]["error"] is None


def test_a_project_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "require_qemu", lambda: None)
    monkeypatch.setattr(cli, "_judged", lambda *_: pytest.fail("the work began"))
    (tmp_path / "tree" / "python" / "tvm").mkdir(parents=True)
    for name in ("out", "net.py"):
        (tmp_path / name).touch()
    words = [f"{tmp_path}/net.py:make", "--tvm-tree", f"{tmp_path}/tree"]
    with pytest.raises(OSError, match="File exists"):
        cli.main([*words, "--project", str(tmp_path)])
