# SPDX-License-Identifier: Apache-2.0
"""A tarball on a bare machine: unpacked in an empty root, it answers in text."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
import runner_kit
import text_kit
from test_runner import CHUNK, CONFIG, VLEN

from crosslab.artifact.contents import RUN
from crosslab.artifact.package import package
from crosslab.artifact.sbom import Part
from crosslab.artifact.verify import verify_tarball
from crosslab.compile.driver import CompileRequest, compile_llama
from crosslab.compile.targets import LabTarget
from crosslab.dist import Dist, write_dist
from crosslab.emulator import GuestMachine
from crosslab.link import LinkRequest, link_runner
from crosslab.models.device_tokenizer import pack
from crosslab.models.llama_params import random_weights
from crosslab.models.params import read_params, write_params
from crosslab.models.reference import answer
from crosslab.toolchain import require_qemu

PROMPT = "a cab"


def put(program: Path, root: Path, name: str) -> None:
    """Put a program of this machine into the root, with the libraries that it loads."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(program, root / name)
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True)
    for library in re.findall(r"(/\S+) \(0x", listed.stdout):
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tarball of a tiny model."""
    runner_kit.need_emulator()
    at = tmp_path_factory.mktemp("artefact")
    tree, target = runner_kit.tvm_tree(), LabTarget("riscv64", VLEN)
    request = CompileRequest(tree, CONFIG, target, prefill_chunk=CHUNK)
    library = compile_llama(request, runner_kit.CACHE).library
    linking = LinkRequest(
        runner_kit.runtime(), runner_kit.cross(), library=library, required_vlen=VLEN
    )
    (at / "params").mkdir()
    write_params(random_weights(CONFIG, 3), at / "params")
    (at / "tokenizer.bin").write_bytes(pack(text_kit.tiny(CONFIG.vocab)))
    files = {"run.sh": RUN, "runner": link_runner(linking, runner_kit.CACHE)}
    files |= {"model.tar": library, "params": at / "params", "tokenizer.bin": at / "tokenizer.bin"}
    about = {"release": "R", "target": "T", "inputs": {"upstreams": {"tvm": {}}}}
    whole = Part("tiny", "R", "Apache-2.0", shipped=True, kind="application")
    write_dist(Dist(at / "tiny", files, about, whole))
    return package(at / "tiny", at)


def expected(tarball: Path, folder: Path, max_new: int) -> str:
    """The reference's answer to the prompt, as text."""
    with tarfile.open(tarball) as archive:
        archive.extractall(folder, filter="data")
    tokenizer = text_kit.tiny(CONFIG.vocab)
    ids = tokenizer.chat_ids(PROMPT)
    params = read_params(next(folder.glob("*/params")))
    said = answer(CONFIG, params, ids, max_new=max_new, stop=tokenizer.stop_ids)
    return tokenizer.decode(said.tokens)


def test_it_answers_in_text_in_an_empty_root(artefact: Path, tmp_path: Path) -> None:
    tools = [shutil.which(name) for name in ("unshare", "chroot")]
    if not all(tools):
        pytest.skip("no root of its own can be made here: unshare or chroot is missing")
    chroot = [str(tools[0]), "--user", "--map-root-user", "--net", str(tools[1])]
    root = tmp_path / "root"
    put(Path("/bin/sh"), root, "bin/sh")
    if subprocess.run([*chroot, str(root), "/bin/sh", "-c", ":"], check=False).returncode:
        pytest.skip("no root of its own can be made here: unshare and chroot are not allowed")
    # The emulator stands for the kernel of a riscv64 machine; all else is in the tarball.
    put(require_qemu().path, root, "emulator/qemu-riscv64")
    assert verify_tarball(artefact)[0] == []
    text = expected(artefact, root / "home", 4)
    (model,) = (root / "home").iterdir()
    emulator = f"/emulator/qemu-riscv64 -cpu {GuestMachine(vlen=VLEN).cpu}"
    done = subprocess.run(
        [*chroot, str(root), f"/home/{model.name}/run.sh", PROMPT, "--max-new", "4"],
        env={"MLC_RVV_EMULATOR": emulator, "TVM_NUM_THREADS": "1"},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode("utf-8", "replace").startswith(text)
    assert np.any([c.isalpha() for c in text])


def test_another_emulated_cpu_is_refused_in_words(artefact: Path, tmp_path: Path) -> None:
    with tarfile.open(artefact) as archive:
        archive.extractall(tmp_path, filter="data")
    (model,) = tmp_path.iterdir()
    short = f"{require_qemu().path} -cpu {GuestMachine(vlen=128).cpu}"
    done = subprocess.run(
        ["./run.sh", PROMPT],
        cwd=model,
        env={"MLC_RVV_EMULATOR": short},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert "128" in done.stderr and "256" in done.stderr
