# SPDX-License-Identifier: Apache-2.0
"""The Python packages of every session: named in pyproject.toml, pinned in VERSIONS.lock.

``[python]`` holds one version of each package that any session installs, dependencies included;
``[python-hashes]`` the content of those that bring native code into a build (TVM and its FFI),
for every platform they are offered on. A release may pin packages of its own over these, under
``[python-releases."R"]``.

``python scripts/pythonpins.py refresh`` resolves the groups anew with pip and rewrites the tables;
``check`` says what differs from such a resolution and exits 1.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomlkit

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "VERSIONS.lock"
PROJECT = ROOT / "pyproject.toml"

Pins = dict[str, str]


def canonical(name: str) -> str:
    """The normal form of a package name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


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


def resolve(requirements: Iterable[str]) -> Pins:
    """Ask pip which version of which package these requirements mean today.

    Raises:
        subprocess.CalledProcessError: pip cannot resolve them; its message is on stderr.
    """
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
    command += ["-qq", "--report", "-", *requirements]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    found = (entry["metadata"] for entry in report["install"])
    # A local build label (torch's +cpu) names who built it, not which version it is.
    return {canonical(m["name"]): m["version"].partition("+")[0] for m in found}


def requirements() -> list[str]:
    """Every requirement of every dependency group, and nox itself."""
    groups = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["dependency-groups"]
    return sorted({"nox", *(entry for group in groups.values() for entry in group)})


def main(arguments: list[str]) -> int:
    """Rewrite or check the tables; 1 when ``check`` finds a difference."""
    parser = argparse.ArgumentParser(prog="lock", description=__doc__.partition("\n")[0])
    parser.add_argument("verb", choices=["refresh", "check"])
    verb = parser.parse_args(arguments).verb
    document = tomlkit.parse(LOCK.read_text(encoding="utf-8"))
    release = str(document["default-release"])
    fixed = document.get("python-releases", {}).get(release, {})
    wanted = [f"{name}=={version}" for name, version in fixed.items()]
    old: Pins = dict(document.get("python", {}))
    if verb == "check":
        wanted += [f"{name}=={version}" for name, version in old.items()]
    new = {k: v for k, v in resolve([*requirements(), *wanted]).items() if k not in fixed}
    differences = sorted(set(old.items()) ^ set(new.items()))
    for name, version in differences:
        side = "pinned, not needed" if (name, version) in old.items() else "needed, not pinned"
        print(f"python: {name} {version}: {side}")
    if verb == "check" or not differences:
        return 1 if differences else 0
    table = tomlkit.table()
    for name, version in sorted(new.items()):
        table[name] = version
    document["python"] = table
    LOCK.write_text(tomlkit.dumps(document), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
