# SPDX-License-Identifier: Apache-2.0
"""Options on pictures, pictures as a classifier reads them, and a trained classifier."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from crosslab.errors import UserError
from torchroad import digits, pictures
from torchroad.cli import main, parser
from torchroad.digits import write
from torchroad.pictures import Options


def options_of(words: list[str]) -> Options | None:
    return pictures.read_options(parser().parse_args([*words, "--tvm-tree", "."]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["m.onnx", "--accelerator", "vta-1x16x16"], ""),
        (["m.py:make", "--accelerator", "vta-1x16x16"], "--accelerator: the model must be in ONNX"),
        (["m.onnx", "--accuracy", "."], "--accuracy needs --image"),
        (["m.onnx", "--image", "."], ""),
        (["m.py:make", "--image", "."], "--image: the model must be in ONNX"),
        (["m.onnx", "--image", ".", "--calibration", "."], "--calibration needs --accelerator"),
        (["m.onnx", "--image", "none.png"], "none.png does not exist"),
    ],
)
def test_options_on_pictures_need_a_picture(words: list[str], message: str) -> None:
    if not message:
        assert options_of(words) is not None
        return
    with pytest.raises(UserError, match=message):
        options_of(words)


def test_a_picture_is_resized_cut_and_normalised(tmp_path: Path) -> None:
    file = tmp_path / "wide.png"
    pixels = np.zeros((40, 90, 3), dtype=np.uint8)
    pixels[:, 30:60] = 255  # a white square in the middle
    Image.fromarray(pixels).save(file)
    picture = pictures.read_picture(file, (3, 32, 32))
    assert picture.shape == (1, 3, 32, 32)
    white = (1 - np.array(pictures.MEAN)) / np.array(pictures.DEVIATION)
    np.testing.assert_allclose(picture[0, :, 16, 16], white, rtol=1e-5)
    grey = pictures.read_picture(file, (1, 4, 9))
    assert grey.shape == (1, 1, 4, 9)
    assert (grey[0, 0, 2, 4], grey[0, 0, 2, 0]) == (1, 0)


def test_a_file_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cat.png"
    file.write_text("cat", encoding="utf-8")
    with pytest.raises(UserError, match=r"cat.png is not a picture"):
        pictures.read_picture(file, (3, 8, 8))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="has no pictures"):
        pictures.files_of(tmp_path / "empty", 3)


def test_a_picture_that_is_too_large_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "large.png"
    Image.new("RGB", (64, 64)).save(file)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(UserError, match=r"large.png is too large") as error:
        pictures.read_picture(file, (3, 8, 8))
    assert error.value.remedy == "give a smaller picture"


def test_a_picture_of_16_bits_keeps_its_greys(tmp_path: Path) -> None:
    file = tmp_path / "grey.png"
    pixels = np.array([[0, 100 << 8, 255 << 8]], dtype=np.uint16)
    Image.fromarray(pixels).save(file)
    for channels in (1, 3):
        assert pictures.read_picture(file, (channels, 1, 3)).shape == (1, channels, 1, 3)
    grey = pictures.read_picture(file, (1, 1, 3))
    np.testing.assert_allclose(grey.ravel() * 255, [0, 100, 255], rtol=1e-6)
    wide = tmp_path / "wide.tiff"
    Image.fromarray(pixels.astype(np.int32)).save(wide)
    with pytest.raises(UserError, match=r"wide.tiff has pixels of 32 bits"):
        pictures.read_picture(wide, (1, 1, 3))


def test_only_the_number_of_pictures_may_be_open() -> None:
    onnx = pytest.importorskip("onnx")

    def shape_of(*sizes: Any) -> tuple[int, int, int]:
        value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, sizes)
        graph = onnx.helper.make_graph([], "graph", [value], [])
        return pictures.input_shape(onnx.helper.make_model(graph))

    assert shape_of("n", 3, 8, 9) == shape_of(1, 3, 8, 9) == (3, 8, 9)
    with pytest.raises(UserError, match="leaves the size of its pictures open"):
        shape_of(1, 3, "height", "width")
    with pytest.raises(UserError, match=r"the first of shape \['\?', 5, 8, 9\]"):
        shape_of("n", 5, 8, 9)


def test_operators_without_products_share_a_row() -> None:
    step = SimpleNamespace
    steps = [
        step(name="Reshape", place="CPU", macs=0, cycles=None),
        step(name="Add", place="CPU", macs=0, cycles=None),
        step(name="Reshape", place="CPU", macs=0, cycles=None),
        step(name="query", place="device", macs=30, cycles=7.0),
        step(name="Conv", place="CPU", macs=10, cycles=None),
    ]
    table = pictures.parts_table(steps, "d")
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    assert rows == [
        ("Reshape, Add (3 operators)", "CPU", "0", "0.0%", "-"),
        ("query", "device", "30", "75.0%", "7"),
        ("Conv", "CPU", "10", "25.0%", "-"),
    ]


def test_probabilities_are_those_of_the_classes() -> None:
    found = pictures.probabilities(np.log(np.array([[1.0, 3.0, 4.0]])))
    np.testing.assert_allclose(found, [1 / 8, 3 / 8, 4 / 8])
    given = np.array([0.25, 0.75])
    np.testing.assert_array_equal(pictures.probabilities(given), given)


def test_a_class_is_a_name_or_a_number() -> None:
    options = Options(Path("x"), None, None, None, ("cat", "dog"))
    assert (options.number("dog"), options.number("7"), options.name(0)) == (1, 7, "cat")
    assert options.name(2) == "class 2"
    with pytest.raises(UserError, match="no class 'cow'"):
        options.number("cow")


def test_a_blank_line_of_labels_is_a_class_without_a_label(tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    words = ["m.onnx", "--image", str(tmp_path), "--labels", str(file)]
    file.write_text("cat\n\ndog\n\n", encoding="utf-8")
    options = options_of(words)
    assert options is not None
    assert [options.name(number) for number in range(4)] == ["cat", "class 1", "dog", "class 3"]
    file.write_bytes(b"caf\xe9\n")
    with pytest.raises(UserError, match=r"--labels: .*labels.txt is not text in UTF-8"):
        options_of(words)


def test_digits_are_written_to_a_new_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="exists"):
        main(["--tvm-tree", ".", "digits", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        main(["digits", "--help"])
    assert end.value.code == 0
    # The word may be an option's value.
    with pytest.raises(UserError, match="digits is not a TVM tree"):
        main(["m.py:make", "--tvm-tree", "digits"])
    assert digits.TRAINED + digits.CALIBRATION < 1797


@pytest.mark.thorough
@pytest.mark.slow
def test_the_device_is_as_right_as_float32(tmp_path: Path) -> None:
    """1,000 digits that the classifier was not trained on: the device within 1 % of float32."""
    for package in ("torch", "sklearn", "onnxruntime", "tvm"):
        pytest.importorskip(package)
    import onnx  # noqa: PLC0415
    import tvm  # noqa: PLC0415
    from tvm import relax  # noqa: PLC0415

    from torchroad.onnx_model import import_onnx  # noqa: PLC0415

    folder = tmp_path / "digits"
    write(folder)
    file, held_out = folder / "digits.onnx", folder / "held-out"
    image = next(held_out.rglob("*.png"))
    options = Options(image, "vta-1x16x16", folder / "calibration", held_out, ())
    model = onnx.load(str(file))
    shape = pictures.input_shape(model)
    assert shape == (1, 8, 8)
    feeds = [{model.graph.input[0].name: each} for each in pictures.pictures_of(options, shape)]
    classifier = pictures.calibrated(file, feeds, "vta-1x16x16")
    found = pictures.judge(model, classifier, options, shape)
    assert found.pictures == 1000
    assert found.plain > 970
    assert found.device >= found.plain - 10
    module, params, _ = import_onnx({"main": (model, feeds[0])})
    machine = relax.VirtualMachine(relax.build(module, tvm.target.Target("llvm")), tvm.cpu())
    weights = [list(params.values())] if params else []
    right = 0
    for path in sorted(held_out.rglob("*.png")):
        picture = tvm.runtime.tensor(pictures.read_picture(path, shape))
        right += int(machine["main"](picture, *weights).numpy().argmax()) == int(path.parent.name)
    assert abs(right - found.plain) <= 1
