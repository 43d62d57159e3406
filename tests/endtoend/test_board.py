# SPDX-License-Identifier: Apache-2.0
"""A tarball on a bare machine: unpacked in an empty root, it answers in text."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from support import riscv_machine, shared_builds, text_probe, tiny_runner
from support.archives import unpack
from support.tiny_runner import CONFIG, VLEN

from crosslab.artifact.dist import RUN, Dist, write_dist
from crosslab.artifact.package import package
from crosslab.artifact.sbom import Part
from crosslab.artifact.verify import verify_tarball
from crosslab.build.link import link_runner
from crosslab.errors import UserError
from crosslab.host.toolchain import require_qemu
from crosslab.models.llama_params import random_weights
from crosslab.models.params import read_params, write_params
from crosslab.models.reference import answer
from crosslab.run.emulator import GuestMachine
from crosslab.tokenizer.device_tokenizer import pack

pytestmark = pytest.mark.emulator

PROMPT = "a cab"


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tarball of a tiny model."""
    shared_builds.need_emulator()
    at = tmp_path_factory.mktemp("artefact")
    linking = tiny_runner.riscv_request()
    assert linking.library is not None
    (at / "params").mkdir()
    write_params(random_weights(CONFIG, 3), at / "params")
    (at / "tokenizer.bin").write_bytes(pack(text_probe.tiny(CONFIG.vocab)))
    files = {"run.sh": RUN, "runner": link_runner(linking, shared_builds.CACHE)}
    files |= {
        "model.tar": linking.library,
        "params": at / "params",
        "tokenizer.bin": at / "tokenizer.bin",
    }
    about = {"release": "R", "target": "T", "inputs": {"upstreams": {"tvm": {}}}}
    whole = Part("tiny", "R", "Apache-2.0", shipped=True, kind="application")
    write_dist(Dist(at / "tiny", files, about, whole))
    return package(at / "tiny", at)


def expected(tarball: Path, folder: Path, max_new: int) -> str:
    """The reference's answer to the prompt, as text."""
    unpack(tarball, folder)
    tokenizer = text_probe.tiny(CONFIG.vocab)
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
    riscv_machine.put(Path("/bin/sh"), root, "bin/sh")
    if subprocess.run([*chroot, str(root), "/bin/sh", "-c", ":"], check=False).returncode:
        pytest.skip("no root of its own can be made here: unshare and chroot are not allowed")
    # The emulator stands for the kernel of a riscv64 machine; all else is in the tarball.
    riscv_machine.put(require_qemu().path, root, "emulator/qemu-riscv64")
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


Machine = Callable[[Path, Sequence[str], int], tuple[int, str]]
MACHINES = pytest.mark.parametrize("machine", [riscv_machine.in_namespaces, riscv_machine.booted])


@MACHINES
def test_it_answers_in_text_on_riscv64_linux(
    artefact: Path, tmp_path: Path, machine: Machine
) -> None:
    """Nothing of this machine in the root: run.sh's shell, too, is a riscv64 program."""
    text = expected(artefact, tmp_path / "here", 4)
    run = riscv_machine.bare_root(tmp_path / "root", artefact)
    code, said = machine(tmp_path / "root", [run, PROMPT, "--max-new", "4"], VLEN)
    assert code == 0, said
    assert said.startswith(text)


@pytest.mark.long
@MACHINES
def test_the_finished_model_answers_on_riscv64_linux(tmp_path: Path, machine: Machine) -> None:
    report = shared_builds.PROJECT / "out" / "build_and_test.json"
    try:
        done = json.loads(report.read_text(encoding="utf-8"))
        tarball = package(Path(done["dist"]), tmp_path)
    except (OSError, UserError) as error:
        pytest.skip(f"no finished model here; make one with: nox -s build_and_test ({error})")
    run = riscv_machine.bare_root(tmp_path / "root", tarball)
    code, said = machine(tmp_path / "root", [run, done["prompt"]], done["vlen"])
    assert code == 0, said
    assert said.startswith(done["text"])


def test_another_emulated_cpu_is_refused_in_words(artefact: Path, tmp_path: Path) -> None:
    unpack(artefact, tmp_path)
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
