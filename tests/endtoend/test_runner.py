# SPDX-License-Identifier: Apache-2.0
"""The runner on a tiny model under QEMU: its answers against numpy, its refusals by message."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
from support import shared_builds, text_probe, tiny_runner
from support.tiny_runner import CHUNK, CONFIG, VLEN

from crosslab.assemble.link import LinkRequest, link_runner
from crosslab.assemble.runner import join_libraries
from crosslab.compile.driver import compile_llama
from crosslab.compile.targets import LabTarget, prefix_of
from crosslab.errors import LabError
from crosslab.host.toolchain import CompilerKind
from crosslab.models.params import INDEX_FILE, read_params
from crosslab.models.reference import Answer, answer
from crosslab.run.emulator import GuestMachine, require_qemu, run_guest
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from crosslab.tokenizer.device_tokenizer import pack

pytestmark = pytest.mark.usefixtures("emulator")

PROMPT = [5, 17, 96, 0, 33, 8, 41, 2, 60, 77, 13]
MAX_NEW = 6


@pytest.fixture(scope="module")
def library() -> Path:
    return compile_llama(tiny_runner.riscv_compilation(), shared_builds.CACHE).library


@pytest.fixture(scope="module")
def runner() -> Path:
    return link_runner(tiny_runner.riscv_request(), shared_builds.CACHE)


@pytest.fixture(scope="module")
def params(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runner.write_random_params(library, tmp_path_factory.mktemp("params"))


@pytest.fixture(scope="module")
def expected(params: Path) -> Answer:
    return answer(CONFIG, read_params(params), PROMPT, max_new=MAX_NEW)


def words(params: Path, *more: str, tokens: list[int] | None = None) -> list[str]:
    ids = ",".join(map(str, tokens or PROMPT))
    return ["--params", str(params), "--tokens", ids, "--max-new", str(MAX_NEW), *more]


def run(runner: Path, arguments: list[str], vlen: int = VLEN) -> CompletedProcess[str]:
    return run_guest(runner, arguments, GuestMachine(vlen=vlen, timeout=120), check=False)


def check_answer(result: CompletedProcess[str], logits: Path, expected: Answer) -> dict[str, Any]:
    assert result.returncode == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    assert report["tokens"] == list(expected.tokens)
    rows = np.fromfile(logits, "<f4").reshape(-1, CONFIG.vocab)
    largest = np.abs(expected.logits).max()
    assert rows.shape == expected.logits.shape
    assert np.abs(rows - expected.logits).max() < 1e-4 * largest
    return report


@pytest.mark.parametrize(("chunk", "calls"), [(CHUNK, 1), (11, 1), (4, 3), (1, 11)])
def test_answers_as_numpy_does(
    runner: Path, params: Path, expected: Answer, tmp_path: Path, chunk: int, calls: int
) -> None:
    logits = tmp_path / "logits.bin"
    more = ["--json", "--logits", str(logits), "--prefill-chunk", str(chunk)]
    report = check_answer(run(runner, words(params, *more)), logits, expected)
    assert report["prompt_tokens"] == len(PROMPT)
    assert report["vlen"] == VLEN
    assert report["logits_file"] == str(logits)
    assert len(report["prefill_seconds"]) == calls
    assert len(report["decode_seconds"]) == MAX_NEW - 1


@pytest.mark.parametrize("vlen", [512, 1024])
def test_answers_with_longer_vectors_than_compiled_for(
    runner: Path, params: Path, expected: Answer, tmp_path: Path, vlen: int
) -> None:
    logits = tmp_path / "logits.bin"
    arguments = words(params, "--json", "--logits", str(logits))
    check_answer(run(runner, arguments, vlen), logits, expected)


@pytest.mark.thorough
def test_a_program_for_several_lengths_takes_the_longest_that_fits(
    params: Path, expected: Answer, tmp_path: Path
) -> None:
    one = tiny_runner.riscv_compilation()
    libraries = {
        vlen: compile_llama(
            replace(one, target=LabTarget("riscv64", vlen), prefix=prefix_of(vlen)),
            shared_builds.CACHE,
        )
        for vlen in (128, 512)
    }
    joined = join_libraries(libraries, shared_builds.CACHE)
    request = replace(tiny_runner.riscv_request(), library=joined.library, vlens=(128, 512))
    program = link_runner(request, shared_builds.CACHE)
    logits = tmp_path / "logits.bin"
    arguments = words(params, "--json", "--logits", str(logits))
    for vlen, chosen in ((128, 128), (256, 128), (512, 512), (1024, 512)):
        report = check_answer(run(program, arguments, vlen), logits, expected)
        assert report["vlen"] == chosen
    refuses(run(program, arguments, 0), "of at least 128 bits, but this CPU has no vector")


def test_answers_in_one_batch_are_those_alone(runner: Path, params: Path, expected: Answer) -> None:
    others = [[(token + shift) % CONFIG.vocab for token in PROMPT[shift:]] for shift in (1, 2, 3)]
    beside = [word for ids in others for word in ("--beside", ",".join(map(str, ids)))]
    report = json.loads(run(runner, words(params, "--json", *beside)).stdout)
    assert report["tokens"] == list(expected.tokens)
    values = read_params(params)
    alone = [answer(CONFIG, values, ids, max_new=MAX_NEW).tokens for ids in others]
    assert report["beside"] == [list(tokens) for tokens in alone]


def test_stops_after_a_stop_token(runner: Path, params: Path, expected: Answer) -> None:
    stop = expected.tokens[2]
    end = expected.tokens.index(stop) + 1
    result = run(runner, words(params, "--json", "--stop", f"96,{stop}"))
    assert json.loads(result.stdout)["tokens"] == list(expected.tokens[:end])


def test_prints_for_people(runner: Path, params: Path, expected: Answer) -> None:
    result = run(runner, words(params))
    assert result.stdout.splitlines()[0] == "tokens: " + " ".join(map(str, expected.tokens))


@pytest.fixture(scope="module")
def words_of_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ChatTokenizer]:
    """A tokenizer with as many tokens as the model, some of them halves of characters."""
    tokenizer = text_probe.tiny(CONFIG.vocab)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.bin"
    path.write_bytes(pack(tokenizer))
    return path, tokenizer


@pytest.mark.parametrize("raw", [False, True])
def test_answers_in_text(
    runner: Path, params: Path, words_of_model: tuple[Path, ChatTokenizer], raw: bool
) -> None:
    path, tokenizer = words_of_model
    prompt = "caf\u00e9 \U0001f600?"
    ids = tokenizer.tokenizer.encode(prompt).ids if raw else tokenizer.chat_ids(prompt)
    asked = ["--params", str(params), "--tokenizer", str(path), "--prompt", prompt]
    asked += ["--max-new", "12", *(["--raw"] if raw else [])]
    expected = answer(CONFIG, read_params(params), ids, max_new=12, stop=tokenizer.stop_ids)
    told = run(runner, [*asked, "--json"])
    assert told.returncode == 0, told.stderr
    report = json.loads(told.stdout)
    assert report["prompt_ids"] == ids
    assert report["tokens"] == list(expected.tokens)
    assert report["text"] == tokenizer.decode(expected.tokens)
    spoken = run(runner, asked)
    assert (spoken.returncode, spoken.stdout) == (0, report["text"] + "\n")


def test_a_prompt_comes_from_a_file(
    runner: Path, params: Path, words_of_model: tuple[Path, ChatTokenizer], tmp_path: Path
) -> None:
    path, tokenizer = words_of_model
    (tmp_path / "prompt").write_bytes(b"two\nlines\x00")
    asked = ["--params", str(params), "--tokenizer", str(path), "--json"]
    ids = tokenizer.chat_ids("two\nlines\x00")
    never = ["--stop", "96", "--logit-bias", "96:-100"]
    told = run(runner, [*asked, "--prompt-file", str(tmp_path / "prompt"), *never])
    assert json.loads(told.stdout)["prompt_ids"] == ids
    # Nobody said how many tokens: as many as fit.
    assert len(json.loads(told.stdout)["tokens"]) == CONFIG.context - len(ids)
    refuses(
        run(runner, [*asked, "--prompt-file", str(tmp_path)]),
        f"cannot read {tmp_path}: it is a folder",
    )
    refuses(run(runner, [*asked, "--prompt", " \n"]), "the prompt is blank")
    refuses(run(runner, [*asked, "--prompt", "", "--raw"]), "the text has no tokens in this model")
    (tmp_path / "prompt").write_bytes(b"ab\xff")
    refused = run(runner, [*asked, "--prompt-file", str(tmp_path / "prompt")])
    refuses(refused, "--prompt-file: byte 2 is not UTF-8")


def test_a_tokenizer_of_another_model_is_refused(
    runner: Path, params: Path, tmp_path: Path
) -> None:
    other = text_probe.trained("gpt2")
    (tmp_path / "tokenizer.bin").write_bytes(pack(other))
    asked = ["--params", str(params), "--tokenizer", str(tmp_path / "tokenizer.bin")]
    refused = run(runner, [*asked, "--prompt", "hello"])
    tokens = other.tokenizer.get_vocab_size()
    refuses(refused, f"the tokenizer has {tokens} tokens, but the model has 97")


def test_raw_float32_is_taken_as_it_is(
    library: Path, runner: Path, params: Path, tmp_path: Path
) -> None:
    random = np.random.default_rng(11)
    about = json.loads((library.parent / "model.json").read_text())["params"]
    values = {p["name"]: random.standard_normal(p["shape"]).astype(np.float32) for p in about}
    records, blob = [], b""
    for name, value in values.items():
        data = value.tobytes()
        place = {"nbytes": len(data), "byteOffset": len(blob), "format": "raw"}
        records.append({"name": name, "shape": value.shape, "dtype": "float32", **place})
        blob += data
    shard = {"dataPath": "all.bin", "format": "raw-shard", "nbytes": len(blob), "records": records}
    (tmp_path / "all.bin").write_bytes(blob)
    (tmp_path / INDEX_FILE).write_text(json.dumps({"metadata": {}, "records": [shard]}))
    logits = tmp_path / "logits.bin"
    result = run(runner, words(tmp_path, "--json", "--logits", str(logits)))
    check_answer(result, logits, answer(CONFIG, values, PROMPT, max_new=MAX_NEW))


def test_parameters_that_stay_on_the_disk(
    runner: Path, params: Path, expected: Answer, tmp_path: Path
) -> None:
    folder, logits = tmp_path / "new/mapped", tmp_path / "logits.bin"
    mapped = ["--json", "--logits", str(logits), "--map-params", str(folder)]

    def ask(arguments: list[str] = mapped) -> tuple[str, bytes]:
        """Return what the runner says of the file, and the file's content."""
        told = run(runner, words(params, *arguments))
        check_answer(told, logits, expected)
        (file,) = folder.iterdir()
        return told.stderr, file.read_bytes()

    _, whole = ask()
    assert ask() == ("", whole)
    (file,) = folder.iterdir()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    for content, said in (
        (bytes(damaged), f"{file} is damaged: it is written again"),
        (whole[:-32] + bytes(32), ""),  # as a killed run leaves it
        (whole[:-7], ""),
        (b"", ""),
    ):
        file.write_bytes(content)
        told, again = ask()
        assert said in told and again == whole
    # A shard that is damaged later is not read any more, and a stale file is not used for others.
    file.write_bytes(bytes(damaged))
    unchecked = run(runner, words(params, *mapped, "--no-params-check"))
    assert unchecked.returncode == 0 and file.read_bytes() == bytes(damaged)
    refuses(
        run(runner, words(params, "--map-params", str(file))), f"--map-params: cannot open {file}/"
    )
    refuses(run(runner, words(params, "--map-params", "/proc")), "--map-params: cannot open /proc/")
    assert list(folder.iterdir()) == [file]


