# SPDX-License-Identifier: Apache-2.0
"""A PyTorch model and its inputs, from a factory in the user's Python file."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from crosslab.errors import LabError, UserError

FACTORY = (
    "a factory has no parameters and returns (module, inputs[, dynamic[, feeds]]): inputs is a "
    "tuple of tensors or a table of them by name, dynamic is {input: {axis: name of a size}}, "
    "feeds is {input: number of the output that it gets for the next call}"
)
Dynamic = Mapping[str, Mapping[int, str]]


@dataclass(frozen=True)
class Example:
    """A model and its example inputs, from a factory.

    Attributes:
        model: torch's module.
        by_place: positional inputs of a call.
        by_name: inputs of a call by name.
        dynamic: input to axis to the name of a size that may vary.
        feeds: input to the number of the output that becomes the input of the next call; an
            integer input becomes the index of the largest value in the last row of logits.
        trained: paths of modules that the factory left in training mode.
    """

    model: Any
    by_place: tuple[Any, ...]
    by_name: dict[str, Any]
    dynamic: Dynamic
    feeds: Mapping[str, int] = field(default_factory=dict)
    trained: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the inputs, in the order of the call; those of ``*xs`` are xs_0, xs_1."""
        names: list[str] = []
        for name, parameter in inspect.signature(self.model.forward).parameters.items():
            several = parameter.kind is parameter.VAR_POSITIONAL
            left = range(len(self.by_place) - len(names))
            names += [f"{name}_{i}" for i in left] if several else [name]
        return [*names[: len(self.by_place)], *self.by_name]

    def resized(self, sizes: Mapping[str, int]) -> Example:
        """Return the example with other sizes; its values repeat along the axes.

        A smaller size keeps the first values. If all floating-point numbers of an input differ,
        each repetition is scaled by a factor of its own: equal numbers have no order, which sorts
        and maxima would depend on.
        """

        def of(name: str, value: Any) -> Any:
            is_mixed = value.is_floating_point() and value.unique().numel() == value.numel() > 1
            repeats, count = torch.zeros([1] * value.dim(), dtype=torch.int64), 1
            for axis, size in self.dynamic.get(name, {}).items():
                if size in sizes:
                    places = torch.arange(sizes[size])
                    along = [-1 if i == axis % value.dim() else 1 for i in range(value.dim())]
                    here = (places // value.shape[axis]).reshape(along)
                    repeats = repeats * (int(here.max()) + 1) + here
                    count *= int(here.max()) + 1
                    value = value.index_select(axis, places % value.shape[axis])
            # Factors from 1 to 2, in steps that bfloat16 has while they suffice.
            return value * (1 + repeats / max(128, count)).to(value.dtype) if is_mixed else value

        names = self.names[: len(self.by_place)]
        by_place = tuple(of(n, v) for n, v in zip(names, self.by_place, strict=True))
        return replace(
            self, by_place=by_place, by_name={n: of(n, v) for n, v in self.by_name.items()}
        )

    def check_size(self, size: str, limits: Sequence[int]) -> None:
        """Check that each input axis named ``size`` exists and is within the limits.

        Raises:
            UserError: an input lacks the axis, or its size is outside of the limits.
        """
        values = dict(zip(self.names, (*self.by_place, *self.by_name.values()), strict=False))
        for name, axes in self.dynamic.items():
            for axis, named in axes.items():
                shape = tuple(values[name].shape)
                if named == size and not -len(shape) <= axis < len(shape):
                    raise UserError(f"{size} is axis {axis} of {name}, whose shape is {shape}")
                if named == size and not limits[0] <= shape[axis] <= limits[1]:
                    raise UserError(
                        f"--dynamic {size}={limits[0]}:{limits[1]}: "
                        f"in the example {name} has {shape[axis]}",
                        remedy="let the factory give an example within the limits",
                    )

    def answer(self, steps: int) -> tuple[list[Any], dict[str, list[int]]]:
        """Return the last outputs of ``steps`` calls, and the indices fed to integer inputs.

        Raises:
            UserError: a feed names an unknown input or output, or their dtypes do not fit.
        """
        example, chosen = self, dict[str, list[int]]()
        for _ in range(steps):
            outputs = example.outputs()
            values = dict(zip(self.names, example.tensors(), strict=True))
            for name, number in self.feeds.items():
                if name not in values or not 0 <= number < len(outputs):
                    raise UserError(
                        f"feeds: {name}: {number}; the inputs are {', '.join(self.names)}, "
                        f"the outputs 0 to {len(outputs) - 1}"
                    )
                value, before = outputs[number], values[name]
                if value.dtype != before.dtype:
                    chosen.setdefault(name, []).append(_largest_of_last_row(value, before))
                    value = torch.full([1] * before.dim(), chosen[name][-1])
                values[name] = value
            by_place = tuple(values[name] for name in self.names[: len(self.by_place)])
            by_name = {name: values[name] for name in self.by_name}
            example = replace(example, by_place=by_place, by_name=by_name)
        return outputs, chosen

    def tensors(self) -> list[Any]:
        """Return every tensor of the inputs, in the order of the exported program's inputs."""
        return list(tree_leaves((self.by_place, self.by_name)))

    def outputs(self) -> list[Any]:
        """Return the tensors that torch computes from the inputs.

        Raises:
            UserError: the model raises an error.
        """
        try:
            with torch.no_grad():
                result = self.model(*self.by_place, **self.by_name)
        except Exception as error:
            raise UserError(
                f"the model fails on its inputs: {type(error).__name__}: {error}"
            ) from error
        return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _largest_of_last_row(logits: Any, before: Any) -> int:
    """Return the index of the largest value in the last row of logits, for an integer input.

    Raises:
        UserError: the output is not float32 logits, or the input is not int64.
    """
    if logits.dtype != torch.float32 or before.dtype != torch.int64 or not logits.numel():
        raise UserError(
            f"feeds: an output of {logits.dtype} cannot become an input of {before.dtype}",
            remedy="feed an output of the same dtype, or float32 logits to an input of int64",
        )
    return int(logits.reshape(-1, logits.shape[-1])[-1].argmax())


def load_factory(file: Path, name: str) -> Any:
    """Return the factory function ``name`` of a user's Python file.

    Raises:
        UserError: the file or function does not exist, or the file cannot be run.
    """
    if not file.is_file():
        raise UserError(f"{file} does not exist", remedy="give FILE.py:FACTORY")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} is not a Python file", remedy="give FILE.py:FACTORY")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UserError(f"{file} cannot be run: {_told(error, file)}") from error
    factory = getattr(module, name, None)
    if not callable(factory):
        raise UserError(f"{file} has no function {name}", remedy=FACTORY)
    return factory


