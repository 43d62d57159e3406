# SPDX-License-Identifier: Apache-2.0
"""``crosslab build-and-test``: a pinned model is built for RVV and answers in the emulator.

The steps are: import, parameters, reference, kernels, compilation (through MLC-LLM if its tree is
given, else by the project's own definition), runtime, runner, emulator, and a comparison with a
reference in numpy. The reference reads the same stored parameters, and rounds activations like the
kernels. The comparison does not need the server: it is compiled beside the emulator, or afterwards.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape

from crosslab.artifact.dist import write_dist
from crosslab.artifact.manifest import Verdict
from crosslab.artifact.package import tarball_of
from crosslab.assemble.ahead import compiled_ahead
from crosslab.assemble.runner import Clock, Runner, build_runner, complete, store_params
from crosslab.assemble.runtime import Runtime
from crosslab.cached_build import show_reused
from crosslab.compile.driver import CompiledModel
from crosslab.compile.schedules import Schedules
from crosslab.errors import LabError
from crosslab.host.toolchain import Toolchain, require_qemu
from crosslab.job.contents import dists_of
from crosslab.job.job_options import Job, Omission, parse_job
from crosslab.job.kept_answers import KeptAnswers, Table, answers_key, keep_answers
from crosslab.job.model_check import check_length, check_model
from crosslab.job.summary import summary
from crosslab.job.verdict import (
    UNCHECKED,
    AnswerVerdict,
    Asked,
    AskedVector,
    judge,
    prepare_reference,
)
from crosslab.models.config import kind_of, read_family, read_table
from crosslab.models.encoder import ENCODERS
from crosslab.models.formats import GGUF
from crosslab.models.int8_error import DEFAULT_TEXT, read_text
from crosslab.models.llava import LLAVA, LlavaConfig, read_llava
from crosslab.models.params import read_index
from crosslab.models.pictures import sample_picture, write_png
from crosslab.models.sources.model_folder import CONFIG_FILE, ImportedModel, import_model
from crosslab.run.counter import run_counted
from crosslab.run.emulator import GuestMachine
from crosslab.run.measurement import Measurement, phase_counts
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from crosslab.tokenizer.device_tokenizer import device_tokenizer
from crosslab.tokenizer.unsupported import UnsupportedTokenizerError
from groundwork.files import atomic_write_json

_progress = Console(stderr=True, highlight=False)
_output = Console(highlight=False)
TEXT_TOKENS = 256
WRONG_REMEDY = (
    "this is a defect of mlc-rvv or of a tool: please report it with the report's file. Another "
    "format may be right: --quantization, or without --kv-cache and --activations"
)


@dataclass(frozen=True)
class Question:
    """The prompt of a run, and its reference.

    Attributes:
        model: the imported model.
        params: folder of the parameters that the runner loads.
        tokenizer: the model's tokenizer.
        prompt: token ids of the chat.
        options: the runner's, which hand it the prompt in text or in ids.
        asked: the reference and its question; None for a model without a reference.
    """

    model: ImportedModel
    params: Path
    tokenizer: ChatTokenizer
    prompt: tuple[int, ...]
    options: tuple[str, ...]
    asked: Asked | AskedVector | None

    @property
    def encodes(self) -> bool:
        """True if the model gives the vector of the prompt instead of an answer."""
        return isinstance(self.asked, AskedVector)

    @property
    def sees(self) -> bool:
        """True if the message shows the sample picture."""
        return isinstance(self.asked, Asked) and isinstance(self.asked.config, LlavaConfig)


@dataclass(frozen=True)
class RunResult:
    """Result of one run of the compiled model.

    Attributes:
        tokens: generated ids.
        text: the words that the device made of them; None when it knows no words.
        prompt: ids that the device made of the message.
        logits: [len(tokens), vocab] float32; of an encoder the vector [1, hidden].
        prefill_seconds: of each prefill call, as the guest's clock shows.
        decode_seconds: of each decode call.
        counted: executed instructions; one region a call, prefill before decode. None where
            the emulator cannot count.
        vlen: bits in a vector register that the library which ran was compiled for.
        device: counters of the device that multiplied; None without one.
        record: what the run rounded; None if it rounds nothing.
    """

    tokens: tuple[int, ...]
    text: str | None
    prompt: tuple[int, ...]
    logits: NDArray[np.float32]
    prefill_seconds: tuple[float, ...]
    decode_seconds: tuple[float, ...]
    counted: Measurement | None
    vlen: int
    device: dict[str, int] | None = None
    record: bytes | None = None


def main(argv: Sequence[str]) -> int:
    """Run the job; return 1 if the answer differs from the reference's.

    Raises:
        UserError: an option, the model, a tree or a tool is missing or does not fit.
        LabError: a step fails.
    """
    return run(parse_job(argv))


def run(job: Job) -> int:
    """Make a model and check it; return 1 if the answer differs from the reference's.

    Raises:
        UserError: see :func:`main`.
        LabError: a step fails.
    """
    require_qemu()
    with compiled_ahead(job.recipe.runtime_tree, job.cache):
        return _run(job)


def _run(job: Job) -> int:
    clock, left_out = Clock(), omissions(job)
    for omission in left_out[len(job.without) :]:  # forkpatch named the others
        why = escape(f"{omission.what}: {omission.why}")
        _progress.print(f"[yellow]left out:[/] {why}", soft_wrap=True)
        if omission.remedy:
            _progress.print(f"  {omission.remedy}", soft_wrap=True, markup=False)
    tarball = tarball_of(job.dist, job.release, job.recipe.label, job.project / "dist")
    try:
        question = ask(job, clock)
        parts = partial(_parts, job, question) if job.offload else None
        runner = build_runner(job.recipe.of(question.model.folder), job.cache, clock, parts)
        if job.offload:
            question = replace(question, params=job.offload.params(question.params, job.cache))
    except Exception:
        _say_older(job.dist, tarball)
        raise
    try:
        answers = _answers(job, question, runner, clock)
    except LabError:
        # Without this, an older model would stay there under its name.
        _finish(job, question, runner, Verdict.WRONG, clock)
        _say_older(tarball)
        raise
    shown = shown_answer(answers.answers)
    words = question.tokenizer.decode(shown["tokens"])
    vector = f"a vector of {shown['vector']} numbers"
    _output.print(vector if question.encodes else words, markup=False, soft_wrap=True)
    checked_after = clock.elapsed
    checked = Verdict.RIGHT if shown["checked"] else Verdict.UNCHECKED
    _finish(job, question, runner, checked if shown["right"] else Verdict.WRONG, clock)
    times = {"checked_after": checked_after, "finished_after": clock.elapsed}
    report = {**report_of(job, question, runner.library, answers, left_out, clock), **times}
    atomic_write_json(job.report, report)
    show_reused()
    show(report)
    if report["right"]:
        return 0
    _say_older(tarball)
    return 1


def _answers(job: Job, question: Question, runner: Runner, clock: Clock) -> KeptAnswers:
    """Return the checked answers of a program to a question, from this run or the cache."""
    folders = (question.model.folder, question.params)
    key = answers_key(job, runner.program, folders, question.prompt)
    check = partial(_check_each, job, question, runner, clock)
    return keep_answers(key, job.cache, check, again=job.again)


def _check_each(job: Job, question: Question, runner: Runner, clock: Clock) -> list[Table]:
    """Run the model on each emulated CPU, and compare its answers."""
    answers: list[Table] = []
    for vlen in job.recipe.vlens:
        result = run_model(job, question, runner.program, vlen, clock)
        with clock.step(_of_vlen(job, "reference", vlen)):
            answers.append(check_answer(job, question, result, vlen))
    return answers


def _finish(job: Job, question: Question, runner: Runner, verdict: Verdict, clock: Clock) -> None:
    """Add the server to the runner; write the finished model, and its objects before it."""
    whole = complete(runner, job.cache, clock)
    with clock.step("dist"):
        for dist in dists_of(job, question.model, question.params, runner, whole, verdict):
            write_dist(dist)


def _say_older(*paths: Path) -> None:
    """Print existing paths that an earlier build made."""
    for path in filter(Path.exists, paths):
        _progress.print("[yellow]earlier build:[/]", path, "is not of this run", soft_wrap=True)


def check_answer(job: Job, question: Question, result: RunResult, vlen: int) -> Table:
    """Compare the answer of one CPU with the reference's; return both as plain data, for JSON.

    The text is the device's, or None. The tokenizer decodes the first token that rounding changed.

    Raises:
        LabError: its words differ from those of the model's tokenizer, it comes from the library
            for other registers, or its logits are not numbers.
    """
    check_words(result, question)
    if result.vlen != vlen:
        raise LabError(f"a CPU with VLEN {vlen} ran the library for VLEN {result.vlen}")
    verdict = judge(job, result.tokens, result.logits, result.record, question.asked)
    return {
        "vlen": vlen,
        "text": result.text,
        "tokens": list(result.tokens),
        "vector": 0 if result.tokens else result.logits.shape[1],
        "max_logit_error": verdict.comparison.logit_error if verdict else None,
        "right": verdict is None or verdict.right,
        "counters": counters(result),
        "prefill_seconds": list(result.prefill_seconds),
        "decode_seconds": list(result.decode_seconds),
        "device": result.device,
        "checked": verdict is not None,
        **(verdict.table if verdict else UNCHECKED),
        "int8_words": _words_of_cost(question.tokenizer, result, verdict),
    }


def _parts(
    job: Job, question: Question, runtime: Runtime, toolchain: Toolchain
) -> tuple[Path, ...]:
    """Return the offload's object files for the sizes of all matrices; () without an offload."""
    if job.offload is None:
        return ()
    shapes = [stored.shape for stored in read_index(question.params).values()]
    sizes = [(shape[0], shape[1]) for shape in shapes if len(shape) == 2]
    config = question.model.folder / CONFIG_FILE
    return job.offload.objects(sizes, read_family(config).head_dim, runtime, toolchain, job.cache)


