# SPDX-License-Identifier: Apache-2.0
"""Models of PyTorch through the passes and the emulator, against torch; where torch is at hand."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from support import shared_builds

from crosslab.errors import UserError
from torchroad.cli import main
from torchroad.program import TorchModel, import_model

MODELS = Path(__file__).parents[4] / "tests" / "support" / "models" / "torch_models.py"
TRANSFORMERS = MODELS.with_name("transformers_models.py")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tree() -> Path:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: nox -s torch and nox -s tests install it")
    return shared_builds.tvm_tree()


# The encoder shows the road; the others convolutions, and attention that is written out.
@pytest.mark.usefixtures("emulator")
@pytest.mark.parametrize(
    ("model", "options", "runs"),
    [
        ("encoder", ["--dynamic", "n=2:64"], 3),
        pytest.param("convnet", [], 1, marks=pytest.mark.long),
        pytest.param("vision", [], 1, marks=pytest.mark.long),
        pytest.param("scaled_sum", [], 1, marks=pytest.mark.long),
    ],
)
def test_a_model_computes_what_torch_does_on_kernels(
    tree: Path, tmp_path: Path, model: str, options: list[str], runs: int
) -> None:
    shared_builds.cross()
    report = tmp_path / "torch.json"
    where = ["--tvm-tree", str(tree), "--cache", str(shared_builds.CACHE), "--json", str(report)]
    assert main([f"{MODELS}:{model}", *options, *where]) == 0
    told = json.loads(report.read_text(encoding="utf-8"))
    assert [case["right"] for case in told["cases"]] == [True] * runs
    assert max(case["error"] for case in told["cases"]) < 1e-5
    assert told["multiply_adds"]["total"] > 500_000
    assert told["share_on_kernels"] >= 0.9
    if runs == 3:
        least, most = (told["cases"][i]["counts"] for i in (1, 2))
        assert least is None or least["insns"] * 8 < most["insns"]


@pytest.mark.long
@pytest.mark.usefixtures("emulator")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_in_onnx_computes_what_onnxruntime_does(tree: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    shared_builds.cross()
    layers = [torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    file, report = tmp_path / "small.onnx", tmp_path / "torch.json"
    example = (torch.randn(1, 3, 16, 16),)
    torch.onnx.export(torch.nn.Sequential(*layers).eval(), example, str(file), dynamo=False)
    where = ["--tvm-tree", str(tree), "--cache", str(shared_builds.CACHE), "--json", str(report)]
    assert main([str(file), *where]) == 0
    told = json.loads(report.read_text(encoding="utf-8"))
    assert told["cases"][0]["error"] < 1e-6
    assert told["share_on_kernels"] == 1


@pytest.mark.long
@pytest.mark.usefixtures("emulator")
@pytest.mark.parametrize("model", ["recurrent", "many_steps"])
def test_recurrent_layers_compute_what_torch_does(tree: Path, tmp_path: Path, model: str) -> None:
    shared_builds.cross()
    report = tmp_path / "torch.json"
    where = ["--tvm-tree", str(tree), "--cache", str(shared_builds.CACHE), "--json", str(report)]
    assert main([f"{MODELS}:{model}", *where]) == 0
    assert json.loads(report.read_text(encoding="utf-8"))["cases"][0]["error"] < 1e-5


@pytest.mark.thorough
@pytest.mark.usefixtures("emulator")
def test_a_cache_of_inputs_and_outputs_goes_from_call_to_call(tree: Path, tmp_path: Path) -> None:
    shared_builds.cross()
    report = tmp_path / "torch.json"
    where = ["--tvm-tree", str(tree), "--cache", str(shared_builds.CACHE), "--json", str(report)]
    sizes = ["--dynamic", "n=2:16", "--dynamic", "m=2:32", "--steps", "5"]
    assert main([f"{MODELS}:cached", *sizes, *where]) == 0
    cases = json.loads(report.read_text(encoding="utf-8"))["cases"]
    assert [case["sizes"] for case in cases[:2]] == [{"first call": 1}, {"later call": 4}]
    assert len(cases) == 6
    assert max(case["error"] for case in cases) < 1e-5


@pytest.mark.usefixtures("emulator")
def test_a_language_model_answers_on_the_paged_cache_as_torch_does(
    tree: Path, tmp_path: Path
) -> None:
    shared_builds.cross()
    report = tmp_path / "torch.json"
    where = ["--tvm-tree", str(tree), "--cache", str(shared_builds.CACHE), "--json", str(report)]
    assert (
        main([f"{MODELS}:decoder", "--paged", "--dynamic", "n=2:64", "--steps", "6", *where]) == 0
    )
    told = json.loads(report.read_text(encoding="utf-8"))
    assert [case["sizes"] for case in told["cases"]] == [{"prefill": 6}, {"decode": 5}]
    assert max(case["error"] for case in told["cases"]) < 1e-5
    # Heads that the model repeats for several queries are kept once.
    assert told["language"] == {
        "attention": {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16},
        "context": 64,
    }
    prefill, decode = (case["counts"] for case in told["cases"])
    assert prefill is None or decode["insns"] * 2 < prefill["insns"]


@pytest.mark.parametrize(
    ("factory", "dynamic", "message"),
    [
        ("windowed", ["n=2:64"], r"layers.0, .*hide exactly the later of 64 tokens"),
        pytest.param("encoder", ["n=2:64"], "ids, mask, not input_ids", marks=pytest.mark.long),
        pytest.param("decoder", [], "the length of input_ids", marks=pytest.mark.long),
        pytest.param("decoder", ["n=2:8"], "exceeds the 8", marks=pytest.mark.long),
    ],
)
def test_a_model_that_fits_no_paged_cache_is_refused(
    tree: Path, tmp_path: Path, factory: str, dynamic: list[str], message: str
) -> None:
    model = TorchModel.parse(f"{MODELS}:{factory}", dynamic, paged=True, steps=4)
    with pytest.raises(UserError, match=message):
        import_model(model, tree, tmp_path)


@pytest.mark.thorough
def test_a_window_of_a_model_of_transformers_is_not_forgotten(tree: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = TorchModel.parse(f"{TRANSFORMERS}:sliding", ["n=2:64"], paged=True, steps=4)
    with pytest.raises(UserError, match=r"layers.0.*hide exactly the later of 64 tokens"):
        import_model(model, tree, tmp_path)


@pytest.mark.long
@pytest.mark.usefixtures("emulator")
def test_gpt2_of_transformers_answers_on_kernels(tree: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    report = tmp_path / "torch.json"
    where = ["--tvm-tree", str(tree), "--cache", str(shared_builds.CACHE), "--json", str(report)]
    paged = ["--paged", "--dynamic", "n=2:64", "--steps", "4"]
    assert main([f"{TRANSFORMERS}:gpt2", *paged, *where]) == 0
    told = json.loads(report.read_text(encoding="utf-8"))
    assert max(case["error"] for case in told["cases"]) < 1e-5
    assert told["share_on_kernels"] == 1


@pytest.mark.long
@pytest.mark.usefixtures("emulator")
def test_smollm2_of_transformers_gives_the_tokens_of_the_main_job(
    tree: Path, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    report = tmp_path / "torch.json"
    where = ["--tvm-tree", str(tree), "--cache", str(shared_builds.CACHE), "--json", str(report)]
    project = ["--project", str(shared_builds.PROJECT), "--core", "spacemit-x60"]
    assert main(["smollm2-135m", *project, *where]) == 0
    beside = json.loads(report.read_text(encoding="utf-8"))["main_job"]
    assert beside["same_tokens"]
    assert max(own / other for _, _, other, own in beside["rows"]) <= 1.3


@pytest.mark.parametrize(
    ("factory", "dynamic", "message"),
    [
        ("spectrum", [], r"aten._fft_r2c.default in module filter.1, .*torch_models.py:\d+"),
        pytest.param("nothing", [], "returns int", marks=pytest.mark.long),
        pytest.param("vision", ["n=2:64"], "--dynamic n: the sizes", marks=pytest.mark.long),
        pytest.param("missing", [], "has no function missing", marks=pytest.mark.long),
    ],
)
def test_a_model_that_cannot_be_taken_is_refused_by_name_and_place(
    tree: Path, tmp_path: Path, factory: str, dynamic: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        import_model(TorchModel.parse(f"{MODELS}:{factory}", dynamic), tree, tmp_path)
    assert error.value.exit_code == 2
