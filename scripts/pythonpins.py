# SPDX-License-Identifier: Apache-2.0
"""The Python packages of every session: named in pyproject.toml, pinned in VERSIONS.lock.

``[python]`` holds one version of each package that any session installs, dependencies included;
``[python-groups]`` which of them a dependency group means; ``[python-hashes]`` the sha256 of
their wheels for Linux on x86-64 and AArch64. A release may pin packages of its own over these,
under ``[python-releases."R"]``. Standard library only: nox and the bootstrap import this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Pins = dict[str, str]

# The group that also means what the release itself pins: TVM and its FFI.
RELEASE_GROUP = "tvm"
# What pip is told beside the list: nothing that is not on it, nothing that would be built here.
PIP_OPTIONS = ("--no-deps", "--require-hashes", "--only-binary=:all:")
# Where versions with a local part are found ("+cpu"), which PyPI does not take: torch without CUDA.
INDEXES = {"cpu": "https://download.pytorch.org/whl/cpu"}
REMEDY = "pin it with: nox -s lock"


def pins(lock: Mapping[str, Any], release: str) -> Pins:
    """Package to version for one release."""
    own = lock.get("python-releases", {}).get(release, {})
    return {**lock.get("python", {}), **own}


def packages(lock: Mapping[str, Any], groups: Iterable[str], release: str = "") -> set[str]:
    """The names of all packages that these groups mean, dependencies included.

    Raises:
        LookupError: the lock does not know a group.
    """
    table = lock.get("python-groups", {})
    found: set[str] = set()
    for group in groups:
        if group not in table:
            raise LookupError(f"VERSIONS.lock does not know the group {group}; {REMEDY}")
        found.update(table[group])
        if group == RELEASE_GROUP:
            found.update(lock.get("python-releases", {}).get(release, {}))
    return found


def by_index(
    lock: Mapping[str, Any], names: Iterable[str], release: str = ""
) -> dict[str | None, set[str]]:
    """The packages by the index that has their pinned versions; None is pip's own, PyPI."""
    versions = pins(lock, release)
    found: dict[str | None, set[str]] = {}
    for name in names:
        own = versions.get(name, "").partition("+")[2]
        found.setdefault(INDEXES.get(own), set()).add(name)
    return found


def hashed_requirements(lock: Mapping[str, Any], names: Iterable[str], release: str = "") -> str:
    """The text of a pip requirements file with every version and every hash.

    Raises:
        LookupError: a package has no version or no hash in the lock.
    """
    versions, hashes = pins(lock, release), lock.get("python-hashes", {})
    lines = []
    for name in sorted(names):
        known = hashes.get(name, {}).get(versions.get(name, ""), [])
        if not known:
            raise LookupError(f"VERSIONS.lock has no hash for {name}; {REMEDY}")
        options = (f"--hash=sha256:{sha256}" for sha256 in known)
        lines.append(" ".join([f"{name}=={versions[name]}", *options]))
    return "".join(f"{line}\n" for line in lines)