def _told(error: BaseException, file: Path) -> str:
    """Return the kind, text and line of an error in a user's file."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == file]
    if isinstance(error, SyntaxError) and error.lineno:
        return f"line {error.lineno}: {error.msg}"
    line = f"line {frames[-1].lineno}: " if frames else ""
    return f"{line}{type(error).__name__}: {error}"


def make_example(factory: Any, file: Path) -> Example:
    """Call a factory and return its model and inputs as an Example.

    Raises:
        UserError: the factory fails, or returns anything but :data:`FACTORY`'s form.
    """
    try:
        result = factory()
    except LabError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"the factory in {file} fails: {_told(error, file)}") from error
    if not isinstance(result, tuple) or not 2 <= len(result) <= 4:
        raise UserError(f"the factory in {file} returns {type(result).__name__}", remedy=FACTORY)
    model, inputs, dynamic, feeds = (*result, {}, {})[:4]
    if not isinstance(model, torch.nn.Module) or not isinstance(inputs, tuple | list | dict):
        kinds = f"({type(model).__name__}, {type(inputs).__name__})"
        raise UserError(f"the factory in {file} returns {kinds}", remedy=FACTORY)
    if not _names_places(dynamic, feeds):
        raise UserError(
            f"the factory in {file} returns {dynamic!r} for sizes and {feeds!r} for feeds",
            remedy=FACTORY,
        )
    by_name = dict(inputs) if isinstance(inputs, dict) else {}
    trained = tuple(name or "the model itself" for name in _in_training(model))
    by_place = () if by_name else tuple(inputs)
    example = Example(model.eval(), by_place, by_name, dynamic, feeds, trained)
    for value in (*example.by_place, *example.by_name.values()):
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            kind = value.layout if isinstance(value, torch.Tensor) else type(value).__name__
            raise UserError(
                f"an input from the factory in {file} is {kind}, not a dense tensor",
                remedy="wrap the model in a module whose inputs are dense tensors only",
            )
    return example


def _in_training(model: Any) -> list[str]:
    """Return the paths of modules that are in training mode and compute something else in it.

    The path of the model itself is "".
    """

    def has_mode(module: Any) -> bool:
        kind = type(module)
        if kind.__module__.startswith("torch.nn."):
            share = getattr(module, "p", getattr(module, "dropout", 0))
            drops = isinstance(share, float) and share > 0
            return drops or bool(getattr(module, "track_running_stats", False))
        return "training" in getattr(kind.forward, "__code__", has_mode.__code__).co_names

    named = model.named_modules()
    return [name for name, module in named if module.training and has_mode(module)]


def _names_places(dynamic: Any, feeds: Any) -> bool:
    """Return True if the tables have a factory's form: input to axis to size, input to output."""
    axes = list(dynamic.values()) if isinstance(dynamic, dict) else [None]
    return (
        all(isinstance(table, dict) and all(type(n) is int for n in table) for table in axes)
        and isinstance(feeds, dict)
        and all(type(number) is int for number in feeds.values())
    )
