# SPDX-License-Identifier: Apache-2.0
"""Whole lives of a fork, on upstreams of which a mirror has only a part."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from forklab import CORE, FILES, ForkLab, core, git, message

CORE_PATH, DOS, TAIL = "python/calc/core.py", "python/calc/dos.py", "python/calc/tail.py"
NEW_HOME = "python/calc/ops/größen.py"


def mirror_of(lab: ForkLab, kind: str, tag: str, target: Path) -> Path:
    """A clone that has only the included files of one tag, or only its last commit."""
    for key in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
        git(lab.repo.path, "config", key, "true")
    url = f"file://{lab.repo.path}"
    if kind == "shallow":
        git(target.parent, "clone", "-q", "--bare", "--depth=1", "-b", tag, url, str(target))
        return target
    git(target.parent, "clone", "-q", "--no-checkout", "--filter=blob:none", url, str(target))
    listed = git(target, "ls-tree", "-r", tag, "--", "python", "src", "LICENSE")
    for line in listed.splitlines():
        git(target, "cat-file", "blob", line.split()[2])
    git(target, "config", "remote.origin.url", f"{url}-gone")
    return target


def adopt(lab: ForkLab, version: str) -> None:
    text = (lab.root / "VERSIONS.lock").read_text()
    begin = text.index("[releases.r1]")
    end = text.index("[upstreams.calc]")
    release = f'[releases.r1]\ncalc = "{version}"\n'
    (lab.root / "VERSIONS.lock").write_text(text[:begin] + release + text[end:])
    lab.ok("apply", "--offline")
    assert "unchanged" in lab.ok("export", "--check").out


def begin(lab: ForkLab, tmp_path: Path, kind: str) -> None:
    """A series imported and added to, from a mirror that is gone afterwards."""
    folder = tmp_path / "quilt"
    folder.mkdir()
    diff = f"--- a/{CORE_PATH}\n+++ b/{CORE_PATH}\n@@ -10 +10 @@\n-    return a - b\n"
    (folder / "turn.diff").write_text(f"From: Eva Ő <eva@example.org>\n\n{diff}+    return b - a\n")
    (folder / "series").write_text("turn.diff\n")
    lab.edit_lock(f'url = "{lab.repo.path}"', f'url = "{tmp_path}/nowhere"')
    lab.forget()
    mirror = mirror_of(lab, kind, "v1.0", tmp_path / "mirror1")
    lab.ok("import-series", "calc", str(folder), "--mirror", f"calc={mirror}")
    shutil.rmtree(mirror)
    lab.ok("edit", "calc", "--offline")
    (lab.tree / DOS).write_bytes(FILES[DOS].replace(b"B = 2", b"B = 20"))
    (lab.tree / TAIL).write_bytes(b"X = 1\nY = 20")
    git(lab.tree, "commit", "-qam", message("Größer machen"), GIT_AUTHOR_NAME="Žofie Ünal")
    (lab.tree / CORE_PATH).write_bytes(core(sub="b - a", mul="b * a"))
    git(lab.tree, "commit", "-qam", message("Turn mul"))
    lab.ok("export", "calc")
    names = sorted(path.stem for path in lab.patches.glob("*.patch"))
    assert names == ["gr-er-machen", "turn", "turn-mul"]


def release(lab: ForkLab, version: str, kind: str, files: dict[str, bytes | None]) -> None:
    """The upstream releases a version, of which a mirror has a part; it is pinned."""
    lab.repo.commit(files, f"Version {version}")
    git(lab.repo.path, "tag", f"v{version}")
    mirror = mirror_of(lab, kind, f"v{version}", lab.home / f"mirror-{version}")
    lab.ok("lock", "--add", f"calc={version}", "--mirror", f"calc={mirror}")


@pytest.mark.parametrize("kind", ["partial", "shallow"])
def test_import_edit_export_and_three_rebases(lab: ForkLab, tmp_path: Path, kind: str) -> None:
    begin(lab, tmp_path, kind)

    # 2.0 renames core.py, and reformats a line beside one that a patch changes.
    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    reformatted = b"# numbers\r\n" + FILES[DOS].replace(b"A = 1", b"A  =  1")
    release(lab, "2.0", kind, {DOS: reformatted, CORE_PATH: None, NEW_HOME: CORE})
    done = lab.run("rebase", "calc", "2.0", "--json", "-")
    (conflict,) = done.json["plan"]["conflicts"]
    assert (done.code, conflict["path"], conflict["kind"]) == (1, DOS, "conflict")
    resolved = reformatted.replace(b"B = 2", b"B = 20")
    (lab.root / ".work/rebase/calc/tree" / DOS).write_bytes(resolved)
    lab.ok("rebase", "calc", "--continue")
    adopt(lab, "2.0")
    assert (lab.tree / NEW_HOME).read_bytes() == core(sub="b - a", mul="b * a")
    assert (lab.tree / DOS).read_bytes() == resolved
    assert (lab.tree / TAIL).read_bytes() == b"X = 1\nY = 20"

    # 3.0 has one of the changes itself.
    release(lab, "3.0", kind, {NEW_HOME: core(mul="b * a")})
    report = lab.ok("rebase", "calc", "3.0", "--json", "-").json
    outcomes = {one["patch"]: one["outcome"] for one in report["patches"]}
    assert outcomes == {
        "turn.patch": "clean",
        "gr-er-machen.patch": "clean",
        "turn-mul.patch": "dropped",
    }
    adopt(lab, "3.0")
    assert (lab.tree / NEW_HOME).read_bytes() == core(sub="b - a", mul="b * a")
    names = git(lab.tree, "log", "--format=%an", "refs/forkpatch/overlays..").splitlines()
    assert names == ["Žofie Ünal", "Eva Ő"]

    # 4.0 moves one function to another file; the first release still builds.
    start, end = CORE.index(b"def sub"), CORE.index(b"def mul")
    body = core(mul="b * a")
    moved: dict[str, bytes | None] = {NEW_HOME: body[:start] + body[end:]}
    release(lab, "4.0", kind, moved | {"python/calc/sub.py": CORE[start:end]})
    done = lab.run("rebase", "calc", "4.0", "--json", "-")
    assert done.json["plan"]["conflicts"][0]["kind"] == "symbol moved"
    lab.ok("rebase", "calc", "--skip", "not worth it any more")
    adopt(lab, "4.0")
    adopt(lab, "1.0")
    assert (lab.tree / CORE_PATH).read_bytes() == core(sub="b - a", mul="b * a")
