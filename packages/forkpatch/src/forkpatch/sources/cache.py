# SPDX-License-Identifier: Apache-2.0
"""Cache of pristine trees, wheels and mirrors, shared between runs and clones.

A pristine tree is a bare repository named by its tree id, ``trees/<id>.git``. One rename puts the
complete, checked repository there, so that a repository of that name is always usable.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from forkpatch.errors import IntegrityError
from forkpatch.git.calls import Git, GitError, init_repository
from forkpatch.git.objects import Commit, TreeFile, list_tree, read_blobs, write_commits
from forkpatch.model.stored import read_stored
from forkpatch.output import warn
from forkpatch.safety import is_object_id
from groundwork.files import atomic_write, atomic_write_json, remove_scratch, sync_tree
from groundwork.hashing import digest, sha256_of
from groundwork.locks import locked

PRISTINE = "refs/forkpatch/pristine"
_ORIGINS = "forkpatch-origins.json"
_VERIFIED = "forkpatch-verified"
_LOCK = ".lock"
_ABANDONED = 24 * 3600.0  # seconds after which a scratch folder is removed


@dataclass(frozen=True)
class Pristine:
    """An upstream's materialised tree in the cache.

    Attributes:
        git: the bare repository that holds only this tree.
        tree: tree id.
        origins: the sources that gave this tree.
    """

    git: Git
    tree: str
    origins: tuple[str, ...]

    @cached_property
    def listed(self) -> dict[str, tuple[str, str]]:
        """Mode and object id of each file, by path."""
        return list_tree(self.git, self.tree)

    @property
    def modes(self) -> dict[str, str]:
        """Mode of each file, by path."""
        return {path: mode for path, (mode, _) in self.listed.items()}

    def data(self, path: str) -> bytes:
        """Return the content of a file; raise KeyError if the tree lacks it."""
        oid = self.listed[path][1]
        return read_blobs(self.git, [oid])[oid] or b""

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Return contents of files by path, without missing files."""
        ids = {path: self.listed[path][1] for path in paths if path in self.listed}
        blobs = read_blobs(self.git, ids.values())
        return {path: blobs[oid] or b"" for path, oid in ids.items()}


