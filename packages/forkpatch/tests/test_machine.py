# SPDX-License-Identifier: Apache-2.0
"""Faults of the machine: full or read-only disks, no git or an old one."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forklab import ForkLab, core, git

MakeDisk = Callable[..., Any]


def refuses(lab: ForkLab, words: list[str], *verb: str) -> None:
    done = lab.run(*verb)
    assert done.code == 2, done.out + done.err
    for word in words:
        assert word in done.err


def snapshot(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_full_work_folder_keeps_the_old_tree(lab: ForkLab, disk: MakeDisk) -> None:
    work = disk("4m", lab.root / ".work")
    lab.ok("apply")
    before = snapshot(lab.tree)
    (lab.overlays / "python" / "calc").mkdir(parents=True)
    (lab.overlays / "python" / "calc" / "large.py").write_bytes(b"# " + b"x" * (6 << 20) + b"\n")
    done = lab.run("apply")
    assert done.code in (1, 2)
    assert "No space left" in done.err
    assert snapshot(lab.tree) == before
    assert "stale" in lab.ok("status").out
    work.grow("64m")
    lab.ok("apply")
    assert (lab.tree / "python" / "calc" / "large.py").stat().st_size > 6 << 20


def test_export_on_a_full_disk_names_the_place_and_what_is_written(
    lab: ForkLab, disk: MakeDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    patches = disk("4k", lab.root / "patches")
    lab.ok("apply")
    (lab.tree / "python/calc/core.py").write_bytes(core(add="b + a"))
    git(lab.tree, "commit", "-q", "-a", "-m", "Turn add\n\nWhy.")
    done = lab.run("export")
    assert done.code == 2
    assert f"{lab.patches}: No space left on device" in done.err
    assert not lab.patches.exists()
    patches.grow("1m")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tree")

    with monkeypatch.context() as patched:
        patched.setattr("forkpatch.series.export.write_tree", full)
        done = lab.run("export")
    assert done.code == 1
    assert f"{lab.patches} is written, but {lab.tree}" in done.err
    assert "/tree: No space left on device" in done.err
    assert (lab.patches / "series").is_file()
    lab.ok("export")


def test_full_cache_is_said_and_filled_later(lab: ForkLab, disk: MakeDisk) -> None:
    mirror = f"calc={lab.repo.path}"
    shutil.rmtree(lab.cache)
    cache = disk("12k", lab.cache)
    done = lab.run("apply", "--mirror", mirror)
    assert done.code in (1, 2)
    assert "No space left" in done.err
    assert not lab.tree.exists()
    cache.grow("16m")
    lab.ok("apply", "--mirror", mirror)


def test_read_only_home_names_the_way_out(
    lab: ForkLab, disk: MakeDisk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = disk("64k", tmp_path / "frozen")
    home.freeze()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(home.path))
    refuses(lab, ["Read-only file system", "XDG_CACHE_HOME=DIR"], "apply")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    lab.ok("apply", "--mirror", f"calc={lab.repo.path}")


def test_home_that_is_not_there_is_made(
    lab: ForkLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "no" / "home"))
    lab.ok("apply", "--mirror", f"calc={lab.repo.path}")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo git version 2.31.8", ["git is version 2.31.8", "too old", "2.39"]),
        ("echo git version 1.9.1.windows.1", ["1.9.1", "too old"]),
        ("echo hello", ["does not print its version"]),
        ("exit 1", ["does not print its version"]),
        (None, ["git cannot be run", "install git"]),
    ],
)
def test_git_that_cannot_serve_is_refused(
    lab: ForkLab,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    script: str | None,
    words: list[str],
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    if script is not None:
        (folder / "git").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    refuses(lab, words, "apply")
    assert not lab.tree.exists()


def test_machine_without_git_is_said_by_a_process_of_its_own(tmp_path: Path) -> None:
    """A library that looks for git when it is imported must not come first."""
    command = [sys.executable, "-m", "forkpatch", "status"]
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("forkpatch status: git cannot be run")
    assert len(done.stderr.splitlines()) == 2


def test_clock_set_back_changes_nothing(lab: ForkLab) -> None:
    lab.ok("apply")
    before = snapshot(lab.tree)
    for path in [*lab.cache.rglob("*"), *(lab.root / ".work").rglob("*")]:
        if path.is_file():
            os.utime(path, (4e9, 4e9))
    assert lab.ok("status", "--json", "-").json["upstreams"][0]["state"] == "applied"
    lab.ok("apply")
    assert snapshot(lab.tree) == before


def test_private_umask_and_odd_paths(
    lab: ForkLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "a b" / "ä 中 'q' $x"
    odd.parent.mkdir()
    lab.root.rename(odd)
    lab.root = odd
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caché of mine"))
    old = os.umask(0o077)
    try:
        lab.ok("apply", "--mirror", f"calc={lab.repo.path}")
        assert lab.ok("status", "--json", "-").json["upstreams"][0]["state"] == "applied"
    finally:
        os.umask(old)


def test_cache_removed_while_it_is_used(lab: ForkLab) -> None:
    """However it ends, nothing half-made stays, and the next run works."""
    mirror = f"calc={lab.repo.path}"
    for turn in range(6):
        shutil.rmtree(lab.root / ".work", ignore_errors=True)
        process = lab.spawn("apply", "--mirror", mirror)
        while process.poll() is None:
            shutil.rmtree(lab.cache, ignore_errors=True)
            time.sleep(0.001)  # the core is for the process
        _, err = process.communicate()
        assert process.returncode in (0, 1, 2), err
        assert b"Traceback" not in err, err.decode()
        assert lab.tree.is_dir() == (process.returncode == 0), turn
        lab.ok("apply", "--mirror", mirror)


@pytest.mark.parametrize("value", ["/nowhere", ""])
def test_variables_of_git_play_no_part(
    lab: ForkLab, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    lab.change("a.patch", {"src/run.c": b"int run(void)\n{\n    return 1;\n}\n"})
    lab.ok("record")
    lab.repo.commit({"src/run.c": b"int run(int)\n{\n    return 2;\n}\n"}, "Go on")
    mirror = ("--mirror", f"calc={lab.repo.path}")
    verbs = [["probe", "calc", *mirror], ["watch", *mirror], ["apply"], ["export"], ["status"]]
    expected = [lab.ok(*verb).out for verb in verbs]
    for name in (
        *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_DIR", "GIT_INDEX_FILE"),
        *("GIT_NAMESPACE", "GIT_OBJECT_DIRECTORY", "GIT_SHALLOW_FILE", "GIT_WORK_TREE"),
        *("GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS", "GIT_REPLACE_REF_BASE", "GIT_TRACE"),
    ):
        monkeypatch.setenv(name, value)
    shutil.rmtree(lab.root / ".work")
    assert [lab.ok(*verb).out for verb in verbs] == expected


def test_limit_on_the_size_of_files_names_a_file_and_the_next_step(lab: ForkLab) -> None:
    # -X dev: every Python prints the errors that are ignored, as 3.13 does by itself.
    command = [sys.executable, "-X", "dev", "-m", "forkpatch", "--root", str(lab.root), "apply"]
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 0; "$@"', "bash", *command],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (1, 2)
    assert f"{lab.root}/.work/" in done.stderr and "File too large" in done.stderr
    assert "ulimit -f" in done.stderr and "Traceback" not in done.stderr


def test_work_folder_that_is_a_file_is_named(lab: ForkLab) -> None:
    shutil.rmtree(lab.root / ".work", ignore_errors=True)
    (lab.root / ".work").write_text("")
    refuses(lab, [".work is not a folder", "move it away"], "apply")


def test_report_that_cannot_be_written_is_refused_before_the_verb(
    lab: ForkLab, capsys: pytest.CaptureFixture[str]
) -> None:
    (lab.root / "notes").touch()
    for place, said in (("", "is a folder"), ("notes/x.json", "no file can be written in")):
        with pytest.raises(SystemExit) as ended:
            lab.run("apply", "--json", str(lab.root / place))
        assert ended.value.code == 2 and said in capsys.readouterr().err
    assert not lab.tree.exists()
    lab.ok("apply", "--json", str(lab.root / "out/x.json"))


def test_a_verb_leaves_no_process_behind(lab: ForkLab) -> None:
    lab.change("turn.patch", {"python/calc/core.py": core(sub="b - a")})
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    if not children.exists():
        pytest.skip("this kernel does not list the children of a process")
    before = children.read_text()
    lab.ok("record")
    assert children.read_text() == before
