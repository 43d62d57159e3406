# SPDX-License-Identifier: Apache-2.0
"""A tarball on a bare machine: unpacked in an empty root, it answers in text."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import riscv_machine, shared_builds, text_probe, tiny_runner
from support.archives import unpack
from support.clients.llm_command import said_by_llm
from support.tiny_runner import CONFIG, VLEN

from crosslab.artifact.deb import package_name
from crosslab.artifact.dist import RUN, Dist, write_dist
from crosslab.artifact.package import debs, package
from crosslab.artifact.sbom import Part
from crosslab.artifact.verify import verify_tarball
from crosslab.assemble.link import link_runner
from crosslab.errors import UserError
from crosslab.host.toolchain import require_qemu
from crosslab.models.llama_params import random_weights
from crosslab.models.params import read_params, write_params
from crosslab.models.reference import answer
from crosslab.run.emulator import GuestMachine
from crosslab.tokenizer.device_tokenizer import pack

pytestmark = pytest.mark.usefixtures("emulator")

PROMPT = "a cab"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, finished."""
    at = tmp_path_factory.mktemp("artefact")
    linking = tiny_runner.riscv_request()
    (at / "params").mkdir()
    write_params(random_weights(CONFIG, 3), at / "params")
    (at / "tokenizer.bin").write_bytes(pack(text_probe.tiny(CONFIG.vocab)))
    files = {"run.sh": RUN, "runner": link_runner(linking, shared_builds.CACHE)}
    files |= {"params": at / "params", "tokenizer.bin": at / "tokenizer.bin"}
    about: dict[str, Any] = {"release": "2026.08", "target": "T"}
    about |= {"inputs": {"upstreams": {"tvm": {}}}}
    about |= {"verdict": "unchecked", "links_again": True}
    about |= {"model": "tiny", "quantization": "q0f32", "vlens": [256], "zvfh": False, "holds": {}}
    whole = Part("tiny", "R", "Apache-2.0", shipped=True, kind="application")
    write_dist(Dist(at / "tiny", files, about, whole))
    return at / "tiny"


@pytest.fixture(scope="module")
def artefact(folder: Path) -> Path:
    """The model as a tarball."""
    return package([folder], folder.parent)[0]


@dataclass(frozen=True)
class Finished:
    """A model that was made before, and the reference's answer to a prompt."""

    tarball: Path
    vlen: int
    prompt: str
    text: str


@dataclass(frozen=True)
class Spoken:
    """Answers of a booted machine.

    Attributes:
        first: to the first turn alone, on the console.
        chat: to each turn of a chat.
        served: to the first turn, by OpenAI's client, curl and llm.
        stopped: likewise, before the answer's third and fourth character.
    """

    first: str
    chat: list[str]
    served: list[str]
    stopped: str


def expected(tarball: Path, folder: Path, max_new: int, *turns: str) -> tuple[str, ...]:
    """The reference's greedy answers, as text, to turns of one conversation."""
    unpack(tarball, folder)
    tokenizer = text_probe.tiny(CONFIG.vocab)
    params = read_params(next(folder.glob("*/params")))
    messages: list[dict[str, str]] = []
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        ids = tokenizer.tokenizer.encode(
            tokenizer.chat_text(messages), add_special_tokens=False
        ).ids
        said = answer(CONFIG, params, ids, max_new=max_new, stop=tokenizer.stop_ids)
        messages.append({"role": "assistant", "content": tokenizer.decode(said.tokens)})
    return tuple(message["content"] for message in messages[1::2])


def test_it_answers_in_text_in_an_empty_root(artefact: Path, tmp_path: Path) -> None:
    tools = [shutil.which(name) for name in ("unshare", "chroot")]
    if not all(tools):
        pytest.skip("no root of its own can be made here: unshare or chroot is missing")
    chroot = [str(tools[0]), "--user", "--map-root-user", "--net", str(tools[1])]
    root = tmp_path / "root"
    riscv_machine.put(Path("/bin/sh"), root, "bin/sh")
    if subprocess.run([*chroot, str(root), "/bin/sh", "-c", ":"], check=False).returncode:
        pytest.skip("no root of its own can be made here: unshare and chroot are not allowed")
    # The emulator replaces the kernel of a riscv64 machine; all else is in the tarball.
    riscv_machine.put(require_qemu().path, root, "emulator/qemu-riscv64")
    assert verify_tarball(artefact)[0] == []
    (text,) = expected(artefact, root / "home", 4, PROMPT)
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


