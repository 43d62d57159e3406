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

from forkpatch.errors import UserError

T = TypeVar("T")
_hints = cache(get_type_hints)
_TYPES: Mapping[type, str] = {
    **{str: "a string", list: "a list of strings", dict: "a table"},
    bool: "true or false",
}


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


def checked_table(
    table: object,
    kinds: Mapping[str, type],
    where: str,
    remedy: str = "correct it",
    *,
    closed: bool = True,
) -> dict[str, Any]:
    """Return a table of TOML after a check of its keys, and of the type of each key's value.

    Unless ``closed``, keys without a type may have any value.

    Raises:
        UserError: it is not a table, has an unknown key, or a value of another type.
    """
    if not isinstance(table, dict):
        raise UserError(f"{where} is not a table", remedy=remedy)
    unknown = sorted(set(table) - set(kinds))
    if closed and unknown:
        raise UserError(
            f"{where} has unknown keys: {', '.join(unknown)}",
            remedy=f"the keys are: {', '.join(sorted(kinds))}",
        )
    for key in table.keys() & kinds.keys():
        value = table[key]
        items = value if isinstance(value, list) else ()
        if not isinstance(value, kinds[key]) or not all(isinstance(item, str) for item in items):
            raise UserError(f"{where} {key} = {value!r} is not {_TYPES[kinds[key]]}", remedy=remedy)
    return table
