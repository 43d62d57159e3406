# SPDX-License-Identifier: Apache-2.0
"""Targets for CPUs other than this one, named by a preset or by the environment.

``--device riscv64:rvv256`` (or rvv128, rvv512, rvv1024) names a RISC-V CPU with vector registers
of that many bits, ``riscv64:rvv256-zvfh`` one that also has vectors of halves. ``--device cpu``
with ``CROSS_COMPILATION=<triple>`` names any Linux CPU that LLVM knows, and these describe it
further:

- ``CROSS_COMPILATION_MCPU``: LLVM's name of the CPU;
- ``CROSS_COMPILATION_MATTR``: its features, ``+m,+a,-zba``; once given, they are the whole list;
- ``CROSS_COMPILATION_MABI``: the calling convention, ``lp64d``;
- ``CROSS_COMPILATION_VECTOR_WIDTH``: bits of a vector register;
- ``CROSS_COMPILATION_CXX``: the command that links a shared library for it (`cross_link`).

On RISC-V, what is not given comes from the CPU that is named; when none is, from the RVV default:
lp64d and vectors of 256 bits. That default asks for ``zve64d`` and ``zvl<N>b`` rather than ``v``,
for which TVM makes masked scalable loops that take several times as many instructions.

This module and its neighbours cross_link and cross_errors import TVM alone, so that they are of use
without the rest of MLC-LLM.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tvm.target import Target, codegen

from .cross_errors import CrossTargetError
from .cross_link import exporter

TRIPLE_VARIABLE = "CROSS_COMPILATION"
ATTRIBUTE_VARIABLES = tuple(
    f"{TRIPLE_VARIABLE}_{name}" for name in ("MCPU", "MATTR", "MABI", "VECTOR_WIDTH")
)
PRESET_TRIPLE = "riscv64-unknown-linux-gnu"
DEFAULT_WIDTH = 256
SCALAR = ("+m", "+a", "+f", "+d", "+c")
RVV = "+zve64d"
# The features of each.
PRESETS = {
    f"riscv64:rvv{width}{suffix}": ",".join((*SCALAR, RVV, f"+zvl{width}b", *halves))
    for suffix, halves in (("", ()), ("-zvfh", ("+zvfh",)))
    for width in (128, 256, 512, 1024)
}

CPUS = (
    "aarch64",
    "arm",
    "i386",
    "loongarch64",
    "mips64",
    "mips64el",
    "powerpc64",
    "powerpc64le",
    "riscv32",
    "riscv64",
    "s390x",
    "x86_64",
)
"""Architectures, by LLVM's names, that Linux runs on and TVM's code generator serves."""

LIBCS = ("gnu", "gnueabi", "gnueabihf", "gnux32", "musl", "musleabi", "musleabihf")

# What triples call them beside LLVM's own names.
_ALIASES = (
    (r"arm64", "aarch64"),
    (r"amd64", "x86_64"),
    (r"i[3-6]86", "i386"),
    (r"armv[5-8][a-z]*", "arm"),
    (r"ppc64(le)?", r"powerpc64\1"),
)
# Calling conventions, and the feature that each takes for granted.
_MABIS = {
    "riscv64": {"lp64": "", "lp64f": "f", "lp64d": "d", "lp64e": "e"},
    "riscv32": {"ilp32": "", "ilp32f": "f", "ilp32d": "d", "ilp32e": "e"},
    "aarch64": {"aapcs": "", "aapcs-soft": ""},
    "arm": {"aapcs": "", "aapcs16": "", "apcs-gnu": ""},
    "mips64": {"n32": "", "n64": ""},
    "mips64el": {"n32": "", "n64": ""},
    "powerpc64": {"elfv1": "", "elfv2": ""},
    "powerpc64le": {"elfv1": "", "elfv2": ""},
}
_TRIPLE = re.compile(r"(?P<cpu>[a-z0-9_]+)(?:-[a-z0-9_]+)?-linux-(?P<libc>[a-z0-9]+)")
_FEATURE = re.compile(r"[+-][A-Za-z0-9][A-Za-z0-9._-]*")
_VLEN = re.compile(r"zvl(\d+)b")

BuildFunc = Callable[..., None]


@dataclass(frozen=True)
class CrossTarget:
    """A CPU to compile for.

    Attributes:
        target: TVM's description of it, whose host is the same CPU with the same features.
        triple: its LLVM triple.
    """

    target: Target
    triple: str

    def build_func(self, build_default: Callable[..., BuildFunc]) -> BuildFunc:
        """Return MLC-LLM's default build function, with tools for this CPU.

        Args:
            build_default: gives the default build for an ``fcompile`` of TVM's export_library, and
                a pipeline that lowers TIR functions.

        Returns:
            the build; it raises CrossTargetError, before anything is compiled, when the output
            is neither ``.tar`` nor ``.so`` or nothing here links for the CPU.
        """

        def build(mod: Any, args: Any, pipeline: Any = None) -> None:
            # Not above: other users of this module have no rest of MLC-LLM.
            from ..compiler_pass.rvv.tir_pipeline import registered  # noqa: PLC0415

            export = exporter(args.output, self.triple)
            make = build_default(fcompile=export, tir_pipeline=registered())
            make(mod, args, pipeline=pipeline)

        return build


def resolve(hint: str, environ: Mapping[str, str] | None = None) -> CrossTarget | None:
    """Return the CPU that ``--device hint`` and the environment name; None if they name none.

    Raises:
        CrossTargetError: the description is unknown, malformed or contradicts itself.
    """
    environ = os.environ if environ is None else environ
    if hint in PRESETS:
        return _cross_target(PRESET_TRIPLE, {"MATTR": PRESETS[hint]})
    if hint.startswith(("riscv64:", "riscv32:")):
        raise CrossTargetError(f"unknown device {hint!r}; presets are {', '.join(PRESETS)}")
    if hint != "cpu":
        return None
    given = {name: environ.get(name, "").strip() for name in ATTRIBUTE_VARIABLES}
    triple = environ.get(TRIPLE_VARIABLE, "").strip()
    if not triple:
        stray = [name for name, value in given.items() if value]
        if stray:
            raise CrossTargetError(
                f"{', '.join(stray)} set without {TRIPLE_VARIABLE}: set it to the triple of the "
                f"CPU, as {PRESET_TRIPLE}"
            )
        return None
    prefix = len(TRIPLE_VARIABLE) + 1
    return _cross_target(triple, {name[prefix:]: value for name, value in given.items() if value})


@contextmanager
def refusals_reported() -> Iterator[None]:
    """Report a CrossTargetError, a mistake of the user, as a message with exit code 2."""
    try:
        yield
    except CrossTargetError as error:
        print(f"mlc_llm: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _cross_target(triple: str, given: Mapping[str, str]) -> CrossTarget:
    cpu = _architecture(triple)
    fields: dict[str, Any] = {"kind": "llvm", "mtriple": triple}
    mcpu = given.get("MCPU", "")
    if mcpu:
        _check_mcpu(mcpu, triple)
        fields["mcpu"] = mcpu
    width = _width(given["VECTOR_WIDTH"]) if "VECTOR_WIDTH" in given else None
    mattr = _split_mattr(given["MATTR"]) if "MATTR" in given else None
    if cpu.startswith("riscv"):
        if not mcpu:
            fields["mcpu"] = f"generic-rv{cpu.removeprefix('riscv')}"
        mattr = _riscv_mattr(mattr, _features(fields) if mcpu else frozenset(), width)
    if mattr:
        _check_mattr(mattr, fields)
        fields["mattr"] = mattr
    features = _features(fields)
    if cpu.startswith("riscv"):
        width = _riscv_width(features, width)
    mabi = given.get("MABI") or _default_mabi(cpu, features)
    if mabi:
        _check_mabi(mabi, cpu, features)
        fields["mabi"] = mabi
    if width:
        fields["vector-width"] = width
    return CrossTarget(Target({**fields, "host": dict(fields)}), triple)


def _architecture(triple: str) -> str:
    """Return LLVM's name of a triple's architecture; refuse others, on which LLVM crashes."""
    found = _TRIPLE.fullmatch(triple)
    cpu = found["cpu"] if found else ""
    for pattern, name in _ALIASES:
        if re.fullmatch(pattern, cpu):
            cpu = re.sub(pattern, name, cpu)
    known = set(map(str, codegen.llvm_get_targets())) & set(CPUS)
    if not found or cpu not in known or found["libc"] not in LIBCS:
        raise CrossTargetError(
            f"{TRIPLE_VARIABLE}={triple!r} is not a triple to compile for: it is "
            "<cpu>-linux-<libc> or <cpu>-<vendor>-linux-<libc>, as riscv64-unknown-linux-gnu or "
            f"aarch64-linux-gnu, with <cpu> one of {', '.join(sorted(known))} and <libc> one of "
            f"{', '.join(LIBCS)}"
        )
    return cpu


def _check_mcpu(mcpu: str, triple: str) -> None:
    known = sorted(map(str, codegen.llvm_get_cpu_archlist(_llvm({"mtriple": triple}))))
    if mcpu not in known:
        raise CrossTargetError(
            f"{TRIPLE_VARIABLE}_MCPU={mcpu!r} is not a CPU of {triple}; LLVM knows "
            f"{', '.join(known)}"
        )


def _width(text: str) -> int:
    width = int(text) if text.isascii() and text.isdigit() else 0
    if not (64 <= width <= 65536 and width.bit_count() == 1):
        raise CrossTargetError(
            f"{TRIPLE_VARIABLE}_VECTOR_WIDTH={text!r} is not a width: it is the bits of a vector "
            "register, a power of two from 64 to 65536, as 256"
        )
    return width


def _split_mattr(text: str) -> list[str]:
    mattr = [piece.strip() for piece in text.split(",")]
    wrong = [piece for piece in mattr if not _FEATURE.fullmatch(piece)]
    if wrong:
        raise CrossTargetError(
            f"{TRIPLE_VARIABLE}_MATTR={text!r}: {wrong[0]!r} is not a feature; features are "
            "separated by commas, each with its sign, as +m,+a,+f,+d,+c,+zve64d,+zvl256b"
        )
    return mattr


def _check_mattr(mattr: list[str], fields: Mapping[str, Any]) -> None:
    """Reject features that LLVM does not know; LLVM only warns about them."""
    on = [f"+{piece[1:]}" for piece in mattr]
    known = _features({**fields, "mattr": on})
    wrong = [piece for piece in mattr if piece[1:] not in known]
    if wrong:
        raise CrossTargetError(
            f"{TRIPLE_VARIABLE}_MATTR: LLVM knows no feature {wrong[0]!r} of {fields['mtriple']}; "
            "a feature is an extension's name with its sign, as +m or -zba"
        )


def _riscv_mattr(mattr: list[str] | None, of_cpu: frozenset[str], width: int | None) -> list[str]:
    """Return the features to compile with: the given ones, else the CPU's, else RVV's default."""
    if mattr is None:
        if of_cpu:
            mattr = [piece for piece in SCALAR if piece[1:] in of_cpu]
            if _vlen(of_cpu):
                mattr += [RVV if RVV[1:] in of_cpu else "+zve32x", f"+zvl{_vlen(of_cpu)}b"]
            return mattr
        return [*SCALAR, RVV, f"+zvl{width or DEFAULT_WIDTH}b"]
    if width and not any(_VLEN.fullmatch(piece[1:]) for piece in mattr):
        return [*mattr, f"+zvl{width}b"]
    return mattr


def _riscv_width(features: frozenset[str], width: int | None) -> int | None:
    vlen = _vlen(features)
    if width and width != vlen:
        has = f"vectors of {vlen} bits" if vlen else "no vectors"
        raise CrossTargetError(
            f"{TRIPLE_VARIABLE}_VECTOR_WIDTH={width} contradicts the features, which give {has}: "
            f"leave one of them out, or let {TRIPLE_VARIABLE}_MATTR hold {RVV},+zvl{width}b"
        )
    return vlen


def _vlen(features: frozenset[str]) -> int | None:
    """Return the least vector length, in bits, that features guarantee; None without vectors."""
    if "zve32x" not in features:
        return None
    return max(int(found[1]) for name in features if (found := _VLEN.fullmatch(name)))


def _default_mabi(cpu: str, features: frozenset[str]) -> str:
    if not cpu.startswith("riscv"):
        return ""
    floats = next((name for name in ("e", "d", "f") if name in features), "")
    return ("lp64" if cpu == "riscv64" else "ilp32") + floats


def _check_mabi(mabi: str, cpu: str, features: frozenset[str]) -> None:
    known = _MABIS.get(cpu, {})
    if mabi not in known:
        valid = ", ".join(known) or "none: leave it unset"
        raise CrossTargetError(
            f"{TRIPLE_VARIABLE}_MABI={mabi!r} is not a calling convention of {cpu}; valid: {valid}"
        )
    needed = known[mabi]
    if needed and needed not in features:
        raise CrossTargetError(
            f"{TRIPLE_VARIABLE}_MABI={mabi!r} needs the feature +{needed}, which "
            f"{TRIPLE_VARIABLE}_MATTR or {TRIPLE_VARIABLE}_MCPU does not give"
        )


def _llvm(fields: Mapping[str, Any]) -> Target:
    return Target({"kind": "llvm", **fields})


def _features(fields: Mapping[str, Any]) -> frozenset[str]:
    """Return all features, implied ones included, that LLVM enables for a target's fields."""
    return frozenset(map(str, codegen.llvm_get_cpu_features(_llvm(fields))))