def test_it_answers_in_text_on_riscv64_linux(artefact: Path, tmp_path: Path) -> None:
    """Nothing of this machine in the root: run.sh's shell, too, is a riscv64 program."""
    (text,) = expected(artefact, tmp_path / "here", 4, PROMPT)
    run = riscv_machine.bare_root(tmp_path / "root", artefact)
    code, said = riscv_machine.in_namespaces(
        tmp_path / "root", [run, PROMPT, "--max-new", "4"], VLEN
    )
    assert code == 0, said
    assert said.startswith(text)


# Everything that run.sh does, one after the other; the server runs until the machine is ended.
SESSION = """
{run} '{prompt}' {options} 2>/tmp/log || cat /tmp/log
echo
echo chat:
{run} chat --temperature 0 {options} < /home/turns 2>/tmp/log || cat /tmp/log
echo serve:
exec {run} serve --host 0.0.0.0 --port 8000 --api-key-file /home/key --temperature 0
"""
KEY = "key-of-the-test-board"


def converse(root: Path, tarball: Path, vlen: int, turns: Sequence[str], max_new: int) -> Spoken:
    """Boot a machine with the tarball: ask by run.sh, chat, and serve this machine's clients."""
    openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
    run = riscv_machine.bare_root(root, tarball)
    session = SESSION.format(run=run, prompt=turns[0], options=f"--max-new {max_new}")
    for name, text in (("turns", "\n".join(turns) + "\n"), ("key", KEY), ("session", session)):
        (root / "home" / name).write_text(text, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["/bin/sh", "/home/session"]
    with riscv_machine.booted(root, words, vlen, forward=(port, 8000)) as machine:
        assert machine.stdout is not None
        console: list[str] = []
        for line in machine.stdout:
            console.append(line.rstrip("\r\n"))
            if " listens at " in line:
                break
        printed = "\n".join(console)
        assert " listens at http://0.0.0.0:8000" in printed, printed[-3000:]
        first, chat, _ = re.split(
            r"^(?:chat|serve):\n", printed.partition("answer:\n")[2], flags=re.M
        )
        url = f"http://127.0.0.1:{port}"
        asked = {"messages": [{"role": "user", "content": turns[0]}], "max_tokens": max_new}
        with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, timeout=1800) as client:
            (model,) = client.models.list()
            chunks = client.chat.completions.create(model=model.id, stream=True, **asked)
            streamed = "".join(c.choices[0].delta.content or "" for c in chunks)
            stop = {"stop": streamed[2:4], "model": model.id}
            stopped = client.chat.completions.create(**asked, **stop).choices[0].message.content
        curl = [shutil.which("curl") or pytest.skip("curl is not installed"), "--silent"]
        ask = [*curl, "--json", json.dumps(asked), f"{url}/v1/chat/completions"]
        key = ["--header", f"Authorization: Bearer {KEY}"]
        refused, answered = (
            json.loads(subprocess.run([*ask, *more], capture_output=True, check=True).stdout)
            for more in ([], key)
        )
        assert refused["error"]["code"] == "invalid_api_key"
        words = ["-o", "max_tokens", str(max_new), turns[0]]
        by_llm = said_by_llm(f"{url}/v1", model.id, words, root.parent, KEY).removesuffix("\n")
    content = answered["choices"][0]["message"]["content"]
    return Spoken(first, chat.splitlines(), [streamed, content, by_llm], stopped or "")


def test_it_answers_chats_and_serves_on_a_booted_machine(artefact: Path, tmp_path: Path) -> None:
    turns = [PROMPT, "b"]
    texts = expected(artefact, tmp_path / "here", 4, *turns)
    spoken = converse(tmp_path / "root", artefact, VLEN, turns, 4)
    assert spoken.first.startswith(texts[0])
    assert spoken.chat == list(texts)
    assert spoken.served == [texts[0]] * 3
    assert spoken.stopped == texts[0][: texts[0].index(texts[0][2:4])]
    assert len(set(texts)) == 2


