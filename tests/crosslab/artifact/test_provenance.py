# SPDX-License-Identifier: Apache-2.0
"""Origins of an artefact in its manifest."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from support import shared_builds
from support.shared_builds import PROJECT

from crosslab.artifact.provenance import Provenance, read_origins
from crosslab.artifact.sbom import Part, render_sbom, sbom_problem
from crosslab.assemble.link import LinkRequest
from crosslab.assemble.runtime import Runtime
from crosslab.compile.overlaypass import PASSES
from crosslab.compile.targets import LabTarget
from crosslab.errors import UserError
from crosslab.host.toolchain import CompilerKind, Machine
from crosslab.models.sources.model_folder import ModelOrigin
from crosslab.models.sources.pins import LOCK_NAME, read_pins

LOCK = tomllib.loads((PROJECT / LOCK_NAME).read_text(encoding="utf-8"))
RELEASE = LOCK["default-release"]
TVM, MLC = (LOCK["releases"][RELEASE][name] for name in ("tvm", "mlc-llm"))
APPLIED = {
    "release": RELEASE,
    "upstreams": [
        {
            "name": "tvm",
            "version": TVM,
            "tree": "b" * 40,
            "inputs": {
                "base": "a" * 40,
                "patches": [["z.patch", "1" * 64], ["a.patch", "2" * 64]],
                "overlays": [["apps/x.cc", "100644", "c" * 40]],
            },
        },
        {"name": "mlc-llm", "version": MLC, "tree": "", "inputs": None},
    ],
}


@pytest.fixture
def provenance(tmp_path: Path) -> Provenance:
    toolchain = shared_builds.cross()
    report = tmp_path / "applied.json"
    report.write_text(json.dumps(APPLIED), encoding="utf-8")
    runtime = Runtime(tmp_path, Machine.RISCV64, (), ())
    return Provenance(
        project=PROJECT,
        origins=read_origins(report),
        passes=PASSES,
        model=ModelOrigin.of_asset(read_pins(PROJECT).asset("smollm2-135m")),
        targets=(LabTarget("riscv64", 256),),
        linking=LinkRequest(runtime, toolchain, library=tmp_path / "model.tar"),
        with_mlc=False,
    )


def test_inputs_have_digests_and_patches_are_in_order(provenance: Provenance) -> None:
    inputs = provenance.inputs()
    tvm = inputs["upstreams"]["tvm"]
    assert [patch["name"] for patch in tvm["patches"]] == ["z.patch", "a.patch"]
    assert tvm["overlays"] == {"apps/x.cc": f"git-blob:{'c' * 40}"}
    assert (tvm["base_tree"], tvm["patched_tree"]) == ("a" * 40, "b" * 40)
    # The table says nothing of a missing tree.
    assert list(inputs["upstreams"]) == ["tvm"]
    assert "rvv/gemm_f32.c" in inputs["kernels"]
    assert "program/main.cc" in inputs["runner"]
    assert "hooks.py" in inputs["passes"]
    assert inputs["lock"] != inputs["python_lock"]
    assert inputs["model"]["member_sha256"] == provenance.model.sha256


def test_tools_are_told_with_their_options_and_without_paths(provenance: Provenance) -> None:
    tools = provenance.tools()
    flags = [flag for group in tools["flags"].values() for flag in group]
    assert not [flag for flag in flags if "/" in flag]
    assert "-static" in tools["flags"]["link"]
    assert tools["targets"][0]["vector-width"] == 256
    if shutil.which("dpkg-query") and provenance.toolchain.kind is CompilerKind.CLANG:
        found = {re.sub(r"[-\d]+", "", name.partition("-")[0]) for name in tools["debian_packages"]}
        assert {"clang", "lld", "libc"} <= found
    dynamic = replace(provenance, linking=replace(provenance.linking, library=None))
    assert "-static" not in dynamic.tools()["flags"]["link"]


def test_each_part_has_a_licence_and_what_is_shipped_is_told_apart(provenance: Provenance) -> None:
    parts = provenance.parts()
    assert [part.name for part in parts if not part.licence] == []
    shipped = {part.name for part in parts if part.shipped}
    assert {
        "tvm",
        "apache-tvm-ffi",
        "dlpack",
        "mlc-rvv-kernels",
        "mlc-rvv-runner",
        "smollm2-135m",
    } <= shipped
    assert not shipped & {"apache-tvm", "numpy", "compiler"}
    assert len({(part.name, part.version) for part in parts}) == len(parts)
    text = render_sbom(Part("whole", "1", "Apache-2.0", shipped=True), parts, [])
    assert sbom_problem(text) == ""
    (tvm,) = (c for c in json.loads(text)["components"] if c["name"] == "tvm")
    pinned = LOCK["upstreams"]["tvm"]["versions"][TVM]
    if commit := pinned.get("commit"):
        assert tvm["purl"] == f"pkg:github/apache/tvm@{commit}"
    else:
        wheel = f"{pinned['wheel']['package']}@{pinned['wheel']['version']}"
        assert tvm["purl"] == f"pkg:pypi/{wheel}?tree={'a' * 40}"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"upstreams": [{}]}'])
def test_report_that_is_none_is_refused_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="does not say what the trees were made from") as caught:
        read_origins(tmp_path / "report.json")
    assert "forkpatch apply --json" in caught.value.remedy
