# SPDX-License-Identifier: Apache-2.0
"""Commits as patch files in git's mailbox format, and a series written with its files.

Git's output depends on the configuration of the user and of the repository. The export therefore
runs in an empty repository that only borrows the objects.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from forkpatch.errors import PatchError, UserError
from forkpatch.git.calls import Git, init_repository
from forkpatch.git.objects import Commit, read_blobs, write_commits
from forkpatch.model.lock import Upstream
from forkpatch.model.mailhead import ending_line, parse_head
from forkpatch.model.patchfile import (
    ALWAYS,
    SERIES,
    SUFFIX,
    Condition,
    Patch,
    SeriesEntry,
    parse_entry,
    parse_patch,
    read_entries,
    series_lines,
    split_patch,
)
from forkpatch.model.record import RECORD
from forkpatch.tree.fork import Fork, TreePlan, plan_tree
from forkpatch.tree.swap import scratch_folder, swap_in
from forkpatch.tree.worktree import NAME_TRAILER
from groundwork.files import naming

FORMAT_PATCH = (
    *("format-patch", "--zero-commit", "--full-index", "--no-signature", "--no-stat"),
    *("--no-numbered", "--numbered-files", "--no-color", "--no-ext-diff", "--no-textconv"),
)
_NAME_LINE = re.compile(rf"^{NAME_TRAILER}: (.+)\n?", re.MULTILINE)
_AUTHOR = re.compile(r"((?:[^<>\0]* )?<[^<>\0]*>) (\d+ [+-]\d{4})")
_MAX_NAME = 60


@dataclass(frozen=True)
class Exported:
    """A patch file as the export writes it.

    Attributes:
        shared: the equal patch of another version, for which no file is written; else None.
        condition: the condition on options under which the patch is applied.
    """

    name: str
    data: bytes
    shared: Patch | None = None
    condition: Condition = ALWAYS

    @property
    def entry(self) -> SeriesEntry:
        """The patch's line of the series."""
        home = self.shared.home if self.shared else ""
        return SeriesEntry(self.name, home, self.condition)

    @cached_property
    def patch(self) -> Patch:
        """The patch of the file; a shared patch is placed at its lines in this version."""
        patch = replace(parse_patch(self.data, self.name), condition=self.condition)
        if self.shared is None:
            return patch
        return replace(self.shared.at(patch.positions), condition=self.condition)


@contextmanager
def neutral_repository(*objects: Path) -> Iterator[Git]:
    """Yield an empty repository without configuration that reads the objects of folders."""
    with tempfile.TemporaryDirectory(prefix="forkpatch-") as folder:
        git = init_repository(Path(folder) / "neutral.git")
        alternates = Path(folder) / "neutral.git/objects/info"
        alternates.mkdir(exist_ok=True)
        text = "".join(f"{path.resolve()}\n" for path in objects)
        (alternates / "alternates").write_bytes(os.fsencode(text))
        yield git


def export_commits(objects: Path, commits: Sequence[str]) -> tuple[Exported, ...]:
    """Return the patch files of a chain of commits.

    Raises:
        UserError: a commit is a merge, has no parent, is empty, or has a message that a patch file
            cannot hold; or two commits carry the same file name.
    """
    if not commits:
        return ()
    with neutral_repository(objects) as git:
        chain = {name[:12]: read_commit(git, name) for name in commits}
        for label, (_, parents) in chain.items():
            if parents != 1:
                raise UserError(
                    f"commit {label} {'is a merge' if parents else 'has no parent'}",
                    remedy="make the history a straight line: git rebase",
                )
        base = Commit(b"Base\n", tree=git.text("rev-parse", f"{commits[0]}^^{{tree}}"))
        return _exported(git, [base, *(commit for commit, _ in chain.values())], list(chain))


def export_new(commits: Sequence[Commit], objects: Path | None = None) -> tuple[Exported, ...]:
    """Return the patch files of commits that are not written yet.

    The first commit is the base; ``objects`` is the folder of the objects that the commits name.
    """
    with neutral_repository(*([objects] if objects else [])) as git:
        messages = (commit.message.decode("utf-8", "replace") for commit in commits[1:])
        return _exported(git, commits, [repr(text.partition("\n")[0]) for text in messages])


