# SPDX-License-Identifier: Apache-2.0
"""The Debian package of a finished model: its bytes, its contents, and dpkg's view of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from test_artifact import make_dist

from crosslab.artifact import deb
from crosslab.artifact.dist import write_dist
from crosslab.artifact.package import debs
from crosslab.artifact.package import main as package_main
from crosslab.errors import LabError, UserError

pytestmark = pytest.mark.skipif(not shutil.which(deb.TOOL), reason=f"no {deb.TOOL}")


def said(*words: object) -> str:
    return subprocess.run([*map(str, words)], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = make_dist(tmp_path_factory.mktemp("project"))
    write_dist(replace(dist, about={**dist.about, "release": "2026.08"}))
    return dist.folder


def test_the_package_holds_the_model_and_a_service(folder: Path, tmp_path: Path) -> None:
    (package,) = debs([folder], tmp_path)
    assert package.name == "mlc-rvv-2026.08-T-M.deb"
    fields = said(deb.TOOL, "--field", package).splitlines()
    assert {"Package: mlc-rvv-m", "Version: 2026.08", "Architecture: riscv64"} <= set(fields)
    root = tmp_path / "root"
    said(deb.TOOL, "--extract", package, root)
    home = root / "usr/lib/mlc-rvv/M"
    assert "files are as they were made" in said("sh", home / "run.sh", "verify")
    assert os.access(home / "runner", os.X_OK)
    unit = (root / "usr/lib/systemd/system/mlc-rvv-m.service").read_text()
    start = "/bin/sh /usr/lib/mlc-rvv/M/run.sh serve --cache-dir %S/mlc-rvv-m $MLC_RVV_OPTIONS"
    for line in (f"ExecStart={start}", "DynamicUser=yes", "WantedBy=multi-user.target"):
        assert unit.splitlines().count(line) == 1
    owners = {line.split()[1] for line in said(deb.TOOL, "--contents", package).splitlines()}
    assert owners == {"root/root"}


def test_the_same_model_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    first = debs([folder], tmp_path / "a")[0].read_bytes()
    os.utime(folder / "runner", (1, 1))
    old = os.umask(0o077)
    try:
        assert debs([folder], tmp_path / "b")[0].read_bytes() == first
    finally:
        os.umask(old)


def test_dpkg_installs_and_removes_it(folder: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("dpkg needs root")
    (package,) = debs([folder], tmp_path)
    root = tmp_path / "root"
    (root / "var/lib/dpkg").mkdir(parents=True)
    for name in ("status", "available"):
        (root / "var/lib/dpkg" / name).touch()
    options = [f"--root={root}", "--force-architecture", "--force-script-chrootless"]
    dpkg = ["dpkg", *options, "--log=/dev/null"]
    said(*dpkg, "--install", package)
    defaults = root / "etc/default/mlc-rvv-m"
    defaults.write_text('MLC_RVV_OPTIONS="--port 9000"\n')
    said(*dpkg, "--force-confold", "--install", package)
    assert "9000" in defaults.read_text()
    said(*dpkg, "--remove", "mlc-rvv-m")
    assert not (root / "usr/lib/mlc-rvv").exists()
    assert defaults.exists()
    said(*dpkg, "--purge", "mlc-rvv-m")
    assert not defaults.exists()


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("smollm2-135m-q0f32", "mlc-rvv-smollm2-135m-q0f32"),
        ("Qwen3_0.6B", "mlc-rvv-qwen3-0.6b"),
        ("ß modell-", "mlc-rvv-modell"),
    ],
)
def test_names_are_those_of_debian(model: str, name: str) -> None:
    assert deb.package_name(model) == name


def test_a_model_without_a_program_for_the_service_is_not_packed(tmp_path: Path) -> None:
    dist = make_dist(tmp_path)
    files = {name: path for name, path in dist.files.items() if name != "run.sh"}
    write_dist(replace(dist, files=files))
    with pytest.raises(UserError, match=r"no run\.sh for a service"):
        debs([dist.folder], tmp_path / "out")


def test_a_changed_folder_is_not_packed(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "M")
    (copy / "runner").write_bytes(b"other")
    with pytest.raises(LabError, match="differs from its manifest"):
        package_main(["--deb", str(copy), "--output", str(tmp_path)])
    assert not list(tmp_path.glob("*.deb"))


def test_a_system_without_dpkg_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no dpkg-deb"):
        debs([folder], tmp_path)
