#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run a command on a fresh Debian: nothing but python3 and pip, no home, no cache, a clean clone.

The root is made by mmdebstrap and entered in namespaces of its own, so nothing of this machine is
changed. Settings of apt and pip, certificates and name servers are taken from this machine; folders
that pip's settings name, and each --mount, are there read-only. Standard library only.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT / "packages/groundwork/src"))

from groundwork import apt  # noqa: E402 - of this project, for a machine where nothing is installed

CLONE = "/srv/project"
PACKAGES = "python3,python3-pip,ca-certificates"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DAY = 24 * 60 * 60
USER_MISTAKE = 2
#: Settings of a network: proxies, certificates, pip's indexes.
VARIABLES = re.compile(r"PIP_\w+|SSL_CERT_\w+|\w+_CA_BUNDLE|GIT_SSL_\w+|(https?|no)_proxy", re.I)
APT_SETTINGS = re.compile(r"Acquire::(https?|Check-|Retries|Force)")
COPIED = (
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/ssl/certs/ca-certificates.crt",
    "/usr/local/share/ca-certificates",
)


class FreshRootError(Exception):
    """A fresh root cannot be made or entered here."""


def main(argv: Sequence[str]) -> int:
    """Run the command in the root; its exit code, or 2 where no root can be had."""
    parser = argparse.ArgumentParser(prog="fresh_root.py", description=__doc__)
    parser.add_argument("--suite", default="bookworm", help="Debian's release (%(default)s)")
    parser.add_argument(
        "--mount", action="append", default=[], type=Path, metavar="PATH", help="show it read-only"
    )
    parser.add_argument("--root", type=Path, metavar="DIR", help="use this root and keep it")
    what = f"run in {CLONE}, a clone, with all words that follow"
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=what)
    options = parser.parse_args(argv)
    options.command = options.command[options.command[:1] == ["--"] :]
    if not options.command:
        parser.error("name the command to run")
    try:
        _require_namespaces()
        if options.root:
            return enter(_filled(options.root.resolve(), options.suite), options)
        # Gigabytes: /tmp is often in memory.
        folder = os.environ.get("TMPDIR", "/var/tmp")
        with tempfile.TemporaryDirectory(prefix="fresh-root-", dir=folder) as at:
            return enter(_filled(Path(at) / "root", options.suite), options)
    except (FreshRootError, OSError, subprocess.CalledProcessError) as error:
        print(f"fresh_root: no fresh root here: {error}", file=sys.stderr)
        return USER_MISTAKE


