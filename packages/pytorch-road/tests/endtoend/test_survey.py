# SPDX-License-Identifier: Apache-2.0
"""The survey judges modules by our passes on this machine, and goes on from kept outcomes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from support import shared_builds

from crosslab.errors import UserError
from torchroad.cli import main
from torchroad.survey.outcome import Outcome, Report, Verdict

pytestmark = pytest.mark.slow


def survey(report: Path, *words: str) -> int:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: nox -s torch and nox -s tests install it")
    where = ["--tvm-tree", str(shared_builds.tvm_tree()), "--cache", str(shared_builds.CACHE)]
    return main(["survey", *where, "--json", str(report), "--kind", "module", *words])


def test_modules_are_right_on_kernels_and_are_not_run_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "survey.json"
    names = ("Conv2d 2", "ConvTranspose2d 2")
    assert survey(report, *names, "--first", "1") == 0
    assert survey(report, *names) == 0
    told = capsys.readouterr().out
    assert told.count("Conv2d 2 ") == told.count("ConvTranspose2d 2 ") == 1
    outcomes = json.loads(report.read_text(encoding="utf-8"))["outcomes"]
    assert [(one["verdict"], one["share"]) for one in outcomes] == [("right", 1.0)] * 2
    assert max(one["error"] for one in outcomes) < 1e-6


def test_an_unknown_case_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'Linea' is no case of the survey"):
        survey(tmp_path / "survey.json", "Linea")


def test_a_report_of_other_sources_is_not_taken(tmp_path: Path) -> None:
    report = Report.read(tmp_path / "survey.json", "these")
    report.add(Outcome("Linear 1", "module", Verdict.WRONG, 0.5))
    assert [one.name for one in Report.read(report.file, "these").faults] == ["Linear 1"]
    assert not Report.read(report.file, "others").outcomes
    assert "| modules of torch.nn | 1 | 0 (0.0%) | 0 | 1 | 0 |" in report.summary()
