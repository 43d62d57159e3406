# SPDX-License-Identifier: Apache-2.0
"""Installation of the package alone into an empty environment: the cost model and its own tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
PACKAGE = Path(__file__).resolve().parents[1]
# Longer than the rest, and the same in every environment.
LONG = "closed_form or enumeration or scalesim or page or plots or l2"


@dataclass(frozen=True)
class Installed:
    """An environment with the package and its dependencies, and an empty folder."""

    folder: Path
    home: Path

    def run(self, program: str, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, which sees nothing of this checkout."""
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            [str(self.folder / "bin" / program), *args],
            cwd=self.home,
            env={"HOME": str(self.home), "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    pytest.importorskip("pip", reason="pip installs the package")
    pip = [sys.executable, "-m", "pip"]
    made = tmp_path_factory.mktemp("installed")
    folder, home = made / "environment", made / "home"
    home.mkdir()
    wanted = [*pip, "download", "-q", "--no-deps", "--dest", str(made / "reached"), "uv_build"]
    reached = subprocess.run(wanted, capture_output=True, text=True, check=False)
    if reached.returncode:
        pytest.skip(f"pip reaches no index: {reached.stderr.strip().splitlines()[-1]}")
    venv.create(folder, symlinks=True)
    packages = [str(PACKAGE.with_name("groundwork")), str(PACKAGE), "pytest", "hypothesis"]
    options = ["--python", str(folder / "bin/python"), "install", "-q"]
    done = subprocess.run([*pip, *options, *packages], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Installed(folder, home)


def test_costmodel_estimates_a_product(installed: Installed) -> None:
    done = installed.run("costmodel", "--gemm", "64,64,64", "--json", "gemm.json")
    assert done.returncode == 0, done.stderr
    assert '"T": 4992' in (installed.home / "gemm.json").read_text(encoding="utf-8")
    assert "usage: costmodel" in installed.run("costmodel", "--help").stdout


def test_accelerator_says_in_one_line_what_to_type(installed: Installed) -> None:
    done = installed.run("accelerator", "describe", "vta-1x16x16")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.endswith("type: nox -s cost -- describe vta-1x16x16; costmodel runs without it")


def test_descriptions_and_native_sources_are_installed(installed: Installed) -> None:
    (site,) = installed.folder.glob("lib/python*/site-packages")
    for folder in ("costmodel/library", "accelerator/devices", "accelerator/native"):
        ours = {p.relative_to(PACKAGE / "src") for p in (PACKAGE / "src" / folder).rglob("*.*")}
        assert ours <= {p.relative_to(site) for p in (site / folder).rglob("*.*")}


def test_tests_of_the_cost_model_pass(installed: Installed) -> None:
    copy = installed.home / "packages" / PACKAGE.name
    for part in ("docs", "tests/costmodel"):
        shutil.copytree(PACKAGE / part, copy / part)
    tests = str(copy / "tests")
    done = installed.run("python", "-m", "pytest", "-q", "-k", f"not ({LONG})", tests)
    assert done.returncode == 0, done.stdout
