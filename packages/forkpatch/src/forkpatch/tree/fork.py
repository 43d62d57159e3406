# SPDX-License-Identifier: Apache-2.0
"""A fork, and the plan of a patched tree, which is complete before anything is written."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from forkpatch.command import typed
from forkpatch.errors import PatchError, UserError
from forkpatch.git.calls import Git, GitError
from forkpatch.git.objects import Commit, TreeFile, list_tree, read_blobs
from forkpatch.model.lock import Lock, Upstream, read_lock
from forkpatch.model.overlays import check_collisions, read_overlays
from forkpatch.model.patchfile import Patch, load_series
from forkpatch.model.record import RECORD, place_patch, read_record
from forkpatch.model.settings import Settings, load_settings
from forkpatch.model.weave import Weave
from forkpatch.safety import FILE_MODES, check_path
from forkpatch.sources.cache import Cache, Pristine
from forkpatch.sources.obtain import SourceOptions, obtain
from forkpatch.tree.worktree import Inputs, make_inputs, patch_commit

#: Folder, below an upstream's patches, of files that are submitted with a patch and are in no tree.
SUBMIT = "submit"
#: Trailer of a patch: path in upstream's tree of a file that is submitted with the patch.
SUBMIT_WITH = "Submit-With"


@dataclass(frozen=True)
class Fork:
    """A fork: its settings, its lock, and its cache."""

    settings: Settings
    lock: Lock
    cache: Cache

    def patch_folder(self, upstream: Upstream) -> Path:
        """Return the folder of the series for an upstream version."""
        return self.settings.patches / upstream.name / upstream.version

    def overlay_folder(self, upstream: Upstream) -> Path:
        """Return the folder of an upstream's overlays, which all versions share."""
        return self.settings.overlays / upstream.name

    def tree_folder(self, release: str, upstream: Upstream) -> Path:
        """Return the folder of the patched tree of an upstream in a release."""
        return self.settings.work / release / upstream.name

    def relative(self, path: Path) -> str:
        """Return a path relative to the fork's root, if it is below."""
        root = self.settings.root
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)

    def command(self, words: str, release: str) -> str:
        """Return the command of a verb on a release, for messages; the default needs no option."""
        option = "" if release == self.lock.default_release else f" --release {release}"
        return typed(f"{words}{option}")

    def patch_file(self, upstream: Upstream, patch: Patch) -> Path:
        """Return the file of a patch in the series of an upstream version."""
        return self.settings.patches / upstream.name / (patch.home or upstream.version) / patch.name

    def series(self, upstream: Upstream) -> tuple[Patch, ...]:
        """Return the upstream's patches, in order, each at its lines on this version's base.

        Raises:
            PatchError: a patch cannot be read, or the record lacks the lines of a shared patch.
        """
        folder = self.patch_folder(upstream)
        patches = load_series(folder)
        if not any(patch.home for patch in patches):
            return patches
        record, options = read_record(folder), f"{upstream.name} --version {upstream.version}"
        return tuple(
            place_patch(patch, record, folder / RECORD, options) if patch.home else patch
            for patch in patches
        )

    def overlays(self, upstream: Upstream) -> dict[str, TreeFile]:
        """Return the upstream's overlay files, by path in its tree."""
        return read_overlays(self.overlay_folder(upstream))

    def upstream_only(self, name: str) -> dict[str, TreeFile]:
        """Return the files of ``patches/<upstream>/submit``, by path, for upstream's tree alone."""
        return read_overlays(self.settings.patches / name / SUBMIT)

    def submitted_with(self, upstream: Upstream, patch: Patch) -> dict[str, TreeFile]:
        """Return the files that are submitted in a patch's commit, by path.

        The patch's trailers ``Submit-With`` name overlays or files for upstream alone.

        Raises:
            UserError: a named file does not exist, or the patch itself changes the file.
        """
        paths = patch.all_trailers(SUBMIT_WITH)
        known = self.overlays(upstream) | self.upstream_only(upstream.name) if paths else {}
        for path in paths:
            if path not in known or path in patch.paths:
                reason = "the patch itself has it" if path in known else "there is no such file"
                folders = f"{self.settings.patches / upstream.name / SUBMIT} or the overlays"
                raise UserError(
                    f"{patch.name}: {SUBMIT_WITH} {path}: {reason}",
                    remedy=f"name a file of {folders} by its path in upstream's tree",
                )
        return {path: known[path] for path in paths}

    def plan(self, upstream: Upstream, options: SourceOptions | None = None) -> TreePlan:
        """Return the plan of the patched tree of an upstream version.

        Raises:
            ForkError: no source has the version, or its series does not apply.
        """
        return plan_tree(self, upstream, self.pristine(upstream, options))

    def pristine(self, upstream: Upstream, options: SourceOptions | None = None) -> Pristine:
        """Return the pristine tree of an upstream version, from the first source that has it."""
        return obtain(upstream, self.cache, options or SourceOptions())[0]

    def inputs(self, upstream: Upstream, options: Collection[str] = ()) -> Inputs:
        """Return the tree's present inputs: base, patches that ``options`` choose, overlays."""
        patches = [patch for patch in self.series(upstream) if patch.condition.holds(options)]
        return make_inputs(upstream.tree, patches, self.overlays(upstream))


