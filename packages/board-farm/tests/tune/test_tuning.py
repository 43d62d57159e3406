# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""Trials: lost sessions, candidates that lie, hang or crash; the database on a full disk."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tornado")
tvm = pytest.importorskip("tvm")

from tvm import te
from tvm.s_tir.meta_schedule.builder import BuilderInput, LocalBuilder
from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord

from boardfarm.meter import Meter
from boardfarm.processes import JoinedBoard
from boardfarm.tune.cli import main, read_functions, table, zoo_recipe
from boardfarm.tune.database import claim, keep, open_database
from boardfarm.tune.runner import ATTEMPTS, CandidateBuilder, TrialAttempt, Trials
from boardfarm.tune.search import Tuned, untuned_answer
from boardfarm.tune.trial import (
    NO_BOARD,
    SessionLostError,
    TrialAnswer,
    TrialQuestion,
    WrongOutputError,
    compare,
    trial,
)
from crosslab.address import Address
from crosslab.assemble.recipe import Recipe
from crosslab.cores.core import core_option
from crosslab.errors import LabError, UserError
from crosslab.models.config import read_table
from crosslab.models.families import chosen

# No tracker answers there.
QUESTION = TrialQuestion(Address("127.0.0.1", 1), "k", (), ())


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> list[JoinedBoard]:
    """The boards that have joined: one, unless a test removes it."""
    joined = [JoinedBoard("cycles", "x60")]
    monkeypatch.setattr("boardfarm.tune.runner.joined_boards", lambda *_: joined)
    return joined


def _attempt(*outcomes: tuple[int, str] | Exception) -> tuple[TrialAttempt, Trials]:
    left, trials = list(outcomes), Trials()

    def submit() -> Future[tuple[int, str]]:
        future: Future[tuple[int, str]] = Future()
        found = left.pop(0)
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            future.set_result(found)
        return future

    return TrialAttempt(submit, QUESTION, "candidate.so", trials), trials


@pytest.mark.parametrize("words", [[], ["functions.py", "--model", "smollm2-135m"]])
def test_a_file_or_a_model_is_tuned(words: list[str]) -> None:
    with pytest.raises(UserError, match=r"give either FILE.py or --model"):
        main(words)


def _of_zoo(cache: Path, family: str) -> argparse.Namespace:
    return argparse.Namespace(model=f"zoo:{family}", cache=cache)


def test_a_family_of_the_zoo_is_compiled_by_its_config_for_the_core(tmp_path: Path) -> None:
    core, tvm = core_option("spacemit-x60"), Path("tvm")
    given = Recipe("q4f16_1", (256,), tvm, tvm, mlc_tree=Path("mlc"), cores=(core,), halves=True)
    asked = _of_zoo(tmp_path, "mixtral")
    recipe = zoo_recipe(asked, given)
    assert (recipe.quantization, recipe.vlens, recipe.zvfh) == ("q4f16_1", (256,), True)
    assert (recipe.mlc_tree, recipe.cores) == (Path("mlc"), (core,))
    assert read_table(recipe.model / "config.json") == chosen(["mixtral"])[0].config
    assert not zoo_recipe(asked, replace(given, quantization="q0f32")).zvfh
    with pytest.raises(UserError, match="no family lama"):
        zoo_recipe(_of_zoo(tmp_path, "lama"), given)
    with pytest.raises(UserError, match="MLC-LLM is not here") as refused:
        zoo_recipe(asked, replace(given, mlc_tree=None))
    assert "--mirror mlc-llm=" in refused.value.remedy


@pytest.mark.usefixtures("boards")
def test_a_lost_session_loses_no_trial() -> None:
    attempt, trials = _attempt((0, "lost: reset by peer"), TimeoutError(), (7, ""))
    assert attempt.result() == (7, "")
    assert (trials.measured, trials.repeated, trials.rejected) == (1, 2, [])


def test_a_candidate_that_crashes_every_board_is_named() -> None:
    attempt, trials = _attempt(*[(0, "lost: reset by peer")] * ATTEMPTS)
    cost, reason = attempt.result()
    assert cost == 0
    assert "crashed" in reason and "reset by peer" in reason
    assert trials.rejected == [("candidate.so", reason)]


