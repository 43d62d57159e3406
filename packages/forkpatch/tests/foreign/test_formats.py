# SPDX-License-Identifier: Apache-2.0
"""Series of other tools, imported without loss and given back byte for byte."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from debian_series import mirror
from forklab import CORE, FILES, ForkLab, core, git

from forkpatch.model.patchfile import Patch, load_series

CORE_PATH = "python/calc/core.py"
RUN = FILES["src/run.c"].decode()

EVERYTHING = """From: =?UTF-8?q?Jos=C3=A9?= <jose@example.org>
Date: Fri, 2 Jan 2026 03:04:05 +0530
Subject: [PATCH 1/3] Change modes,
 and more
Bug-Debian: https://bugs.example.org/1
Forwarded: no

A body.

Signed-off-by: A <a@b.c>
---
 README | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)

diff --git a/src/run.c b/src/run.c
old mode 100644
new mode 100755
diff --git a/python/calc/tail.py b/python/calc/end.py
similarity index 100%
rename from python/calc/tail.py
rename to python/calc/end.py
diff --git a/src/new.sh b/src/new.sh
new file mode 100755
index 0000000..1234567
--- /dev/null
+++ b/src/new.sh
@@ -0,0 +1 @@
+exit 0
diff --git a/src/empty b/src/empty
new file mode 100644
"""
PLAIN = f"""Description: One file after the other
 The first is changed.
 .
 The second is gone.
Author: Eva Ő
Bug-Debian: https://bugs.example.org/2
Last-Update: 2013-05-06
---
This patch header follows DEP-3.
Index: calc/python/calc/dos.py
===================================================================
--- calc.orig/python/calc/dos.py\t2013-01-01 00:00:00.000000000 +0000
+++ calc/python/calc/dos.py\t2013-01-01 00:00:00.000000000 +0000
@@ -1,3 +1,4 @@ remark
 A = 1\r
 B = 2\r
+--- D\r
 C = 3\r
