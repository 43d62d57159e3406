# SPDX-License-Identifier: Apache-2.0
"""Findings of earlier checks, kept in the work folder while nothing changes that they depend on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import forkpatch
from forkpatch.model.lock import Upstream
from forkpatch.tree.fork import Fork
from groundwork.files import atomic_write_json
from groundwork.hashing import digest

_FILE = "checks.json"


class KeptChecks:
    """Findings and notes about the trees of a fork's upstream versions, by a hash of all input."""

    def __init__(self, fork: Fork) -> None:
        self._fork = fork
        self._path = fork.settings.work / _FILE
        self._new: dict[str, Any] = {}
        self._old: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            self._old = dict(json.loads(self._path.read_text("utf-8")))
        grammars = find_spec("tree_sitter")  # its folder changes when a package is installed
        installed = Path(grammars.origin or "").parents[1] if grammars else Path()
        changed = str(installed.stat().st_mtime_ns)
        self._program = digest(Path(forkpatch.__file__).parent, str(installed), changed)

    def key(self, upstream: Upstream, faulty: Collection[str]) -> str:
        """Return the hash of all that the findings about a version depend on.

        ``faulty`` are the files that have findings already.
        """
        settings = self._fork.settings
        folders = (settings.patches / upstream.name, self._fork.overlay_folder(upstream))
        versions = self._fork.lock.versions(upstream.name).values()  # one may excuse another
        cached = [self._fork.cache.find(one.tree) is not None for one in versions]
        facts = (upstream, *versions, cached, settings.combinations, sorted(faulty))
        words = self._program, *map(repr, facts)
        return digest(*words, *(folder for folder in folders if folder.is_dir()))

    def get(self, key: str) -> tuple[list[list[str]], list[str]] | None:
        """Return the findings, each as its texts, and the notes of an earlier check, or None."""
        if key not in self._old:
            return None
        self._new[key] = self._old[key]
        return self._old[key]["findings"], self._old[key]["notes"]

    def put(self, key: str, findings: Iterable[Iterable[str]], notes: Iterable[str]) -> None:
        """Keep the findings and the notes of a check."""
        self._new[key] = {"findings": [list(one) for one in findings], "notes": list(notes)}

    def write(self) -> None:
        """Write what this run found or used; a fork that cannot be written is checked each time."""
        if self._new != self._old:
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                atomic_write_json(self._path, self._new)
