# SPDX-License-Identifier: Apache-2.0
"""The action that follows an upstream: outputs for a pull request, an issue by gh's stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forklab import CORE, PACKAGE, ForkLab, core, git

ACTION = PACKAGE / "action"
CORE_PATH = "python/calc/core.py"
TITLE = "calc: patches that do not apply on upstream's main"
#: An issue that GitHub finds by the words of TITLE.
OTHER = {"number": 6, "state": "OPEN", "title": f"About {TITLE}"}
#: Keeps what it is asked to open in a file, and lists that.
GH = """\
#!{python}
import json, pathlib, sys
words, state = sys.argv[1:], pathlib.Path("{state}")
known = json.loads(state.read_text()) if state.exists() else {{"calls": []}}
kind, verb = words[:2]
if verb == "list":
    print(json.dumps(known.get(kind, [])))
else:
    body = words[words.index("--body-file") + 1] if "--body-file" in words else ""
    known["calls"].append([words, pathlib.Path(body).read_text() if body else ""])
    title = words[words.index("--title") + 1] if "--title" in words else ""
    known[kind] = [] if verb == "close" else [{{"number": 7, "state": "OPEN", "title": title}}]
    state.write_text(json.dumps(known))
"""


class Hub:
    """A fork with a remote, and what was asked of gh."""

    def __init__(self, lab: ForkLab, folder: Path) -> None:
        self.lab = lab
        self.state = folder / "gh.json"
        self.remote = folder / "remote.git"
        self.output = folder / "output"
        (folder / "bin").mkdir()
        program = folder / "bin/gh"
        program.write_text(GH.format(python=sys.executable, state=self.state))
        program.chmod(0o755)
        git(folder, "init", "-q", "--bare", str(self.remote))
        git(lab.root, "init", "-q")
        git(lab.root, "remote", "add", "origin", str(self.remote))
        git(lab.root, "add", "-A", "--", "VERSIONS.lock", "patches")
        git(lab.root, "commit", "-q", "-m", "Begin")

    def update(self, *, on_github: bool = True) -> str:
        """Do the job; returns what it prints."""
        command = [sys.executable, str(ACTION / "update.py"), "calc", "--link", "the run"]
        forkpatch = f"{sys.executable} -m forkpatch"
        done = subprocess.run(
            [*command, "--url", str(self.lab.repo.path), "--command", forkpatch],
            cwd=self.lab.root,
            env={**os.environ, **({"GITHUB_OUTPUT": str(self.output)} if on_github else {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def outputs(self) -> dict[str, str]:
        """The outputs of the last run; empty when it proposes nothing."""
        lines = self.output.read_text().splitlines() if self.output.exists() else []
        self.output.unlink(missing_ok=True)
        return dict(line.split("=", 1) for line in lines)

    def calls(self) -> list[tuple[list[str], str]]:
        """What gh was asked to write since the last time, with the bodies."""
        if not self.state.exists():
            return []
        known: dict[str, Any] = json.loads(self.state.read_text())
        calls = [(words, body) for words, body in known["calls"]]
        self.state.write_text(json.dumps({**known, "calls": []}))
        return calls


pytestmark = pytest.mark.slow


@pytest.fixture
def hub(lab: ForkLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn")
    lab.ok("record")
    git(lab.repo.path, "checkout", "-q", "-B", "main", "v1.0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (lab.root / ".gitignore").write_text(".work/\nout/\n")
    return Hub(lab, tmp_path)


def release(hub: Hub, body: bytes, tag: str) -> None:
    hub.lab.repo.commit({CORE_PATH: body}, f"Release {tag}")
    git(hub.lab.repo.path, "tag", tag)


def test_a_new_version_becomes_a_pull_request_with_the_moved_series(hub: Hub) -> None:
    release(hub, CORE.replace(b"def add", b"import os\n\n\ndef add"), "v1.1")
    git(hub.lab.repo.path, "tag", "v1.2rc1")
    hub.update()
    outputs = hub.outputs()
    assert outputs["branch"] == "forkpatch/calc-1.1" and outputs["draft"] == "false"
    assert outputs["title"] == "calc 1.1: move the series"
    body = Path(outputs["body"]).read_text()
    assert "turn.patch: clean" in body and "turn.patch: unchanged" in body and "the run" in body
    names = git(hub.lab.root, "ls-files", "--others", "--modified", "--exclude-standard").split()
    assert "patches/calc/1.1/series" in names and not any("work" in one for one in names)
    assert hub.calls() == []


def test_a_branch_that_a_person_has_in_hand_is_left_alone(hub: Hub) -> None:
    release(hub, CORE + b"\n", "v1.1")
    git(hub.lab.root, "push", "-q", "origin", "HEAD:forkpatch/calc-1.1")
    assert "its last commit is of ada@example.org" in hub.update()
    assert hub.outputs() == {} and hub.calls() == []
    hub.state.write_text(json.dumps({"calls": [], "pr": [{"state": "CLOSED"}]}))
    assert "its pull request is closed" in hub.update()
    assert hub.outputs() == {}


def test_a_conflict_becomes_a_draft_and_an_issue_that_is_closed_again(hub: Hub) -> None:
    release(hub, core(sub="a - b, 2"), "v1.1")
    hub.update()
    ((issue, report),) = hub.calls()
    assert issue[:2] == ["issue", "create"] and "- `turn.patch`: conflict since" in report
    outputs = hub.outputs()
    assert outputs["title"] == "calc 1.1: the series conflicts" and outputs["draft"] == "true"
    body = Path(outputs["body"]).read_text()
    assert f"turn.patch: {CORE_PATH}" in body and "resolve it in" in body
    names = git(hub.lab.root, "ls-files", "--others", "--modified", "--exclude-standard").split()
    assert "VERSIONS.lock" in names and not any("patches" in name for name in names)
    assert "no rebase" in hub.lab.ok("rebase", "calc", "--status").out
    git(hub.lab.root, "checkout", "-q", ".")
    release(hub, CORE, "v1.2")
    hub.state.write_text(
        json.dumps({"calls": [], "issue": [OTHER, {"number": 7, "state": "OPEN", "title": TITLE}]})
    )
    hub.update()
    ((issue, _),) = hub.calls()
    assert issue[:3] == ["issue", "close", "7"]
    assert hub.outputs()["title"] == "calc 1.2: move the series"


def test_a_version_that_the_lock_has_is_not_proposed(hub: Hub) -> None:
    release(hub, CORE + b"\n", "v1.1")
    hub.lab.ok("lock", "--add", "calc=1.1", "--mirror", f"calc={hub.lab.repo.path}")
    hub.update()
    assert hub.calls() == [] and hub.outputs() == {}


def test_the_action_gives_the_script_what_it_takes() -> None:
    text = (ACTION / "action.yml").read_text()
    known = (ACTION / "update.py").read_text()
    for option in ("--url", "--link", "--command", "--reports"):
        assert option in text and f'"{option}"' in known
    for output in ("branch", "title", "body", "draft"):
        assert f"outputs.{output}" in text and f'"{output}":' in known


def test_a_version_that_the_lock_has_under_another_name_is_not_proposed(hub: Hub) -> None:
    release(hub, CORE + b"\n", "v1.1")
    mirror = ("--mirror", f"calc={hub.lab.repo.path}")
    hub.lab.ok("lock", "--add", "calc=next", "--tag", "v1.1", *mirror)
    hub.update()
    assert hub.outputs() == {}


def test_without_github_the_outputs_are_with_the_reports(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_OUTPUT", raising=False)
    release(hub, CORE + b"\n", "v1.1")
    hub.update(on_github=False)
    assert "branch=forkpatch/calc-1.1\n" in (hub.lab.root / "out/outputs.txt").read_text()
