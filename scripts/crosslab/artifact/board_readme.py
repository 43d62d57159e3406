# SPDX-License-Identifier: Apache-2.0
"""README.md of an artefact, for the owner of a board who has the artefact alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crosslab.artifact.manifest import Entry

README = "README.md"
_TEMPLATE = Path(__file__).with_name("board_readme.md")


def board_readme(about: Mapping[str, Any], entries: Sequence[Entry], memory: int) -> str:
    """The text.

    Args:
        about: the manifest's facts.
        entries: the files of the artefact.
        memory: of the parameters, see :func:`crosslab.models.params.memory_of`.
    """
    vlens = sorted(about["vlens"])
    registers = " or ".join(str(vlen) for vlen in vlens) + " bits"
    return _TEMPLATE.read_text(encoding="utf-8").format(
        model=about["model"],
        quantization=about["quantization"],
        least=vlens[0],
        registers=registers,
        halves=", with vectors of halves (Zvfh)" if about["zvfh"] else "",
        weights=_mebibytes(memory),
        disk=_mebibytes(sum(entry.bytes for entry in entries)),
        held="\n".join(f"| `{name}` | {what} |" for name, what in about["holds"].items()),
    )


def _mebibytes(size: int) -> str:
    return f"{-(-size // 2**20):,} MiB"
