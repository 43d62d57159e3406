# SPDX-License-Identifier: Apache-2.0
"""The CMake project: what is compiled again, the text of an error, objects without folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from crosslab.assemble import cmake, link
from crosslab.assemble.cmake import Configuration, build_objects
from crosslab.assemble.runtime import Runtime
from crosslab.errors import LabError, UserError
from crosslab.host.toolchain import Machine, find_native

PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(things LANGUAGES C CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
include(cmake/objects.cmake)
add_objects(things ROOT ${PROJECT_SOURCE_DIR} SOURCES sub/one.cc two.cc OPTIONS -O1
            PLACES ${PROJECT_SOURCE_DIR}=.)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project with the runner's own function."""
    return make_project(tmp_path / "first place", monkeypatch)


def make_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder / "sub").mkdir(parents=True)
    shutil.copytree(link.RUNNER / "cmake", folder / "cmake")
    (folder / "CMakeLists.txt").write_text(PROJECT, encoding="utf-8")
    (folder / "sub" / "one.cc").write_text("const char* One() { return __FILE__; }\n")
    (folder / "two.cc").write_text("int Two() { return 2; }\n")
    monkeypatch.setattr(cmake, "RUNNER", folder)
    return folder


def build(cache: Path, out: Path) -> Path:
    out.mkdir(parents=True)
    return build_objects("things", Configuration(find_native()), ["things"], cache, out)


def test_only_a_changed_source_is_compiled_again(project: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder = build(cache, tmp_path / "out" / "1")
    assert {path.name for path in (tmp_path / "out" / "1").iterdir()} == {
        *("sub-one.o", "two.o", "things.flags.json"),
    }
    flags = json.loads((tmp_path / "out" / "1" / "things.flags.json").read_text("utf-8"))
    assert "-O1" in flags and not [flag for flag in flags if "/" in flag]
    times = {path.name: path.stat().st_mtime_ns for path in folder.rglob("*.o")}
    (project / "two.cc").write_text("int Two() { return 3; }\n")
    assert build(cache, tmp_path / "out" / "2") == folder
    again = {path.name: path.stat().st_mtime_ns for path in folder.rglob("*.o")}
    assert [name for name in times if again[name] != times[name]] == ["two.cc.o"]


def test_objects_are_the_same_from_another_folder(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "cache", tmp_path / "out" / "1")
    make_project(tmp_path / "ünother", monkeypatch)
    build(tmp_path / "other" / "cache", tmp_path / "out" / "2")
    for name in ("sub-one.o", "two.o"):
        first, second = ((tmp_path / "out" / n / name).read_bytes() for n in "12")
        assert first == second
        assert str(tmp_path).encode() not in first


def test_an_error_shows_the_compilers_words(project: Path, tmp_path: Path) -> None:
    (project / "two.cc").write_text("int Two() { return x; }\n")
    with pytest.raises(LabError, match="compiling things failed") as caught:
        build(tmp_path / "cache", tmp_path / "out")
    assert "two.cc:1" in caught.value.what and "return x" in caught.value.what


def test_a_missing_tool_is_named() -> None:
    with pytest.raises(UserError, match="no-such-tool, which builds C"):
        cmake.find_tool("no-such-tool")


def test_sources_that_change_while_they_are_compiled_leave_no_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, cache = tmp_path / "runner", tmp_path / "cache"
    shutil.copytree(link.RUNNER, sources)

    def build_objects(*_: object) -> None:
        with (sources / "input" / "log.cc").open("a", encoding="utf-8") as file:
            file.write("// another line\n")

    monkeypatch.setattr(link, "RUNNER", sources)
    monkeypatch.setattr(link, "build_objects", build_objects)
    runtime = Runtime(tmp_path / "runtime", Machine.HOST, (), ())
    monkeypatch.setattr(link, "source_variables", lambda _: {})
    monkeypatch.setattr(link, "configuration_of", lambda tools, *_: Configuration(tools, {}))
    request = link.LinkRequest(runtime, find_native(), server=False)
    with pytest.raises(LabError, match="changed while it was compiled"):
        link.link_runner(request, cache)
    assert not list(cache.glob("runner-objects-*"))
