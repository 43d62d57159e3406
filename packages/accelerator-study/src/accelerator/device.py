# SPDX-License-Identifier: Apache-2.0
"""Descriptions of devices: the GEMM core's block, widths, buffers and memory, with their limits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from costmodel.accelerator import settings
from costmodel.accelerator.settings import TomlTable, library_file, read_toml

DEVICES = Path(__file__).resolve().with_name("devices")
#: C++ of the simulators and of the runtime that drives a device.
NATIVE = Path(__file__).resolve().with_name("native")
MICRO_OP_BITS = 32
WORD_BITS = 64
INSTRUCTION_BITS = 2 * WORD_BITS
SRAM_ADDRESS_BITS = 16
DRAM_ADDRESS_BITS = 32
_WIDTHS = {"input": 8, "weight": 8, "accumulator": 32, "output": 8}
_NAME = re.compile("[a-z0-9][a-z0-9._-]*")
_BLOCK = ("batch", "inputs", "outputs")
_BUFFERS = ("micro_op", "input", "weight", "accumulator")


class MemoryId(IntEnum):
    """The number of a buffer in LOAD and STORE instructions."""

    MICRO_OP = 0
    WEIGHT = 1
    INPUT = 2
    ACCUMULATOR = 3
    OUTPUT = 4
    ACCUMULATOR_8BIT = 5


@dataclass(frozen=True)
class Device:
    """A GEMM accelerator; sizes are in bytes, times in cycles.

    Attributes:
        clock: Hz.
        batch, inputs, outputs: one step of the GEMM core multiplies ``batch x inputs`` values by
            the transpose of ``outputs x inputs`` weights.
        gemm_interval: cycles between steps; gemm_latency: from a step to its sum in the buffer.
        alu_interval: cycles of an ALU step on two operands; alu_immediate: on an immediate.
        micro_op, input, weight, accumulator: sizes of the buffers.
        memory: size of DRAM; dram_latency: from request to first data; dram_bandwidth: bytes a
            cycle, shared by all reads and writes.
    """

    name: str
    description: str
    clock: float
    batch: int
    inputs: int
    outputs: int
    gemm_interval: int
    gemm_latency: int
    alu_interval: int
    alu_immediate: int
    micro_op: int
    input: int
    weight: int
    accumulator: int
    memory: int
    dram_latency: int
    dram_bandwidth: float

    @property
    def peak(self) -> float:
        """The most multiply-accumulates a cycle."""
        return self.batch * self.inputs * self.outputs / self.gemm_interval

    def element(self, buffer: MemoryId) -> int:
        """Return the bytes in DRAM of an element of a buffer."""
        return {
            MemoryId.MICRO_OP: MICRO_OP_BITS // 8,
            MemoryId.WEIGHT: self.outputs * self.inputs,
            MemoryId.INPUT: self.batch * self.inputs,
            MemoryId.ACCUMULATOR: self.batch * self.outputs * 4,
            MemoryId.OUTPUT: self.batch * self.outputs,
            MemoryId.ACCUMULATOR_8BIT: self.batch * self.outputs,
        }[buffer]

    def depth(self, buffer: MemoryId) -> int:
        """Return the number of elements of a buffer; OUTPUT has as many as ACCUMULATOR."""
        return {
            MemoryId.MICRO_OP: self.micro_op // 4,
            MemoryId.WEIGHT: self.weight // (self.outputs * self.inputs),
            MemoryId.INPUT: self.input // (self.batch * self.inputs),
        }.get(buffer, self.accumulator // (self.batch * self.outputs * 4))

    def address_bits(self, buffer: MemoryId) -> int:
        """Return the width in bits of an index into a buffer."""
        return self.depth(buffer).bit_length() - 1


def load_device(name: str) -> Device:
    """Read the device of a shipped name or of a TOML file.

    Raises:
        CostError: no device has that name, or a file is wrong; the message names the line.
    """
    return device_from(read_toml(library_file(DEVICES, name)))


def name_from(table: TomlTable) -> str:
    """Return the name in a device's table, which file names and C++ strings contain.

    Raises:
        CostError: the name cannot be part of a file name; the message names the line.
    """
    name = str(table.get("name", str))
    if not _NAME.fullmatch(name):
        reason = f"'name' is {name!r}, and files are called after it"
        raise table.error("name", reason, "use small letters, digits, -, _ and .")
    return name


def device_from(table: TomlTable) -> Device:
    """Return the device that a TOML table describes.

    Raises:
        CostError: a key is missing, unknown or has a wrong value; the message names the line.
    """
    sections = ("gemm", "alu", "width", "buffer", "memory")
    if "extension" in table.values:
        raise table.error(
            "extension",
            "it describes a CPU's matrix unit, not a device beside the CPU",
            "it works with: accelerator layers, accelerator answer",
        )
    table.only(["schema", "name", "description", "clock", *sections])
    gemm, alu, width, buffer, memory = (table.table(name) for name in sections)
    gemm.only([*_BLOCK, "interval", "latency"])
    alu.only(["interval", "immediate_interval"])
    memory.only(["size", "latency", "bandwidth"])
    width.only(_WIDTHS)
    for key, bits in _WIDTHS.items():
        if width.quantity(key, {"bit": 1}) != bits:
            raise width.error(key, f"'{key}' must be {bits} bit: no other width is simulated")
    buffer.only(_BUFFERS)
    clock = table.positive("clock", settings.FREQUENCIES)
    device = Device(
        name=name_from(table),
        description=table.get("description", str, ""),
        clock=clock,
        **{key: _power(gemm, key) for key in _BLOCK},
        gemm_interval=_cycles(gemm, "interval", 1),
        gemm_latency=_cycles(gemm, "latency", 1),
        alu_interval=_cycles(alu, "interval", 1),
        alu_immediate=_cycles(alu, "immediate_interval", 1),
        **{key: _size(buffer, key) for key in _BUFFERS},
        memory=_size(memory, "size"),
        dram_latency=_cycles(memory, "latency", 0),
        dram_bandwidth=memory.positive("bandwidth", settings.rates(clock)) / 8,
    )
    _check_fields(device, buffer)
    return device


def _cycles(table: TomlTable, key: str, least: int) -> int:
    cycles = table.quantity(key, settings.CYCLES)
    if cycles < least or cycles != int(cycles):
        raise table.error(key, f"{key!r} must be a whole number of cycles, at least {least}")
    return int(cycles)


def _power(table: TomlTable, key: str) -> int:
    size = int(table.get(key, int))
    if size < 1 or size & (size - 1):
        raise table.error(key, f"{key!r} is {size}", "it must be a power of two")
    return size


def _size(table: TomlTable, key: str) -> int:
    bits = table.quantity(key, settings.SIZES)
    size = int(bits) // 8
    if size * 8 != bits or size < 1 or size & (size - 1):
        raise table.error(key, f"{key!r} is {table.values[key]!r}", "it must be a power of two")
    return size


def _check_fields(device: Device, buffer: TomlTable) -> None:
    """Refuse buffers whose indices do not fit the fields of instructions and micro-ops."""
    for key in _BUFFERS:
        memory = MemoryId[key.upper()]
        if device.depth(memory) < 2:
            raise buffer.error(key, f"{key!r} holds {device.depth(memory)} elements", "at least 2")
        if device.address_bits(memory) > SRAM_ADDRESS_BITS:
            most = device.element(memory) << SRAM_ADDRESS_BITS
            raise buffer.error(key, f"{key!r} needs indices over 16 bits", f"at most {most} B")
    micro, weight, value, sums = (
        device.address_bits(m)
        for m in (MemoryId.MICRO_OP, MemoryId.WEIGHT, MemoryId.INPUT, MemoryId.ACCUMULATOR)
    )
    width = sums + max(sums, value) + weight
    if width > MICRO_OP_BITS:
        remedy = f"input, weight and accumulator indices take {width} bits: make a buffer smaller"
        raise buffer.error("accumulator", "a micro-op has 32 bits", remedy)
    for name, second in (("GEMM", 2 * (sums + value + weight)), ("ALU", 4 * sums + 20)):
        if 36 + 2 * micro + 1 > WORD_BITS or second > WORD_BITS:
            remedy = f"{name} needs {37 + 2 * micro} and {second} bits: make a buffer smaller"
            raise buffer.error("accumulator", "half an instruction has 64 bits", remedy)
