# SPDX-License-Identifier: Apache-2.0
"""`nox -s reproduce`: what it compares, and that it notices a difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from groundwork.errors import CommandError
from sessions import reproduce
from sessions.reproduce import absolute, compare, main, places


def write(folder: Path, **files: bytes) -> Path:
    for name, data in files.items():
        (folder / "sub").mkdir(parents=True, exist_ok=True)
        (folder / "sub" / name).write_bytes(data)
    return folder


def test_equal_folders_are_equal(tmp_path: Path) -> None:
    one = write(tmp_path / "one", a=b"a", b=b"")
    other = write(tmp_path / "other", a=b"a", b=b"")
    assert compare(one, other) == (["sub/a", "sub/b"], [])


def test_each_difference_is_named_with_its_place(tmp_path: Path) -> None:
    one = write(tmp_path / "one", same=b"s", bytes=b"abc", longer=b"ab", lone=b"")
    other = write(tmp_path / "other", same=b"s", bytes=b"abd", longer=b"abc")
    equal, differ = compare(one, other)
    assert equal == ["sub/same"]
    assert differ == [
        "sub/bytes: 3 and 3 bytes, different from byte 2 on",
        "sub/lone: only in one of them",
        "sub/longer: 2 and 3 bytes, different from byte 2 on",
    ]


def test_the_two_places_differ_in_everything(tmp_path: Path) -> None:
    one, other = places(tmp_path / "x", tmp_path / "y")
    first, second = one.environment(), other.environment()
    for name in ("HOME", "USER", "TZ", "LANG", "TMPDIR", "XDG_CACHE_HOME", "PYTHONHASHSEED"):
        assert first[name] != second[name]
    assert "SOURCE_DATE_EPOCH" in second and "SOURCE_DATE_EPOCH" not in first
    assert one.umask != other.umask
    assert not str(other.project).isascii() and " " in str(other.project)


@pytest.mark.parametrize(
    "words",
    ["--release 2026.10", "--cache=/tmp/x", "--vlen 128 --project .", "--json x"],
)
def test_what_both_places_need_is_not_chosen(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert "is chosen here, or changes no file: leave it out" in capsys.readouterr().err


def test_paths_are_those_of_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my model").mkdir()
    monkeypatch.chdir(tmp_path)
    words = ["--model", "my model", "--tuned=my model", "--prompt", "my model", "--model", "pinned"]
    there = str(tmp_path / "my model")
    expected = ["--model", there, f"--tuned={there}", "--prompt", "my model", "--model", "pinned"]
    assert absolute(words) == expected


@pytest.mark.parametrize(("program", "code"), [("raise SystemExit(2)", 2), ("raise OSError", 1)])
def test_a_build_that_fails_ends_without_a_traceback(
    tmp_path: Path, program: str, code: int
) -> None:
    place = places(tmp_path, tmp_path)[0]
    place.project.mkdir(parents=True)
    (place.project / "builder.py").write_text(program, encoding="utf-8")
    with pytest.raises(CommandError, match="builder failed in") as failed:
        place.run("builder")
    assert failed.value.exit_code == code


def test_a_checkout_without_git_ends_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert main([]) == 1
    assert f"reproduce: git cannot read {tmp_path}" in capfd.readouterr().err
