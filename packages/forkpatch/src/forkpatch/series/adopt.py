# SPDX-License-Identifier: Apache-2.0
"""The verb ``adopt``: a branch of an existing fork becomes a series and overlays.

The commits since the pinned version become patches, in order, with author, date and message. A file
that the branch adds becomes an overlay, with its content at the branch's tip. At the end, the tree
that series and overlays give is compared with the branch's tree, file by file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from forkpatch.command import typed
from forkpatch.errors import IntegrityError, SourceError, UserError
from forkpatch.git.calls import NETWORK, Git, GitError, init_repository
from forkpatch.git.objects import (
    COMMITTER,
    Commit,
    TreeFile,
    changed_files,
    list_tree,
    read_blobs,
)
from forkpatch.model.lock import Upstream
from forkpatch.model.mailhead import made_whole
from forkpatch.model.overlays import is_overlay
from forkpatch.model.record import format_record
from forkpatch.safety import FILE_MODES, GITLINK_MODE, check_path
from forkpatch.series.mailbox import (
    export_commits,
    neutral_repository,
    planned,
    read_commit,
    write_series,
)
from forkpatch.sources.obtain import SourceOptions
from forkpatch.sources.repository import FETCH_TIMEOUT, local_path, open_repository
from forkpatch.tree.drift import record_of
from forkpatch.tree.fork import Fork
from forkpatch.tree.swap import scratch_folder
from forkpatch.tree.worktree import build_repository
from groundwork.files import atomic_path

_TIP = "refs/forkpatch/tip"
_GONE = "0" * 6
_MERGES = b"Resolutions of merges\n\nWhat the branch's merges changed beyond the commits.\n"


@dataclass(frozen=True)
class AdoptReport:
    """Result of an adoption.

    Attributes:
        patches: the names of the patches, in order.
        overlays: the commits that made each overlay, as ``<id> <subject>``, by path.
        left_out: the reason for each commit that gave no patch.
        indented: the commits with a message line that would end the message in a patch file; that
            line is indented by a blank.
    """

    upstream: str
    version: str
    folder: Path
    patches: tuple[str, ...]
    overlays: Mapping[str, tuple[str, ...]]
    left_out: Mapping[str, str]
    indented: tuple[str, ...]


@dataclass(frozen=True)
class _Step:
    """A commit of the branch, and its changed files as (mode, blob id)."""

    label: str
    commit: Commit
    changes: Mapping[str, tuple[str, str]]


def adopt(
    fork: Fork,
    name: str,
    version: str | None,
    place: str,
    branch: str,
    options: SourceOptions,
    *,
    with_overlays: bool = True,
    leave_out: bool = False,
    squash: str | None = None,
) -> AdoptReport:
    """Write a branch as the series and overlays of an upstream version.

    Args:
        fork: the fork.
        name: name of the upstream.
        version: version that the branch is based on; None: the nearest pinned version in its
            history.
        place: repository of the branch, a folder or a URL.
        branch: the branch, tag or commit.
        options: where the upstream may come from.
        with_overlays: True to make overlays of new files.
        leave_out: True to leave out changes to files outside of the included paths.
        squash: subject of a single patch that holds all changes; None: a patch per commit.

    Raises:
        UserError: the version has a series, the branch contains no pinned version, a change cannot
            be kept, or the commits conflict without their merges.
    """
    with _repository(place, branch) as git:
        upstream = _base(fork, name, version, git, branch)
        target = fork.patch_folder(upstream)
        if target.exists():
            raise UserError(f"{target} exists", remedy="remove it, or adopt to another version")
        pristine = fork.pristine(upstream, options)
        base = list_tree(pristine.git, pristine.tree)
        whole = _changes(git, upstream.commit, _TIP)
        outside = sorted(path for path in whole if not upstream.selects(path))
        if outside and not leave_out:
            raise UserError(
                f"{branch} changes files that are not in the tree of {upstream}:"
                f" {', '.join(outside[:5])}{' …' if len(outside) > 5 else ''}",
                remedy="add them to include of the lock (without that key it is the whole tree);"
                " or leave such changes out: --leave-out",
            )
        _check_kinds(whole, branch)
        steps = list(_steps(git, upstream, squash))
        added = _added(git, upstream, whole, base) if with_overlays else {}
        overlays = {path: _file(git, whole[path]) for path in added}
        _check_overlays(fork, upstream, overlays)
        labels = {
            path: tuple(step.label for step in steps if path in step.changes) for path in added
        }
        left_out: dict[str, str] = {}
        indented: list[str] = []
        commits = [Commit(f"{upstream}\n".encode(), tree=upstream.tree)]
        for step in steps:
            kept = {path: entry for path, entry in step.changes.items() if path not in added}
            kept = {path: entry for path, entry in kept.items() if upstream.selects(path)}
            if kept:
                commits.append(_commit(git, step, kept))
                indented += [step.label] if commits[-1].message != step.commit.message else []
            else:
                left_out[step.label] = _reason(step, upstream)
        with scratch_folder(target) as scratch:
            _, ids = build_repository(scratch, pristine, commits)
            patches = export_commits(scratch / ".git/objects", ids[1:])
        plan = planned(fork, upstream, patches)
        files = {**plan.weave.changes(), **overlays}
        _compare(files, {path: file for path, file in whole.items() if upstream.selects(path)})
        for path, file in overlays.items():
            target_file = fork.overlay_folder(upstream) / path
            with atomic_path(target_file) as new:
                new.write_bytes(file.data)
            target_file.chmod(0o755 if file.mode == FILE_MODES[1] else 0o644)
        plan = replace(plan, overlays=fork.overlays(upstream))
        write_series(target, patches, format_record(record_of(fork, plan)))
    names = tuple(patch.name for patch in patches)
    return AdoptReport(name, upstream.version, target, names, labels, left_out, tuple(indented))


@contextmanager
def _repository(place: str, branch: str) -> Iterator[Git]:
    """Yield a temporary repository that has the branch under _TIP."""
    path = local_path(place)
    objects = Path("/nonexistent")
    command = ["fetch", "--quiet", "--no-tags", "--", place, f"{branch}:{_TIP}"]
    with ExitStack() as stack:
        try:
            if path is not None:
                source = open_repository(path)
                spec = ("--verify", "--end-of-options", f"{branch}^{{commit}}")
                command = ["update-ref", _TIP, source.text("rev-parse", *spec)]
                objects = source.objects
            git = stack.enter_context(neutral_repository(objects))
            git.run(*command, env=NETWORK, timeout=FETCH_TIMEOUT)
        except (GitError, SourceError) as error:
            raise UserError(
                f"{place}: {branch}: {error.what}",
                remedy="name a git repository (a folder or a URL) and one of its branches",
            ) from error
        yield git


def _base(fork: Fork, name: str, version: str | None, git: Git, branch: str) -> Upstream:
    """Return the nearest pinned version, or ``version``, whose commit the branch contains."""
    versions = fork.lock.versions(name)
    wanted = [fork.lock.upstream(name, version)] if version else list(versions.values())
    candidates = {}
    for upstream in wanted:
        if upstream.commit and git.is_ancestor(upstream.commit, _TIP):
            count = git.text("rev-list", "--count", f"{upstream.commit}..{_TIP}")
            candidates[int(count), upstream.version] = upstream
    if not candidates:
        names = ", ".join(item.version for item in wanted)
        raise UserError(
            f"{branch} contains the commit of no pinned version of {name} ({names})",
            remedy="pin the version that it was made from:"
            f" {typed(f'lock --add {name}=VERSION')}; git describe --tags {branch} may tell which",
        )
    return candidates[min(candidates)]


def _changes(git: Git, old: str, new: str) -> dict[str, tuple[str, str]]:
    """Return mode and blob id of each file that differs; ``000000`` for a removed file."""
    return {path: (mode, oid) for path, (_, mode, _, oid) in changed_files(git, old, new).items()}


def _check_kinds(changes: Mapping[str, tuple[str, str]], branch: str) -> None:
    """Raise UserError for an unsafe path or a changed submodule."""
    for path, (mode, _) in changes.items():
        check_path(path, branch)
        if mode == GITLINK_MODE:
            raise UserError(
                f"{branch} changes the submodule {path}",
                remedy="put upstream's commit of it back on the branch, and carry its changes as"
                " a fork of that repository, or as patches (submodules in the lock)",
            )


def _steps(git: Git, upstream: Upstream, squash: str | None) -> Iterator[_Step]:
    """Yield the branch's commits since the base as a straight line; as one with ``squash``."""
    base = upstream.commit
    if squash is not None:
        whole = replace(read_commit(git, _TIP)[0], message=f"{squash}\n".encode())
        yield _Step(squash, whole, _changes(git, base, _TIP))
        return
    span = f"{base}..{_TIP}"
    commits = git.text("rev-list", "--reverse", "--topo-order", "--no-merges", span).split()
    if git.text("rev-list", "--count", "--merges", span) != "0":
        yield from _straightened(git, base, commits)
        return
    for commit in commits:
        yield _Step(*_labelled(git, commit), _changes(git, f"{commit}^", commit))


