# SPDX-License-Identifier: Apache-2.0
"""From a machine with nothing but python3 and pip to a running nox session.

``python3 scripts/bootstrap.py SESSION [-- OPTIONS]`` is ``nox -s SESSION -- OPTIONS`` with the
nox that VERSIONS.lock pins, in an environment of its own (``.bootstrap/``). Standard library only.
"""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".bootstrap"
OLDEST = (3, 11)
USAGE = "usage: python3 scripts/bootstrap.py SESSION [SESSION ...] [-- OPTIONS]"


def main(arguments: list[str]) -> int:
    """Run the named nox sessions; without one, list them. Returns nox's exit code."""
    if sys.version_info < OLDEST:
        return _fail(f"Python {OLDEST[0]}.{OLDEST[1]} or newer is needed; this is {sys.version}")
    sessions, separator, options = _split(arguments)
    if any(name.startswith("-") for name in sessions):
        return _fail(f"{USAGE}\n  options go after --, e.g. build_and_test -- --vlen 512")
    try:
        nox = _environment(_pinned("nox"))
    except (OSError, subprocess.CalledProcessError, LookupError) as error:
        return _fail(f"cannot make the private environment in {HOME}: {error}", code=1)
    chosen = ["-s", *sessions] if sessions else ["-l"]
    command = [str(nox), "-f", str(ROOT / "noxfile.py"), *chosen, *separator, *options]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _split(arguments: list[str]) -> tuple[list[str], list[str], list[str]]:
    if "--" not in arguments:
        return arguments, [], []
    middle = arguments.index("--")
    return arguments[:middle], ["--"], arguments[middle + 1 :]


def _pinned(package: str) -> str:
    """The version of a Python package in VERSIONS.lock (a plain ``name = "version"`` line)."""
    text = (ROOT / "VERSIONS.lock").read_text(encoding="utf-8")
    found = re.search(rf'^{re.escape(package)} = "([^"]+)"$', text, re.MULTILINE)
    if not found:
        raise LookupError(f"VERSIONS.lock does not pin {package}")
    return f"{package}=={found[1]}"


def _environment(requirement: str) -> Path:
    """A virtual environment with exactly this requirement; made once, again when it changes."""
    stamp = HOME / "requirement"
    bin_dir = HOME / ("Scripts" if sys.platform == "win32" else "bin")
    wanted = f"{requirement} on {sys.version}"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return bin_dir / "nox"
    print(f"bootstrap: installing {requirement} into {HOME.name}/", file=sys.stderr)
    venv.create(HOME, with_pip=False, clear=True)
    # The caller's pip fills it: Debian's python3 has no ensurepip unless python3-venv is there.
    pip = [sys.executable, "-m", "pip", "--python", str(bin_dir / "python")]
    subprocess.run([*pip, "install", "--quiet", requirement], check=True)
    stamp.write_text(wanted, encoding="utf-8")
    return bin_dir / "nox"


def _fail(message: str, code: int = 2) -> int:
    print(f"bootstrap: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
