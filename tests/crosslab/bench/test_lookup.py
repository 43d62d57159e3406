# SPDX-License-Identifier: Apache-2.0
"""What prompt lookup saves: calls as the engine's, costs by the model of a board."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
from support import tiny_model
from support.shared_builds import PROJECT

from crosslab.bench import lookup
from crosslab.bench.lookup import calls, cost_on, guess_next
from crosslab.boards.board import Board, read_boards
from crosslab.boards.matrices import Phase, matrices, seconds
from crosslab.errors import UserError
from crosslab.models.reference import Answer
from crosslab.models.shapes import shapes

K1 = next(board for board in read_boards() if board.key == "k1")
CONFIG = shapes()["qwen3-0.6b"]


def flat(tokens: int, _: int) -> float:
    """Time of a call that waits for memory alone."""
    return 1 + tokens / 100


def test_the_constants_are_the_runners() -> None:
    code = (PROJECT / "runner/engine/prompt_lookup.cc").read_text(encoding="utf-8")
    constants = {name: float(value) for name, value in re.findall(r"(k\w+) = ([\d.]+);", code)}
    assert constants == {
        "kLongestMatch": lookup.MATCHES[0],
        "kShortestMatch": lookup.MATCHES[-1],
        "kMostGuessed": lookup.MOST_GUESSED,
        "kFade": lookup.FADE,
        "kMostLost": lookup.MOST_LOST,
        "kRest": lookup.REST,
    }


def test_the_latest_copy_is_continued() -> None:
    assert guess_next([1, 2, 3, 7, 1, 2, 3, 8, 9, 1, 2, 3], 2) == [8, 9]
    assert guess_next([5, 1, 2, 6, 1, 2], 9) == [6, 1, 2]
    assert guess_next([4, 4, 4], 9) == [4]
    assert not guess_next([1, 2, 3], 9)
    assert not guess_next([1, 2, 1, 2], 0)


def test_a_copied_answer_takes_few_calls() -> None:
    prompt = list(range(100))
    made = list(calls([*prompt, 0, 1], prompt[2:], 98, flat))
    assert sum(call.right for call in made) + len(made) == len(prompt[2:]) - 1
    assert len(made) < 14
    assert all(call.right == call.guessed for call in made[:-1])


@pytest.mark.parametrize("board", read_boards(), ids=lambda board: board.key)
def test_wrong_guesses_lose_less_than_three_percent(board: Board) -> None:
    choice = random.Random(1)
    texts = [[choice.randrange(kinds) for _ in range(600)] for kinds in (3, 6, 10, 20, 40)]
    texts.append([token for n in range(200) for token in (1, 2, 1000 + n)])
    cost = cost_on(board, CONFIG, "Q4_0", board.cpus)
    for reply in texts:
        plain = sum(cost(1, 1 + n) for n in range(len(reply) - 1))
        assert sum(call.seconds for call in calls([0], reply, 600, cost)) < 1.03 * plain


def test_a_call_of_one_token_costs_what_a_decode_call_does() -> None:
    weights = matrices(CONFIG, "Q4_0")
    cost = cost_on(K1, CONFIG, "Q4_0", 8)
    assert cost(1, 100) == pytest.approx(
        seconds(K1, "ours", CONFIG, weights, Phase(1, 100), 8), rel=1e-3
    )
    assert cost(1, 100) < cost(4, 100) < cost(16, 100) < 16 * cost(1, 100)


def test_an_answer_of_its_stop_token_alone_has_no_speeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / folder / "prompt.txt" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text("Say nothing.", encoding="utf-8")
    model = tmp_path / "tiny.gguf"
    tiny_model.write_gguf(model)
    stopped = Answer(tokens=(2,), logits=np.zeros((1, 4), np.float32))
    monkeypatch.setattr(lookup, "answer", lambda *_, **__: stopped)
    options = ["--prompt", *map(str, files), "--cache", str(tmp_path / "cache")]
    assert lookup.main([str(model), *options]) == 0
    rows = ["".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    # Prompts of the same name are two rows: one token, no calls, no guesses.
    assert sum(row.endswith("100") for row in rows) == 2


@pytest.mark.parametrize(
    "options",
    [
        ["--answer", "1"],
        ["--board", "k9"],
        ["--prompt", "/no/such/file"],
        ["/no/such.gguf"],
        # The page has the table of the defaults.
        ["--docs", "page.md", "--board", "k3"],
        ["--docs", "page.md", "--prompt", str(PROJECT / "LICENSE")],
    ],
)
def test_a_mistake_is_said(options: list[str], tmp_path: Path) -> None:
    with pytest.raises((UserError, SystemExit)):
        lookup.main([*options, "--cache", str(tmp_path)])


def test_a_page_without_a_table_is_refused_before_the_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookup, "gguf_file", lambda *_: pytest.fail("the model was read"))
    with pytest.raises(UserError, match="has no lines <!-- lookup: begin -->"):
        lookup.main(["--docs", str(PROJECT / "LICENSE")])
