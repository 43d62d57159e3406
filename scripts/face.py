# SPDX-License-Identifier: Apache-2.0
"""What the nox sessions share: environments, options, and the road from patches to the lab."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tomllib
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import nox
import nox.command

import turn
from ladder import LADDER, on_release
from pythonpins import PIP_OPTIONS, RELEASE_GROUP, by_index, hashed_requirements, packages

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
WORK = ROOT / ".work"
APPLIED = WORK / "apply.json"
USER_MISTAKE = 2
ANSWER_SECONDS = 10
WORK_SUFFIX = ".work.json"
STUDIED = ("gpt2", "smollm2")  # models of the studies that docs/cost shows

# What of a session's options goes to `forkpatch apply`.
TREE_OPTIONS = (
    ("--release", "R", "the release (default: the lock's)"),
    ("--source", "NAME=wheel|git", "take the upstream from this source only"),
    ("--mirror", "NAME=PATH_OR_URL", "a git repository that has the upstream; remembered"),
    ("--require", "NAME", "fail when the optional upstream is missing"),
)


@dataclass(frozen=True)
class Trees:
    """The patched trees of one release, what was left out, and TVM's patches."""

    release: str
    root: Path
    paths: dict[str, Path] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    series: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """The options that hand these trees to the lab."""
        options = ["--project", str(ROOT), "--release", self.release]
        options += ["--tvm-tree", str(self.paths["tvm"])]
        if "mlc-llm" in self.paths:
            options += ["--mlc-tree", str(self.paths["mlc-llm"])]
        for name, why in self.missing.items():
            options += ["--without", f"{name}: {why}"]
        return options


def take_turn() -> None:
    """Keep runs in one checkout apart; listing the sessions need not wait."""
    if {"-l", "--list", "--list-sessions"} & set(sys.argv):
        return
    try:
        turn.take(ROOT)
    except OSError as error:
        print(f"nox: {error}; this folder has to be writable", file=sys.stderr)
        raise SystemExit(USER_MISTAKE) from None


def lock() -> dict[str, object]:
    """VERSIONS.lock as plain data."""
    return tomllib.loads((ROOT / "VERSIONS.lock").read_text(encoding="utf-8"))


def install(session: nox.Session, *groups: str, release: str = "") -> None:
    """Install dependency groups at their pinned versions; nothing when they are there already.

    Every file is checked against its pinned hash before pip opens it, those of dependencies
    too. The group ``tvm`` also brings the release's own packages: TVM's wheels.
    """
    pinned = lock()
    release = release or str(pinned["default-release"])
    try:
        parts = {
            index: hashed_requirements(pinned, names, release)
            for index, names in by_index(pinned, packages(pinned, groups, release), release).items()
        }
    except LookupError as error:
        session.error(str(error.args[0]))
    stamp = Path(session.virtualenv.location) / "installed"
    key = hashlib.sha256("".join(sorted(parts.values())).encode()).hexdigest()
    # An environment holds one release's TVM: what was installed for another is no longer there.
    mark = release if RELEASE_GROUP in groups else "any"
    done = stamp.read_text(encoding="utf-8").splitlines() if stamp.is_file() else []
    if f"{key} {mark}" in done:
        return
    # First what may be out of reach: whoever has to fetch it should hear of it at once.
    for index, wanted in sorted(parts.items(), key=lambda part: part[0] is None):
        _install_from(session, index, wanted)
    kept = [line for line in done if mark == "any" or line.endswith((" any", f" {mark}"))]
    stamp.write_text("".join(f"{line}\n" for line in [*kept, f"{key} {mark}"]), encoding="utf-8")


def install_where_offered(session: nox.Session, group: str) -> None:
    """Install a group that a session can go without: not every machine has wheels of it."""
    try:
        install(session, group)
    except nox.command.CommandFailed:
        session.warn(f"without {group}: pip has no pinned file for this machine, or cannot get it")


