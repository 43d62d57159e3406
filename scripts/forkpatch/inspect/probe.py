# SPDX-License-Identifier: Apache-2.0
"""The verb ``probe``: on which versions of the upstream would each patch still apply?

Nothing is checked out. Contents are read from the history by blob id, each once, and a version
whose files are the same as those of another gives the same answer without another look.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from forkpatch.git.calls import Git, GitError
from forkpatch.git.objects import read_blobs
from forkpatch.inspect.drift import Record, changed_symbols
from forkpatch.inspect.symbols import MODULE, bare_name, outline
from forkpatch.model.fork import Plan
from forkpatch.model.patchfile import FileDiff, Hunk, Patch
from forkpatch.model.weave import split_lines
from forkpatch.rebase.upstreamed import NewBase, already_there
from forkpatch.sources.history import Culprit

Contents = Mapping[str, bytes | None]


class Fit(StrEnum):
    """How a patch fits a version."""

    APPLIES = "applies"
    CHANGED = "body changed"
    MISPLACED = "misplaced"
    CONFLICT = "conflict"
    UPSTREAM = "already upstream"
    MISSING = "file missing"
    UNKNOWN = "not known"


#: Fits with which the patch can be put in as it is.
FITTING = (Fit.APPLIES, Fit.CHANGED)


@dataclass(frozen=True)
class Verdict:
    """How one patch fits one version; ``detail`` names the place that decides."""

    patch: str
    fit: Fit
    detail: str = ""


@dataclass(frozen=True)
class Break:
    """The first upstream commit at which a patch stops applying.

    Attributes:
        again: whether it applies once more at a later commit.
    """

    patch: str
    commit: str
    subject: str
    fit: Fit
    again: bool


@dataclass(frozen=True)
class Row:
    """How each patch fits one version; ``commit`` is empty for a wheel."""

    version: str
    commit: str
    patches: tuple[Verdict, ...]


@dataclass(frozen=True)
class ProbeReport:
    """The applicability map of a series.

    Attributes:
        base: the version that the series is for.
        commits: how many upstream commits after it touch the series' files; all were looked at.
    """

    upstream: str
    base: str
    versions: tuple[Row, ...]
    breaks: tuple[Break, ...]
    commits: int


@dataclass(frozen=True)
class Series:
    """A series prepared for probing: each patch with its files before and after it."""

    plan: Plan
    record: Record
    steps: tuple[tuple[Patch, Mapping[str, bytes], Mapping[str, bytes]], ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """Every upstream file that the series touches."""
        return tuple(sorted(self.plan.base))


def prepare(plan: Plan, record: Record) -> Series:
    """The series of a planned tree, ready for probing."""
    state = dict(plan.base)
    steps = []
    for patch, commit in zip(plan.patches, plan.patch_commits, strict=True):
        before = {path: state[path] for path in patch.paths if path in state}
        for path, file in commit.changes.items():
            if file is None:
                state.pop(path, None)
            else:
                state[path] = file.data
        after = {path: state[path] for path in patch.paths if path in state}
        steps.append((patch, before, after))
    return Series(plan, record, tuple(steps))


def probe(series: Series, contents: Contents) -> tuple[Verdict, ...]:
    """How each patch fits a version, those before it that fit being in.

    Args:
        series: the series.
        contents: the version's files by path; None for a file it has not, no entry for one
            whose content is not to be had.
    """
    state = dict(contents)
    verdicts = []
    for patch, before, after in series.steps:
        verdict, changed = _fit(series, patch, before, after, contents, state)
        state.update(changed)
        verdicts.append(verdict)
    return tuple(verdicts)


def _fit(
    series: Series,
    patch: Patch,
    before: Mapping[str, bytes],
    after: Mapping[str, bytes],
    contents: Contents,
    state: Contents,
) -> tuple[Verdict, dict[str, bytes | None]]:
    """The verdict on one patch, and what it makes of the files."""
    for path in patch.paths:
        if path in series.plan.base and path not in contents:
            return Verdict(patch.name, Fit.UNKNOWN, path), {}
    base = NewBase(state.get, lambda _word: (), {})
    there = already_there(patch, before, after, base)
    if there:
        return Verdict(patch.name, Fit.UPSTREAM, "; ".join(there)), {}
    changed: dict[str, bytes | None] = {}
    for diff in patch.files:
        if diff.old is None:
            made = after.get(diff.new or "")
            if state.get(diff.new or "") is not None:
                same = state.get(diff.new or "") == made
                fit = Fit.UPSTREAM if same else Fit.CONFLICT
                return Verdict(patch.name, fit, f"{diff.new} is there already"), {}
            changed[diff.new or ""] = made
            continue
        data = state.get(diff.old)
        if data is None:
            return Verdict(patch.name, Fit.MISSING, diff.old), {}
        fit, result = _fit_file(diff, before[diff.old], after.get(diff.new or "", b""), data)
        if result is None:
            return Verdict(patch.name, fit, diff.old), {}
        if diff.new != diff.old:
            changed[diff.old] = None
        if diff.new is not None:
            changed[diff.new] = result
    return _same_bodies(series, patch, contents), changed


def _same_bodies(series: Series, patch: Patch, contents: Contents) -> Verdict:
    """Whether the symbols of a patch that fits say what they said on its own base."""
    for place in series.record.patches[patch.name]:
        data = contents.get(place.path)
        if not place.body or data is None:
            continue
        if outline(place.path, data).body(place.symbol) != place.body:
            return Verdict(patch.name, Fit.CHANGED, f"{place.path}: {place.symbol}")
    return Verdict(patch.name, Fit.APPLIES)


def _fit_file(diff: FileDiff, before: bytes, after: bytes, data: bytes) -> tuple[Fit, bytes | None]:
    """Put the hunks of one file in where their lines are in their own symbols."""
    lines = split_lines(data)
    symbols = changed_symbols(diff, before, after)
    for hunk in reversed(diff.hunks):
        found = _occurrences(lines, list(hunk.old), hunk)
        if not found:
            return Fit.CONFLICT, None
        at = _in_own_symbol(diff.old or "", lines, hunk, found, symbols)
        if at is None:
            return Fit.MISPLACED, None
        new = [line.data for line in hunk.lines if line.kind != "-"]
        lines[at : at + len(hunk.old)] = new
    return Fit.APPLIES, b"".join(lines)


def _occurrences(lines: list[bytes], block: list[bytes], hunk: Hunk) -> list[int]:
    """Where the block is, the place nearest to the stated one first."""
    span = len(block)
    found = [at for at in range(len(lines) - span + 1) if lines[at : at + span] == block]
    return sorted(found, key=lambda at: abs(at - hunk.first))


def _in_own_symbol(
    path: str, lines: list[bytes], hunk: Hunk, found: list[int], symbols: Sequence[str]
) -> int | None:
    """The first of the places where the changed lines are in one of the patch's symbols."""
    outlined = outline(path, b"".join(lines))
    wanted = {bare_name(symbol) for symbol in symbols}
    offset = next(at for at, line in enumerate(hunk.lines) if line.kind != " ")
    for at in found:
        around = {
            bare_name(outlined.at(min(max(at + shift, 1), max(len(lines), 1))).name)
            for shift in (offset, offset + 1)
        }
        if around & wanted or MODULE in wanted:
            return at
    return None