def test_says_that_memory_is_lacking(runner: Path, params: Path, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 4 kB\nSwapFree: 3 kB\n")
    bound = f"mount --bind {tmp_path}/meminfo /proc/meminfo"
    enter = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*enter, bound], check=False).returncode:
        pytest.skip("no namespaces of its own can be made here")
    program = tmp_path / "qemu"
    qemu = require_qemu()
    inside = f'{bound} && exec {qemu.path} "$@"'
    program.write_text(f'#!/bin/sh\nexec {shlex.join([*enter, inside])} sh "$@"\n')
    program.chmod(0o755)
    told = run_guest(
        *(runner, words(params), GuestMachine(vlen=VLEN)),
        qemu=replace(qemu, path=program),
        check=False,
    )
    refuses(told, "not enough memory: the parameters take 0 MiB, and 0 MiB are available; --map-")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--what"], "unknown option '--what'; --help lists the options"),
        (["--tokens"], "--tokens needs a value"),
        (["--tokens", "1"], "--params is missing"),
        (["--params", "x"], "--tokens is missing"),
        (["--params", "x", "--tokens", "1", "--stop-text", "a"], "--stop-text needs --tokenizer"),
        (["--params", "x", "--tokenizer", "y"], "--prompt is missing"),
        (["--params", "x", "--prompt", "y"], "needs --tokenizer"),
        (["--params", "x", "--prompt", "y", "--tokens", "1"], "give only one of --prompt"),
        (["--params", "x", "--tokens", "1", "--raw"], "--raw needs a text prompt"),
        (
            ["--params", "x", "--tokenizer", "/no.bin", "--prompt", "y"],
            "/no.bin: No such",
        ),
        (["--params", "x", "--tokenizer", "/dev/zero", "--prompt", "y"], "/dev/zero is longer"),
        (["--params", "x", "--tokens", "1", "--beside", "2"], "needs --tokens and --json"),
        (
            ["--params", "x", "--tokens", "1", "--json", "--beside", "2,3"],
            "a prompt of 2 tokens is longer than the prompt of --tokens, which has 1",
        ),
        (["--params", "x", "--tokens", "1,,2"], "--tokens: '' is not a whole number"),
        (["--params", "x", "--tokens", "1,a"], "--tokens: 'a' is not a whole number"),
        (["--params", "x", "--tokens", "-1"], "--tokens: -1 is outside 0 to 2147483647"),
        (["--params", "x", "--tokens", "99999999999999999999"], "99999999999999999999 is outside"),
        (["--params", "x", "--tokens", "1", "--seed", "-9" + "9" * 20], "is outside 0 to"),
        (["--params", "x", "--tokens", "1", "--logits", ""], "--logits: the path is empty"),
        (["--params", "x", "--tokens", "1", "--lib", ""], "--lib: the path is empty"),
        (["--params", "x", "--tokens", "1", "--map-params", ""], "--map-params: the path is empty"),
        (["--params", ""], "--params: the path is empty"),
        (["--params", "x", "--tokens", "1", "--logit-bias", "3"], "'3' must be ID:X"),
        (
            ["--params", "x", "--tokens", "1", "--logits", "y", "--roundings", "y"],
            "--logits and --roundings would both write y",
        ),
        (
            ["--params", "/", "--tokens", "1", "--roi-depth", "64"],
            "--roi-depth 64 leaves no room in a sequence of 64 tokens",
        ),
        (["--params", "x", "--tokens", "1", "--max-new", "0"], "--max-new: 0 is outside 1 to"),
        (["--params", "x", "--tokens", "1", "--roi", "some"], "--roi: 'some' is not one of"),
        (["--params", "x", "--tokens", "1", "--context-full", "refuse"], "--context-full needs"),
        (["run", "--params", "x", "--vocab", "8"], "--vocab is not an option of run; runner run"),
        (["run", "--params", "x", "--outputs", "y"], "--inputs is missing"),
        (
            ["--params", "x", "--chat", "--tokenizer", "y", "--roi-depth", "1"],
            "combined with --roi-depth",
        ),
        (
            ["--params", "/", "--tokens", "1", "--max-new", "8", "--roi-depth", "60"],
            "do not fit into a sequence of 4 tokens, after --roi-depth 60",
        ),
        (["--params", "/nowhere", "--tokens", "1"], "cannot read /nowhere/tensor-cache.json"),
        (
            ["--params", "/", "--tokens", "1,2", "--max-seq", "1"],
            "the prompt has 2 tokens, more than",
        ),
        (
            ["--params", "/", "--tokens", "1", "--max-seq", "8", "--max-new", "8"],
            "do not fit into a sequence of 8 tokens",
        ),
        (["--params", "/", "--tokens", "1", "--max-new", "64"], "do not fit into a sequence of 64"),
        (
            ["--params", "/", "--tokens", "1", "--max-seq", "65"],
            "more than the model's context of 64",
        ),
        (
            ["--params", "/", "--tokens", "1", "--prefill-chunk", "33"],
            "more than the model library",
        ),
        (
            ["--params", "/", "--tokens", "1", "--check-vlen", "512"],
            "registers of at least 512 bits",
        ),
        (["--params", "/", "--tokens", "1", "--lib", "/no.so"], "--lib: cannot read /no.so"),
    ],
)
def test_refuses_bad_arguments(runner: Path, arguments: list[str], message: str) -> None:
    refuses(run(runner, arguments), message)


