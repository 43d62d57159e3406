# SPDX-License-Identifier: Apache-2.0
"""Paths and names from files that others wrote are refused before anything is written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from forklab import FILES, FORMAT, ForkLab, git, make_wheel, message

from forkpatch.cli.main import main
from forkpatch.errors import UnsafePathError, UserError
from forkpatch.model.settings import find_root
from forkpatch.safety import check_path
from forkpatch.sources.cache import Cache
from groundwork.hashing import sha256_of

NEW_FILE = """From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: Ada <ada@example.org>
Date: Fri, 2 Jan 2026 03:04:05 +0200
Subject: [PATCH] Evil

Why.

diff --git a/{path} b/{path}
new file mode {mode}
index 0000000000000000000000000000000000000000..ce013625030ba8dba906f756967f9e9ca394464a
--- /dev/null
+++ b/{path}
@@ -0,0 +1 @@
+hello
"""


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/x",
        "/etc/x",
        "python/../../x",
        ".git/config",
        "python/.GIT/hooks/pre-commit",
        "python/.git ./config",
        "python/.g\u200cit/config",
        "GIT~1/config",
        "C:/windows/x",
        "python\\..\\x",
        "python/./x",
        "a//b",
        "a/",
        "",
        "a\nb",
    ],
)
def test_unsafe_paths_are_refused(path: str) -> None:
    with pytest.raises(UnsafePathError, match="refused path"):
        check_path(path, "here")


@pytest.mark.parametrize(
    "path", ["a", "a/b.py", ".github/x", "a/.gitignore", "a b/ü.txt", "..a/b..", "git/x"]
)
def test_safe_paths_pass(path: str) -> None:
    assert check_path(path, "here") == path


@pytest.mark.parametrize("path", ["../../etc/x", "/etc/x", ".git/config", '"..\\057x"'])
def test_patch_with_an_unsafe_path_is_refused_before_writing(lab: ForkLab, path: str) -> None:
    lab.ok("apply")
    before = sorted(lab.root.parent.rglob("*"))
    text = NEW_FILE.format(path=path, mode="100644")
    if path.startswith('"'):
        inner = path.strip('"')
        text = text.replace(f"a/{path}", f'"a/{inner}"').replace(f"b/{path}", f'"b/{inner}"')
    lab.add_patch("evil.patch", text.encode())
    done = lab.run("apply")
    assert done.code == 2
    assert "evil.patch:8: refused path" in done.err
    after = sorted(lab.root.parent.rglob("*"))
    assert {path for path in set(after) - set(before) if "patches" not in path.parts} == set()


@pytest.mark.parametrize("mode", ["160000", "100600"])
def test_patch_that_makes_a_submodule_or_odd_mode_is_refused(lab: ForkLab, mode: str) -> None:
    lab.add_patch("evil.patch", NEW_FILE.format(path="python/x", mode=mode).encode())
    done = lab.run("apply")
    assert done.code == 2
    assert f"mode {mode}" in done.err


@pytest.mark.parametrize("target", ["/etc/passwd", "../../out", "../.git/x", ".", "a/../../../x"])
def test_patch_that_makes_a_link_out_of_the_tree_is_refused(lab: ForkLab, target: str) -> None:
    text = NEW_FILE.format(path="python/x", mode="120000")
    text = text.replace("+hello\n", f"+{target}\n\\ No newline at end of file\n")
    lab.add_patch("evil.patch", text.encode())
    done = lab.run("apply")
    inside = target == "."
    assert done.code == (0 if inside else 2)
    assert inside or "refused the symbolic link 'python/x'" in done.err
    assert not inside or (lab.tree / "python/x").readlink() == Path()


def test_patch_through_a_link_of_an_earlier_patch_is_refused(lab: ForkLab) -> None:
    text = NEW_FILE.format(path="python/x", mode="120000")
    text = text.replace("+hello\n", "+calc\n\\ No newline at end of file\n")
    lab.add_patch("link.patch", text.encode())
    lab.add_patch("through.patch", NEW_FILE.format(path="python/x/y", mode="100644").encode())
    done = lab.run("apply")
    assert done.code == 2
    assert "python/x is a symbolic link" in done.err


def link_upstream(lab: ForkLab, tmp_path: Path) -> None:
    (lab.repo.path / "python/calc/out").symlink_to(tmp_path)
    lab.repo.commit({}, "Link")
    lab.locked(tag="")


def test_patch_through_a_symbolic_link_is_refused(lab: ForkLab, tmp_path: Path) -> None:
    link_upstream(lab, tmp_path)
    lab.add_patch("evil.patch", NEW_FILE.format(path="python/calc/out/x", mode="100644").encode())
    done = lab.run("apply")
    assert done.code == 2
    assert "python/calc/out is a symbolic link" in done.err
    assert not (tmp_path / "x").exists()


def test_overlay_through_a_symbolic_link_is_refused(lab: ForkLab, tmp_path: Path) -> None:
    link_upstream(lab, tmp_path)
    (lab.overlays / "python/calc/out").mkdir(parents=True)
    (lab.overlays / "python/calc/out/x").write_text("")
    done = lab.run("apply")
    assert done.code == 2
    assert "python/calc/out is a symbolic link" in done.err


def test_overlay_that_is_a_symbolic_link_is_refused(lab: ForkLab) -> None:
    lab.overlays.mkdir(parents=True)
    (lab.overlays / "passwd").symlink_to("/etc/passwd")
    done = lab.run("apply")
    assert done.code == 2
    assert "is a symbolic link" in done.err


def test_binary_patch_without_content_is_refused(lab: ForkLab) -> None:
    lab.repo.commit({"src/data.bin": bytes(range(256))}, message("Binary"))
    out = git(lab.repo.path, "format-patch", *FORMAT, "--no-binary", "-1", "--stdout")
    lab.add_patch("binary.patch", out.encode() + b"\n")
    done = lab.run("apply")
    assert done.code == 2
    assert "src/data.bin is changed as binary, and the patch does not say how" in done.err


@pytest.mark.parametrize("name", ["../evil.patch", "--exec.patch", "/x.patch", "a/../b.patch"])
def test_series_with_an_unsafe_name_is_refused(lab: ForkLab, name: str) -> None:
    lab.patches.mkdir(parents=True)
    (lab.patches / "series").write_text(f"{name}\n")
    done = lab.run("apply")
    assert done.code == 2
    assert "is not a plain name" in done.err and "series:1" in done.err


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ('calc = "1.0"', 'calc = "../x"', "no version"),
        ("[upstreams.calc]", '[upstreams."--upload-pack=x"]', "not a plain name"),
        ('versions."1.0"]', 'versions."../../x"]', "not a plain name"),
        ('include = ["python/calc"', 'include = ["../x"', "refused path"),
        ('include = ["python/calc", "src", "LICENSE"]', "include = []", "nothing is pinned"),
        ('url = "', 'url = "ext::sh -c ', "not a plain URL"),
        ('url = "', 'url = "--upload-pack=', "not a plain URL"),
        ('tree = "', 'tree = 5 # "', "tree = 5 is not a string"),
        ('tree = "', 'tree = "zz', "tree: 'zz"),
        ('include = ["python/calc"', "include = [5", "is not a list of strings"),
        (
            'include = ["python/calc", "src", "LICENSE"]',
            "include = 5",
            "5 is not a list of strings",
        ),
        ('calc = "1.0"', "calc = 1.0", "calc = 1.0 is not a string"),
        ("optional = ", "optional = 1 # ", "optional = 1 is not true or false"),
        ("[releases.r1]", "[releases]\nr1 = 5\n[x]", "release r1 is not a table"),
        ('calc = "1.0"', 'calc = "1.0"\n[upstreams]\nx = 1', "x is not a table"),
    ],
)
def test_lock_with_an_unsafe_value_is_refused(lab: ForkLab, old: str, new: str, word: str) -> None:
    lab.edit_lock(old, new)
    done = lab.run("apply")
    assert done.code == 2
    assert word in done.err
    assert "\n  " in done.err  # what to type next
    assert not lab.tree.exists()


def test_commit_that_looks_like_an_option_is_refused(lab: ForkLab) -> None:
    lab.edit_lock(lab.repo.head, "--output=/tmp/x")
    done = lab.run("apply")
    assert done.code == 2
    assert "not a full object id" in done.err


@pytest.mark.parametrize(
    "place",
    [
        "patches/calc/1.0/series",
        "patches/calc/1.0/zero.patch",
        "overlays/calc/src/own.c",
        "overlays/calc/shadows.toml",
        "pyproject.toml",
        "VERSIONS.lock",
    ],
)
@pytest.mark.parametrize("kind", ["a folder", "a pipe, a socket or a device", "a symbolic link"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(
    lab: ForkLab, place: str, kind: str
) -> None:
    lab.change("zero.patch", {"src/run.c": b"int run(void)\n{\n    return 9;\n}\n"})
    lab.ok("record")
    path = lab.root / place
    if kind == "a folder" and place.endswith("own.c"):
        return  # a folder of overlays
    if kind == "a symbolic link" and not place.endswith(".patch"):
        return  # of the fork's own files only patches are refused then
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "a symbolic link":
        path.symlink_to("/etc/hostname")
    else:
        path.mkdir() if kind == "a folder" else os.mkfifo(path)
    for verb in ("check",) if "shadows" in place else ("check", "apply"):
        done = lab.run(verb)
        assert done.code in ((1, 2) if verb == "check" else (2,))
        assert f"{place} is {kind}, not a file" in (done.err + done.out).replace("\n", "")


def test_a_malformed_file_below_a_fork_does_not_hide_it(lab: ForkLab, tmp_path: Path) -> None:
    folder = lab.root / "tests" / "fixture"
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[tool")
    assert find_root(folder) == lab.root.resolve()
    (tmp_path / "pyproject.toml").write_text("[tool")
    with pytest.raises(UserError, match=r"pyproject\.toml"):
        find_root(tmp_path)


def test_patch_files_that_no_series_lists_are_named_by_apply(lab: ForkLab) -> None:
    lab.change("zero.patch", {"src/run.c": b"int run(void)\n{\n    return 9;\n}\n"})
    assert lab.ok("apply").err == ""
    (lab.patches / "series").write_text("")
    done = lab.ok("apply")
    assert f"{lab.patches / 'zero.patch'} is not applied: series does not list it" in done.err


def test_patch_with_crlf_is_told_as_such(lab: ForkLab) -> None:
    lab.change("zero.patch", {"src/run.c": b"int run(void)\n{\n    return 9;\n}\n"})
    path = lab.patches / "zero.patch"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    done = lab.run("apply")
    assert done.code == 2
    assert "the lines of its diff end with CRLF" in done.err and "turn them into LF" in done.err


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        (b"Date: Fri, 2 Jan 2026", b"Date: Fri, 2 Jan 1959", "git has no dates before 1970"),
        (b"From: Ada", b"From: A\0da", "the From header is not 'Name <email>'"),
    ],
)
def test_author_and_date_that_git_cannot_hold_are_named(
    lab: ForkLab, old: bytes, new: bytes, word: str
) -> None:
    lab.change("run.patch", {"src/run.c": FILES["src/run.c"] + b"\n"})
    path = lab.patches / "run.patch"
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))
    done = lab.run("apply")
    assert done.code == 2
    assert word in done.err and "run.patch" in done.err
    assert not lab.tree.exists()


def test_upstream_with_names_that_differ_in_case_only_is_said(lab: ForkLab, tmp_path: Path) -> None:
    lab.repo.commit({"readme.md": b"small\n"}, "Version 2")
    git(lab.repo.path, "tag", "v2.0")
    done = lab.ok("lock", "--add", "calc=2.0")
    assert "differ in case only" not in done.err  # outside of the included paths
    fork = ForkLab(tmp_path / "new", lab.home, lab.repo, lab.capsys)
    fork.root.mkdir()
    done = fork.ok("init", str(lab.repo.path), "--name", "calc")
    assert "calc 2.0: README.md and readme.md differ in case only" in done.err


@pytest.mark.parametrize("outside", ["/", "../../"])
def test_lock_cannot_name_a_folder_to_remove(lab: ForkLab, tmp_path: Path, outside: str) -> None:
    wheel = make_wheel(tmp_path / "wheels", FILES)
    lab.locked(wheel=wheel)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept-1.0-py3-none-any.whl").write_text("mine\n")
    name = str(victim) if outside == "/" else os.path.relpath(victim, lab.cache / "wheels")
    lab.edit_lock(sha256_of(wheel), name)
    lab.forget()
    for verb in (["apply", "--source", "calc=wheel"], ["lock"]):
        done = lab.run(*verb)
        assert done.code == 2 and "it must be 64 hexadecimal digits" in done.err
    assert (victim / "kept-1.0-py3-none-any.whl").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"calc" = "python/calc"', '"calc" = "../calc"', "refused path '../calc'"),
        ('package = "calc"', 'package = "--pre"', "package = '--pre' is not a plain name"),
        ('version = "1.0"\n', 'version = "1 --pre"\n', "version = '1 --pre' is not a plain name"),
    ],
)
def test_lock_cannot_name_other_places_and_options_of_pip(
    lab: ForkLab, tmp_path: Path, old: str, new: str, said: str
) -> None:
    lab.locked(wheel=make_wheel(tmp_path / "wheels", FILES))
    lab.edit_lock(old, new)
    done = lab.run("apply")
    assert done.code == 2 and said in done.err


def test_note_of_the_cache_cannot_name_a_folder_to_remove(lab: ForkLab, tmp_path: Path) -> None:
    cache = Cache(lab.cache)
    cache.note("calc==1.0", "../../../victim")
    assert cache.seen("calc==1.0") == ""


@pytest.mark.parametrize("key", ["file", "list"])
def test_origin_cannot_name_a_file_outside_of_the_output(
    lab: ForkLab, tmp_path: Path, key: str
) -> None:
    lab.change("turn.patch", {"src/run.c": b"int run(void)\n{\n    return 1;\n}\n"})
    entry = {"file": "turn.patch", "name": "turn.patch", "diff": "", "head": ""}
    origin = {"format": "quilt", "list": "series", "patches": [entry]}
    (entry if key == "file" else origin)[key] = "../evil"
    files = lab.patches / "origin/files"
    files.mkdir(parents=True)
    for name in ("series", "../evil"):
        (files / name).write_text("turn.patch\n")
    (lab.patches / "origin/origin.json").write_text(json.dumps(origin))
    output = str(tmp_path / "out/new")
    done = lab.run("export", "calc", "--format", "quilt", "--output", output)
    assert done.code == 2 and "refused path '../evil'" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        ("patches/calc/1.0/derived.json", "record"),
        ("patches/calc/1.0/series", "record"),
        (".work/checks.json", "check"),
        (".work/calc-1.0.missing", "apply"),
        (".work/rebase-calc-1.0-to-2.0.json", "status"),
        ("VERSIONS.lock", "lock"),
    ],
)
def test_links_of_a_fork_change_no_file_elsewhere(
    lab: ForkLab, tmp_path: Path, name: str, verb: str
) -> None:
    lab.change("turn.patch", {"src/run.c": b"int run(void)\n{\n    return 1;\n}\n"})
    mine = tmp_path / "mine"
    mine.write_text("turn.patch\n")
    (lab.root / name).parent.mkdir(exist_ok=True)
    (lab.root / name).unlink(missing_ok=True)
    (lab.root / name).symlink_to(mine)
    done = lab.run(verb)
    assert done.code == 2 and f"{name} is a symbolic link" in done.err
    assert mine.read_text() == "turn.patch\n"


def test_a_link_to_a_missing_lock_is_not_written_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fork, mine = tmp_path / "fork", tmp_path / "mine"
    fork.mkdir()
    (fork / "VERSIONS.lock").symlink_to(mine)
    assert main(["--root", str(fork), "init", "https://example.org/calc"]) == 2
    assert "VERSIONS.lock is a symbolic link" in capsys.readouterr().err
    assert not mine.exists()


def test_links_in_the_work_folder_that_no_verb_writes_are_allowed(
    lab: ForkLab, tmp_path: Path
) -> None:
    lab.ok("apply")
    (tmp_path / "notes").write_text("mine")
    (lab.root / ".work/notes").symlink_to(tmp_path / "notes")
    (lab.root / ".work/lost").symlink_to(tmp_path / "missing")
    lab.ok("status")
    lab.ok("apply")
    assert (tmp_path / "notes").read_text() == "mine"


@pytest.mark.parametrize(
    "name",
    ["", "/origin.json", "/files", "/files/series", "/files/notes", "/files/folder"],
)
def test_links_of_an_origin_bring_no_other_file_into_an_export(
    lab: ForkLab, tmp_path: Path, name: str
) -> None:
    lab.change("turn.patch", {"src/run.c": b"int run(void)\n{\n    return 1;\n}\n"})
    origin = lab.patches / "origin"
    (origin / "files/folder").mkdir(parents=True)
    for file in ("series", "notes", "folder/secret"):
        (origin / "files" / file).write_text("turn.patch\n")
    entry = {"file": "turn.patch", "name": "turn.patch", "diff": "", "head": ""}
    index = {"format": "quilt", "list": "series", "patches": [entry]}
    (origin / "origin.json").write_text(json.dumps(index))
    linked = Path(f"{origin}{name}")
    linked.rename(tmp_path / "mine")
    linked.symlink_to(tmp_path / "mine")
    output = str(tmp_path / "out/new")
    done = lab.run("export", "calc", "--format", "quilt", "--output", output)
    assert done.code == 2 and f"{linked} is a symbolic link" in done.err
    assert not (tmp_path / "out").exists()


def test_a_nested_origin_is_refused(lab: ForkLab, tmp_path: Path) -> None:
    lab.change("turn.patch", {"src/run.c": b"int run(void)\n{\n    return 1;\n}\n"})
    (lab.patches / "origin").mkdir()
    (lab.patches / "origin/origin.json").write_text("[" * 100_000)
    output = str(tmp_path / "out")
    done = lab.run("export", "calc", "--format", "quilt", "--output", output)
    assert done.code == 2 and "origin.json: RecursionError" in done.err
    assert "restore it from git" in done.err


def test_links_beside_a_series_stay_links(lab: ForkLab, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/secret").write_text("secret")
    lab.change("turn.patch", {"src/run.c": b"int run(void)\n{\n    return 1;\n}\n"})
    links = {"file": tmp_path / "mine/secret", "folder": tmp_path / "mine", "lost": tmp_path / "no"}
    (lab.patches / "notes").mkdir()
    for name, target in links.items():
        (lab.patches / name).symlink_to(target)
        (lab.patches / "notes" / name).symlink_to(target)
    lab.ok("apply")
    (lab.tree / "src/run.c").write_bytes(b"int run(void)\n{\n    return 2;\n}\n")
    git(lab.tree, "commit", "-qa", "--amend", "--no-edit")
    assert "turn.patch: changed" in lab.ok("export").out
    for name, target in links.items():
        assert (lab.patches / name).readlink() == target
        assert (lab.patches / "notes" / name).readlink() == target