@dataclass(frozen=True)
class Cache:
    """The cache folder.

    Attributes:
        verified: pristine trees that this run verified, by id.
    """

    root: Path
    verified: dict[str, Pristine] = field(default_factory=dict, compare=False)

    @property
    def mirrors_file(self) -> Path:
        """File with the mirrors that the user named."""
        return self.root / "mirrors.json"

    def find(self, tree: str) -> Pristine | None:
        """Return the verified tree with this id; None if it is missing, or damaged and removed."""
        folder = self._folder(tree)
        if not tree or not folder.is_dir():
            return None
        if tree in self.verified:
            return self.verified[tree]
        git = Git(folder)
        try:
            self._verify(git, tree)
        except GitError:
            # The next source makes the tree again, under the same name.
            warn(f"the cached tree {tree} is damaged, and is made again")
            shutil.rmtree(folder, ignore_errors=True)
            return None
        self.verified[tree] = Pristine(git, tree, self._origins(tree))
        return self.verified[tree]

    def _verify(self, git: Git, tree: str) -> None:
        """Verify a tree's packs unless a run did before; raise GitError if one is damaged."""
        folder = self._folder(tree)
        packs, state = _packs(folder), _state(folder)
        if (folder / _VERIFIED).is_file() and (folder / _VERIFIED).read_bytes() == state.encode():
            return
        git.run("cat-file", "-e", f"{tree}^{{tree}}")
        git.run("verify-pack", "--", *(str(path) for path in packs if path.suffix == ".idx"))
        with contextlib.suppress(OSError):  # a cache that cannot be written is verified each time
            atomic_write(folder / _VERIFIED, state)

    def store(self, files: Iterable[tuple[str, TreeFile]], origin: str, expected: str) -> Pristine:
        """Write a tree, check its id, and keep it.

        ``origin`` names the source; ``expected`` is the tree id of the files; empty if unknown.

        Raises:
            IntegrityError: the files give another tree.
        """
        with self.scratch() as scratch:
            git = init_repository(scratch / "tree.git")
            commit = Commit(b"Pristine tree\n", files=files)
            write_commits(git, PRISTINE, [commit])
            tree = git.text("rev-parse", "--verify", f"{PRISTINE}^{{tree}}")
            if expected and tree != expected:
                raise IntegrityError(
                    f"the {origin} gives the tree {tree}, but the lock pins {expected}"
                )
            self._folder(tree).parent.mkdir(parents=True, exist_ok=True)
            # Another process may have stored the same tree meanwhile, with the same bytes.
            with contextlib.suppress(OSError):
                # Git has hashed all that it wrote.
                (scratch / "tree.git" / _VERIFIED).write_text(_state(scratch / "tree.git"))
                sync_tree(scratch / "tree.git")
                (scratch / "tree.git").rename(self._folder(tree))
        with self._locked():
            origins = tuple(sorted({*self._origins(tree), origin}))
            atomic_write_json(self._folder(tree) / _ORIGINS, list(origins))
        return Pristine(Git(self._folder(tree)), tree, origins)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from changing the small files of the cache meanwhile."""
        self.root.mkdir(parents=True, exist_ok=True)
        with locked(self.root / _LOCK, str(self.root)):
            yield

    def mirrors(self) -> dict[str, tuple[str, ...]]:
        """Return the remembered mirrors, by upstream, newest first."""
        return dict(_stored(Mapping[str, tuple[str, ...]], self.mirrors_file) or {})

    def remember(self, mirrors: Mapping[str, str]) -> None:
        """Remember mirrors for later runs, the newest first."""
        if not mirrors:
            return
        with self._locked():
            known = self.mirrors()
            for name, place in mirrors.items():
                known[name] = tuple(dict.fromkeys((place, *known.get(name, ()))))
            atomic_write_json(self.mirrors_file, known)

    def seen(self, name: str) -> str:
        """Return the tree id noted for ``name``; empty without a note."""
        tree = self._notes().get(name, "")
        return tree if is_object_id(tree) else ""  # it names a folder of the cache

    def note(self, name: str, tree: str) -> None:
        """Note that ``name``, a version that no lock pins, has this tree."""
        with self._locked():
            atomic_write_json(self._notes_file, {**self._notes(), name: tree})

    @property
    def _notes_file(self) -> Path:
        return self.root / "seen.json"

    def _notes(self) -> dict[str, str]:
        return dict(_stored(Mapping[str, str], self._notes_file) or {})

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a folder on the cache's file system, which is removed afterwards."""
        parent = self.root / "scratch"
        parent.mkdir(parents=True, exist_ok=True)
        remove_scratch(self.root, below="", age=_ABANDONED)
        for old in parent.iterdir():  # leftovers of killed runs
            if time.time() - old.stat().st_mtime > _ABANDONED:
                shutil.rmtree(old, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(dir=parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def wheel(self, sha256: str) -> Path | None:
        """Return the wheel file with this hash; None without it. A damaged file is removed."""
        folder = self.root / "wheels" / sha256
        path = next(iter(folder.glob("*.whl")), None)
        if path is None or sha256_of(path) == sha256:
            return path
        shutil.rmtree(folder, ignore_errors=True)
        warn(f"{path.name} is damaged in the cache: it is removed, and fetched again")
        return None

    def keep_wheel(self, path: Path, sha256: str) -> Path:
        """Move a verified wheel file into the cache; return its new path."""
        folder = self.root / "wheels" / sha256
        folder.parent.mkdir(parents=True, exist_ok=True)
        with self.scratch() as scratch:
            (scratch / "wheel").mkdir()
            shutil.move(path, scratch / "wheel" / path.name)
            with contextlib.suppress(OSError):
                (scratch / "wheel").rename(folder)
        return folder / path.name

    def _folder(self, tree: str) -> Path:
        return self.root / "trees" / f"{tree}.git"

    def _origins(self, tree: str) -> tuple[str, ...]:
        """Return the sources that gave a tree."""
        return tuple(_stored(tuple[str, ...], self._folder(tree) / _ORIGINS) or ())


def _stored(kind: Any, path: Path) -> Any:
    """Return the value of type ``kind`` in a file of the cache; None if missing or damaged."""
    try:
        return read_stored(kind, path)
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _packs(folder: Path) -> list[Path]:
    """Return the pack files of a repository."""
    return sorted((folder / "objects/pack").glob("*"))


def _state(folder: Path) -> str:
    """Return a hash that changes when a pack of a repository is written, replaced or moved."""
    facts = [
        (path.name, info.st_size, info.st_ino, info.st_ctime_ns)
        for path in _packs(folder)
        for info in (path.stat(),)
    ]
    return digest(repr(facts))
