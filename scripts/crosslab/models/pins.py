# SPDX-License-Identifier: Apache-2.0
"""What VERSIONS.lock pins for the lab: model assets, the toolchain, Python packages."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosslab.errors import LabError, UserError

LOCK_NAME = "VERSIONS.lock"


@dataclass(frozen=True)
class Asset:
    """One model file inside one published wheel, both known by their content.

    Attributes:
        name: how the user names the model.
        package: the wheel's package name.
        version: the wheel's version.
        file: the wheel's file name.
        sha256: hash of the wheel.
        member: path of the model file inside the wheel.
        member_sha256: hash of that file.
        licence: SPDX expression of its licence; may be empty.
    """

    name: str
    package: str
    version: str
    file: str
    sha256: str
    member: str
    member_sha256: str
    licence: str = ""


@dataclass(frozen=True)
class Pins:
    """The part of VERSIONS.lock that this wing reads."""

    path: Path
    assets: dict[str, Asset]
    toolchain: dict[str, Any]
    python: dict[str, str]

    def asset(self, name: str) -> Asset:
        """The asset of this name.

        Raises:
            UserError: no asset of this name is pinned.
        """
        if name in self.assets:
            return self.assets[name]
        known = ", ".join(sorted(self.assets)) or "none"
        raise UserError(
            f"model {name!r} is not pinned in {self.path}",
            remedy=f"models that are: {known}",
        )


def read_pins(project: Path) -> Pins:
    """Read ``VERSIONS.lock`` of a project.

    Raises:
        LabError: the file is missing or lacks a field.
    """
    path = project / LOCK_NAME
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LabError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not TOML: {error}") from error
    tables = [table.get(name, {}) for name in ("assets", "toolchain", "python")]
    if not all(isinstance(found, dict) for found in (*tables, *tables[0].values())):
        raise UserError(f"{path}: assets, toolchain and python must be tables")
    assets = {n: _asset(path, n, entry) for n, entry in table.get("assets", {}).items()}
    return Pins(path, assets, table.get("toolchain", {}), table.get("python", {}))


def _asset(path: Path, name: str, entry: dict[str, str]) -> Asset:
    fields = ("package", "version", "file", "sha256", "member", "member_sha256")
    missing = [field for field in fields if not entry.get(field)]
    if missing:
        raise LabError(f'{path}: [assets."{name}"] lacks {", ".join(missing)}')
    pinned = {field: entry[field] for field in fields}
    return Asset(name, **pinned, licence=entry.get("license", ""))
