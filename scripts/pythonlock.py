# SPDX-License-Identifier: Apache-2.0
"""Resolve the Python packages of every session anew, or check that their pins still hold.

``python -m pythonlock refresh`` asks pip what the dependency groups mean today and rewrites the
table ``[python]`` of VERSIONS.lock; ``check`` says what differs from the pins and exits 1.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import tomlkit

from pythonpins import Pins

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "VERSIONS.lock"
PROJECT = ROOT / "pyproject.toml"


def canonical(name: str) -> str:
    """The normal form of a package name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


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
