# SPDX-License-Identifier: Apache-2.0
"""System packages of Debian and its derivatives, installed with apt-get where that is allowed."""

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
# Apt's own client: it has the proxies and certificates of this machine's apt.
_HELPER = "/usr/lib/apt/apt-helper"
_INSTALL = ("install", "-y", "--no-install-recommends")


def refusal() -> str:
    """Reason why no package can be installed from here; empty when one can."""
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
    """Advice for a user who installs the packages by hand."""
    names = " ".join(packages)
    if shutil.which("apt-get") is None:
        return f"install these packages of Debian: {names}"
    as_root = os.geteuid() == 0
    sudo = "sudo " if _has_sudo() and not as_root else ""
    who = "type" if sudo or as_root else "type as root"
    return f"{who}: {sudo}apt-get update && {sudo}apt-get install {names}"


def update() -> bool:
    """Fetch the lists of packages; False when apt-get fails or may not run."""
    return _apt("update")


def knows(package: str) -> bool:
    """True if apt's lists have the package."""
    return bool(_output("apt-cache", "show", "--no-all-versions", package))


def archives() -> list[str]:
    """Addresses of the archives in apt's sources, those of Debian itself first.

    An archive has the packages of every supported release, whichever this machine has. Apt needs
    neither root nor its lists to name them.
    """
    printed = _output("apt-get", "--print-uris", "update")
    known = [line[1:].split("/dists/")[0] for line in printed.splitlines() if "/dists/" in line]
    return sorted(dict.fromkeys(known), key=lambda uri: not uri.endswith("/debian"))


def download(address: str, sha256: str, target: Path) -> str:
    """Fetch one file with apt's client, which any user may do.

    Returns:
        the reason why the file could not be fetched or is another one; empty when it is there.
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
    """Install packages and what they depend on; False when apt-get fails or may not run.

    Its output goes to standard error: standard output belongs to the command that asked.
    """
    return _apt(*_INSTALL, *packages)


def size_of(packages: Sequence[str]) -> str:
    """Size of the download that packages need with what they depend on, for people."""
    files = _output("apt-get", *_INSTALL, "-qq", "--print-uris", *packages).splitlines()
    sizes = [int(words[2]) for line in files if len(words := line.split()) >= 3]
    return f"{sum(sizes) / 1e6:.0f} MB to download"


def _has_sudo() -> bool:
    return shutil.which("sudo") is not None


def _as_root() -> list[str] | None:
    """Words before a command that run it as root; None when that is not allowed."""
    if os.geteuid() == 0:
        return []
    sudo = ["sudo", "-n"]
    if not _has_sudo():
        return None
    allowed = subprocess.run([*sudo, "true"], capture_output=True, check=False).returncode == 0
    return sudo if allowed else None


def _output(*command: str) -> str:
    """Standard output of a command; empty where it fails or does not exist."""
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
