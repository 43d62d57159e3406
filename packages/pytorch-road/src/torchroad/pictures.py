# SPDX-License-Identifier: Apache-2.0
"""Pictures for a classifier in ONNX, its classes in the emulator, and its layers on a device."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from crosslab.errors import UserError

Picture = NDArray[np.float32]
# Companion packages name a function here that divides and calibrates a model for a device.
PLUGINS = "mlc_rvv.pictures"
# Of ImageNet's pictures, which most classifiers of three channels expect.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP = 224 / 256  # part of the shorter side that a classifier of ImageNet sees
MOST_CALIBRATED, MOST_JUDGED, SHOWN = 100, 1000, 5
PATTERNS = (".png", ".jpg", ".jpeg", ".bmp")


@dataclass(frozen=True)
class Options:
    """The options on pictures.

    Attributes:
        image: to classify, or None: the model runs on random inputs.
        accelerator: name of a device, or None.
        calibration: folder of pictures for the scales of activations, or None: the image.
        accuracy: folder with a folder of pictures for each class, or None.
        labels: names of the classes by number; () without names.
    """

    image: Path | None
    accelerator: str | None
    calibration: Path | None
    accuracy: Path | None
    labels: tuple[str, ...]

    def name(self, number: int) -> str:
        """Return the name of a class; ``class N`` without a label."""
        label = self.labels[number] if number < len(self.labels) else ""
        return label or f"class {number}"

    def number(self, name: str) -> int:
        """Return the number of a class from its name, or from its number as text.

        Raises:
            UserError: no class has that name.
        """
        if name in self.labels:
            return self.labels.index(name)
        if name.isdecimal():
            return int(name)
        raise UserError(
            f"--accuracy: there is no class {name!r}", remedy="name the classes with --labels FILE"
        )


def add_options(add: Any) -> None:
    """Add the options on pictures by ``add``, the ``add_argument`` of a parser."""
    add("--image", type=Path, metavar="FILE", help="picture that a classifier in ONNX classifies")
    add(
        "--accelerator", metavar="DEVICE",
        help="also compute the layers and products of a model in ONNX on this device",
    )  # fmt: skip
    add(
        "--calibration", type=Path, metavar="FOLDER",
        help="pictures that find the device's scales (the image)",
    )  # fmt: skip
    add(
        "--accuracy", type=Path, metavar="FOLDER",
        help="classify the pictures in the folder's folders, which have the names of classes",
    )  # fmt: skip
    add("--labels", type=Path, metavar="FILE", help="names of the classes, a line each (numbers)")


def read_options(args: argparse.Namespace) -> Options | None:
    """Return the options on pictures, or None without ``--image`` and ``--accelerator``.

    Raises:
        UserError: an option needs another option, or a file is missing or not text.
    """
    for option in ("calibration", "accuracy", "labels"):
        if getattr(args, option) is not None and args.image is None:
            raise UserError(f"--{option} needs --image", remedy="add --image FILE")
    if args.image is None and args.accelerator is None:
        return None
    if not args.model.endswith(".onnx"):
        option = "--image" if args.image else "--accelerator"
        raise UserError(f"{option}: the model must be in ONNX", remedy="give FILE.onnx")
    for option in ("calibration", "accuracy"):
        if getattr(args, option) is not None and args.accelerator is None:
            raise UserError(f"--{option} needs --accelerator", remedy="add --accelerator DEVICE")
    for option in ("image", "labels", "calibration", "accuracy"):
        path = getattr(args, option)
        if path is not None and not path.exists():
            raise UserError(f"--{option}: {path} does not exist", remedy="give another path")
    try:
        # A blank line is a class without a label, except at the end.
        text = args.labels.read_text(encoding="utf-8").rstrip() if args.labels else ""
    except UnicodeDecodeError as error:
        raise UserError(
            f"--labels: {args.labels} is not text in UTF-8", remedy="save the file in UTF-8"
        ) from error
    folders = args.calibration, args.accuracy
    labels = tuple(line.strip() for line in text.splitlines())
    return Options(args.image, args.accelerator, *folders, labels)


def input_shape(model: Any) -> tuple[int, int, int]:
    """Return channels, height and width of a classifier's pictures.

    Raises:
        UserError: the model does not read one picture of 1 or 3 channels, or its size is open.
    """
    inputs = model.graph.input
    sizes = [d.dim_value for d in inputs[0].type.tensor_type.shape.dim] if inputs else []
    if len(inputs) == 1 and len(sizes) == 4 and 0 in sizes[1:]:
        raise UserError(
            "the model leaves the size of its pictures open", remedy="export it with fixed sizes"
        )
    # The number of pictures may be open.
    if len(inputs) != 1 or len(sizes) != 4 or sizes[0] > 1 or sizes[1] not in (1, 3):
        shown = [size or "?" for size in sizes]
        raise UserError(
            f"the model reads {len(inputs)} inputs, the first of shape {shown}; "
            "a classifier reads one picture, 1 x channels x height x width"
        )
    return sizes[1], sizes[2], sizes[3]


def read_picture(file: Path, shape: tuple[int, int, int]) -> Picture:
    """Return a picture as a classifier reads it: 1 x channels x height x width.

    A picture of three channels is resized and cut at its edges, and its colours are normalised as
    ImageNet's. A picture of one channel is resized to grey values from 0 to 1.

    Raises:
        UserError: the file is not a picture of 8 or 16 bits, or is too large.
    """
    from PIL import Image  # noqa: PLC0415 - only pictures need it

    channels, height, width = shape
    try:
        picture: Image.Image = Image.open(file)
        picture.load()
    except OSError as error:
        raise UserError(f"{file} is not a picture: {error}", remedy="give a PNG or JPEG") from error
    except Image.DecompressionBombError as error:
        raise UserError(f"{file} is too large: {error}", remedy="give a smaller picture") from error
    if picture.mode in ("I", "F"):
        raise UserError(f"{file} has pixels of 32 bits", remedy="give a picture of 8 or 16 bits")
    if picture.mode.startswith("I;16"):  # Pillow would cut them off at 255
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    picture = picture.convert("RGB" if channels == 3 else "L")
    if channels == 3:
        factor = max(height / picture.height, width / picture.width) / CROP
        sizes = [max(1, round(side * factor)) for side in picture.size]
        picture = picture.resize((sizes[0], sizes[1]), Image.Resampling.BILINEAR)
        left, top = (picture.width - width) // 2, (picture.height - height) // 2
        picture = picture.crop((left, top, left + width, top + height))
    elif picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    values = np.asarray(picture, dtype=np.float32).reshape(height, width, channels) / 255
    if channels == 3:
        values = (values - np.array(MEAN, np.float32)) / np.array(DEVIATION, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None], dtype=np.float32)


def files_of(folder: Path, most: int) -> list[Path]:
    """Return ``most`` pictures in a folder and its folders, spread over them all; fewer: all.

    Raises:
        UserError: the folder has no picture.
    """
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PATTERNS)
    if not files:
        raise UserError(f"{folder} has no pictures", remedy=f"put {', '.join(PATTERNS)} there")
    if len(files) <= most:
        return files
    return [files[at * len(files) // most] for at in range(most)]


def pictures_of(options: Options, shape: tuple[int, int, int]) -> list[Picture]:
    """Return the pictures of ``--calibration``, or else of ``--image``; [] without both."""
    if options.calibration:
        files = files_of(options.calibration, MOST_CALIBRATED)
        return [read_picture(file, shape) for file in files]
    return [read_picture(options.image, shape)] if options.image else []


def calibrated(model: Path, feeds: Sequence[Mapping[str, NDArray[Any]]], device: str) -> Any:
    """Return a model on the device of a companion package, calibrated on inputs by name.

    Raises:
        UserError: no companion package has devices, or the model does not fit.
    """
    for entry in entry_points(group=PLUGINS):
        return entry.load()(model, feeds, device)
    raise UserError(
        "--accelerator: no package for devices is installed", remedy="nox -s torch installs it"
    )


def probabilities(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return a classifier's output if it is probabilities, which sum to 1; else its softmax."""
    flat = np.asarray(logits, dtype=np.float64).ravel()
    if (flat >= 0).all() and abs(flat.sum() - 1) < 1e-3:
        return flat
    powers = np.exp(flat - flat.max())
    return np.asarray(powers / powers.sum())


