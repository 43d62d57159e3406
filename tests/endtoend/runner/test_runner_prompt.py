# SPDX-License-Identifier: Apache-2.0
"""One prompt to the runner, on this machine: files that it writes, values that it refuses."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import tiny_runner


@pytest.fixture(scope="module")
def params(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("params")
    return tiny_runner.write_random_params(tiny_runner.host_library().library, folder)


@pytest.fixture
def command(host_runner: Path, params: Path) -> list[str]:
    return [str(host_runner), "--params", str(params), "--tokens", "5,17,2"]


def fails(command: list[str], code: int, message: str) -> None:
    environment = tiny_runner.host_environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("runner: ") and message in done.stderr


@pytest.mark.parametrize("option", ["--logits", "--roundings"])
def test_a_full_device_is_a_failure(command: list[str], option: str) -> None:
    message = f"{option}: writing /dev/full failed; is the disk full?"
    fails([*command, option, "/dev/full"], 1, message)
    assert Path("/dev/full").is_char_device()


def test_a_full_disk_keeps_no_part_of_a_file(
    command: list[str], disk: Callable[[str], Any]
) -> None:
    small = disk("16k")
    (small.path / "link").symlink_to(small.path / "logits")
    for name in ("logits", "link"):
        asked = [*command, "--max-new", "99", "--logits", str(small.path / name)]
        fails(asked, 1, f"--logits: writing {small.path / name} failed; is the disk full?")
        assert [path.name for path in small.path.iterdir()] == ["link"]


def test_a_refused_prompt_leaves_no_file(command: list[str], tmp_path: Path) -> None:
    for option in ("--logits", "--roundings"):
        asked = [*command[:-1], "97", option, str(tmp_path / "file")]
        fails(asked, 2, "token 97 is outside the vocabulary of 97")
    assert not [*tmp_path.iterdir()]


def test_a_stop_token_outside_of_the_vocabulary_is_refused(command: list[str]) -> None:
    fails(
        [*command, "--stop", "96,99999"], 2, "--stop: token 99999 is outside the vocabulary of 97"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top-p", "0"], "--top-p: 0 keeps no token"),
        (["--min-p", "2"], "--min-p: 2 is outside 0 to 1"),
        (["--repetition-penalty", "0"], "--repetition-penalty: it must be above 0"),
        (["--presence-penalty", "3"], "--presence-penalty: 3 is outside -2 to 2"),
        (["--logit-bias", "1:101"], "--logit-bias: 101 is outside -100 to 100"),
        (["--logit-bias", "97:1"], "--logit-bias: token 97 is outside the vocabulary of 97"),
    ],
)
def test_a_refused_value_is_named_by_its_option(
    command: list[str], options: list[str], message: str
) -> None:
    fails([*command, *options], 2, f"runner: {message}")
