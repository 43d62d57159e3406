# SPDX-License-Identifier: Apache-2.0
"""The verb ``submit``: patches made for another commit of the upstream."""

from __future__ import annotations

from pathlib import Path

import pytest
from forklab import CORE, FILES, ForkLab, Link, core, git, message

CORE_PATH = "python/calc/core.py"
DRIFT = b"import os\n\n\n"


@pytest.fixture
def series(lab: ForkLab) -> ForkLab:
    """Two patches for upstream, with one between them that is not, and one that needs that."""
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn")
    ours = message("Ours").replace("Pending", "Inappropriate [only here]")
    lab.add_patch("ours.patch", lab.repo.patch({"LICENSE": b"ours\n"}, ours))
    lab.change("more.patch", {"LICENSE": b"ours, all\n"}, subject="More")
    files = {CORE_PATH: core(sub="b - a", mul="2 * a"), "python/tests/test_mul.py": b"A = 1\n"}
    lab.change("twice.patch", files, subject="Twice")
    git(lab.repo.path, "checkout", "-q", "-B", "next", "v1.0")
    return lab


def test_patches_apply_to_that_commit_with_plain_git(series: ForkLab, tmp_path: Path) -> None:
    commit = series.repo.commit({CORE_PATH: DRIFT + CORE}, "Drift")
    output = tmp_path / "out"
    command = ("submit", "calc", "--onto", "next", "--output", str(output))
    done = series.ok(*command)
    assert "left out: ours.patch: Upstream-Status is Inappropriate [only here]" in done.out
    assert "left out: more.patch: it needs ours.patch" in done.out
    assert f"calc 1.0 onto {commit[:12]}: 2 patches in {output}" in done.out
    assert "have no names" not in done.out
    names = ["0001-turn.patch", "0002-twice.patch"]
    assert sorted(path.name for path in output.iterdir()) == names
    git(series.repo.path, "am", "-q", *(str(output / name) for name in names))
    assert (series.repo.path / CORE_PATH).read_bytes() == DRIFT + core(sub="b - a", mul="2 * a")
    assert (series.repo.path / "python/tests/test_mul.py").read_bytes() == b"A = 1\n"
    assert "Upstream-Status: Pending" in git(series.repo.path, "log", "-1", "--format=%B")
    again = series.run(*command)
    assert again.code == 2 and "exists" in again.err


