# SPDX-License-Identifier: Apache-2.0
"""Virtual environments of the sessions: pinned packages, and running our modules in them."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import nox
import nox.command

from groundwork import offline
from groundwork.errors import FREE_SPACE, USER_MISTAKE, CommandError
from groundwork.files import full_folder
from groundwork.hashing import sha256_of
from sessions import PIP_OPTIONS, checkout_lock, options
from sessions.package_sources import pip_settings, uv_sources
from sessions.requirements import (
    ROOT,
    TVM_GROUP,
    Member,
    members,
    requirements,
    uv_command,
    versions_lock,
)

# PyPI has torch with CUDA alone, several GB; uv cannot lock what is on an index of its own.
TORCH = Path(__file__).with_name("torch-cpu.txt")
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
ANSWER_SECONDS = 10
ANY = "any"
GROUNDWORK = "groundwork"
#: Options of pytest that name a file or folder to write.
OUTPUTS = ("--junitxml", "--junit-xml", "--log-file", "--basetemp")
NATIVE = {".c", ".cc", ".cpp", ".h"}
#: Names of all packages of the workspace.
PACKAGES = tuple(members())
PROJECT = "pyproject.toml"
#: File of an environment that lists what is installed; its first line has the environment's path.
STAMP = "installed"
PLACE = "in "
_looked = set[str]()


def lock_checkout() -> None:
    """Let runs in one checkout wait for each other; a list of the sessions does not wait."""
    own = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
    if {"-l", "--list", "--list-sessions"} & set(own):
        return
    offline.heed(sys.argv)
    try:
        checkout_lock.acquire(ROOT)
    except CommandError as error:
        print(f"nox: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    remove_moved()


def remove_moved() -> None:
    """Remove environments that were copied or moved: their programs name Python's first path."""
    for stamp in ROOT.glob(f".nox/*/{STAMP}"):
        first = stamp.read_text(encoding="utf-8").partition("\n")[0]
        if first.startswith(PLACE) and first != f"{PLACE}{stamp.parent.resolve()}":
            shutil.rmtree(stamp.parent)


def install(session: nox.Session, *names: str, release: str = "") -> None:
    """Install packages of the workspace and dependency groups, unless they are installed already.

    Every session begins with this, so that it first reads the session's options.

    All that they depend on is installed at pinned versions: every file is checked against its
    pinned hash before it is opened. The packages themselves are installed editable, from this
    checkout. The group ``tvm`` also installs the release's own packages: TVM's wheels.
    """
    first_look(session)
    release = release or str(versions_lock()["default-release"])
    try:
        wanted = requirements(names, release)
    except LookupError as error:
        session.error(str(error.args[0]))
    # An environment holds one release's TVM: what was installed for another is no longer there.
    mark = release if TVM_GROUP in names else ANY
    if not _is_installed(session, wanted, mark):
        _install_pinned(session, wanted, mark)
    packages = members()
    if own := [packages[name] for name in names if name in packages]:
        _install_editable(session, [packages[GROUNDWORK], *own])


def first_look(session: nox.Session) -> None:
    """Read the session's options before anything is installed, unless the bootstrap did.

    Raises:
        SystemExit: with 2 after a mistake, with 0 after --help.
    """
    if os.environ.get(options.LOOKED) or session.name in _looked:
        return
    _looked.add(session.name)
    words = session.posargs
    if code := options.first_look(session.name, words, session.invoked_from):
        raise SystemExit(code)
    if options.HELP & set(words) and session.name in options.COMMANDS:
        raise SystemExit(0)


def words_of(session: nox.Session) -> list[str]:
    """Return the options for the session's tool: all but ``--offline``, which is heeded before."""
    return [word for word in session.posargs if word != "--offline"]


