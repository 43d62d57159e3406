# SPDX-License-Identifier: Apache-2.0
"""mlc-rvv: TVM and MLC-LLM for RISC-V Vector CPUs, as a rebasable set of patches.

Options go after --, and each session answers to -- --help.
"""

import sys
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent / "scripts"))
import face
import ladder

face.take_turn()

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["lint", "types", "unit"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True


@nox.session(default=False)
def apply_patches(session: nox.Session) -> None:
    """Make the patched trees of a release: sources, series, overlays."""
    face.patches(session, "apply")


@nox.session(default=False)
def build_and_test(session: nox.Session) -> None:
    """Build SmolLM2-135M for RVV from the patched trees and check its answer under QEMU."""
    trees, of_lab = face.workshop(session, "crosslab", "build-and-test")
    of_lab = ["--origin", str(face.APPLIED), *of_lab]
    face.run(session, "crosslab", "build-and-test", *trees.arguments(), *of_lab)


@nox.session(default=False)
def tests(session: nox.Session) -> None:
    """Run every test; what this machine cannot run is skipped with its reason."""
    trees, of_pytest = face.workshop(session, "pytest")
    face.run(session, "crosslab", "prepare", "--tests")
    face.install(session, "cost", "browser")
    face.run(session, "pytest", *of_pytest, FORKPATCH_TREES=str(trees.root))


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Count what each step from upstream to ours costs, in guest instructions."""
    trees, of_lab = face.workshop(session, "crosslab", "bench")
    face.run(session, "crosslab", "bench", *face.variants(session, trees), *of_lab)


@nox.session(default=False)
def host_bench(session: nox.Session) -> None:
    """Time ours against upstream's on this machine, with one thread and with two."""
    trees, of_lab = face.workshop(session, "crosslab", "host-bench")
    face.run(session, "crosslab", "host-bench", *face.pristine(session, trees), *of_lab)


@nox.session(default=False)
def package(session: nox.Session) -> None:
    """Put the finished models of dist/ into tarballs, the same bytes each time."""
    face.install(session, "crosslab")
    face.run(session, "crosslab", "package", *session.posargs)


@nox.session(default=False)
def verify(session: nox.Session) -> None:
    """Check a tarball: every file against its manifest, its bill of materials, its paths."""
    face.install(session, "crosslab")
    face.run(session, "crosslab", "verify", *session.posargs)


@nox.session(default=False)
def reproduce(session: nox.Session) -> None:
    """Build the artefact twice, where everything that must not matter differs; compare."""
    face.install(session, "forkpatch")
    trees = face.apply(session, [])
    face.lab(session, trees)
    face.run(session, "reproduce", *session.posargs)


@nox.session(default=False)
def zoo(session: nox.Session) -> None:
    """Compile a small model of every family for RVV, run it and check its answer."""
    trees, of_lab = face.workshop(session, "crosslab", "zoo")
    if "mlc-llm" in trees.paths:
        face.install(session, "zoo", release=trees.release)
        plain = face.variant(session, trees, "tvm", "mended", *ladder.MENDED)
        of_lab = ["--plain-tree", str(plain), *of_lab]
    face.run(session, "crosslab", "zoo", *trees.arguments(), *of_lab)


@nox.session(default=False)
def cost(session: nox.Session) -> None:
    """Estimate what a model or a GEMM would cost on an accelerator."""
    face.estimate(session)


@nox.session(default=False)
def report(session: nox.Session) -> None:
    """Make one HTML page of all results: out/report.html; what is missing says what makes it."""
    face.install(session, "forkpatch", "report")
    face.look(session)
    face.run(session, "report", *session.posargs)


@nox.session
def unit(session: nox.Session) -> None:
    """Run the tests that need neither network nor toolchain."""
    face.install(session, "forkpatch", "crosslab", "report", "test")
    face.run(
        session,
        "pytest",
        "tests/common",
        "tests/forkpatch",
        "tests/cost",
        "tests/report",
        *session.posargs,
    )


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """Search for input that breaks a reader: patches, locks, models, the runner's files."""
    face.install(session, "forkpatch", "crosslab", "test")
    face.install_where_offered(session, "led")
    face.run(session, "run", *session.posargs, PYTHONPATH=f"{face.SCRIPTS}:tests/fuzz")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style with ruff."""
    face.install(session, "lint")
    session.run("ruff", "check", ".", *session.posargs)
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types with mypy --strict."""
    face.install(session, "types", "forkpatch", "crosslab", "test")
    session.run("mypy", *session.posargs)


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Rewrite VERSIONS.lock from its sources; with -- --check, verify it."""
    face.install(session, "lock")
    face.patches(session, "lock")
    checking = "--check" in session.posargs
    face.run(session, "crosslab", "lock", *(["--check"] if checking else []))
    face.run(session, "pythonlock", "check" if checking else "refresh")


@nox.session(default=False)
def status(session: nox.Session) -> None:
    """Say which release is pinned and whether the trees are applied, stale or missing."""
    face.patches(session, "status")


@nox.session(default=False)
def check_patches(session: nox.Session) -> None:
    """Lint patches, series, overlays and recorded symbols; say how to mend each finding."""
    face.patches(session, "check")


@nox.session(default=False)
def edit_patches(session: nox.Session) -> None:
    """Open a patched tree as a git branch with one commit a patch."""
    face.patches(session, "edit")


@nox.session(default=False)
def export_patches(session: nox.Session) -> None:
    """Write the commits of an edited tree back to the series, byte for byte the same each time."""
    face.patches(session, "export")


@nox.session(default=False)
def rebase(session: nox.Session) -> None:
    """Move a series to another version of its upstream; stop at the first conflict."""
    face.patches(session, "rebase")


@nox.session(default=False)
def probe(session: nox.Session) -> None:
    """Map which patches apply to which upstream versions, and since which commit not."""
    given = any(option.startswith("--json") for option in session.posargs)
    face.patches(session, "probe", *([] if given else ["--json", "out/map.json"]))


@nox.session(default=False)
def watch(session: nox.Session) -> None:
    """Say which upstream versions are newer than the pinned ones."""
    face.patches(session, "watch")


@nox.session(default=False)
def graph(session: nox.Session) -> None:
    """Show which patch needs which."""
    face.patches(session, "graph")


@nox.session(default=False)
def necessity(session: nox.Session) -> None:
    """Leave out one patch at a time and see whether the test that it names notices."""
    _, of_verb = face.workshop(session, "forkpatch", "necessity")
    face.run(session, "forkpatch", "necessity", *of_verb)