def test_branch_has_a_commit_a_patch(series: ForkLab, tmp_path: Path) -> None:
    commit = series.repo.commit({CORE_PATH: DRIFT + CORE}, "Drift")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(series.repo.path), str(clone))
    command = ("submit", "calc", "--onto", commit, "--branch", "sent")
    for folder, options in (
        (series.repo.path, ()),
        (clone, ("--repository", str(clone))),
    ):
        done = series.ok(*command, *options)
        assert f"calc 1.0 onto {commit[:12]}: 2 patches in sent of {folder / '.git'}" in done.out
        assert git(folder, "log", "--format=%s", f"{commit}..sent") == "Twice\nTurn"
        assert git(folder, "rev-parse", "sent~2") == commit
        assert "Forkpatch-Name" not in git(folder, "log", "--format=%B", f"{commit}..sent")
        text = git(folder, "show", f"sent:{CORE_PATH}") + "\n"
        assert text.encode() == DRIFT + core(sub="b - a", mul="2 * a")
    before = git(clone, "rev-parse", "sent")
    again = series.run(*command, "--repository", str(clone))
    assert again.code == 2 and "has a branch sent" in again.err
    assert git(clone, "rev-parse", "sent") == before


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--branch", "a..b"), "'a..b' is not a valid name of a branch"),
        (("--branch", "sent", "--repository", "."), "is not a git repository with next"),
        (("--output", "out", "--repository", "."), "--repository is for --branch"),
    ],
)
def test_branch_that_cannot_be_made_is_the_users_mistake(
    series: ForkLab,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    error: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = series.run("submit", "calc", "--onto", "next", *options)
    assert done.code == 2 and error in done.err
    assert not (tmp_path / "out").exists()


def test_files_that_a_patch_names_go_with_it(lab: ForkLab, tmp_path: Path) -> None:
    text = f"{message('Turn').rstrip()}\nSubmit-With: tests/test_turn.py\n"
    text += "Submit-With: python/calc/extra.py\n"
    lab.add_patch("turn.patch", lab.repo.patch({CORE_PATH: core(sub="b - a")}, text))
    git(lab.repo.path, "checkout", "-q", "-B", "next", "v1.0")
    command = ("submit", "calc", "--onto", "next", "--output", str(tmp_path / "out"))
    missing = lab.run(*command)
    assert missing.code == 2
    assert "turn.patch: Submit-With tests/test_turn.py: there is no such file" in missing.err
    assert "tests/test_turn.py: there is no such file" in lab.run("check").out
    files = {
        "patches/calc/submit/tests/test_turn.py": b"TURN = 1\n",
        "patches/calc/submit/tests/test_more.py": b"MORE = 1\n",
        "overlays/calc/python/calc/extra.py": b"EXTRA = 1\n",
    }
    for path, data in files.items():
        (lab.root / path).parent.mkdir(parents=True, exist_ok=True)
        (lab.root / path).write_bytes(data)
    assert "submit/tests/test_more.py: no patch names it" in lab.run("check").out
    lab.ok(*command)
    git(lab.repo.path, "am", "-q", str(tmp_path / "out/0001-turn.patch"))
    assert git(lab.repo.path, "show", "--format=", "--name-status").split("\n") == [
        "M\tpython/calc/core.py",
        "A\tpython/calc/extra.py",
        "A\ttests/test_turn.py",
    ]
    assert (lab.repo.path / "tests/test_turn.py").read_bytes() == b"TURN = 1\n"
    lab.ok("apply")
    assert (lab.tree / "python/calc/extra.py").exists()
    assert not (lab.tree / "tests/test_turn.py").exists()


def test_a_file_that_several_patches_name_goes_with_the_first(lab: ForkLab, tmp_path: Path) -> None:
    for name, after in (("turn", core(sub="b - a")), ("twice", core(sub="b - a", mul="2 * a"))):
        text = f"{message(name.title()).rstrip()}\nSubmit-With: tests/test_core.py\n"
        lab.add_patch(f"{name}.patch", lab.repo.patch({CORE_PATH: after}, text))
    path = lab.root / "patches/calc/submit/tests/test_core.py"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"CORE = 1\n")
    git(lab.repo.path, "checkout", "-q", "-B", "next", "v1.0")
    lab.ok("submit", "calc", "--onto", "next", "--output", str(tmp_path / "out"))
    files = sorted((tmp_path / "out").iterdir())
    git(lab.repo.path, "am", "-q", *map(str, files))
    names = git(lab.repo.path, "log", "-2", "--format=", "--name-status").split()
    assert names == ["M", CORE_PATH, "M", CORE_PATH, "A", "tests/test_core.py"]


def test_what_upstream_has_already_is_left_out(series: ForkLab, tmp_path: Path) -> None:
    series.repo.commit({CORE_PATH: DRIFT + core(sub="b - a")}, "Turn, by another")
    done = series.ok("submit", "calc", "--onto", "next", "--output", str(tmp_path / "out"))
    assert "left out: turn.patch: upstream has it already" in done.out
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["0001-twice.patch"]


def test_conflict_is_named_and_nothing_is_written(series: ForkLab, tmp_path: Path) -> None:
    series.repo.commit({CORE_PATH: core(sub="a - b - 0")}, "Other")
    done = series.run("submit", "calc", "--onto", "next", "--output", str(tmp_path / "out"))
    assert done.code == 1
    assert "turn.patch: conflict: it conflicts with python/calc/core.py" in done.out
    assert "nothing was written" in done.out
    assert not list(tmp_path.glob("*out*"))


def test_change_that_would_land_in_another_function_is_a_conflict(
    series: ForkLab, tmp_path: Path
) -> None:
    taken = CORE[CORE.index(b"def sub") : CORE.index(b"\n\ndef mul")]
    renamed = CORE.replace(b"def sub(a, b):", b"def minus(a, b):") + taken
    series.repo.commit({CORE_PATH: renamed}, "Rename, and take the name")
    done = series.run("submit", "calc", "--onto", "next", "--output", str(tmp_path / "out"))
    assert done.code == 1
    detail = "misplaced: it changes minus now, and changed sub before"
    assert f"turn.patch: conflict: {CORE_PATH}: {detail}, and line 25 of" in done.out
    assert not list(tmp_path.glob("*out*"))