def omissions(job: Job) -> list[Omission]:
    """Return the upstreams reported as missing, and MLC-LLM if a run lacks it, but for GGUF."""
    named = {omission.what for omission in job.without}
    unsaid = Omission("mlc-llm", "no tree of it was given", job.supply_mlc)
    wanted = job.recipe.quantization != GGUF
    missing = wanted and job.recipe.mlc is None and unsaid.what not in named
    return [*job.without, *([unsaid] if missing else [])]


def ask(job: Job, clock: Clock) -> Question:
    """Import and check the model, store its parameters, and prepare its reference.

    Raises:
        UserError: the model is missing or not supported, or the prompt is too long.
    """
    with clock.step("model"):
        source = Path(job.source)
        # A folder's before its weights are hashed: the other files are copied unchanged.
        checked = check_model(job, source) if source.is_dir() else None
        blocks = job.recipe.quantization == GGUF
        model = import_model(job.source, job.model, job.project, job.cache, blocks=blocks)
        tokenizer, why = (checked or check_model(job, model.folder)).with_usable_chat()
        if why:
            _progress.print(f"[yellow]left out:[/] chat: {escape(why)}", soft_wrap=True)
        kind, config = kind_of(model.folder), model.folder / CONFIG_FILE
        sees = kind == LLAVA
        if not sees and "vision_config" in read_table(config):
            why = f"the compiled model of type {kind!r} has no encoder of pictures"
            _progress.print(f"[yellow]left out:[/] pictures: {escape(why)}", soft_wrap=True)
        ids = tokenizer.chat_ids(job.prompt, pictures=int(sees))
        prompt = read_llava(config).with_picture(ids) if sees else ids
        answer = 0 if kind in ENCODERS else job.max_new
        check_length(job, len(prompt), answer, model.folder)
    with clock.step("params"):
        params = store_params(job.recipe.of(model.folder), job.cache)
        if job.offload:
            calibration = tokenizer.chat_ids(job.offload.calibration)
            params = job.offload.smooth(model.folder, params, calibration, job.cache)
    stop, text = tokenizer.stop_ids, text_of(job, tokenizer)
    asked = prepare_reference(job, model.folder, params, prompt, stop, text)
    options = _prompt_options(job, model.folder, tokenizer, ids)
    return Question(model, params, tokenizer, tuple(prompt), options, asked)