def read_commit(git: Git, name: str) -> tuple[Commit, int]:
    """Return a commit with its message in UTF-8 and its whole tree, and the number of its parents.

    Raises:
        UserError: git cannot write the author again.
    """
    raw = read_blobs(git, [name])[name] or b""
    named = re.search(rb"\nencoding ([^\n]+)(?=\n)", raw[: raw.find(b"\n\n") + 1])
    encoding = named[1].decode("ascii", "replace") if named else "utf-8"
    head, _, message = _decoded(raw, encoding).partition("\n\n")
    lines = dict(line.partition(" ")[::2] for line in reversed(head.split("\n")))
    author = lines.get("author", "")
    who = _AUTHOR.fullmatch(author)
    if who is None:
        what = "is not NAME <ADDRESS> TIME ZONE"
        what = "has a date before 1970" if "> -" in author else what
        what = "holds a NUL" if "\0" in author else what
        raise UserError(
            f"commit {name[:12]}: its author {author!r} {what}, which git cannot write",
            remedy="correct it: git commit --amend --author 'NAME <ADDRESS>' --date DATE, or"
            " git rebase -i",
        )
    commit = Commit(message.encode(), who[1].encode(), who[2].encode(), tree=lines["tree"])
    return commit, head.count("\nparent ")


def _decoded(data: bytes, encoding: str = "utf-8") -> str:
    """Decode text of a commit; if it is not in ``encoding``, as Latin-1, a character a byte.

    Git takes a commit for UTF-8 unless its header names another encoding.
    """
    try:
        return data.decode(encoding)
    except (UnicodeDecodeError, LookupError):
        return data.decode("latin-1")


def _exported(git: Git, commits: Sequence[Commit], labels: Sequence[str]) -> tuple[Exported, ...]:
    """Return the patch files of a chain of commits after a base; ``labels`` are for messages."""
    assert git.git_dir is not None
    entries: dict[str, SeriesEntry] = {}
    clean = [commits[0]]
    for commit, label in zip(commits[1:], labels, strict=True):
        message, author = _decoded(commit.message), _decoded(commit.author).encode()
        entry = _file_name(message, entries.keys(), label)
        entries[entry.name] = entry
        text = _NAME_LINE.sub("", message).rstrip("\n") + "\n"
        clean.append(replace(commit, message=text.encode(), author=author))
    ids = write_commits(git, "refs/heads/new", clean, brief=True)
    trees = git.text("log", "--reverse", "--format=%T", ids[-1]).split()
    for label, (before, after) in zip(labels, pairwise(trees), strict=True):
        if before == after:
            raise UserError(f"commit {label} changes nothing", remedy="drop it")
    folder = git.git_dir / "patches"
    git.run(*FORMAT_PATCH, "-o", str(folder), f"{ids[0]}..{ids[-1]}")
    exported = tuple(
        Exported(entry.name, (folder / str(number)).read_bytes(), condition=entry.condition)
        for number, entry in enumerate(entries.values(), 1)
    )
    for commit, label, patch in zip(clean[1:], labels, exported, strict=True):
        _check_whole(patch, commit, label)
    return exported


def _check_whole(patch: Exported, commit: Commit, label: str) -> None:
    """Raise UserError unless a patch file gives back the commit's author and message.

    White space at line ends, and the line ends of the subject, may differ.
    """
    try:
        author, date, parsed = parse_head(split_patch(patch.data, patch.name)[0], patch.name)
    except PatchError:
        author = date = parsed = ""
    stated = b"%s %s" % (commit.author, commit.date)
    written = f"{author} {date}"
    if parsed and stated.decode() != written:
        raise UserError(
            f"commit {label}: its author {stated.decode()!r} would become {written!r}",
            remedy="correct it: git commit --amend --author 'NAME <ADDRESS>', or git rebase -i",
        )
    message = commit.message.decode()
    wanted = _settled(message)
    if _settled(parsed) == wanted:
        return
    line = ending_line(message)
    why = f"the line {line!r} ends a message" if line else "its message does not stay as it is"
    raise UserError(
        f"commit {label} ({message.partition(chr(10))[0]}): in a patch file {why}",
        remedy="indent or change it: git commit --amend, or git rebase -i",
    )


def _settled(message: str) -> str:
    """Return a message as ``git format-patch`` lays it out: its subject on a single line."""
    lines = "\n".join(line.rstrip() for line in message.splitlines()).strip("\n")
    subject, _, body = lines.partition("\n\n")
    return " ".join(subject.split()) + "\n" + body.strip("\n")