RUN = FILES["src/run.c"]


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        pytest.param(
            {"src/run.c": None, "src/go.c": RUN + b"/* ours */\n"},
            {"src/go.c": b"int go;\n"},
            "src/go.c is there already",
            id="renamed to a new file of upstream's",
        ),
        pytest.param(
            {"src/tools": b"ours\n"}, {"src/tools/a": b"a\n"}, "src/tools/a is there", id="folder"
        ),
        pytest.param(
            {"src/tools/a": b"ours\n"}, {"src/tools": b"a\n"}, "src/tools is there", id="file"
        ),
        pytest.param({}, {"src/run.c": Link(b"../LICENSE")}, "src/run.c is a symbolic", id="mode"),
    ],
)
def test_file_of_upstream_that_a_patch_would_replace_is_a_conflict(
    lab: ForkLab,
    tmp_path: Path,
    ours: dict[str, bytes | None],
    theirs: dict[str, bytes],
    said: str,
) -> None:
    if not ours:
        (lab.repo.path / "src/run.c").chmod(0o755)
    lab.change("x.patch", ours)
    git(lab.repo.path, "checkout", "-q", "-B", "next", "v1.0")
    lab.repo.commit(theirs, "Next")
    done = lab.run("submit", "calc", "--onto", "next", "--output", str(tmp_path / "out"))
    assert done.code == 1 and "x.patch: conflict: " in done.out and said in done.out
    assert not (tmp_path / "out").exists()
    rows = lab.ok("probe", "calc", "--versions", "v1.0", "next", "--json", "-").json["rows"]
    assert [row["outcome"] for row in rows] == ["applies", "conflict"]


@pytest.mark.parametrize(
    "ours",
    [
        {"LICENSE": Link(b"src/run.c")},
        {"LICENSE": None, "LICENSE/free": b"free\n"},
        {"src/link": None, "src/other": Link(b"run.c")},
    ],
)
def test_patch_that_changes_the_kind_or_name_of_a_file_is_sent(
    lab: ForkLab, ours: dict[str, bytes | None]
) -> None:
    lab.repo.commit({"src/link": Link(b"run.c")}, "Link")
    git(lab.repo.path, "tag", "-f", "v1.0")
    lab.locked(tag="")
    lab.change("x.patch", ours)
    lab.ok("apply")
    wanted = git(lab.repo.path, "rev-parse", "HEAD^{tree}")
    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    lab.ok("submit", "calc", "--onto", "v1.0", "--branch", "next")
    assert git(lab.repo.path, "rev-parse", "next^{tree}") == wanted
    (row,) = lab.ok("probe", "calc", "--versions", "v1.0", "--json", "-").json["rows"]
    assert row["outcome"] == "applies"


def test_file_that_is_not_parsed_is_named(series: ForkLab, tmp_path: Path) -> None:
    git(series.repo.path, "checkout", "-q", "--detach", "v1.0")
    series.change("free.patch", {"LICENSE": b"freer\n"})
    (series.patches / "series").write_text("free.patch\n")
    done = series.ok("submit", "calc", "--onto", "next", "--output", str(tmp_path / "out"))
    assert "no grammar for LICENSE: its functions have no names here" in done.out


def test_url_that_is_a_folder_needs_no_mirror(series: ForkLab, tmp_path: Path) -> None:
    (series.cache / "mirrors.json").unlink()
    series.ok("submit", "calc", "--onto", "next", "--output", str(tmp_path / "out"))
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_revision_that_no_mirror_has_is_the_users_mistake(series: ForkLab, tmp_path: Path) -> None:
    done = series.run("submit", "calc", "--onto", "1" * 40, "--output", str(tmp_path / "out"))
    assert done.code == 2 and "no mirror of calc on this machine has" in done.err
    assert not (tmp_path / "out").exists()
