# SPDX-License-Identifier: Apache-2.0
"""Commits to patch files and back, without a byte of difference."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from forklab import CORE, FILES, ForkLab, core, git, message

from forkpatch.model.patchfile import read_entries, read_patch

CORE_PATH = "python/calc/core.py"


@pytest.fixture
def two(lab: ForkLab) -> ForkLab:
    """A fork with two patches, applied."""
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn sub")
    lab.change(
        "ends.patch",
        {
            CORE_PATH: core(sub="b - a", mul="0"),
            "python/calc/dos.py": b"A = 1\r\nB = 9\r\nC = 3\r\n",
            "python/calc/tail.py": b"X = 1\nY = 3",
        },
        subject="Ünïcode, äöü and a rather long subject that has to be folded when mailed",
    )
    lab.ok("record")
    lab.ok("apply")
    return lab


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names(lab: ForkLab) -> list[str]:
    return [entry.name for entry in read_entries(lab.patches)]


def test_edit_says_that_git_has_no_name_for_commits(
    two: ForkLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "gitconfig"
    settings.write_text("[user]\nuseConfigOnly = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    assert "config user.name NAME" in two.ok("edit", "calc").out
    with monkeypatch.context() as variables:
        variables.setenv("GIT_AUTHOR_NAME", "Ada")
        variables.setenv("GIT_AUTHOR_EMAIL", "ada@example.org")
        assert "user.name" not in two.ok("edit", "calc").out
    settings.write_text("[user]\nname = Ada\nemail = ada@example.org\n")
    assert "user.name" not in two.ok("edit", "calc").out


def test_export_after_apply_changes_no_byte(two: ForkLab) -> None:
    before = content(two.patches)
    assert two.ok("export", "--check").out == "calc 1.0: 2 patches, unchanged\n"
    two.ok("export")
    assert content(two.patches) == before
    assert "nothing changed" in two.ok("apply").out


@pytest.mark.parametrize(
    "lines",
    [
        "Give the sliding layers of this model the window of its files",
        "Give the sliding layers of this model the window of its\n config",
        "[Relax] Count a slice's negative begin from a varying axis'\n end",
        "=?UTF-8?q?=C3=9Cn=C3=AFcode=20and=20a=20rather=20long=20s?=\n"
        " =?UTF-8?q?ubject=20that=20has=20to=20be=20folded=20when=20mailed?=\n"
        "MIME-Version: 1.0\n"
        "Content-Type: text/plain; charset=UTF-8\n"
        "Content-Transfer-Encoding: 8bit",
    ],
)
def test_subject_is_folded_at_the_same_column_everywhere(lab: ForkLab, lines: str) -> None:
    """These are git's bytes, whatever its version, that of Python, and the locale."""
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn sub")
    path = lab.patches / "turn.patch"
    path.write_bytes(path.read_bytes().replace(b"Turn sub", lines.encode()))
    lab.ok("record")
    lab.ok("apply")
    before = content(lab.patches)
    assert lab.ok("export", "--check").out == "calc 1.0: 1 patch, unchanged\n"
    lab.ok("export", "--force")
    assert content(lab.patches) == before


def test_plain_utf_8_in_a_head_is_read_as_it_is(two: ForkLab) -> None:
    path = two.patches / "turn.patch"
    plain = path.read_bytes().replace(b"From: Ada", "From: Éva Ő".encode())
    path.write_bytes(plain.replace(b"Turn sub", "Größe, ∞".encode()))
    two.ok("record")
    two.ok("apply")
    named = git(two.tree, "log", "-1", "--format=%an: %s", "HEAD~1")
    assert named == "Éva Ő: Größe, ∞"
    two.ok("export")
    assert "Subject: [PATCH] Größe, ∞" in path.read_text()
    assert two.ok("export", "--check").out == "calc 1.0: 2 patches, unchanged\n"


def test_fork_without_patches_has_nothing_to_export(lab: ForkLab) -> None:
    lab.ok("apply")
    assert lab.ok("export", "--check").out == "calc 1.0: 0 patches, unchanged\n"
    lab.ok("export")
    assert not lab.patches.exists()
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn sub")
    lab.ok("record")
    lab.ok("apply")
    git(lab.tree, "reset", "-q", "--hard", "HEAD~1")
    assert lab.run("export", "--check").code == 1
    lab.ok("export")
    assert not (lab.patches / "turn.patch").exists()


