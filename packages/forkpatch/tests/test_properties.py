# SPDX-License-Identifier: Apache-2.0
"""Properties of patches, weaves and exports, on random files and edits."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from forklab import FORMAT, Repo, git, message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forkpatch.errors import PatchError
from forkpatch.git.calls import Git
from forkpatch.git.objects import Commit, TreeFile, write_commits
from forkpatch.model.diffs import split_lines
from forkpatch.model.patchfile import Patch, parse_patch
from forkpatch.model.weave import Weave
from forkpatch.series.mailbox import FORMAT_PATCH, export_commits
from forkpatch.tree.worktree import patch_commit

PATH = "dir/file.txt"
# Few different lines, so that contexts repeat; ends of all kinds.
LINE = st.sampled_from([b"a", b"b", b"same", b"", b"\xff\xfe", b"x\ry", b"-- ", b"From me", b"\t"])
END = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n"])


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """A file's content; the last line may lack its end."""
    lines = draw(st.lists(st.tuples(LINE, END), min_size=1, max_size=14))
    data = b"".join(line + end for line, end in lines)
    return data.rstrip(b"\r\n") or b"z" if draw(st.booleans()) else data


@st.composite
def histories(draw: st.DrawFn) -> list[bytes]:
    """Contents of a file, each made of the one before by a few edits."""
    contents = [draw(texts())]
    for _ in range(draw(st.integers(1, 4))):
        lines = split_lines(contents[-1])
        for _ in range(draw(st.integers(1, 2))):
            at = draw(st.integers(0, len(lines)))
            drop = draw(st.integers(0, 2))
            new = draw(st.lists(st.tuples(LINE, END), max_size=2))
            lines[at : at + drop] = [line + end for line, end in new]
        contents.append(b"".join(lines) or b"kept\n")
    return contents


def export_series(folder: Path, contents: Sequence[bytes]) -> list[bytes]:
    """The patch files of a history, made by git alone."""
    repo = Repo.create(folder / "upstream", {PATH: contents[0], "other": b"o\n"})
    for number, data in enumerate(contents[1:]):
        (repo.path / PATH).write_bytes(data)
        git(repo.path, "commit", "-q", "-a", "--allow-empty", "-m", message(f"Step {number}"))
    commits = git(repo.path, "rev-list", "--reverse", "HEAD", "--", PATH).split()[1:]
    exported = export_commits(repo.path / ".git/objects", commits)
    return [one.data for one in exported]


def parsed(data: Sequence[bytes]) -> list[Patch]:
    return [
        parse_patch(one, f"p{number}.patch")
        for number, one in enumerate(data)
        if b"\ndiff --git " in one
    ]


def woven(base: bytes, patches: Sequence[Patch]) -> Weave:
    weave = Weave({PATH: "100644", "other": "100644"}, lambda _: base)
    for patch in patches:
        weave.apply(patch)
    return weave


def content(weave: Weave, base: bytes, kept: Sequence[str] | None = None) -> bytes:
    file = weave.changes(kept).get(PATH, TreeFile("100644", base))
    assert file is not None
    return file.data


relaxed = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@relaxed
@given(histories())
def test_apply_gives_what_git_committed_and_export_gives_the_series(contents: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        series = export_series(Path(folder), contents)
        patches = parsed(series)
        weave = woven(contents[0], patches)
        assert content(weave, contents[0]) == contents[-1]
        repo = Path(folder) / "upstream"
        base = {PATH: TreeFile("100644", contents[0]), "other": TreeFile("100644", b"o\n")}
        commits = [Commit(b"base\n", changes=base)]
        again = woven(contents[0], [])
        for patch in patches:
            again.apply(patch)
            commits.append(patch_commit(patch, again.changes()))
        ids = write_commits(Git(repo / ".git"), "refs/heads/x", commits)
        exported = export_commits(repo / ".git/objects", ids[1:])
        assert [one.data for one in exported] == [one for one in series if b"\ndiff --git " in one]


@relaxed
@given(histories(), st.integers(1, 3), st.data())
def test_hunk_moved_by_some_lines_never_applies_elsewhere_in_silence(
    contents: list[bytes], shift: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        patches = parsed(export_series(Path(folder), contents))
    moved = data.draw(st.binary(min_size=1, max_size=6)).replace(b"\n", b"") + b"\n"
    base = moved * shift + contents[0]
    weave = Weave({PATH: "100644"}, lambda _: base)
    try:
        for patch in patches:
            weave.apply(patch)
    except PatchError:
        return  # refused, which is right
    # Accepted: then every hunk's lines were at the lines it states, shift or not.
    for patch in patches[:1]:
        lines = split_lines(base)
        for hunk in patch.files[0].hunks:
            assert lines[hunk.first : hunk.first + hunk.old_count] == list(hunk.old)


@relaxed
@given(histories())
def test_leaving_all_out_gives_the_base_and_subsets_keep_their_lines(contents: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        patches = parsed(export_series(Path(folder), contents))
    weave = woven(contents[0], patches)
    names = [patch.name for patch in patches]
    assert content(weave, contents[0], []) == contents[0]
    for name in names:
        gone = {name, *weave.dependents([name])}
        kept = [other for other in names if other not in gone]
        lines = split_lines(content(weave, contents[0], kept))
        # Every line of the subset comes from the base or from a patch that is kept.
        known = set(split_lines(contents[0]))
        for patch in patches:
            if patch.name in kept:
                hunks = (hunk for file in patch.files for hunk in file.hunks)
                known |= {line.data for hunk in hunks for line in hunk.lines if line.kind == "+"}
        assert set(lines) <= known


def test_exports_use_the_options_that_patches_are_made_with() -> None:
    assert set(FORMAT) - {"-N"} <= set(FORMAT_PATCH)
    assert "--no-numbered" in FORMAT_PATCH


@relaxed
@given(histories(), st.integers(0, 3), st.data())
def test_weave_takes_a_patch_whole_or_not_at_all(
    contents: list[bytes], which: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        patches = parsed(export_series(Path(folder), contents))
    if not patches:
        return
    which %= len(patches)
    lines = split_lines(contents[0])
    at = data.draw(st.integers(0, len(lines) - 1))
    base = b"".join([*lines[:at], b"unlike\n", *lines[at + 1 :]])
    weave = Weave({PATH: "100644"}, lambda _: base)
    try:
        for patch in patches[: which + 1]:
            before = content(weave, base)
            weave.apply(patch)
    except PatchError:
        assert content(weave, base) == before
