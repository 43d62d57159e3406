# SPDX-License-Identifier: Apache-2.0
"""The configuration of the project's passes: one JSON file, which ``MLC_RVV_PASSES`` names.

The same class writes the file and reads it. Without the variable, every setting has its default.
A path in the file is relative to the file's folder. The module needs no TVM.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "MLC_RVV_PASSES"
PATHS = ("kernels", "tuned", "reports")
CHOICES = {
    "weights": ("stored", "tiles"),
    "activations": ("float32", "int8"),
    "kv_cache": ("float32", "int8"),
}
# Bytes of the factor of a key or value in int8. TVM's _kv_layouts.py has the same number; this
# module also runs beside an upstream TVM, which does not have that file.
FACTOR_BYTES = 4


@dataclass(frozen=True)
class Extra:
    """A pass of another package that the compile runs.

    Attributes:
        name: of its entry point in the group ``mlc_rvv.passes``.
        package: the distribution to install where there is no such entry point.
        options: keyword arguments that the pass is made with.
    """

    name: str
    package: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredPart:
    """A part of weights in a file's blocks: quants, scales or others, with a row for each output.

    Attributes:
        name: as kernels/include/mlc_rvv_gguf.h has it.
        columns: elements of a row.
        item: bytes of an element.
    """

    name: str
    columns: int
    item: int


@dataclass(frozen=True)
class StoredSegment:
    """Neighbouring rows of a layer's weights that have the same format.

    Attributes:
        rows: number of them.
        format: the last part of the names of its kernels.
        block: inputs that share a factor.
        parts: matrices that hold them.
    """

    rows: int
    format: str
    block: int
    parts: tuple[StoredPart, ...]

    @staticmethod
    def of(table: Any) -> StoredSegment:
        """Read a segment from a table of the configuration file.

        Raises:
            ValueError: a key is unknown or missing, or a value does not fit.
        """
        values = _checked(table, _SEGMENT_KINDS)
        parts = tuple(StoredPart(**_checked(one, _PART_KINDS)) for one in values.pop("parts"))
        return StoredSegment(**values, parts=parts)


@dataclass(frozen=True)
class Configuration:
    """Settings of the passes.

    Attributes:
        steps: names of the steps that run, or only ``-name``: all steps but these; None: all.
        kernels: folder of compiled kernels, as ``crosslab kernels`` makes it; None: no kernels.
        require_tensorize: no tensorized block in prefill attention is an error.
        weights: "stored", or "tiles": the library reorders the weights that kernels read.
        activations: "float32", or "int8": kernels round them. Weights must be in tiles.
        kv_cache: "float32", the model's own type; or "int8": a paged cache rounds keys and values.
        tuned: folder of a MetaSchedule database for functions without a kernel; None: no database.
        prefix: of the symbols of a system library.
        reports: folder for the passes' reports; None: no reports.
        extras: passes of other packages that run.
        stored: weights that stay in a file's blocks, by the name of the layer's weight.
    """

    steps: tuple[str, ...] | None = None
    kernels: Path | None = None
    require_tensorize: bool = False
    weights: str = "stored"
    activations: str = "float32"
    kv_cache: str = "float32"
    tuned: Path | None = None
    prefix: str = ""
    reports: Path | None = None
    extras: tuple[Extra, ...] = ()
    stored: Mapping[str, tuple[StoredSegment, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, choices in CHOICES.items():
            if (value := getattr(self, key)) not in choices:
                raise ValueError(f"{key} is {value!r}; it takes {' or '.join(choices)}")
        if self.activations == "int8" and self.weights != "tiles":
            raise ValueError("activations is 'int8', which needs weights in tiles")

    @property
    def cache_options(self) -> dict[str, bool]:
        """Return the paged KV cache's options for int8; empty for float32: upstream's has none."""
        return {"int8_pages": True} if self.kv_cache == "int8" else {}

    def row_bytes(self, head_dim: int, item: int = 4) -> int:
        """Return the bytes of a key or value of one token and one KV head in the paged cache.

        Args:
            head_dim: elements.
            item: bytes of one, unless the cache rounds it.
        """
        return head_dim + FACTOR_BYTES if self.kv_cache == "int8" else head_dim * item

    def write(self, path: Path) -> None:
        """Write the file that :meth:`read` reads."""
        text = json.dumps(asdict(self), indent=2, default=str)
        path.write_text(f"{text}\n", encoding="utf-8")

    @staticmethod
    def read(path: Path) -> Configuration:
        """Read and check a file.

        Raises:
            RuntimeError: the file cannot be read, has an unknown key, or has a value of a wrong
                type; the message names the file and the key.
        """
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RuntimeError(f"{VARIABLE} names {path}, which cannot be read: {error}") from error
        try:
            values = _checked(table, _KINDS)
            for key in PATHS:
                if values.get(key) is not None:
                    values[key] = path.parent / values[key]
            if values.get("steps") is not None:
                values["steps"] = tuple(values["steps"])
            extras = [_checked(one, _EXTRA_KINDS) for one in values.pop("extras", [])]
            stored = {
                name: tuple(map(StoredSegment.of, segments))
                for name, segments in values.pop("stored", {}).items()
            }
            made = tuple(Extra(**one) for one in extras)
            return Configuration(**values, extras=made, stored=stored)
        except (TypeError, ValueError) as error:
            raise RuntimeError(f"{path}: {error}") from error


def configured() -> Configuration:
    """Return the configuration that ``MLC_RVV_PASSES`` names, read once; the default without it.

    Raises:
        RuntimeError: see :meth:`Configuration.read`.
    """
    path = os.environ.get(VARIABLE)
    return _read_once(Path(path)) if path else Configuration()


_read_once = functools.cache(Configuration.read)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _is_table_of_lists(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_list_of(dict, one) for one in value.values())


# The values that a key takes: in words, and as a condition.
_TEXT = "a text", _is_text
_PATH = "a path or null", lambda value: value is None or _is_text(value)
_KINDS = {
    "steps": ("a list of names or null", lambda v: v is None or _is_list_of(str, v)),
    "kernels": _PATH,
    "require_tensorize": ("true or false", lambda value: isinstance(value, bool)),
    "weights": _TEXT,
    "activations": _TEXT,
    "kv_cache": _TEXT,
    "tuned": _PATH,
    "prefix": _TEXT,
    "reports": _PATH,
    "extras": ("a list of tables", functools.partial(_is_list_of, dict)),
    "stored": ("a table of lists of tables", _is_table_of_lists),
}
_NUMBER = "a whole number above 0", lambda value: type(value) is int and value > 0
_SEGMENT_KINDS = {
    "rows": _NUMBER,
    "format": _TEXT,
    "block": _NUMBER,
    "parts": ("a list of tables", functools.partial(_is_list_of, dict)),
}
_PART_KINDS = {"name": _TEXT, "columns": _NUMBER, "item": _NUMBER}
_EXTRA_KINDS = {
    "name": _TEXT,
    "package": _TEXT,
    "options": ("a table", lambda value: isinstance(value, dict)),
}


def _checked(table: Any, kinds: Mapping[str, tuple[str, Callable[[Any], bool]]]) -> dict[str, Any]:
    """Return a copy of a table after checking its keys and values.

    Raises:
        ValueError: it is not a table, or has an unknown key or a value of another kind.
    """
    if not isinstance(table, dict):
        raise ValueError(f"it holds {table!r}, not a table")
    for key, value in table.items():
        if key not in kinds:
            raise ValueError(f"unknown key {key!r}; the keys are: {', '.join(kinds)}")
        words, fits = kinds[key]
        if not fits(value):
            raise ValueError(f"{key} is {value!r}; it takes {words}")
    return dict(table)
