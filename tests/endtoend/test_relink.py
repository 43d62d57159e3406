# SPDX-License-Identifier: Apache-2.0
"""An artefact's runner can be linked again from its files, also with other libraries."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support import shared_builds, tiny_runner

from crosslab.artifact.provenance import library_licences
from crosslab.artifact.relink import relinking
from crosslab.artifact.tarball import normalised_tar
from crosslab.assemble.link import link_runner, objects_of
from crosslab.host.toolchain import CompilerKind
from crosslab.run.emulator import run_guest

# It compiles a model's library and the runtime.
pytestmark = pytest.mark.slow

# Takes the place of the C library's own.
OWN_GETENV = """
#include <string.h>
#include <unistd.h>
extern char **environ;
char *getenv(const char *name) {
  static const char said[] = "another C library\\n";
  if (write(2, said, sizeof(said) - 1) < 0) return 0;
  size_t length = strlen(name);
  for (char **entry = environ; entry && *entry; ++entry)
    if (!strncmp(*entry, name, length) && (*entry)[length] == '=') return *entry + length + 1;
  return 0;
}
"""


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """runner, and the folder of its objects."""
    if shared_builds.cross().kind is not CompilerKind.CLANG:
        pytest.skip("only the GNU C library's licence asks for this")
    request = tiny_runner.riscv_request()
    runner = link_runner(request, shared_builds.CACHE)
    # A path with a blank, as somebody may unpack it.
    at = tmp_path_factory.mktemp("unpacked here") / "model"
    at.mkdir()
    for name, path in {**relinking(request, runner, shared_builds.CACHE), "runner": runner}.items():
        shutil.copy(path, at / name)
    assert request.library is not None
    (at / "model.tar").write_bytes(normalised_tar(request.library))
    return at


@pytest.mark.usefixtures("emulator")
def test_the_program_without_its_server_has_the_same_objects(tmp_path: Path) -> None:
    """So that the answer of one program holds for the other."""
    whole = tiny_runner.riscv_request()
    core = replace(whole, server=False)
    names = {}
    for name, request in {"whole": whole, "core": core}.items():
        (tmp_path / name).mkdir()
        found = objects_of(request, shared_builds.CACHE, tmp_path / name).all
        names[name] = [(path.name, path.read_bytes()) for path in found]
    assert [entry for entry in names["whole"] if entry in names["core"]] == names["core"]
    program = link_runner(core, shared_builds.CACHE)
    assert "--prompt" in run_guest(program, ["--help"]).stdout
    refused = run_guest(program, ["serve", "--help"], check=False)
    assert (refused.returncode, "there is no command 'serve'" in refused.stderr) == (2, True)


def relink(artefact: Path, cwd: Path, *words: str, **variables: str) -> None:
    tools = {"CXX": shared_builds.cross().cxx[0], "PATH": "/usr/bin:/bin"}
    command = [str(artefact / "relink.sh"), *words]
    subprocess.run(command, cwd=cwd, env={**tools, **variables}, check=True, timeout=300)


def test_it_is_the_same_program_again(artefact: Path, tmp_path: Path) -> None:
    relink(artefact, tmp_path)
    assert (tmp_path / "runner").read_bytes() == (artefact / "runner").read_bytes()


@pytest.mark.usefixtures("emulator")
def test_a_part_of_the_c_library_can_be_another(artefact: Path, tmp_path: Path) -> None:
    source, part = tmp_path / "own.c", tmp_path / "own.o"
    source.write_text(OWN_GETENV, encoding="utf-8")
    compiler = [*shared_builds.cross().cc, "-O2", "-c", str(source), "-o", str(part)]
    subprocess.run(compiler, check=True)
    relink(artefact, tmp_path, "changed", LDFLAGS=str(part))
    said = run_guest(tmp_path / "changed", ["--help"], check=False)
    before = run_guest(artefact / "runner", ["--help"], check=False)
    assert "another C library" in said.stderr
    assert "another C library" not in before.stderr
    assert (said.returncode, said.stdout) == (before.returncode, before.stdout)


def test_what_lies_there_names_no_place_of_this_machine(artefact: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(artefact / "objects.tar", tmp_path)
    words = (tmp_path / "link.txt").read_text(encoding="utf-8").split("\n")
    assert "-static" in words and "about.o" in " ".join(words)
    assert not [word for word in words if word.startswith("/") or "=/" in word]


def test_the_libraries_licences_are_at_hand() -> None:
    found = library_licences(shared_builds.cross())
    if shared_builds.cross().kind is not CompilerKind.CLANG:
        assert not found
        return
    assert "LESSER GENERAL PUBLIC LICENSE" in found["licenses/glibc/LGPL-2.1"].read_text("utf-8")
    assert "glibc" in found["licenses/glibc/copyright"].read_text("utf-8", "replace").lower()
    assert (
        "RUNTIME LIBRARY EXCEPTION"
        in found["licenses/libstdc++/copyright"].read_text("utf-8", "replace").upper()
    )
