# SPDX-License-Identifier: Apache-2.0
"""TOML files with a checked schema; errors name the line of the file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from costmodel.counting.relations import Line
from costmodel.errors import CostError, read_text

LIBRARY = Path(__file__).resolve().parents[1] / "library"
HARDWARE, DATAFLOWS = LIBRARY / "hardware", LIBRARY / "dataflow"
_QUANTITY = re.compile(
    r"\s*([-+]?(?:[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|nan\b|inf\b))\s*(.*?)\s*"
)

SIZES = {"bit": 1, "B": 8, "KiB": 8 << 10, "MiB": 8 << 20, "GiB": 8 << 30}
FREQUENCIES = {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}
ENERGIES = {"fJ": 1e-3, "pJ": 1.0, "nJ": 1e3}
ENERGIES_PER_BIT = {"fJ/bit": 1e-3, "pJ/bit": 1.0, "pJ/B": 0.125, "nJ/B": 125.0}
CYCLES = {"cycle": 1, "cycles": 1}
PER_CYCLE = {"bit/cycle": 1.0, "B/cycle": 8.0}
PER_SECOND = {"GB/s": 8e9, "MB/s": 8e6, "Gbit/s": 1e9}


def rates(clock: float) -> dict[str, float]:
    """Return the units of bandwidths in bits a cycle, at a clock in Hz."""
    return {**PER_CYCLE, **{unit: factor / clock for unit, factor in PER_SECOND.items()}}


@dataclass(frozen=True)
class TomlTable:
    """A TOML table with the name and the lines of its file."""

    name: str
    lines: tuple[str, ...]
    values: Mapping[str, Any]
    header: str = ""
    index: int = 0

    def line_of(self, key: str) -> int:
        """Return the line number of ``key`` in this table, or of the table's header, or 1."""
        section, count, start = "", -1, 1
        for number, line in enumerate(self.lines, 1):
            header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line)
            if header:
                section = header.group(1)
                count += section == self.header
                if section == (f"{self.header}.{key}" if self.header else key):
                    return number
            here = section == self.header and (not self.header or count == self.index)
            if here and header:
                start = number
            if here and re.match(rf'\s*"?{re.escape(key)}"?\s*[=.]', line):
                return number
        return start

    def error(self, key: str, problem: str, remedy: str = "") -> CostError:
        """Return the error of a mistake at ``key``."""
        text = self.lines[self.line_of(key) - 1] if self.lines else ""
        return self.line(key, text).error(problem, remedy)

    def line(self, key: str, text: str) -> Line:
        """Return a text from the value of ``key``, with the position of the value."""
        return Line(text, self.name, self.line_of(key))

    def only(self, allowed: Iterable[str]) -> None:
        """Raise CostError for a key that is not in ``allowed``."""
        known = sorted(allowed)
        for key in self.values:
            if key not in known:
                raise self.error(key, f"unknown key {key!r}", f"known here: {', '.join(known)}")

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """Return ``key``'s value or ``default``; CostError without both, or if not of ``kind``."""
        if key not in self.values:
            if default is not None:
                return default
            where = f"[{self.header}]" if self.header else "the file"
            raise self.error(key, f"{where} lacks {key!r}", f"add the line: {key} = VALUE")
        value = self.values[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(key, f"{key!r} has the wrong type: {value!r}")
        return value

    def choice(self, key: str, known: Collection[str], default: str) -> str:
        """Return a text of ``known``, or raise CostError."""
        text = str(self.get(key, str, default))
        if text not in known:
            raise self.error(key, f"{key!r} is {text!r}", f"one of: {', '.join(known)}")
        return text

    def quantity(self, key: str, units: Mapping[str, float], default: str | None = None) -> float:
        """Return a number with a unit, at least 0, in ``units``' base unit, or raise CostError."""
        raw = self.get(key, (str, int, float), default)
        match = _QUANTITY.fullmatch(str(raw))
        form = f'write it as "NUMBER UNIT": {", ".join(units)}'
        if match is None:
            raise self.error(key, f"{key!r} is {raw!r}, not a number with a unit", form)
        text, unit = match.groups()
        value = float(text.replace("_", ""))
        if not value >= 0:  # also refuses nan
            raise self.error(key, f"{key!r} is {raw!r}, not a number from 0 on", form)
        if not unit:
            raise self.error(key, f"{key!r} has no unit", form)
        if unit not in units:
            raise self.error(key, f"{key!r} has unit {unit!r}", f"units: {', '.join(units)}")
        if not isfinite(value * units[unit]):
            raise self.error(key, f"{key!r} is {raw!r}, which is too large")
        return value * units[unit]

    def positive(self, key: str, units: Mapping[str, float]) -> float:
        """Return a quantity above 0, or raise CostError."""
        value = self.quantity(key, units)
        if value <= 0:
            raise self.error(key, f"{key!r} must be positive")
        return value

    def bits(self, key: str, default: int, least: int, most: int) -> int:
        """Return a width, a whole number from ``least`` to ``most``, or raise CostError."""
        width = self.quantity(key, {"bit": 1}, f"{default} bit")
        if width != int(width) or not least <= width <= most:
            wanted = f"a whole number, at least {least} bit and at most {most}"
            raise self.error(key, f"{key!r} is {self.values[key]!r}, not {wanted}")
        return int(width)

    def table(self, key: str) -> TomlTable:
        """Return the table at ``key`` of this table."""
        values = self.get(key, dict)
        header = f"{self.header}.{key}" if self.header else key
        return TomlTable(self.name, self.lines, values, header)

    def tables(self, key: str) -> tuple[TomlTable, ...]:
        """Return the array of tables at ``key`` of this table."""
        tables = self.get(key, list)
        if not all(isinstance(v, dict) for v in tables):
            raise self.error(key, f"{key!r} must be tables", f"write each as [[{key}]]")
        return tuple(TomlTable(self.name, self.lines, v, key, n) for n, v in enumerate(tables))


def read_toml(path: Path, remedy: str = "correct the file, or give another") -> TomlTable:
    """Read a TOML file of schema 1; ``remedy`` advises on a file that cannot be read.

    Raises:
        CostError: the file cannot be read, is not TOML, or has another schema.
    """
    text = read_text(path, remedy)
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise CostError(f"{path}: not TOML: {error}", remedy=remedy) from error
    table = TomlTable(str(path), tuple(text.splitlines()), values)
    if table.get("schema", int) != 1:
        raise table.error("schema", "only schema 1 is known", "schema = 1")
    return table


def library_file(folder: Path, name: str) -> Path:
    """Return the path of a shipped file by name, or of a user's file.

    Args:
        folder: of the shipped files, whose name is that of their kind.
        name: name of a shipped file without its ending, or a path.

    Raises:
        CostError: neither file exists; the message lists the shipped names.
    """
    shipped = folder / f"{name}.toml"
    if shipped.is_file():
        return shipped
    path = Path(name)
    if path.is_file():
        return path
    kind, names = folder.name.removesuffix("s"), ", ".join(shipped_names(folder))
    raise CostError(f"there is no {kind} {name!r}", remedy=f"give a file, or one of: {names}")


def shipped_names(folder: Path) -> list[str]:
    """Return the names of the shipped files in a folder."""
    return sorted(p.stem for p in folder.glob("*.toml"))
