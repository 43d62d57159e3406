# SPDX-License-Identifier: Apache-2.0
"""Conversion of a GGUF file's matrices to another format, with the same tokenizer."""

from __future__ import annotations

from pathlib import Path

from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, ReaderField

from crosslab.cached_build import cached_build
from crosslab.errors import UserError
from crosslab.models.sources.gguf_import import floats_of, open_gguf
from crosslab.models.sources.gguf_parts import part_files
from crosslab.peers import gguf_export
from crosslab.peers import quantize as quantize_module
from crosslab.peers.gguf_export import FORMATS, SMALL_BLOCK
from crosslab.peers.quantize import quantize
from groundwork.hashing import digest

_KIND = GGMLQuantizationType
# Fields that GGUFWriter adds.
OWN_FIELDS = ("general.architecture", "general.file_type", "general.quantization_version")
# Matrices that llama-quantize does not round: of routers, convolutions, positions and types.
STAYS = tuple(
    f"{name}.weight" for name in ("ffn_gate_inp", "ssm_conv1d", "position_embd", "token_types")
)


def rewrite_gguf(source: Path, format_: str, cache: Path) -> Path:
    """Write a GGUF file's model in another format once; return the cached path.

    Args:
        source: the GGUF file.
        format_: key of :data:`FORMATS`.
        cache: folder of finished builds.

    Raises:
        UserError: the file is not a GGUF file, a tensor's type is not supported, or a row does not
            consist of whole blocks.
    """
    modules = (gguf_export, quantize_module)
    key = digest(
        *part_files(source), format_, Path(__file__), *(Path(str(m.__file__)) for m in modules)
    )
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
        if name not in OWN_FIELDS and not name.startswith(("GGUF.", "split.")):
            _copy_field(writer, field)
    for tensor in reader.tensors:
        values, name = floats_of(tensor, source.name), str(tensor.name)
        kind = _KIND.F32
        # A mixture's experts are one tensor [experts, rows, width].
        if values.ndim >= 2 and name.endswith(".weight") and not name.endswith(STAYS):
            width = values.shape[-1]
            kind = chosen.kind_of(name, width, layers, tied=tied)
            if kind not in (_KIND.F32, _KIND.F16) and width % SMALL_BLOCK:
                raise UserError(
                    f"{source.name}: {name} has rows of {width} weights, which are no whole "
                    f"blocks of {SMALL_BLOCK}",
                    remedy="use F32 or F16, or a model with other widths",
                )
        rows = quantize(values.reshape(-1, values.shape[-1]), kind)
        writer.add_tensor(name, rows.reshape(*values.shape[:-1], -1), raw_dtype=kind)
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