def test_export_is_deaf_to_every_configuration(two: ForkLab) -> None:
    hostile = """[diff]
    noprefix = true
    mnemonicPrefix = true
    algorithm = patience
    context = 9
    renames = false
    interHunkContext = 20
    suppressBlankEmpty = true
[color]
    ui = always
[core]
    autocrlf = true
    abbrev = 7
    quotePath = true
[format]
    signature = x
    subjectPrefix = RFC
    signOff = true
    numbered = true
    attach = true
    headers = "X-Mine: 1"
[i18n]
    logOutputEncoding = latin1
[log]
    date = iso
"""
    (two.home / ".gitconfig").write_text(hostile)
    with (two.tree / ".git/config").open("a") as config:
        config.write(hostile)
    (two.tree / ".git/info/attributes").write_text("* -diff\n")
    assert two.ok("export", "--check").out == "calc 1.0: 2 patches, unchanged\n"


def test_new_commit_gets_a_file_name_from_its_subject(two: ForkLab) -> None:
    path = two.tree / "src/run.c"
    path.write_bytes(FILES["src/run.c"].replace(b"return 0", b"return 1"))
    git(two.tree, "commit", "-qam", message("[C] Return 1, not 0!"))
    check = two.run("export", "--check")
    assert check.code == 1
    assert check.out.splitlines()[:3] == [
        "calc: return-1-not-0.patch: new",
        "calc: series: changed",
        "calc: derived.json: changed",
    ]
    two.ok("export")
    assert names(two) == ["turn.patch", "ends.patch", "return-1-not-0.patch"]
    assert "Forkpatch-Name" not in (two.patches / "return-1-not-0.patch").read_text()
    assert "nothing changed" in two.ok("apply").out
    assert path.read_bytes() == FILES["src/run.c"].replace(b"return 0", b"return 1")


def test_reordered_reworded_and_dropped_commits(two: ForkLab) -> None:
    (two.patches / "README").write_text("kept\n")
    text = "# about the first\nturn.patch\n\n# about ends\nends.patch # inline\n# the end\n"
    (two.patches / "series").write_text(text)
    first, second = git(two.tree, "rev-list", "--reverse", "refs/forkpatch/overlays..").split()
    git(two.tree, "reset", "-q", "--hard", "refs/forkpatch/overlays")
    git(two.tree, "cherry-pick", second)
    two.ok("export")
    assert (two.patches / "series").read_text() == (
        "\n# about ends\nends.patch # inline\n# the end\n"
    )
    assert sorted(content(two.patches)) == ["README", "derived.json", "ends.patch", "series"]
    git(two.tree, "cherry-pick", first)
    text = git(two.tree, "log", "-1", "--format=%B")
    git(two.tree, "commit", "-q", "--amend", "-m", f"{text}\nX: y")
    two.ok("export")
    assert names(two)[-1] == "turn.patch"
    assert b"\nX: y\n\ndiff --git" in (two.patches / "turn.patch").read_bytes()


def test_series_after_export_gives_the_committed_tree(two: ForkLab) -> None:
    (two.tree / "python/calc/core.py").write_bytes(CORE + b"\n\ndef last():\n    return 1")
    (two.tree / "python/calc/größe.py").write_bytes(b"G = 1\r\n")
    git(two.tree, "mv", "python/calc/tail.py", "python/calc/end of it.py")
    git(two.tree, "rm", "-q", "src/run.c")
    git(two.tree, "add", "-A")
    git(two.tree, "commit", "-qm", message("Much"), GIT_AUTHOR_NAME="Éva Ő")
    tree = git(two.tree, "rev-parse", "HEAD^{tree}")
    two.ok("export")
    two.ok("apply", "--discard")
    assert git(two.tree, "rev-parse", "HEAD^{tree}") == tree
    assert git(two.tree, "log", "-1", "--format=%an") == "Éva Ő"


def test_what_cannot_be_exported_is_refused_with_the_reason(two: ForkLab) -> None:
    before = content(two.patches)
    (two.tree / "LICENSE").write_text("mine\n")
    done = two.run("export")
    assert done.code == 2 and "changes that are in no commit: changed: LICENSE" in done.err
    git(two.tree, "checkout", "-q", "LICENSE")
    git(two.tree, "checkout", "-q", "-b", "side", "HEAD~1")
    git(two.tree, "commit", "-q", "--allow-empty", "-m", "Side")
    git(two.tree, "checkout", "-q", "forkpatch")
    git(two.tree, "merge", "-q", "--no-ff", "-m", "Merge", "side")
    done = two.run("export")
    assert done.code == 2 and "is a merge" in done.err
    git(two.tree, "reset", "-q", "--hard", "refs/forkpatch/base")
    git(two.tree, "commit", "-q", "--allow-empty", "--amend", "-m", "Other base")
    done = two.run("export")
    assert done.code == 2 and "git rebase --onto refs/forkpatch/overlays" in done.err
    assert content(two.patches) == before


