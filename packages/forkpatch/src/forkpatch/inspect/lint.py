# SPDX-License-Identifier: Apache-2.0
"""The verb ``check``: mistakes in patches and overlays that are found without a build.

The findings about a version's tree stay in the work folder while nothing changes that they depend
on.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import Any

import forkpatch
from forkpatch.command import typed
from forkpatch.errors import ForkError, PatchError, SourceError
from forkpatch.git.calls import user_environment
from forkpatch.inspect.replacements import mismatches, not_compared
from forkpatch.model.diffs import FileDiff
from forkpatch.model.lock import Upstream
from forkpatch.model.mailhead import ending_line
from forkpatch.model.overlays import SHADOWS, is_overlay
from forkpatch.model.patchfile import (
    SERIES,
    SUFFIX,
    Patch,
    parse_patch,
    patch_bytes,
    read_entries,
    unlisted,
)
from forkpatch.model.record import RECORD
from forkpatch.model.settings import Settings
from forkpatch.model.stored import plain, read_stored
from forkpatch.safety import alike
from forkpatch.series.mailbox import export_new
from forkpatch.series.shared import cached_tree, record_version, says_same
from forkpatch.tree.apply import chosen_patches, combinations
from forkpatch.tree.fork import SUBMIT, SUBMIT_WITH, Fork, TreePlan
from groundwork.files import atomic_write_json
from groundwork.hashing import digest

STATUS_FORMS = "Pending | Submitted [url] | Backport [commit] | Inappropriate [reason]"
_FORMS = {
    "Upstream-Status": STATUS_FORMS,
    "Test": "Test: path::function, a test that fails without this patch",
}
_STATUS = re.compile(
    r"Pending|Submitted \[https?://\S+\]|Backport \[[0-9a-f]{7,40}\]|Inappropriate \[[^\]]+\]"
)
_READ = "correct the file so that it can be read"
_FILE = "checks.json"


@dataclass(frozen=True)
class LintFinding:
    """A mistake, its place and its fix.

    Attributes:
        where: ``file:line``; the file is relative to the fork's root.
    """

    where: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}\n    fix: {self.fix}"


@dataclass(frozen=True)
class LintReport:
    """All findings, and notes on skipped checks.

    Attributes:
        unchecked: the upstream versions whose trees were not available for the check.
    """

    findings: tuple[LintFinding, ...]
    notes: tuple[str, ...]
    unchecked: tuple[str, ...] = ()


def check_fork(fork: Fork) -> LintReport:
    """Check every upstream version of the lock."""
    findings: list[LintFinding] = []
    notes: list[str] = []
    unchecked: list[str] = []
    known, program = _kept_checks(fork), _program()
    kept: dict[str, LintReport] = {}
    for name, versions in fork.lock.upstreams.items():
        findings += [*_check_upstream_only(fork, name), *_check_ignored(fork, name)]
        for upstream in versions.values():
            file_findings = list(_check_files(fork, upstream))
            findings += file_findings
            # A file that cannot be read is reported once, not again for the tree.
            if any(finding.fix == _READ for finding in file_findings):
                continue
            faulty = {finding.where.partition(":")[0] for finding in file_findings}
            key = _key(fork, upstream, faulty, program)
            check = known.get(key) or _check_tree(fork, upstream, faulty)
            findings += check.findings
            notes += check.notes
            unchecked += check.unchecked
            kept |= {} if check.unchecked else {key: check}
    if kept != known:
        with contextlib.suppress(OSError):  # a fork that cannot be written is checked each time
            path = fork.settings.work / _FILE
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_json(path, plain(kept))
    # A mistake in a file that versions share is found once per version.
    return LintReport(tuple(dict.fromkeys(findings)), tuple(notes), tuple(unchecked))


def _kept_checks(fork: Fork) -> Mapping[str, LintReport]:
    """Return the reports on trees that earlier runs kept, by :func:`_key`."""
    kind: Any = Mapping[str, LintReport]
    try:
        kept: Mapping[str, LintReport] = read_stored(kind, fork.settings.work / _FILE)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return kept


def _program() -> str:
    """Return a hash of forkpatch's code, and of the state of the installed packages."""
    grammars = find_spec("tree_sitter")  # its folder changes when a package is installed
    installed = Path(grammars.origin or "").parents[1] if grammars else Path()
    changed = str(installed.stat().st_mtime_ns)
    return digest(Path(forkpatch.__file__).parent, str(installed), changed)


