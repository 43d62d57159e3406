# SPDX-License-Identifier: Apache-2.0
"""An upstream's files from git: a repository on this machine, or one at a URL.

Both may lack what is not asked for. A repository on this machine is read object by object, so
a partial clone will do when it has the included paths; from a URL nothing but the pinned
commit, its folders and the included files are fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from forkpatch.errors import IntegrityError, SourceError
from forkpatch.git.calls import NETWORK, Git, GitError, init_repository
from forkpatch.git.objects import TreeFile, list_tree, read_blobs
from forkpatch.model.lock import Upstream
from forkpatch.safety import GITLINK_MODE
from forkpatch.sources.cache import Cache

PROBE_TIMEOUT = 30.0
FETCH_TIMEOUT = 1800.0


def local_path(place: str) -> Path | None:
    """The folder that ``place`` names, None when it is a URL of another machine."""
    if place.startswith("file://"):
        return Path(url2pathname(urlsplit(place).path))
    return None if "://" in place or _is_scp(place) else Path(place).expanduser()


def _is_scp(place: str) -> bool:
    """True for ssh's short form, ``host:path``."""
    head, colon, _ = place.partition(":")
    return bool(colon) and "/" not in head and not Path(place).exists()


def git_files(upstream: Upstream, place: str, cache: Cache) -> Iterator[tuple[str, TreeFile]]:
    """The files of the materialised tree, from the repository at ``place``.

    Raises:
        SourceError: it cannot be reached, or lacks the commit or an included file.
    """
    path = local_path(place)
    if path is not None:
        yield from _read(upstream, open_repository(path))
        return
    with cache.scratch() as scratch:
        git = init_repository(scratch / "fetch.git")
        fetch(upstream, place, git)
        yield from _read(upstream, git)


def open_repository(path: Path) -> Git:
    """The git repository at ``path``: bare, or a clone's root."""
    for folder in (path / ".git", path):
        if (folder / "objects").is_dir() and (folder / "HEAD").is_file():
            return Git(folder.resolve())
    marker = path / ".git"
    if marker.is_file():  # a worktree or submodule: its .git names the folder
        target = (path / marker.read_text("utf-8").removeprefix("gitdir:").strip()).resolve()
        if target.is_dir():
            return Git(target)
    raise SourceError(f"{path} is no git repository")


def commit_of_tag(place: str, tag: str) -> str:
    """The commit that ``tag`` names in the repository at ``place``."""
    path = local_path(place)
    try:
        if path is not None:
            return open_repository(path).text(
                "rev-parse", "--verify", f"refs/tags/{tag}^{{commit}}"
            )
        refs = (f"refs/tags/{tag}", f"refs/tags/{tag}^{{}}")
        command = ("ls-remote", "--exit-code", "--", place, *refs)
        out = Git().run(*command, env=NETWORK, timeout=PROBE_TIMEOUT).stdout.decode("utf-8")
    except GitError as error:
        raise SourceError(f"{place}: no tag {tag}: {error}") from error
    # The peeled line, ^{}, comes last when the tag is an object of its own.
    return out.splitlines()[-1].split("\t")[0]


def _read(upstream: Upstream, git: Git) -> Iterator[tuple[str, TreeFile]]:
    try:
        listed = list_tree(git, f"{upstream.commit}^{{tree}}", *upstream.include)
    except GitError as error:
        raise SourceError(f"it lacks commit {upstream.commit}: {error}") from error
    chosen = {
        path: (mode, oid)
        for path, (mode, oid) in listed.items()
        if upstream.selects(path) and mode != GITLINK_MODE
    }
    if not chosen:
        raise SourceError(f"commit {upstream.commit} has none of the included paths")
    try:
        blobs = read_blobs(git, (oid for _, oid in chosen.values()))
    except GitError as error:
        raise SourceError(f"it is partial and lacks included files: {error}") from error
    for path, (mode, oid) in chosen.items():
        data = blobs[oid]
        if data is None:
            raise SourceError(f"it is partial and lacks the file {path} ({oid})")
        file = TreeFile(mode, data)
        if file.blob != oid:
            raise IntegrityError(f"{git.git_dir}: the file {path} is damaged: it is not {oid}")
        yield path, file


def fetch(upstream: Upstream, url: str, git: Git) -> None:
    """Fetch the pinned commit without contents, then the included files in one request."""
    try:
        git.run("ls-remote", "--quiet", "--", url, "HEAD", env=NETWORK, timeout=PROBE_TIMEOUT)
        for name, value in (("url", url), ("promisor", "true")):
            git.run("config", f"remote.origin.{name}", value)
        _fetch_commit(upstream, git)
        listed = list_tree(git, f"{upstream.commit}^{{tree}}", *upstream.include)
        wanted = {oid for path, (_, oid) in listed.items() if upstream.selects(path)}
        missing = _missing(git, wanted)
        if missing:
            _fetch_objects(git, sorted(missing), "--filter=blob:none")
    except GitError as error:
        raise SourceError(str(error)) from error


def _fetch_commit(upstream: Upstream, git: Git) -> None:
    shallow = ("--depth=1", "--filter=blob:none")
    try:
        _fetch_objects(git, [upstream.commit], *shallow)
    except GitError:
        # A server may refuse a bare id; what the tag gives is still checked by its id.
        if not upstream.tag:
            raise
        _fetch_objects(git, [f"refs/tags/{upstream.tag}"], *shallow)


def _fetch_objects(git: Git, wanted: list[str], *options: str) -> None:
    command = ("-c", "fetch.negotiationAlgorithm=noop", "fetch", "--quiet", "--no-tags")
    plain = ("--no-write-fetch-head", "--recurse-submodules=no", "--stdin", "origin")
    lines = "".join(f"{name}\n" for name in wanted).encode()
    git.run(*command, *options, *plain, stdin=lines, env=NETWORK, timeout=FETCH_TIMEOUT)


def _missing(git: Git, wanted: set[str]) -> set[str]:
    """The objects that are not here yet; asking git about one of them would fetch it."""
    here = git.run("cat-file", "--batch-all-objects", "--batch-check=%(objectname)").stdout
    return wanted - set(here.decode("ascii").split())
