# SPDX-License-Identifier: Apache-2.0
"""An imported PyTorch model as files, which a process on the patched tree writes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from crosslab.compile.driver import LAST_LINES, tree_environment
from crosslab.errors import LabError, UserError

ONNX = ".onnx"
# The varying size of a model for transformers: tokens of a call.
LENGTH = "n"
DEFAULT_STEPS = 8
SUPPLY = "nox -s torch installs it; without nox: pip install {}"


@dataclass(frozen=True)
class ImportedProgram:
    """The folder that :mod:`torchroad.importer` wrote.

    Attributes:
        folder: contains the module, the parameters and the cases.
    """

    folder: Path

    @cached_property
    def about(self) -> dict[str, Any]:
        """The importer's table: inputs, params, bounds, cases."""
        table: dict[str, Any] = json.loads((self.folder / "model.json").read_text(encoding="utf-8"))
        return table

    @property
    def params(self) -> Path:
        """The folder of the parameters."""
        return self.folder / "params"

    @property
    def sizes(self) -> list[dict[str, int]]:
        """The varying sizes of each case that differ from the example's."""
        return list(self.about["cases"])

    @property
    def answer(self) -> Path:
        """The file of torch's answer, for a language model with a paged cache."""
        return self.folder / "cases" / "answer.safetensors"

    @property
    def is_paged(self) -> bool:
        """True for a language model with a paged cache."""
        return "language" in self.about

    @property
    def example_sizes(self) -> dict[str, int]:
        """The example's varying sizes, by their names in the module."""
        sizes: dict[str, int] = self.about["example_sizes"]
        return sizes

    def case(self, number: int) -> tuple[Path, Path]:
        """Return the files of a case's inputs and of torch's outputs."""
        cases = self.folder / "cases"
        return cases / f"{number}-inputs.safetensors", cases / f"{number}-expected.safetensors"


def save_arrays(arrays: Mapping[str, NDArray[Any]], file: Path) -> None:
    """Write arrays by name as safetensors, in C's order."""
    save_file({name: np.asarray(value, order="C") for name, value in arrays.items()}, file)


@dataclass(frozen=True)
class TorchModel:
    """A PyTorch model as the user's options name it.

    Attributes:
        file: Python file; FILE.onnx; FOLDER.onnx with a model in ONNX for each function of the
            module; or a model's folder in Hugging Face's layout.
        factory: function in the Python file that makes the model; else empty.
        dynamic: name of a varying size to its least and most value.
        paged: the model is a language model whose attention reads a paged KV cache.
        steps: tokens of the answer, or calls of a model whose outputs are fed to its inputs; None:
            DEFAULT_STEPS, or one call of a model without feeds.
        prompt: token ids, for a folder.
        picture: path of the picture that a classifier in ONNX reads; "": random inputs.
    """

    file: Path
    factory: str
    dynamic: Mapping[str, tuple[int, int]]
    paged: bool = False
    steps: int | None = None
    prompt: tuple[int, ...] = ()
    picture: str = ""

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise UserError(f"--steps {self.steps}", remedy="give 1 or more")

    @property
    def is_onnx(self) -> bool:
        """True for a model in ONNX."""
        return self.file.suffix == ONNX

    @property
    def name(self) -> str:
        """The name of file and factory for the report."""
        return f"{self.file.name}:{self.factory}" if self.factory else self.file.name

    @classmethod
    def parse(
        cls, model: str, dynamic: list[str], *, paged: bool = False, steps: int | None = None
    ) -> TorchModel:
        """Parse ``FILE:FACTORY`` and texts of ``NAME=MIN:MAX``.

        Raises:
            UserError: a text has another form.
        """
        file, _, factory = model.rpartition(":")
        if not file.endswith(".py") or not factory.isidentifier():
            raise UserError(
                f"{model!r} does not name a file and a function in it",
                remedy="give FILE.py:FACTORY",
            )
        bounds: dict[str, tuple[int, int]] = {}
        for text in dynamic:
            name, _, limits = text.partition("=")
            low, _, high = limits.partition(":")
            if not (name.isidentifier() and low.isdecimal() and high.isdecimal()):
                raise UserError(f"--dynamic {text!r}", remedy="give NAME=MIN:MAX, such as n=2:512")
            if not 2 <= int(low) < int(high):
                raise UserError(
                    f"--dynamic {text}: MIN is at least 2, and MAX is larger than MIN",
                    remedy="torch.export treats a size of 0 or 1 as fixed",
                )
            if name in bounds:
                raise UserError(
                    f"--dynamic {name} is given twice", remedy="give each size one range"
                )
            bounds[name] = (int(low), int(high))
        return cls(Path(file).resolve(), factory, bounds, paged, steps)


def import_model(model: TorchModel, tvm_tree: Path, folder: Path) -> ImportedProgram:
    """Export and import a model in a separate process.

    Args:
        model: the user's model.
        tvm_tree: patched TVM tree.
        folder: empty folder for the files.

    Raises:
        UserError: torch is missing, or the model is not supported.
        LabError: TVM's importer fails.
    """
    if not model.file.exists():
        raise UserError(f"{model.file} does not exist", remedy="give FILE.py:FACTORY")
    for package in ("torch", *(("onnx", "onnxruntime") if model.is_onnx else ())):
        if importlib.util.find_spec(package) is None:
            remedy = SUPPLY.format(package)
            raise UserError(f"the package {package} is not installed here", remedy=remedy)
    spec = folder / "spec.json"
    table = {**asdict(model), "file": str(model.file)}
    spec.write_text(json.dumps(table), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "torchroad.importer", str(spec)],
        env=tree_environment(tvm_tree),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise _failure(done)
    return ImportedProgram(folder)


def _failure(done: subprocess.CompletedProcess[str]) -> LabError:
    last = done.stderr.strip().splitlines()
    # TVM may print more when the process ends.
    for line in reversed(last):
        try:
            message = json.loads(line)
            kind = UserError if done.returncode == UserError.exit_code else LabError
            return kind(message["what"], remedy=message["remedy"])
        except (ValueError, KeyError, TypeError):
            continue
    return LabError("importing the model failed:\n  " + "\n  ".join(last[-LAST_LINES:]))
