# SPDX-License-Identifier: Apache-2.0
"""The main part of ``scripts/bootstrap.py``, after the check of Python. Standard library only."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "packages" / "groundwork" / "src"))  # before any package is installed

from groundwork import apt, offline  # noqa: E402
from groundwork.command_line import nearest  # noqa: E402
from groundwork.errors import (  # noqa: E402
    FREE_SPACE,
    GO_ON,
    INTERRUPTED,
    USER_MISTAKE,
    CommandError,
)
from groundwork.files import full_folder  # noqa: E402
from sessions import PIP_OPTIONS, checkout_lock, options  # noqa: E402

HOME = ROOT / ".bootstrap"
PINNED = ROOT / "scripts" / "bootstrap.txt"
#: The first pip with the option --python.
OLDEST_PIP = (22, 3)
USAGE = "usage: python3 scripts/bootstrap.py SESSION [SESSION ...] [-- OPTIONS]"
LIST = "python3 scripts/bootstrap.py lists the sessions"


def main(arguments: list[str]) -> int:
    """Replace this process by nox with the named sessions, or list them; return after a failure."""
    if {"-h", "--help"} & set(_split(arguments)[0]):
        print(f"{USAGE}\n  {LIST}; SESSION -- --help lists a session's options")
        return 0
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _fail(GO_ON, code=INTERRUPTED)
    except CommandError as error:
        return _fail(str(error), code=error.exit_code)


def _run(arguments: list[str]) -> int:
    """Check the arguments and the environment, then become nox."""
    sessions, separator, words = _split(arguments)
    if any(name.startswith("-") for name in sessions):
        return _fail(f"{USAGE}\n  options go after --, e.g. build_and_test -- --vlen 512")
    if unknown := [name for name in sessions if name not in _known()]:
        near = nearest(unknown[0].replace("-", "_"), _known())
        hint = f"did you mean: python3 scripts/bootstrap.py {near}" if near else LIST
        return _fail(f"there is no session {unknown[0]}\n  {hint}")
    offline.heed(arguments)
    for name in sessions:
        if code := options.first_look(name, words):
            return code
    if options.HELP & set(words) and options.COMMANDS.keys() >= set(sessions):
        return 0  # the first look printed the help
    os.environ[options.LOOKED] = "1"
    if sessions:
        if shutil.which("git") is None and not _install_git():
            return _fail(f"git is missing: apt-get failed; {apt.command_line(['git'])}")
        checkout_lock.acquire(ROOT, inheritable=True)
    nox = _environment()
    chosen = ["-s", *sessions] if sessions else ["-l"]
    command = [str(nox), "-f", str(ROOT / "noxfile.py"), *chosen, *separator, *words]
    return _become(command)


def _known() -> list[str]:
    """Return the names of the sessions, without nox, which is not installed yet."""
    body = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8")).body
    return [node.name for node in body if isinstance(node, ast.FunctionDef) and node.decorator_list]


def _become(command: list[str]) -> NoReturn:
    """Replace this process by nox, so that Ctrl-C and kill reach nox, which ends its children."""
    os.execv(command[0], command)


def _split(arguments: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the sessions, the separator ``--`` and the options of the arguments."""
    if "--" not in arguments:
        return arguments, [], []
    middle = arguments.index("--")
    return arguments[:middle], ["--"], arguments[middle + 1 :]


def _environment() -> Path:
    """Return nox of a virtual environment with the pinned packages; make it when they change."""
    requirements, stamp = PINNED.read_text(encoding="utf-8"), HOME / "requirements"
    bin_dir = HOME / ("Scripts" if sys.platform == "win32" else "bin")
    # An environment that was moved or copied has the paths of its first place.
    wanted = f"{requirements}on {sys.version}\nin {HOME}"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return bin_dir / "nox"
    nox = next(line.split()[0] for line in requirements.splitlines() if line.startswith("nox=="))
    print(f"bootstrap: installing {nox} into {HOME.name}/", file=sys.stderr)
    try:
        stamp.unlink(missing_ok=True)
        venv.create(HOME, with_pip=False, clear=True)
    except OSError as error:
        raise checkout_lock.refused(ROOT, error) from error
    pip = [*_pip(bin_dir / "python"), "install", "--quiet", *PIP_OPTIONS, "-r", str(PINNED)]
    done = subprocess.run(pip, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    if done.returncode:
        raise _not_installed(nox, done.stderr)
    if not (bin_dir / "nox").is_file():
        raise CommandError("packages are pinned for Linux on x86-64 and AArch64 alone")
    stamp.write_text(wanted, encoding="utf-8")
    return bin_dir / "nox"


def _pip(python: Path) -> list[str]:
    """Return the command of a pip that installs for ``python``.

    This Python's own pip comes first: Debian's Python lacks ensurepip without python3-venv.
    Otherwise ensurepip installs a pip into the new environment.

    Raises:
        CommandError: neither pip nor ensurepip is available.
    """
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        version = "0"
    if tuple(map(int, re.findall(r"\d+", version)[:2])) >= OLDEST_PIP:
        return [sys.executable, "-m", "pip", "--python", str(python)]
    ensure = [str(python), "-m", "ensurepip", "--default-pip"]
    if (
        importlib.util.find_spec("ensurepip") is None
        or subprocess.run(ensure, capture_output=True, check=False).returncode
    ):
        old = "older than 22.3" if version != "0" else "missing"
        raise CommandError(
            f"pip of {sys.executable} is {old}",
            remedy=apt.command_line(["python3-pip", "python3-venv"]),
            exit_code=USER_MISTAKE,
        )
    return [str(python), "-m", "pip"]


def _not_installed(nox: str, output: str) -> CommandError:
    """Return the error for a failure of pip."""
    what = f"pip cannot install {nox} into {HOME}"
    if offline.offline():
        what = f"{HOME} does not have {nox} yet, and --offline downloads nothing"
        return CommandError(what, remedy=offline.REMEDY, exit_code=USER_MISTAKE)
    if full := full_folder(HOME):
        what = f"{what}: no space is left on the disk of {full}"
        return CommandError(what, remedy=FREE_SPACE, exit_code=USER_MISTAKE)
    last = [line.strip() for line in output.splitlines() if line.startswith("ERROR")][-1:]
    what += f": {last[0].removeprefix('ERROR: ')}" if last else ""
    remedy = "check the network and pip's index: python3 -m pip config list; then run it again"
    return CommandError(what, remedy=remedy)


def _install_git() -> bool:
    """Install git, which holds the patched trees; return True if that succeeds."""
    print("bootstrap: git is missing and is installed now", file=sys.stderr)
    return apt.update() and apt.install(["git"])


def _fail(message: str, code: int = USER_MISTAKE) -> int:
    """Print a message to standard error; return the exit code."""
    print(f"bootstrap: {message}", file=sys.stderr)
    return code
