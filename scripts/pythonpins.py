# SPDX-License-Identifier: Apache-2.0
"""The Python packages of every session: named in pyproject.toml, pinned in VERSIONS.lock.

``[python]`` holds one version of each package that any session installs, dependencies included;
``[python-hashes]`` the content of those that bring native code into a build (TVM and its FFI),
for every platform they are offered on. A release may pin packages of its own over these, under
``[python-releases."R"]``. Standard library only: nox itself imports this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Pins = dict[str, str]


def pins(lock: Mapping[str, Any], release: str) -> Pins:
    """Package to version for one release."""
    own = lock.get("python-releases", {}).get(release, {})
    return {**lock.get("python", {}), **own}


def constraints(lock: Mapping[str, Any], release: str) -> str:
    """The text of a pip constraints file for one release."""
    return "".join(f"{name}=={version}\n" for name, version in sorted(pins(lock, release).items()))


def hashed_requirements(lock: Mapping[str, Any], release: str) -> str:
    """The text of a pip requirements file, with hashes, for the packages pinned by content."""
    versions = pins(lock, release)
    lines = []
    for name, entries in sorted(lock.get("python-hashes", {}).items()):
        hashes = [f"--hash=sha256:{known}" for known in entries.get(versions[name], [])]
        lines.append(" ".join([f"{name}=={versions[name]}", *hashes]))
    return "\n".join(lines) + "\n"
