# SPDX-License-Identifier: Apache-2.0
"""A fresh root: a command finds nothing of this machine there but what it may read."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "fresh_root.py"
TOOLS = ("sh", "cat", "pwd", "touch", "mount", "umount", "unshare", "env", "true", "ls")


def fresh_root(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root of this machine's own tools, in place of a Debian that takes minutes to make."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("a root is entered by root only, in a mount namespace")
    root = tmp_path / "root"
    for folder in ("usr/bin", "proc", "sys", "dev", "etc", "root", "srv/project"):
        (root / folder).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    for path in filter(None, map(shutil.which, TOOLS)):
        shutil.copy(path, root / "usr" / "bin")
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+) \(0x", listed):
            (root / library.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, root / library.lstrip("/"))
    return root


def test_a_command_has_a_home_and_folders_of_its_own(root: Path, tmp_path: Path) -> None:
    inside = "pwd; echo $HOME; ls /; echo $SECRET; unshare -r true && echo namespaces; exit 7"
    done = fresh_root("--root", root, "--", "sh", "-c", inside, SECRET="known", CI="true")
    assert done.returncode == 7, done.stderr
    project, home, *names = done.stdout.split()
    assert (project, home) == ("/srv/project", "/root")
    assert "usr" in names and "tmp" not in names and "known" not in names
    assert names[-1] == "namespaces", "tests inside make user namespaces"
    assert str(root) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")


def test_what_settings_name_is_there_to_be_read(root: Path, tmp_path: Path) -> None:
    (wheels := tmp_path / "wheels").mkdir()
    (wheels / "wheel").write_text("content\n", encoding="utf-8")
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\nfind-links = {wheels}\nretries = 7\n", encoding="utf-8")
    inside = f"cat {wheels}/wheel /etc/pip.conf; touch {wheels}/wheel"
    done = fresh_root("--root", root, "--", "sh", "-c", inside, PIP_CONFIG_FILE=str(settings))
    assert done.returncode == 1
    assert "content" in done.stdout and "retries = 7" in done.stdout
    assert "Read-only file system" in done.stderr


def test_the_reason_is_said_where_no_root_can_be_had(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        (tmp_path / "python").symlink_to(sys.executable)
        done = fresh_root("--", "true", PATH=str(tmp_path))
    else:
        done = fresh_root("--", "true")
    assert done.returncode == 2
    assert "fresh_root: no fresh root here: " in done.stderr
    assert "Traceback" not in done.stderr
