# SPDX-License-Identifier: Apache-2.0
"""Small models of the library transformers, of text, images and sound, from ``language.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from outputs import Factory, Outputs, image, tokens

STATES = "last_hidden_state"
TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
UNCACHED = {"use_cache": False}
# By what a model reads: the tables of its sizes, its inputs for its sizes, further arguments.
READS: dict[str, tuple[tuple[str, ...], Callable[[Any], dict[str, Any]], dict[str, Any]]] = {
    "text": (("small",), lambda _: {"input_ids": tokens()}, {}),
    "text so far": (("small",), lambda _: {"input_ids": tokens()}, UNCACHED),
    "image": ((), lambda sizes: {"pixel_values": image(sizes["image_size"])}, {}),
    "patches": (("small", "patches"), lambda _: {"pixel_values": image()}, {}),
    "waves": (("small", "waves"), lambda _: {"input_values": torch.randn(1, 300)}, {}),
    "pair": (
        ("pair",),
        lambda _: {"input_ids": tokens(), "decoder_input_ids": tokens(5)},
        UNCACHED,
    ),
}


def _model(name: str, *tables: str, **sizes: Any) -> Any:
    """Return a model of a class, with the sizes of some tables and further sizes."""
    merged = {size: value for table in tables for size, value in TABLES[table].items()}
    configuration = getattr(transformers, f"{name}Config")(**merged | sizes)
    return getattr(transformers, f"{name}Model")(configuration)


def _of_row(row: dict[str, Any]) -> Any:
    """Return the model of a row, and its inputs."""
    sizes = {name: value for name, value in row.items() if name not in ("reads", "class")}
    tables, inputs, fixed = READS[row["reads"]]
    return Outputs(_model(row["class"], *tables, **sizes), STATES, **fixed), inputs(sizes)


def _whisper() -> Any:
    sizes = {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 16}
    return _model("Whisper", "pair", **sizes)


def _whisper_encoder() -> Any:
    return Outputs(_whisper().encoder, STATES), {"input_features": torch.randn(1, 8, 40)}


def _whisper_decoder() -> Any:
    inputs = {"input_ids": tokens(6), "encoder_hidden_states": torch.randn(1, 20, 32)}
    return Outputs(_whisper().decoder, STATES, **UNCACHED), inputs


def _t5() -> Any:
    sizes = {"d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_model": 32}
    return _model("T5", "small", **sizes, decoder_start_token_id=0)


def _t5_encoder() -> Any:
    return Outputs(_t5().encoder, STATES), {"input_ids": tokens()}


def _t5_decoder() -> Any:
    inputs = {"input_ids": tokens(6), "encoder_hidden_states": torch.randn(1, 9, 32)}
    return Outputs(_t5().decoder, STATES, **UNCACHED), inputs


def _masked_bert() -> Any:
    model = Outputs(_model("Bert", "small"), STATES, "pooler_output")
    mask = torch.tensor([[1] * 9 + [0] * 3])
    return model, {"input_ids": tokens(), "attention_mask": mask}


OWN: dict[str, Factory] = {
    "BERT": _masked_bert,
    "T5 encoder": _t5_encoder,
    "T5 decoder": _t5_decoder,
    "Whisper encoder": _whisper_encoder,
    "Whisper decoder": _whisper_decoder,
}
MODELS: dict[str, Factory] = {
    name: partial(_of_row, row) if row else OWN[name] for name, row in TABLES["models"].items()
}
