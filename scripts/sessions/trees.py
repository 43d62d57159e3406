# SPDX-License-Identifier: Apache-2.0
"""Patched trees of the sessions: options, patches, variants, and the lab on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nox

from sessions.environments import PACKAGES, install, install_torch, run_module, words_of
from sessions.ladder import LADDER, MENDED, on_release
from sessions.options import TREE_OPTIONS, tree_parser
from sessions.requirements import ROOT

WORK = ROOT / ".work"
APPLIED = WORK / "apply.json"
# What every command of the lab imports.
LAB = ("crosslab", "forkpatch", "tvm")


@dataclass(frozen=True)
class Trees:
    """The patched trees of one release, and TVM's patches."""

    release: str
    root: Path
    paths: dict[str, Path] = field(default_factory=dict)
    series: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """The lab's options: project, release, report of the patches, and :meth:`trees`."""
        about = ["--project", str(ROOT), "--release", self.release, "--applied", str(APPLIED)]
        return [*about, *self.trees()]

    def trees(self) -> list[str]:
        """The options for the trees alone."""
        options = ["--tvm-tree", str(self.paths["tvm"])]
        if "mlc-llm" in self.paths:
            options += ["--mlc-tree", str(self.paths["mlc-llm"])]
        return options


def split_options(session: nox.Session, *inner: str) -> tuple[list[str], list[str], list[str]]:
    """Split a session's options into those about trees and those of its command.

    Args:
        session: with ``--help`` among its options, both halves are explained and nox ends.
        inner: module and verb of the command.

    Returns:
        options about trees, companion packages to install, options of the command.

    Raises:
        SystemExit: after ``--help``.
    """
    known, rest = tree_parser(session.name).parse_known_args(session.posargs)
    if known.help:  # only of tests: the first look prints the options of other commands
        tree_parser(session.name).print_help()
        print(f"\nThen the options of {' '.join(inner)}:\n", flush=True)
        install(session, *LAB, "test")
        run_module(session, *inner, "--help")
        raise SystemExit(0)
    trees = ["--offline"] if known.offline else []
    for option, _, _ in TREE_OPTIONS:
        for value in getattr(known, option.removeprefix("--")):
            trees += [option, value]
    return trees, vars(known)["with"], rest


def run_engine(session: nox.Session, *words: str, **more: Any) -> None:
    """Run forkpatch on this checkout; more as for :func:`run_module`."""
    run_module(session, "forkpatch", "--root", str(ROOT), *words, **more)


def apply(session: nox.Session, options: list[str]) -> Trees:
    """Bring the patched trees up to date and return their folders."""
    WORK.mkdir(exist_ok=True)
    run_engine(session, "apply", "--json", str(APPLIED), *options)
    result = json.loads(APPLIED.read_text(encoding="utf-8"))
    there = {u["name"]: Path(u["path"]) for u in result["upstreams"] if u["state"] != "missing"}
    series = next(u["patches"] for u in result["upstreams"] if u["name"] == "tvm")
    return Trees(result["release"], WORK / result["release"], there, tuple(series))


def variants(session: nox.Session, trees: Trees) -> list[str]:
    """Make the trees of the ladder's steps; return the options of ``crosslab bench`` for them."""
    options = ["--project", str(ROOT), "--tvm-tree", str(trees.paths["tvm"])]
    made: dict[tuple[str, ...], Path] = {(): trees.paths["tvm"]}
    mlc = f",mlc={trees.paths['mlc-llm']}" if "mlc-llm" in trees.paths else ""
    for step in LADDER:
        chosen = on_release(step.tvm, trees.series)
        if chosen not in made:
            made[chosen] = variant(session, trees, "tvm", step.name, *chosen)
        options += ["--variant", f"{step.name}={made[chosen]}{mlc}{step.switches}"]
    return options


def variant(session: nox.Session, trees: Trees, upstream: str, name: str, *chosen: str) -> Path:
    """Make a tree of an upstream with other patches than the release's; return its folder.

    ``chosen`` has options of ``forkpatch tree``, such as ``--pristine``: without patches.
    """
    tree = WORK / "variants" / f"{upstream}-{name}"
    shutil.rmtree(tree, ignore_errors=True)
    arguments = ["--release", trees.release, "--offline", "--output", str(tree)]
    run_engine(session, "tree", upstream, *chosen, *arguments)
    return tree


def pristine(session: nox.Session, trees: Trees) -> list[str]:
    """Make TVM's unpatched tree; return the options of ``crosslab host-bench`` for both trees."""
    upstream = variant(session, trees, "tvm", "upstream", "--pristine")
    options = ["--project", str(ROOT), "--tvm-tree", str(trees.paths["tvm"])]
    return [*options, "--upstream-tree", str(upstream)]


def prepare(session: nox.Session, *inner: str) -> tuple[Trees, list[str]]:
    """Apply the patches and install the lab for the session's command.

    Args:
        session: its options choose the trees.
        inner: module and verb of the command.

    Returns:
        the trees, and the options that are left for the command.
    """
    tree_options, companions, command_options = split_options(session, *inner)
    install(session, "forkpatch")
    trees = apply(session, tree_options)
    install_lab(session, trees)
    if companions:
        install(session, *companions, release=trees.release)
    return trees, command_options


def install_lab(session: nox.Session, trees: Trees) -> None:
    """Install the lab's needs on these trees: compilers from the system, packages from pip."""
    mlc = ["mlc"] if "mlc-llm" in trees.paths else []
    install(session, *LAB, *mlc, release=trees.release)
    run_module(session, "crosslab", "prepare")


def install_for_tests(session: nox.Session, trees: Trees, options: Sequence[str]) -> None:
    """Install the tools of the tests that options of pytest select.

    Tests that compare with torch are skipped without it.
    """
    groups = ("nox", "test", "browser", "clients", "scalesim")
    install(session, *groups, *PACKAGES, release=trees.release)
    root = str(trees.root)  # collecting a test may import the release's tree
    run_module(session, "crosslab", "prepare", "--tests", *options, FORKPATCH_TREES=root)
    install_torch_packages(session, required=False)


def install_torch_packages(session: nox.Session, *, required: bool = True) -> None:
    """Install PyTorch, and the packages that it and the zoo's reference need.

    Args:
        session: whose environment gets them.
        required: end the session where PyTorch cannot be had; else only warn.
    """
    survey = ["survey"] if "survey" in session.posargs else []
    install(session, "zoo", "onnx", "pytorch-road", "accelerator-study", *survey)
    install_torch(session, required=required)


def prepare_zoo(session: nox.Session, trees: Trees) -> list[str]:
    """Install the reference, make a tree without kernels; return options ([] without MLC-LLM)."""
    if "mlc-llm" not in trees.paths:
        return []
    install_torch_packages(session)
    mended = on_release(MENDED, trees.series)
    return ["--plain-tree", str(variant(session, trees, "tvm", "mended", *mended))]


def package_words(session: nox.Session) -> list[str]:
    """The options of ``crosslab package``, with the project unless it only verifies."""
    words = words_of(session)
    return [*words, *([] if words[:1] == ["verify"] else ["--project", str(ROOT)])]
