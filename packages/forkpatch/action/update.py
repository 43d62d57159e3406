# SPDX-License-Identifier: Apache-2.0
"""Weekly look at one upstream of a fork, for a CI job: the change of a pull request, and an issue.

The change, left in the work tree, moves the series to upstream's newest version. If the move stops
at a conflict, it only pins the version, for a draft that says where it stopped. The action's next
step proposes it. An issue names the patches that no longer apply on upstream's main branch.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BOT = "41898282+github-actions[bot]@users.noreply.github.com"  # commits of the action
_LONGEST = 60_000  # characters; GitHub takes 65,536


@dataclass(frozen=True)
class Update:
    """The job for one upstream.

    Attributes:
        name: the upstream.
        command: the command that runs forkpatch.
        mirror: a repository with upstream's history.
        reports: folder for the output of ``probe``.
        link: the page of this run, for the texts.
    """

    name: str
    command: tuple[str, ...]
    mirror: Path
    reports: Path
    link: str

    def forkpatch(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a verb, with all that it prints as its output.

        Raises:
            SystemExit: a mistake, for which a person is needed.
        """
        done = subprocess.run(
            [*self.command, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        print(done.stdout, flush=True)
        if done.returncode not in (0, 1):
            sys.exit(f"{' '.join(words)}: exit code {done.returncode}")
        return done

    def json(self, *words: str) -> Any:
        """The result of a verb that has to work."""
        path = self.reports / f"{words[0]}-{self.name}.json"
        done = self.forkpatch(*words, "--json", str(path))
        path.with_suffix(".txt").write_text(done.stdout, encoding="utf-8")
        if done.returncode:
            sys.exit(f"{' '.join(words)}: exit code {done.returncode}")
        return json.loads(path.read_text("utf-8"))


def run(*command: str) -> str:
    """The output of a command that has to work."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def gh(*words: str, body: str = "") -> str:
    """Return the output of ``gh``; a body is cut to ``_LONGEST``, and passed as a file."""
    with tempfile.NamedTemporaryFile("w", suffix=".md", encoding="utf-8") as file:
        file.write(body[:_LONGEST])
        file.flush()
        return run("gh", *words, *(["--body-file", file.name] if body else []))


def newest(news: dict[str, Any]) -> tuple[str, list[str]] | None:
    """The version to move to, and the options of ``lock --add`` that pin it; None without one."""
    if news["releases"]:  # the oldest first
        tag, version = list(news["releases"].items())[-1]
        return version, ["--tag", tag]
    if news["head"]:  # an upstream without tags is pinned by a commit
        return news["head"][:8], ["--commit", news["head"]]
    return None


def is_pinned(versions: dict[str, Any], version: str, options: Sequence[str]) -> bool:
    """True if a lock's versions of the upstream have this one, perhaps under another name."""
    pins = [entry.get(options[0].removeprefix("--")) for entry in versions.values()]
    return version in versions or options[1] in pins


def move(update: Update, pinned: str, version: str, options: Sequence[str]) -> None:
    """Move the series to a version, and write the outputs that propose the move."""
    branch = f"forkpatch/{update.name}-{version}"
    if not is_ours(branch):
        return
    mirror = ("--mirror", f"{update.name}={update.mirror}")
    if update.forkpatch("lock", "--add", f"{update.name}={version}", *options, *mirror).returncode:
        sys.exit(f"{update.name} {version} could not be pinned")
    done = update.forkpatch("rebase", update.name, version, *mirror)
    text = done.stdout
    if stopped := done.returncode != 0:
        if update.json("rebase", update.name, "--status") is None:
            sys.exit(f"the rebase of {update.name} failed")
        update.forkpatch("rebase", update.name, "--abort")
        text += "\nThe branch pins the version; type the rebase there, resolve it, and push.\n"
    else:
        text += update.forkpatch("range-diff", update.name, pinned, version, *mirror).stdout
    body = update.reports / "pull-request.md"
    body.write_text(f"```\n{text[:_LONGEST]}\n```\n\n{update.link}\n", encoding="utf-8")
    title = f"{update.name} {version}: {'the series conflicts' if stopped else 'move the series'}"
    outputs = {"branch": branch, "title": title, "body": body, "draft": str(stopped).lower()}
    place = os.environ.get("GITHUB_OUTPUT") or update.reports / "outputs.txt"
    with Path(place).open("a", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in outputs.items())


def is_ours(branch: str) -> bool:
    """True unless a person closed the pull request of a branch, or committed to the branch."""
    known = json.loads(gh("pr", "list", "--state", "all", "--head", branch, "--json", "state"))
    if known and all(one["state"] != "OPEN" for one in known):
        print(f"{branch}: its pull request is closed")
        return False
    if not run("git", "ls-remote", "--heads", "origin", branch):
        return True
    run("git", "fetch", "-q", "origin", branch)
    person = run("git", "log", "-1", "--format=%ce", "FETCH_HEAD")
    if person != BOT:
        print(f"{branch}: left alone, for its last commit is of {person}")
    return person == BOT


def report(update: Update, probed: dict[str, Any]) -> None:
    """Open, update or close the issue about patches that no longer apply on upstream's main."""
    lines = [
        f"- `{turn['patch']}`: {turn['fit']} since {turn['commit'][:12]} {turn['subject']}"
        for one in probed["sets"]
        for turn in one["turns"]
        if turn["broke"] and not turn["again"]
    ]
    title = f"{update.name}: patches that do not apply on upstream's main"
    # GitHub searches for the words of the title, in any order.
    search = ("--state", "open", "--search", f'in:title "{title}"', "--limit", "1000")
    found = json.loads(gh("issue", "list", *search, "--json", "number,title"))
    number = next((str(issue["number"]) for issue in found if issue["title"] == title), "")
    body = "\n".join([*lines, "", update.link])
    if lines and number:
        gh("issue", "edit", number, body=body)
    elif lines:
        gh("issue", "create", "--title", title, body=body)
    elif number:
        gh("issue", "close", number, "--comment", f"All patches apply again. {update.link}")


def main() -> int:
    """Do the job for one upstream."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", metavar="UPSTREAM")
    parser.add_argument("--url", required=True, help="upstream's repository, for its history")
    parser.add_argument("--command", default="forkpatch", help="command that runs forkpatch")
    parser.add_argument("--lock", type=Path, default=Path("VERSIONS.lock"), help="the fork's lock")
    parser.add_argument("--reports", type=Path, default=Path("out"), help="folder for the reports")
    parser.add_argument("--link", default="", help="page of this run")
    options = parser.parse_args()
    options.reports.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        mirror = Path(folder, "upstream.git")
        run("git", "clone", "-q", "--bare", options.url, str(mirror))
        command = tuple(shlex.split(options.command))
        update = Update(options.name, command, mirror, options.reports.absolute(), options.link)
        with_history = ("--mirror", f"{update.name}={mirror}")
        report(update, update.json("probe", update.name, *with_history))
        watched = update.json("watch", *with_history)
        news = next(one for one in watched if one["upstream"] == update.name)
        lock = tomllib.loads(options.lock.read_text("utf-8"))
        found = newest(news)
        if found and not is_pinned(lock["upstreams"][update.name]["versions"], *found):
            move(update, news["version"], *found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