def text_of(job: Job, tokenizer: ChatTokenizer) -> tuple[int, ...]:
    """Return token ids of a text that measures rounding; () for models without rounding."""
    if not job.rounds:
        return ()
    ids = tokenizer.tokenizer.encode(read_text(DEFAULT_TEXT), add_special_tokens=False).ids
    return (*tokenizer.first_ids(), *ids)[:TEXT_TOKENS]


def _prompt_options(
    job: Job, model: Path, tokenizer: ChatTokenizer, prompt: Sequence[int]
) -> tuple[str, ...]:
    """Return the runner's options for the prompt: text, or ids if the device cannot tokenize."""
    stop = tokenizer.stop_ids
    try:
        words = device_tokenizer(model, job.cache, tokenizer)
    except UnsupportedTokenizerError as error:
        why = escape(error.what)
        _progress.print(f"[yellow]left out:[/] text on the device: {why}", soft_wrap=True)
        options = ("--tokens", ",".join(map(str, prompt)))
        return (*options, *(("--stop", ",".join(map(str, stop))) if stop else ()))
    raw = () if tokenizer.has_chat else ("--raw",)
    return ("--tokenizer", str(words), "--prompt", job.prompt, *raw)


def _of_vlen(job: Job, step: str, vlen: int) -> str:
    """Return a step's name, with the vector length if the job has several."""
    return step if len(job.recipe.vlens) == 1 else f"{step} {vlen}"