def open_fork(settings: Settings, *, new: bool = False) -> Fork:
    """Read the lock of the fork that ``settings`` describe; a new fork gets an empty lock."""
    lock = Lock(settings.lock, "", {}, {}) if new else read_lock(settings.lock)
    return Fork(settings, lock, Cache(settings.cache))


@dataclass(frozen=True)
class PatchStep:
    """A patch of a planned tree, its commit, and the files before and after the patch, by path."""

    patch: Patch
    commit: Commit
    before: Mapping[str, bytes]
    after: Mapping[str, bytes]


@dataclass(frozen=True)
class TreePlan:
    """A patched tree that is checked and ready to be written.

    Attributes:
        commits: base, overlays (if there are any), then a commit for each patch.
        weave: all patches on the base.
        base: contents of the base's files that patches touch.
    """

    upstream: Upstream
    pristine: Pristine
    patches: tuple[Patch, ...]
    overlays: dict[str, TreeFile]
    commits: tuple[Commit, ...]
    weave: Weave
    base: Mapping[str, bytes]

    @property
    def patch_commits(self) -> tuple[Commit, ...]:
        """The commits of the patches, without base and overlays."""
        return self.commits[len(self.commits) - len(self.patches) :]

    def with_patches(self, kept: Collection[str]) -> TreePlan:
        """Return the plan of the tree with only the patches ``kept``.

        Raises:
            PatchError: a kept patch needs a patch that is left out.
        """
        patches = tuple(patch for patch in self.patches if patch.name in kept)
        commits = list(self.commits[: len(self.commits) - len(self.patches)])
        names: set[str] = set()
        for patch in patches:
            names.add(patch.name)
            after = self.weave.changes(names, paths=patch.paths)
            commits.append(patch_commit(patch, {path: after.get(path) for path in patch.paths}))
        return replace(self, patches=patches, commits=tuple(commits))

    @cached_property
    def steps(self) -> dict[str, PatchStep]:
        """The patches by name, with the files before and after each; a removed file is empty."""
        state, steps = dict(self.base), dict[str, PatchStep]()
        for patch, commit in zip(self.patches, self.patch_commits, strict=True):
            changed = {path: file.data if file else b"" for path, file in commit.changes.items()}
            before, state = state, state | changed
            steps[patch.name] = PatchStep(patch, commit, before, state)
        return steps


