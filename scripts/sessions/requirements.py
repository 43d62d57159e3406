# SPDX-License-Identifier: Apache-2.0
"""Pinned Python packages of packages and groups, as pip requirements with hashes.

uv.lock pins every package for all supported Pythons and machines; uv reads it and writes it.
A release's TVM wheel is pinned in VERSIONS.lock, with the rest of that release.
``bootstrap.txt`` is the group ``nox`` as a requirements file: pip reads it where there is no uv.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groundwork.files import atomic_write

ROOT = Path(__file__).resolve().parents[2]
BOOTSTRAP = ROOT / "scripts" / "bootstrap.txt"
BOOTSTRAP_HEADER = "# Group nox of uv.lock, written by `nox -s lock`; bootstrap.py installs it.\n"
INDEX = "https://pypi.org/simple"
#: The group that also installs the release's own wheels.
TVM_GROUP = "tvm"
# A requirement with its hashes, which stand on indented lines below it.
_ENTRY = re.compile(r"^\S.*\n(?:[ \t]+.*\n)*", re.MULTILINE)
REFRESH = "refresh it with: nox -s lock"


def versions_lock(root: Path = ROOT) -> dict[str, Any]:
    """VERSIONS.lock as plain data."""
    return tomllib.loads((root / "VERSIONS.lock").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Member:
    """A package of the workspace: its folder, and its name as a distribution."""

    folder: Path
    name: str


def members(root: Path = ROOT) -> dict[str, Member]:
    """The workspace's packages by the names of their folders."""
    files = sorted(root.glob("packages/*/pyproject.toml"))
    return {path.parent.name: Member(path.parent, _project_name(path)) for path in files}


def requirements(names: Iterable[str], release: str, root: Path = ROOT) -> str:
    """Text of a pip requirements file: packages and groups with their dependencies and hashes.

    Args:
        names: packages of the workspace, of which only the dependencies are listed, and dependency
            groups of pyproject.toml; a group NAME-RELEASE replaces NAME where there is one.
        release: name of the release; its TVM wheel comes with the group ``tvm``.
        root: folder of pyproject.toml, uv.lock and VERSIONS.lock.

    Raises:
        LookupError: a name is unknown, uv.lock is out of date, or uv is missing.
    """
    names, packages = tuple(names), members(root)
    table = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    known = table["dependency-groups"]
    groups = [own if (own := f"{name}-{release}") in known else name for name in names]
    text = _export(
        [f"--package={packages[name].name}" for name in names if name in packages],
        [f"--only-group={group}" for group in groups if group not in packages],
        root,
    )
    return text + release_wheels(versions_lock(root), release) if TVM_GROUP in names else text


def release_wheels(lock: dict[str, Any], release: str) -> str:
    """Requirement lines of the upstream wheels that VERSIONS.lock pins for a release."""
    lines = []
    for upstream, version in lock["releases"][release].items():
        wheel = lock["upstreams"][upstream]["versions"][version].get("wheel")
        if wheel:
            hashes = " ".join(f"--hash=sha256:{file['sha256']}" for file in wheel["files"])
            lines.append(f"{wheel['package']}=={wheel['version']} {hashes}\n")
    return "".join(lines)


def lock(*, check: bool) -> list[str]:
    """Resolve all groups to the newest versions, and write uv.lock and bootstrap.txt.

    With ``check``, write nothing: compare uv.lock with pyproject.toml, and bootstrap.txt with
    uv.lock.

    Returns:
        the differences found by ``check``, in words.

    Raises:
        LookupError: uv is missing, or cannot resolve or export the groups.
    """
    if not check:
        _uv(ROOT, "lock", f"--default-index={INDEX}", "--upgrade")
        atomic_write(BOOTSTRAP, bootstrap_text())
        return []
    try:
        _uv(ROOT, "lock", f"--default-index={INDEX}", "--check")
    except LookupError as error:
        return [str(error)]
    same = BOOTSTRAP.read_text(encoding="utf-8") == bootstrap_text()
    return [] if same else [f"{BOOTSTRAP.name} is not the group nox of uv.lock"]


def bootstrap_text() -> str:
    """Content of bootstrap.txt."""
    return BOOTSTRAP_HEADER + _export([], ["--only-group=nox"], ROOT)


def _project_name(file: Path) -> str:
    return str(tomllib.loads(file.read_text(encoding="utf-8"))["project"]["name"])


def _export(packages: Sequence[str], groups: Sequence[str], root: Path) -> str:
    """Requirements of packages and of groups, each once; one call of uv accepts one kind."""
    fixed = ("--locked", "--offline", "--no-header", "--no-annotate", "--no-emit-workspace")
    texts = []
    if packages:
        texts.append(_uv(root, "export", *fixed, "--no-default-groups", *packages))
    if groups:
        texts.append(_uv(root, "export", *fixed, *groups))
    return "".join(dict.fromkeys(part for text in texts for part in _ENTRY.findall(text)))


def uv_command() -> list[str]:
    """The command that runs uv.

    Raises:
        LookupError: uv is missing.
    """
    if importlib.util.find_spec("uv"):
        return [sys.executable, "-m", "uv"]
    if found := shutil.which("uv"):
        return [found]
    raise LookupError("uv is missing: pip install uv, or start with scripts/bootstrap.py")


def _uv(root: Path, *arguments: str) -> str:
    """Run uv on the project, without the user's settings; return its output.

    Raises:
        LookupError: uv is missing or fails.
    """
    uv = uv_command()
    fixed = ["--quiet", "--no-config", "--no-cache", "--no-python-downloads"]
    fixed += [f"--python={sys.executable}", f"--project={root}"]
    done = subprocess.run(
        [*uv, *arguments, *fixed],
        env={name: value for name, value in os.environ.items() if not name.startswith("UV_")},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        raise LookupError(f"uv {arguments[0]}: {done.stderr.strip()}\n  {REFRESH}")
    return done.stdout
