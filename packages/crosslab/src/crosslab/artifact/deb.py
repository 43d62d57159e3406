# SPDX-License-Identifier: Apache-2.0
"""A finished model as a Debian package: its folder, and a service that serves it.

``dpkg-deb`` writes the package. The same model gives the same bytes with the same ``dpkg-deb``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crosslab.artifact.dist import SERVICE, entries_of, make_parents, name_of
from crosslab.artifact.tarball import PLAIN, PROGRAM
from crosslab.errors import LabError, UserError
from groundwork.files import atomic_path

TOOL = "dpkg-deb"
_HOME = "usr/lib/mlc-rvv"
_OPTIONS = "MLC_RVV_OPTIONS"
_CONTROL = """\
Package: {package}
Version: {release}
Architecture: riscv64
Maintainer: mlc-rvv <mlc-rvv@localhost>
Section: science
Priority: optional
Installed-Size: {kibibytes}
Description: {model} in {quantization} for RISC-V CPUs with vectors
 A language model, and a service that serves it on port 8000 with the protocols of
 OpenAI and Ollama. /etc/default/{package} has the options of the service,
 /{home}/README.md the commands.
"""
_DEFAULTS = """\
# Options of the service; /{home}/runner serve --help lists them.
# To let other machines in: --host 0.0.0.0 --api-key-file FILE
{options}="--port 8000"
"""
_INSTALLED = """\
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ] && [ -z "${{DPKG_ROOT-}}" ]; then
  systemctl daemon-reload
  systemctl enable --quiet {package}
  systemctl restart {package} || echo "{package} does not start: journalctl -u {package}" >&2
fi
"""
_LEAVES = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ] && [ -z "${{DPKG_ROOT-}}" ]; then
  systemctl disable --quiet --now {package} || :
fi
"""
_LEFT = """\
#!/bin/sh
set -e
if [ -d /run/systemd/system ] && [ -z "${{DPKG_ROOT-}}" ]; then systemctl daemon-reload; fi
if [ "$1" = purge ]; then
  rm -rf "${{DPKG_ROOT-}}/var/lib/{package}" "${{DPKG_ROOT-}}/var/lib/private/{package}"
fi
"""


def package_name(model: str) -> str:
    """Return the name of a model's Debian package."""
    return "mlc-rvv-" + re.sub("[^a-z0-9.+-]+", "-", model.lower()).strip("-.+")


def write_deb(folder: Path, about: Mapping[str, Any], output: Path) -> Path:
    """Write the Debian package of a finished model, and return its path.

    Args:
        folder: the finished model.
        about: its manifest.
        output: folder of the package.

    Raises:
        UserError: this system has no ``dpkg-deb``.
        LabError: ``dpkg-deb`` failed.
    """
    if not shutil.which(TOOL):
        raise UserError(f"there is no {TOOL}", remedy="on Debian: apt-get install dpkg")
    package = package_name(folder.name)
    target = output / f"{name_of(folder, about['release'], about['target'])}.deb"
    output.mkdir(parents=True, exist_ok=True)
    with (
        atomic_path(target) as scratch,
        tempfile.TemporaryDirectory(prefix=f".{package}-", dir=output) as at,
    ):
        root = Path(at)
        root.chmod(0o755)
        for name, (text, mode) in _files(folder, about, package).items():
            _file(root / name, mode).write_text(text, encoding="utf-8")
        for entry in entries_of(folder):
            source = folder / entry.path
            executable = source.stat().st_mode & 0o100
            shutil.copyfile(source, _file(root / _HOME / folder.name / entry.path, executable))
        done = subprocess.run(
            [TOOL, "--root-owner-group", "-Znone", "--build", str(root), str(scratch)],
            env={**os.environ, "SOURCE_DATE_EPOCH": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise LabError(f"{TOOL} failed: {done.stderr.strip()}")
    return target


def _file(path: Path, executable: int) -> Path:
    """Make an empty file and its folders; modes do not depend on the umask."""
    make_parents(path)
    path.touch()
    path.chmod(PROGRAM if executable else PLAIN)
    return path


def _files(folder: Path, about: Mapping[str, Any], package: str) -> dict[str, tuple[str, int]]:
    """Return further texts of the package by path, and whether each is a program."""
    home = f"{_HOME}/{folder.name}"
    known = {
        "package": package,
        "home": home,
        "options": _OPTIONS,
        "release": about["release"],
        "model": about["model"],
        "quantization": about["quantization"],
        "kibibytes": -(-sum(entry.bytes for entry in entries_of(folder)) // 1024),
    }
    return {
        "DEBIAN/control": (_CONTROL.format(**known), 0),
        "DEBIAN/conffiles": (f"/etc/default/{package}\n", 0),
        "DEBIAN/postinst": (_INSTALLED.format(**known), 1),
        "DEBIAN/prerm": (_LEAVES.format(**known), 1),
        "DEBIAN/postrm": (_LEFT.format(**known), 1),
        f"etc/default/{package}": (_DEFAULTS.format(**known), 0),
        f"usr/lib/systemd/system/{package}.service": (_unit(home, package), 0),
    }


def _unit(home: str, package: str) -> str:
    """Return the text of the system's unit: the user's unit, to run under a user of its own."""
    lines = []
    for line in SERVICE.read_text(encoding="utf-8").splitlines():
        if line.startswith("# A systemd unit"):
            continue
        if line.startswith("ExecStart="):
            lines += [
                f"EnvironmentFile=-/etc/default/{package}",
                f"ExecStart=/bin/sh /{home}/run.sh serve --cache-dir %S/{package} ${_OPTIONS}",
                "DynamicUser=yes",
                f"StateDirectory={package}",
            ]
        else:
            lines.append(line.replace("default.target", "multi-user.target"))
    return "\n".join(lines) + "\n"
