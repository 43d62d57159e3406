# SPDX-License-Identifier: Apache-2.0
"""A language model from PyTorch with a paged KV cache, with MLC-LLM's function names.

The functions ``embed``, ``prefill`` and ``batch_decode`` are imported from the program for a length
that varies, ``decode`` from the program for a single token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tvm import relax, tirx

from crosslab.errors import UserError
from torchroad.causal_attention import (
    POSITIONS,
    TOKENS,
    cut_embedding,
    keep_last_row,
    page_attention,
)
from torchroad.module import moved

POSITIONS_OF_CACHE = "vm.builtin.attention_kv_cache_get_query_positions"
BATCH = "batch_size"
# A function that returns a program's module with the function "main", and parameters by name.
Import = Callable[[Any, Any], tuple[Any, dict[str, Any]]]


def check_inputs(names: Sequence[str]) -> None:
    """Refuse a model whose inputs are not tokens and their positions.

    Raises:
        UserError: the model has other inputs.
    """
    if sorted(names) != sorted((TOKENS, POSITIONS)):
        raise UserError(
            f"--paged: the model's inputs are {', '.join(names)}, not {TOKENS} and {POSITIONS}",
            remedy="wrap the model in a module with these two inputs, both int64 [1, n]",
        )


def import_language_model(
    several: Any, single: Any, cases: Sequence[Mapping[str, Any]], import_program: Import
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return a language model's module, its parameters by name, and its metadata.

    Args:
        several: torch's ``ExportedProgram`` for a length that varies; the function changes it.
        single: the ``ExportedProgram`` for a single token; the function changes it.
        cases: inputs of ``several`` by name, for some lengths.
        import_program: imports a program whose attention reads a given cache.

    Raises:
        UserError: the model has no embedding, no causal attention, or no head.
        LabError: TVM's importer fails.
    """
    sizes = page_attention(several, cases)
    single_inputs = {name: value[:, :1] for name, value in cases[0].items()}
    if page_attention(single, [single_inputs]) != sizes:
        raise UserError(
            "--paged: the model's attention for one token differs from that for several"
        )
    weight = cut_embedding(several)
    cut_embedding(single)
    builder = relax.BlockBuilder()
    batch_decode, params = _function(builder, several, import_program, batched=True)
    batch = {rows: tirx.Var(BATCH, "int64") for rows in _symbols(batch_decode)}
    _add(builder, "batch_decode", batch_decode.bind_symbolic_vars(batch))
    keep_last_row(several)
    prefill, _ = _function(builder, several, import_program)
    _add(builder, "prefill", prefill)
    decode, _ = _function(builder, single, import_program)
    _add(builder, "decode", decode)
    _embed(builder, prefill, weight)
    (length,) = _symbols(prefill)
    return builder.finalize(), params, {"attention": asdict(sizes), "length": length.name}


def _add(builder: Any, name: str, function: Any) -> None:
    builder.add_func(function.with_attr("global_symbol", name), name)


def _symbols(function: Any) -> list[Any]:
    """Return the varying sizes of a function's first parameter."""
    return [n for n in function.params[0].ty.shape if isinstance(n, tirx.Var)]


def _function(
    builder: Any, program: Any, import_program: Import, *, batched: bool = False
) -> tuple[Any, dict[str, Any]]:
    """Return a program as a function of embeddings, cache and parameters; parameters by name.

    Embeddings are [1, rows, width], or [rows, 1, width] for a batch of sequences.
    """
    cache = relax.Var("paged_kv_cache", relax.AnyType())
    module, params = import_program(program, cache)
    main = moved(module, builder)
    count = int(main.attrs["num_input"])
    inputs = {param.name: param for param in main.params[:count]}
    tokens, positions = inputs[TOKENS], inputs[POSITIONS]
    _, rows, width = tokens.ty.shape
    shape = [rows, 1, width] if batched else [1, rows, width]
    embedded = relax.Var(
        "input_embeds" if batched else "input_embed", relax.TensorType(shape, "float32")
    )
    inner = relax.BlockBuilder()
    arguments = [embedded, cache, *main.params[count:]]
    with inner.function("main", arguments):
        with inner.dataflow():
            start = inner.emit(relax.op.reshape(embedded, [1, rows, width]))
            inner.emit_normalized(relax.VarBinding(tokens, start))
            places = inner.emit(
                relax.call_pure_packed(
                    POSITIONS_OF_CACHE, cache, ty_args=relax.TensorType([rows], "int32")
                )
            )
            places = inner.emit(relax.op.astype(places, "int64"))
            inner.emit_normalized(
                relax.VarBinding(positions, inner.emit(relax.op.reshape(places, [1, rows])))
            )
            for block in main.body.blocks:
                for binding in block.bindings:
                    inner.emit_normalized(binding)
            logits = inner.emit(relax.TupleGetItem(main.body.body, 0))
            if batched:
                logits = inner.emit(relax.op.reshape(logits, [rows, 1, logits.ty.shape[2]]))
            result = inner.emit_output(relax.Tuple([logits, cache]))
        inner.emit_func_output(result)
    return inner.finalize()["main"].with_attr("num_input", 2), params


def _embed(builder: Any, prefill: Any, weight: str) -> None:
    """Add ``embed``, which maps token ids int32 [rows] to rows of a weight."""
    ids = relax.Var("input_ids", relax.TensorType([tirx.Var("seq_len", "int64")], "int32"))
    params = [relax.Var(param.name, param.ty) for param in prefill.params[2:]]
    table = next(param for param in params if param.name == weight)
    with builder.function("embed", [ids, *params], attrs={"num_input": 1}):
        with builder.dataflow():
            rows = builder.emit_output(relax.op.take(table, ids, axis=0))
        builder.emit_func_output(rows)
