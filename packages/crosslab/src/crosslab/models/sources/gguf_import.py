# SPDX-License-Identifier: Apache-2.0
"""Import of a GGUF model: safetensors files with Hugging Face's names and layout.

The weights are float32, or the bytes of the file's blocks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor, dequantize

from crosslab.cached_build import cached_build
from crosslab.errors import UserError
from crosslab.models import config as config_module
from crosslab.models import families as published_families
from crosslab.models import gguf_formats as gguf_formats_module
from crosslab.models.config import FIELDS, completed
from crosslab.models.gguf_formats import TABLE as GGUF_TABLE
from crosslab.models.gguf_formats import stays_in_blocks
from crosslab.models.gguf_params import TYPES
from crosslab.models.sources import gguf_families, gguf_metadata
from crosslab.models.sources.gguf_families import (
    FOLDER,
    ROPE_FACTORS,
    GgufFamily,
    family_of,
    rope_scaling,
)
from crosslab.models.sources.gguf_metadata import EMBEDDING, Metadata
from crosslab.models.sources.gguf_parts import part_files
from crosslab.models.weights_file import F32, save_weights
from crosslab.tokenizer import byte_pieces, chat_tokenizer, word_rules
from crosslab.tokenizer.chat_tokenizer import build_tokenizer, save_tokenizer, stop_tokens
from groundwork.gguf_bound import Bounded
from groundwork.hashing import digest

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
        UserError: the file is not whole GGUF, or its model or tokenizer is not supported.
    """
    modules = (
        byte_pieces,
        chat_tokenizer,
        word_rules,
        gguf_families,
        gguf_metadata,
        published_families,
    )
    more = (gguf_formats_module, config_module)
    sources = [Path(str(module.__file__)) for module in (*modules, *more)]
    tables = (word_rules.TABLE, GGUF_TABLE, gguf_families.TABLE, FIELDS)
    key = digest(*part_files(source), str(blocks), Path(__file__), *sources, *tables)
    make = partial(import_into, source, blocks=blocks)
    return cached_build(cache, "model", key, make)


def open_gguf(source: Path) -> tuple[BoundedReader, dict[str, Any]]:
    """Open a GGUF file; return the reader and the metadata as plain values.

    Of a split model, the metadata are those of the first part, and the tensors those of all.

    Raises:
        UserError: the file is not a GGUF file, or parts of the model are missing.
    """
    files = part_files(source)
    reader, fields = _opened(source)
    if (count := fields.get("split.count", 0)) not in (0, len(files)):
        raise UserError(
            f"{source.name} is a part of a model: split.count = {str(count)[:40]}",
            remedy="name the parts MODEL-00001-of-00002.gguf and so on, and give the first; or "
            "join them: llama-gguf-split --merge FIRST-PART.gguf MODEL.gguf",
        )
    for number, file in enumerate(files[1:], 1):
        other, about = _opened(file)
        if (about.get("split.count"), about.get("split.no")) != (count, number):
            raise UserError(
                f"{file.name}: split.no = {str(about.get('split.no'))[:40]} is not that of the "
                f"file's name, or split.count is not {count}",
                remedy="download the file again",
            )
        reader.tensors += other.tensors
    if fields.get("split.tensors.count", len(reader.tensors)) != len(reader.tensors):
        wanted = str(fields["split.tensors.count"])[:40]
        raise UserError(
            f"{source.name}: {len(reader.tensors)} tensors, but split.tensors.count = {wanted}",
            remedy="download all parts again",
        )
    return reader, fields


def _opened(source: Path) -> tuple[BoundedReader, dict[str, Any]]:
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
    file = _metadata(source, reader, fields)
    family = family_of(file)
    _check_whole(source, fields, tensors)
    config = family.config(file)
    factors = tensors.pop(ROPE_FACTORS, None)
    if factors is not None:
        config["rope_scaling"] = rope_scaling(config, floats_of(factors, source.name))
    named = _published(file, tensors, family)
    stay = {name for name, t in named.items() if blocks and _stays(t) and family.keeps_rows(name)}
    weights = (
        (name, np.ascontiguousarray(t.data) if name in stay else floats_of(t, source.name))
        for name, t in named.items()
    )
    save_weights(family.published_weights(weights, file), folder, metadata={"format": "pt"})
    special = {
        name: fields[field]
        for name in ("bos_token_id", "eos_token_id")
        if fields.get(field := f"tokenizer.ggml.{name}") is not None
    }
    about = completed({**config, **special})
    if family.within:
        about = {"model_type": family.within, "text_config": about}
    if blocks:
        about[TYPES] = {
            family.published_name(name): named[whole].tensor_type.name
            for whole in named
            if whole in stay
            for name in family.names_of(whole, len(named[whole].data))
        }
    for name, table in (
        ("config", about),
        ("generation_config", {**special, "eos_token_id": stop_tokens(fields)}),
    ):
        text = json.dumps(table, indent=2) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    save_tokenizer(build_tokenizer(fields), fields, folder)


def kind_of_file(source: Path) -> tuple[str, bool]:
    """Return the ``model_type`` of a GGUF file's model, and True if experts can stay in blocks.

    Raises:
        UserError: the file is not a GGUF file, or its family is not supported.
    """
    file = _metadata(source, *open_gguf(source))
    family = family_of(file)
    return family.kind, bool(file["expert_count | default(0)"]) and not family.whole_experts


def _metadata(source: Path, reader: GGUFReader, fields: Mapping[str, Any]) -> Metadata:
    shapes = {str(t.name): tuple(map(int, reversed(t.shape))) for t in reader.tensors}
    return Metadata(source.name, fields, shapes)


def _check_whole(
    source: Path, fields: Mapping[str, Any], tensors: Mapping[str, ReaderTensor]
) -> None:
    if not isinstance(fields.get("tokenizer.ggml.tokens"), list):
        raise UserError(f"{source.name} lacks the field tokenizer.ggml.tokens")
    if EMBEDDING not in tensors:
        raise UserError(f"{source.name} lacks the tensor {EMBEDDING}", remedy=FOLDER)


def _published(
    file: Metadata, tensors: Mapping[str, ReaderTensor], family: GgufFamily
) -> dict[str, ReaderTensor]:
    """Return the file's tensors by published name, without layers that guess further tokens."""
    layers = int(file.positive("block_count"))
    guesses = int(file["nextn_predict_layers | default(0)"])
    if not 0 <= guesses < layers <= len(tensors):
        raise UserError(f"{file.file}: {layers} layers in {len(tensors)} tensors")
    unused = tuple(f"blk.{n}." for n in range(layers - guesses, layers))
    names, named = family.published_names(layers - guesses), {}
    for name, tensor in tensors.items():
        if name in names:
            named[names[name]] = tensor
        elif not unused or not name.startswith(unused):
            raise UserError(f"{file.file}: unknown tensor {name}", remedy=FOLDER)
    return named


def _stays(tensor: ReaderTensor) -> bool:
    """True if kernels can read a tensor in blocks: matrices of a supported type."""
    return len(tensor.shape) in (2, 3) and stays_in_blocks(tensor.tensor_type.name, tensor.data)


def floats_of(tensor: ReaderTensor, file: str) -> F32:
    """Return a tensor as float32.

    Raises:
        UserError: the tensor has a type that the package gguf cannot convert.
    """
    try:
        values = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise UserError(
            f"{file}: the type {tensor.tensor_type.name} of {tensor.name} is not supported",
            remedy=FOLDER,
        ) from error
    return np.ascontiguousarray(values, np.float32)