def enter(root: Path, options: argparse.Namespace) -> int:
    """Run the command with the root as ``/``; the mounts end with it.

    Not by chroot alone: a program in a chroot may make no user namespace, as some tests do.
    """
    variables = {name: value for name, value in os.environ.items() if VARIABLES.fullmatch(name)}
    settings = pip_settings()
    _copy_settings(root, settings)
    shown = [*options.mount, *_paths([*variables.values(), *settings.values()])]
    steps = [["mount", "--bind", root, root], ["mount", "-t", "proc", "proc", root / "proc"]]
    for folder in ("sys", "dev"):
        steps.append(["mount", "--rbind", f"/{folder}", root / folder])
    for path in dict.fromkeys(path.resolve() for path in shown):
        steps += _read_only(path, root)
    (root / ".outside").mkdir(exist_ok=True)
    steps += [["cd", root], ["pivot_root", ".", ".outside"], ["umount", "-l", "/.outside"]]
    steps += [["cd", CLONE]]
    script = " && ".join(shlex.join(map(str, step)) for step in steps)
    home = {"HOME": "/root", "LANG": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    known = {name: os.environ[name] for name in ("CI", "TERM") if name in os.environ}
    isolated = ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child"]
    command = [*isolated, "sh", "-c", f'{script} && exec "$@"', "sh", *options.command]
    return subprocess.run(command, env={**home, **known, **variables}, check=False).returncode


def pip_settings() -> dict[str, str]:
    """This machine's settings of pip in its files: ``section.key`` to value."""
    listed = _output([sys.executable, "-m", "pip", "config", "list"])
    pairs = (line.partition("=") for line in listed.splitlines())
    return {key: ast.literal_eval(text) for key, _, text in pairs if text and key[0] != ":"}


def apt_sources(suite: str) -> list[str]:
    """Lines of sources.list for a release, from the archives that this machine's apt uses.

    None where apt knows no archive of Debian (on Ubuntu): mmdebstrap then takes its own default.
    """
    archives = apt.archives()
    main = next((uri for uri in archives if uri.endswith("/debian")), None)
    if main is None:
        return []
    security = next((uri for uri in archives if uri.endswith("-security")), f"{main}-security")
    signed = f"deb [signed-by={KEYRING}]"
    places = [(main, suite), (main, f"{suite}-updates"), (security, f"{suite}-security")]
    return [f"{signed} {uri} {name} main" for uri, name in places]


def _require_namespaces() -> None:
    if os.geteuid() != 0:
        raise FreshRootError("this is not root")
    tried = ["unshare", "--mount", "--pid", "--fork", "true"]
    done = subprocess.run(tried, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FreshRootError(f"{shlex.join(tried)}: {done.stderr.strip()}")


def _filled(root: Path, suite: str) -> Path:
    """The root with Debian and a clone of this project in it; existing content is kept."""
    if not (root / "bin").exists():
        root.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-C", str(root), "-xf", str(_tarball(suite))], check=True)
    if not (clone := Path(f"{root}{CLONE}")).exists():
        # The checkout may belong to another user than root.
        git = ["git", "-c", "safe.directory=*", "clone", "--quiet", "--no-hardlinks"]
        subprocess.run([*git, str(PROJECT), str(clone)], check=True)
    return root


def _tarball(suite: str) -> Path:
    """A root of the release; kept in the user's cache for a day."""
    if not all(shutil.which(tool) or Path(tool).exists() for tool in ("mmdebstrap", KEYRING)):
        apt.update()
        if not apt.install(["mmdebstrap", "debian-archive-keyring"]):
            raise FreshRootError(f"mmdebstrap is missing: {apt.refusal() or 'apt-get failed'}")
    dump = _output(["apt-config", "dump"]).splitlines()
    options = [f"--aptopt={line.rstrip(';')}" for line in dump if APT_SETTINGS.match(line)]
    options += ["--dpkgopt=force-unsafe-io", "--variant=minbase", f"--include={PACKAGES}"]
    sources = apt_sources(suite)
    key = hashlib.sha256("\n".join([*options, *sources]).encode()).hexdigest()[:16]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = base / "mlc-rvv" / "fresh-root" / f"{suite}-{key}.tar"
    if not kept.is_file() or time.time() - kept.stat().st_mtime > DAY:
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}.part")
        made = ["mmdebstrap", "--quiet", "--format=tar", *options, suite, str(part), *sources]
        subprocess.run(made, check=True)
        part.replace(kept)
    return kept


def _copy_settings(root: Path, pip: Mapping[str, str]) -> None:
    for path in map(Path, COPIED):
        target = Path(f"{root}{path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True)
        elif path.is_file():
            target.unlink(missing_ok=True)
            shutil.copyfile(path, target)
    written = configparser.ConfigParser(interpolation=None)
    for name, value in pip.items():
        section, _, key = name.partition(".")
        written.read_dict({section: {key: value}})
    with (root / "etc" / "pip.conf").open("w", encoding="utf-8") as stream:
        written.write(stream)


def _paths(texts: Sequence[str]) -> Iterator[Path]:
    """Folders and files of this machine that settings name."""
    for text in texts:
        for word in text.split():
            path = Path(word.removeprefix("file://"))
            if path.is_absolute() and path.exists():
                # An index's pages link to files beside the folder that holds them.
                yield path.parent if word.startswith("file:") else path


def _read_only(path: Path, root: Path) -> list[list[object]]:
    """Commands that show a path of this machine in the root; none where the root has its own."""
    target = Path(f"{root}{path}")
    if target.exists():
        return []
    target.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir() if path.is_dir() else target.touch()
    return [["mount", "--bind", path, target], ["mount", "-o", "remount,bind,ro", target]]


def _output(command: Sequence[str]) -> str:
    """Standard output of a command; empty where it fails or does not exist."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
