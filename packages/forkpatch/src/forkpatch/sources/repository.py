# SPDX-License-Identifier: Apache-2.0
"""An upstream's files from git: from a repository on this machine, or at a URL.

Both may be incomplete. A repository on this machine is read object by object, so that a partial
clone with the included paths is enough. From a URL only the pinned commit, its folders and the
included files are fetched.

A submodule that the lock names is part of the tree: its files, at its path, from the commit that
the upstream's own commit pins. Its repository is treated as an upstream.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from forkpatch.errors import IntegrityError, SourceError
from forkpatch.git.calls import NETWORK, Git, GitError, init_repository
from forkpatch.git.objects import TreeFile, list_tree, object_ids, stream_blobs, tree_id
from forkpatch.model.lock import WHOLE, Upstream
from forkpatch.safety import GITLINK_MODE
from forkpatch.sources.cache import Cache

PROBE_TIMEOUT = 30.0
FETCH_TIMEOUT = 1800.0


def local_path(place: str) -> Path | None:
    """Return the folder that ``place`` names; None for a URL of another machine."""
    if place.startswith("file://"):
        from urllib.parse import unquote, urlsplit  # noqa: PLC0415 - for this verb only

        return Path(unquote(urlsplit(place).path))
    return None if "://" in place or _is_scp(place) else Path(place).expanduser()


def _is_scp(place: str) -> bool:
    """Return True for ssh's short form, ``host:path``."""
    head, colon, _ = place.partition(":")
    return bool(colon) and "/" not in head and not Path(place).exists()


def open_repository(path: Path) -> Git:
    """Return the git repository at ``path``, bare or a clone's root; else raise SourceError."""
    for folder in (path / ".git", path):
        if (folder / "objects").is_dir() and (folder / "HEAD").is_file():
            return Git(folder.resolve())
    marker = path / ".git"
    if marker.is_file():  # the .git file of a worktree or submodule names the folder
        target = path / os.fsdecode(marker.read_bytes()).removeprefix("gitdir:").strip()
        if target.is_dir():
            return Git(target.resolve())
    raise SourceError(f"{path} is not a git repository")


def local_clones(places: Iterable[str]) -> Iterator[Git]:
    """Yield the repositories of this machine among some places."""
    for path in filter(None, map(local_path, places)):
        with suppress(SourceError):
            yield open_repository(path)


def refs_of(place: str) -> dict[str, str]:
    """Return the commits of HEAD and of all tags of the repository at ``place``, by reference.

    Raises:
        SourceError: the repository cannot be asked.
    """
    path = local_path(place)
    try:
        if path is not None:
            show = ("show-ref", "--head", "--tags", "--dereference")
            out = open_repository(path).run(*show, ok=(0, 1)).stdout  # 1: there is none
        else:
            ask = ("ls-remote", "--", place, "HEAD", "refs/tags/*")
            out = Git().run(*ask, env=NETWORK, timeout=PROBE_TIMEOUT).stdout
    except GitError as error:
        raise SourceError(f"{place}: {error}") from error
    pairs = (line.split() for line in out.decode("utf-8", "surrogateescape").splitlines())
    # The commit of a tag that is an object of its own comes after it, with ^{}.
    return {ref.removesuffix("^{}"): commit for commit, ref in pairs}


