# SPDX-License-Identifier: Apache-2.0
"""Patches of files that are no plain text: binary files, symbolic links, files become links."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from forklab import FORMAT, ForkLab, git, message

from forkpatch.git.objects import blob_id

NOISE = random.Random(1).randbytes(5000) + b"\0"
CHANGED = NOISE[:2000] + b"other" + NOISE[2000:]


def binary_upstream(lab: ForkLab) -> None:
    lab.repo.commit({"src/logo.png": NOISE, "src/old.bin": b"\0" * 300}, "Binaries")
    lab.locked(tag="")


def commit(lab: ForkLab, name: str) -> None:
    """Commit what is in the upstream's folder, and add the commit to the series."""
    git(lab.repo.path, "add", "-A")
    git(lab.repo.path, "commit", "-q", "-m", message(name))
    command = ["git", "-c", "core.quotePath=false", "format-patch", *FORMAT, "-1", "--stdout"]
    done = subprocess.run(command, cwd=lab.repo.path, capture_output=True, check=True)
    lab.add_patch(f"{name}.patch", done.stdout)


def whole_tree(folder: Path) -> dict[str, bytes]:
    """The files below a folder but for git's: content by path, for a link where it leads."""
    found = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != ".git"]
        links = [name for name in folders if Path(place, name).is_symlink()]
        for path in (Path(place, name) for name in (*names, *links)):
            link = path.is_symlink()
            data = b"-> " + os.fsencode(path.readlink()) if link else path.read_bytes()
            found[path.relative_to(folder).as_posix()] = data
    return found


def test_binary_files_are_made_changed_renamed_and_removed(lab: ForkLab, tmp_path: Path) -> None:
    binary_upstream(lab)
    src = lab.repo.path / "src"
    (src / "new.bin").write_bytes(bytes(range(256)) * 5)
    (src / "logo.png").write_bytes(CHANGED)
    commit(lab, "one")
    (src / "logo.png").rename(src / "brand.png")
    (src / "old.bin").unlink()
    commit(lab, "two")
    (src / "brand.png").write_bytes(CHANGED + b"!")
    commit(lab, "three")
    lab.ok("apply")
    lab.ok("record")
    tree = whole_tree(lab.tree)
    assert tree["src/brand.png"] == CHANGED + b"!"
    assert tree["src/new.bin"] == bytes(range(256)) * 5
    assert not {"src/logo.png", "src/old.bin"} & set(tree)
    assert lab.ok("export", "--check").code == 0
    lab.ok("tree", "calc", "--without", "three", "--output", str(tmp_path / "two"))
    assert (tmp_path / "two/src/brand.png").read_bytes() == CHANGED
    lab.ok("tree", "calc", "--upto", "one", "--output", str(tmp_path / "one"))
    assert (tmp_path / "one/src/logo.png").read_bytes() == CHANGED
    done = lab.run("tree", "calc", "--without", "one", "--output", str(tmp_path / "none"))
    assert done.code == 2
    assert "two.patch, three.patch" in done.err


def test_binary_change_of_another_file_than_it_was_made_for_is_refused(lab: ForkLab) -> None:
    binary_upstream(lab)
    (lab.repo.path / "src/logo.png").write_bytes(CHANGED)
    commit(lab, "one")
    other = NOISE.replace(b"\0", b"\1", 1)
    lab.repo.commit({"src/logo.png": other}, "Another")
    lab.locked(tag="")
    done = lab.run("apply")
    assert done.code == 2
    assert f"the binary file is {blob_id(other)}" in done.err
    assert f"made for {blob_id(NOISE)}" in done.err


@pytest.mark.parametrize("old", ["\ndelta ", "\nliteral ", "literal 900\nU"])
def test_damaged_binary_change_is_refused(lab: ForkLab, old: str) -> None:
    binary_upstream(lab)
    (lab.repo.path / "src/logo.png").write_bytes(CHANGED)
    (lab.repo.path / "src/old.bin").write_bytes(b"\0\1\2" * 300)
    commit(lab, "one")
    path = lab.patches / "one.patch"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, f"{old}1", 1))
    done = lab.run("apply")
    assert done.code == 2
    assert "malformed diff" in done.err


