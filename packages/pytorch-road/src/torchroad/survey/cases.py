# SPDX-License-Identifier: Apache-2.0
"""The survey's cases by name: modules of torch.nn in three settings each, and architectures."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torchroad import libraries
from torchroad.survey.architectures.outputs import Factory, Made
from torchroad.survey.onnx_cases import exported_cases, onnx_cases
from torchroad.survey.operators import operator_cases

MODULES = Path(__file__).with_name("modules.toml")


def module_cases() -> dict[str, Factory]:
    """Return factories of torch.nn's modules, for each setting of the table."""
    table = tomllib.loads(MODULES.read_text(encoding="utf-8"))
    return {
        f"{name} {number}": partial(_module, name, setting)
        for name, settings in table.items()
        for number, setting in enumerate(settings, 1)
    }


def architecture_cases() -> dict[str, Factory]:
    """Return factories of small models of the model packages, and of a recommender."""
    libraries.prepare()
    from torchroad.survey.architectures import audio, language, recommender, vision  # noqa: PLC0415

    models = {
        **vision.MODELS,
        **audio.MODELS,
        **language.MODELS,
        "recommender": recommender.recommender,
    }
    return {name: partial(_lively, make) for name, make in models.items()}


def exported_architectures() -> dict[str, Any]:
    """Return the architectures as models in ONNX."""
    return exported_cases(architecture_cases())


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "module": module_cases,
    "operator": operator_cases,
    "architecture": architecture_cases,
    "onnx": onnx_cases,
    "onnx-architecture": exported_architectures,
}


def all_cases(kinds: Collection[str]) -> dict[str, tuple[str, Factory]]:
    """Return the kind and factory of each case of some kinds, by name."""
    return {name: (kind, make) for kind in kinds for name, make in KINDS[kind]().items()}


def _lively(make: Factory) -> Made:
    module, inputs = make()
    _enliven(module)
    return module, inputs


def _enliven(module: torch.nn.Module) -> None:
    """Change a module's weights so that every weight affects the outputs.

    Initial norms are ones and zeros, and initial weights of deep models are so small that the
    outputs hardly depend on the inputs: both hide errors.
    """
    for value in (*module.parameters(), *module.buffers()):
        if value.is_floating_point() and value.dim() > 1:
            torch.nn.init.kaiming_normal_(value.data)
        elif value.is_floating_point():
            value.data.add_(torch.rand_like(value), alpha=0.5)


def _module(name: str, setting: dict[str, Any]) -> Made:
    arguments = dict(setting)
    shapes, integers = arguments.pop("shapes", [[2, 6]]), arguments.pop("integers", 0)
    module = getattr(torch.nn, name)(*arguments.pop("args", []), **arguments).eval()
    _enliven(module)
    if integers:
        return module, tuple(torch.randint(integers, shape) for shape in shapes)
    return module, tuple(torch.randn(shape) for shape in shapes)
