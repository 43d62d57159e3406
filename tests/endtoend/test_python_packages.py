# SPDX-License-Identifier: Apache-2.0
"""Python packages come in by hash alone: the lock has them all, and pip refuses others."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from runner_kit import PROJECT

from pythonlock import canonical, fits_here
from pythonpins import PIP_OPTIONS, hashed_requirements, packages, pins

LOCK = tomllib.loads((PROJECT / "VERSIONS.lock").read_text(encoding="utf-8"))
GROUPS = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))[
    "dependency-groups"
]


@pytest.mark.parametrize("release", LOCK["releases"])
@pytest.mark.parametrize("group", [*GROUPS, "nox"])
def test_every_group_is_pinned_with_hashes(group: str, release: str) -> None:
    names = packages(LOCK, [group], release)
    asked = {canonical(re.split(r"[\[<>=!~; ]", line)[0]) for line in GROUPS.get(group, ["nox"])}
    assert asked <= names
    text = hashed_requirements(LOCK, names, release)
    assert text.count("==") == len(names)
    assert all("--hash=sha256:" in line for line in text.splitlines())


@pytest.mark.parametrize("release", LOCK["releases"])
def test_release_brings_its_own_tvm(release: str) -> None:
    text = hashed_requirements(LOCK, packages(LOCK, ["tvm"], release), release)
    assert f"apache-tvm=={pins(LOCK, release)['apache-tvm']} " in text
    assert "apache-tvm-ffi==" in text
    assert "apache-tvm" not in hashed_requirements(LOCK, packages(LOCK, ["test"], release), release)


def test_what_the_lock_lacks_is_said_with_the_next_command() -> None:
    with pytest.raises(LookupError, match="does not know the group nothing; pin it with: nox"):
        packages(LOCK, ["nothing"])
    with pytest.raises(LookupError, match="no hash for leftpad; pin it with: nox -s lock"):
        hashed_requirements(LOCK, ["leftpad"])
    # A version without hashes is as good as none.
    bumped = {**LOCK, "python": {**LOCK["python"], "numpy": "0.1"}}
    with pytest.raises(LookupError, match="no hash for numpy"):
        hashed_requirements(bumped, ["numpy"])


@pytest.mark.parametrize(
    ("tags", "fits"),
    [
        ("py3-none-any", True),
        ("py2.py3-none-any", True),
        ("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", True),
        ("cp39-abi3-manylinux_2_28_aarch64", True),
        ("cp310-cp310-manylinux_2_28_x86_64", False),
        ("cp314-cp314t-manylinux_2_28_x86_64", False),
        ("cp312-cp312-musllinux_1_2_x86_64", False),
        ("cp312-cp312-win_amd64", False),
        ("py3-none-macosx_11_0_arm64", False),
    ],
)
def test_files_for_these_machines_are_pinned(tags: str, fits: bool) -> None:
    assert fits_here(f"some_name-1.0-{tags}.whl") is fits


def make_wheel(folder: Path, text: str) -> str:
    """A wheel that needs another one; returns its sha256."""
    path = folder / "some_name-1.0-py3-none-any.whl"
    about = "Metadata-Version: 2.1\nName: some-name\nVersion: 1.0\nRequires-Dist: not-pinned\n"
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("some_name.py", text)
        archive.writestr("some_name-1.0.dist-info/METADATA", about)
        archive.writestr("some_name-1.0.dist-info/WHEEL", wheel)
        archive.writestr("some_name-1.0.dist-info/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pip(folder: Path, lock: dict[str, object]) -> subprocess.CompletedProcess[str]:
    listed = folder / "requirements.txt"
    listed.write_text(hashed_requirements(lock, ["some-name"]), encoding="utf-8")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", *PIP_OPTIONS]
    command += ["--find-links", str(folder), "--target", str(folder / "site"), "-r", str(listed)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_another_wheel_under_the_same_name_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pip")
    right = make_wheel(tmp_path, "GOOD = True\n")
    lock = {"python": {"some-name": "1.0"}, "python-hashes": {"some-name": {"1.0": [right]}}}
    done = pip(tmp_path, lock)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "some_name.py").is_file()
    make_wheel(tmp_path, "GOOD = False\n")
    done = pip(tmp_path, lock)
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert (tmp_path / "site" / "some_name.py").read_text() == "GOOD = True\n"