def _key(fork: Fork, upstream: Upstream, faulty: Set[str], program: str) -> str:
    """Return the hash of all that the findings about a version's tree depend on.

    ``faulty`` are the files that have findings already.
    """
    folders = (fork.settings.patches / upstream.name, fork.overlay_folder(upstream))
    versions = fork.lock.versions(upstream.name).values()  # one may excuse another
    cached = [fork.cache.find(one.tree) is not None for one in versions]
    facts = (upstream, *versions, cached, fork.settings.combinations, sorted(faulty))
    return digest(program, *map(repr, facts), *(folder for folder in folders if folder.is_dir()))


def _check_ignored(fork: Fork, name: str) -> Iterator[LintFinding]:
    """Find an upstream's patches and overlays that git ignores, as the user has configured it."""
    root = fork.settings.root
    patches, overlays = fork.settings.patches / name, fork.settings.overlays / name
    files = [
        fork.relative(path)
        for folder in (patches, overlays)
        for path in sorted(folder.rglob("*"))
        if path == overlays / SHADOWS or is_overlay(path.relative_to(folder).as_posix())
        if path.is_file() and not (folder == patches and path.name.endswith("~"))  # of an editor
    ]
    done = subprocess.run(
        ["git", "-C", str(root), "check-ignore", "--stdin", "-z"],
        input=os.fsencode("".join(f"{file}\0" for file in files)),
        capture_output=True,
        check=False,
        env=user_environment(),
    )
    for file in os.fsdecode(done.stdout).split("\0")[:-1]:  # none outside of a repository
        yield LintFinding(
            file,
            "git ignores it, so that a commit of the fork would lack it",
            f"add it: git add -f {shlex.quote(file)}; or correct .gitignore",
        )


def _check_upstream_only(fork: Fork, name: str) -> Iterator[LintFinding]:
    """Find files for submission with a patch that no patch names."""
    folder = fork.settings.patches / name
    texts = [path.read_bytes() for path in folder.glob(f"*/*{SUFFIX}") if path.is_file()]
    for path in fork.upstream_only(name):
        line = f"{SUBMIT_WITH}: {path}"
        if not any(line.encode() in text.split(b"\n") for text in texts):
            yield LintFinding(
                fork.relative(folder / SUBMIT / path),
                "no patch names it",
                f"add the trailer {line} to the patch that it goes upstream with, or delete it",
            )


def _check_files(fork: Fork, upstream: Upstream) -> Iterator[LintFinding]:
    """Find mistakes in the series and patch files of an upstream version."""
    folder = fork.patch_folder(upstream)
    if not folder.is_dir():
        return
    series = folder / SERIES
    try:
        entries = read_entries(folder)
    except ForkError as error:
        yield _unreadable(series, fork, error, error.remedy or _READ)
        return
    names = [entry.name for entry in entries if not entry.home]
    for path in unlisted(folder):
        yield LintFinding(
            fork.relative(path),
            f"{SERIES} does not list it",
            f"add {path.name} to {fork.relative(series)}, or delete it",
        )
    for name in names:
        path = folder / name
        where = fork.relative(path)
        try:
            data = patch_bytes(path)
            patch = parse_patch(data, path.name, str(path))
        except ForkError as error:
            yield _unreadable(path, fork, error, _READ)
            continue
        for header, what, fix in _check_head(patch, fork.settings):
            yield LintFinding(f"{where}:{_line_of(data, header)}", what, fix)
        try:
            fork.submitted_with(upstream, patch)
        except ForkError as error:
            line = _line_of(data, SUBMIT_WITH)
            yield LintFinding(f"{where}:{line}", error.what, error.remedy or _READ)
        # Line by line: a line may have a hundred megabytes, and should be copied only once.
        empty = {number for number, text in enumerate(BytesIO(data), 1) if text == b"\n"}
        for diff in patch.files:
            in_wheel = upstream.wheel is not None
            for line, what, fix in _check_diff(diff, empty, in_wheel=in_wheel):
                yield LintFinding(f"{where}:{line}", what, fix)


def _export() -> str:
    """Return the fix that writes a patch file again."""
    return f"write it again from its commit: {typed('export')}"


