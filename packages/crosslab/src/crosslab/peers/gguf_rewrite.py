# SPDX-License-Identifier: Apache-2.0
"""Conversion of a GGUF file's matrices to another format, with the same tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, ReaderField, dequantize

from crosslab.cached_build import cached_build
from crosslab.errors import UserError
from crosslab.models.sources.gguf_import import open_gguf
from crosslab.peers import gguf_export
from crosslab.peers import quantize as quantize_module
from crosslab.peers.gguf_export import FORMATS, SMALL_BLOCK
from crosslab.peers.quantize import quantize
from groundwork.hashing import digest

_KIND = GGMLQuantizationType
# Fields that GGUFWriter adds.
OWN_FIELDS = ("general.architecture", "general.file_type", "general.quantization_version")


def rewrite_gguf(source: Path, format_: str, cache: Path) -> Path:
    """Write a GGUF file's model in another format once; return the cached path.

    Args:
        source: the GGUF file.
        format_: key of :data:`FORMATS`.
        cache: folder of finished builds.

    Raises:
        UserError: the file is not a GGUF file, or a row does not consist of whole blocks.
    """
    modules = (gguf_export, quantize_module)
    key = digest(source, format_, Path(__file__), *(Path(str(m.__file__)) for m in modules))
    name = f"{source.stem}.{format_}.gguf"
    rewritten = cached_build(cache, "gguf", key, lambda out: _rewrite(source, format_, out / name))
    return rewritten / name


def _rewrite(source: Path, format_: str, target: Path) -> None:
    reader, fields = open_gguf(source)
    chosen, architecture = FORMATS[format_], str(fields.get("general.architecture"))
    layers = int(fields.get(f"{architecture}.block_count") or 0)
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    writer = GGUFWriter(target, architecture)
    writer.add_file_type(chosen.file_type)
    for name, field in reader.fields.items():
        if name not in OWN_FIELDS and not name.startswith("GGUF."):
            _copy_field(writer, field)
    for tensor in reader.tensors:
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        kind = _KIND.F32
        if values.ndim == 2:
            width = values.shape[1]
            kind = chosen.kind_of(str(tensor.name), width, layers, tied=tied)
            if kind not in (_KIND.F32, _KIND.F16) and width % SMALL_BLOCK:
                raise UserError(
                    f"{source.name}: {tensor.name} has rows of {width} weights, which are no whole "
                    f"blocks of {SMALL_BLOCK}",
                    remedy="use F32 or F16, or a model with other widths",
                )
        writer.add_tensor(str(tensor.name), quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_field(writer: GGUFWriter, field: ReaderField) -> None:
    kind, contents = field.types[0], field.contents()
    items = field.types[-1] if kind == GGUFValueType.ARRAY else None
    # The writer refuses empty lists, so leave them out.
    if contents != []:
        writer.add_key_value(field.name, contents, kind, items)