def _file_name(message: str, taken: Collection[str], commit: str) -> SeriesEntry:
    """Return the file name and condition that a commit carries, else a name from its subject."""
    carried = _NAME_LINE.findall(message)
    if carried:
        entry = parse_entry(carried[-1].strip(), f"{NAME_TRAILER} of commit {commit}:")
        if entry.name in taken:
            raise UserError(
                f"two commits carry the name {entry.name}",
                remedy=f"join them (git rebase -i), or drop the line {NAME_TRAILER} of one",
            )
        return SeriesEntry(entry.name, condition=entry.condition)
    return SeriesEntry(new_name(message.partition("\n")[0], taken))


def new_name(subject: str, taken: Iterable[str]) -> str:
    """Return a short file name from the words of a subject that is not in ``taken``."""
    words = re.sub(r"\[[^\]]*\]", "", subject).lower()
    stem = re.sub(r"[^a-z0-9]+", "-", words).strip("-")[:_MAX_NAME].rstrip("-") or "patch"
    name, count, known = f"{stem}{SUFFIX}", 1, set(taken)
    while name in known:
        count += 1
        name = f"{stem}-{count}{SUFFIX}"
    return name


def format_series(entries: Sequence[SeriesEntry], old: str) -> str:
    """Return the text of a series; an entry that is in the text ``old`` keeps its line there."""
    lines = [*series_lines(old, Path(SERIES))]
    rows = [(entry.name if entry else "", line) for line, entry in lines]
    known = {str(entry): line.rstrip("\n") + "\n" for line, entry in lines}
    return relisted(rows, [(entry.name, known.get(str(entry), f"{entry}\n")) for entry in entries])


def relisted(old: Iterable[tuple[str, str]], new: Iterable[tuple[str, str]]) -> str:
    """Return the text of a list of patches; comments stay above the same patch, or go with it.

    Each line has the name of its patch, empty for a comment, and its text.
    """
    above, pending = dict[str, str](), ""
    for name, text in old:
        pending += "" if name else text
        if name:
            above[name], pending = pending, ""
    return "".join(above.get(name, "") + text for name, text in new) + pending


def write_series(
    folder: Path,
    patches: Sequence[Exported],
    record: str,
    *,
    extra: Callable[[Path], None] | None = None,
) -> None:
    """Write a series, its files and its record to ``folder``, atomically, unless nothing changed.

    An empty ``record`` is not written; ``extra`` writes more files into the new folder.
    """
    if not series_changes(folder, patches, record):
        return
    with scratch_folder(folder) as scratch:
        if folder.is_dir():
            old = {*_own_files(folder), SERIES, RECORD}
            for path in folder.iterdir():
                if path.name not in old:
                    target = scratch / path.name
                    if path.is_dir() and not path.is_symlink():
                        shutil.copytree(path, target, symlinks=True)
                    else:
                        shutil.copy2(path, target, follow_symlinks=False)
        with naming(folder):
            for name, data in _files(folder, patches, record).items():
                (scratch / name).write_bytes(data)
            if extra is not None:
                extra(scratch)
        swap_in(scratch, folder)


def series_changes(folder: Path, patches: Sequence[Exported], record: str) -> tuple[str, ...]:
    """Return a line for each file of a series that writing would change."""
    contents = _files(folder, patches, record)
    shared = {entry.name: entry for entry in read_entries(folder) if entry.home}
    changes = []
    for name, data in contents.items():
        path = folder / name
        if name in shared:
            changes.append(f"{name}: new: its lines differ from those of {shared[name]} now")
        elif not path.is_file():
            changes.append(f"{name}: new")
        elif path.read_bytes() != data:
            changes.append(f"{name}: changed")
    changes += [f"{name}: removed" for name in _own_files(folder) if name not in contents]
    return tuple(changes)


def _own_files(folder: Path) -> tuple[str, ...]:
    """Return the patch files of a series that lie in its own folder."""
    return tuple(entry.name for entry in read_entries(folder) if not entry.home)


def _files(folder: Path, patches: Sequence[Exported], record: str) -> dict[str, bytes]:
    """Return the contents of the files of a series, by name."""
    old = ""
    with contextlib.suppress(OSError):
        old = (folder / SERIES).read_text("utf-8")
    files = {patch.name: patch.data for patch in patches if patch.shared is None}
    files[SERIES] = format_series([patch.entry for patch in patches], old).encode()
    if record:
        files[RECORD] = record.encode()
    return files


def planned(fork: Fork, upstream: Upstream, patches: Sequence[Exported]) -> TreePlan:
    """Return the plan of the tree that these patch files give."""
    pristine = fork.pristine(upstream)
    return plan_tree(fork, upstream, pristine, tuple(item.patch for item in patches))
