# SPDX-License-Identifier: Apache-2.0
"""The series for TVM 0.23: the same defects mended, the same kernels, in kv_cache.py.

What is asked of the kernels is what the tests of the newer layout ask; older_layout.py says how
0.23's come to run here.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import test_decode_attention as decode
import test_prefill_numerics as tiled
import test_prefill_upstream_fixes as fixes
from attention_kernels import compile_kernel, run_paged, run_ragged
from attention_reference import Heads, make_batch
from kv_cache_ir import kv_cache_module
from older_layout import ROOT, UPSTREAM, VERSION, load_older, older_plan, older_sources
from test_prefill_registration import TILED, block_shapes

import tvmdialect
from forkpatch.drift import read_base
from forkpatch.patchfile import load_series

SERIES = load_series(ROOT / "patches/tvm" / VERSION)


@dataclass(frozen=True)
class Older:
    """TVM 0.23's LLM modules, and its CPU attention functions and kernels by short name."""

    package: Any
    functions: Callable[[str], Any]
    kernels: Callable[[str], Any]
    registered: Callable[[], Any]


def load(tvm: ModuleType, folder: Path, without: str = "") -> Older:
    """Load the patched modules, perhaps without a patch."""
    package: Any = load_older(folder, without)
    kv_cache, tree_attn, heads = package.kv_cache, package.tree_attn, fixes.HEADS
    kv, q, d = heads.kv, heads.q, heads.d
    make = {
        "paged": lambda: kv_cache._attention_prefill_cpu(kv, q, d, "float32", False, {}),
        "paged_window": lambda: kv_cache._attention_prefill_cpu(kv, q, d, "float32", True, {}),
        "ragged": lambda: kv_cache._attention_prefill_ragged_cpu(kv, q, d, d, "float32", {}),
        "paged_tree": lambda: tree_attn.tree_attn_with_paged_kv_cache_cpu(kv, q, d, "float32", {}),
        "ragged_tree": lambda: tree_attn.tree_attn_cpu(kv, q, d, "float32", {}),
    }
    functions = cache(lambda name: make[name]())
    return Older(
        package,
        functions,
        cache(lambda name: compile_kernel(functions(name), opt_level=0)),
        cache(lambda: kv_cache_module(tvm, tvm.target.Target({"kind": "llvm"}), kv_cache)),
    )