def parts_table(steps: Sequence[Any], name: str) -> Table:
    """Return what the device computes and what the CPU computes, as a table."""
    whole = max(1, sum(step.macs for step in steps))
    table = Table(title=f"parts of the model, on {name} and on the CPU", title_justify="left")
    for title in ("part", "where", "multiply-adds", "share", "cycles of the device"):
        left = title in ("part", "where")
        table.add_column(title, justify="left" if left else "right", overflow="fold")
    for light, part in groupby(steps, lambda step: step.cycles is None and not step.macs):
        group = list(part)
        if light:
            names = ", ".join(dict.fromkeys(step.name for step in group))
            many = f" ({len(group)} operators)" if len(group) > 1 else ""
            table.add_row(f"{names}{many}", group[0].place, "0", "0.0%", "-")
        for step in [] if light else group:
            cycles = f"{step.cycles:,.0f}" if step.cycles is not None else "-"
            share = f"{step.macs / whole:.1%}"
            table.add_row(step.name, step.place, f"{step.macs:,}", share, cycles)
    return table


def told_of_parts(steps: Sequence[Any], clock: float) -> str:
    """Return the device's share of the multiply-adds, and its time."""
    whole = max(1, sum(step.macs for step in steps))
    own = [step for step in steps if step.cycles is not None]
    cycles = sum(step.cycles for step in own)
    return (
        f"the device computes {len(own)} of {len(steps)} parts, "
        f"{sum(step.macs for step in own) / whole:.2%} of {whole:,} multiply-adds, "
        f"in {1e3 * cycles / clock:,.2f} ms"
    )