def plan_tree(
    fork: Fork, upstream: Upstream, pristine: Pristine, patches: tuple[Patch, ...] | None = None
) -> TreePlan:
    """Apply the series and the overlays to the base, in memory.

    ``patches`` take the place of the series' own.

    Raises:
        ForkError: a patch does not apply exactly, an overlay collides, or a path is unsafe.
    """
    patches = fork.series(upstream) if patches is None else patches
    overlays = fork.overlays(upstream)
    modes, folder = pristine.modes, fork.overlay_folder(upstream)
    check_collisions(overlays, modes, patches, folder, str(upstream))
    base = pristine.read(path for patch in patches for path in patch.paths if path in modes)
    weave = Weave(modes, base.__getitem__)
    commits = [_base_commit(upstream)]
    if overlays:
        commits.append(Commit(b"Overlays\n", changes=overlays))
    for patch in patches:
        _apply_patch(weave, patch, upstream)
        after = weave.changes(paths=patch.paths)
        commits.append(patch_commit(patch, {path: after.get(path) for path in patch.paths}))
    return TreePlan(upstream, pristine, patches, overlays, tuple(commits), weave, base)


def _apply_patch(weave: Weave, patch: Patch, upstream: Upstream) -> None:
    """Apply a patch; if a shared patch fails, say that the record gives its lines."""
    try:
        weave.apply(patch)
    except PatchError as error:
        if not patch.home:
            raise
        raise PatchError(
            f"{error.what}; {RECORD} places this patch of {patch.home}",
            remedy=f"type: {typed(f'record {upstream.name} --version {upstream.version}')}",
        ) from error


def _base_commit(upstream: Upstream) -> Commit:
    """Return the commit of the pristine tree, whose message names its source."""
    where = f"{upstream.url} commit {upstream.commit}"
    if upstream.wheel and not upstream.commit:
        where = f"wheel {upstream.wheel.package} {upstream.wheel.version}"
    message = f"{upstream}\n\n{where}\n"
    return Commit(message.encode(), tree=upstream.tree)


@contextmanager
def fork_at(fork: Fork, revision: str) -> Iterator[Fork]:
    """Yield the fork of another commit, in a temporary folder during the block.

    Raises:
        UserError: the fork is not in a git repository, or the commit is missing or has no fork.
    """
    git, commit, prefix = _find(fork, revision)
    places = fork.settings.lock, fork.settings.patches, fork.settings.overlays
    wanted = [f"{prefix}{name}" for name in ("pyproject.toml", *map(fork.relative, places))]
    listed = list_tree(git, commit, *wanted)
    contents = read_blobs(git, (oid for mode, oid in listed.values() if mode in FILE_MODES))
    with tempfile.TemporaryDirectory(prefix="forkpatch-") as name:
        root = Path(name).resolve()
        for path, (mode, oid) in listed.items():
            if mode in FILE_MODES:
                target = root / check_path(path, revision).removeprefix(prefix)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(contents[oid] or b"")
                target.chmod(int(mode, 8) & 0o777)
        try:
            yield open_fork(load_settings(root))
        except UserError as error:  # replace paths below the temporary folder
            what = error.what.replace(f"{root}/", f"{revision}:").replace(str(root), revision)
            raise UserError(what, remedy=error.remedy) from error


def merge_base(fork: Fork, revision: str) -> str:
    """Return the merge base of a revision and the fork's HEAD.

    Raises:
        UserError: the revision is missing, or has no commit in common with HEAD.
    """
    git, commit, _ = _find(fork, revision)
    bases = git.run("merge-base", "HEAD", commit, ok=(0, 1)).stdout.decode("ascii").split()
    if not bases:
        raise UserError(f"{revision} and HEAD have no commit in common", remedy="fetch the history")
    return bases[0]


def _find(fork: Fork, revision: str) -> tuple[Git, str, str]:
    """Return the repository of the fork, the commit, and the path of the fork's root in it."""
    root = fork.settings.root
    try:
        output = Git().text("-C", str(root), "rev-parse", "--absolute-git-dir", "--show-prefix")
        folder, _, prefix = output.partition("\n")
        git = Git(Path(folder))
        name = f"{revision}^{{commit}}"
        return git, git.text("rev-parse", "--verify", "--end-of-options", name), prefix
    except GitError as error:
        raise UserError(
            f"{root} is not in a git repository that has {revision}",
            remedy="name a branch, tag or commit of the fork's own repository; fetch it first",
        ) from error
