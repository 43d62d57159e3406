# SPDX-License-Identifier: Apache-2.0
"""Reader and writer of weights in safetensors files, tensor by tensor in bounded memory."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

# bfloat16 becomes a dtype of numpy's by this import.
import ml_dtypes  # noqa: F401
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from crosslab.errors import UserError
from groundwork.hashing import sha256_of

F32 = NDArray[np.float32]
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ELSEWHERE_FILE = "weights.json"
SHARD_BYTES = 1 << 30
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def save_weights(
    weights: Iterable[tuple[str, np.ndarray]],
    folder: Path,
    metadata: dict[str, str] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write tensors to ``folder/model.safetensors``; large models become shards with an index.

    Args:
        weights: name and values of each tensor; at most one shard of tensors is in memory.
        folder: target folder.
        metadata: metadata written into each file.
        shard_bytes: most bytes of a file; a larger tensor has a file to itself.

    Raises:
        OSError: a file cannot be written; replaces safetensors' own exception.
    """
    shards: list[list[str]] = []
    shard: dict[str, np.ndarray] = {}

    def flush() -> None:
        shards.append(list(shard))
        _save(shard, folder / f".shard-{len(shards)}", metadata)
        shard.clear()

    for name, values in weights:
        if shard and sum(v.nbytes for v in shard.values()) + values.nbytes > shard_bytes:
            flush()
        shard[name] = values
    flush()
    if len(shards) == 1:
        (folder / ".shard-1").rename(folder / WEIGHTS_FILE)
        return
    table: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        (folder / f".shard-{number}").rename(folder / file)
        table |= dict.fromkeys(names, file)
    write_index(table, folder)


def write_index(table: Mapping[str, str], folder: Path) -> None:
    """Write Hugging Face's index, which names the file of each tensor, into a folder."""
    text = json.dumps({"metadata": {}, "weight_map": table}, indent=2)
    (folder / INDEX_FILE).write_text(text + "\n", encoding="utf-8")


def _save(weights: dict[str, np.ndarray], path: Path, metadata: dict[str, str] | None) -> None:
    try:
        save_file(weights, path, metadata)
    except SafetensorError as error:
        if not (match := _OS_ERROR.search(str(error))):
            raise
        code = int(match[1])
        raise OSError(code, os.strerror(code), str(path)) from error
    path.chmod(0o644)  # safetensors writes for the owner alone


@dataclass(frozen=True)
class WeightFile:
    """A file of weights: name in the model's folder, path and hash of the content.

    Attributes:
        name: file name in the model's folder.
        path: path of the content, possibly in another folder.
        sha256: hash of the content.
    """

    name: str
    path: Path
    sha256: str


def write_elsewhere(files: Iterable[WeightFile], folder: Path) -> None:
    """Write paths, hashes and stats of weight files into a model's folder, without a copy."""
    table = {
        file.name: {"path": str(file.path), "sha256": file.sha256, "stat": stat_of(file.path)}
        for file in files
    }
    (folder / ELSEWHERE_FILE).write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


def weight_files(model: Path) -> list[WeightFile]:
    """Return the weight files of a model, including files that stay in another folder.

    Args:
        model: folder in Hugging Face's layout, or a folder of :func:`write_elsewhere`.

    Raises:
        UserError: a file in another folder was changed or removed, or the model has no weights.
    """
    elsewhere = model / ELSEWHERE_FILE
    if not elsewhere.is_file():
        paths = sorted(model.glob("*.safetensors"))
        if not paths:
            raise UserError(f"no safetensors files in {model}", remedy="import the model first")
        return [WeightFile(path.name, path, sha256_of(path)) for path in paths]
    files = []
    for name, entry in json.loads(elsewhere.read_text(encoding="utf-8")).items():
        path = Path(entry["path"])
        if not path.is_file() or stat_of(path) != entry["stat"]:
            raise UserError(
                f"{path} changed since it was read",
                remedy="run the same command again; it reads the file again",
            )
        files.append(WeightFile(name, path, entry["sha256"]))
    return files


def stat_of(path: Path) -> list[int]:
    """Return a file's size in bytes and modification time in ns, to notice changes."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


class StoredWeights:
    """The tensors of safetensors files, each read on access.

    Args:
        files: name and path of each file.

    Raises:
        UserError: a file is not a safetensors file, or two files hold the same tensor.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files = dict(files)

    @classmethod
    def of_model(cls, model: Path) -> StoredWeights:
        """Open the weight files of a model's folder."""
        return cls({file.name: file.path for file in weight_files(model)})

    @cached_property
    def places(self) -> dict[str, Path]:
        """The path of the file that holds each tensor, by the tensor's name."""
        places: dict[str, Path] = {}
        for path, name, _ in self._tensors():
            if name in places:
                raise UserError(f"{path} and {places[name]} both hold {name}")
            places[name] = path
        return places

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """Yield name, shape and dtype of each tensor."""
        for _, name, stored in self._tensors():
            part = stored.get_slice(name)
            yield name, tuple(part.get_shape()), str(part.get_dtype())

    def _tensors(self) -> Iterator[tuple[Path, str, Any]]:
        """Yield the path of the file, the tensor's name and the open file, for each tensor."""
        for path in self.files.values():
            with _opened(path) as stored:
                for name in stored.keys():  # noqa: SIM118 (no mapping)
                    yield path, name, stored

    def read(self, name: str) -> F32:
        """Read a tensor as float32.

        Raises:
            UserError: the file lacks the tensor.
        """
        return self._read(name).astype(np.float32, copy=False)

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """Read a tensor as bytes (uint8).

        Raises:
            UserError: the file lacks the tensor.
        """
        return self._read(name).view(np.uint8)

    def _read(self, name: str) -> NDArray[Any]:
        if name not in self.places:
            raise UserError(f"the model's weights lack {name}")
        # Opened for each tensor: a file that stays mapped keeps the pages read so far in memory.
        with _opened(self.places[name]) as stored:
            return np.asarray(stored.get_tensor(name))


class NamedWeights(Mapping[str, F32]):
    """The weights of a model's folder in float32 by MLC-LLM's names, read on access.

    Args:
        model: the folder.
        sources: by name, the weights of the folder whose rows it has, one behind the other.
    """

    def __init__(self, model: Path, sources: Mapping[str, Sequence[str]]) -> None:
        self._stored, self._sources = StoredWeights.of_model(model), sources

    def __getitem__(self, name: str) -> F32:
        parts = [self._stored.read(source) for source in self._sources[name]]
        whole: F32 = np.concatenate(parts) if len(parts) > 1 else parts[0]
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise UserError(
            f"{path} is not a complete safetensors file: {error}",
            remedy="download the file again, and compare its sha256 with its publisher's",
        ) from error
