# SPDX-License-Identifier: Apache-2.0
"""mlc-rvv: TVM and MLC-LLM for RISC-V Vector CPUs, as a rebasable set of patches.

Run a session:  python3 scripts/bootstrap.py SESSION -- OPTIONS   (or nox -s SESSION -- OPTIONS)
Its options:    nox -s SESSION -- --help

First come the two commands of the README, then work on patches, measurements, finished models,
and the care of the project. nox without -s runs lint and unit.
"""

import sys
from pathlib import Path

import nox

sys.path[:0] = [
    str(Path(__file__).parent / part) for part in ("scripts", "packages/groundwork/src")
]
from sessions import need_python  # noqa: E402

need_python("nox", ["scripts/bootstrap.py", "SESSION"])
from sessions import environments, trees  # noqa: E402
from sessions import patches as patch_engine  # noqa: E402
from sessions import upstream_tests as upstream_suites  # noqa: E402
from sessions.requirements import ROOT  # noqa: E402

environments.lock_checkout()

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["lint", "unit"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True

# Files are spread over the cores, long ones first; tests of one file share what they build. A test
# that waits for ever fails after 20 minutes, and does not take the whole run with it.
PARALLEL = (
    *("-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder"),
    *("--durations", "20", "--timeout", "1200"),
)


# The two commands of the README.


@nox.session(default=False)
def build_and_test(session: nox.Session) -> None:
    """Build SmolLM2-135M for RVV from the patched trees and check its answer under QEMU."""
    applied, options = trees.prepare(session, "crosslab", "build-and-test")
    environments.run_module(session, "crosslab", "build-and-test", *applied.arguments(), *options)


@nox.session(default=False)
def tests(session: nox.Session) -> None:
    """Run the tests but those of packages in unit; with -- --all these and the thorough ones."""
    applied, options = trees.prepare(session, "pytest")
    trees.install_for_tests(session, applied, options)
    root = str(applied.root)
    environments.run_pytest(session, *PARALLEL, *options, FORKPATCH_TREES=root)


@nox.session
def unit(session: nox.Session) -> None:
    """Run the tests that need neither network nor toolchain."""
    members = ("accelerator-study", "forkpatch", "crosslab")
    environments.install(session, "nox", *members, "report", "test")
    own = (f"packages/{name}" for name in ("groundwork", "forkpatch", "accelerator-study"))
    folders = [*own, *(f"tests/{name}" for name in ("sessions", "structure", "report", "docs"))]
    environments.run_pytest(session, *PARALLEL, *folders, *environments.words_of(session))


# Patches.


@nox.session(default=False)
def apply_patches(session: nox.Session) -> None:
    """Make the patched trees of a release: sources, series, overlays."""
    patch_engine.run_engine(session, "apply")


@nox.session(default=False)
def patches(session: nox.Session) -> None:
    """Run a verb of the patch engine: -- check, edit, export, necessity, probe, status..."""
    patch_engine.run_engine(session)


@nox.session(default=False)
def rebase(session: nox.Session) -> None:
    """Move a series to another version of its upstream; stop at the first conflict."""
    patch_engine.run_engine(session, "rebase")


@nox.session(default=False)
def upstream_tests(session: nox.Session) -> None:
    """Run upstream's own tests on the pristine trees and on ours: none may get worse."""
    upstream_suites.run(session)


# Measurements.


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Count what each step from upstream to ours costs, in guest instructions."""
    applied, options = trees.prepare(session, "crosslab", "bench")
    steps = trees.variants(session, applied)
    environments.run_module(session, "crosslab", "bench", *steps, *options)


@nox.session(default=False)
def host_bench(session: nox.Session) -> None:
    """Time ours against upstream's on this machine, with one thread and with two."""
    applied, options = trees.prepare(session, "crosslab", "host-bench")
    both = trees.pristine(session, applied)
    environments.run_module(session, "crosslab", "host-bench", *both, *options)


@nox.session(default=False)
def zoo(session: nox.Session) -> None:
    """Compile a small model of every family for RVV, run it and check its answer."""
    applied, options = trees.prepare(session, "crosslab", "zoo")
    options = [*trees.prepare_zoo(session, applied), *options]
    environments.run_module(session, "crosslab", "zoo", *applied.arguments(), *options)


@nox.session(default=False)
def farm(session: nox.Session) -> None:
    """Run boards for TVM's RPC tracker and tune on them: -- up, status, down, tune, ..."""
    environments.install(session, "board-farm")
    applied, options = trees.prepare(session, "crosslab", "farm")
    environments.run_module(session, "crosslab", "farm", *options, *applied.arguments())


@nox.session(default=False)
def cost(session: nox.Session) -> None:
    """Estimate what a model costs on an accelerator; run its layers there: -- layers DEVICE."""
    environments.install(session, "accelerator-study", "crosslab", "tvm")
    environments.run_module(session, "accelerator", *environments.words_of(session))


@nox.session(default=False)
def report(session: nox.Session) -> None:
    """Make one HTML page of all results: out/report.html."""
    environments.install(session, "crosslab", "forkpatch", "report")
    patch_engine.write_status(session)
    environments.run_module(session, "report", "--root", str(ROOT), *environments.words_of(session))


# Finished models.


@nox.session(default=False)
def model(session: nox.Session) -> None:
    """Build a model of yours for a board: -- FOLDER, FILE.gguf or hf:OWNER/NAME@REVISION."""
    applied, options = trees.prepare(session, "crosslab", "model")
    environments.run_module(session, "crosslab", "model", *applied.arguments(), *options)


@nox.session(default=False)
def torch(session: nox.Session) -> None:
    """Compile a PyTorch model, run it under QEMU, compare with torch: -- MODEL."""
    trees.install_torch_packages(session)
    applied, options = trees.prepare(session, "crosslab", "torch")
    environments.run_module(session, "crosslab", "torch", *applied.arguments(), *options)


@nox.session(default=False)
def package(session: nox.Session) -> None:
    """Put the finished models of dist/ into tarballs; -- verify PATH checks one."""
    environments.install(session, "crosslab")
    environments.run_module(session, "crosslab", "package", *trees.package_words(session))


@nox.session(default=False)
def reproduce(session: nox.Session) -> None:
    """Build the artefact twice under different conditions and compare the bytes."""
    environments.install(session, "forkpatch")
    trees.install_lab(session, trees.apply(session, []))
    environments.run_module(session, "sessions.reproduce", *environments.words_of(session))


# Care of the project.


@nox.session
def lint(session: nox.Session) -> None:
    """Check style with ruff and clang-format, types with mypy, imports between packages."""
    environments.install(session, "docs", "lint", "types", "test", *environments.PACKAGES)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": "scripts"})
    session.run("clang-format", "--dry-run", "-Werror", *environments.native_sources(), log=False)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Build the site of the docs in out/site; a broken link is an error."""
    environments.install(session, "docs")
    quiet = {"NO_MKDOCS_2_WARNING": "1"}
    session.run("mkdocs", "build", "--strict", *environments.words_of(session), env=quiet)


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Pin everything again: VERSIONS.lock and uv.lock; with -- --check, compare."""
    patch_engine.refresh_locks(session)
