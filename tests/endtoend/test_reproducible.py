# SPDX-License-Identifier: Apache-2.0
"""The same bytes from another path, user, time zone, umask, language and order of files.

The runtime and the libraries' sources are shared, and the program has no server: compiling those
takes minutes, and `nox -s reproduce` does it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from support import shared_builds, tiny_model
from support.shared_builds import CACHE, PROJECT

from crosslab.assemble.libraries import source_folders
from crosslab.assemble.runtime import build_runtime
from crosslab.models.sources.gguf_import import import_gguf

pytestmark = pytest.mark.slow

BUILD = """
import sys
from pathlib import Path
from crosslab.artifact.dist import RUN
from crosslab.artifact.package import package
from crosslab.artifact.sbom import Part
from crosslab.compile.driver import CompileRequest, compile_llama
from crosslab.compile.targets import LabTarget
from crosslab.artifact.dist import Dist, write_dist
from crosslab.assemble.kernels import KernelTarget, cached_kernels
from crosslab.assemble.link import LinkRequest, link_runner
from crosslab.models.config import read_config
from crosslab.models.llama_params import random_params
from crosslab.assemble.runtime import build_runtime
from crosslab.compile.modes import TILES
from crosslab.host.toolchain import find_cross

project, tree, cache, out, config = map(Path, sys.argv[1:])
config = read_config(config)
compiled = compile_llama(
    CompileRequest(
        tvm_tree=tree,
        config=config,
        target=LabTarget("riscv64", 256),
        kernels=cached_kernels(KernelTarget.RISCV64, cache),
        require_tensorize=True,
        mode=TILES,
    ),
    cache,
)
toolchain = find_cross()
linking = LinkRequest(
    runtime=build_runtime(tree, toolchain, cache),
    toolchain=toolchain,
    library=compiled.library,
    vlens=(256,),
    server=False,
)
files = {"run.sh": RUN, "runner": link_runner(linking, cache), "model.tar": compiled.library}
files["params"] = random_params(config, 1, cache)
about = {"release": "R", "target": "T", "inputs": {"upstreams": {"tvm": {}}}}
about |= {"model": "tiny", "quantization": "q0f32", "vlens": [256], "zvfh": False, "holds": {}}
about |= {"verdict": "unchecked", "links_again": True}
write_dist(Dist(out / "tiny", files, about, Part("tiny", "R", "Apache-2.0", shipped=True)))
print(*package([out / "tiny"], out))
"""
PARTS = (
    *("packages/groundwork/src/groundwork", "packages/crosslab/src/crosslab"),
    *("kernels", "cores", "overlays", "runner"),
)


def build(places: tuple[Path, ...], umask: int, **other: str) -> Path:
    """The artefact's tarball, from the paths of project, tree, cache, result and config."""
    environment = {**os.environ, **other, "PYTHONPATH": str(places[0] / "packages/crosslab/src")}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, *map(str, places)],
        env=environment,
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip().splitlines()[-1])


def copy_backwards(source: Path, target: Path) -> None:
    """Copy a folder; its files are made in the opposite order."""
    names = [p for p in source.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    for path in sorted(names, reverse=True):
        if ".git" not in path.relative_to(source).parts:
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / path.relative_to(source))


@pytest.mark.thorough
def test_artefact_is_the_same_from_anywhere(tmp_path: Path) -> None:
    cross = shared_builds.cross()
    tree = shared_builds.tvm_tree()
    shared = build_runtime(tree, cross, CACHE)
    # The model of other tests: its library in the user's cache was made by another process yet.
    tiny_model.write_gguf(tmp_path / "model.gguf")
    config = import_gguf(tmp_path / "model.gguf", tmp_path) / "config.json"
    usual = (PROJECT, tree, CACHE, tmp_path / "one", config)
    first = build(usual, 0o022, TZ="UTC", PYTHONHASHSEED="1")
    place = tmp_path / "ünother place" / "further down"
    for part in PARTS:
        copy_backwards(PROJECT / part, place / "project" / part)
    shutil.copyfile(PROJECT / "VERSIONS.lock", place / "project" / "VERSIONS.lock")
    copy_backwards(tree, place / "tvm")
    for folder in (shared.folder, *source_folders(CACHE).values()):
        shutil.copytree(folder, place / "cache" / folder.name)
    scratch = place / "scratch"
    scratch.mkdir()
    second = build(
        (place / "project", place / "tvm", place / "cache", place / "out", config),
        0o077,
        TZ="Pacific/Chatham",
        LC_ALL="C",
        USER="somebody",
        HOME=str(place),
        TMPDIR=str(scratch),
        PYTHONHASHSEED="2",
        SOURCE_DATE_EPOCH="1000000000",
    )
    made = {p.name.rpartition("-")[0] for p in (place / "cache").iterdir() if p.name[0] != "."}
    assert {"library", "kernels-riscv64", "runner-objects-riscv64", "runner-riscv64"} <= made
    assert contents(first) == contents(second)
    assert first.read_bytes() == second.read_bytes()
    runner = contents(second)["runner"]
    for word in (str(tmp_path), str(PROJECT), str(Path.home()), "further down"):
        assert word.encode() not in runner, f"the runner tells where it was built: {word}"


def contents(tarball: Path) -> dict[str, bytes]:
    """Content of each file, by its path in the artefact."""
    with tarfile.open(tarball) as archive:
        streams = {m.name.partition("/")[2]: archive.extractfile(m) for m in archive}
        return {name: stream.read() for name, stream in streams.items() if stream}