def native_sources() -> list[str]:
    """Return the paths of the sources in C and C++, from the root of the checkout."""
    folders = (ROOT / name for name in ("kernels", "runner", "packages", "tests"))
    paths = (path for folder in folders for path in folder.rglob("*") if path.suffix in NATIVE)
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def _install_editable(session: nox.Session, packages: Sequence[Member]) -> None:
    """Install packages of this checkout, in place; uv builds them without the network."""
    stamps = {
        f"editable {one.name} {one.folder} {sha256_of(one.folder / PROJECT)}": one
        for one in packages
    }
    done = _stamp_lines(session)
    missing = {line: one for line, one in stamps.items() if f"{line} {ANY}" not in done}
    if not missing:
        return
    python = Path(session.virtualenv.location) / "bin" / "python"
    command = [*uv_command(), "pip", "install", "--quiet", "--no-config", "--offline", "--no-deps"]
    folders = [word for one in missing.values() for word in ("--editable", str(one.folder))]
    session.run(*command, f"--python={python}", *folders, external=True, silent=True)
    _write_stamp(session, [*done, *(f"{line} {ANY}" for line in missing)])


def install_torch(session: nox.Session, *, required: bool = True) -> None:
    """Install PyTorch without CUDA from its own index, else from pip's other sources.

    Args:
        session: whose environment gets it.
        required: end the session where it cannot be had; else only warn.
    """
    wanted = TORCH.read_text(encoding="utf-8")
    if _is_installed(session, wanted, ANY):
        return
    name = wanted.partition(" ")[0]
    silence = _silence_of(TORCH_INDEX)
    try:
        _install_pinned(session, wanted, ANY, "" if silence else TORCH_INDEX)
    except nox.command.CommandFailed:
        if not required:
            session.warn(f"without {name}: no index that answers has its pinned file")
            return
        if silence is None:
            raise
        session.error(
            f"{name} is at {TORCH_INDEX}, which does not answer ({silence}), and pip has no other "
            f"source of it. Where it answers: pip download --no-deps -d FOLDER "
            f"--index-url={TORCH_INDEX} {name}; then here: PIP_FIND_LINKS=FOLDER "
            f"nox -s {session.name}"
        )


def _is_installed(session: nox.Session, wanted: str, mark: str) -> bool:
    return _stamp_line(wanted, mark) in _stamp_lines(session)


def _install_pinned(session: nox.Session, wanted: str, mark: str, index: str = "") -> None:
    """Install pinned requirements, and record them for ``mark``: a release, or any."""
    listed = Path(session.create_tmp()) / "requirements.txt"
    listed.write_text(wanted, encoding="utf-8")
    done = _stamp_lines(session)
    kept = [line for line in done if mark == ANY or line.endswith((f" {ANY}", f" {mark}"))]
    # Of another lock, such as that of a newer commit, versions may have replaced those of a line.
    kept = [line for line in kept if line.startswith("editable ") or f" {_lock_id()} " in line]
    # Before uv begins: a run that is killed may have replaced the packages of the other lines.
    _write_stamp(session, kept)
    python = Path(session.virtualenv.location) / "bin" / "python"
    settings = pip_settings(python) | ({"index-url": index} if index else {})
    sources, variables = uv_sources(settings)
    command = [*uv_command(), "pip", "install", "--quiet", "--no-config", f"--python={python}"]
    try:
        session.run(
            *(*command, *PIP_OPTIONS, *sources, "-r", str(listed)), env=variables, external=True
        )
    except nox.command.CommandFailed:
        location = session.virtualenv.location
        if offline.offline():
            what, remedy = "packages are missing, and --offline downloads none", offline.REMEDY
        elif full := full_folder(Path(location)):
            what, remedy = f"no space is left on the disk of {full}", FREE_SPACE
        else:
            raise
        print(f"nox: {location}: {what}\n  {remedy}", file=sys.stderr)
        raise SystemExit(USER_MISTAKE) from None
    _write_stamp(session, [*kept, _stamp_line(wanted, mark)])


def _stamp(session: nox.Session) -> Path:
    return Path(session.virtualenv.location) / STAMP


