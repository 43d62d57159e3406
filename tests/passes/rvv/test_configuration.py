# SPDX-License-Identifier: Apache-2.0
"""The file that configures the passes: it is read as it was written, and mistakes are named."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from crosslab.compile.overlaypass import load_pass


@pytest.fixture
def passes() -> ModuleType:
    return load_pass("configuration")


def test_a_file_is_read_as_it_was_written(passes: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "passes.json"
    settings = passes.Configuration(
        steps=("-noalias",),
        kernels=tmp_path / "kernels",
        require_tensorize=True,
        weights="tiles",
        activations="int8",
        kv_cache="int8",
        tuned=tmp_path,
        prefix="mlc_rvv256_",
        reports=tmp_path,
        extras=(passes.Extra("estimate_cost", "mlc-rvv-accelerator-study", {"file": "work.json"}),),
    )
    for written in (settings, passes.Configuration(), passes.Configuration(steps=())):
        written.write(path)
        assert passes.Configuration.read(path) == written


def test_the_environment_names_the_file(
    passes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(passes.VARIABLE, raising=False)
    assert passes.configured() == passes.Configuration()
    path = tmp_path / "passes.json"
    path.write_text('{"kernels": "kernels", "weights": "tiles"}', encoding="utf-8")
    monkeypatch.setenv(passes.VARIABLE, str(path))
    expected = passes.Configuration(kernels=tmp_path / "kernels", weights="tiles")
    assert passes.configured() == expected
    path.unlink()
    assert passes.configured() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("[]", r"it holds \[\], not a table"),
        ('{"kernel": "k"}', "unknown key 'kernel'; the keys are: steps, kernels"),
        ('{"kernels": 1}', "kernels is 1; it takes a path or null"),
        ('{"steps": "linear"}', "steps is 'linear'; it takes a list of names or null"),
        ('{"steps": [1]}', "steps is "),
        ('{"require_tensorize": 1}', "require_tensorize is 1; it takes true or false"),
        ('{"prefix": null}', "prefix is None; it takes a text"),
        ('{"weights": "heaps"}', "weights is 'heaps'; it takes stored or tiles"),
        ('{"activations": "int8"}', "activations is 'int8', which needs weights in tiles"),
        ('{"extras": ["cost"]}', "extras is "),
        ('{"extras": [{"name": "cost"}]}', "'package'"),
        ('{"extras": [{"name": "cost", "packages": "p"}]}', "unknown key 'packages'"),
    ],
)
def test_a_mistake_is_named(
    passes: ModuleType, tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "passes.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(RuntimeError, match=message) as caught:
        passes.Configuration.read(path)
    assert str(path) in str(caught.value)