PRINTING = ("--help", "--describe", "--openapi")
COMMANDS = ((), ("serve",), ("bench",), ("run",))
# Of options that do not accept 1. The last two end the runner, after all options are read.
VALUES = {"--roi": "both", "--roi-span": "call", "--context-full": "slide", "--log-level": "info"}
VALUES |= {"--logit-bias": "1:1", "--cors": "*", "--lib": "/no.so", "--api-key-file": "/no.keys"}
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]+)( [A-Z]+)?")
OF_RUNNER = (
    *("docs/api.md", "docs/chat.md", "docs/serve.md", "runner/README.md"),
    "packages/crosslab/src/crosslab/artifact/board_readme.md",
)


@pytest.fixture(scope="module")
def helped(runner: Path) -> dict[tuple[str, ...], dict[str, bool]]:
    """The options that each command's --help names, and whether they have a value."""
    told = {command: run(runner, [*command, "--help"]).stdout for command in COMMANDS}
    # Above the list, the usage has options of other commands.
    texts = {command: text.partition("\n\n")[2] for command, text in told.items()}
    valued = {option for text in texts.values() for option, value in OPTION.findall(text) if value}
    return {
        command: {option: option in valued for option, _ in OPTION.findall(text)}
        for command, text in texts.items()
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_accepts_every_option_of_its_help(
    runner: Path, helped: dict[tuple[str, ...], dict[str, bool]], command: tuple[str, ...]
) -> None:
    # With --models the others are for other servers.
    left_out = {*PRINTING, "--models", "--models-memory"}
    given = {o: v for o, v in helped[command].items() if o not in left_out}
    assert len(given) > 4
    values = [[option, *[VALUES.get(option, "1")] * valued] for option, valued in given.items()]
    refused = run(runner, [*command, *(word for words in values for word in words)])
    ended = {(): "--chat cannot be combined with", ("serve",): "cannot read /no.keys"}
    refuses(refused, ended.get(command, "--lib: cannot read /no.so"))


def test_pages_name_options_of_its_help(helped: dict[tuple[str, ...], dict[str, bool]]) -> None:
    known = {option for options in helped.values() for option in options} | {"--user"}
    for page in OF_RUNNER:
        text = (shared_builds.PROJECT / page).read_text(encoding="utf-8")
        commands = r"\S*/run\.sh\b|(?:\./)?runner\b"
        spans = re.findall(rf"`(?:--|{commands})[^`\n]+`", text)
        spans += re.findall(rf"^ {{4}}(?:{commands}).+$", text, re.MULTILINE)
        named = {option for span in spans for option, _ in OPTION.findall(span)}
        assert named, page
        assert named <= known, page


def refuses(result: CompletedProcess[str], message: str) -> None:
    assert message in result.stderr
    assert result.stderr.startswith("runner: ")
    assert result.stdout == ""
    assert result.returncode == 2


def test_refuses_tokens_outside_of_the_vocabulary(runner: Path, params: Path) -> None:
    refuses(run(runner, words(params, tokens=[1, 97])), "97 is outside the vocabulary of 97")


def test_refuses_a_logits_file_that_cannot_be_written(runner: Path, params: Path) -> None:
    refuses(run(runner, words(params, "--logits", "/nowhere/x")), "cannot write /nowhere/x")


def test_refuses_a_vocabulary_beyond_the_embedding(runner: Path, params: Path) -> None:
    refuses(run(runner, words(params, "--vocab", "98")), "more than the 97 rows")
    refuses(run(runner, words(params, "--vocab", "96")), "outside the vocabulary of 96")


def test_says_that_memory_ran_out(runner: Path, params: Path) -> None:
    limited = ("/bin/sh", "-c", 'ulimit -v 307200; exec "$0" "$@"')
    qemu = replace(require_qemu(), loader=limited)
    with pytest.raises(LabError, match="out of memory"):
        run_guest(runner, words(params), GuestMachine(vlen=VLEN, timeout=120), qemu=qemu)


@pytest.mark.parametrize("vlen", [0, 128])
def test_refuses_shorter_vectors_than_compiled_for(runner: Path, params: Path, vlen: int) -> None:
    refuses(run(runner, words(params), vlen), "compiled for vector registers of at least 256 bits")


@pytest.fixture(params=["of the link", pytest.param("of the metadata", marks=pytest.mark.thorough)])
def runner_with_halves(request: pytest.FixtureRequest) -> Path:
    """A runner whose library needs Zvfh, as one of two says."""
    linking = tiny_runner.riscv_request()
    if request.param == "of the link":
        return link_runner(replace(linking, zvfh=True), shared_builds.CACHE)
    target = LabTarget("riscv64", VLEN, zvfh=True)
    compiled = compile_llama(
        replace(tiny_runner.riscv_compilation(), target=target), shared_builds.CACHE
    )
    return link_runner(replace(linking, library=compiled.library), shared_builds.CACHE)


def test_refuses_a_cpu_without_vectors_of_halves(
    runner_with_halves: Path, params: Path, expected: Answer, tmp_path: Path
) -> None:
    logits = tmp_path / "logits.bin"
    arguments = words(params, "--json", "--logits", str(logits))
    refuses(run(runner_with_halves, arguments), "vectors of halves (Zvfh), but this CPU has none")
    machine = GuestMachine(vlen=VLEN, timeout=120, zvfh=True)
    check_answer(run_guest(runner_with_halves, arguments, machine), logits, expected)


Index = dict[str, Any]


def drop_first(index: Index) -> None:
    del index["records"][0]["records"][0]


def first(**changes: object) -> Callable[[Index], None]:
    return lambda index: index["records"][0]["records"][0].update(changes)


def shard(**changes: object) -> Callable[[Index], None]:
    return lambda index: index["records"][0].update(changes)


def twice(index: Index) -> None:
    records = index["records"][0]["records"]
    records.append(records[0])


BAD_INDEX: list[tuple[Callable[[Index], None], str]] = [
    (drop_first, "missing from tensor-cache.json, but the model library needs it"),
    (first(shape=[3, 5]), "its shape is [3, 5], but the model library needs [97, 40]"),
    (first(shape=[97, -40]), "a size is below zero"),
    (first(dtype="float16"), "its dtype is float16, but the model library needs float32"),
    (first(format="gzip"), "unknown format 'gzip'"),
    (first(nbytes=8), "takes 7760 bytes in format f32-to-bf16, not 8"),
    (first(byteOffset=1 << 40), "its bytes lie outside the shard"),
    (first(byteOffset=-1), "its bytes lie outside the shard"),
    (first(byteOffset=1.5), "a whole number was expected"),
    (twice, "listed twice"),
    (shard(dataPath="gone.bin"), "gone.bin"),
    (shard(dataPath="../params_shard_0.bin"), "is not the name of a file"),
    (shard(dataPath=7), "a text was expected"),
    (shard(nbytes=1 << 30), "bytes, but tensor-cache.json says 1073741824"),
    (shard(records={}), "a list was expected"),
]


@pytest.mark.parametrize(("spoil", "message"), BAD_INDEX, ids=[m for _, m in BAD_INDEX])
def test_refuses_spoiled_parameters(
    runner: Path,
    params: Path,
    tmp_path: Path,
    spoil: Callable[[Index], None],
    message: str,
) -> None:
    folder = shutil.copytree(params, tmp_path / "params")
    index = json.loads((folder / INDEX_FILE).read_text())
    spoil(index)
    (folder / INDEX_FILE).write_text(json.dumps(index))
    refuses(run(runner, words(folder)), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: attempting to parse an empty input"),
        ("[" * 100000, "nested more than 64 deep"),
        ('{"records": [}', "column 14: syntax error while parsing value - unexpected '}'"),
        ('{"records": []} x', "column 17: syntax error while parsing value - invalid literal"),
        ("[]", "a table was expected"),
        ("{}", "the field 'records' is missing"),
        ('{"a": "\\ud800"}', "surrogate U+D800..U+DBFF must be followed by U+DC00..U+DFFF"),
        ('{"a": inf}', "column 7: syntax error while parsing value - invalid literal"),
    ],
)
def test_refuses_an_index_that_is_not_one(
    runner: Path, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / INDEX_FILE).write_text(text)
    refuses(run(runner, words(tmp_path)), message)


