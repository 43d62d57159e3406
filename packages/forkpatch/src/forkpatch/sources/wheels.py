# SPDX-License-Identifier: Apache-2.0
"""An upstream's files from the wheel of its packagers."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from forkpatch.command import typed
from forkpatch.errors import IntegrityError, SourceError, UnsafePathError
from forkpatch.git.objects import TreeFile
from forkpatch.model.lock import Upstream, Wheel
from forkpatch.processes import run_session
from forkpatch.safety import FILE_MODES, check_path
from forkpatch.sources.cache import Cache
from groundwork.hashing import sha256_of

PIP_TIMEOUT = 900.0
_SYMLINK = 0o120000
# Pattern of pip's message about a file with another hash than pinned.
_GOT = re.compile(r"\bGot\s+([0-9a-f]{64})\b")


def _suspect() -> str:
    """Return the remedy for a file with another hash than pinned."""
    return f"the file was not used; is the index or the pin wrong? {typed('lock --check')}"


def wheel_files(upstream: Upstream, wheel: Wheel, path: Path) -> Iterator[tuple[str, TreeFile]]:
    """Yield the files of the materialised tree that the wheel at ``path`` holds.

    The names of all members, even unused members, are checked before a member is read.

    Raises:
        SourceError: the wheel is not a zip file, or a member is a symbolic link, is absolute, or
            leaves its folder.
    """
    import zipfile  # noqa: PLC0415 - a version without a wheel needs it not

    try:
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if not info.is_dir()]
            for info in members:
                try:
                    check_path(info.orig_filename, path.name)
                except UnsafePathError as error:  # a mistake of the wheel, not of the user
                    raise SourceError(error.what) from error
                if (info.external_attr >> 16) & 0o170000 == _SYMLINK:
                    raise SourceError(f"{path.name}: {info.filename} is a symbolic link")
            for info in members:
                target = wheel.git_path(info.filename)
                if target is not None and upstream.selects(target):
                    mode = FILE_MODES[target in upstream.executable]
                    yield target, TreeFile(mode, archive.read(info))
    except zipfile.BadZipFile as error:
        raise SourceError(f"{path.name}: {error}") from error


def obtain_wheel(wheel: Wheel, cache: Cache, *, offline: bool) -> Path:
    """Return the path of a wheel file with a pinned hash: from the cache, else from pip.

    Raises:
        SourceError: the wheel is not available.
        IntegrityError: a file has another hash than pinned.
    """
    for sha256 in wheel.files.values():
        if cached := cache.wheel(sha256):
            return cached
    if offline:
        raise SourceError("the wheel is not in the cache, and this run is offline")
    if not any(map(_runs_here, wheel.files)):
        raise SourceError(f"no file of {wheel.package} {wheel.version} is pinned for this platform")
    with cache.scratch() as scratch:
        hashes = tuple(wheel.files.values())
        path = download_wheel(wheel.package, wheel.version, scratch, hashes=hashes)
        if path.name not in wheel.files:
            raise SourceError(f"pip chose {path.name}, for which no hash is pinned")
        pinned, actual = wheel.files[path.name], sha256_of(path)
        if actual != pinned:
            raise IntegrityError(
                f"{path} has the sha256 {actual}, but {pinned} is pinned", remedy=_suspect()
            )
        return cache.keep_wheel(path, pinned)


def download_wheel(
    package: str, version: str, folder: Path, *platforms: str, hashes: Sequence[str] = ()
) -> Path:
    """Let pip fetch one wheel file into ``folder``, and return its path.

    Without ``platforms``, the file is for this machine; without ``hashes``, pip accepts any file.

    Raises:
        SourceError: pip finds no wheel.
        IntegrityError: the index has a file with another hash than pinned.
    """
    options = [part for name in platforms for part in ("--platform", name)]
    options += ["--require-hashes"] if hashes else []
    requirement = folder / "requirement.txt"
    pins = "".join(f" --hash=sha256:{sha256}" for sha256 in hashes)
    requirement.write_text(f"{package}=={version}{pins}\n", encoding="utf-8")
    done = run_pip(
        *("download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-input"),
        *("--retries=1", "--timeout=20", *options, "--dest", str(folder), "-r", str(requirement)),
        timeout=PIP_TIMEOUT,
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        text = done.stderr.decode("utf-8", "replace")
        if other_hash := _GOT.search(text):
            raise IntegrityError(
                f"the index's {package} {version} has the sha256 {other_hash[1]}, but"
                f" {' or '.join(hashes)} is pinned",
                remedy=_suspect(),
            )
        raise pip_error(done)
    return wheels[0]


def run_pip(*words: str, timeout: float) -> subprocess.CompletedProcess[bytes]:
    """Run pip, and return its exit code and output, also after a failure.

    Raises:
        SourceError: pip is not installed, or does not end within ``timeout`` seconds.
    """
    try:
        return run_session([*pip_command(), *words, "--disable-pip-version-check"], timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"pip gave no answer within {error.timeout:.0f} s") from error


def pip_error(done: subprocess.CompletedProcess[bytes]) -> SourceError:
    """Return the error that pip printed last."""
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no answer"]
    return SourceError(f"pip: {errors[-1].removeprefix('ERROR: ')}")


def pip_command() -> list[str]:
    """Return the command of this Python's pip, else of PATH's; raise SourceError without one."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    program = shutil.which("pip3") or shutil.which("pip")
    if not program:
        raise SourceError("pip is not installed, so the wheel cannot be fetched")
    return [program]


def _runs_here(filename: str) -> bool:
    """Return True when a wheel's file name fits this machine's platform."""
    from packaging.tags import sys_tags  # noqa: PLC0415 - for this verb only
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename  # noqa: PLC0415 - for this verb only

    try:
        tags = parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return False
    return not tags.isdisjoint(sys_tags())
