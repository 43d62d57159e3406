# SPDX-License-Identifier: Apache-2.0
"""Recipes of the main job, the bench and the zoo: one road, other ingredients."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.bench_options import parse_bench
from support.shared_builds import cross

from crosslab.assemble.kernels import KernelTarget, compiler_for
from crosslab.assemble.recipe import Recipe
from crosslab.bench.subject import Subject
from crosslab.compile.mlc import MlcCompileRequest
from crosslab.compile.overlaypass import load_pass
from crosslab.compile.schedules import WORKLOADS
from crosslab.cores.core import core_option
from crosslab.errors import UserError
from crosslab.host.toolchain import tuning_clang
from crosslab.job.job_options import parse_job
from crosslab.models.config import read_config
from crosslab.models.families import chosen
from crosslab.zoo.job import Spec, recipe_of

OURS, PLAIN, MLC, MODEL = Path("ours"), Path("plain"), Path("mlc"), Path("model")


def test_the_zoo_without_ours_compiles_on_the_plain_tree_and_runs_on_our_runtime() -> None:
    shared = Recipe("q4f16_1", (256,), OURS, OURS, mlc_tree=MLC)
    spec = Spec("mistral", shared, Path("cache"), "2026.08", PLAIN)
    ours, plain = (recipe_of(spec, MODEL, ours=choice) for choice in (True, False))
    assert (ours.tvm_tree, plain.tvm_tree) == (OURS, PLAIN)
    assert ours.runtime_tree == plain.runtime_tree == OURS
    assert (ours.kernels, ours.steps) == (True, None)
    assert (plain.kernels, plain.steps) == (False, ())
    # A model whose products have no kernel yet is an outcome of the zoo, not an error.
    assert not ours.require_tensorize
    assert dict(ours.sizes) == chosen(["mistral"])[0].sizes
    assert ours.mlc is not None and ours.mlc.tvm_tree == OURS


def test_the_bench_compiles_each_variant_on_its_trees_and_keeps_symbols(tmp_path: Path) -> None:
    variants = ["--variant", "upstream=plain", "--variant", "ours=ours,mlc=mlc,kernels"]
    bench = parse_bench(["--tvm-tree", "ours", *variants, "--cache", str(tmp_path)])
    subject = Subject(bench)
    upstream, ours = (subject.recipe(v, "q0f32", 512) for v in bench.variants)
    assert (upstream.tvm_tree, ours.tvm_tree) == (PLAIN, OURS)
    assert upstream.runtime_tree == ours.runtime_tree == OURS
    assert not upstream.kernels and not upstream.require_tensorize and upstream.steps == ()
    assert ours.kernels and ours.require_tensorize and ours.steps is None
    assert not upstream.strip and not ours.strip
    # The own definition takes float32 although there is an MLC-LLM tree; the quantized one not.
    assert ours.mlc_tree is None
    assert subject.recipe(bench.variants[1], "q4f32_1", 512).mlc_tree == MLC
    assert read_config(ours.model / "config.json") == bench.config


def test_the_job_takes_mlc_llm_where_it_is_and_all_kernels() -> None:
    own = parse_job(["--tvm-tree", "ours"]).recipe
    assert own.mlc is None and own.kernels and own.require_tensorize and own.strip
    assert own.tvm_tree == own.runtime_tree == OURS
    quantized = ["--tvm-tree", "ours", "--mlc-tree", "mlc", "--quantization", "q4f32_1"]
    assert parse_job(quantized).recipe.mlc_tree == MLC


def tuned_of(request: MlcCompileRequest, folder: Path) -> Path | None:
    """The database that the passes are configured with."""
    (path,) = request.configure(folder).values()
    found: Path | None = load_pass("configuration").Configuration.read(Path(path)).tuned
    return found


def test_a_database_of_schedules_is_looked_for_and_reaches_either_compiler(tmp_path: Path) -> None:
    wanted = ["--tvm-tree", "ours", "--tuned", str(tmp_path)]
    with pytest.raises(UserError, match="--tuned: no database in"):
        parse_job(wanted)
    for core in ("tenstorrent-ascalon-x", "spacemit-x60"):
        (tmp_path / core).mkdir()
        (tmp_path / core / WORKLOADS).write_text("[]", encoding="utf-8")
    with pytest.raises(
        UserError, match=r"databases for spacemit-x60, tenstorrent-ascalon-x, and no --core"
    ):
        parse_job(wanted)
    with pytest.raises(UserError, match=r"not for xuantie-c908"):
        parse_job([*wanted, "--core", "xuantie-c908"])
    assert (
        parse_job([*wanted, "--core", "tenstorrent-ascalon-x"]).recipe.tuned
        == tmp_path / "tenstorrent-ascalon-x"
    )
    (tmp_path / WORKLOADS).write_text("[]", encoding="utf-8")
    assert parse_job(wanted).recipe.tuned == tmp_path
    variants = ["--variant", "upstream=U", "--variant", "ours=O,kernels"]
    bench = parse_bench([*wanted, *variants])
    recipes = [Subject(bench).recipe(variant, "q0f32", 256) for variant in bench.variants]
    assert [recipe.tuned for recipe in recipes] == [None, tmp_path]
    request = MlcCompileRequest(MODEL, "q0f32", "cpu", tuned=tmp_path)
    assert tuned_of(request, tmp_path) == tmp_path
    before = request.about()
    (tmp_path / WORKLOADS).write_text("[1]", encoding="utf-8")
    assert request.about() != before
    assert tuned_of(replace(request, tuned=None), tmp_path) is None


def test_compilers_schedule_for_a_core_if_all_cores_have_one_model() -> None:
    x60, x100, c908, ascalon = map(
        core_option, ("spacemit-x60", "spacemit-x100", "xuantie-c908", "tenstorrent-ascalon-x")
    )
    shared = Recipe("q0f32", (256,), OURS, OURS)
    tunes = [replace(shared, cores=cores).tune for cores in ((), (x60,), (x60, x100), (c908,))]
    assert tunes == ["", "spacemit-x60", "spacemit-x60", ""]
    assert replace(shared, cores=(x60, ascalon)).tune == ""
    (target,) = replace(shared, cores=(x60,)).targets
    assert target.table()["mcpu"] == "spacemit-x60"


@pytest.mark.slow
def test_kernels_are_compiled_by_a_clang_with_a_model_of_the_core() -> None:
    cross()
    plain = compiler_for(KernelTarget.RISCV64)
    tuned = compiler_for(KernelTarget.RISCV64, tune="spacemit-x60")
    suffix = tuning_clang("spacemit-x60")
    if suffix is None:
        assert tuned == plain
    else:
        assert tuned == (f"clang{suffix}", *plain[1:], "-mtune=spacemit-x60")
    assert tuning_clang("no-such-cpu") is None