def test_refuses_a_truncated_shard(runner: Path, params: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(params, tmp_path / "params")
    victim = next(folder.glob("*.bin"))
    victim.write_bytes(victim.read_bytes()[:-1])
    refuses(run(runner, words(folder)), f"{victim.name} has")


@pytest.mark.thorough
def test_loads_a_shared_library(params: Path, expected: Answer, tmp_path: Path) -> None:
    tools = shared_builds.cross()
    if tools.kind is not CompilerKind.CLANG:
        pytest.skip("zig makes static programs, which load no library")
    linker = (*tools.cxx, *tools.link)
    request = replace(tiny_runner.riscv_compilation(), form="shared", linker=linker)
    library = compile_llama(request, shared_builds.CACHE).library
    program = link_runner(LinkRequest(shared_builds.runtime(), tools), shared_builds.CACHE)
    logits = tmp_path / "logits.bin"
    more = ["--lib", str(library), "--json", "--logits", str(logits)]
    check_answer(run(program, words(params, *more)), logits, expected)
    refuses(run(program, words(params)), "no model library is linked into this program")
    refuses(run(program, words(params, "--lib", str(library)), 128), "at least 256 bits")
    other = tmp_path / "other.so"
    (tmp_path / "other.c").write_text("int nothing;\n")
    command = [*tools.cc, *tools.link, "-shared", str(tmp_path / "other.c"), "-o", str(other)]
    subprocess.run(command, check=True)
    refuses(run(program, words(params, "--lib", str(other))), "is not a model library")


def test_a_runner_without_library_is_refused(tmp_path: Path, library: Path) -> None:
    parts = (shared_builds.runtime(), shared_builds.cross())
    bad = tmp_path / "bad.tar"
    bad.write_bytes(b"no archive")
    with pytest.raises(LabError, match="is not a model library"):
        link_runner(LinkRequest(*parts, library=bad), shared_builds.CACHE)
    with pytest.raises(LabError, match="there is no model library"):
        link_runner(LinkRequest(*parts, library=tmp_path / "gone.tar"), shared_builds.CACHE)


def test_answers_on_this_machine_with_sanitizers(
    host_runner: Path, params: Path, expected: Answer, tmp_path: Path
) -> None:
    """The same sources natively, so that what QEMU forgives is found."""
    logits = tmp_path / "logits.bin"

    def native(arguments: list[str]) -> CompletedProcess[str]:
        command, environment = [str(host_runner), *arguments], tiny_runner.host_environment()
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    result = native(words(params, "--json", "--logits", str(logits), "--prefill-chunk", "4"))
    check_answer(result, logits, expected)
    refuses(native(words(params, tokens=[97])), "outside the vocabulary")
    for number, (spoil, message) in enumerate(BAD_INDEX):
        folder = shutil.copytree(params, tmp_path / f"params{number}")
        index = json.loads((folder / INDEX_FILE).read_text())
        spoil(index)
        (folder / INDEX_FILE).write_text(json.dumps(index))
        refuses(native(words(folder)), message)
