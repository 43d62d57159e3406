# SPDX-License-Identifier: Apache-2.0
"""The program of a board: a session of TVM's RPC, cross-built from TVM's sources."""

from __future__ import annotations

import shlex
from pathlib import Path

from crosslab.assemble.runtime import SHIMS, Sources, build_runtime
from crosslab.cached_build import cached_build
from crosslab.host.objects import run_compiler
from crosslab.host.toolchain import CompilerKind, Toolchain, find_cross
from groundwork.hashing import digest

NATIVE = Path(__file__).with_name("native") / "board"
LINKING = "linking the board's program"
# Without TVM's sockets, pipes and event loops: board.cc defines the channel.
UPSTREAM = ("channel", "device_api", "endpoint", "local_session", "module", "server_env", "session")
OWN = "src/runtime/rpc/board.cc"
BOARD = Sources(
    "board-objects",
    (*(f"src/runtime/rpc/rpc_{name}.cc" for name in UPSTREAM), OWN),
    (NATIVE, SHIMS),
)
# Linked dynamically, to load clients' libraries; without libstdc++, which a board may lack.
OPTIONS = ("-rdynamic", "-static-libstdc++", "-static-libgcc", "-s")


def build_board(tvm_tree: Path, cache: Path, toolchain: Toolchain | None = None) -> Path:
    """Build the board's program, and return its path; the same sources are built once.

    Args:
        tvm_tree: patched tree.
        cache: folder of finished builds.
        toolchain: compiler of the target; None: Clang for riscv64.

    Raises:
        UserError: the tree or a tool is missing.
        LabError: a source does not compile.
    """
    toolchain = toolchain or find_cross(CompilerKind.CLANG)
    runtime = build_runtime(tvm_tree, toolchain, cache)
    board = build_runtime(tvm_tree, toolchain, cache, sources=BOARD)
    options = [*toolchain.link, *OPTIONS]
    key = digest(runtime.folder.name, board.folder.name, toolchain.digest, shlex.join(options))

    def make(out: Path) -> None:
        listed = out / "objects.txt"
        names = [shlex.quote(str(path)) for path in (*runtime.objects, *board.objects)]
        listed.write_text("\n".join(names), encoding="utf-8")
        run_compiler(LINKING, [*toolchain.cxx, f"@{listed}", *options, "-o", "board"], out)
        listed.unlink()

    return cached_build(cache, "board", key, make) / "board"
