# SPDX-License-Identifier: Apache-2.0
"""System packages of Debian and its derivatives, installed with apt-get if permitted."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from groundwork.offline import offline

_ENVIRONMENT = ("env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
# Apt's download client, which uses the proxies and certificates of this machine's apt.
_HELPER = "/usr/lib/apt/apt-helper"
_INSTALL = ("install", "-y", "--no-install-recommends")


def refusal() -> str:
    """Return the reason why this process cannot install packages; "" if it can."""
    if shutil.which("apt-get") is None:
        return "there is no apt-get here"
    if offline():
        return "--offline installs nothing"
    if _as_root() is not None:
        return ""
    return (
        f"this is not root, and {'sudo asks for a password' if _has_sudo() else 'there is no sudo'}"
    )


def command_line(packages: Sequence[str]) -> str:
    """Return advice for a user: the apt-get command to type, or packages if apt-get is missing."""
    names = " ".join(packages)
    if shutil.which("apt-get") is None:
        return f"install these packages of Debian: {names}"
    as_root = os.geteuid() == 0
    sudo = "sudo " if _has_sudo() and not as_root else ""
    who = "type" if sudo or as_root else "type as root"
    return f"{who}: {sudo}apt-get update && {sudo}apt-get install {names}"


def update() -> bool:
    """Fetch apt's package lists; return False if apt-get fails or may not run."""
    return _apt("update")


def knows(package: str) -> bool:
    """Return True if apt's lists contain the package."""
    return bool(_output("apt-cache", "show", "--no-all-versions", package))


def archives() -> list[str]:
    """Return the addresses of the archives in apt's sources, Debian's archives first.

    An archive has the packages of every supported release, not only of this machine's. Apt prints
    the addresses without root and without its lists.
    """
    printed = _output("apt-get", "--print-uris", "update")
    known = [line[1:].split("/dists/")[0] for line in printed.splitlines() if "/dists/" in line]
    return sorted(dict.fromkeys(known), key=lambda uri: not uri.endswith("/debian"))


def download(address: str, sha256: str, target: Path) -> str:
    """Fetch a file with apt's client, which needs no root, and check its SHA-256.

    Returns:
        the reason of a failed download or check; "" if the file is complete.
    """
    if offline():
        return "--offline downloads nothing"
    command = [*_ENVIRONMENT, _HELPER, "-o", "Acquire::Retries=1", "download-file"]
    try:
        done = subprocess.run(
            [*command, address, str(target), f"SHA256:{sha256}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        return str(error)
    failed = [line[3:] for line in done.stderr.splitlines() if line.startswith("E: ")]
    return "" if done.returncode == 0 else (failed or ["apt-helper failed"])[0]


def install(packages: Sequence[str]) -> bool:
    """Install packages and their dependencies; return False if apt-get fails or may not run.

    Output of apt-get goes to standard error: standard output belongs to the calling command.
    """
    return _apt(*_INSTALL, *packages)


def size_of(packages: Sequence[str]) -> str:
    """Return "N MB to download", with missing dependencies; "size unknown" if apt lists no file."""
    files = _output("apt-get", *_INSTALL, "-qq", "--print-uris", *packages).splitlines()
    sizes = [int(words[2]) for line in files if len(words := line.split()) >= 3]
    return f"{sum(sizes) / 1e6:.0f} MB to download" if sizes else "size unknown"


def _has_sudo() -> bool:
    return shutil.which("sudo") is not None


def _as_root() -> list[str] | None:
    """Return the words before a command that run it as root; None if that is not allowed."""
    if os.geteuid() == 0:
        return []
    sudo = ["sudo", "-n"]
    if not _has_sudo():
        return None
    allowed = subprocess.run([*sudo, "true"], capture_output=True, check=False).returncode == 0
    return sudo if allowed else None


def _output(*command: str) -> str:
    """Return the standard output of a command; "" if it fails or does not exist."""
    done = subprocess.run(
        [*_ENVIRONMENT, *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return done.stdout if done.returncode == 0 else ""


def _apt(*arguments: str) -> bool:
    if refusal():
        return False
    command = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", *arguments]
    print(f"  $ {shlex.join(command)}", file=sys.stderr, flush=True)
    done = subprocess.run(
        [*(_as_root() or []), *_ENVIRONMENT, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        last = "\n".join(f"  {line}" for line in done.stdout.splitlines()[-20:])
        print(f"{last}\n  apt-get ended with exit code {done.returncode}", file=sys.stderr)
    return done.returncode == 0