def classes_table(columns: dict[str, NDArray[np.float64]], options: Options) -> Table:
    """Return the SHOWN likeliest classes of the first column, with all columns' probabilities."""
    first = next(iter(columns.values()))
    assert options.image is not None
    table = Table(title=f"classes of {options.image.name}", title_justify="left")
    table.add_column("class")
    for title in columns:
        table.add_column(title, justify="right")
    for number in np.argsort(-first, kind="stable")[:SHOWN].tolist():
        table.add_row(options.name(number), *(f"{p[number]:.2%}" for p in columns.values()))
    return table


@dataclass(frozen=True)
class Accuracy:
    """The right classes of a folder of pictures.

    Attributes:
        pictures: their number; device, plain: right by the device, by float32.
        same: pictures with the same class by both.
    """

    pictures: int
    device: int
    plain: int
    same: int

    @property
    def told(self) -> str:
        """The accuracy as a line of text."""
        device, plain = self.device / self.pictures, self.plain / self.pictures
        return (
            f"{self.pictures} pictures: the device {device:.2%} right, float32 {plain:.2%}; "
            f"the same class for {self.same / self.pictures:.2%}"
        )


def judge(model: Any, classifier: Any, options: Options, shape: tuple[int, int, int]) -> Accuracy:
    """Classify the pictures of ``--accuracy`` by the device and by onnxruntime in float32.

    Raises:
        UserError: a folder is not the name of a class.
    """
    import onnxruntime  # noqa: PLC0415 - only pictures need it

    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name
    device = plain = same = count = 0
    for wanted, file in _labelled(options):
        picture = read_picture(file, shape)
        ours = int(np.argmax(classifier({name: picture})[0]))
        theirs = int(np.argmax(session.run(None, {name: picture})[0]))
        count, same = count + 1, same + (ours == theirs)
        device, plain = device + (ours == wanted), plain + (theirs == wanted)
    return Accuracy(count, device, plain, same)


def _labelled(options: Options) -> Iterator[tuple[int, Path]]:
    assert options.accuracy is not None
    for file in files_of(options.accuracy, MOST_JUDGED):
        yield options.number(file.parent.name), file