def test_merged_commit_without_a_parent_is_refused_as_such(two: ForkLab) -> None:
    git(two.tree, "checkout", "-q", "--orphan", "side")
    git(two.tree, "commit", "-qm", "Side", GIT_COMMITTER_DATE="2001-01-01T00:00:00Z")
    first = git(two.tree, "rev-parse", "--short=12", "HEAD")
    git(two.tree, "checkout", "-q", "forkpatch")
    git(two.tree, "merge", "-q", "--allow-unrelated-histories", "-m", "Merge", "side")
    done = two.run("export")
    assert done.code == 2 and f"commit {first} has no parent" in done.err


def test_commit_that_changes_an_overlay_is_refused(lab: ForkLab) -> None:
    lab.overlays.mkdir(parents=True)
    (lab.overlays / "mine.py").write_text("A = 1\n")
    lab.ok("apply")
    (lab.tree / "mine.py").write_text("A = 2\n")
    git(lab.tree, "commit", "-qam", message("Change the overlay"))
    done = lab.run("export")
    assert done.code == 2
    assert f"cp {lab.tree / 'mine.py'} {lab.overlays / 'mine.py'}" in done.err


def test_commits_that_are_not_exported_stop_a_rebase_and_status_says_what_to_do(
    two: ForkLab,
) -> None:
    git(two.repo.path, "tag", "v2.0", "v1.0")
    two.ok("lock", "--add", "calc=2.0")
    two.ok("edit", "calc")
    (two.tree / CORE_PATH).write_bytes((two.tree / CORE_PATH).read_bytes() + b"# more\n")
    git(two.tree, "commit", "-qam", message("More"))
    said = two.ok("status").out
    assert "write the commits to the series: forkpatch export calc" in said
    assert "bring it up to date" not in said
    refused = two.run("rebase", "calc", "2.0")
    assert refused.code == 2 and "has commits that are not in the series" in refused.err
    two.ok("export", "calc")
    assert "more.patch: clean" in two.ok("rebase", "calc", "2.0").out


def test_edit_opens_the_tree_and_keeps_work_that_is_in_it(two: ForkLab) -> None:
    done = two.ok("edit", "calc")
    assert "2 patches, one commit each" in done.out
    assert f"git -C {two.tree} rebase -i refs/forkpatch/overlays" in done.out
    (two.tree / "LICENSE").write_text("mine\n")
    assert two.ok("edit", "calc", "--json", "-").json["patches"] == ["turn.patch", "ends.patch"]
    assert (two.tree / "LICENSE").read_text() == "mine\n"


def test_branches_and_dropped_commits_outlive_an_export(two: ForkLab) -> None:
    git(two.tree, "branch", "mine")
    dropped = git(two.tree, "rev-parse", "HEAD")
    git(two.tree, "reset", "-q", "--hard", "HEAD~1")
    two.ok("export")
    assert names(two) == ["turn.patch"]
    assert git(two.tree, "rev-parse", "mine") == dropped
    assert git(two.tree, "log", "-1", "--format=%s", dropped).startswith("Ünïcode")


def test_user_reorders_with_git_rebase_itself(two: ForkLab) -> None:
    git(two.tree, "config", "user.name", "Ada")
    git(two.tree, "config", "user.email", "ada@example.org")
    (two.tree / "LICENSE").write_text("amended\n")
    commit = git(two.tree, "rev-list", "--reverse", "refs/forkpatch/overlays..").split()[0]
    git(two.tree, "commit", "-qa", f"--fixup={commit}")
    git(
        two.tree,
        *("rebase", "-q", "-i", "--autosquash", "refs/forkpatch/overlays"),
        GIT_SEQUENCE_EDITOR="true",
    )
    two.ok("export")
    assert names(two) == ["turn.patch", "ends.patch"]
    assert b"+amended" in (two.patches / "turn.patch").read_bytes()


def test_patch_files_changed_since_the_apply_are_not_written_over(two: ForkLab) -> None:
    path = two.patches / "turn.patch"
    changed = path.read_bytes().replace(b"+    return b - a", b"+    return b - a - 0")
    path.write_bytes(changed)
    done = two.run("export")
    assert done.code == 2
    assert "changed since" in done.err and "export calc --force" in done.err
    assert path.read_bytes() == changed
    two.ok("export", "--force")
    assert b"b - a - 0" not in path.read_bytes()


