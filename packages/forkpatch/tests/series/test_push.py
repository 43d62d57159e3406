# SPDX-License-Identifier: Apache-2.0
"""The verb ``push``: a series as a branch of a remote repository."""

from __future__ import annotations

from pathlib import Path

import pytest
from forklab import ForkLab, core, git

CORE_PATH = "python/calc/core.py"


@pytest.fixture
def remote(lab: ForkLab, tmp_path: Path) -> Path:
    """A bare clone of the upstream; the fork has two patches and an overlay."""
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn")
    lab.change("free.patch", {"LICENSE": b"ours\n"}, subject="Free")
    lab.overlays.joinpath("python/calc").mkdir(parents=True)
    lab.overlays.joinpath("python/calc/new.py").write_text("A = 1\n")
    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    folder = tmp_path / "remote.git"
    git(tmp_path, "clone", "-q", "--bare", str(lab.repo.path), str(folder))
    return folder


def test_a_branch_has_upstreams_commit_the_overlays_and_the_patches(
    lab: ForkLab, remote: Path
) -> None:
    done = lab.ok("push", "calc", str(remote), "ours/1.0")
    base = git(remote, "rev-parse", "v1.0^{commit}")
    assert f"calc 1.0: 2 patches on {base[:12]}, as ours/1.0 of {remote}" in done.out
    assert git(remote, "log", "--format=%s", f"{base}..ours/1.0") == "Free\nTurn\nOverlays"
    assert git(remote, "rev-parse", "ours/1.0~3") == base
    names = git(remote, "diff", "--name-only", base, "ours/1.0").split()
    assert names == ["LICENSE", CORE_PATH, "python/calc/new.py"]
    tip = git(remote, "rev-parse", "ours/1.0")
    lab.ok("push", "calc", str(remote), "ours/1.0")
    assert git(remote, "rev-parse", "ours/1.0") == tip


def test_another_series_replaces_the_branch_by_force_only(lab: ForkLab, remote: Path) -> None:
    lab.ok("push", "calc", str(remote), "ours")
    tip = git(remote, "rev-parse", "ours")
    (lab.patches / "series").write_text("free.patch\n")
    done = lab.run("push", "calc", str(remote), "ours")
    assert done.code == 1 and "--force" in done.err
    assert git(remote, "rev-parse", "ours") == tip
    lab.ok("push", "calc", str(remote), "ours", "--force")
    assert git(remote, "log", "-2", "--format=%s", "ours") == "Free\nOverlays"


def test_adopt_reads_a_pushed_branch_back(lab: ForkLab, remote: Path, tmp_path: Path) -> None:
    lab.ok("record")
    lab.ok("push", "calc", str(remote), "ours")
    before = {path.name: path.read_bytes() for path in lab.patches.iterdir()}
    for top in ("patches", "overlays"):
        (lab.root / top).rename(tmp_path / top)
    lab.ok("adopt", "calc", str(remote), "ours", "--version", "1.0")
    assert {path.name: path.read_bytes() for path in lab.patches.iterdir()} == before
    assert lab.overlays.joinpath("python/calc/new.py").read_text() == "A = 1\n"


def test_the_users_configuration_reaches_the_remote(lab: ForkLab, remote: Path) -> None:
    (lab.home / ".gitconfig").write_text(f'[url "{remote}"]\n\tinsteadOf = https://x.test/calc\n')
    lab.ok("push", "calc", "https://x.test/calc", "ours")
    assert git(remote, "log", "-1", "--format=%s", "ours") == "Free"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("ext::sh -c true", "ours"), 2, "is neither a folder nor a plain URL"),
        (("REMOTE", "no such"), 2, "'no such' is not a valid name of a branch"),
        (("/nowhere", "ours"), 1, "git push failed"),
    ],
)
def test_a_wrong_remote_or_branch_is_refused(
    lab: ForkLab, remote: Path, words: tuple[str, str], code: int, said: str
) -> None:
    typed = [word.replace("REMOTE", str(remote)) for word in words]
    done = lab.run("push", "calc", *typed)
    assert done.code == code and said in done.err


def test_a_new_file_in_the_place_of_one_that_is_left_out_is_refused(
    lab: ForkLab, remote: Path
) -> None:
    lab.overlays.joinpath("src").mkdir()
    lab.overlays.joinpath("src/gpu.cu").write_text("ours\n")
    done = lab.run("push", "calc", str(remote), "ours")
    assert done.code == 2 and "src/gpu.cu is a new file of the fork" in done.err
    assert "ours" not in git(remote, "branch", "--list")


def test_push_has_the_users_variables_but_those_of_a_repository(
    lab: ForkLab, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\nenv >{tmp_path}/seen\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(program))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "url.ssh://host/calc.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "short:calc")
    for name in ("GIT_DIR", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    done = lab.run("push", "calc", "short:calc", "ours")
    assert done.code == 1 and "git push failed" in done.err
    seen = (tmp_path / "seen").read_text()
    assert f"GIT_SSH_COMMAND={program}\n" in seen and "elsewhere" not in seen