def _unreadable(path: Path, fork: Fork, error: ForkError, fix: str) -> LintFinding:
    """Return the finding of an error about a file, with the file named only once."""
    place = re.match(rf"{re.escape(str(path))}(:\d+)?: ?", error.what)
    line = place[1] or "" if place else ""
    what = error.what[place.end() :] if place else error.what
    return LintFinding(f"{fork.relative(path)}{line}", what, fix)


def _check_head(patch: Patch, settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Yield the header or trailer of each mistake in a message, the mistake, and its fix.

    The header is empty for a trailer that is missing.
    """
    require = settings.require
    if "subject" in require and len(patch.subject) > 72:
        what = f"the subject has {len(patch.subject)} characters"
        yield "Subject", what, "use at most 72, and put the rest below"
    paragraphs = patch.message.strip().split("\n\n")[1:]
    if patch.trailers:
        paragraphs = paragraphs[:-1]
    if "reason" in require and not "".join(paragraphs).strip():
        what = "the message does not say why the patch exists"
        yield "Subject", what, "add a paragraph for somebody who meets it in two years"
    if ending_line(patch.message) is not None:
        what = "a line of the message would be taken for the diff or for another mail"
        yield "Subject", what, "indent the line"
    for name in sorted(require - {"subject", "reason"}):
        if patch.trailer(name) is None:
            yield "", f"no {name} trailer", f"add one: {_FORMS.get(name, f'{name}: VALUE')}"
    status, test = patch.trailer("Upstream-Status"), patch.trailer("Test")
    if status is not None and not _STATUS.fullmatch(status):
        what = f"Upstream-Status {status!r} is not one of the forms"
        yield "Upstream-Status", what, f"write one of: {STATUS_FORMS}"
    if test is not None and (reason := _missing_test(test, settings.root)):
        yield "Test", f"Test {test!r}: {reason}", "correct the id"
    if patch.trailer("Touches") is not None:
        yield "Touches", "Touches is derived, never written by hand", "remove the trailer"


def _line_of(data: bytes, header: str) -> int:
    """Return the line, from 1, of a header or trailer, 1 without it; for "", the message's last."""
    if not header:
        return data[: data.index(b"diff --git ")].count(b"\n")
    match = re.search(rb"^" + header.encode() + rb":", data, re.MULTILINE | re.IGNORECASE)
    return data[: match.start()].count(b"\n") + 1 if match else 1


def _missing_test(test: str, root: Path) -> str:
    """Return why the test of an id does not exist, else empty; only Python files are read."""
    file, *names = test.partition("[")[0].split("::")
    path = root / file
    if not path.is_file():
        return f"there is no file {file}"
    if path.suffix != ".py":
        return ""
    try:
        node: ast.AST = ast.parse(path.read_bytes())
    except SyntaxError as error:
        return f"{file} cannot be read: {error}"
    for name in names:
        inner = [
            child
            for child in ast.walk(node)
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and child.name == name
        ]
        if not inner:
            return f"{file} has no {name}"
        node = inner[0]
    return ""


def _check_diff(
    diff: FileDiff, empty: Set[int], *, in_wheel: bool
) -> Iterator[tuple[int, str, str]]:
    """Yield the line of each mistake in a file's diff, the mistake, and its fix."""
    path = diff.new or diff.old
    if diff.binary and diff.old is None:
        what = f"{path} is a new binary file, which a patch cannot show"
        yield diff.patch_line, what, "put the file into the overlays"
    if in_wheel and None not in (diff.old, diff.new) and diff.old_mode != diff.new_mode:
        what = f"the mode of {path} changes from {diff.old_mode} to {diff.new_mode}"
        yield diff.patch_line, what, "leave modes alone: the upstream's wheel cannot hold them"
    for hunk in diff.hunks:
        for number, (kind, data) in enumerate(hunk.lines, hunk.patch_line + 1):
            if kind != "+" and data not in (b"", b"\n"):
                continue
            text = data.rstrip(b"\r\n")
            if kind == "+" and text != text.rstrip(b" \t"):
                yield number, f"a line added to {path} ends in blanks", "remove them"
            elif kind == "+" and b" \t" in text[: len(text) - len(text.lstrip(b" \t"))]:
                what = f"a line added to {path} is indented by blanks and then a tab"
                yield number, what, "indent it as its neighbours are"
            elif kind == " " and number in empty:
                yield number, "an empty context line lost its leading blank", _export()


def _check_tree(fork: Fork, upstream: Upstream, faulty: Set[str]) -> LintReport:
    """Find mistakes that need upstream files: application, bytes, overlays, record.

    Bytes of a file in ``faulty``, which has a finding already, are not compared. A version whose
    tree is not cached is unchecked, with a note.
    """
    series = fork.patch_folder(upstream) / SERIES
    try:
        done = record_version(fork, upstream, partial(cached_tree, fork), check=True)
    except SourceError as error:
        fetch = typed(f"record {upstream.name} --version {upstream.version} --check")
        note = (
            f"{upstream}: {error.what}, so patches, overlays and {RECORD} were not compared"
            f" with it; to fetch it: {fetch}"
        )
        return LintReport((), (note,), (str(upstream),))
    except ForkError as error:
        return LintReport((_unreadable(series, fork, error, error.remedy or "see above"),), ())
    findings: list[LintFinding] = []
    try:
        findings += _check_bytes(fork, done.plan, faulty)
    except ForkError as error:
        findings.append(_unreadable(series, fork, error, error.remedy or "see above"))
    notes = [f"{upstream}: {note}" for note in not_compared(done.plan)]
    findings += _check_combinations(fork, done.plan, notes)
    for file, line, what, fix in mismatches(fork, done.plan):
        findings.append(LintFinding(f"{fork.relative(file)}:{line}", what, fix))
    findings += _check_case(fork, done.plan)
    if not done.same:
        where, what = fork.relative(series.with_name(RECORD)), f"{RECORD} is out of date"
        fix = typed(f"record {upstream.name} --version {upstream.version}")
        findings.append(LintFinding(where, what, fix))
    return LintReport(tuple(findings), tuple(notes))


def _check_case(fork: Fork, plan: TreePlan) -> Iterator[LintFinding]:
    """Find files of the fork whose paths differ from another path in case only."""
    listed = plan.pristine.listed
    changed = plan.weave.changes()
    files = {path: plan.overlays.get(path) or changed[path] for path in (*plan.overlays, *changed)}
    paths = dict.fromkeys((*listed, *files))
    groups = alike(path for path in paths if path not in files or files[path])
    for path in (item for group in groups.values() for item in group if item not in listed):
        other = next(item for item in groups[path.casefold()] if item != path)
        if path in plan.overlays:
            file = fork.overlay_folder(plan.upstream) / path
        else:
            patch = next(item for item in plan.patches if path in item.paths)
            file = fork.patch_file(plan.upstream, patch)
        yield LintFinding(
            fork.relative(file),
            f"{path} and {other} differ in case only",
            "give it another name: a file system that ignores case holds one of them",
        )


def _check_combinations(fork: Fork, plan: TreePlan, notes: list[str]) -> Iterator[LintFinding]:
    """Find combinations of options whose patches do not apply; note untested combinations."""
    series = fork.patch_folder(plan.upstream) / SERIES
    named = fork.settings.combinations
    options = sorted({item for patch in plan.patches for item in patch.condition.options})
    if len(options) > 1 and not named:
        notes.append(
            f"{plan.upstream}: each of {', '.join(options)} was tried by itself, and no"
            ' combination; name those that you build: with = ["ONE OTHER"] of [tool.forkpatch]'
        )
    for chosen in combinations(plan.patches, named):
        try:
            chosen_patches(plan.weave, plan.patches, chosen)
        except PatchError as error:
            yield _unreadable(series, fork, error, error.remedy)


def _check_bytes(fork: Fork, plan: TreePlan, faulty: Set[str]) -> Iterator[LintFinding]:
    """Find patch files that differ from an export of their commits.

    They differ after an edit by hand. The next export would then change files that its user did not
    touch.
    """
    commits = (plan.commits[0], *plan.patch_commits)
    exported = export_new(commits, plan.pristine.git.objects)
    folder = fork.patch_folder(plan.upstream)
    for patch, written in zip(plan.patches, exported, strict=True):
        path = folder / patch.name
        where = fork.relative(path)
        if patch.home or where in faulty:
            continue
        data = patch_bytes(path)
        if data != written.data and not says_same(written, data):
            pairs = zip_longest(data.split(b"\n"), written.data.split(b"\n"))
            line = next(number for number, (old, new) in enumerate(pairs, 1) if old != new)
            yield LintFinding(f"{where}:{line}", "an export would change this line", _export())
