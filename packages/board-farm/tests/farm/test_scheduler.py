# SPDX-License-Identifier: Apache-2.0
"""The Dask scheduler as a process of the farm."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("distributed")

from boardfarm.cli import main as farm


def test_a_scheduler_goes_on_until_it_is_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--project", str(tmp_path)]
    said = []
    for verb in ("scheduler", "scheduler", "down"):
        assert farm([verb, *own]) == 0
        said.append(capsys.readouterr().out.split(";")[0].splitlines()[0])
    assert said[0] == said[1]
    assert said[0].startswith("scheduler 127.0.0.1:")
    assert said[2] == f"ended: the {said[0].removesuffix(': answers')}"
