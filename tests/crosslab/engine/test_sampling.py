# SPDX-License-Identifier: Apache-2.0
"""The engine's sampling against numpy: tokens of the same random numbers, and chi-square."""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support import shared_builds, text_probe

from crosslab.host.toolchain import Toolchain

F64 = NDArray[np.float64]
WIDTH = 50
MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Options:
    """Options of sampling, as runner/engine/sampling.h tells them."""

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def words(self) -> list[str]:
        """The runner's options."""
        words = []
        for name, value in vars(self).items():
            if name != "logit_bias":
                words += [f"--{name.replace('_', '-')}", str(value)]
        for token, bias in self.logit_bias:
            words += ["--logit-bias", f"{token}:{bias}"]
        return words


def adjusted(logits: F64, seen: Counter[int], options: Options) -> F64:
    """Logits after bias and penalties, in the precision of the program: float32."""
    out = logits.astype(np.float32)
    for token, bias in options.logit_bias:
        out[token] += np.float32(bias)
    for token, times in seen.items():
        factor = np.float32(options.repetition_penalty)
        out[token] = out[token] / factor if out[token] > 0 else out[token] * factor
        out[token] -= np.float32(options.presence_penalty + options.frequency_penalty * times)
    return out.astype(np.float64)


def kept(logits: F64, options: Options) -> tuple[NDArray[np.int64], F64]:
    """Tokens that may be drawn, from the likeliest, and their probabilities."""
    order = np.lexsort((np.arange(len(logits)), -logits))
    weights = np.exp((logits[order] - logits.max()) / options.temperature)
    if options.top_k:
        order, weights = order[: options.top_k], weights[: options.top_k]
    chances = weights / weights.sum()
    count = len(order)
    if options.top_p < 1.0:
        count = int(np.searchsorted(np.cumsum(chances), options.top_p)) + 1
    count = max(1, min(count, int((weights >= options.min_p).sum())))
    return order[:count], weights[:count] / weights[:count].sum()


def random_numbers(seed: int, count: int) -> list[float]:
    """SplitMix64."""
    numbers = []
    for step in range(1, count + 1):
        word = (seed + step * 0x9E3779B97F4A7C15) & MASK
        word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & MASK
        word = ((word ^ word >> 27) * 0x94D049BB133111EB) & MASK
        numbers.append(((word ^ word >> 31) >> 11) * 2.0**-53)
    return numbers


def sampled(rows: F64, seed: int, options: Options) -> list[int]:
    """An answer by numpy."""
    seen: Counter[int] = Counter()
    answer = []
    for row, u in zip(rows, random_numbers(seed, len(rows)), strict=True):
        logits = adjusted(row, seen, options)
        if options.temperature == 0.0:
            token = int(np.argmax(logits))
        else:
            tokens, chances = kept(logits, options)
            place = int(np.searchsorted(np.cumsum(chances), u, side="right"))
            token = int(tokens[min(place, len(tokens) - 1)])
        seen[token] += 1
        answer.append(token)
    return answer


@pytest.fixture(scope="module")
def sanitized_probe(sanitizers: Toolchain) -> Path:
    return text_probe.build_probe(sanitizers, shared_builds.CACHE, "sampling_probe")


def ask(
    sanitized_probe: Path, rows: F64, seeds: int, words: list[str], folder: Path
) -> list[list[int]]:
    path = folder / "logits.bin"
    path.write_bytes(rows.astype("<f4").tobytes())
    command = [str(sanitized_probe), str(path), str(rows.shape[1]), str(seeds), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


def rows_of(count: int, seed: int) -> F64:
    """Logits with equal ones among them, as float32 holds them."""
    random = np.random.default_rng(seed)
    rows = np.round(random.standard_normal((count, WIDTH)) * 3, 1)
    rows[:, 7] = rows.max(axis=1)
    return rows.astype(np.float32).astype(np.float64)


@pytest.mark.parametrize(
    "options",
    [
        Options(temperature=0.0),
        Options(),
        Options(temperature=0.3),
        Options(temperature=50.0),
        Options(top_k=5),
        Options(top_k=1000),
        Options(top_p=0.7),
        Options(top_p=0.0001),
        Options(min_p=0.2),
        Options(min_p=1.0),
        Options(top_k=9, top_p=0.8, min_p=0.1, temperature=1.7),
        Options(repetition_penalty=1.8),
        Options(temperature=0.0, repetition_penalty=1.3, presence_penalty=0.7),
        Options(frequency_penalty=1.5, presence_penalty=-0.5),
        Options(logit_bias=((3, 6.5), (7, -100.0))),
    ],
    ids=str,
)
def test_the_tokens_are_numpys(sanitized_probe: Path, tmp_path: Path, options: Options) -> None:
    rows = rows_of(40, 1)
    expected = [sampled(rows, seed, options) for seed in range(20)]
    assert ask(sanitized_probe, rows, 20, options.words, tmp_path) == expected


@pytest.mark.parametrize(
    "options", [Options(), Options(temperature=2.0, top_p=0.9), Options(top_k=12, min_p=0.05)]
)
def test_draws_are_distributed_as_their_probabilities(
    sanitized_probe: Path, tmp_path: Path, options: Options
) -> None:
    draws = 4000
    row = rows_of(1, 3)
    told = [tokens[0] for tokens in ask(sanitized_probe, row, draws, options.words, tmp_path)]
    tokens, chances = kept(adjusted(row[0], Counter(), options), options)
    assert set(told) <= set(tokens.tolist())
    seen = Counter(told)
    # Cells of at least five draws; what is rarer is one cell.
    often = chances * draws >= 5
    expected = [*(chances[often] * draws), chances[~often].sum() * draws]
    found = [seen[int(t)] for t in tokens[often]]
    found.append(draws - sum(found))
    cells = [(f, e) for f, e in zip(found, expected, strict=True) if e > 0]
    statistic = sum((f - e) ** 2 / e for f, e in cells)
    freedom = len(cells) - 1
    # The 0.999 quantile by Wilson and Hilferty; the seeds are fixed.
    bound = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert statistic < bound
    # The test tells a distribution from its neighbour.
    _, other = kept(adjusted(row[0], Counter(), options), replace(options, temperature=1.5))
    if len(other) == len(chances):
        wrong = [*(other[often] * draws), max(other[~often].sum() * draws, 1e-9)]
        pairs = [(f, e) for f, e in zip(found, wrong, strict=True) if e > 1e-6]
        assert sum((f - e) ** 2 / e for f, e in pairs) > bound


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--top-p", "0"], "top_p: 0 keeps no token"),
        (["--min-p", "1.5"], "min_p: 1.5 is outside 0 to 1"),
        (["--repetition-penalty", "0"], "repetition_penalty: it must be above 0"),
        (["--presence-penalty", "3"], "presence_penalty: 3 is outside -2 to 2"),
        (["--logit-bias", "1:101"], "logit_bias: 101 is outside -100 to 100"),
        (["--stop-text", ""], "stop: a string is empty"),
        (["--temperature", "inf"], "temperature: inf is outside 0 to 100"),
    ],
)
def test_values_out_of_range_are_refused(
    sanitized_probe: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    path = tmp_path / "logits.bin"
    path.write_bytes(bytes(4 * WIDTH))
    done = subprocess.run(
        [str(sanitized_probe), str(path), str(WIDTH), "1", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert message in done.stderr
