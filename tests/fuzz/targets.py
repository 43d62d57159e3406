# SPDX-License-Identifier: Apache-2.0
"""Readers of files that others wrote, one function a format.

A target gives its bytes to the reader as the project does. The package's own error is an answer;
anything else that escapes is a finding.
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerator.device import load_device
from accelerator.errors import AcceleratorError
from accelerator.isa.encoding import decode, encode
from accelerator.isa.listing import disassemble
from costmodel.accelerator.dataflow import load_dataflow
from costmodel.accelerator.hardware import load_hardware
from costmodel.accelerator.tenet import hardware_from_pe_file, read_mapping_file, read_statement
from costmodel.errors import CostError
from crosslab.assemble.kernels import read_kernels
from crosslab.errors import LabError
from crosslab.models.config import read_config, read_family
from crosslab.models.formats import weight_formats
from crosslab.models.params import INDEX_FILE, read_params
from crosslab.models.sources.pins import LOCK_NAME, read_pins
from forkpatch.errors import ForkError
from forkpatch.model.lock import read_lock
from forkpatch.model.overlays import read_shadows
from forkpatch.model.patchfile import parse_patch, read_entries
from forkpatch.model.record import read_record

REFUSALS = (LabError, ForkError, CostError, AcceleratorError)
MEMORY = 4 << 30  # bytes of address space that a reader may take beside what is taken already


def patch(data: bytes, _: Path) -> None:
    """A patch file."""
    parse_patch(data, "fuzzed.patch")


def series(data: bytes, folder: Path) -> None:
    """The order of patches."""
    (folder / "series").write_bytes(data)
    read_entries(folder)


def lock(data: bytes, folder: Path) -> None:
    """VERSIONS.lock, as both wings read it."""
    path = folder / LOCK_NAME
    path.write_bytes(data)
    _each(lambda: read_lock(path), lambda: read_pins(folder))


def shadows(data: bytes, folder: Path) -> None:
    """Upstream functions that overlays replace."""
    (folder / "shadows.toml").write_bytes(data)
    read_shadows(folder)


def record(data: bytes, folder: Path) -> None:
    """The derived record of a series."""
    (folder / "derived.json").write_bytes(data)
    read_record(folder)


def hardware(data: bytes, folder: Path) -> None:
    """An accelerator."""
    load_hardware(str(_file(folder, "fuzzed.toml", data)))


def dataflow(data: bytes, folder: Path) -> None:
    """A dataflow of the cost model."""
    load_dataflow(str(_file(folder, "fuzzed.toml", data)), {"R": 3, "C": 3})


def tenet(data: bytes, folder: Path) -> None:
    """TENET's three text files."""
    path = _file(folder, "x", data)
    _each(
        lambda: read_mapping_file(path),
        lambda: hardware_from_pe_file(path),
        lambda: read_statement(path),
    )


def params(data: bytes, folder: Path) -> None:
    """An index of parameters, beside one shard of 64 bytes."""
    (folder / "params_shard_0.bin").write_bytes(bytes(range(64)))
    (folder / INDEX_FILE).write_bytes(data)
    read_params(folder, packing=weight_formats()["q4f32_1"].packing)


def config(data: bytes, folder: Path) -> None:
    """A model's config.json."""
    path = _file(folder, "config.json", data)
    _each(lambda: read_config(path), lambda: read_family(path))


def kernels(data: bytes, folder: Path) -> None:
    """The list of micro-kernels."""
    path = _file(folder, "kernels.toml", data)
    read_kernels(path)


def device(data: bytes, folder: Path) -> None:
    """A device with VTA's instructions."""
    load_device(str(_file(folder, "fuzzed.toml", data)))


def stream(data: bytes, _: Path) -> None:
    """Its instructions; those that are taken come back the same."""
    default = load_device("vta-1x16x16")
    disassemble(data, default)
    if encode(decode(data, default), default) != data:
        raise AssertionError("another stream came back")


def _file(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def _each(*readers: Callable[[], object]) -> None:
    """Show every reader the bytes; a refusal when all of them refuse."""
    refusals: list[LabError | ForkError | CostError | AcceleratorError] = []
    for read in readers:
        try:
            read()
        except REFUSALS as error:
            refusals.append(error)
    if len(refusals) == len(readers):
        raise refusals[0]


TARGETS: dict[str, Callable[[bytes, Path], None]] = {
    target.__name__: target
    for target in (
        *(patch, series, lock, shadows, record, hardware, dataflow, tenet),
        *(params, config, kernels, device, stream),
    )
}


class EscapedError(AssertionError):
    """A reader let something out other than its package's error."""


def call(name: str, data: bytes) -> bool:
    """Give bytes to a target in a folder of its own.

    Returns:
        whether they were taken.

    Raises:
        EscapedError: the reader failed in another way, or wrote outside of its folder.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz-") as at:
        inner = Path(at) / "inner"
        inner.mkdir()
        try:
            TARGETS[name](data, inner)
            taken = True
        except REFUSALS:
            taken = False
        except (Exception, RecursionError) as error:
            raise EscapedError(f"{name}: {type(error).__name__}: {error}") from error
        if [p.name for p in Path(at).iterdir()] != ["inner"]:
            raise EscapedError(f"{name}: it wrote outside of its folder")
    return taken


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Let a reader that believes a huge count fail at once, and not take the machine's memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MEMORY
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
