# SPDX-License-Identifier: Apache-2.0
"""Naming other CPUs: what each name gives, and what is refused. Needs TVM, not MLC-LLM."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SUPPORT = Path(__file__).resolve().parents[2] / "overlays/mlc-llm/python/mlc_llm/support"
RISCV = "riscv64-unknown-linux-gnu"
SCALAR = ["+m", "+a", "+f", "+d", "+c"]
ELF_MACHINE = {"riscv64": 243, "aarch64": 183}


@pytest.fixture(scope="module")
def cross(tvm: ModuleType) -> ModuleType:
    """mlc_llm.support.cross_target, in a package of its own: mlc_llm itself need not be here."""
    package = ModuleType("cross_support")
    package.__path__ = [str(SUPPORT)]
    sys.modules[package.__name__] = package
    return importlib.import_module("cross_support.cross_target")


@pytest.fixture(scope="module")
def link(cross: ModuleType) -> ModuleType:
    return importlib.import_module("cross_support.cross_link")


def fields(target: Any) -> dict[str, Any]:
    """A target's own fields, as plain values."""
    kept = {}
    for name, value in dict(target.export()).items():
        if name not in ("tag", "keys", "host"):
            kept[name] = value if isinstance(value, str | int) else [str(item) for item in value]
    return kept


def named(cross: ModuleType, **variables: str) -> dict[str, Any]:
    """Fields of the target that `--device cpu` means with these variables after the prefix."""
    environ = {f"CROSS_COMPILATION_{name}".removesuffix("_"): v for name, v in variables.items()}
    found = cross.resolve("cpu", environ)
    assert fields(found.target.host) == fields(found.target)
    return fields(found.target)


@pytest.mark.parametrize("width", [128, 256, 512, 1024])
def test_a_preset_gives_its_target(cross: ModuleType, width: int) -> None:
    target = cross.resolve(f"riscv64:rvv{width}", {}).target
    assert fields(target) == {
        "kind": "llvm",
        "mtriple": RISCV,
        "mcpu": "generic-rv64",
        "mabi": "lp64d",
        "mattr": [*SCALAR, "+zve64d", f"+zvl{width}b"],
        "vector-width": width,
    }
    assert fields(target.host) == fields(target)


@pytest.mark.parametrize("hint", ["cpu", "cuda", "auto", "llvm", "iphone:generic"])
def test_other_devices_are_left_to_mlc_llm(cross: ModuleType, hint: str) -> None:
    assert cross.resolve(hint, {}) is None
    assert cross.resolve(hint, {"CROSS_COMPILATION": " "}) is None


def test_only_the_device_cpu_reads_the_environment(cross: ModuleType) -> None:
    environ = {"CROSS_COMPILATION": "aarch64-linux-gnu"}
    assert cross.resolve("cuda", environ) is None
    assert cross.resolve("riscv64:rvv128", environ).triple == RISCV


@pytest.mark.parametrize("triple", [RISCV, "riscv64-linux-gnu", "riscv64-linux-musl"])
def test_riscv_default_is_rvv_of_256_bits(cross: ModuleType, triple: str) -> None:
    preset = fields(cross.resolve("riscv64:rvv256", {}).target)
    assert named(cross, **{"": triple}) == {**preset, "mtriple": triple}


def test_preset_with_halves_has_their_vectors_too(cross: ModuleType) -> None:
    plain = fields(cross.resolve("riscv64:rvv256", {}).target)
    halves = fields(cross.resolve("riscv64:rvv256-zvfh", {}).target)
    assert halves["mattr"] == [*plain["mattr"], "+zvfh"]
    assert halves["vector-width"] == plain["vector-width"] == 256


def test_width_alone_sets_the_vector_length(cross: ModuleType) -> None:
    made = named(cross, **{"": RISCV}, VECTOR_WIDTH="512")
    assert made["mattr"] == [*SCALAR, "+zve64d", "+zvl512b"]
    assert made["vector-width"] == 512


@pytest.mark.parametrize(
    ("mattr", "width", "mabi"),
    [
        ("+m,+a,+f,+d,+c", None, "lp64d"),
        ("+m,+a,+f,+d,+c,+v", 128, "lp64d"),
        ("+m, +a, +f, +zve32f, +zvl512b", 512, "lp64f"),
        ("+m,+a", None, "lp64"),
    ],
)
def test_features_given_are_the_whole_list(
    cross: ModuleType, mattr: str, width: int | None, mabi: str
) -> None:
    made = named(cross, **{"": RISCV}, MATTR=mattr)
    assert made["mattr"] == mattr.replace(" ", "").split(",")
    assert made.get("vector-width") == width
    assert made["mabi"] == mabi


