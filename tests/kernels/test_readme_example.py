# SPDX-License-Identifier: Apache-2.0
"""The example of kernels/README.md compiles, is near what its units take, and is right."""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from crosslab.assemble.kernels import KERNELS, ORDERED_FOR, KernelTarget, compiler_for
from crosslab.cores.core import CORES, read_core
from crosslab.cores.object_loops import cycles_of_loop, cycles_of_units, loops_of
from crosslab.errors import UserError
from crosslab.host.toolchain import Toolchain
from crosslab.loops.library import loops_header

from .conftest import WARNINGS

CORE = read_core(CORES, ORDERED_FOR)
# y[i] = i + 2 * x[i] for x[i] = 3 * i, in numbers that float32 has; what is behind them stays.
CALL = """
#include <stdio.h>
#include "example.c"
int main(void) {
  static float x[1000], y[1001];
  for (int n = 0; n <= 1000; n += n < 40 ? 1 : 137) {
    for (int i = 0; i < 1000; ++i) x[i] = 3 * i, y[i] = i;
    mlc_rvv_axpy_f32(y, x, 2, n);
    for (int i = 0; i < 1000; ++i) {
      if (y[i] != (i < n ? 7 * i : i)) return printf("n = %d: y[%d] = %g\\n", n, i, y[i]);
    }
  }
  return 0;
}
"""


def block(first: str) -> str:
    """The indented block of the page that begins with a line."""
    page = (KERNELS / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^ {{8}}{re.escape(first)}\n(?: {{8}}.*\n|\n)*", page, re.MULTILINE)
    assert found, first
    return textwrap.dedent(found.group())


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example's files and the loops made from them."""
    folder = tmp_path_factory.mktemp("example")
    (folder / "loops").mkdir()
    python = block("# SPDX-License-Identifier: Apache-2.0")
    (folder / "loops" / "example.py").write_text(python, encoding="utf-8")
    (folder / "mlc_rvv_loops.h").write_text(loops_header(folder / "loops", CORE), encoding="utf-8")
    c_source = block("// SPDX-License-Identifier: Apache-2.0")
    (folder / "example.c").write_text(c_source, encoding="utf-8")
    (folder / "mlc_rvv_linear.h").write_text(
        "#include <stddef.h>\n#include <stdint.h>\n"
        "void mlc_rvv_axpy_f32(float *y, const float *x, float a, int64_t n);\n"
    )
    (folder / "call.c").write_text(CALL)
    return folder


def test_the_example_is_near_what_its_units_take(example: Path) -> None:
    try:
        compiler = compiler_for(KernelTarget.RISCV64)
    except UserError as error:
        pytest.skip(error.what)
    for relax in ("no-relax", "relax"):
        files = [f"-m{relax}", "-c", "example.c", "-o", f"{relax}.o"]
        subprocess.run([*compiler, *WARNINGS, "-O2", *files], cwd=example, check=True)
    with pytest.raises(UserError, match="no targets of branches: the linker"):
        list(loops_of(example / "relax.o"))
    (loop,) = (o for o in loops_of(example / "no-relax.o") if o.symbol == "mlc_axpy_m4")
    units = cycles_of_units(CORE, loop)
    assert cycles_of_loop(CORE, loop) <= 1.25 * max(units.values())
    if objdump := shutil.which("llvm-objdump-19"):
        command = [objdump, "-d", "--no-show-raw-insn", str(example / "no-relax.o")]
        code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert not re.search(r"\bv[ls]\d+r", code), "a vector register is spilled"


@pytest.mark.parametrize("vlen", [128, 256, 1024])
def test_the_example_is_right(example: Path, cross: Toolchain, qemu: Path, vlen: int) -> None:
    made = example / "call"
    if not made.exists():
        march = ["-march=rv64gcv", "-O2"]
        link = [*cross.link, "-static", "-o", str(made)]
        subprocess.run([*cross.cc, *march, *WARNINGS, "call.c", *link], cwd=example, check=True)
    command = [str(qemu), "-cpu", f"rv64,v=true,vlen={vlen},vext_spec=v1.0", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")