def _install_from(session: nox.Session, index: str | None, wanted: str) -> None:
    """Install from an index, or from pip's own sources where it does not answer."""
    listed = _write(session, "requirements", wanted)
    silence = None if index is None else _silence_of(index)
    where = [f"--index-url={index}"] if index and silence is None else []
    try:
        # Every file has to have a pinned hash, whichever source it comes from.
        session.install("--quiet", *PIP_OPTIONS, *where, "-r", listed)
    except nox.command.CommandFailed:
        if silence is None:
            raise
        names = " ".join(line.partition(" ")[0] for line in wanted.splitlines())
        session.error(
            f"{names} is at {index}, which does not answer ({silence}), and pip has no other "
            f"source of it. Where it answers: pip download --no-deps -d FOLDER "
            f"--index-url={index} {names}; then here: PIP_FIND_LINKS=FOLDER nox -s {session.name}"
        )


def _silence_of(index: str) -> str | None:
    """Why an index does not answer, within seconds where pip would try for minutes."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{index}/", method="HEAD"), timeout=ANSWER_SECONDS
        ):
            return None
    except urllib.error.HTTPError:
        return None  # it answers, if only that it will not list everything
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def _write(session: nox.Session, name: str, text: str) -> str:
    path = Path(session.create_tmp()) / f"{name}.txt"
    path.write_text(text, encoding="utf-8")
    return str(path)


def run(session: nox.Session, module: str, *arguments: str, **environment: str) -> None:
    """Run a module of ours; its exit code 2, the user's mistake, becomes nox's own.

    Raises:
        SystemExit: with 2, after the module has said what is wrong.
        nox.command.CommandFailed: it failed otherwise; nox makes that 1.
    """
    try:
        session.run("python", "-m", module, *arguments, env=_environment(environment))
    except nox.command.CommandFailed as error:
        if error.return_code == USER_MISTAKE:
            raise SystemExit(USER_MISTAKE) from None
        raise


def _environment(extra: dict[str, str]) -> dict[str, str]:
    return {"PYTHONPATH": str(SCRIPTS), "PYTHONNOUSERSITE": "1", **extra}


def patches(session: nox.Session, verb: str, *options: str) -> None:
    """One verb of the patch engine, with these options and the session's."""
    install(session, "forkpatch")
    run(session, "forkpatch", verb, *options, *session.posargs)


def look(session: nox.Session) -> None:
    """Write down for the report how trees and symbols stand; a drift is shown there."""
    out = ROOT / "out"
    out.mkdir(exist_ok=True)
    for verb, *options in (("status",), ("symbols", "--check")):
        words = ("forkpatch", verb, *options, "--json", str(out / f"{verb}.json"))
        codes = [0, 1, USER_MISTAKE]
        session.run("python", "-m", *words, env=_environment({}), success_codes=codes, silent=True)


def split(session: nox.Session, *inner: str) -> tuple[list[str], list[str]]:
    """Part a session's options into those about trees and those of the command it ends in.

    Args:
        session: with ``--help`` among its options, both halves are explained and nox ends.
        inner: module and verb of the command.

    Raises:
        SystemExit: with 0, after ``--help``.
    """
    parser = argparse.ArgumentParser(
        prog=f"nox -s {session.name} --",
        description="Options of the patched trees come first:",
        add_help=False,
        allow_abbrev=False,
    )
    for option, metavar, text in TREE_OPTIONS:
        parser.add_argument(option, action="append", default=[], metavar=metavar, help=text)
    parser.add_argument("--offline", action="store_true", help="ask no index and no server")
    parser.add_argument("-h", "--help", action="store_true", help="this text")
    known, rest = parser.parse_known_args(session.posargs)
    if known.help:
        parser.print_help()
        print(f"\nAnd the options of {' '.join(inner)}, those about trees aside:\n", flush=True)
        install(session, "crosslab", "forkpatch", "test")
        run(session, *inner, "--help")
        raise SystemExit(0)
    trees = ["--offline"] if known.offline else []
    for option, _, _ in TREE_OPTIONS:
        for value in getattr(known, option.removeprefix("--")):
            trees += [option, value]
    return trees, rest


