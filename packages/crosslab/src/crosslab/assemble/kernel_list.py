# SPDX-License-Identifier: Apache-2.0
"""The list of kernels, kernels/kernels.toml, and the parameters in it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosslab.cores.core import Core
from crosslab.errors import UserError
from crosslab.project import PROJECT

KERNELS = PROJECT / "kernels"
LIST = KERNELS / "kernels.toml"
SCHEMA = 1


def read_list(path: Path) -> dict[str, Any]:
    """Read the tables of the kernel list.

    Raises:
        UserError: the file cannot be read, or has another form.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"the list of kernels {path} cannot be read: {error}") from error
    if document.get("schema") != SCHEMA:
        raise UserError(f"{path}: schema is {document.get('schema')!r}, expected {SCHEMA}")
    if unknown := sorted(set(document) - {"schema", "kernel", "parameter", "core"}):
        raise UserError(f"{path}: it has unknown tables: {', '.join(unknown)}")
    return document


@dataclass(frozen=True)
class Parameter:
    """A constant of the RVV sources that tuning may set for a core.

    Attributes:
        name: in the list; the sources have MLC_RVV_NAME.
        value: what everybody gets.
        values: what may be tried.
        kernels: names of its routines, as ``crosslab kernel-bench`` has them.
    """

    name: str
    value: int
    values: tuple[int, ...]
    kernels: tuple[str, ...]


def read_parameters(path: Path = LIST) -> dict[str, Parameter]:
    """Read the tunable parameters of the kernel list, by name.

    Raises:
        UserError: the file is missing or malformed.
    """
    found = {}
    for name, table in read_list(path).get("parameter", {}).items():
        value, values, kernels = (table.get(key) for key in ("value", "values", "kernels"))
        whole = isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)
        if not (whole and value in values and isinstance(kernels, list) and len(table) == 3):
            raise UserError(
                f"{path}, parameter {name}: value, values or kernels is wrong",
                remedy="value is one of the whole numbers in values, kernels is a list of names",
            )
        found[name] = Parameter(name, value, tuple(values), tuple(kernels))
    return found


def with_values(values: Mapping[str, int], path: Path = LIST) -> dict[str, int]:
    """Return the value of every parameter; those not in ``values`` have their defaults.

    Raises:
        UserError: a parameter is unknown, or its value is not one of those in the list.
    """
    known = read_parameters(path)
    for name, value in values.items():
        if name not in known or value not in known[name].values:
            there = f"its values are {known[name].values}" if name in known else "unknown parameter"
            raise UserError(
                f"kernels' parameter {name} = {value}: {there}",
                remedy=f"{path} has the parameters; nox -s farm -- tune-kernels finds values",
            )
    return {name: values.get(name, one.value) for name, one in known.items()}


def core_values(cores: Sequence[Core], path: Path = LIST) -> dict[str, int]:
    """Return the parameters' values for cores: those of a core, or those that all cores share.

    Args:
        cores: cores that are compiled for; empty: any core, for which there are no values.
        path: the list.

    Raises:
        UserError: the file is malformed.
    """
    tables = read_list(path).get("core", {})
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise UserError(f"{path}: core is not a table of tables of values")
    for table in tables.values():
        with_values(table, path)
    named = [tables.get(core.key, {}) for core in cores] or [{}]
    first, *others = named
    return {name: v for name, v in first.items() if all(o.get(name) == v for o in others)}
