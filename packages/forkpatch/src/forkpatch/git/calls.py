# SPDX-License-Identifier: Apache-2.0
"""Calls to git whose results do not depend on the machine.

The user's and the system's configuration, hooks, filters, attributes, file system monitors and
credential prompts play no part in a call: a tree must not depend on who builds it, and an
upstream repository must not be able to run anything. GitPython, which reads histories, merges the
caller's environment into every call, and cannot remove ``GIT_DIR`` from it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

from forkpatch.errors import ForkError, UserError
from forkpatch.processes import outputs
from groundwork.errors import USER_MISTAKE, remedy_for
from groundwork.files import naming

if TYPE_CHECKING:
    from git import Repo


#: The branch that HEAD of every new repository names.
BRANCH = "forkpatch"
_CONFIG = {
    "advice.detachedHead": "false",
    "commit.gpgSign": "false",
    "core.alternateRefsCommand": "",
    "core.attributesFile": os.devnull,
    "core.autocrlf": "false",
    "core.commitGraph": "false",
    "core.eol": "lf",
    "core.excludesFile": os.devnull,
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.quotePath": "false",
    "core.safecrlf": "false",
    "fastimport.unpackLimit": "0",
    "gc.auto": "0",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "20",
    "init.defaultBranch": BRANCH,
    "init.templateDir": "",
    "log.showSignature": "false",
    "maintenance.auto": "false",
    "protocol.version": "2",
    "safe.directory": "*",
}
_ENVIRONMENT = {
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=10",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "LC_ALL": "C",
}
# The caller's GIT_* variables that are kept: those about reaching a server.
_KEPT = {"GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_EXEC_PATH"}

#: Attributes of a repository of ours: a file is what its bytes are, whatever the tree says.
NEUTRAL_ATTRIBUTES = "* -text !eol -filter -ident !working-tree-encoding !diff !merge !whitespace\n"
# What drop_variables took; the user's own git commands see it.
_dropped: dict[str, str] = {}
NO_NETWORK = {"GIT_ALLOW_PROTOCOL": "none"}
NETWORK = {"GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh"}
#: Older versions cannot merge trees that are given on standard input.
OLDEST_GIT = (2, 39)
#: Free bytes below which a disk is full; git fails before the last block is used.
FULL = 64 << 10


class GitError(ForkError):
    """A git command failed."""

    def __init__(self, command: Sequence[str], status: int, stderr: str, remedy: str = "") -> None:
        lines = stderr.strip().splitlines() or [f"exit code {status}"]
        said = (line for line in lines if line.startswith(("fatal: ", "error: ")))
        lock = re.search(r"Unable to create '(.*\.lock)': File exists", stderr)
        if lock:
            remedy = f"another git is at work there; if none is, remove {lock[1]}"
        super().__init__(f"git {command[0]}: {next(said, lines[-1])}", remedy=remedy)


def neutral_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the caller's environment without ``GIT_*``, with fixed settings, then ``extra``.

    Without NETWORK in ``extra``, git contacts no server.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name in _KEPT
    }
    return kept | _ENVIRONMENT | NO_NETWORK | dict(extra or {})


def drop_variables() -> None:
    """Remove ``GIT_*`` from this process's environment, except those that forkpatch uses.

    GitPython gives its own git processes the environment of this one.
    """
    used = {*_KEPT, "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"}
    for name in [name for name in os.environ if name.startswith("GIT_") and name not in used]:
        _dropped[name] = os.environ.pop(name)


@dataclass(frozen=True)
class Git:
    """One repository (or none), and the environment to call git in it with."""

    git_dir: Path | None = None
    work_tree: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def objects(self) -> Path:
        """Folder of the repository's objects; a linked worktree has those of its repository."""
        folder = self.git_dir or Path()
        common = folder / "commondir"
        if common.is_file():
            folder = (folder / os.fsdecode(common.read_bytes()).rstrip("\n")).resolve()
        return folder / "objects"

    def command(self, *args: str) -> list[str]:
        """The full argument vector of ``git ARGS``."""
        settings = [part for name, value in _CONFIG.items() for part in ("-c", f"{name}={value}")]
        where = [f"--git-dir={self.git_dir}"] if self.git_dir else []
        where += [f"--work-tree={self.work_tree}"] if self.work_tree else []
        return ["git", *settings, *where, *args]

    def start(
        self,
        *args: str,
        stdin: int | IO[bytes] = subprocess.PIPE,
        env: Mapping[str, str] | None = None,
        new_session: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start ``git ARGS``, whose output and errors are read through pipes."""
        return subprocess.Popen(
            self.command(*args),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=neutral_environment({**self.environment, **(env or {})}),
            cwd=self.work_tree or self.git_dir or "/",
            # What is inheritable is the lock of a work folder (swap.locked), and nothing else.
            close_fds=False,
            start_new_session=new_session,
        )

    def run(
        self,
        *args: str,
        stdin: bytes | IO[bytes] = b"",
        env: Mapping[str, str] | None = None,
        ok: Iterable[int] = (0,),
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run ``git ARGS`` and return exit code and output; give a large ``stdin`` as an open file.

        Raises:
            GitError: the exit code is not among ``ok``, or ``timeout`` seconds have passed.
        """
        pipe = subprocess.PIPE if isinstance(stdin, bytes) else stdin
        process = self.start(*args, stdin=pipe, env=env, new_session=timeout is not None)
        data = stdin if isinstance(stdin, bytes) else None
        try:
            # In a session, so that a transport helper of git's does not live on without its parent.
            out, err = outputs(process, data, timeout=timeout, session=timeout is not None)
        except subprocess.TimeoutExpired:
            raise GitError(args, -1, f"no answer within {timeout:.0f} s") from None
        if process.returncode not in tuple(ok):
            # Looked at now: what the call has written may be cleared away before it is told.
            remedy = full(place for place in (self.git_dir, self.work_tree) if place)
            failed = GitError(args, process.returncode, err.decode("utf-8", "replace"), remedy)
            if remedy:  # as where Python meets the full disk
                failed.exit_code = USER_MISTAKE
            raise failed
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def text(self, *args: str, stdin: bytes = b"") -> str:
        """Return the output of :meth:`run` as text, without newlines at the end."""
        return self.run(*args, stdin=stdin).stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    def fields(self, *args: str, stdin: bytes = b"", ok: Iterable[int] = (0,)) -> list[str]:
        """Return the texts that :meth:`run` prints with a NUL after each, as with ``-z``."""
        out = self.run(*args, stdin=stdin, ok=ok).stdout
        return out.decode("utf-8", "surrogateescape").split("\0")[:-1]

    def is_ancestor(self, commit: str, tip: str) -> bool:
        """Return True if a commit is ``tip`` or its ancestor; False if either is missing."""
        return self.run("merge-base", "--is-ancestor", commit, tip, ok=range(256)).returncode == 0

    def commit(self, name: str) -> str:
        """Return the commit that a revision names; empty if the repository lacks it."""
        spec = ("--quiet", "--verify", "--end-of-options", f"{name}^{{commit}}")
        return self.run("rev-parse", *spec, ok=(0, 1, 128)).stdout.decode("ascii").strip()


def user_environment() -> dict[str, str]:
    """Return the caller's environment for commands of the user, such as ``git push``.

    It has the caller's ``GIT_*``, except those that name a repository or a part of it.
    """
    variables = {**os.environ, **_dropped}
    return {name: value for name, value in variables.items() if name not in _of_a_repository()}


@cache
def _of_a_repository() -> Set[str]:
    """Return the variables that name a repository, or a part of it; they do not configure git."""
    listed = Git().text("rev-parse", "--local-env-vars").split()
    return {"GIT_NAMESPACE", *(name for name in listed if not name.startswith("GIT_CONFIG"))}


def knows_author(repository: Path) -> bool:
    """Return True if the user's git has a name and an address for commits in ``repository``."""
    words = ["git", "-C", str(repository), "var", "GIT_AUTHOR_IDENT"]
    done = subprocess.run(words, capture_output=True, check=False, env=user_environment())
    return done.returncode == 0


def git_repo(git: Git) -> Repo:
    """Return GitPython's ``Repo`` of a repository; its git processes end with ``Repo.close``."""
    from git import Repo  # noqa: PLC0415 - for this verb only

    repo = Repo(git.git_dir)
    # Without a config file GitPython takes a bare repository for one with a work tree.
    where = {"GIT_DIR": str(git.git_dir)}
    repo.git.update_environment(**neutral_environment({**git.environment, **where}))
    return repo


def init_repository(git_dir: Path, work_tree: Path | None = None) -> Git:
    """Make and return an empty repository, bare without ``work_tree``, that keeps every byte."""
    git, info = Git(git_dir, work_tree), git_dir / "info"
    git_dir.mkdir(parents=True, exist_ok=True)
    git.run("init", "-q", *([] if work_tree else ["--bare"]))
    with naming(git_dir):
        info.mkdir(exist_ok=True)
        (info / "attributes").write_text(NEUTRAL_ATTRIBUTES, encoding="ascii")
    return git


def require_git() -> None:
    """Check that git is installed and recent enough.

    Raises:
        UserError: git is missing or too old.
    """
    wanted = ".".join(map(str, OLDEST_GIT))
    remedy = f"install git {wanted} or newer, and put it first on PATH"
    try:
        done = subprocess.run(["git", "version"], capture_output=True, check=False)
    except OSError as error:
        raise UserError(
            f"git cannot be run: {os.strerror(error.errno or 0)}", remedy=remedy
        ) from error
    version = re.search(rb"(\d+)\.(\d+)[.\d]*", done.stdout)
    if done.returncode or not version:
        raise UserError("git does not print its version", remedy=remedy)
    if (int(version[1]), int(version[2])) < OLDEST_GIT:
        raise UserError(f"git is version {version[0].decode()}, too old", remedy=remedy)


def full(folders: Iterable[Path]) -> str:
    """Return a remedy that names the first folder without free space; empty without one.

    Git itself does not always report a full disk.
    """
    for folder in folders:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if shutil.disk_usage(existing).free < FULL:
            return f"{existing}: No space left on device; {remedy_for(errno.ENOSPC)}"
    return ""