def _write_stamp(session: nox.Session, lines: Sequence[str]) -> None:
    stamp = _stamp(session)
    kept = [
        f"{PLACE}{stamp.parent.resolve()}",
        *(line for line in lines if not line.startswith(PLACE)),
    ]
    stamp.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


def _stamp_lines(session: nox.Session) -> list[str]:
    stamp = _stamp(session)
    return stamp.read_text(encoding="utf-8").splitlines() if stamp.is_file() else []


def _stamp_line(wanted: str, mark: str) -> str:
    return f"{hashlib.sha256(wanted.encode()).hexdigest()} {_lock_id()} {mark}"


def _lock_id() -> str:
    """Return a hash of all pins."""
    files = (ROOT / "uv.lock", ROOT / "VERSIONS.lock", TORCH)
    pins = b"\0".join(path.read_bytes() for path in files if path.is_file())
    return hashlib.sha256(pins).hexdigest()[:16]


def _silence_of(index: str) -> str | None:
    """Return why an index does not answer within seconds (pip tries for minutes), or None."""
    if offline.offline():
        return "--offline"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{index}/", method="HEAD"), timeout=ANSWER_SECONDS
        ):
            return None
    except urllib.error.HTTPError:
        return None  # it answers, if only that it will not list everything
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def _bytecode_variables() -> dict[str, str]:
    """Return variables that put compiled Python in a folder, if PYTHONDONTWRITEBYTECODE is set.

    Containers often set it; each of hundreds of processes would compile all of TVM's Python again.
    """
    if not os.environ.get("PYTHONDONTWRITEBYTECODE"):
        return {}
    folder = os.environ.get("PYTHONPYCACHEPREFIX") or str(ROOT / ".work" / "pycache")
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}


def run_pytest(session: nox.Session, *words: str, **environment: Any) -> None:
    """Run pytest at the project's root; paths in words are relative to nox's starting folder."""
    folder, named = Path(session.invoked_from), list(words)
    if folder != ROOT:
        before = ("", *words)
        named = [_from(folder, word, of) for word, of in zip(words, before, strict=False)]
    run_module(session, "pytest", *named, folder=ROOT, **environment)


def _from(folder: Path, word: str, before: str) -> str:
    """Return a word of pytest's with its path, if it has one, in a folder.

    Args:
        folder: where the word was typed.
        word: a path, a test, or an option with or without a value.
        before: the word before it, whose value it may be.
    """
    option, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
    path, colons, test = value.partition("::")
    is_path = (option or before) in OUTPUTS or (path and (folder / path).exists())
    if before in ("-k", "-m") or value.startswith("-") or not is_path:
        return word
    return f"{option}{equals}{folder / path}{colons}{test}"


def run_module(
    session: nox.Session,
    module: str,
    *arguments: str,
    success_codes: tuple[int, ...] = (0,),
    silent: bool = False,
    folder: Path | None = None,
    **environment: str,
) -> None:
    """Run a module of this project where nox was started: relative paths are the caller's.

    Its exit code 2 (a user's mistake) becomes nox's own.

    Args:
        session: whose environment has what the module needs.
        module: its dotted name.
        arguments: its options.
        success_codes: exit codes that are no failure.
        silent: keep its output to itself unless it fails.
        folder: where it runs; None: where nox was started.
        environment: variables of its environment.

    Raises:
        SystemExit: with 2, after the module has said what is wrong.
        nox.command.CommandFailed: it failed otherwise; nox makes that 1.
    """
    variables = {"PYTHONPATH": str(ROOT / "scripts"), "PYTHONNOUSERSITE": "1"}
    variables |= {
        "FORKPATCH_COMMAND": "nox -s patches --"
    }  # the words that its messages tell users to type
    variables |= _bytecode_variables() | environment
    command = ("python", "-m", module, *arguments)
    try:
        with chdir(folder or session.invoked_from):
            session.run(*command, env=variables, success_codes=success_codes, silent=silent)
    except nox.command.CommandFailed as error:
        if error.return_code == USER_MISTAKE:
            raise SystemExit(USER_MISTAKE) from None
        raise
