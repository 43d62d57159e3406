# SPDX-License-Identifier: Apache-2.0
"""Dataclasses that files of a fork hold as JSON or TOML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
_hints = cache(get_type_hints)


def read_stored(kind: type[T], path: Path) -> T:
    """Return the dataclass of type ``kind`` in a JSON file.

    Fields may be texts, numbers, enums, dataclasses, mappings, tuples, or optional ones of these.

    Raises:
        OSError: the file cannot be read.
        ValueError, KeyError, TypeError, RecursionError: the file is not JSON, or has other fields.
    """
    value: T = typed_value(kind, json.loads(path.read_text("utf-8")))
    return value


def typed_value(kind: Any, raw: Any) -> Any:
    """Convert a value of JSON or TOML to the type ``kind``; see :func:`read_stored`."""
    inner = get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(raw, dict):
        hints = _hints(kind)
        for field in fields(kind):
            if field.default is field.default_factory is MISSING and field.name not in raw:
                raise KeyError(field.name)
        return kind(**{name: typed_value(hints.get(name), value) for name, value in raw.items()})
    if get_origin(kind) is UnionType:
        return None if raw is None else typed_value(inner[0], raw)
    if get_origin(kind) is tuple and isinstance(raw, list):
        types = inner[:1] * len(raw) if inner[-1] is Ellipsis else inner
        return tuple(typed_value(*pair) for pair in zip(types, raw, strict=True))
    if get_origin(kind) is Mapping and isinstance(raw, dict):
        return {key: typed_value(inner[1], value) for key, value in raw.items()}
    if isinstance(kind, type) and (isinstance(raw, kind) or issubclass(kind, StrEnum)):
        return kind(raw)
    raise TypeError(f"{raw!r} is not expected here")


def plain(value: object) -> Any:
    """Return the JSON value that :func:`read_stored` reads, without fields at their defaults."""
    if is_dataclass(value):
        pairs = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: plain(item) for field, item in pairs if item != field.default}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value
