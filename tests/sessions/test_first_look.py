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
    ("model", "-x", "there is no option -x\n  options: nox -s model -- --help"),
    ("model", "--corr=x", "there is no option --corr=x; did you mean --core?"),
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
    ("patches", "status --offline", "--offline is not an option of this verb\n  options:"),
    ("apply_patches", "--relase 1", "there is no option --relase; did you mean --release?"),
    ("lock", "--chek", "there is no option --chek; did you mean --check?"),
    # A part of a name would reach one of the two programs that pin, and not the other.
    ("lock", "--chec", "there is no option --chec; did you mean --check?"),
    ("package", "--de", "there is no option --de; did you mean --deb?"),
    ("build_and_test", "--mirror tvm=", "there is no such folder\n  give a folder"),
    ("build_and_test", "--source tvm=tar", "no such source\n  sources: wheel, git"),
    ("build_and_test", "--activations int8", "not multiplied with weights in q0f32\n  use --q"),
    ("rebase", "", "missing: UPSTREAM"),
    ("upstream_tests", "--foo", "there is no option --foo"),
    ("upstream_tests", "--jobs 0", "'0' is not a whole number of 1 or more"),
    ("upstream_tests", "--jobs x", "'x' is not a whole number of 1 or more"),
    ("upstream_tests", "--mirror tvn=.", "no such upstream\n  did you mean: --mirror tvm"),
    ("upstream_tests", "--release 2026", "no such release\n  did you mean: --release 2026."),
    ("upstream_tests", "--without nothing", "no series of release 2026.08 has it\n  name a patch"),
    ("upstream_tests", "nothing", "part of no path that patches/UPSTREAM/upstream-tests.toml"),
    ("upstream_tests", "--choose --only x", "--only has no effect with --choose; leave it out"),
    ("upstream_tests", "--choose --jobs 2", "--jobs has no effect with --choose; leave it out"),
    ("upstream_tests", "--choose x", "FILE has no effect with --choose; leave it out"),
    ("upstream_tests", "--choose --offline --release 2026.08", ""),
    ("upstream_tests", "--without tree-attn-cpu-mask-score.patch test_tree_attn", ""),
    (
        "upstream_tests",
        "--test-timeout nan",
        "'nan' is not a number of seconds above 0 and at most 10000000",
    ),
    ("bench", "--against upstrem", "no such variant\n  did you mean: --against upstream"),
    ("bench", "--predict", "needs the core of a board\n  give --core spacemit-x60"),
    ("bench", "--predict --core spacemit-x60 --quantization gguf --model qwen3-0.6b", ""),
    ("bench", "--peer openblas --depth 4", "do not read the cache\n  leave out --depth"),
    ("bench", "--peer llama.cpp --threads 2", "runs in one thread only\n  leave out --threads"),
    ("bench", "--quantization q4f32_1 q0f32 --activations int8", "with weights in q0f32"),
    ("bench", "--quantization q4f32_1 gguf --activations int8", ""),
    ("bench", "--no-zvfh", "uses Zvfh\n  leave out --no-zvfh, or name such a core"),
    ("bench", "--no-zvfh --core spacemit-x60", ""),
    ("bench", "--scheduler localhost:1 --predict", "workers do not support it\n  leave out"),
    ("bench", "--scheduler localhost:1", ""),
    ("bench", "--worker localhost:1 --decode 9", "--decode has no effect with --worker"),
    ("bench", "--worker localhost:1 --worker-port 9", ""),
    ("bench", "--worker localhost:1 --worker-port 65536", "'65536' is not a port; give 1 to 6553"),
    ("bench", "--json .", "'.' is a folder; give the name of a file\n  options:"),
    ("bench", "--json text.gguf/x", "no file can be written in"),
    ("bench", "--json /dev/null", ""),
    ("host_bench", "--json new/folder/x.json", ""),
    ("cost", "--gemm 8,8,8 --csv .", "'.' is a folder; give the name of a file"),
    ("cost", "--gemm 8,8,8 --plots text.gguf", "'text.gguf' is not a folder; give the name of a"),
    ("cost", "layers vta --gemm 8,8,8 --json text.gguf/x", "no file can be written in"),
    ("patches", "status --json .", "'.' is a folder; give the name of a file"),
    ("zoo", "--work text.gguf", "'text.gguf' is not a folder; give the name of a folder"),
    ("farm", "tune-kernels --core spacemit-x60 --database m.gguf", "'m.gguf' is not a folder"),
    ("package", "--output text.gguf/x", "no file can be written in"),
    ("host_bench", "--model gone.json", "is not a file\n  give S, or the path of a config.json"),
    ("host_bench", "--prefill 32768", "do not fit a context of 32768\n  give less to --prefill"),
    ("host_bench", "--prefill 1", "give prompts of 2 tokens or more"),
    ("zoo", "--family llam", "no family llam\n  did you mean: --family llama"),
    ("zoo", "--timeout nan", "'nan' is not a number of seconds above 0"),
    ("zoo", "--list --docs x", "--docs has no effect with --list; leave it out"),
    ("zoo", "--report-only --rerun", "--rerun has no effect with --report-only; leave it out"),
    ("zoo", "--report-only --docs x --core spacemit-x60", ""),
    ("zoo", "--worker localhost:1 --rerun", "--rerun has no effect with --worker; leave it out"),
    ("farm", "upp", "'upp' is not known; did you mean up?"),
    ("farm", "up --boards 2 --core spacemit-x60 --key x60 --port 1 --board-port 65534", ""),
    ("farm", "up --boards 2 --board-port 65535", "need ports above 65535\n  give at most 65534"),
    ("farm", "up --port 65536", "'65536' is not a port; give 1 to 65535"),
    ("farm", "up --join localhost:1 --port 2", "is for a new tracker\n  leave out --port"),
    ("farm", "up --join here", "is not HOST:PORT\n  for example 127.0.0.1:9190"),
    ("farm", "up --force", "accepts a tracker\n  add --join HOST:PORT"),
    ("farm", "status --key x", "--key has no effect with status; leave it out"),
    ("farm", "down --boards 0", "--boards has no effect with down; leave it out"),
    ("farm", "pack --core spacemit-x60", "--core has no effect with pack; leave it out"),
    ("farm", "scheduler --join localhost:1", "--join has no effect with scheduler; leave it out"),
    ("farm", "scheduler --port 1", ""),
    ("farm", "board --join localhost:1 --boards 2", "--boards has no effect with board"),
    ("farm", "board", "needs a tracker\n  give --join HOST:PORT"),
    ("farm", "tune-kernels", "missing: --core"),
    ("cost", "layer x", "'layer' is not known; did you mean layers?"),
    ("torch", "m.py", "give FILE.py:FACTORY"),
    ("report", "--outptu x", "did you mean --output?"),
    ("lint", "--fix", "there is no option --fix"),
    ("lint", "--offline", ""),
    ("reproduce", "--cache x", "--cache is chosen here, or changes no file: leave it out"),
    ("reproduce", "--vlen 100", "'100' is not a supported length; choose from 128"),
    ("reproduce", "--vlen 128 --quantization q4f32_1 --model m.gguf", ""),
    ("package", "verify", "missing: TARBALL_OR_FOLDER"),
    ("package", "verify --offline", "missing: TARBALL_OR_FOLDER"),
    ("package", "verify --offlin", "there is no option --offlin"),
    ("report", "--offline", ""),
    ("cost", "layer x --offline", "'layer' is not known; did you mean layers?"),
    ("reproduce", "--offline --vlen 100", "'100' is not a supported length; choose from 128"),
    ("reproduce", "--offline", ""),
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
    assert names - {"tests", "unit", "docs"} == options.COMMANDS.keys()
