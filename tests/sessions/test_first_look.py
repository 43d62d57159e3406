# SPDX-License-Identifier: Apache-2.0
"""Mistakes in options of sessions are answered without any package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sessions import options

# Each session's words, and the two lines that answer them; nothing: the session may begin.
CASES = (
    ("model", "", "nox -s model: missing: MODEL\n  options: nox -s model -- --help"),
    ("model", "m.gguf", ""),
    ("model", "gone.gguf", "gone.gguf is not there\n  give a folder"),
    ("model", "text.gguf", "not a GGUF file: it begins with b'vers'\n  download the file again"),
    ("model", "./empty", "empty has no config.json\n  give a Hugging Face folder"),
    ("model", "m.gguf --corr", "there is no option --corr; did you mean --core?\n  options:"),
    ("model", "m.gguf --mirrors x", "there is no option --mirrors; did you mean --mirror?"),
    ("model", "m.gguf --mirror mlc=.", "no such upstream\n  did you mean: --mirror mlc-llm"),
    ("model", "m.gguf --mirror mlc-llm=gone", "there is no such folder\n  give a folder"),
    ("model", "m.gguf --release 2026", "no such release\n  did you mean: --release 2026."),
    ("model", "m.gguf --core SpacemiT-X60", ""),
    ("model", "m.gguf --core spacemit-x6", "did you mean spacemit-x60?"),
    ("model", "m.gguf --core spacemit-k1", "is a board; did you mean its core, spacemit-x60?"),
    ("model", "m.gguf --core spacemit-x60 --vlen 128", "spacemit-x60 has 256\n  leave out --vlen"),
    ("model", "m.gguf --quantization Q4F16_1", "is not known; did you mean q4f16_1?"),
    ("model", "m.gguf --threads 0", "--threads 0 is too small\n  give 1 or more"),
    ("build_and_test", "--model nothing", "is not pinned in"),
    ("build_and_test", "--accelerator x", "is not installed\n  nox -s build_and_test -- --with"),
    ("build_and_test", "--accelerator x --with accelerator-study", ""),
    ("build_and_test", "--with boards", "no such package\n  did you mean: --with board-farm"),
    ("tests", "--require mlc", "there is no such upstream\n  did you mean: --require mlc-llm"),
    ("patches", "", ""),  # it prints its help
    ("patches", "edti tvm", "argument VERB: 'edti' is not known; did you mean edit?"),
    ("apply_patches", "--relase 1", "there is no option --relase; did you mean --release?"),
    ("lock", "--chek", "there is no option --chek; did you mean --check?"),
    ("rebase", "", "missing: UPSTREAM"),
    ("upstream_tests", "--foo", "there is no option --foo"),
    ("upstream_tests", "--jobs 0", "0 is too small; give 1 or more"),
    (
        "upstream_tests",
        "--test-timeout nan",
        "'nan' is not a number of seconds above 0 and at most 10000000",
    ),
    ("bench", "--against upstrem", "no such variant\n  did you mean: --against upstream"),
    ("host_bench", "--prefill 1", "give prompts of 2 tokens or more"),
    ("zoo", "--family llam", "no family llam\n  did you mean: --family llama"),
    ("farm", "upp", "'upp' is not known; did you mean up?"),
    ("farm", "tune-kernels", "missing: --core"),
    ("cost", "layer x", "'layer' is not known; did you mean layers?"),
    ("torch", "m.py", "give FILE.py:FACTORY"),
    ("report", "--outptu x", "did you mean --output?"),
    ("package", "verify", "missing: TARBALL_OR_FOLDER"),
)
# All in one process, without a package but Python's library; the answers as JSON.
PROGRAM = """
import contextlib, io, json, sys
from sessions import machine, options
machine.check_room = machine.check_tools = lambda *_, **__: None
found = []
for session, words, _ in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            code = options.look(session, words.split())
        except SystemExit as ended:
            code = ended.code
    found.append((code, said.getvalue()))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "m.gguf").write_bytes(b"GGUF")
    (folder / "text.gguf").write_text("version https://git-lfs")
    (folder / "empty").mkdir()
    sources = [options.ROOT / "scripts", *options.ROOT.glob("packages/*/src")]
    paths = "".join(f"sys.path.append({str(path)!r})\n" for path in sources)
    command = [sys.executable, "-S", "-c", f"import sys\n{paths}{PROGRAM}", json.dumps(CASES)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return [(code, said) for code, said in json.loads(done.stdout)]


@pytest.mark.parametrize("at", range(len(CASES)), ids=lambda at: " ".join(CASES[at][:2]))
def test_a_mistake_is_answered_in_two_lines(answers: list[tuple[int, str]], at: int) -> None:
    (code, said), expected = answers[at], CASES[at][2]
    if not expected:
        assert (code, said) == (0, "")
        return
    assert code == 2
    assert len(said.splitlines()) == 2
    assert said.startswith(f"nox -s {CASES[at][0]}: ") and expected in said


def test_help_needs_no_package() -> None:
    command = [sys.executable, "-S", options.__file__, "model", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--mirror NAME=PATH_OR_URL" in done.stdout and "--quantization" in done.stdout


def test_every_session_with_options_is_looked_at() -> None:
    text = (Path(options.ROOT) / "noxfile.py").read_text(encoding="utf-8")
    names = {line[4:].partition("(")[0] for line in text.splitlines() if line.startswith("def ")}
    # pytest and mkdocs read their own options.
    assert names - {"tests", "unit", "lint", "docs"} == options.COMMANDS.keys()