def test_vectors_without_a_length_take_the_width_given(cross: ModuleType) -> None:
    made = named(cross, **{"": RISCV}, MATTR="+d,+zve64d", VECTOR_WIDTH="256")
    assert made["mattr"] == ["+d", "+zve64d", "+zvl256b"]


def test_a_cpu_brings_its_own_features(cross: ModuleType) -> None:
    with_vectors = named(cross, **{"": RISCV}, MCPU="sifive-x280")
    assert with_vectors["mattr"] == [*SCALAR, "+zve64d", "+zvl512b"]
    assert with_vectors["vector-width"] == 512
    without = named(cross, **{"": RISCV}, MCPU="sifive-u74")
    assert without["mattr"] == SCALAR
    assert "vector-width" not in without


def test_cpus_of_other_kinds_have_their_own_fields(cross: ModuleType) -> None:
    plain = named(cross, **{"": "aarch64-linux-gnu"})
    assert plain["mtriple"] == "aarch64-linux-gnu"
    assert not {"mcpu", "mabi", "mattr", "vector-width"} & plain.keys()
    arm = named(cross, **{"": "arm64-linux-gnu"}, MCPU="cortex-a76", MATTR="+sve,-aes")
    assert (arm["mcpu"], arm["mattr"]) == ("cortex-a76", ["+sve", "-aes"])
    intel = named(cross, **{"": "x86_64-pc-linux-gnu"}, MATTR="+avx2", VECTOR_WIDTH="256")
    assert (intel["mattr"], intel["vector-width"]) == (["+avx2"], 256)
    assert named(cross, **{"": "armv7a-linux-gnueabihf"})["mtriple"] == "armv7a-linux-gnueabihf"
    small = named(cross, **{"": "riscv32-linux-gnu"})
    assert (small["mcpu"], small["mabi"]) == ("generic-rv32", "ilp32d")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"": "riscv65-linux-gnu"}, ["riscv65-linux-gnu", "<cpu>-linux-<libc>", "riscv64"]),
        ({"": "riscv64"}, ["<cpu>-<vendor>-linux-<libc>"]),
        ({"": "riscv64-unknown-linux-gnu; rm -rf /"}, ["not a triple"]),
        ({"": "aarch64-apple-darwin"}, ["-linux-"]),
        ({"": "nvptx64-nvidia-linux-gnu"}, ["<cpu> one of aarch64"]),
        ({"": "riscv64-linux-glibc"}, ["<libc> one of gnu"]),
        ({"": RISCV, "MCPU": "sifive-x281"}, ["sifive-x281", "sifive-x280"]),
        ({"": RISCV, "MCPU": "cortex-a76"}, ["cortex-a76", RISCV]),
        ({"": RISCV, "MATTR": "v"}, ["'v' is not a feature", "+m,+a"]),
        ({"": RISCV, "MATTR": "+m,,+a"}, ["''"]),
        ({"": RISCV, "MATTR": "+m,+zvx"}, ["'+zvx'", RISCV]),
        ({"": RISCV, "MATTR": "-avx2"}, ["'-avx2'"]),
        ({"": RISCV, "MABI": "lp63"}, ["lp63", "lp64d"]),
        ({"": RISCV, "MABI": "lp64d", "MATTR": "+m,+f"}, ["lp64d", "+d"]),
        ({"": "x86_64-linux-gnu", "MABI": "sysv"}, ["leave it unset"]),
        ({"": RISCV, "VECTOR_WIDTH": "300"}, ["'300'", "power of two"]),
        ({"": RISCV, "VECTOR_WIDTH": "-256"}, ["power of two"]),
        ({"": RISCV, "VECTOR_WIDTH": "rvv"}, ["power of two"]),
        ({"": RISCV, "VECTOR_WIDTH": "512", "MATTR": "+zve64d,+zvl256b"}, ["512", "256 bits"]),
        ({"": RISCV, "VECTOR_WIDTH": "256", "MATTR": "+m"}, ["no vectors"]),
        ({"": RISCV, "VECTOR_WIDTH": "128", "MCPU": "sifive-x280"}, ["128", "512 bits"]),
        ({"MATTR": "+v", "MABI": "lp64d"}, ["MATTR", "MABI", "without CROSS_COMPILATION"]),
    ],
)
def test_a_wrong_variable_is_refused(
    cross: ModuleType, variables: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(ValueError, match="CROSS_COMPILATION") as caught:
        named(cross, **variables)
    assert type(caught.value).__name__ == "CrossTargetError"
    for word in words:
        assert word in str(caught.value)


def test_unknown_preset_is_refused(cross: ModuleType) -> None:
    with pytest.raises(ValueError, match="riscv64:rvv1024"):
        cross.resolve("riscv64:rvv2048", {})


def test_refusal_reaches_the_user_as_a_message(
    cross: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped, cross.refusals_reported():
        cross.resolve("riscv64:rvv300", {})
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("mlc_llm: error: unknown device 'riscv64:rvv300'")


def scaled_sum(tvm: ModuleType, target: Any) -> Any:
    """A built function over vectors of 64 floats: c = a * b + c."""
    from tvm import te  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    a, b, c = (te.placeholder((4096,), "float32", name) for name in "abc")
    out = te.compute((4096,), lambda i: a[i] * b[i] + c[i], name="out")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([a, b, c, out]))
    (loop,) = schedule.get_loops(schedule.get_sblock("out"))
    schedule.vectorize(schedule.split(loop, [None, 64])[1])
    return tvm.tirx.build(schedule.mod, target=target)


def test_code_has_vectors_where_the_cpu_has(cross: ModuleType, tvm: ModuleType) -> None:
    environ = {"CROSS_COMPILATION": RISCV, "CROSS_COMPILATION_MATTR": ",".join(SCALAR)}
    scalar = scaled_sum(tvm, cross.resolve("cpu", environ).target).inspect_source("asm")
    assert "vsetvli" not in scalar
    vector = scaled_sum(tvm, cross.resolve("riscv64:rvv256", {}).target).inspect_source("asm")
    assert "vsetvli" in vector
    assert "vfmadd" in vector or "vfmacc" in vector


def test_shared_object_is_linked_for_the_cpu(
    cross: ModuleType, link: ModuleType, tvm: ModuleType, tmp_path: Path
) -> None:
    found = cross.resolve("riscv64:rvv256", {})
    output = tmp_path / "sum.so"
    try:
        fcompile = link.exporter(output, found.triple)
    except ValueError as error:
        pytest.skip(str(error))
    scaled_sum(tvm, found.target).export_library(str(output), fcompile=fcompile)
    head = output.read_bytes()[:20]
    assert head[:4] == b"\x7fELF"
    assert int.from_bytes(head[16:18], "little") == 3  # ET_DYN
    assert int.from_bytes(head[18:20], "little") == ELF_MACHINE["riscv64"]


def test_linker_that_the_user_names_is_taken(link: ModuleType) -> None:
    environ = {"CROSS_COMPILATION_CXX": f"'{sys.executable}' -m ziglang c++", "PATH": ""}
    assert link.link_command(RISCV, environ) == [sys.executable, "-m", "ziglang", "c++"]


def test_gnu_compiler_serves_where_there_is_no_clang(link: ModuleType, tmp_path: Path) -> None:
    gxx = tmp_path / "riscv64-linux-gnu-g++"
    shutil.copy(sys.executable, gxx)
    assert link.link_command(RISCV, {"PATH": str(tmp_path)}) == ["riscv64-linux-gnu-g++"]


@pytest.mark.parametrize(
    ("output", "environ", "words"),
    [
        ("model.dylib", {}, "a .so"),
        ("model", {}, "a .tar"),
        ("model.so", {"PATH": ""}, "install clang-19 and lld-19"),
        ("model.so", {"CROSS_COMPILATION_CXX": "no-such-linker -x"}, "no-such-linker"),
    ],
)
def test_an_output_that_cannot_be_exported_is_refused(
    link: ModuleType, output: str, environ: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        link.exporter(Path(output), RISCV, environ)
    assert type(caught.value).__name__ == "CrossTargetError"


def test_failed_link_shows_the_linkers_output(link: ModuleType, tmp_path: Path) -> None:
    broken = tmp_path / "broken.o"
    broken.write_bytes(b"not an object")
    environ = dict(os.environ)
    try:
        fcompile = link.exporter(Path("model.so"), RISCV, environ)
    except ValueError as error:
        pytest.skip(str(error))
    with pytest.raises(RuntimeError, match=r"linking failed: .*broken\.o\n.*\S"):
        fcompile(str(tmp_path / "model.so"), [str(broken)])