def estimate(session: nox.Session) -> None:
    """Run the cost model; a model that is no work file is first made one by the lab."""
    of_trees, of_cost = split(session, "costmodel")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model")
    parser.add_argument("--study")
    parser.add_argument("--of", nargs="+")
    known, rest = parser.parse_known_args(of_cost)
    models = [known.model] if known.model else list(STUDIED) if known.study else []
    groups, release = ["crosslab", "cost"], ""
    work = known.of or [m for m in models if m.endswith(WORK_SUFFIX)]
    if models and not work:
        install(session, "forkpatch")
        trees = apply(session, of_trees)
        release = trees.release
        install(session, *groups, "tvm", release=release)
        work = [str(WORK / "workloads" / f"{Path(m).stem}{WORK_SUFFIX}") for m in models]
        for model, path in zip(models, work, strict=True):
            words = ("workload", model, "--output", path)
            run(session, "crosslab", *words, FORKPATCH_TREES=str(trees.root))
    else:
        install(session, *groups)
    if known.study:
        rest += ["--study", known.study, "--of", *work]
    elif known.model:
        rest += ["--model", *work]
    run(session, "costmodel", *rest)


def apply(session: nox.Session, options: list[str]) -> Trees:
    """Bring the patched trees up to date and say where they are."""
    WORK.mkdir(exist_ok=True)
    run(session, "forkpatch", "apply", "--json", str(APPLIED), *options)
    result = json.loads(APPLIED.read_text(encoding="utf-8"))
    there = {u["name"]: Path(u["path"]) for u in result["upstreams"] if u["state"] != "missing"}
    missing = {
        u["name"]: f"{', '.join(u['reason'].splitlines())}; {u['remedy']}"
        for u in result["upstreams"]
        if u["state"] == "missing"
    }
    series = next(u["patches"] for u in result["upstreams"] if u["name"] == "tvm")
    return Trees(result["release"], WORK / result["release"], there, missing, tuple(series))


def variants(session: nox.Session, trees: Trees) -> list[str]:
    """Make the trees of each step of the ladder; the options of ``crosslab bench`` for them."""
    options = ["--project", str(ROOT), "--tvm-tree", str(trees.paths["tvm"])]
    made: dict[tuple[str, tuple[str, ...]], Path]
    made = {(name, ()): path for name, path in trees.paths.items()}

    def tree(step: str, upstream: str, chosen: tuple[str, ...]) -> Path:
        if (upstream, chosen) not in made:
            made[upstream, chosen] = variant(session, trees, upstream, step, *chosen)
        return made[upstream, chosen]

    for step in LADDER:
        mlc = ""
        if step.mlc is not None and "mlc-llm" in trees.paths:
            mlc = f",mlc={tree(step.name, 'mlc-llm', step.mlc)}"
        name = f"{step.name}={tree(step.name, 'tvm', on_release(step.tvm, trees.series))}"
        options += ["--variant", f"{name}{mlc}{step.switches}"]
    return options


def variant(session: nox.Session, trees: Trees, upstream: str, name: str, *chosen: str) -> Path:
    """Make a tree with other patches than the release has; ``--pristine``: with none."""
    tree = WORK / "variants" / f"{upstream}-{name}"
    shutil.rmtree(tree, ignore_errors=True)
    arguments = ["--release", trees.release, "--offline", "--output", str(tree)]
    run(session, "forkpatch", "tree", upstream, *chosen, *arguments)
    return tree


def pristine(session: nox.Session, trees: Trees) -> list[str]:
    """Make TVM's tree without patches; the options of ``crosslab host-bench`` for both trees."""
    upstream = variant(session, trees, "tvm", "upstream", "--pristine")
    options = ["--project", str(ROOT), "--tvm-tree", str(trees.paths["tvm"])]
    return [*options, "--upstream-tree", str(upstream)]


def workshop(session: nox.Session, *inner: str) -> tuple[Trees, list[str]]:
    """Get trees and lab ready for the command that the session ends in.

    Args:
        session: whose options choose the trees.
        inner: module and verb of the command.

    Returns:
        the trees, and what of the options is for the command.
    """
    of_trees, of_command = split(session, *inner)
    install(session, "forkpatch")
    trees = apply(session, of_trees)
    lab(session, trees)
    return trees, of_command


def lab(session: nox.Session, trees: Trees) -> None:
    """Install what the lab needs on these trees: compilers from the system, packages from pip."""
    groups = ["crosslab", "forkpatch", "test", "tvm"]
    if "mlc-llm" in trees.paths:
        groups.append("mlc")
    install(session, *groups, release=trees.release)
    run(session, "crosslab", "prepare")