def test_links_are_made_turned_and_take_the_place_of_files(lab: ForkLab, tmp_path: Path) -> None:
    (lab.repo.path / "src/link").symlink_to("run.c")
    lab.repo.commit({}, "Link")
    lab.locked(tag="")
    src = lab.repo.path / "src"
    (src / "link").unlink()
    (src / "link").symlink_to("../python/calc")
    (src / "new").symlink_to("run.c")
    commit(lab, "one")
    (src / "run.c").unlink()
    (src / "run.c").symlink_to("../LICENSE")
    (src / "link").unlink()
    (src / "link").write_text("a file now\n")
    commit(lab, "two")
    lab.ok("apply")
    lab.ok("record")
    tree = whole_tree(lab.tree)
    assert tree["src/link"] == b"a file now\n"
    assert (tree["src/new"], tree["src/run.c"]) == (b"-> run.c", b"-> ../LICENSE")
    assert lab.ok("export", "--check").code == 0
    lab.ok("tree", "calc", "--upto", "one", "--output", str(tmp_path / "one"))
    assert whole_tree(tmp_path / "one")["src/link"] == b"-> ../python/calc"
    assert "file missing" not in lab.ok("probe", "calc", "--versions", lab.repo.head + "~2").out


def test_names_with_blanks_and_foreign_letters(lab: ForkLab) -> None:
    names = ["a b.txt", "ä ö.txt", "日本 語.txt", 'q"uote.txt', "b/c.txt"]
    lab.repo.commit({f"src/{name}": b"one\ntwo\n" for name in names}, "Names")
    lab.locked(tag="")
    for name in names:
        (lab.repo.path / "src" / name).write_text("one\n2\n")
    git(lab.repo.path, "mv", "src/a b.txt", "src/a b c.txt")
    (lab.repo.path / "src/new ü.txt").write_text("")
    (lab.repo.path / "src/tool x").write_bytes(b"\0\1")
    commit(lab, "one")
    (lab.repo.path / "src/new ü.txt").chmod(0o755)
    commit(lab, "two")
    lab.ok("apply")
    lab.ok("record")
    tree = whole_tree(lab.tree)
    assert tree["src/a b c.txt"] == b"one\n2\n"
    assert tree["src/new ü.txt"] == b"" and os.access(lab.tree / "src/new ü.txt", os.X_OK)
    assert tree["src/tool x"] == b"\0\1"
    assert all(tree[f"src/{name}"] == b"one\n2\n" for name in names[1:])
    assert lab.ok("export", "--check").code == 0


def test_builds_inside_the_tree_stay_and_do_not_refuse_an_apply(lab: ForkLab) -> None:
    lab.ok("apply")
    (lab.root / "pyproject.toml").write_text('[tool.forkpatch]\nbuilds = ["build/", "*.o"]\n')
    (lab.tree / "build/deep").mkdir(parents=True)
    (lab.tree / "build/deep/out.a").write_bytes(b"built")
    (lab.tree / "src/run.o").write_bytes(b"built")
    os.utime(lab.tree / "src/run.c", (1_000_000_000, 1_000_000_000))
    lab.change("one.patch", {"python/calc/tail.py": b"X = 1\nY = 3"})
    assert "applied" in lab.ok("apply").out
    assert (lab.tree / "python/calc/tail.py").read_bytes() == b"X = 1\nY = 3"
    assert (lab.tree / "build/deep/out.a").read_bytes() == b"built"
    assert (lab.tree / "src/run.o").read_bytes() == b"built"
    assert (lab.tree / "src/run.c").stat().st_mtime == 1_000_000_000
    assert (lab.tree / "python/calc/tail.py").stat().st_mtime > 1_000_000_000
    (lab.tree / "LICENSE").unlink()
    lab.ok("apply", "--discard")
    assert (lab.tree / "LICENSE").is_file() and (lab.tree / "src/run.o").is_file()
    (lab.tree / "src/notes").write_text("work\n")
    lab.change("two.patch", {"python/calc/tail.py": b"X = 1\nY = 4"})
    assert "new file: src/notes" in lab.run("apply").err
