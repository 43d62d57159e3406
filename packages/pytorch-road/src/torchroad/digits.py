# SPDX-License-Identifier: Apache-2.0
"""``crosslab torch digits FOLDER``: trains a small classifier on scikit-learn's digits.

The data set has 1,797 pictures of 8 x 8 (Alpaydin and Kaynak, 1998; in the package scikit-learn).
The folder gets ``digits.onnx``, ``labels.txt``, and pictures: ``calibration``, of which the
classifier was trained, and ``held-out/DIGIT``, of which it was not.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crosslab.assemble.recipe_options import recipe_options
from crosslab.errors import UserError
from groundwork.command_line import Parser, output_folder

SEED, TRAINED, CALIBRATION, EPOCHS, BATCH = 0, 797, 64, 20, 50
GREYS = 16  # of the data set's pixels


def main(argv: Sequence[str]) -> int:
    """Train the classifier, and write it and its pictures to a folder.

    Raises:
        UserError: the folder exists, or a package is missing.
    """
    write(parser().read(argv, _checked).folder)
    return 0


def parser() -> Parser:
    """Return the parser of the command line of ``crosslab torch digits``."""
    # The session gives the options of every command that compiles.
    given = {name: {"help": argparse.SUPPRESS} for name in ("tvm_tree", "mlc_tree", "applied")}
    shared = recipe_options("project", "release", "tvm-tree", "mlc-tree", "applied", **given)
    options = Parser(
        prog="crosslab torch digits",
        description="Train a small classifier on scikit-learn's digits; write it as digits.onnx, "
        "with pictures for its calibration and pictures that it never saw.",
        parents=[shared],
    )
    options.add_argument(
        "folder", type=output_folder, metavar="FOLDER", help="new folder for the model"
    )
    return options


def _checked(args: argparse.Namespace) -> argparse.Namespace:
    if args.folder.exists():
        raise UserError(f"{args.folder} exists", remedy="name a new folder")
    return args


def write(folder: Path) -> None:
    """Train the classifier, and write it and its pictures to a folder.

    Raises:
        UserError: a package is missing.
    """
    try:
        import torch  # noqa: PLC0415
        from PIL import Image  # noqa: PLC0415
        from sklearn.datasets import load_digits  # noqa: PLC0415
    except ImportError as error:
        raise UserError(
            f"{error.name} is not installed", remedy="nox -s torch installs it"
        ) from None
    data = load_digits()
    order = np.random.default_rng(SEED).permutation(len(data.target))
    # Pictures of 8 bits, so that a PNG holds what the classifier was trained on.
    pixels = np.rint(data.images[order] * (255 / GREYS)).astype(np.uint8)
    labels = data.target[order]
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # threads cost more than they gain on small pictures
    model = classifier(torch)
    values = torch.tensor(pixels[:, None].astype(np.float32) / 255)
    _train(torch, model, values[:TRAINED], torch.tensor(labels[:TRAINED]))
    folder.mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), (values[:1],), str(folder / "digits.onnx"), dynamo=False)
    (folder / "labels.txt").write_text("".join(f"{n}\n" for n in range(10)), encoding="utf-8")
    for at, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        name = f"held-out/{label}" if at >= TRAINED else "calibration"
        if TRAINED > at >= CALIBRATION:
            continue
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / name / f"{at:04}.png")
    with torch.no_grad():
        found = model(values[TRAINED:]).argmax(1).numpy()
    right = float((found == labels[TRAINED:]).mean())
    print(f"{folder / 'digits.onnx'}: {right:.2%} of {len(found)} held-out pictures in float32")


def classifier(torch: Any) -> Any:
    """Return a classifier of pictures of 8 x 8: a residual network with a depthwise convolution."""
    nn = torch.nn

    class Residual(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(channels, channels, 3, padding=1)
            self.norm = nn.BatchNorm2d(channels)
            self.second = nn.Conv2d(channels, channels, 3, padding=1)

        def forward(self, x: Any) -> Any:
            return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))

    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        Residual(16),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.Conv2d(16, 32, 1),
        nn.ReLU6(),
        Residual(32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def _train(torch: Any, model: Any, values: Any, labels: Any) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(values)).split(BATCH):
            loss = torch.nn.functional.cross_entropy(model(values[part]), labels[part])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        schedule.step()
