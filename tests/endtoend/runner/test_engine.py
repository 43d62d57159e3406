# SPDX-License-Identifier: Apache-2.0
"""Several requests at once on a tiny model: each answer is the one that it gets alone."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny_runner
from support.tiny_runner import CONFIG, run_plan

from crosslab.bench.lookup import calls
from crosslab.host.toolchain import Toolchain
from crosslab.models.params import read_params
from crosslab.models.reference import answer

STOP, LENGTH, CANCELLED, ERROR = range(4)
PAGE = 16
RANDOM = random.Random(1)
PROMPTS = [[RANDOM.randrange(CONFIG.vocab) for _ in range(n)] for n in (11, 3, 40, 25)]
SYSTEM = PROMPTS[2]
MAX_NEW = 12


@pytest.fixture(scope="module")
def probe(sanitizers: Toolchain) -> Path:
    return tiny_runner.build_engine_probe(tiny_runner.host_request())


@pytest.fixture(scope="module")
def params(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("params")
    return tiny_runner.write_random_params(tiny_runner.host_library().library, folder)


def alone(params: Path, prompt: list[int], max_new: int = MAX_NEW) -> list[int]:
    return list(answer(CONFIG, read_params(params), prompt, max_new=max_new).tokens)


def request(tokens: list[int], step: int = 0, **more: int) -> dict[str, Any]:
    return {"tokens": tokens, "max_tokens": MAX_NEW, "step": step, **more}


def test_as_many_threads_compute_as_asked_whatever_the_cores(probe: Path, params: Path) -> None:
    # One more than the processors: TVM itself would cut the number to theirs. Threads that wait
    # for work spin, so that more of them or a longer answer take minutes on a busy machine.
    threads = (os.cpu_count() or 1) + 1
    asked = [{**request(PROMPTS[0]), "max_tokens": 2}]
    # The memory of several nodes (NUMA) is written first by the threads that read it.
    told = run_plan(probe, params, threads=threads, nodes=2, requests=asked)
    assert told["threads"] == threads
    assert told["answers"][0]["tokens"] == alone(params, PROMPTS[0], 2)
    shares = sorted(told["shares"][1:])
    step = -(-1001 // threads)
    assert [[begin, end] for begin, end, _ in shares] == [
        [i * step, min((i + 1) * step, 1001)] for i in range(threads)
    ]
    assert len({thread for _, _, thread in shares}) == threads


def test_a_cache_beyond_32_bit_indices_is_refused(probe: Path, params: Path) -> None:
    page = 2 * CONFIG.kv_heads * CONFIG.head_dim * PAGE
    # The cache adds a page.
    most = ((2**31 - 1) // page - 1) * PAGE
    plan = {"total": most + PAGE, "requests": []}
    with tiny_runner.started_plan(probe, params, plan) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"a KV cache of {most + PAGE} tokens needs indices of more than 32 bits" in err
    assert f"room for {most} tokens of all sequences together: use a smaller --max-seq" in err


def test_four_at_once_answer_as_each_alone(probe: Path, params: Path) -> None:
    asked = [request(prompt, 3 * number) for number, prompt in enumerate(PROMPTS)]
    told = run_plan(probe, params, sequences=4, requests=asked)
    for prompt, got in zip(PROMPTS, told["answers"], strict=True):
        assert (got["finished"], got["finish"]) == (1, LENGTH)
        assert got["tokens"] == alone(params, prompt)
    # Batched: fewer calls than tokens; the prompt of 40 takes two chunks of 32.
    last = told["steps"][-1]
    assert last["answer"] == 4 * MAX_NEW
    assert last["decode_steps"] < 3 * MAX_NEW
    assert told["answers"][2]["prefills"] == 2
    assert (last["running"], last["pages_running"]) == (0, 0)


def test_a_long_prompt_is_read_in_parts_beside_a_stream(probe: Path, params: Path) -> None:
    """As many as leave the stream its pace; the answers are the same."""
    asked = [request(PROMPTS[1]), request(PROMPTS[2], 4)]
    told = run_plan(probe, params, sequences=2, adaptive=1, requests=asked)
    assert [got["tokens"] for got in told["answers"]] == [alone(params, PROMPTS[n]) for n in (1, 2)]
    # The first two calls are short, since no speed is known.
    told = run_plan(probe, params, adaptive=1, requests=[request(PROMPTS[1])])
    assert told["answers"][0]["prefills"] == 3


def test_a_prompt_and_answers_are_read_in_one_call(probe: Path, params: Path) -> None:
    """A chunk of N rows holds one row for each answer and N - answers of the prompt, if any."""
    asked = [request(PROMPTS[1]), request(PROMPTS[0]), request(PROMPTS[2], 3)]
    for chunk, mixed in ((12, 5), (3, 20), (2, 20), (1, 0)):
        told = run_plan(probe, params, sequences=4, chunk=chunk, requests=asked)
        answers = [alone(params, PROMPTS[n]) for n in (1, 0, 2)]
        assert [got["tokens"] for got in told["answers"]] == answers
        assert told["steps"][-1]["mixed"] == mixed, chunk


def test_a_short_prompt_does_not_wait_for_a_long_one(probe: Path, params: Path) -> None:
    asked = [request(PROMPTS[2], max_tokens=1), request(PROMPTS[1], 1, max_tokens=1)]
    told = run_plan(probe, params, sequences=2, chunk=4, requests=asked)
    # The long one is read in ten parts; the short one has its answer after the first two of them.
    assert [got["prefills"] for got in told["answers"]] == [10, 1]
    assert [step["answer"] for step in told["steps"]][:4] == [0, 0, 1, 1]
    for prompt, got in zip((PROMPTS[2], PROMPTS[1]), told["answers"], strict=True):
        assert got["tokens"] == alone(params, prompt, 1)


def test_damaged_parameters_are_refused(probe: Path, params: Path, tmp_path: Path) -> None:
    folder = tmp_path / "params"
    shutil.copytree(params, folder)
    shard = max(folder.glob("*.bin"), key=lambda path: path.stat().st_size)
    whole = shard.read_bytes()
    for at in (0, len(whole) // 2, len(whole) - 1):
        shard.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(AssertionError, match=re.escape(f"{shard} is damaged")):
            run_plan(probe, folder, requests=[request(PROMPTS[1])])


def test_parameters_without_digests_are_named(probe: Path, params: Path, tmp_path: Path) -> None:
    folder = tmp_path / "params"
    shutil.copytree(params, folder)
    index = folder / "tensor-cache.json"
    about = json.loads(index.read_text())
    for shard in about["records"]:
        del shard["md5sum"]
    index.write_text(json.dumps(about))
    done = subprocess.run(
        [str(probe), "", str(folder), '{"requests": []}'],
        env=tiny_runner.host_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "tensor-cache.json has no md5sum for " in done.stderr
    assert "and other shards: damaged parameters would not be noticed" in done.stderr


# Reading and writing rows of the cache is a patch, and the runtime for the host is TVM's wheel's.
@pytest.fixture(scope="module")
def patched(emulator: None) -> Path:
    return tiny_runner.build_engine_probe(tiny_runner.riscv_request())


AGENT = [RANDOM.randrange(CONFIG.vocab) for _ in range(50)]
BLOCK = 16


def restarted(probe: Path, params: Path, files: Path, *asked: dict[str, Any], **plan: Any) -> Any:
    """Answers of a new process that uses the folder, each ``(cached tokens, tokens)``."""
    told = run_plan(
        probe, params, emulated=True, sequences=2, files=str(files), requests=list(asked), **plan
    )
    return [(got["cached"], got["tokens"]) for got in told["answers"]]


def test_prompts_survive_a_restart(patched: Path, params: Path, tmp_path: Path) -> None:
    """By whole blocks; answers are the same, in one chunk or several, and of shared beginnings."""
    files = tmp_path / "made" / "files"
    expected = alone(params, AGENT)
    assert restarted(patched, params, files, request(AGENT)) == [(0, expected)]
    assert files.stat().st_mode & 0o077 == 0
    assert restarted(patched, params, files, request(AGENT), chunk=5) == [(3 * BLOCK, expected)]
    # The last token of a prompt is always computed.
    short = AGENT[: 3 * BLOCK]
    assert restarted(patched, params, files, request(short)) == [(2 * BLOCK, alone(params, short))]
    other = [*AGENT[:20], *PROMPTS[0], *PROMPTS[1]]
    assert restarted(patched, params, files, request(other)) == [(BLOCK, alone(params, other))]
    # What the cache in memory holds comes first: 40 tokens, and the rest of a block of a file.
    both = [request(AGENT[:40], max_tokens=1), request(AGENT, 9)]
    first, second = restarted(patched, params, files, *both, steps=20)
    assert (first[0], second) == (2 * BLOCK, (3 * BLOCK, expected))
    # Beside another answer, and for another owner.
    beside = [request(PROMPTS[1]), request(AGENT, 2), request(AGENT, owner=1)]
    told = restarted(patched, params, files, *beside)
    assert told[1:] == [(3 * BLOCK, expected), (0, expected)]


def test_damaged_files_of_prompts_are_deleted(patched: Path, params: Path, tmp_path: Path) -> None:
    restarted(patched, params, tmp_path, request(AGENT))
    expected = alone(params, AGENT)
    blocks = sorted(tmp_path.glob("*.rows"), key=lambda path: path.stat().st_mtime_ns)
    assert len(blocks) == 3  # the deepest first
    damages: list[tuple[Path, bytes, int]] = []
    for depth, path in enumerate(reversed(blocks)):
        whole = path.read_bytes()
        for at in (3, 20, 60, len(whole) // 2, len(whole) - 1):
            flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
            damages.append((path, flipped, depth))
        damages += [(path, whole[:-5], depth), (path, b"", depth), (path, whole + b"x", depth)]
        damages.append((path, blocks[depth - 1].read_bytes(), depth))
    for path, content, depth in RANDOM.sample(damages, 8):
        path.write_bytes(content)
        assert restarted(patched, params, tmp_path, request(AGENT)) == [(depth * BLOCK, expected)]
        # They were computed, and are written again.
        assert restarted(patched, params, tmp_path, request(AGENT)) == [(3 * BLOCK, expected)]


@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.thorough)])
def test_a_kill_while_files_are_written_is_survived(
    patched: Path, params: Path, tmp_path: Path, kills: int
) -> None:
    begun = time.monotonic()
    restarted(patched, params, tmp_path / "whole", request(AGENT))
    whole = time.monotonic() - begun
    files = tmp_path / "files"
    for _ in range(kills):
        plan = {"sequences": 2, "files": str(files), "requests": [request(AGENT)]}
        with tiny_runner.started_plan(patched, params, plan, emulated=True) as process:
            time.sleep(RANDOM.uniform(0.5, 1) * whole)
            process.kill()
        if RANDOM.random() < 0.3:
            shutil.rmtree(files, ignore_errors=True)
    ((cached, tokens),) = restarted(patched, params, files, request(AGENT))
    assert tokens == alone(params, AGENT)
    assert cached in range(0, 4 * BLOCK, BLOCK)
    assert restarted(patched, params, files, request(AGENT)) == [(3 * BLOCK, tokens)]
    assert not list(files.glob("*.part"))


def test_files_of_prompts_stay_below_their_bound(
    patched: Path, params: Path, tmp_path: Path
) -> None:
    restarted(patched, params, tmp_path, request(AGENT))
    size = next(tmp_path.glob("*.rows")).stat().st_size
    shutil.rmtree(tmp_path)
    bound = {"kilobytes": -(-4 * size // 1024)}
    assert bound["kilobytes"] << 10 < 5 * size
    for prompt in (AGENT, [1, *AGENT]):
        restarted(patched, params, tmp_path, request(prompt, max_tokens=1), **bound)
    assert len(list(tmp_path.glob("*.rows"))) == 4
    # Of the older prompt, the deepest blocks went first.
    for prompt, blocks in ((AGENT, 1), ([1, *AGENT], 3)):
        ((cached, _),) = restarted(patched, params, tmp_path, request(prompt, max_tokens=1))
        assert cached == blocks * BLOCK


def test_files_of_prompts_from_the_future_make_room(
    patched: Path, params: Path, tmp_path: Path
) -> None:
    """A board's clock may have been set back."""
    restarted(patched, params, tmp_path, request(AGENT))
    files = [*tmp_path.glob("*.rows")]
    for file in files:
        os.utime(file, (2**32, 2**32))
    bound = -(-2 * files[0].stat().st_size // 1024)
    restarted(patched, params, tmp_path, request([1, *AGENT], max_tokens=1), kilobytes=bound)
    left = {*tmp_path.glob("*.rows")}
    assert len(left) == 2
    assert left.isdisjoint(files)


def test_a_folder_of_prompts_has_one_process(patched: Path, params: Path, tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(AssertionError, match="another server uses"):
            restarted(patched, params, tmp_path, request(AGENT))


def test_as_many_as_are_allowed_run_at_once(probe: Path, params: Path) -> None:
    """Though each fills but a half of its last page."""
    prompts = [[first, *range(10, 40)] for first in range(4)]
    asked = [{"tokens": prompt, "max_tokens": 9, "step": 0} for prompt in prompts]
    told = run_plan(probe, params, sequences=4, tokens=40, requests=asked)
    assert max(step["running"] for step in told["steps"]) == 4


def test_the_second_turn_of_a_chat_computes_what_is_new(probe: Path, params: Path) -> None:
    first = alone(params, PROMPTS[3])
    second = [*PROMPTS[3], *first, 4, 9, 1]
    told = run_plan(probe, params, steps=30, requests=[request(PROMPTS[3]), request(second, 20)])
    assert [got["tokens"] for got in told["answers"]] == [first, alone(params, second)]
    # All that was in the cache: the answer's last token never was.
    assert told["answers"][1]["cached"] == len(PROMPTS[3]) + MAX_NEW - 1
    assert told["steps"][-1]["kept"] == 1


def test_owners_share_no_beginning(probe: Path, params: Path) -> None:
    asked = [request([*SYSTEM, n], 30 * n, owner=n % 2) for n in range(4)]
    told = run_plan(probe, params, sequences=4, requests=asked, steps=100)
    assert [got["tokens"] for got in told["answers"]] == [alone(params, a["tokens"]) for a in asked]
    assert [got["cached"] for got in told["answers"]] == [0, 0, len(SYSTEM), len(SYSTEM)]


@pytest.mark.parametrize("steps_between", [0, 2, 30])
def test_a_shared_beginning_is_computed_once(probe: Path, params: Path, steps_between: int) -> None:
    prompts = [[*SYSTEM, 1, 2, 3], [*SYSTEM, 4, 5], [*SYSTEM[:35], 7], [1, 2, 3]]
    asked = [request(p, steps_between * n) for n, p in enumerate(prompts)]
    told = run_plan(probe, params, sequences=4, requests=asked, steps=100)
    assert [got["tokens"] for got in told["answers"]] == [alone(params, p) for p in prompts]
    shared = [got["cached"] for got in told["answers"]]
    # Submitted together, there is nothing to share yet.
    assert shared == ([0, 40, 35, 0] if steps_between else [0, 0, 0, 0])


def test_guesses_change_no_answer_and_save_calls(probe: Path, params: Path) -> None:
    long = {"max_tokens": 200, "top_logprobs": 0}
    asked = [
        *(request(prompt, 210 * n, **long) for n, prompt in enumerate(PROMPTS)),
        request(PROMPTS[1], 840, temperature=1, seed=3, **long),
        # Beside another; then to the last token of the cache's last page.
        *(request([*SYSTEM, n], 1050, max_tokens=60) for n in range(2)),
        request([5, 6, 7] * 16, 1300, max_tokens=256 - 48),
        request([5, 6, 7] * 16, 1310, max_tokens=256 - 48, cancel=1330),
    ]
    plan = {"sequences": 2, "tokens": 256, "requests": asked, "steps": 1400}
    told, guessing = (run_plan(probe, params, **plan, lookup=n) for n in range(2))
    for plain, guessed in zip(told["answers"][:-1], guessing["answers"][:-1], strict=True):
        assert guessed["tokens"] == plain["tokens"]
        assert guessed["logprobs"] == pytest.approx(plain["logprobs"], abs=1e-4)
        assert guessed["finish"] == plain["finish"] == LENGTH
    last = guessing["steps"][-1]
    assert 50 < last["right"] < last["guessed"]
    assert last["decode_steps"] < told["steps"][-1]["decode_steps"] - 50
    assert last["pages_running"] == 0
    assert told["steps"][-1]["guessed"] == 0


@pytest.mark.parametrize("prompt", [*PROMPTS, [5, 6, 7] * 16], ids=str)
def test_the_predicted_calls_are_the_engines(probe: Path, params: Path, prompt: list[int]) -> None:
    most = 256 - len(prompt)
    asked = [request(prompt, 0, max_tokens=most)]
    plan = {"sequences": 1, "tokens": 256, "requests": asked, "steps": most}
    told = run_plan(probe, params, **plan, lookup=1)
    made = list(calls(prompt, told["answers"][0]["tokens"], most, lambda *_: 1.0, always=True))
    last = told["steps"][-1]
    assert last["decode_steps"] == len(made)
    assert last["guessed"] == sum(call.guessed for call in made)
    assert last["right"] == sum(call.right for call in made)


def test_pages_that_are_lacking_are_waited_for(probe: Path, params: Path) -> None:
    prompts = [[*SYSTEM, 1], [*SYSTEM, 2], PROMPTS[3], [*SYSTEM[:20], 3]]
    asked = [request(p, n) for n, p in enumerate(prompts)]
    told = run_plan(probe, params, sequences=4, total=64, requests=asked)
    assert [got["tokens"] for got in told["answers"]] == [alone(params, p) for p in prompts]
    assert max(step["queued"] for step in told["steps"]) > 0
    assert max(step["pages_used"] for step in told["steps"]) <= told["steps"][0]["pages_total"]


def test_many_requests_in_little_room_answer_as_alone(probe: Path, params: Path) -> None:
    """Forks, cuts and evictions in every order."""
    choice = random.Random(5)
    prompts: list[list[int]] = []
    for _ in range(60):
        base = choice.choice([*PROMPTS, *prompts[-6:]])
        cut = choice.randrange(1, len(base) + 1)
        prompts.append([*base[:cut], *(choice.randrange(97) for _ in range(3))][:48])
    asked = [request(p, choice.randrange(200)) for p in prompts]
    for wanted in asked[::7]:
        wanted["cancel"] = wanted["step"] + choice.randrange(8)
    told = run_plan(probe, params, sequences=3, total=160, requests=asked, steps=200)
    for wanted, got in zip(asked, told["answers"], strict=True):
        expected = alone(params, wanted["tokens"])
        assert got["finished"] == 1
        assert got["finish"] == LENGTH or "cancel" in wanted
        assert got["tokens"] == expected[: len(got["tokens"])]
        assert len(got["tokens"]) == MAX_NEW or got["finish"] == CANCELLED
    assert told["steps"][-1]["cached"] > 0
    assert told["steps"][-1]["pages_running"] == 0


def test_a_request_ends_without_the_others(probe: Path, params: Path) -> None:
    asked = [
        request(PROMPTS[0], cancel=5),
        request(PROMPTS[1]),
        request(PROMPTS[2], 1, throws=1),
        request(PROMPTS[3], 1, stop=[alone(params, PROMPTS[3])[4]]),  # type: ignore[arg-type]
    ]
    told = run_plan(probe, params, sequences=4, requests=asked)
    cancelled, other, broken, stopped = told["answers"]
    assert [got["finish"] for got in told["answers"]] == [CANCELLED, LENGTH, ERROR, STOP]
    assert cancelled["tokens"] == alone(params, PROMPTS[0])[: len(cancelled["tokens"])]
    assert 0 < len(cancelled["tokens"]) < MAX_NEW
    assert other["tokens"] == alone(params, PROMPTS[1])
    assert broken["error"] == "the listener broke"
    expected = alone(params, PROMPTS[3])
    assert stopped["tokens"] == expected[: expected.index(expected[4]) + 1]


def test_an_answer_ends_where_the_longest_sequence_does(probe: Path, params: Path) -> None:
    prompt = PROMPTS[2] + PROMPTS[3][:20]
    asked = [{"tokens": prompt, "max_tokens": most} for most in (4, 5, 10**6)]
    told = run_plan(probe, params, requests=asked)
    for got in told["answers"]:
        assert (got["refused"], got["finish"]) == ("", LENGTH)
        assert got["tokens"] == alone(params, prompt, 4)


def test_what_can_never_be_answered_is_refused(probe: Path, params: Path) -> None:
    wrong = [
        ({"tokens": []}, "the prompt has no token"),
        ({"tokens": [97]}, "token 97 is outside the vocabulary of 97"),
        ({"tokens": [1] * 64}, "leaves no room for an answer in the longest sequence, 64"),
        ({"tokens": [1], "temperature": -1}, "temperature: -1 is outside 0 to 100"),
        ({"tokens": [1], "top_logprobs": 21}, "top_logprobs: 21 is outside -1 to 20"),
    ]
    full = [{"tokens": [1], "max_tokens": 1}] * 3
    told = run_plan(probe, params, queue=2, requests=[*(w for w, _ in wrong), *full])
    for (_, message), got in zip(wrong, told["answers"], strict=False):
        assert message in got["refused"]
        assert got["finished"] == 0
    assert [got["refused"] for got in told["answers"][-3:]] == [
        "",
        "",
        "the queue is full: 2 requests wait",
    ]
    assert told["steps"][-1]["refused"] == 1


def test_logprobs_are_of_the_models_logits(probe: Path, params: Path) -> None:
    told = run_plan(probe, params, requests=[request(PROMPTS[0], top_logprobs=2)])
    logits = answer(CONFIG, read_params(params), PROMPTS[0], max_new=MAX_NEW).logits
    wide = logits.astype(np.float64)
    expected = wide.max(axis=1) - np.log(np.exp(wide).sum(axis=1))
    assert np.abs(np.array(told["answers"][0]["logprobs"]) - expected).max() < 1e-4


def test_the_same_seed_gives_the_same_answer(probe: Path, params: Path) -> None:
    warm = [request(PROMPTS[0], temperature=2, seed=seed) for seed in (1, 2, 1)]
    one, other, again = run_plan(probe, params, sequences=3, requests=warm)["answers"]
    assert one["tokens"] == again["tokens"] != other["tokens"]
