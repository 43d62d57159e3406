# SPDX-License-Identifier: Apache-2.0
"""Resolve the Python packages of every session, or check that their pins still hold.

``python -m pythonlock refresh`` asks the index what the dependency groups mean today and
rewrites the tables ``[python]``, ``[python-groups]`` and ``[python-hashes]`` of VERSIONS.lock;
``add`` does so too, but leaves the version of what is pinned as it is; ``check`` says what
differs from the pins and exits 1.

uv resolves: its answer holds for every Python and machine that the project runs on, and has the
hash of every file, where pip's is about the machine it is asked on.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomlkit
from packaging.markers import Marker
from packaging.tags import Tag
from packaging.utils import parse_wheel_filename

from common.files import atomic_write
from pythonpins import Pins

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "VERSIONS.lock"
PROJECT = ROOT / "pyproject.toml"

OLDEST = "3.11"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
ENVIRONMENTS = tuple(
    {
        "python_version": version,
        "python_full_version": f"{version}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine,
    }
    for version, machine in itertools.product(PYTHONS, MACHINES)
)
# What the bootstrap installs, before there is any session.
BOOTSTRAP = {"nox": ["nox"]}

Hashes = dict[str, dict[str, list[str]]]


@dataclass
class Resolved:
    """What requirements mean: versions, and the hashes of the files that may be installed."""

    versions: Pins = field(default_factory=dict)
    hashes: Hashes = field(default_factory=dict)


def canonical(name: str) -> str:
    """The normal form of a package name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(requirements: Iterable[str], fixed: Mapping[str, str]) -> Resolved:
    """Ask the index which version of which package these requirements mean.

    Args:
        requirements: as in pyproject.toml.
        fixed: versions that are not to be changed.

    Raises:
        SystemExit: they cannot be resolved, or a package has no file for these machines.
    """
    with tempfile.TemporaryDirectory(prefix="pythonlock-") as folder:
        wanted, kept = Path(folder) / "wanted.txt", Path(folder) / "kept.txt"
        wanted.write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
        kept.write_text("".join(f"{n}=={v}\n" for n, v in fixed.items()), encoding="utf-8")
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header"]
        command += ["--universal", f"--python-version={OLDEST}", "--format=pylock.toml"]
        command += [f"--constraints={kept}", str(wanted)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    resolved = Resolved()
    for package in tomllib.loads(done.stdout.decode("utf-8"))["packages"]:
        if _needed(package.get("marker", "")):
            _take(package, resolved)
    return resolved


def _needed(marker: str) -> bool:
    return not marker or any(Marker(marker).evaluate(dict(e)) for e in ENVIRONMENTS)


def _take(package: Mapping[str, Any], resolved: Resolved) -> None:
    name, version = canonical(package["name"]), package["version"]
    if resolved.versions.setdefault(name, version) != version:
        raise SystemExit(f"python: {name} would have two versions: name one in pyproject.toml")
    files = {_file_name(wheel): wheel["hashes"]["sha256"] for wheel in package.get("wheels", [])}
    fit = sorted(sha256 for file, sha256 in files.items() if fits_here(file))
    if not fit:
        raise SystemExit(f"python: {name} {version} has no wheel for Linux")
    resolved.hashes[name] = {version: fit}


def _file_name(wheel: Mapping[str, Any]) -> str:
    return str(wheel.get("name") or wheel["url"].rpartition("/")[2])


def fits_here(file: str) -> bool:
    """Whether a wheel can be installed on one of the machines."""
    return any(map(_runs, parse_wheel_filename(file)[3]))


def _runs(tag: Tag) -> bool:
    linux = tag.platform.startswith(("manylinux", "linux")) and tag.platform.endswith(MACHINES)
    if tag.platform != "any" and not linux:
        return False
    own = {f"cp{version.replace('.', '')}" for version in PYTHONS}
    return (
        tag.interpreter in ("py3", "py2.py3", "py311")
        or (tag.interpreter in own and tag.abi in (tag.interpreter, "abi3", "none"))
        or (tag.abi == "abi3" and tag.interpreter.startswith("cp3"))
    )


def groups() -> dict[str, list[str]]:
    """The dependency groups, and what the bootstrap installs."""
    table = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["dependency-groups"]
    return {**BOOTSTRAP, **table}


@dataclass(frozen=True)
class Tables:
    """The Python part of the lock."""

    versions: Pins
    groups: dict[str, list[str]]
    hashes: Hashes


def look_up(lock: Mapping[str, Any], kept: Pins) -> Tables:
    """The Python part of the lock as it should be.

    Args:
        lock: as it is; each release's own packages are the releases' business and stay.
        kept: versions that are not to be changed.
    """
    wanted = groups()
    everything = sorted({line for lines in wanted.values() for line in lines})
    versions: Pins = {}
    hashes: Hashes = {}
    for own in (lock.get("python-releases") or {"": {}}).values():
        lines = [*everything, *(f"{name}=={version}" for name, version in own.items())]
        found = resolve(lines, {**kept, **versions})
        versions |= {name: v for name, v in found.versions.items() if name not in own}
        for name, files in found.hashes.items():
            hashes.setdefault(name, {}).update(files)
    closures = {
        group: sorted(resolve(lines, versions).versions) for group, lines in sorted(wanted.items())
    }
    return Tables(versions, closures, hashes)


def differences(old: Tables, new: Tables) -> list[str]:
    """What is not as it should be, a line each."""
    lines = []
    for name, version in sorted(set(old.versions.items()) ^ set(new.versions.items())):
        side = "pinned, not needed" if old.versions.get(name) == version else "needed, not pinned"
        lines.append(f"{name} {version}: {side}")
    for group in sorted(old.groups.keys() | new.groups.keys()):
        if old.groups.get(group) != new.groups.get(group):
            lines.append(f"group {group}: means other packages than the lock says")
    for name in sorted(old.hashes.keys() | new.hashes.keys()):
        if _sets(old.hashes.get(name)) != _sets(new.hashes.get(name)):
            lines.append(f"{name}: the files have other hashes than the lock says")
    return lines


def _sets(by_version: Mapping[str, list[str]] | None) -> dict[str, set[str]]:
    return {version: set(files) for version, files in (by_version or {}).items()}


def write(tables: Tables) -> None:
    """Put the tables into the lock; all else stays as it is."""
    document = tomlkit.parse(LOCK.read_text(encoding="utf-8"))
    versions, means = tomlkit.table(), tomlkit.table()
    versions.update(dict(sorted(tables.versions.items())))
    for group, names in tables.groups.items():
        means[group] = tomlkit.array().multiline(len(names) > 1)
        means[group].extend(names)
    hashes = tomlkit.table(is_super_table=True)
    for name, by_version in sorted(tables.hashes.items()):
        hashes[name] = tomlkit.table()
        for version, files in sorted(by_version.items()):
            array = tomlkit.array().multiline(len(files) > 1)
            array.extend(files)
            hashes[name][version] = array
    document["python"], document["python-hashes"] = versions, hashes
    document["python-groups"] = means
    atomic_write(LOCK, tomlkit.dumps(document))


def main(arguments: list[str]) -> int:
    """Rewrite or check the tables; 1 when ``check`` finds a difference."""
    parser = argparse.ArgumentParser(prog="pythonlock", description=__doc__.partition("\n")[0])
    parser.add_argument("verb", choices=["refresh", "add", "check"])
    verb = parser.parse_args(arguments).verb
    lock = tomllib.loads(LOCK.read_text(encoding="utf-8"))
    old = Tables(
        *(lock.get(name, {}) for name in ("python", "python-groups", "python-hashes"))  # as pinned
    )
    new = look_up(lock, {} if verb == "refresh" else old.versions)
    found = differences(old, new)
    for line in found:
        print(f"python: {line}")
    if verb != "check" and found:
        write(new)
    return 1 if verb == "check" and found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
