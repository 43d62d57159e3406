# SPDX-License-Identifier: Apache-2.0
"""TVMScript as TVM 0.23 spells it, and as 0.26 does: the same kernels in both.

Between the two, TIR's statements and modules were renamed (``block`` became ``sblock``, ``tir``
became ``tirx``), let-bindings got an annotation of their own, and the attention kernels moved out
of ``kv_cache.py``. That is mechanical, so overlays are written once, for 0.26, and the folder for
0.23 is made from them:

    python -m tvmdialect write     # overlays/tvm-0.23 from overlays/tvm
    python -m tvmdialect check     # exits 1, and names what is out of date

The other direction serves the tests: kernels of 0.23, of which there is no wheel, run on 0.26.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEWER = ROOT / "overlays/tvm"
OLDER = ROOT / "overlays/tvm-0.23"
# What of the overlays makes sense without 0.26's runtime: the kernels.
KERNELS = Path("python/tvm/relax/frontend/nn/llm")
SHADOWS = "shadows.toml"
# The modules that 0.24 took out of kv_cache.py.
_SPLIT = "_decode_kernels|_kernel_common|_page_kernels|_prefill_kernels"

# Pairs of a pattern and its replacement, in the order in which they apply.
_BACKWARD = (
    (r"\bT\.sblock_alloc_buffer\(", "T.alloc_buffer("),
    (r"\bT\.sblock\(", "T.block("),
    (r"@T\.prim_func\(s_tir=True\)", "@T.prim_func"),
    (r"\bT\.let\[(T\.\w+)(?:\(\))?\]", r"\1"),
    # A call is TIR's own there, and a TIR expression has no other type than a data type.
    (r"\bir\.Call\b", "tir.Call"),
    (r"\bvalue\.ty\.dtype\b", "value.dtype"),
    (r"\btirx\.op\.fma\(", 'tir.call_intrin("float32", "tir.fma", '),
    (r"\btirx\.", "tir."),
    (r"\bimport (?:ir, )?tirx\b", "import tir"),
    (rf"\bfrom \.(?:{_SPLIT}) import\b", "from .kv_cache import"),
    (rf"\b(?:{_SPLIT})\.py\b", "kv_cache.py"),
)
_FORWARD = (
    (r"\bT\.alloc_buffer\(", "T.sblock_alloc_buffer("),
    (r"\bT\.block\(", "T.sblock("),
    (r"@T\.prim_func(?:\(check_well_formed=False\))?(?=\n)", "@T.prim_func(s_tir=True)"),
    (r"@T\.prim_func\(private=True\)", "@T.prim_func(private=True, s_tir=True)"),
    (r"\(is_size_var=True\)", "()"),
    (r"\bT\.SizeVar\(", "T.Var("),
    # What 0.26 would take for a buffer when its type is not said.
    (r"^( +)h_kv_idx = (?=h // )", r"\1h_kv_idx: T.int32 = "),
    (r"^( +)weight = (?=exp_scores\[)", r"\1weight: T.float32 = "),
    # A variable with a value, in a function's body; a parameter has none.
    (r"^( +\w+): (T\.\w+)(?:\(\))? = ", r"\1: T.let[\2] = "),
    (r"\btir\.Call\b", "ir.Call"),
    (r'\btir\.call_intrin\("float32", "tir\.fma", ', "tirx.op.fma("),
    (r"\bvalue\.dtype\b", "value.ty.dtype"),
    (r"\btir\.PrimExpr\b", "tirx.Expr"),
    (r"\btir\.Schedule\b", "s_tir.Schedule"),
    (r"\btir\.", "tirx."),
    (r"\bfrom tvm import tir\b", "from tvm import ir, s_tir, tirx"),
    (r"\bfrom tvm.script import tir\b", "from tvm.script import tirx"),
    (r"\brx\.PrimValue\(", "rx.prim_value("),
    (r"\bsinfo_args=rx\.ObjectStructInfo\(\)", "ty_args=rx.AnyType()"),
    (r'"tir"', '"tirx"'),
)


def older(text: str) -> str:
    """The Python source ``text``, written for TVM 0.26, as 0.23 has it."""
    return _rename(text, _BACKWARD)


def newer(text: str) -> str:
    """The Python source ``text``, written for TVM 0.23, as 0.26 has it."""
    return _rename(text, _FORWARD)


def _rename(text: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in pairs:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def older_overlays() -> dict[str, str]:
    """The overlays for TVM 0.23 by path below their folder, made from those for 0.26."""
    files = {
        path.relative_to(NEWER).as_posix(): _marked(older(path.read_text("utf-8")))
        for path in sorted((NEWER / KERNELS).glob("*.py"))
    }
    return files | {SHADOWS: _older_shadows()}


def _marked(text: str) -> str:
    """``text`` with a note below its licence that it is not to be changed by hand."""
    licence, _, rest = text.partition("\n")
    return (
        f"{licence}\n# Made from {NEWER.relative_to(ROOT)} by tvmdialect; change it there.\n{rest}"
    )


def _older_shadows() -> str:
    shadows = tomllib.loads((NEWER / SHADOWS).read_text("utf-8"))["shadow"]
    text = _marked("# SPDX-License-Identifier: Apache-2.0\n")
    keys = ("path", "symbol", "by", "why")
    for one in shadows:
        text += "\n[[shadow]]\n"
        text += "".join(f"{key} = {json.dumps(older(one[key]))}\n" for key in keys)
    return text


def out_of_date(wanted: dict[str, str]) -> list[str]:
    """The paths that differ from ``wanted``, are missing, or should not be there."""
    found = {
        path.relative_to(OLDER).as_posix(): path.read_text("utf-8")
        for path in OLDER.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    return sorted(path for path in {*wanted, *found} if wanted.get(path) != found.get(path))


def main(arguments: list[str]) -> int:
    """Write the overlays for TVM 0.23, or check them; 1 when ``check`` finds a difference."""
    parser = argparse.ArgumentParser(prog="tvmdialect", description=__doc__.partition("\n")[0])
    parser.add_argument("verb", choices=["write", "check"])
    verb = parser.parse_args(arguments).verb
    wanted = older_overlays()
    differing = out_of_date(wanted)
    for path in differing:
        print(f"{OLDER.relative_to(ROOT) / path}: {'written' if verb == 'write' else 'differs'}")
        if verb == "write" and path in wanted:
            (OLDER / path).parent.mkdir(parents=True, exist_ok=True)
            (OLDER / path).write_text(wanted[path], "utf-8")
        elif verb == "write":
            (OLDER / path).unlink()
    if differing and verb == "check":
        print("make it anew: python -m tvmdialect write", file=sys.stderr)
    return int(bool(differing) and verb == "check")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
