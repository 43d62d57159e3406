# SPDX-License-Identifier: Apache-2.0
"""The module after each pass, on disk; and the page of what each changed."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

SOURCE = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        with R.dataflow():
            y = R.add(x, x)
            R.output(y)
        return y
"""


def test_a_pass_that_changes_the_module_leaves_it_in_a_file(
    tvm: ModuleType, tmp_path: Path
) -> None:
    from tvm.script import from_source, ir, relax, tirx  # noqa: PLC0415 - the patched tree's

    from crosslab.compile.ir_dump import ModuleDump  # noqa: PLC0415

    module = from_source(SOURCE, extra_vars={"I": ir, "R": relax, "T": tirx})
    r = tvm.relax.transform

    def on_another_module(given: object, _: object) -> object:
        r.LegalizeOps()(module)
        return given

    inner = tvm.transform.module_pass(on_another_module, opt_level=0, name="Inner")
    passes = [
        r.FoldConstant(),
        inner,
        tvm.transform.Sequential([r.LegalizeOps()], name="RvvFusion"),
    ]
    folder = tmp_path / "ir"
    with tvm.transform.PassContext(instruments=[ModuleDump(folder)]):
        left = tvm.transform.Sequential(passes)(module)
    written = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    assert written == {"000-input.py": module.script(), "001-LegalizeOps.py": left.script()}
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^(?:## |`)(\w+)(?:$|` changes)", page, re.MULTILINE) == [
        "FoldConstant",
        "Inner",
        "LegalizeOps",
    ]
    assert '-            y: R.Tensor((4,), dtype="float32") = R.add(x, x)' in page
    assert "+    def add(" in page