--- calc.orig/src/run.c
+++ /dev/null
@@ -1,4 +0,0 @@
{"".join(f"-{line}" for line in RUN.splitlines(keepends=True))}--- /dev/null
+++ calc/src/made.c
@@ -0,0 +1 @@
+int made;
\\ No newline at end of file
"""


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def back(lab: ForkLab, form: str) -> dict[str, bytes]:
    output = lab.root / "out" / form
    shutil.rmtree(output, ignore_errors=True)
    lab.ok("export", "calc", "--format", form, "--output", str(output))
    return content(output)


def imported(lab: ForkLab, source: Path, *options: str) -> tuple[Patch, ...]:
    shutil.rmtree(lab.patches, ignore_errors=True)
    lab.ok("import-series", "calc", str(source), *options)
    lab.ok("apply", "--discard")
    assert "unchanged" in lab.ok("export", "--check").out
    return load_series(lab.patches)


def change(path: str, old: str, new: str, head: str = "", context: str = "") -> str:
    """A patch of one line of CORE, at its place."""
    number = CORE.decode().splitlines().index(old) + 1
    return f"{head}--- a/{path}\n+++ b/{path}\n@@ -{number} +{number} @@{context}\n-{old}\n+{new}\n"


def test_a_link_with_another_target_goes_out_and_comes_back(lab: ForkLab, tmp_path: Path) -> None:
    link = lab.repo.path / "python/calc/link"
    link.symlink_to("core.py")
    lab.repo.commit({}, "Link")
    git(lab.repo.path, "tag", "-f", "v1.0")
    lab.locked(tag="")
    lab.ok("apply")
    (lab.tree / "python/calc/link").unlink()
    (lab.tree / "python/calc/link").symlink_to("tail.py")
    git(lab.tree, "commit", "-qam", "Turn the link")
    lab.ok("export")
    out = tmp_path / "out"
    lab.ok("export", "calc", "--format", "format-patch", "--output", str(out))
    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    git(lab.repo.path, "am", "-q", *map(str, sorted(out.glob("*.patch"))))
    assert link.readlink() == Path("tail.py")
    (one,) = imported(lab, out)
    assert one.files[0].mode == "120000"
    assert (lab.tree / "python/calc/link").readlink() == Path("tail.py")


@pytest.mark.parametrize(
    ("written", "date"),
    [
        ("Fri, 2 Jan 2026 03:04:05 +0530", "1767303245 +0530"),
        ("Fri, 2 Jan 2026", "1767312000 +0000"),
        ("2026-01-02", "1767312000 +0000"),
    ],
)
def test_a_date_may_be_a_day(lab: ForkLab, tmp_path: Path, written: str, date: str) -> None:
    text = change("python/calc/core.py", "    return a + b", "    return b + a")
    head = f"From: A <a@b.c>\nDate: {written}\nSubject: Turn\n\n"
    source = write(tmp_path / "q", {"series": "a.patch\n", "a.patch": head + text})
    (one,) = imported(lab, source)
    assert one.date == date and one.trailer("Upstream-Status") is None
    assert back(lab, "quilt") == content(source)


def test_nothing_of_a_patch_is_lost(lab: ForkLab, tmp_path: Path) -> None:
    source = write(tmp_path / "q", {"series": "all.patch\n2_plain.diff\n", "all.patch": EVERYTHING})
    (source / "2_plain.diff").write_bytes(
        PLAIN.replace("src/run.c", "LICENSE")
        .replace(
            "@@ -1,4 +0,0 @@\n" + "".join(f"-{x}" for x in RUN.splitlines(keepends=True)),
            "@@ -1 +0,0 @@\n-free\n",
        )
        .encode()
    )
    one, two = imported(lab, source)
    assert one.author == "José <jose@example.org>" and one.date == "1767303245 +0530"
    assert one.message == (
        "Change modes, and more\n\nA body.\n\nSigned-off-by: A <a@b.c>\n"
        "Bug-Debian: https://bugs.example.org/1\nForwarded: no\nUpstream-Status: Pending\n"
    )
    assert (lab.tree / "src/run.c").stat().st_mode & 0o111
    assert (lab.tree / "src/new.sh").stat().st_mode & 0o111
    assert (lab.tree / "src/empty").read_bytes() == b""
    assert (lab.tree / "python/calc/end.py").read_bytes() == FILES["python/calc/tail.py"]
    assert not (lab.tree / "python/calc/tail.py").exists()
    assert (lab.tree / "python/calc/dos.py").read_bytes() == b"A = 1\r\nB = 2\r\n--- D\r\nC = 3\r\n"
    assert (lab.tree / "src/made.c").read_bytes() == b"int made;"
    assert not (lab.tree / "LICENSE").exists()
    assert two.date == "1367798400 +0000"
    assert two.message == (
        "One file after the other\n\nThe first is changed.\n\nThe second is gone.\n\n"
        "This patch header follows DEP-3.\n\nAuthor: Eva Ő\n"
        "Bug-Debian: https://bugs.example.org/2\nLast-Update: 2013-05-06\n"
    )
    assert two.author == "Eva Ő <unknown@localhost>"
    assert back(lab, "debian") == back(lab, "quilt") == content(source)


def test_guards_choose_and_reversed_patches_are_reversed(lab: ForkLab, tmp_path: Path) -> None:
    zero = change(CORE_PATH, "    return a * b", "    return 0")
    undone = change(CORE_PATH, "    return a - b", "    return b - a")
    added, removed = "    return a - b", "    return b - a"
    undone = undone.replace(f"-{added}\n+{removed}", f"-{removed}\n+{added}")
    series = (
        "# first\n+arm zero.patch\n-old sub/undone.patch -R # turned\n\nskip.patch #+mips\n# end\n"
    )
    files = {"series": series, "zero.patch": zero, "sub/undone.patch": undone, "skip.patch": zero}
    source = write(tmp_path / "q", files)
    done = lab.run("import-series", "calc", str(source))
    assert done.code == 2 and "series: '+arm zero.patch' has guards" in done.err
    assert "--guard NAME, of arm, mips, old" in done.err and not lab.patches.exists()
    done = lab.run("import-series", "calc", str(source), "--guard", "arm", "--guard", "amr")
    assert done.code == 2 and "--guard amr: " in done.err and "arm, mips, old" in done.err
    assert [one.name for one in imported(lab, source, "--no-guards")] == ["undone.patch"]
    names = [one.name for one in imported(lab, source, "--guard", "arm")]
    assert names == ["zero.patch", "undone.patch"]
    assert (lab.tree / CORE_PATH).read_bytes() == core(sub="b - a", mul="0")
    assert back(lab, "quilt") == content(source)


@pytest.mark.parametrize("layout", ["numbered", "listed", "mailbox"])
def test_git_formats_come_and_go(lab: ForkLab, tmp_path: Path, layout: str) -> None:
    repo = lab.repo
    git(repo.path, "checkout", "-q", "--detach", "v1.0")
    repo.commit({CORE_PATH: core(sub="b - a")}, "Turn: sübtract\n\nFrom here.\n\nAcked-by: X <x@y>")
    repo.commit({CORE_PATH: core(sub="b - a", mul="0")}, "[core] Zero")
    folder = tmp_path / "git"
    git(repo.path, "format-patch", "-q", "-o", str(folder), "--signature=2.39", "v1.0")
    wanted = content(folder)
    if layout == "listed":
        (folder / ".patches").write_text("".join(f"{name}\n" for name in sorted(wanted)))
        wanted = content(folder)
    source = folder
    if layout == "mailbox":
        source = tmp_path / "all.mbox"
        source.write_bytes(b"".join(data for _, data in sorted(wanted.items())))
    one, two = imported(lab, source)
    assert one.message == "Turn: sübtract\n\nFrom here.\n\nAcked-by: X <x@y>\n"
    assert one.author == "Ada <ada@example.org>" and one.date == "1767315845 +0200"
    assert two.subject == "[core] Zero"
    found = back(lab, "format-patch")
    if layout == "mailbox":
        assert b"".join(data for _, data in sorted(found.items())) == source.read_bytes()
    else:
        assert found == wanted


def test_a_mail_in_the_head_of_a_patch_stays_in_its_message(lab: ForkLab, tmp_path: Path) -> None:
    first = "From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001"
    turn = change(
        CORE_PATH, "    return a - b", "    return b - a", f"Turn it\n\n{first}\nFrom: A\n"
    )
    imported(lab, write(tmp_path / "q", {"series": "turn.patch\n", "turn.patch": turn}))
    assert any(first in line for line in content(lab.patches)["turn.patch"].decode().splitlines())
    (name,) = (name for name in back(lab, "format-patch") if name.endswith(".patch"))
    mails = tmp_path / "mails"
    mails.mkdir()
    assert (
        git(lab.root, "mailsplit", f"-o{mails}", str(lab.root / "out/format-patch" / name)) == "1"
    )


def test_a_line_about_a_diff_is_a_part_of_the_description(lab: ForkLab, tmp_path: Path) -> None:
    message = "Turn it\n\nWhat the\ndiff between both shows:\nthe order.\n"
    turn = change(CORE_PATH, "    return a - b", "    return b - a", message)
    (one,) = imported(lab, write(tmp_path / "q", {"series": "turn.patch\n", "turn.patch": turn}))
    assert one.message.startswith(message)


def test_mail_in_transport_encoding(lab: ForkLab, tmp_path: Path) -> None:
    diff = change(CORE_PATH, "    return a * b", "    return 0  # =3D").replace("=3D", "=")
    body = f"Größe\n---\n{diff}".encode("latin-1").replace(b"=", b"=3D")
    body = b"".join(b"=%02X" % c if c > 126 else bytes([c]) for c in body)
    head = (
        "From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001\n"
        "From: A <a@b.c>\nDate: Fri, 2 Jan 2026 03:04:05 +0000\nSubject: [PATCH v2] Zero\n"
        "Content-Type: text/plain; charset=iso-8859-1\nMIME-Version: 1.0\n"
        "Content-Transfer-Encoding: quoted-printable\n\n"
    )
    (tmp_path / "m.mbox").write_bytes(head.encode() + body)
    (one,) = imported(lab, tmp_path / "m.mbox")
    assert one.message.startswith("Zero\n\nGröße\n") and one.author == "A <a@b.c>"
    assert b"    return 0  # =\n" in (lab.tree / CORE_PATH).read_bytes()


def test_patches_in_no_order_may_not_meet(lab: ForkLab, tmp_path: Path) -> None:
    zero = change(CORE_PATH, "    return a * b", "    return 0")
    free = "diff --git a/LICENSE b/LICENSE\nindex 1..2 100644\n--- a/LICENSE\n+++ b/LICENSE\n"
    free += "@@ -1 +1 @@\n-free\n+freer\n"
    source = write(tmp_path / "b", {"LICENSE.patch": free, "core.py.patch": zero})
    assert [one.subject for one in imported(lab, source)] == ["LICENSE", "Core.py"]
    write(source, {"z.patch": free.replace("free", "freer")})
    shutil.rmtree(lab.patches)
    done = lab.run("import-series", "calc", str(source))
    assert done.code == 2 and "LICENSE" in done.err and not lab.patches.exists()


@pytest.mark.parametrize("form", ["quilt", "debian", "format-patch"])
def test_own_series_comes_back_as_it_was(lab: ForkLab, form: str) -> None:
    status = "\n\nWhy.\n\nUpstream-Status: Backport [0123abcd]\nTest: t.py::t\n"
    for name, files in (
        ("a.patch", {CORE_PATH: core(sub="b - a"), "src/new.c": b"int n;\n"}),
        ("b.patch", {CORE_PATH: core(sub="b - a", mul="0"), "src/run.c": None}),
    ):
        data = lab.repo.patch(
            files, f"Ünïcode {name} and a subject so long that it is folded{status}"
        )
        lab.add_patch(name, data)
    lab.ok("record")
    before = content(lab.patches)
    found = back(lab, form)
    assert len(found) == (2 if form == "format-patch" else 3)
    if form == "debian":
        assert b"\nOrigin: backport, 0123abcd\n---\n" in found["a.patch"]
    imported(lab, lab.root / "out" / form)
    after = {n: d for n, d in content(lab.patches).items() if not n.startswith("origin/")}
    assert after == before
    assert back(lab, form) == found


@pytest.mark.parametrize("form", ["quilt", "format-patch"])
def test_an_export_gives_the_tree_with_its_overlays(
    lab: ForkLab, tmp_path: Path, form: str
) -> None:
    lab.change("a.patch", {CORE_PATH: core(sub="b - a")})
    for path, data in (("src/own/new.c", b"int n;\n"), ("tool.sh", b"exit 0")):
        (lab.overlays / path).parent.mkdir(parents=True, exist_ok=True)
        (lab.overlays / path).write_bytes(data)
    (lab.overlays / "tool.sh").chmod(0o755)
    lab.ok("apply")
    folder = lab.root / "out" / form
    done = lab.ok("export", "calc", "--format", form, "--output", str(folder))
    assert "adds the 2 overlay files of" in done.out
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "-b", "v1.0", str(lab.repo.path), str(clone))
    if form == "quilt":
        for name in (folder / "series").read_text().split():
            git(clone, "apply", "--index", str(folder / name))
    else:
        git(clone, "am", "-q", *map(str, sorted(folder.glob("*.patch"))))
    for path in (CORE_PATH, "src/own/new.c", "tool.sh"):
        assert (clone / path).read_bytes() == (lab.tree / path).read_bytes()
        assert (clone / path).stat().st_mode & 0o111 == (lab.tree / path).stat().st_mode & 0o111
    shutil.rmtree(lab.patches)
    refused = lab.run("import-series", "calc", str(folder))
    assert refused.code == 2 and "overlay" in refused.err


OWN_FIELDS = (
    "Upstream-Status: Pending\nForwarded: no",
    "Upstream-Status: Pending\nTest: t.py::t\nForwarded: no",
    "Upstream-Status: Pending\nForwarded: no\nTest: t.py::t",
    "Upstream-Status: Backport [0123abcd]\nOrigin: backport, 0123abcd",
    "Upstream-Status: Inappropriate [ours]\nForwarded: not-needed",
)


@pytest.mark.parametrize("form", ["quilt", "debian", "format-patch"])
def test_field_of_the_message_itself_is_not_taken_for_an_added_one(lab: ForkLab, form: str) -> None:
    for number, fields in enumerate(OWN_FIELDS):
        text = f"Turn {number}\n\nWhy.\n\n{fields}\n"
        files = {f"src/n{number}.c": b"int n;\n"}
        lab.add_patch(f"turn-{number}.patch", lab.repo.patch(files, text))
    before = content(lab.patches)
    found = back(lab, form)
    imported(lab, lab.root / "out" / form)
    after = content(lab.patches)
    assert {name: after[name] for name in before} == before
    assert back(lab, form) == found


def test_changed_patch_keeps_its_head_and_the_others_their_bytes(
    lab: ForkLab, tmp_path: Path
) -> None:
    head = "Description: Turn\nAuthor: A <a@b.c>\nForwarded: not-needed\nX-Odd:  as it is \n---\n"
    turn = change(CORE_PATH, "    return a - b", "    return b - a", head, context=" kept")
    zero = change(CORE_PATH, "    return a * b", "    return 0", "Zero it\n\n")
    source = write(tmp_path / "q", {"series": "turn.patch -p1\nzero.patch\n", "turn.patch": turn})
    write(source, {"zero.patch": zero})
    imported(lab, source)
    (lab.tree / CORE_PATH).write_bytes(core(sub="b + a", mul="0"))
    git(lab.tree, "commit", "-qa", "--fixup", git(lab.tree, "rev-parse", "HEAD~1"))
    git(lab.tree, "rebase", "-q", "-i", "--autosquash", "refs/forkpatch/overlays",
        GIT_SEQUENCE_EDITOR="true")  # fmt: skip
    lab.ok("export")
    found = back(lab, "quilt")
    assert found["series"] == b"turn.patch -p1\nzero.patch\n"
    assert found["zero.patch"] == zero.encode()
    assert found["turn.patch"].startswith(head.encode() + b"diff --git ")
    assert b"\n+    return b + a\n" in found["turn.patch"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("*** a/x\n--- b/x\n***************\n", "a context diff"),
        ("Binary files a/x and b/x differ\n", "it holds no diff"),
        ("diff --git a/x b/x\nBinary files a/x and b/x differ\n", "does not say how"),
        ("--- a/LICENSE\n+++ b/LICENSE\n@@ -1 +1 @@\n-free\n", "other lines than it states"),
        ("--- a/nowhere\n+++ b/nowhere\n@@ -1 +1 @@\n-free\n+x\n", "is not in the tree"),
        ("--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-free\n+x\n", "refused path"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(
    lab: ForkLab, tmp_path: Path, text: str, reason: str
) -> None:
    source = write(tmp_path / "q", {"series": "odd.patch\n", "odd.patch": text})
    done = lab.run("import-series", "calc", str(source))
    assert reason in done.err + done.out and "odd.patch" in done.err + done.out
    assert (done.code, lab.patches.exists()) in ((2, False), (0, True))


def test_binary_file_goes_to_git_alone(lab: ForkLab) -> None:
    lab.add_patch("logo.patch", lab.repo.patch({"src/logo.png": bytes(range(256))}, "Logo"))
    lab.ok("record")
    done = lab.run("export", "calc", "--format", "quilt", "--output", str(lab.root / "out"))
    assert done.code == 2 and "logo.patch" in done.err and "is a binary file" in done.err


@pytest.mark.skipif(shutil.which("dpkg-source") is None, reason="no dpkg-source")
def test_debian_package_has_the_tree_that_dpkg_source_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    tree = write(tmp_path / "tiny-1", dict(FILES))
    archive = ["tar", "-C", str(tmp_path), "-czf", str(tmp_path / "tiny_1.orig.tar.gz"), "tiny-1"]
    subprocess.run(archive, check=True)
    moved = change(CORE_PATH, "    return a * b", "    return 0").replace("@@ -16", "@@ -12")
    patches = {
        "01.patch": PLAIN,
        "sub/moved.diff": moved,
        "series": "# x\n01.patch\nsub/moved.diff\n",
    }
    write(tree / "debian/patches", patches)
    debian = {
        "source/format": "3.0 (quilt)\n",
        "control": "Source: tiny\nMaintainer: A <a@b.c>\nStandards-Version: 4\n\nPackage: tiny\n"
        "Architecture: all\nDescription: x\n",
        "changelog": "tiny (1-1) unstable; urgency=low\n\n  * x\n\n"
        " -- A <a@b.c>  Fri, 02 Jan 2026 03:04:05 +0000\n",
    }
    write(tree / "debian", debian)
    build = ["dpkg-source", "--no-check", "-q", "-b", "tiny-1"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    (tmp_path / "mirror").mkdir()
    result = mirror(tmp_path / "tiny_1-1.dsc", tmp_path / "mirror")
    assert (result.patches, result.shifted, result.refused) == (2, 1, "")
    assert (result.tree, result.series) == ((), ()) and result.files > 5