def test_the_untuned_function_outlives_a_killed_board(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [SessionLostError("reset by peer")] * (ATTEMPTS - 1)

    def answer(*_: object) -> TrialAnswer:
        if ends:
            raise ends.pop()
        return TrialAnswer({}, 7)

    monkeypatch.setattr("boardfarm.tune.search.answer_of", answer)
    assert untuned_answer(QUESTION, Path("untuned.so")).cost == 7
    ends += [SessionLostError("reset by peer")] * ATTEMPTS
    with pytest.raises(LabError, match=f"crashed {ATTEMPTS} boards: reset by peer"):
        untuned_answer(QUESTION, Path("untuned.so"))
    # It waits while there is no board.
    ends += [SessionLostError(f"{NO_BOARD}: refused")] * (2 * ATTEMPTS)
    assert untuned_answer(QUESTION, Path("untuned.so")).cost == 7


def test_a_candidate_waits_while_there_is_no_board(boards: list[JoinedBoard]) -> None:
    none = [(0, f"lost: {NO_BOARD}: refused"), TimeoutError()] * ATTEMPTS
    boards.clear()
    attempt, trials = _attempt(*none, (0, "lost: reset by peer"), (7, ""))
    assert attempt.result() == (7, "")
    assert (trials.measured, trials.rejected) == (1, [])


@pytest.mark.usefixtures("boards")
def test_a_trial_that_has_ended_is_not_started_again() -> None:
    attempt, trials = _attempt(*[TimeoutError()] * ATTEMPTS)
    while not attempt.done():
        pass
    assert attempt.done()
    assert attempt.result()[1] == f"was not measured in {ATTEMPTS} attempts: {NO_BOARD}"
    assert trials.repeated == ATTEMPTS - 1


@pytest.mark.usefixtures("boards")
def test_boards_that_do_not_answer_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise ConnectionRefusedError("Connection refused")  # TVM's client tries for a minute first

    monkeypatch.setattr("boardfarm.tune.trial.rpc.connect_tracker", refused)
    question, library = QUESTION, "untuned.so"
    why = f"was not measured in {ATTEMPTS} attempts: no board answered: Connection refused"
    with pytest.raises(LabError, match=why):
        untuned_answer(question, Path(library))
    attempt, trials = _attempt(*[trial(question, library, {0: ()}) for _ in range(ATTEMPTS)])
    assert attempt.result() == (0, why)
    assert trials.rejected == [("candidate.so", why)]


def test_a_candidate_that_does_not_compile_is_named() -> None:
    x = te.placeholder((4,), name="x")
    mod = tvm.IRModule({"main": te.create_prim_func([x, te.compute((4,), lambda i: x[i] + 1.0)])})
    trials = Trials()
    # A function that the builder's process can import, and that does not take what it is given.
    builder = CandidateBuilder(LocalBuilder(max_workers=1, f_build=math.sqrt), trials)
    (built,) = builder.build([BuilderInput(mod, tvm.target.Target("llvm"))])
    assert built.artifact_path is None
    ((_, reason),) = trials.rejected
    assert reason.startswith("does not compile: TypeError: math.sqrt")


@pytest.mark.parametrize(
    "reason", ["wrong: argument 2 is off by 1", "hung: did not end within 2 s"]
)
def test_a_candidate_at_fault_is_not_asked_again(reason: str) -> None:
    attempt, trials = _attempt((0, reason))
    assert attempt.result() == (0, reason)
    assert (trials.measured, trials.repeated) == (0, 0)
    assert trials.rejected == [("candidate.so", reason)]


def test_outputs_may_differ_by_rounding_alone() -> None:
    right = (np.array([1.0, -4.0], np.float32), np.array([3, 4], np.int32))
    compare((right[0] * np.float32(1 + 1e-6), right[1]), right)
    for value in (1.001, np.nan, np.inf):
        with pytest.raises(WrongOutputError, match="argument 0"):
            compare((np.array([value, -4.0], np.float32), right[1]), right)
    with pytest.raises(WrongOutputError, match="argument 1"):
        compare((right[0], np.array([3, 5], np.int32)), right)


def test_packed_weights_have_random_bits_and_indices_are_small() -> None:
    dtypes = ("uint32", "uint8", "uint16", "int32", "int64")
    question = TrialQuestion(Address("127.0.0.1", 1), "k", ((4096,),) * len(dtypes), dtypes)
    words, octets, *others = question.inputs(0)
    assert (words.dtype, octets.dtype) == (np.uint32, np.uint8)
    for packed, bits in ((words, 32), (octets, 8)):
        ones = [np.mean(packed >> np.array(bit, packed.dtype) & 1) for bit in range(bits)]
        assert min(ones) > 0.4 and max(ones) < 0.6
    for small in others:
        assert set(small.tolist()) == {0, 1}


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_masked_outputs_hide_no_error_beside_them(dtype: type[np.floating]) -> None:
    mask = np.finfo(dtype).min
    right = (np.array([1.0, -4.0, mask, np.inf, np.nan], dtype),)
    compare((right[0].copy(),), right)
    for place, value in enumerate((1.01, -4.01, mask / 2, -np.inf, 0.0)):
        wrong = right[0].copy()
        wrong[place] = value
        with pytest.raises(WrongOutputError, match="argument 0"):
            compare((wrong,), right)


@pytest.mark.parametrize("dtype", [np.float32, "bfloat16"])
@pytest.mark.parametrize("mask", [-1e9, -1e4])
def test_masks_far_from_the_limit_of_the_dtype_hide_no_error(mask: float, dtype: Any) -> None:
    right = (np.array([1.0, -4.0, mask], np.float32).astype(dtype),)
    compare((right[0].copy(),), right)
    for place, value in enumerate((1.01, -4.05, mask / 2)):
        wrong = right[0].copy()
        wrong[place] = value
        with pytest.raises(WrongOutputError, match="argument 0"):
            compare((wrong,), right)


def _module(size: int) -> object:
    x = te.placeholder((size,), name="x")
    function = te.create_prim_func([x, te.compute((size,), lambda i: x[i] + 1.0, name="y")])
    return tvm.IRModule({"main": function})


def _record(folder: Path, size: int) -> object:
    mod = _module(size)
    database = open_database(folder)
    schedule = tvm.s_tir.Schedule(mod)
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("y"))[0])
    workload = database.commit_workload(mod)
    return TuningRecord(schedule.trace, workload, [1e-6], tvm.target.Target("llvm"))