@dataclass(frozen=True)
class Snapshot:
    """The files of one version: blob ids by path, empty for a file that it has not."""

    label: str
    commit: str
    blobs: tuple[tuple[str, str], ...]


def snapshots(
    git: Git, versions: Sequence[tuple[str, str]], paths: Sequence[str]
) -> tuple[Snapshot, ...]:
    """The blob ids of ``paths`` at many commits, in one call.

    Args:
        git: the repository.
        versions: label and commit of each.
        paths: the files.
    """
    folders = {path: path.rpartition("/")[0] for path in paths}
    asked = [(commit, folder) for _, commit in versions for folder in set(folders.values())]
    text = "".join(f"{commit}:{folder}\n" for commit, folder in asked)
    command = ("cat-file", "--batch-check=%(objectname) %(objecttype)")
    out = git.run(*command, stdin=text.encode("utf-8", "surrogateescape")).stdout
    # A tree is asked, not the file itself: a partial mirror has every tree, but not every file.
    trees = {
        place: line.split(b" ")[0].decode("ascii") if line.endswith(b" tree") else ""
        for place, line in zip(asked, out.split(b"\n")[:-1], strict=True)
    }
    raw = read_blobs(git, filter(None, trees.values()))
    entries = {oid: dict(_entries(data or b"", len(oid) // 2)) for oid, data in raw.items()}
    return tuple(
        Snapshot(
            label,
            commit,
            tuple(
                (path, entries.get(trees[commit, folders[path]], {}).get(path.split("/")[-1], ""))
                for path in paths
            ),
        )
        for label, commit in versions
    )


def _entries(tree: bytes, size: int) -> Iterator[tuple[str, str]]:
    """Name and id of the plain files in a raw tree object; an id has ``size`` bytes."""
    at = 0
    while at < len(tree):
        end = tree.index(b"\0", at)
        mode, _, name = tree[at:end].partition(b" ")
        at = end + 1 + size
        if mode.startswith(b"100"):
            yield name.decode("utf-8", "surrogateescape"), tree[end + 1 : at].hex()


def read_what_is_there(git: Git, oids: Iterable[str]) -> dict[str, bytes | None]:
    """The contents of blobs; None for one that a partial mirror would have to fetch."""
    wanted = set(oids)
    try:
        return read_blobs(git, wanted)
    except GitError:
        listed = git.run("cat-file", "--batch-all-objects", "--batch-check=%(objectname)").stdout
        here = wanted & set(listed.decode("ascii").split())
        return dict.fromkeys(wanted) | read_blobs(git, here)


class Prober:
    """Probes many versions, each combination of contents once."""

    def __init__(self, series: Series, git: Git, versions: Sequence[Snapshot]) -> None:
        self._series = series
        ids = (oid for one in versions for _, oid in one.blobs if oid)
        self._blobs = read_what_is_there(git, ids)
        self._known: dict[tuple[tuple[str, str], ...], tuple[Verdict, ...]] = {}

    def verdicts(self, version: Snapshot) -> tuple[Verdict, ...]:
        """How each patch fits a version."""
        if version.blobs not in self._known:
            self._known[version.blobs] = probe(self._series, self.contents(version))
        return self._known[version.blobs]

    def contents(self, version: Snapshot) -> dict[str, bytes | None]:
        """The files of a version, of those that are to be had; None for one it has not."""
        return dict(self._contents(version))

    def _contents(self, version: Snapshot) -> Iterator[tuple[str, bytes | None]]:
        for path, oid in version.blobs:
            if not oid:
                yield path, None
            elif (data := self._blobs[oid]) is not None:
                yield path, data


def breaks(
    prober: Prober, commits: Sequence[Snapshot], subjects: Mapping[str, Culprit]
) -> tuple[Break, ...]:
    """For each patch that stops applying, the first commit at which it does.

    Every commit is looked at, since a patch that stopped may apply again later.
    """
    fits: dict[str, list[tuple[Snapshot, Fit]]] = {}
    for commit in commits:
        for verdict in prober.verdicts(commit):
            fits.setdefault(verdict.patch, []).append((commit, verdict.fit))
    found = []
    for patch, history in fits.items():
        bad = [at for at, (_, fit) in enumerate(history) if fit not in (*FITTING, Fit.UNKNOWN)]
        if bad:
            commit, fit = history[bad[0]]
            again = any(later in FITTING for _, later in history[bad[0] :])
            subject = subjects[commit.commit].subject
            found.append(Break(patch, commit.commit, subject, fit, again))
    return tuple(found)