# What a user does with the package; systemd runs it, and the console shows what it prints.
PACKAGE_UNIT = """
[Unit]
After=multi-user.target
[Service]
ExecStart=/bin/sh /opt/session
StandardOutput=file:/dev/ttyS0
StandardError=file:/dev/ttyS0
"""
PACKAGE_SESSION = """
ask() {{
    until /bin/busybox wget -q -O /dev/null http://127.0.0.1:8000/health; do sleep 1; done
    /bin/busybox wget -q -O - --header 'Content-Type: application/json' \\
        --post-data '{body}' http://127.0.0.1:8000/v1/chat/completions && echo
}}
dpkg --install /opt/package.deb
echo "enabled: $(systemctl is-enabled {name})"
ask
systemctl kill --signal KILL {name}
ask
echo 'MLC_RVV_OPTIONS="--port 8000 --max-seq 0"' >/etc/default/{name}
systemctl restart {name}
sleep 3
echo "with a wrong option: $(systemctl is-active {name})"
dpkg --purge {name}
files=$(ls -d /usr/lib/mlc-rvv /etc/default/{name} /var/lib/private/*)
echo "left: $(systemctl is-active {name}) $files"
echo finished
"""


@pytest.mark.thorough
def test_a_debian_system_installs_the_package_and_serves(folder: Path, tmp_path: Path) -> None:
    """By dpkg and systemd, booted; the service comes back after a kill, and is gone afterwards."""
    (deb,) = debs([folder], tmp_path)
    (text,) = expected(package([folder], tmp_path)[0], tmp_path / "here", 4, PROMPT)
    root = tmp_path / "root"
    root.mkdir()
    riscv_machine.debian_root(root, ["busybox-static", "systemd-sysv"])
    asked = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4, "temperature": 0}
    name = package_name("tiny")
    session = PACKAGE_SESSION.format(name=name, body=json.dumps(asked))
    (root / "opt").mkdir(exist_ok=True)
    shutil.copy(deb, root / "opt/package.deb")
    (root / "opt/session").write_text(session, encoding="utf-8")
    units = root / "etc/systemd/system"
    (units / "session.service").write_text(PACKAGE_UNIT, encoding="utf-8")
    (units / "multi-user.target.wants").mkdir(exist_ok=True)
    (units / "multi-user.target.wants/session.service").symlink_to("../session.service")
    (units / "default.target").symlink_to("/usr/lib/systemd/system/multi-user.target")
    words = ["exec", "/usr/lib/systemd/systemd"]
    with riscv_machine.booted(root, words, VLEN) as machine:
        assert machine.stdout is not None
        console = [*itertools.takewhile(lambda line: line.strip() != "finished", machine.stdout)]
    printed = "".join(console)
    answers = [json.loads(line) for line in console if line.startswith("{")]
    assert [a["choices"][0]["message"]["content"] for a in answers] == [text, text], printed
    assert "enabled: enabled" in printed
    assert re.search("with a wrong option: (activating|failed)", printed), printed
    assert re.search("left: (inactive|failed) *\r?\n", printed), printed


@pytest.fixture
def finished(tmp_path: Path) -> Finished:
    """The pinned model as build_and_test left it."""
    report = shared_builds.PROJECT / "out" / "build_and_test.json"
    try:
        done = json.loads(report.read_text(encoding="utf-8"))
        tarball = package([Path(done["dist"])], tmp_path)[0]
    except (OSError, UserError) as error:
        pytest.skip(f"no finished model here; make one with: nox -s build_and_test ({error})")
    return Finished(tarball, done["vlen"], done["prompt"], done["text"])


@pytest.mark.long
def test_the_finished_model_answers_on_riscv64_linux(finished: Finished, tmp_path: Path) -> None:
    run = riscv_machine.bare_root(tmp_path / "root", finished.tarball)
    words = [run, finished.prompt]
    code, said = riscv_machine.in_namespaces(tmp_path / "root", words, finished.vlen)
    assert code == 0, said
    assert said.startswith(finished.text)


@pytest.mark.long
def test_the_finished_model_chats_and_serves_on_a_booted_machine(
    finished: Finished, tmp_path: Path
) -> None:
    turns = [finished.prompt, "And of Italy?"]
    root = tmp_path / "root"
    spoken = converse(root, finished.tarball, finished.vlen, turns, len(finished.text))
    print(spoken)
    assert spoken.first.startswith(finished.text)
    assert [spoken.chat[0], *spoken.served] == [finished.text] * 4
    assert spoken.stopped == finished.text[:2]
    assert any(letter.isalpha() for letter in spoken.chat[1])


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
