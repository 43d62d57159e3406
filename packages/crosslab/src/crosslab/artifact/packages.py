# SPDX-License-Identifier: Apache-2.0
"""Installed Python packages that take part in a build, as parts of the bill of materials."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from crosslab.artifact.sbom import Part

# SPDX expressions of older spellings of licences; other texts are not changed.
_SPDX = {
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT license": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "PSFL": "PSF-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
PACKAGE = "mlc-rvv"
_LONG = 60  # characters: longer texts are not a licence's name


def build_packages(project: Path, groups: Iterable[str], shipped: frozenset[str]) -> list[Part]:
    """Return the installed packages that this package and groups require, sorted by name.

    The checkout's own packages are left out.

    Args:
        project: folder of pyproject.toml with the groups, and the names of the checkout's packages.
        groups: names of dependency groups.
        shipped: packages whose code is part of the artefact.
    """
    table = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    requirements = [line for group in groups for line in table["dependency-groups"][group]]
    installed = _closure(map(Requirement, [PACKAGE, *requirements, *sorted(shipped)]))
    others = sorted(set(installed) - set(table["tool"]["uv"]["sources"]))
    return [_part(name, installed[name], name in shipped) for name in others]


def _closure(wanted: Iterable[Requirement]) -> dict[str, metadata.Distribution]:
    """Return the installed distributions that requirements lead to, by canonical name."""
    installed: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = list(wanted)
    while waiting:
        need = waiting.pop()
        name, extras = canonicalize_name(need.name), frozenset(need.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            installed[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform, or not installed in this environment
        for line in installed[name].requires or []:
            inner = Requirement(line)
            marker = inner.marker
            choices = [{"extra": extra} for extra in ("", *extras)]
            if marker is None or any(marker.evaluate(choice) for choice in choices):
                waiting.append(inner)
    return installed


def _part(name: str, package: metadata.Distribution, shipped: bool) -> Part:
    return Part(
        name=name,
        version=package.version,
        licence=licence_of(package),
        shipped=shipped,
        purl=f"pkg:pypi/{name}@{package.version}",
    )


def licence_of(package: metadata.Distribution) -> str:
    """Return a package's licence: SPDX expression, else the licence's name, else an empty text."""

    def values_of(field: str) -> list[str]:
        return [str(value) for value in package.metadata.get_all(field, [])]

    if expression := values_of("License-Expression"):
        return expression[0]
    text = "".join(values_of("License")).strip()
    classifiers = (c for c in values_of("Classifier") if c.startswith("License :: "))
    names = [c.rpartition(" :: ")[2] for c in classifiers]
    plain = [text] if text != "UNKNOWN" and 0 < len(text) < _LONG and "\n" not in text else []
    for name in (*plain, *names):
        return _SPDX.get(name, name)
    return ""
