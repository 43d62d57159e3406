# SPDX-License-Identifier: Apache-2.0
"""Model assets that VERSIONS.lock pins."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from crosslab.errors import LabError, UserError
from groundwork.command_line import meant

T = TypeVar("T")
LOCK_NAME = "VERSIONS.lock"


@dataclass(frozen=True)
class Asset:
    """A model file inside a published wheel, both pinned by hash.

    Attributes:
        name: name that the user gives.
        package: the wheel's package name.
        version: the wheel's version.
        file: the wheel's file name.
        sha256: hash of the wheel.
        member: path of the model file inside the wheel.
        member_sha256: hash of the model file.
        licence: SPDX expression; may be empty.
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
    """The part of VERSIONS.lock that crosslab reads.

    Attributes:
        path: path of VERSIONS.lock.
        assets: model assets by name.
    """

    path: Path
    assets: dict[str, Asset]

    def asset(self, name: str) -> Asset:
        """Return the asset with this name.

        Raises:
            UserError: no asset with this name is pinned.
        """
        if name in self.assets:
            return self.assets[name]
        raise UserError(
            f"model {name!r} is not pinned in {self.path}",
            remedy=meant(name, sorted(self.assets), "pinned models"),
        )


def read_pinned(project: Path, section: str, name: str, make: Callable[[dict[str, Any]], T]) -> T:
    """Read the table [section."name"] of ``VERSIONS.lock`` and convert it with ``make``.

    Raises:
        UserError: the table is missing or incomplete.
    """
    path = project / LOCK_NAME
    try:
        return make(tomllib.loads(path.read_text(encoding="utf-8"))[section][name])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f'{path} has no complete table [{section}."{name}"]: {error}') from error


def read_pins(project: Path) -> Pins:
    """Read ``VERSIONS.lock`` of a project.

    Raises:
        LabError: the file is missing, is not TOML, or lacks a field of an asset.
    """
    path = project / LOCK_NAME
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LabError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not TOML: {error}") from error
    entries = table.get("assets", {})
    if not isinstance(entries, dict) or not all(isinstance(e, dict) for e in entries.values()):
        raise UserError(f"{path}: assets must be tables")
    return Pins(path, {name: _asset(path, name, entry) for name, entry in entries.items()})


def _asset(path: Path, name: str, entry: dict[str, str]) -> Asset:
    fields = ("package", "version", "file", "sha256", "member", "member_sha256")
    missing = [field for field in fields if not entry.get(field)]
    if missing:
        raise LabError(f'{path}: [assets."{name}"] lacks {", ".join(missing)}')
    pinned = {field: entry[field] for field in fields}
    return Asset(name, **pinned, licence=entry.get("license", ""))