def run_model(job: Job, question: Question, runner: Path, vlen: int, clock: Clock) -> RunResult:
    """Let the model answer in the emulator, on registers of ``vlen`` bits."""
    _progress.print(
        f"emulator: {len(question.prompt)} tokens of prompt, "
        + ("" if question.encodes else f"up to {job.max_new} of answer, ")
        + f"VLEN {vlen}"
    )
    step = clock.step(_of_vlen(job, "emulator", vlen))
    with tempfile.TemporaryDirectory(prefix="crosslab-") as scratch, step:
        logits, record = (Path(scratch) / name for name in ("logits.bin", "record.bin"))
        zvfh, threads = job.recipe.zvfh, job.threads
        # A chat template may have the date.
        zone = {"TZ": os.environ["TZ"]} if "TZ" in os.environ else {}
        machine = GuestMachine(vlen=vlen, threads=threads, zvfh=zvfh, environment=zone)
        arguments = ["--params", str(question.params), *question.options]
        arguments += ["--json"]
        if not question.encodes:
            arguments += ["--max-new", str(job.max_new), "--logits", str(logits)]
        arguments += ["--roundings", str(record)] if job.rounds else []
        if question.sees:
            write_png(sample_picture(), picture := Path(scratch) / "picture.png")
            arguments += ["--picture", str(picture)]
        answer, counted = run_counted(runner, arguments, machine, job.cache)
        found = read_answer(answer, logits, counted)
        return replace(found, record=record.read_bytes()) if record.exists() else found


