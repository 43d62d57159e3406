# SPDX-License-Identifier: Apache-2.0
"""``crosslab VERB``, the installed command; prints an error together with the remedy.

Companion packages add verbs with entry points of the group ``mlc_rvv.commands``: NAME = "MODULE", a
module with the function ``main(argv)``.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

from crosslab.errors import UserError
from groundwork.command_line import meant
from groundwork.errors import exit_code_of


@dataclass(frozen=True)
class Verb:
    """A command of crosslab: name, module, a description, and the function that gets its words."""

    name: str
    module: str
    what: str
    function: str = "main"


VERBS = (
    Verb("doctor", "crosslab.host.doctor", "say which tools are here, and missing", "doctor"),
    Verb("prepare", "crosslab.host.doctor", "install the missing system packages", "prepare"),
    Verb("kernels", "crosslab.assemble.kernels_cli", "compile the micro-kernels"),
    Verb("lock", "crosslab.models.sources.relock", "look up the pinned models again"),
    Verb("build-and-test", "crosslab.job.main_job", "build a model and check its answer in QEMU"),
    Verb("model", "crosslab.job.model_job", "build a model of yours, check it, pack it"),
    Verb("package", "crosslab.artifact.package", "put finished models into tarballs"),
    Verb("picture", "crosslab.job.picture", "draw build-and-test's answer, or a chat, as an SVG"),
    Verb("bench", "crosslab.bench.cli", "count instructions, ours against upstream's"),
    Verb("host-bench", "crosslab.bench.host_bench", "time ours against upstream's on this machine"),
    Verb("kernel-bench", "crosslab.bench.kernel_bench", "count each kernel's instructions"),
    Verb("kernel-cycles", "crosslab.bench.kernel_cycles", "each kernel's cycles by unit of a core"),
    Verb("core-latencies", "crosslab.cores.llvm_latencies", "latencies of a core, from LLVM"),
    Verb("core-loops", "crosslab.cores.object_loops", "cycles of an object file's loops on a core"),
    Verb("core-check", "crosslab.cores.check", "compare predicted cycles with measured loops"),
    Verb("board-check", "crosslab.boards.check", "compare predicted speeds with published ones"),
    Verb("board-kernels", "crosslab.bench.board_kernels", "count the kernels for board-check"),
    Verb("lookup", "crosslab.bench.lookup", "predict what prompt lookup saves on a board"),
    Verb("int8-error", "crosslab.models.int8_error", "compare int8 activations with float32"),
    Verb("perplexity", "crosslab.peers.perplexity", "sizes and perplexity, beside llama.cpp"),
    Verb("zoo", "crosslab.zoo.cli", "compile and check a small model of every family"),
)


COMMANDS = "mlc_rvv.commands"
# Companion packages by verb, for the advice about a verb that is not installed.
COMPANIONS = {
    "farm": "mlc-rvv-board-farm",
    "torch": "mlc-rvv-pytorch-road",
}
# Python packages that nox sessions install, but `uv run` does not.
OF_SESSIONS = ("tvm", "torch", "transformers")
# Verbs that are also nox sessions.
SESSIONS = ("build-and-test", "model", "bench", "host-bench", "zoo", "farm", "torch")


def verbs() -> tuple[Verb, ...]:
    """Return the project's verbs, then those of installed companions."""
    added = (
        Verb(e.name, e.value, f"from the package {e.dist.name if e.dist else e.value}")
        for e in sorted(entry_points(group=COMMANDS))
    )
    return (*VERBS, *added)


def usage() -> str:
    """Return the usage text: a line for each verb."""
    known = verbs()
    width = max(len(verb.name) for verb in known)
    lines = [f"  {verb.name:{width}}  {verb.what}" for verb in known]
    return "\n".join(["usage: crosslab VERB [options]", "", *lines])


def run(argv: Sequence[str]) -> int:
    """Run the verb that ``argv`` begins with; without one, print the usage. Return the exit code.

    Raises:
        LabError: the verb's error; UserError: the verb is unknown, or lacks a Python package.
    """
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    known = {verb.name: verb for verb in verbs()}
    if argv[0] not in known:
        raise UserError(f"there is no verb {argv[0]!r}", remedy=_nearest(argv[0], known))
    try:
        # Imported here, so that a verb does not need the packages of other verbs.
        verb = known[argv[0]]
        return int(getattr(importlib.import_module(verb.module), verb.function)(argv[1:]) or 0)
    except ModuleNotFoundError as error:
        if error.name not in OF_SESSIONS:
            raise
        raise UserError(
            f"crosslab {argv[0]} needs the package {error.name}, which is not installed here",
            remedy=_with_packages(argv[0], shlex.join(argv[1:])),
        ) from error


def _with_packages(verb: str, options: str) -> str:
    """Return advice for a verb whose packages only a nox session installs."""
    if verb in SESSIONS:
        return f"the session installs it: nox -s {verb.replace('-', '_')} -- {options}"
    python = ".nox/bench/bin/python -m crosslab"
    return f"nox -s bench -- --help installs it; then type: {python} {verb} {options}"


def _nearest(word: str, known: Collection[str]) -> str:
    """Return advice for an unknown verb: its companion package, or the nearest known verbs."""
    if package := COMPANIONS.get(word):
        return f"it comes with the package {package}: uv run --package {package} crosslab {word}"
    return meant(word.replace("_", "-"), known, "verbs", "crosslab ")


def main() -> int:
    """Run with this process's arguments; return the exit code."""
    code = exit_code_of(lambda: run(sys.argv[1:]), UserError)
    if shown := sys.modules.get("crosslab.cached_build"):  # not loaded for a verb without builds
        shown.show_reused()
    return code


if __name__ == "__main__":
    sys.exit(main())