def _labelled(git: Git, commit: str) -> tuple[str, Commit]:
    """Return a label for messages, and a commit of the branch."""
    return git.text("show", "--no-patch", "--format=%h %s", commit), read_commit(git, commit)[0]


def _straightened(git: Git, base: str, commits: Sequence[str]) -> Iterator[_Step]:
    """Yield a branch's commits, each picked onto the one before, then the rest of its merges."""
    assert git.git_dir is not None
    folder = git.git_dir.parent / "straight"
    objects = {"GIT_OBJECT_DIRECTORY": str(git.git_dir / "objects")}
    work = replace(init_repository(folder / ".git", folder), environment=objects)
    work.run("update-ref", "HEAD", base)
    work.run("reset", "-q", "--hard", base)
    pick = ("cherry-pick", "--allow-empty", "--keep-redundant-commits", "--strategy=ort")
    for commit in commits:
        before = work.text("rev-parse", "HEAD")
        try:
            work.run(*pick, commit, env=COMMITTER)
        except GitError as error:
            label = _labelled(git, commit)[0]
            raise UserError(
                f"the branch has merges, and {label} has conflicts without them",
                remedy="make the history a straight line on the pinned version (git rebase), then"
                " adopt; or take all changes as one patch: --squash SUBJECT",
            ) from error
        yield _Step(*_labelled(git, commit), _changes(work, before, "HEAD"))
    rest = _changes(work, "HEAD", git.text("rev-parse", _TIP))
    if rest:
        yield _Step("the branch's merges", Commit(_MERGES), rest)