def asked(places: Iterable[str], silent: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield place and references of each repository; add reasons of failures to ``silent``."""
    for place in places:
        try:
            yield place, refs_of(place)
        except SourceError as error:
            silent.append(error.what)


#: A repository, and mode and object id of each of its files, by path in the materialised tree.
GitPart = tuple[Git, Mapping[str, tuple[str, str]]]


@dataclass(frozen=True)
class GitTree:
    """A materialised tree whose files are not read yet.

    Attributes:
        parts: its files, from the repositories of the upstream and of submodules.
        left_out: paths of the submodules that are not part of the tree.
    """

    parts: tuple[GitPart, ...]
    left_out: tuple[str, ...]

    def tree_id(self, cache: Cache) -> str:
        """Return the tree id, without reading a file."""
        files = {path: entry for _, part in self.parts for path, entry in part.items()}
        with cache.scratch() as scratch:
            return tree_id(init_repository(scratch / "index.git"), files)

    def files(self) -> Iterator[tuple[str, TreeFile]]:
        """Yield path and content of every file.

        Raises:
            SourceError: a repository lacks a file.
            IntegrityError: a file's content does not match its id.
        """
        for git, files in self.parts:
            contents = stream_blobs(git, [oid for _, oid in files.values()])
            try:
                for (path, (mode, oid)), data in zip(files.items(), contents, strict=True):
                    if data is None:
                        raise SourceError(f"it is partial and lacks the file {path} ({oid})")
                    file = TreeFile(mode, data)
                    if file.blob != oid:
                        raise IntegrityError(
                            f"{git.git_dir}: the file {path} is damaged: it is not {oid}"
                        )
                    yield path, file
            except (GitError, ValueError) as error:  # ValueError of zip: git ended too early
                raise SourceError(f"it is partial and lacks included files: {error}") from error


#: Function that returns the repositories to search for a submodule, given as an upstream.
Places = Callable[[Upstream], Sequence[str]]


def find_tree(
    stack: ExitStack, upstream: Upstream, place: str, cache: Cache, places: Places
) -> GitTree:
    """Return the materialised tree of an upstream in the repository at ``place``.

    ``stack`` removes fetched objects when it closes; ``places`` returns the repositories of a
    submodule.

    Raises:
        SourceError: the repository cannot be reached, or lacks the commit or the included paths;
            or a submodule is in no repository.
    """
    path = local_path(place)
    if path is not None:
        git = open_repository(path)
    else:
        git = init_repository(stack.enter_context(cache.scratch()) / "fetch.git")
        fetch(upstream, place, git)
    selected = _selected(upstream, git)
    links = {name: oid for name, (mode, oid) in selected.items() if mode == GITLINK_MODE}
    files = {name: entry for name, entry in selected.items() if name not in links}
    if not selected:
        raise SourceError(f"commit {upstream.commit} has none of the included paths")
    wanted = {name for name in links if upstream.has_submodule(name)}
    parts: list[GitPart] = [(git, files)]
    left_out = sorted(links.keys() - wanted)
    for name in upstream.submodules:
        if name != "*" and not any(f"{name}/".startswith(f"{link}/") for link in links):
            raise SourceError(f"commit {upstream.commit} has no submodule {name}")
    named = _gitmodules(upstream, git) if wanted else {}
    for name in sorted(wanted):
        inner = _submodule(upstream, name, links[name], named)
        inner_tree = _find_submodule(stack, inner, cache, places, _inside(git, path, name, named))
        parts += ((part, _placed(of, name, upstream)) for part, of in inner_tree.parts)
        left_out += (f"{name}/{other}" for other in inner_tree.left_out)
    return GitTree(tuple(parts), tuple(left_out))


def _selected(upstream: Upstream, git: Git) -> dict[str, tuple[str, str]]:
    """Return mode and id of the included entries, by path; raise SourceError without the commit."""
    try:
        listed = list_tree(git, f"{upstream.commit}^{{tree}}", *upstream.folders)
    except GitError as error:
        raise SourceError(f"it lacks commit {upstream.commit}: {error}") from error
    return {path: entry for path, entry in listed.items() if upstream.selects(path)}


def _gitmodules(upstream: Upstream, git: Git) -> dict[str, tuple[str, str]]:
    """Return name and URL of each submodule of the pinned commit, by path."""
    try:
        text = git.run("cat-file", "blob", f"{upstream.commit}:.gitmodules").stdout
    except GitError as error:
        raise SourceError(f"commit {upstream.commit} has no .gitmodules") from error
    sections: dict[str, dict[str, str]] = {}
    for record in git.fields("config", "--null", "--list", "--file", "-", stdin=text):
        key, _, value = record.partition("\n")
        name, _, what = key.removeprefix("submodule.").rpartition(".")
        sections.setdefault(name, {})[what] = value
    return {
        section["path"]: (name, section["url"])
        for name, section in sections.items()
        if {"path", "url"} <= section.keys()
    }


def _submodule(
    upstream: Upstream, path: str, commit: str, named: Mapping[str, tuple[str, str]]
) -> Upstream:
    """Return the submodule at ``path`` as an upstream."""
    if path not in named:
        raise SourceError(f"the submodule {path} is not in .gitmodules")
    url = named[path][1]
    if url.startswith(("./", "../")):
        scheme, mark, rest = upstream.url.rpartition("://")
        url = scheme + mark + posixpath.normpath(posixpath.join(rest, url))
    if url.startswith("-") or "::" in url:
        raise SourceError(f"the submodule {path} has the URL {url!r}, which is not a plain URL")
    start = f"{path}/"
    inner = tuple(
        item.removeprefix(start) for item in upstream.submodules if item.startswith(start)
    )
    return replace(
        upstream,
        name=f"{upstream.name}/{path}",
        url=url,
        tag="",
        commit=commit,
        include=_below(upstream.include, path),
        exclude=(),
        submodules=("*",) if "*" in upstream.submodules else inner,
        tree="",
        wheel=None,
    )


def _below(include: Sequence[str], path: str) -> tuple[str, ...]:
    """Return the included paths in ``path``, relative to it; ``.`` if all of it is included."""
    if any(top in (WHOLE, path) or path.startswith(f"{top}/") for top in include):
        return (WHOLE,)
    return tuple(top.removeprefix(f"{path}/") for top in include if top.startswith(f"{path}/"))


def _inside(
    git: Git, folder: Path | None, path: str, named: Mapping[str, tuple[str, str]]
) -> list[str]:
    """Return the existing repositories of the submodule at ``path`` in the clone ``folder``."""
    if folder is None or git.git_dir is None or path not in named:
        return []
    folders = (git.git_dir / "modules" / named[path][0], folder / path)
    return [str(item) for item in folders if (item / "HEAD").is_file() or (item / ".git").exists()]


def _find_submodule(
    stack: ExitStack, upstream: Upstream, cache: Cache, places: Places, first: Sequence[str]
) -> GitTree:
    """Return a submodule's tree from the first repository with it: ``first``, then ``places``."""
    reasons = []
    for place in dict.fromkeys((*first, *places(upstream))):
        try:
            return find_tree(stack, upstream, place, cache, places)
        except SourceError as error:
            reasons.append(f"{place}: {error.what}")
    raise SourceError(
        f"the submodule {upstream.name} at {upstream.commit} was not found:"
        f" {'; '.join(reasons) or 'no mirror was named, and this run is offline'};"
        f" a repository that has it: --mirror {upstream.name}=PATH_OR_URL"
    )


def _placed(
    files: Mapping[str, tuple[str, str]], folder: str, upstream: Upstream
) -> dict[str, tuple[str, str]]:
    """Return a submodule's files by path in the outer tree, without those that it excludes."""
    placed = {f"{folder}/{path}": item for path, item in files.items()}
    return {path: one for path, one in placed.items() if upstream.selects(path)}


def fetch(upstream: Upstream, url: str, git: Git) -> None:
    """Fetch the pinned commit without contents, then the included files in a single request.

    Raises:
        SourceError: the repository at ``url`` does not answer, or lacks the commit.
    """
    try:
        git.run("ls-remote", "--quiet", "--", url, "HEAD", env=NETWORK, timeout=PROBE_TIMEOUT)
        for name, value in (("url", url), ("promisor", "true")):
            git.run("config", f"remote.origin.{name}", value)
        _fetch_commit(upstream, git)
        listed = _selected(upstream, git)
        wanted = {oid for mode, oid in listed.values() if mode != GITLINK_MODE}
        if upstream.submodules and (names := list_tree(git, upstream.commit, ".gitmodules")):
            wanted.add(names[".gitmodules"][1])
        if missing := wanted - object_ids(git):
            _fetch_objects(git, sorted(missing), "--filter=blob:none")
    except GitError as error:
        raise SourceError(str(error)) from error


def _fetch_commit(upstream: Upstream, git: Git) -> None:
    """Fetch the pinned commit, by its id or by its tag."""
    shallow = ("--depth=1", "--filter=blob:none")
    try:
        _fetch_objects(git, [upstream.commit], *shallow)
    except GitError:
        # A server may refuse a bare id; the commit of the tag is still checked by its id.
        if not upstream.tag:
            raise
        _fetch_objects(git, [f"refs/tags/{upstream.tag}"], *shallow)


def _fetch_objects(git: Git, wanted: list[str], *options: str) -> None:
    """Fetch objects or references without tags and submodules."""
    command = ("-c", "fetch.negotiationAlgorithm=noop", "fetch", "--quiet", "--no-tags")
    plain = ("--no-write-fetch-head", "--recurse-submodules=no", "--stdin", "origin")
    lines = "".join(f"{name}\n" for name in wanted).encode()
    git.run(*command, *options, *plain, stdin=lines, env=NETWORK, timeout=FETCH_TIMEOUT)