def commit_with(lab: ForkLab, text: str, **env: str) -> None:
    (lab.tree / CORE_PATH).write_bytes(core(sub="b - a", mul="1"))
    git(lab.tree, "commit", "-qa", "--cleanup=verbatim", "-F", "-", stdin=os.fsencode(text), **env)


@pytest.mark.parametrize("line", ["---", "diff --git a/x b/x"])
def test_message_that_a_patch_file_cannot_hold_is_refused(two: ForkLab, line: str) -> None:
    before = content(two.patches)
    commit_with(two, f"Third\n\nBefore.\n\n{line}\n\nAfter.\n\nUpstream-Status: Pending\n")
    for verb in (["export"], ["export", "--check"]):
        done = two.run(*verb)
        assert done.code == 2
        assert "(Third)" in done.err and f"the line {line!r} ends a message" in done.err
    assert content(two.patches) == before


def test_message_with_lines_like_those_of_a_patch_is_kept(two: ForkLab) -> None:
    body = "--- not alone\n\n ---\n diff --git\n\n[PATCH] x: y\nFrom: A <a@b.c>\n"
    commit_with(two, f"[PATCH 1/3] [tag] Third\n\n{body}")
    two.ok("export")
    patch = read_patch(two.patches / "third.patch")
    assert patch.message == f"[PATCH 1/3] [tag] Third\n\n{body}"
    assert two.ok("export", "--check").out == "calc 1.0: 3 patches, unchanged\n"


@pytest.mark.parametrize("name", ["series", "derived.json", "origin"])
def test_patch_with_the_name_of_another_file_is_refused(two: ForkLab, name: str) -> None:
    before = content(two.patches)
    commit_with(two, f"Third\n\nWhy.\n\nForkpatch-Name: {name}\n")
    done = two.run("export")
    assert done.code == 2 and "has the name of another file of its folder" in done.err
    assert content(two.patches) == before
    with (two.patches / "series").open("a") as series:
        series.write(f"{name}\n")
    done = two.run("apply", "--discard")
    assert done.code == 2 and "has the name of another file of its folder" in done.err


def test_names_in_latin_1_are_kept(two: ForkLab) -> None:
    place = os.fsencode(two.tree) + b"/src/caf\xe9.c"
    Path(os.fsdecode(place)).write_bytes(b"int a;\n")
    git(two.tree, "add", "-A")
    commit_with(two, "Caf\udce9\n\nN\udcfa.\n", GIT_AUTHOR_NAME="Jos\udce9")
    two.ok("export")
    patch = read_patch(two.patches / "caf.patch")
    assert (patch.author, patch.message) == ("José <ada@example.org>", "Café\n\nNú.\n")
    assert two.ok("export", "--check").out == "calc 1.0: 3 patches, unchanged\n"
    shutil.rmtree(two.tree)
    two.ok("apply")
    with open(place, "rb") as file:  # noqa: PTH123 - a name of bytes
        assert file.read() == b"int a;\n"
    Path(os.fsdecode(place)).write_bytes(b"int b;\n")
    assert "src/caf\\udce9.c" in two.ok("status").out
    two.ok("status", "--json", "-")


def test_commit_in_another_encoding_becomes_utf_8(two: ForkLab) -> None:
    (two.tree / CORE_PATH).write_bytes(core(sub="b - a", mul="1"))
    encoded = ("-c", "i18n.commitEncoding=ISO-8859-15")
    text = "Price\n\nIt is \u20ac 5.\n".encode("iso-8859-15")
    git(two.tree, *encoded, "commit", "-qa", "-F", "-", stdin=text)
    two.ok("export")
    assert read_patch(two.patches / "price.patch").message == "Price\n\nIt is \u20ac 5.\n"


def test_export_in_the_midst_of_a_git_operation_is_refused(lab: ForkLab) -> None:
    lab.change("a.patch", {CORE_PATH: core(sub="b - a")}, subject="a")
    lab.change("b.patch", {CORE_PATH: core(sub="b - a", mul="0")}, subject="b")
    lab.ok("apply")
    before = {path.name: path.read_bytes() for path in lab.patches.iterdir()}
    editor = {"GIT_SEQUENCE_EDITOR": "sed -i 1s/pick/edit/"}
    git(lab.tree, "rebase", "-q", "-i", "HEAD~2", **editor)
    done = lab.run("export", "calc")
    assert done.code == 2
    assert f"{lab.tree}: a git rebase is under way there" in done.err
    assert f"git -C {lab.tree} rebase --continue" in done.err
    assert {path.name: path.read_bytes() for path in lab.patches.iterdir()} == before
    git(lab.tree, "rebase", "--continue")
    assert "2 patches" in lab.ok("export", "calc").out


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("checkout -q --detach HEAD~1", "switch forkpatch"),
        ("checkout -q -b topic HEAD~1", "switch forkpatch"),
        ("bisect start HEAD HEAD~2", "bisect reset"),
    ],
)
def test_patches_of_the_branch_that_is_not_checked_out_stay(
    two: ForkLab, words: str, remedy: str
) -> None:
    before = content(two.patches)
    git(two.tree, *words.split())
    done = two.run("export")
    assert done.code == 2 and f"git -C {two.tree} {remedy}" in done.err
    assert "edited" in two.ok("status").out and two.run("apply").code == 2
    assert content(two.patches) == before
    git(two.tree, *remedy.split())
    assert two.ok("export").out == "calc 1.0: 2 patches, unchanged\n"


