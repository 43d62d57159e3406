# SPDX-License-Identifier: Apache-2.0
"""Import of a GGUF model: safetensors files with Hugging Face's names and layout.

The weights are float32, or the bytes of the file's blocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gguf import GGUFReader, ReaderTensor, dequantize
from numpy.typing import NDArray

from crosslab.cached_build import cached_build
from crosslab.errors import UserError
from crosslab.models import config as model_config
from crosslab.models import gguf_formats as gguf_formats_module
from crosslab.models.config import LlamaConfig, write_config
from crosslab.models.gguf_formats import TABLE as GGUF_TABLE
from crosslab.models.gguf_formats import stays_in_blocks
from crosslab.models.gguf_params import TYPES
from crosslab.models.sources import gguf_families
from crosslab.models.sources.gguf_families import (
    FAMILIES,
    ROPE_FACTORS,
    THETA,
    GgufFamily,
    config_of,
    hf_name,
    rope_scaling,
    shapes_of,
)
from crosslab.models.weights_file import F32, save_weights
from crosslab.tokenizer import chat_tokenizer, word_rules
from crosslab.tokenizer.chat_tokenizer import build_tokenizer, save_tokenizer
from groundwork.gguf_bound import Bounded
from groundwork.hashing import digest

T = TypeVar("T", bound=np.generic)
MOST = 1e9  # above every size of a model
_FOLDER = (
    f"of GGUF, models of {', '.join(FAMILIES)} are read; give the model's Hugging Face folder: "
    "config.json, *.safetensors, tokenizer.json"
)
_MAGIC = b"GGUF"


class BoundedReader(Bounded, GGUFReader):  # type: ignore[misc]
    """GGUFReader that refuses counts beyond the end of the file."""


def import_gguf(source: Path, cache: Path, *, blocks: bool = False) -> Path:
    """Import a GGUF file into ``cache``; return the folder in Hugging Face's layout.

    Args:
        source: the GGUF file.
        cache: folder of finished builds.
        blocks: keep weights in the file's blocks, see :mod:`crosslab.models.gguf_params`.

    Raises:
        UserError: the file's model or tokenizer is of an unsupported kind.
    """
    modules = (chat_tokenizer, word_rules, model_config, gguf_families, gguf_formats_module)
    sources = [Path(str(module.__file__)) for module in modules]
    key = digest(source, str(blocks), Path(__file__), *sources, word_rules.TABLE, GGUF_TABLE)
    make = partial(import_into, source, blocks=blocks)
    return cached_build(cache, "model", key, make)


def open_gguf(source: Path) -> tuple[BoundedReader, dict[str, Any]]:
    """Open a GGUF file; return the reader and the metadata as plain values.

    Raises:
        UserError: the file is not a GGUF file.
    """
    try:
        reader = BoundedReader(source)
        return reader, {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:  # the package names no exceptions of its own
        raise _not_gguf(source, str(error)) from error


def check_magic(source: Path) -> None:
    """Check that a file begins with the magic bytes of GGUF.

    Raises:
        UserError: the file begins with other bytes.
    """
    with source.open("rb") as stream:
        first = stream.read(len(_MAGIC))
    if first != _MAGIC:
        raise _not_gguf(source, f"it begins with {first!r}" if first else "it is empty")


def _not_gguf(source: Path, why: str) -> UserError:
    return UserError(
        f"{source.name} is not a GGUF file: {why}",
        remedy="download the file again, and compare its sha256 with its publisher's",
    )


def import_into(source: Path, folder: Path, *, blocks: bool = False) -> None:
    """Import a GGUF file into an empty folder; see :func:`import_gguf`.

    Raises:
        UserError: see :func:`import_gguf`.
    """
    reader, fields = open_gguf(source)
    tensors = {str(tensor.name): tensor for tensor in reader.tensors}
    kind = str(fields.get("general.architecture"))
    family = _family(source, fields, kind)
    config = _config(source, fields, kind, tied="output.weight" not in tensors)
    factors = tensors.pop(ROPE_FACTORS, None)
    _check_shapes(source, tensors, family, config)
    weights = _weights(tensors, family, config, blocks=blocks)
    save_weights(weights, folder, metadata={"format": "pt"})
    ids = {n: fields.get(f"tokenizer.ggml.{n}_token_id") for n in ("bos", "eos")}
    special = {f"{n}_token_id": index for n, index in ids.items() if index is not None}
    about = {**special, **family.fields, **({TYPES: _types(tensors)} if blocks else {})}
    if factors is not None:
        about["rope_scaling"] = rope_scaling(config, _floats(factors))
    write_config(config, folder / "config.json", **about)
    (folder / "generation_config.json").write_text(json.dumps(special) + "\n", encoding="utf-8")
    save_tokenizer(build_tokenizer(fields), fields, folder)


def _family(source: Path, fields: dict[str, Any], kind: str) -> GgufFamily:
    if kind not in FAMILIES:
        raise UserError(
            f"{source.name} holds a {kind!r} model, which is not supported", remedy=_FOLDER
        )
    if f"{kind}.rope.scaling.type" in fields:
        raise UserError(
            f"{source.name}: scaled rotary embeddings are not supported", remedy=_FOLDER
        )
    return FAMILIES[kind]


def _config(source: Path, fields: dict[str, Any], kind: str, *, tied: bool) -> LlamaConfig:
    def number(name: str, otherwise: float | None = None) -> float:
        value = fields.get(name, otherwise)
        if value is None:
            raise UserError(f"{source.name} lacks the field {name}")
        if type(value) not in (int, float) or not 0 < value < MOST:
            raise UserError(f"{source.name}: {name} has the wrong value {str(value)[:40]!r}")
        return float(value) if otherwise == THETA or "epsilon" in name else int(value)

    tokens = fields.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        raise UserError(f"{source.name} lacks the field tokenizer.ggml.tokens")
    return config_of(kind, number, len(tokens), tied=tied)


def _check_shapes(
    source: Path, tensors: Mapping[str, ReaderTensor], family: GgufFamily, config: LlamaConfig
) -> None:
    """Check that the file has exactly the tensors of the config, with their shapes."""
    shapes = {name: tuple(int(n) for n in tensor.shape) for name, tensor in tensors.items()}
    if config.layers > len(shapes):
        raise UserError(f"{source.name}: {config.layers} layers in {len(shapes)} tensors")
    for name, shape in shapes_of(family, config).items():
        actual = shapes.pop(name, None)
        if actual != shape:
            raise UserError(f"{source.name}: {name} has the shape {actual}, not {shape}")
    if shapes:
        raise UserError(f"{source.name}: unknown tensor {next(iter(shapes))}", remedy=_FOLDER)


def _stays(tensor: ReaderTensor) -> bool:
    """True if kernels can read a tensor in blocks: a matrix of a supported type."""
    return len(tensor.shape) == 2 and stays_in_blocks(tensor.tensor_type.name, tensor.data)


def _types(tensors: Mapping[str, ReaderTensor]) -> dict[str, str]:
    """Return the format of each weight that kernels can read in blocks, by Hugging Face's name."""
    named = ((hf_name(name), tensor) for name, tensor in tensors.items())
    return {name: t.tensor_type.name for name, t in named if name is not None and _stays(t)}


