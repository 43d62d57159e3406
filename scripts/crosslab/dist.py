# SPDX-License-Identifier: Apache-2.0
"""A finished model in one folder, ready to be copied to a board."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

MANIFEST = "manifest.json"
SCHEMA = 1
RUNNER = "runner"

_console = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Dist:
    """What goes into the folder.

    Attributes:
        folder: the folder.
        runner: the program, with the model library linked in.
        params: folder of ``tensor-cache.json`` and its shards.
        tokenizer: ``tokenizer.json``.
        about: what the manifest tells beside names, sizes and hashes.
    """

    folder: Path
    runner: Path
    params: Path
    tokenizer: Path
    about: Mapping[str, Any]


def write_dist(dist: Dist) -> Path:
    """Write the folder whole, or leave it when it is that already.

    Returns:
        the manifest.
    """
    final = dist.folder / MANIFEST
    origin = hashlib.sha256(str((dist.runner, dist.params, dict(dist.about))).encode()).hexdigest()
    if final.is_file() and json.loads(final.read_text(encoding="utf-8"))["origin"] == origin:
        _console.print(f"[dim]dist: reused ({dist.folder})[/]")
        return final
    dist.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{dist.folder.name}-", dir=dist.folder.parent) as at:
        fresh, old = Path(at) / "new", Path(at) / "old"
        _fill(dist, fresh, origin)
        if dist.folder.exists():
            dist.folder.rename(old)
        fresh.rename(dist.folder)
    _console.print(f"dist: written ({dist.folder})")
    return final


def _fill(dist: Dist, folder: Path, origin: str) -> None:
    folder.mkdir()
    shutil.copy2(dist.runner, folder / RUNNER)
    shutil.copy2(dist.tokenizer, folder / dist.tokenizer.name)
    shutil.copytree(dist.params, folder / "params")
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    table = [
        {"path": p.relative_to(folder).as_posix(), "bytes": p.stat().st_size, "sha256": _hash(p)}
        for p in files
    ]
    manifest = {"schema": SCHEMA, "origin": origin, **dist.about, "files": table}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