def test_commit_on_the_branch_that_is_not_checked_out_is_kept(two: ForkLab) -> None:
    (two.tree / "LICENSE").write_text("mine\n")
    git(two.tree, "commit", "-qam", message("License"))
    git(two.tree, "checkout", "-q", "--detach", "HEAD~1")
    assert "it has other commits than the series" in two.ok("status").out
    assert two.run("apply").code == 2
    git(two.tree, "switch", "-q", "-C", "forkpatch")
    assert two.ok("export").out == "calc 1.0: 2 patches, unchanged\n"


def test_export_for_another_tool_into_the_work_folder_is_refused(lab: ForkLab) -> None:
    lab.change("a.patch", {CORE_PATH: core(sub="b - a")}, subject="a")
    lab.ok("apply")
    for place in (lab.tree / "python/quilt", lab.root / ".work/quilt", lab.root / "x/../.work/q"):
        words = ("export", "calc", "--format", "quilt", "--output", str(place))
        done = lab.run(*words)
        assert done.code == 2 and "where trees are built and removed" in done.err
        assert not place.exists()


@pytest.mark.parametrize("format_", ["quilt", "debian", "format-patch"])
def test_a_file_name_with_a_quote_goes_to_other_tools(lab: ForkLab, format_: str) -> None:
    name = 'src/a "quoted" name.c'
    lab.change("a.patch", {name: b"int a;\n"}, subject="a")
    lab.change("b.patch", {name: b"int b;\n"}, subject="b")
    output = lab.root / "back"
    lab.ok("export", "calc", "--format", format_, "--output", str(output))
    assert b'\\"quoted\\"' in b"".join(content(output).values())


def test_a_lost_series_is_no_empty_one(two: ForkLab) -> None:
    (two.patches / "series").unlink()
    assert "and no series that lists it" in two.ok("status").out
    for verb in ("apply", "record", "export"):
        done = two.run(verb)
        assert done.code == 2 and "and no series that lists it" in done.err
        assert f"restore {two.patches / 'series'} from git" in done.err


def test_a_version_that_no_upstream_has_is_not_recorded(two: ForkLab) -> None:
    done = two.run("record", "--version", "3")
    assert done.code == 2 and "no upstream has a version '3'" in done.err
    assert "calc 1.0" in two.ok("record", "--version", "1.0").out


def test_what_a_user_keeps_beside_the_commits_outlives_an_export(
    two: ForkLab, tmp_path: Path
) -> None:
    for text in ("one\n", "two\n"):
        (two.tree / "LICENSE").write_text(text)
        git(two.tree, "stash", "push", "-q", "-m", text)
    git(two.tree, "tag", "-a", "-m", "kept", "kept")
    git(two.tree, "notes", "add", "-m", "noted", "HEAD")
    git(two.tree, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    (two.tree / ".git/hooks").mkdir(exist_ok=True)
    (two.tree / ".git/hooks/pre-commit").write_text("#!/bin/sh\n")
    show = (["stash", "list"], ["cat-file", "tag", "kept"], ["notes", "list"])
    before = [git(two.tree, *words) for words in show]
    inode = two.tree.stat().st_ino
    git(two.tree, "commit", "-q", "--allow-empty", "--amend", "-m", "Other words")
    two.ok("export")
    assert two.tree.stat().st_ino != inode
    assert [git(two.tree, *words) for words in show] == before and len(before[0].splitlines()) == 2
    assert git(tmp_path / "side", "status", "--porcelain", "--branch") == "## side"
    assert (two.tree / ".git/hooks/pre-commit").is_file()


@pytest.mark.parametrize("words", [(), ("--check",)])
def test_an_export_without_a_tree_is_refused(lab: ForkLab, words: tuple[str, ...]) -> None:
    done = lab.run("export", *words)
    assert done.code == 2 and "no upstream of release r1 has a patched tree" in done.err