def test_a_full_disk_keeps_the_records_from_before(
    tmp_path: Path, disk: Callable[..., object]
) -> None:
    full = disk("64k")
    kept = full.path / "kept"  # type: ignore[attr-defined]
    keep(kept, _record(tmp_path / "a", 8))
    before = {file.name: file.read_bytes() for file in kept.iterdir()}
    used = 0
    with (full.path / "filler").open("wb", buffering=0) as filler:  # type: ignore[attr-defined]
        try:
            while True:
                used += filler.write(b"x" * 4096)
        except OSError:
            pass
    assert used
    with pytest.raises((LabError, OSError)):
        keep(kept, _record(tmp_path / "b", 16))
    assert {file.name: file.read_bytes() for file in kept.iterdir()} == before
    (full.path / "filler").unlink()  # type: ignore[attr-defined]
    keep(kept, _record(tmp_path / "b", 16))
    again = JSONDatabase(work_dir=str(kept))
    assert len(again) == 2
    assert again.has_workload(_module(8)) and again.has_workload(_module(16))
    assert not again.has_workload(_module(32))


def test_a_database_has_records_of_one_unit(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    claim(kept, "nanoseconds")
    # Nothing is kept yet.
    claim(kept, "cycles")
    keep(kept, _record(tmp_path / "a", 8))
    claim(kept, "cycles")
    why = "holds schedules measured in cycles, these boards measure nanoseconds"
    with pytest.raises(UserError, match=why) as refused:
        claim(kept, "nanoseconds")
    assert refused.value.remedy == "give another --database"
    (kept / "measure.txt").unlink()
    with pytest.raises(UserError, match="measured in an unknown unit"):
        claim(kept, "cycles")


def test_a_changed_table_of_costs_is_another_unit() -> None:
    core = core_option("spacemit-x60")
    changed = replace(core, cycles={**core.cycles, "vadd.vv": {"e32m1": 9.0}})
    assert Meter(core).unit == Meter(core_option("spacemit-x60")).unit
    assert Meter(core).unit != Meter(changed).unit


def test_functions_have_static_shapes(tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    file.write_text(_module(8).script())  # type: ignore[attr-defined]
    assert list(read_functions(file)) == ["main"]
    head = "from tvm.script import tirx as T\nimport tvm\n"
    file.write_text(head + _module(8).script())  # type: ignore[attr-defined]
    assert list(read_functions(file)) == ["main"]
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    function = te.create_prim_func([x, te.compute((n,), lambda i: x[i] + 1.0, name="y")])
    file.write_text(tvm.IRModule({"main": function}).script())
    with pytest.raises(UserError, match="main has a shape that is not static"):
        read_functions(file)
    file.write_text("x = 1\n")
    with pytest.raises(UserError, match="holds no TIR function"):
        read_functions(file)
    file.write_text("nothing of the kind")
    with pytest.raises(UserError, match="not TVMScript"):
        read_functions(file)


def test_the_table_shows_what_was_thrown_out() -> None:
    lines = table([Tuned("f", 400, 100, 5, 0, ("wrong: x",)), Tuned("g", 9, 9, 5)], "cycles")
    assert "| f | 400 | 100 | 4.00 | 5 | 1 |" in lines
    total = "all together: 409 to 109, 3.75 times fewer"
    assert table([], "cycles") == ["no function was tuned"]
    assert f"{total}; geometric mean: 2.00 times fewer" in lines
    assert lines[-1] == "* f: wrong: x"
