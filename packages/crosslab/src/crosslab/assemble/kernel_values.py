# SPDX-License-Identifier: Apache-2.0
"""Values of the kernels' parameters that were found for a core: the record in its database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from crosslab.assemble.kernel_list import KERNELS, core_values
from crosslab.cores.core import Core
from crosslab.errors import UserError
from groundwork.files import atomic_write_json
from groundwork.hashing import digest

# In a core's folder, beside MetaSchedule's files.
FILE = "kernels.json"
AGAIN = "tune again: nox -s farm -- tune-kernels --core {core}; or remove {file}"


@dataclass(frozen=True)
class Timed:
    """A kernel call with its sizes, and its cycles before and after tuning."""

    kernel: str
    sizes: tuple[int, ...]
    before: int
    after: int


@dataclass(frozen=True)
class KernelValues:
    """Tuned values of kernel parameters, with the calls that were timed.

    Attributes:
        core: whose cycles were counted.
        vlen: bits in its vector registers.
        sources: digest of the kernels that were measured.
        values: of parameters of kernels.toml; the others keep the list's.
        cases: every call that was counted.
    """

    core: str
    vlen: int
    sources: str
    values: Mapping[str, int]
    cases: Sequence[Timed]

    def write(self, folder: Path) -> None:
        """Write the values to a core's folder, atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write_json(folder / FILE, asdict(self))


def sources() -> str:
    """Return a digest of the kernels' sources."""
    return digest(KERNELS)


def find_values(
    folder: Path | None, vlens: Sequence[int], cores: Sequence[Core] = ()
) -> dict[str, int]:
    """Return a compile's parameter values, from its database or the kernel list.

    Args:
        folder: database of a core; None: none was named.
        vlens: lengths of vector registers that it compiles for.
        cores: that it compiles for; empty: any core.

    Raises:
        UserError: the values were found for other kernels or vectors, or the file is damaged.
    """
    if folder is None or not (folder / FILE).is_file():
        return core_values(cores)
    file = folder / FILE
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        core, vlen, of = str(table["core"]), int(table["vlen"]), table["sources"]
        values = {str(name): int(value) for name, value in table["values"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{file} has no values of kernels ({error})", remedy="remove the file"
        ) from error
    again = AGAIN.format(core=core, file=file)
    if of != sources():
        raise UserError(f"{file}: its values were tuned for other kernels", remedy=again)
    if set(vlens) != {vlen}:
        why = f"{file}: tuned for VLEN {vlen}, but this build is for {', '.join(map(str, vlens))}"
        raise UserError(why, remedy=f"give --core {core}, or leave out --tuned")
    return values


def told(values: Mapping[str, int]) -> str:
    """Format the parameters' values as a message."""
    named = ", ".join(f"{name} = {value}" for name, value in values.items())
    return f"kernels with tuned values: {named}" if values else "kernels with default values"