def _added(
    git: Git,
    upstream: Upstream,
    whole: Mapping[str, tuple[str, str]],
    base: Mapping[str, tuple[str, str]],
) -> set[str]:
    """Return the files that the branch adds as overlays, without renamed files."""
    command = ("diff-tree", "-r", "-z", "-M", "--diff-filter=R", "--name-only", "--no-commit-id")
    renamed = set(git.fields(*command, upstream.commit, _TIP))
    folders = {f"{path}/" for path in base}
    return {
        path
        for path, (mode, _) in whole.items()
        if mode in FILE_MODES
        and path not in base
        and path not in renamed
        and upstream.selects(path)
        and is_overlay(path)
        and not any(path.startswith(folder) for folder in folders)
    }


def _file(git: Git, entry: tuple[str, str]) -> TreeFile:
    """Return a file of a repository by mode and blob id."""
    mode, oid = entry
    data = read_blobs(git, [oid])[oid]
    if data is None:
        raise SourceError(f"the repository is partial and lacks the file {oid}")
    return TreeFile(mode, data)


def _commit(git: Git, step: _Step, changes: Mapping[str, tuple[str, str]]) -> Commit:
    files = {
        path: None if entry[0] == _GONE else _file(git, entry) for path, entry in changes.items()
    }
    message = made_whole(step.commit.message.decode()).encode()
    return replace(step.commit, message=message, changes=files, tree="")


def _reason(step: _Step, upstream: Upstream) -> str:
    """Return why a commit gives no patch."""
    if not step.changes:
        return "it changes nothing"
    if all(upstream.selects(path) for path in step.changes):
        return "it is in the overlays"
    return f"outside of the tree of {upstream}: {', '.join(sorted(step.changes))}"


def _check_overlays(fork: Fork, upstream: Upstream, files: Mapping[str, TreeFile]) -> None:
    """Raise UserError when an existing overlay differs from the branch's file."""
    known = fork.overlays(upstream)
    for path, file in files.items():
        if path in known and known[path] != file:
            raise UserError(
                f"overlay {fork.overlay_folder(upstream) / path} differs from the branch's file",
                remedy="make them alike, or keep new files in patches: --no-overlays",
            )


def _compare(files: Mapping[str, TreeFile | None], wanted: Mapping[str, tuple[str, str]]) -> None:
    """Raise IntegrityError unless series and overlays give the files of the branch."""
    have = {path: (file.mode, file.blob) if file else None for path, file in files.items()}
    want = {path: None if mode == _GONE else (mode, oid) for path, (mode, oid) in wanted.items()}
    if differing := sorted(path for path in have | want if have.get(path) != want.get(path)):
        raise IntegrityError(
            f"the series and overlays would not give the branch's {', '.join(differing[:5])};"
            " nothing was written"
        )