@pytest.fixture(scope="module")
def older(tvm: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Older:
    """All of the series in."""
    return load(tvm, tmp_path_factory.mktemp("patched"))


def test_paged_prefill_at_opt_level_0(older: Older) -> None:
    fixes.test_paged_prefill_at_opt_level_0(older.functions, older.kernels)


def test_paged_tree_attention_at_opt_level_0(older: Older) -> None:
    fixes.test_paged_tree_attention_at_opt_level_0(older.functions, older.kernels)


def test_paged_prefill_of_rows_without_keys(older: Older) -> None:
    fixes.test_paged_prefill_of_rows_without_keys(older.kernels)


def test_paged_tree_attention_of_a_second_root(older: Older) -> None:
    fixes.test_paged_tree_attention_of_a_second_root(older.kernels)


def test_paged_prefill_does_not_walk_the_pool(older: Older) -> None:
    for window in (False, True):
        fixes.test_paged_prefill_does_not_walk_the_pool(older.functions, window)


def test_paged_tree_attention_does_not_walk_the_pool(older: Older) -> None:
    fixes.test_paged_tree_attention_does_not_walk_the_pool(older.functions)


def test_ragged_prefill_without_keys(older: Older) -> None:
    fixes.test_ragged_prefill_without_keys(older.kernels)


def test_ragged_prefill_mask_with_a_small_scale(older: Older) -> None:
    fixes.test_ragged_prefill_mask_with_a_small_scale(older.kernels)


def test_ragged_tree_attention_mask_with_a_small_scale(older: Older) -> None:
    fixes.test_ragged_tree_attention_mask_with_a_small_scale(older.kernels)


def test_tree_attention_reads_nothing_before_the_tree_order(older: Older) -> None:
    import tvm  # noqa: PLC0415 - the patched tree is on sys.path only when a test asks for it

    folder = Path(older.package.__path__[0]).parent
    tree = Path(str(tvm.__file__)).parents[1]
    name = f"{older.package.__name__}.tree_attn"
    fixes.assert_reads_the_tree_order_only(name, tree, folder)


def test_kv_cache_registers_the_tiled_kernels(older: Older) -> None:
    tile = older.package._prefill_tiled_macros.PrefillTile()
    for name in TILED:
        assert block_shapes(older.registered()[name]) == {
            "S_gemm": [tile.q_tile, tile.kv_tile, 48],
            "O_gemm": [tile.q_tile, 48, tile.kv_tile],
        }


def test_kv_cache_registers_the_vectorised_decode_kernel(older: Older) -> None:
    for suffix in ("", "_sliding_window"):
        text = older.registered()[f"tir_attention_decode_cpu{suffix}"].script()
        assert "llvm.vector.reduce.fadd" in text and "T.exp2" not in text


@pytest.mark.parametrize("patch", SERIES, ids=lambda patch: patch.name)
def test_without_its_patch_each_of_these_fails(tvm: ModuleType, tmp_path: Path, patch: Any) -> None:
    test = globals()[patch.trailer("Test").partition("::")[2]]
    without = load(tvm, tmp_path, patch.name)
    with pytest.raises(AssertionError):
        test(without)


@pytest.mark.parametrize("kind", ["paged", "window", "ragged", "decode"])
@pytest.mark.parametrize(
    ("heads", "rotary"),
    [(tiled.PAGED_HEADS[0], True), (tiled.SMALL, False), (tiled.PAGED_HEADS[-1], True)],
    ids=["d64-rotary", "d20", "float16-rotary"],
)
def test_overlay_kernels_are_right(older: Older, kind: str, heads: Heads, rotary: bool) -> None:
    prefill, window = older.package._prefill_tiled_cpu, kind == "window"
    if kind == "decode":
        function = older.package._decode_tiled_cpu._attention_decode_cpu(
            heads.kv, heads.q, heads.d, heads.dtype, False, {}
        )
        batch = make_batch(heads, decode.SEQUENCES, rotary=rotary)
        actual = decode.run_decode(compile_kernel(function), batch, sliding_window=False)
    elif kind == "ragged":
        function = prefill._attention_prefill_ragged_cpu(
            heads.kv, heads.q, heads.d, heads.d_v, heads.dtype, {}
        )
        batch = make_batch(heads, tiled.EDGES, rotary=rotary)
        actual = run_ragged(compile_kernel(function), batch)
    else:
        function = prefill._attention_prefill_cpu(
            heads.kv, heads.q, heads.d, heads.dtype, window, {}
        )
        batch = make_batch(heads, tiled.WINDOWS if window else tiled.EDGES, rotary=rotary)
        actual = run_paged(compile_kernel(function), batch, sliding_window=window)
    tiled.assert_solves(batch, actual)


def test_overlays_are_made_from_those_of_the_newer_layout() -> None:
    differing = tvmdialect.out_of_date(tvmdialect.older_overlays())
    assert differing == [], "make them anew: PYTHONPATH=scripts python -m tvmdialect write"


def test_kernels_survive_the_renames_there_and_back() -> None:
    for path in (tvmdialect.NEWER / tvmdialect.KERNELS).glob("*.py"):
        text = path.read_text("utf-8")
        assert tvmdialect.older(text) != text
        back = tvmdialect.newer(tvmdialect.older(text))
        # In 0.23 it is one module that the names come from, so this alone does not come back.
        both = [ast.unparse(_without_imports(one)) for one in (text, back)]
        assert both[0] == both[1], path


def _without_imports(text: str) -> ast.Module:
    tree = ast.parse(text)
    tree.body = [
        node for node in tree.body[1:] if not isinstance(node, ast.Import | ast.ImportFrom)
    ]
    return tree


def test_overlays_name_only_what_0_23_has() -> None:
    """Every ``T.x``, ``tir.x`` and imported name of the overlays is in 0.23's own sources."""
    script = "python/tvm/script/ir_builder/tir/ir.py"
    files = read_base(older_plan(), [script, "python/tvm/tir/__init__.py"])
    names = {
        "T": set(_names(ast.parse(files[script])))
        | set(_exported(files[script], "__all__"))
        | {"prim_func", "macro"},
        "tir": set(_names(ast.parse(files["python/tvm/tir/__init__.py"]))),
    }
    sources = older_sources()
    for file, text in sources.items():
        if file in UPSTREAM:
            continue
        for node in ast.walk(ast.parse(text)):
            assert not ast.unparse(node).startswith("tir.op."), f"{file}: {ast.unparse(node)}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                known = names.get(node.value.id)
                assert known is None or node.attr in known, f"{file}: {ast.unparse(node)}"
            elif isinstance(node, ast.ImportFrom) and node.level:
                there = set(_names(ast.parse(sources[f"{node.module}.py"])))
                assert {alias.name for alias in node.names} <= there, ast.unparse(node)


def _names(tree: ast.Module) -> list[str]:
    """The names that a module binds at its top level."""
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found += [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.Assign):
            bound = (ast.walk(target) for target in node.targets)
            found += [n.id for n in itertools.chain(*bound) if isinstance(n, ast.Name)]
    return found


def _exported(data: bytes, name: str) -> list[str]:
    for node in ast.walk(ast.parse(data)):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return [
                item.value
                for item in ast.walk(node)
                if isinstance(item, ast.Constant) and isinstance(item.value, str)
            ]
    return []
