# SPDX-License-Identifier: Apache-2.0
"""Writer of docs/CARRYING.md: the life of a small fork, command by command.

``python packages/forkpatch/tests/tutorial.py`` renews it; a test compares it with a fresh run.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

import forklab

from forkpatch.cli.main import main
from forkpatch.git.calls import neutral_environment

PAGE = Path(__file__).resolve().parents[1] / "docs" / "CARRYING.md"

CORE = forklab.CORE.decode()
SUB = CORE[CORE.index("def sub") : CORE.index("def mul")]
POLICY = """\
[tool.forkpatch]
require = ["subject", "reason", "Upstream-Status", "Test"]
"""
LOCK = """\
default-release = "first"

[releases.first]
calc = "1.0"

[upstreams.calc]
url = "{url}"

[upstreams.calc.versions."1.0"]
tag = "v1.0"
commit = "{commit}"
include = ["calc", "LICENSE"]
tree = ""
"""
TEST = """\
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(os.environ["FORKPATCH_TREES"]) / "calc"))
from calc import core


def test_sub_counts_down():
    assert core.sub(1, 3) == 2
"""
MESSAGE = """\
Count down in sub

Our boards subtract the first operand from the second.

Upstream-Status: Inappropriate [only for our boards]
Test: tests/test_calc.py::test_sub_counts_down
"""


class Story:
    """The page so far, and the folder of the fork."""

    def __init__(self, folder: Path) -> None:
        self.home = folder
        self.fork = folder / "fork"
        self.upstream = folder / "upstream"
        self.page: list[str] = []

    def tell(self, text: str) -> None:
        """Add a paragraph."""
        self.page += [text.strip("\n"), ""]

    def show(self, path: str, text: str) -> None:
        """Write a file of the fork, and show it."""
        target = self.fork / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        self.tell(f"`{path}`:\n\n```\n{self._plain(text).rstrip()}\n```")

    def run(self, *commands: str, code: int = 0) -> None:
        """Run commands in the fork's root and show what they print; the last exits with code."""
        lines = []
        for command in commands:
            out, status = self._run(command)
            expected = code if command == commands[-1] else 0
            assert status == expected, f"{command}: {status}\n{out}"
            lines += [f"$ {command}", *(line.rstrip() for line in out.splitlines())]
        text = "\n".join(lines)
        self.tell(f"```console\n{self._plain(text)}\n```")

    def release(self, files: dict[str, str | None], tag: str) -> str:
        """Release a version of the upstream."""
        self.upstream.mkdir(exist_ok=True)
        for name, text in files.items():
            path = self.upstream / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                path.unlink()
            else:
                path.write_text(text, encoding="utf-8")
        self._shell(
            "git -c init.defaultBranch=main init -q; git add -A;"
            f" git commit -q -m 'Release {tag}'; git tag {tag}",
            self.upstream,
        )
        return self._shell("git rev-parse HEAD", self.upstream)[0].strip()

    def _run(self, command: str) -> tuple[str, int]:
        words = [word.replace("~", str(self.home)) for word in shlex.split(command)]
        if words[0] != "forkpatch":
            return self._shell(command, self.fork)
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = main(["--root", str(self.fork), *words[1:]])
        return said.getvalue(), status

    def _shell(self, command: str, folder: Path) -> tuple[str, int]:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env={**neutral_environment(forklab.AUTHOR), "HOME": str(self.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return done.stdout.decode("utf-8"), done.returncode

    def _plain(self, text: str) -> str:
        return text.replace(str(self.fork), "~/fork").replace(str(self.home), "~")


def write(folder: Path) -> str:
    """Run all commands in ``folder``; returns the page."""
    story = Story(folder)
    _first_patch(story)
    _care(story)
    _rework(story)
    _choose(story)
    _together(story)
    _first_rebase(story)
    _second_rebase(story)
    _third_rebase(story)
    return "\n".join(story.page)


def _first_patch(story: Story) -> None:
    story.tell(
        "# Carrying a fork, from the first patch to the third rebase\n\n"
        "Every command on this page was run, and its output is printed below it"
        " (`uv run --package forkpatch python packages/forkpatch/tests/tutorial.py` renews the"
        " page).\n\n## The lock and the tree"
    )
    commit = story.release({"LICENSE": "free\n", "calc/core.py": CORE, "doc/x.md": "x\n"}, "v1.0")
    story.fork.mkdir()
    story.tell(
        "A fork is a folder with a lock, which names the upstream and the paths taken from it."
    )
    story.show("VERSIONS.lock", LOCK.format(url=story.upstream, commit=commit))
    story.tell("`lock` looks up the missing pins; `apply` builds the tree.")
    story.run("forkpatch lock", "forkpatch apply", "forkpatch apply")
    story.tell("## The first patch\n\nThe tree is a git repository. Change it there and commit.")
    story.run(
        "forkpatch edit calc",
        "sed -i 's/return a - b/return b - a/' .work/first/calc/calc/core.py",
        "git -C .work/first/calc commit -q -a -m 'Count down in sub'",
        "forkpatch status",
        "forkpatch export",
        "cat patches/calc/1.0/count-down-in-sub.patch",
    )
    story.tell("The fork's policy is what it demands of the message of a patch:")
    story.show("pyproject.toml", POLICY)
    story.tell("`check` lists what the patch lacks:")
    story.run("forkpatch check", code=1)
    story.show("tests/test_calc.py", TEST)
    (story.home / "message").write_text(MESSAGE, encoding="utf-8")
    story.tell("The message gives the reason, and names the test that fails without the patch:")
    story.run("cat ~/message")
    story.run(
        "git -C .work/first/calc commit -q --amend -F ~/message",
        "forkpatch export",
        "forkpatch check",
    )


def _care(story: Story) -> None:
    story.tell("## Necessity\n\nThe test is run with the patch and without it:")
    story.run("forkpatch necessity")
    story.tell("## New files\n\nWhole new files are overlays: they are not patches.")
    story.show("overlays/calc/calc/div.py", "def div(a, b):\n    return a / b\n")
    story.run("forkpatch status", "forkpatch apply")
    story.tell("A second patch, on top of the first:")
    story.run(
        "sed -i 's/return a [*] b/return mul_fast(a, b)/' .work/first/calc/calc/core.py",
        "git -C .work/first/calc commit -q -a -m 'Multiply fast' -m 'Boards have an"
        " instruction for it.'",
        "forkpatch export",
    )


def _rework(story: Story) -> None:
    story.tell(
        "## Fixups, and a patch in two\n\nA review asks for a comment. `absorb` puts the change"
        " into the patch whose lines it touches; one that touches none, or several, is left, and"
        " named:"
    )
    story.run(
        "sed -i 's/return b - a/return b - a  # as the boards do/' .work/first/calc/calc/core.py",
        "forkpatch absorb calc",
        "forkpatch export",
    )
    story.tell("A commit that does two things becomes two patches:")
    story.run(
        "sed -i 's/free/free, and ours/' .work/first/calc/LICENSE",
        "sed -i 's/raise ValueError(a)/raise TypeError(a)/' .work/first/calc/calc/core.py",
        "git -C .work/first/calc commit -q -a -m 'Two things'",
        "forkpatch split calc two-things",
    )
    story.tell("We do not want them; nothing is exported yet:")
    story.run("git -C .work/first/calc reset -q --hard refs/forkpatch/applied")
    story.tell(
        "## The patch that breaks something\n\nNo board is at hand, and `mul` fails. `bisect` runs"
        " a command with more and fewer patches, in a tree of its own:"
    )
    story.run("forkpatch bisect calc -- python3 -c 'from calc.core import mul; mul(2, 3)'")


def _choose(story: Story) -> None:
    story.tell("## A patch for some builds only\n\nA condition in the series names the option:")
    story.run(
        "sed -i 's/^multiply-fast.patch/& [board]/' patches/calc/1.0/series",
        "cat patches/calc/1.0/series",
        "forkpatch apply",
        "forkpatch apply --with board",
    )
    story.tell("Both of our builds are for boards, so the patch goes without a condition:")
    story.run("sed -i 's/ .board.//' patches/calc/1.0/series", "forkpatch apply")


def _together(story: Story) -> None:
    story.tell(
        "## Two changes at a time\n\nA colleague changes the series on a branch, and we do here."
        " Each is good by itself. `check --together` says whether both are:"
    )
    tree = ".work/first/calc"
    story.run(
        "git init -q -b main",
        "git add VERSIONS.lock patches overlays tests",
        "git commit -q -m 'Two patches'",
        "git checkout -q -b colleague",
        f"sed -i 's/return a + b/return b + a/' {tree}/calc/core.py",
        f"git -C {tree} commit -q -a -m 'Turn add'",
        "forkpatch export",
        "git add patches",
        "git commit -q -m 'Turn add'",
        "git checkout -q main",
        "forkpatch apply",
        f"sed -i 's/return a + b/return add_fast(a, b)/' {tree}/calc/core.py",
        f"git -C {tree} commit -q -a -m 'Add fast'",
        "forkpatch export",
    )
    story.run("forkpatch check --together colleague", code=1)
    story.tell("Neither is needed for what follows:")
    story.run(
        "git checkout -q -- patches",
        "git clean -q -f patches",
        "forkpatch apply",
        "git branch -q -D colleague",
    )


def _first_rebase(story: Story) -> None:
    drifted = CORE.replace("    return a + b", "    total = a + b\n    return total")
    story.release({"calc/core.py": drifted}, "v1.1")
    story.tell(
        "## The first rebase: upstream drifts\n\n"
        "`watch` lists newer versions; `probe` predicts which patches break."
    )
    story.run("forkpatch watch", "forkpatch probe calc")
    story.tell(
        "Nothing breaks. The rebase pins the new version like the one before, and adds a release:"
    )
    story.run("forkpatch rebase calc 1.1")
    _adopt(story, "1.1")


def _second_rebase(story: Story) -> None:
    moved = (
        (story.upstream / "calc/core.py")
        .read_text("utf-8")
        .replace(SUB, "")
        .replace("return a * b", "return mul_fast(a, b)")
    )
    story.release({"calc/core.py": moved, "calc/minus.py": SUB.rstrip() + "\n"}, "v2.0")
    story.tell(
        "## The second rebase: a function moves, and upstream takes a patch\n\n"
        "`sub` went to another file, and upstream now multiplies fast itself."
    )
    story.run("forkpatch probe calc")
    story.run("forkpatch rebase calc 2.0", code=1)
    story.tell("The change is made at the function's new place, and git's conflict is resolved:")
    story.run(
        "sed -i 's/return a - b/return b - a  # as the boards do/'"
        " .work/rebase/calc/tree/calc/minus.py",
        "git -C .work/rebase/calc/tree checkout --ours calc/core.py",
        "forkpatch rebase calc --continue",
    )
    story.tell(
        "The second patch is dropped, with the reason, since upstream has it. The old series is"
        " unchanged: `patches/calc/1.1` still builds the old release."
    )
    story.tell("What became of the series, patch by patch:")
    story.run("forkpatch range-diff calc 1.1 2.0")
    _adopt(story, "2.0")


def _third_rebase(story: Story) -> None:
    text = (story.upstream / "calc/minus.py").read_text("utf-8")
    story.release({"calc/minus.py": None, "calc/ops/minus.py": text}, "v3.0")
    story.tell("## The third rebase: a file is renamed")
    story.run("forkpatch rebase calc 3.0")
    _adopt(story, "3.0")
    story.tell(
        "## A branch for others\n\nPeople who want the series as commits get a branch on upstream's"
        " own commit:"
    )
    story.run("git init -q --bare ~/ours.git", "forkpatch push calc ~/ours.git ours-3.0")
    story.tell(
        "A weekly CI job can move the series by itself and open a pull request with the result:"
        " [the action](forkpatch.md#every-week).\n\nEvery version that was ever adopted can still"
        " be built: `forkpatch apply --release first`. A rebase that goes wrong is abandoned with"
        " `--abort`, and everything is as before."
    )


def _adopt(story: Story, release: str) -> None:
    story.tell("The fork adopts it as its default release:")
    story.run(
        f"sed -i 's/^default-release.*/default-release = \"{release}\"/' VERSIONS.lock",
        "forkpatch apply",
        "forkpatch export --check",
    )


def make_page() -> str:
    """The page, made in a temporary folder with a cache of its own."""
    with tempfile.TemporaryDirectory(prefix="carrying-") as name:
        folder = Path(name).resolve()
        identity = folder / "gitconfig"
        identity.write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n", "utf-8")
        changed = {
            "GIT_CONFIG_GLOBAL": str(identity),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "COLUMNS": "96",
            "FORKPATCH_COMMAND": "forkpatch",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        before = {key: os.environ.get(key) for key in changed}
        os.environ.update(changed)
        try:
            return write(folder)
        finally:
            for key, value in before.items():
                os.environ.pop(key, None) if value is None else os.environ.update({key: value})


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
    print(f"{PAGE} is renewed")