def read_answer(text: str, logits: Path, counted: Measurement | None) -> RunResult:
    """Read a runner's answer from its JSON output, and its logits from their file.

    Raises:
        LabError: the text is not an answer of the runner.
    """
    try:
        table = json.loads(text)
        tokens, prompt = tuple(table["tokens"]), tuple(table["prompt_ids"])
        words, vlen, device = table["text"], table["vlen"], table["device"]
        vectors = table["vectors"]
        stored = np.asarray(vectors, np.float32) if vectors else np.fromfile(logits, np.float32)
        rows = stored.reshape(len(vectors or tokens), -1)
        prefill, decode = tuple(table["prefill_seconds"]), tuple(table["decode_seconds"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise LabError(f"the runner's answer cannot be read ({error}): {text[:200]!r}") from error
    return RunResult(tokens, words, prompt, rows, prefill, decode, counted, vlen, device)


def check_words(result: RunResult, question: Question) -> None:
    """Check that the device reads and writes words like the model's own tokenizer.

    Raises:
        LabError: the device's words differ.
    """
    if result.prompt != question.prompt:
        raise LabError(
            f"the device encodes the prompt as {list(result.prompt)}, "
            f"the model's tokenizer as {list(question.prompt)}"
        )
    words = question.tokenizer.decode(result.tokens)
    if result.text is not None and result.text != words:
        raise LabError(f"the device decodes {result.text!r}, the model's tokenizer {words!r}")


def counters(result: RunResult) -> dict[str, Any]:
    """Executed guest instructions: all, in prefill, and a decode step (mean after the first).

    Each is None where nothing was counted.
    """
    if result.counted is None:
        return dict.fromkeys(("whole", "prefill", "decode_per_token", "threads"))
    prefill, decode = phase_counts(result.counted.regions, len(result.prefill_seconds))
    return {
        "whole": asdict(result.counted.whole),
        "prefill": asdict(prefill),
        "decode_per_token": asdict(decode) if decode else None,
        "threads": result.counted.threads,
    }


def report_of(
    job: Job,
    question: Question,
    library: CompiledModel,
    answers: KeptAnswers,
    left_out: Sequence[Omission],
    clock: Clock,
) -> dict[str, Any]:
    """Return the run's report as plain data.

    Of several CPUs, ``answers`` has each one's answer. The other fields are those of the
    :func:`shown_answer`.
    """
    shown, recipe = shown_answer(answers.answers), job.recipe
    return {
        "release": job.release,
        "target": recipe.label,
        "model": job.model,
        "quantization": recipe.quantization,
        "activations": recipe.mode.activations,
        "kv_cache": recipe.mode.kv_cache,
        **(job.offload.about if job.offload else {}),
        "path": recipe.path,
        "threads": job.threads,
        "prompt": job.prompt,
        "prompt_tokens": list(question.prompt),
        **shown,
        "text": question.tokenizer.decode(shown["tokens"]),
        "answers": answers.answers,
        "answered": answers.made,
        "kept": answers.kept,
        "tensorized": library.tensorized,
        "schedules": Schedules.read(library.folder).told if recipe.tuned else None,
        "kernel_values": recipe.kernel_values,
        "skipped": [asdict(omission) for omission in left_out],
        "seconds": clock.seconds,
        "report": str(job.report),
        "dist": str(job.dist),
    }


def shown_answer(answers: Sequence[Table]) -> Table:
    """Return the first wrong answer, else the answer of the CPU with the longest registers."""
    return next((answer for answer in answers if not answer["right"]), answers[-1])


def _words_of_cost(
    tokenizer: ChatTokenizer, result: RunResult, verdict: AnswerVerdict | None
) -> list[str] | None:
    """Return the texts of the run's and float32's first different token; None if all are equal."""
    if verdict is None or verdict.cost is None or verdict.cost.first is None:
        return None
    step, token = verdict.cost.first
    return [tokenizer.decode([one]) for one in (result.tokens[step], token)]


def show(report: Mapping[str, Any]) -> None:
    """Print a summary of the run."""
    _progress.print(summary(report))
    for name in ("report", "dist"):
        _progress.print(f"[bold]{name}[/] {escape(report[name])}", soft_wrap=True)
    if not report["right"]:
        _progress.print(f"[bold red]wrong:[/] {escape(reason_of(report))}", soft_wrap=True)
        _progress.print(f"  {WRONG_REMEDY}", soft_wrap=True)


def reason_of(report: Mapping[str, Any]) -> str:
    """Return the reason why an answer is wrong."""
    if fault := report["fault"]:
        return str(fault)
    if not report["max_logit_error"] < report["logit_error_bound"]:
        return (
            f"logits differ from the reference's by {report['max_logit_error']:.1e} of the "
            f"largest; the bound is {report['logit_error_bound']:.0e}"
        )
    return "the answer has a token that is not the likeliest by its own logits"
