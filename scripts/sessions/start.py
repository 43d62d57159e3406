# SPDX-License-Identifier: Apache-2.0
"""From a machine with nothing but python3 and pip to a running nox session.

``python3 scripts/bootstrap.py SESSION [-- OPTIONS]`` is ``nox -s SESSION -- OPTIONS`` with the
nox and uv that ``bootstrap.txt`` pins, in an environment of their own (``.bootstrap/``).
Standard library only.
"""

from __future__ import annotations

import ast
import difflib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "packages" / "groundwork" / "src"))  # before anything is installed

from groundwork import apt  # noqa: E402
from groundwork.errors import INTERRUPTED  # noqa: E402
from sessions import PIP_OPTIONS, checkout_lock  # noqa: E402

HOME = ROOT / ".bootstrap"
PINNED = ROOT / "scripts" / "bootstrap.txt"
OLDEST = (3, 11)
USAGE = "usage: python3 scripts/bootstrap.py SESSION [SESSION ...] [-- OPTIONS]"
LIST = "python3 scripts/bootstrap.py lists the sessions"


def main(arguments: list[str]) -> int:
    """Become nox with the named sessions; without one, it lists them. Returns only on failure."""
    if {"-h", "--help"} & set(_split(arguments)[0]):
        print(f"{USAGE}\n  {LIST}; SESSION -- --help lists a session's options")
        return 0
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _fail("interrupted", code=INTERRUPTED)


def _run(arguments: list[str]) -> int:
    if sys.version_info < OLDEST:
        return _fail(f"Python {OLDEST[0]}.{OLDEST[1]} or newer is needed; this is {sys.version}")
    sessions, separator, options = _split(arguments)
    if any(name.startswith("-") for name in sessions):
        return _fail(f"{USAGE}\n  options go after --, e.g. build_and_test -- --vlen 512")
    if unknown := [name for name in sessions if name not in _known()]:
        near = difflib.get_close_matches(unknown[0].replace("-", "_"), _known(), n=1)
        hint = f"did you mean: python3 scripts/bootstrap.py {near[0]}" if near else LIST
        return _fail(f"there is no session {unknown[0]}\n  {hint}")
    if sessions and shutil.which("git") is None and (why := _install_git()):
        return _fail(f"git is missing: {why}; {apt.command_line(['git'])}")
    try:
        if sessions:
            checkout_lock.acquire(ROOT, inheritable=True)
        nox = _environment()
    except (OSError, subprocess.CalledProcessError, LookupError) as error:
        return _fail(f"cannot make the private environment in {HOME}: {error}", code=1)
    chosen = ["-s", *sessions] if sessions else ["-l"]
    command = [str(nox), "-f", str(ROOT / "noxfile.py"), *chosen, *separator, *options]
    return _become(command)


def _known() -> list[str]:
    """Names of the sessions, without nox, which is not installed yet."""
    body = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8")).body
    return [one.name for one in body if isinstance(one, ast.FunctionDef) and one.decorator_list]


def _become(command: list[str]) -> NoReturn:
    """Let nox take this process's place: Ctrl-C and kill then reach what ends its children."""
    os.chdir(ROOT)
    os.execv(command[0], command)


def _split(arguments: list[str]) -> tuple[list[str], list[str], list[str]]:
    if "--" not in arguments:
        return arguments, [], []
    middle = arguments.index("--")
    return arguments[:middle], ["--"], arguments[middle + 1 :]


def _environment() -> Path:
    """A virtual environment with the pinned packages; made once, again when they change."""
    requirements, stamp = PINNED.read_text(encoding="utf-8"), HOME / "requirements"
    bin_dir = HOME / ("Scripts" if sys.platform == "win32" else "bin")
    wanted = f"{requirements}on {sys.version}"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return bin_dir / "nox"
    nox = next(line.split()[0] for line in requirements.splitlines() if line.startswith("nox=="))
    print(f"bootstrap: installing {nox} into {HOME.name}/", file=sys.stderr)
    stamp.unlink(missing_ok=True)
    venv.create(HOME, with_pip=False, clear=True)
    # The caller's pip fills it: Debian's python3 has no ensurepip unless python3-venv is there.
    pip = [sys.executable, "-m", "pip", "--python", str(bin_dir / "python"), "install", "--quiet"]
    subprocess.run([*pip, *PIP_OPTIONS, "-r", str(PINNED)], check=True)
    if not (bin_dir / "nox").is_file():
        raise LookupError("packages are pinned for Linux on x86-64 and AArch64 alone")
    stamp.write_text(wanted, encoding="utf-8")
    return bin_dir / "nox"


def _install_git() -> str:
    """Install git, which holds the patched trees; the reason where that fails, else nothing."""
    if why := apt.refusal():
        return why
    print("bootstrap: git is missing and is installed now", file=sys.stderr)
    return "" if apt.update() and apt.install(["git"]) else "apt-get failed"


def _fail(message: str, code: int = 2) -> int:
    print(f"bootstrap: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
