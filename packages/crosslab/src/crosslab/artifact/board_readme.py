# SPDX-License-Identifier: Apache-2.0
"""README.md of an artefact, for the owner of a board who has only the artefact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crosslab.artifact.manifest import Entry, Verdict
from crosslab.models.params import memory_of
from crosslab.run.emulator import cpu_option

README = "README.md"
_TEMPLATE = Path(__file__).with_name("board_readme.md")
_VERDICTS = {
    Verdict.RIGHT: "When it was built, its answer\nto one prompt was that of a reference.",
    Verdict.UNCHECKED: "Its answers\nwere **not compared** with a reference.",
    Verdict.WRONG: "**Do not use it**: when\nit was built, its answer was wrong, or it gave none.",
}
# QEMU 8.1 renamed its options for half-precision numbers.
_QEMUS = {"before QEMU 8.1, such as Debian 12's": (7, 2), "QEMU 8.1 or newer": (8, 1)}
_ENCODES = """This model gives vectors of texts, and answers nothing. `./run.sh "TEXT"` prints the
vector of a text, and `serve` answers at `/v1/embeddings` and Ollama's `/api/embed`; `chat` and the
chat page do not work.

"""
_OBJECTS = """## If you hand it on

The runner contains parts of the GNU C library. Section 6 of the library's licence, LGPL 2.1, lets
each recipient link the program with a changed library. The objects and the script for that are in
a second tarball, `{name}-objects.tar`. A board does not need it.
Hand on both tarballs, or offer both at the same place. Also offer the library's source: Debian's
source package `glibc`, in the version that `sbom.cdx.json` names.

"""


def board_readme(
    about: Mapping[str, Any],
    name: str,
    entries: Sequence[Entry],
    shards: Sequence[Mapping[str, Any]],
) -> str:
    """Return the text of README.md.

    Args:
        about: facts of the manifest.
        name: name of the tarball without its suffix.
        entries: the files of the artefact.
        shards: ``records`` of the parameters' index.
    """
    vlens = sorted(about["vlens"])
    registers = " or ".join(str(vlen) for vlen in vlens) + " bits"
    memory, stored = memory_of(shards), sum(shard["nbytes"] for shard in shards)
    widened = f" ({_mebibytes(stored)} in the files: bfloat16 there, float32 in memory)"
    return _TEMPLATE.read_text(encoding="utf-8").format(
        model=about["model"],
        quantization=about["quantization"],
        verdict=_VERDICTS[about["verdict"]],
        least=vlens[0],
        registers=registers,
        halves=", with vectors of halves (Zvfh)" if about["zvfh"] else "",
        weights=_mebibytes(memory),
        widened=widened if memory > stored else "",
        disk=_mebibytes(sum(entry.bytes for entry in entries)),
        emulator="\n".join(_emulators(vlens[0], zvfh=about["zvfh"])),
        encodes=_ENCODES if about.get("encodes") else "",
        objects=_OBJECTS.format(name=name) if about["links_again"] else "",
        held="\n".join(f"| `{name}` | {what} |" for name, what in about["holds"].items()),
    )


def _emulators(vlen: int, *, zvfh: bool) -> list[str]:
    """Return lines with the emulator's command for run.sh, for each spelling of its options."""
    cpus = {cpu_option(vlen, zvfh, version): which for which, version in _QEMUS.items()}
    several = len(cpus) > 1
    return [
        f'    export MLC_RVV_EMULATOR="qemu-riscv64 -cpu {cpu}"' + f"    # {which}" * several
        for cpu, which in cpus.items()
    ]


def _mebibytes(size: int) -> str:
    return f"{-(-size // 2**20):,} MiB"