def _floats(tensor: ReaderTensor) -> F32:
    return np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)


def _weights(
    tensors: Mapping[str, ReaderTensor], family: GgufFamily, config: LlamaConfig, *, blocks: bool
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield each tensor by name: with ``blocks``, matrices as bytes [rows, bytes]; else float32."""
    for gguf_name, tensor in tensors.items():
        name = hf_name(gguf_name)
        assert name is not None  # _check_shapes knows them all
        values: NDArray[Any]
        values = np.ascontiguousarray(tensor.data) if blocks and _stays(tensor) else _floats(tensor)
        if name.endswith("norm.weight") and family.norm_offset:
            values = values - np.float32(family.norm_offset)
        if not family.pairs_apart and name.endswith((".q_proj.weight", ".k_proj.weight")):
            heads = config.heads if ".q_proj." in name else config.kv_heads
            values = rotary_halves(values, heads)
        yield name, values


def rotary_halves(weight: NDArray[T], heads: int) -> NDArray[T]:
    """Reorder rows of a GGUF query or key weight to rotary pairs (i, i + d/2) within a head.

    GGUF's Llama keeps the two members of a rotary pair in neighbouring rows (2i, 2i+1).

    Args:
        weight: [heads * d, hidden] with interleaved pairs, or rows of blocks as bytes.
        heads: number of heads in the weight.

    Returns:
        the same rows, with the first members of a head's pairs before the second members.
    """
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)
