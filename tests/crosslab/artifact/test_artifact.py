# SPDX-License-Identifier: Apache-2.0
"""The artefact: folder, manifest, bill of materials, tarball, and the refusal of a bad one."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.shared_builds import PROJECT

from crosslab.__main__ import run
from crosslab.artifact.dist import RUN, SERVICE, Dist, write_dist
from crosslab.artifact.manifest import MANIFEST, SBOM, SUMS
from crosslab.artifact.package import finished, package
from crosslab.artifact.package import main as package_main
from crosslab.artifact.packages import build_packages
from crosslab.artifact.relink import SCRIPT
from crosslab.artifact.sbom import Part, render_sbom, sbom_problem
from crosslab.artifact.tarball import normalised_tar
from crosslab.artifact.verify import verify_tarball
from crosslab.errors import LabError, UserError

ORIGIN = {"tvm": {"version": "1", "patches": [{"name": "a.patch", "sha256": "0" * 64}]}}
ABOUT = {"release": "R", "target": "T", "model": "M", "quantization": "Q"}
ABOUT |= {"vlens": [128, 256], "zvfh": False, "holds": {"runner": "a program"}}  # type: ignore[dict-item]
ABOUT |= {"inputs": {"upstreams": ORIGIN}, "verdict": "right", "links_again": True}  # type: ignore[dict-item]


@pytest.fixture
def dist(tmp_path: Path) -> Dist:
    return make_dist(tmp_path)


def make_dist(at: Path) -> Dist:
    (at / "params").mkdir(parents=True)
    (at / "params" / "tensor-cache.json").write_text('{"records": []}', encoding="utf-8")
    (at / "params" / "shard.bin").write_bytes(bytes(range(256)) * 5)
    (at / "built").write_bytes(b"\x7fELF")
    (at / "built").chmod(0o700)
    (at / "tokenizer.json").write_text("{}", encoding="utf-8")
    files = {"runner": at / "built", "run.sh": RUN, SERVICE.name: SERVICE}
    files |= {"params": at / "params", "tokenizer.json": at / "tokenizer.json"}
    whole = Part("M", "R", "Apache-2.0", shipped=True, kind="application")
    patched = (("patches/tvm/a.patch", "0" * 64), ("patches/tvm/b.patch", "1" * 64))
    part = Part("tvm", "1", "Apache-2.0", shipped=True, purl="pkg:github/apache/tvm@1")
    return Dist(at / "dist/R/T/M", files, ABOUT, whole, (replace(part, patches=patched),))


def test_folder_is_whole_and_described(dist: Dist) -> None:
    manifest = json.loads(write_dist(dist).read_text(encoding="utf-8"))
    names = {entry["path"] for entry in manifest["files"]}
    assert names == {
        "runner",
        "run.sh",
        "mlc-rvv.service",
        "README.md",
        "tokenizer.json",
        "params/tensor-cache.json",
        "params/shard.bin",
        SBOM,
        SUMS,
    }
    assert manifest["model"] == "M"
    assert [p.name for p in dist.folder.parent.iterdir()] == ["M"]
    modes = {p.name: p.stat().st_mode & 0o777 for p in dist.folder.iterdir()}
    assert (modes["runner"], modes["run.sh"], modes[MANIFEST], modes["params"]) == (
        0o755,
        0o755,
        0o644,
        0o755,
    )


def test_a_damaged_shard_is_noticed_on_the_board_and_before(
    dist: Dist, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dist(dist)
    link = tmp_path / "elsewhere" / "model"
    link.parent.mkdir()
    link.symlink_to(os.path.relpath(dist.folder / "run.sh", link.parent))

    def on_the_board() -> subprocess.CompletedProcess[str]:
        return subprocess.run([link, "verify"], capture_output=True, text=True, check=False)

    assert on_the_board().stdout == "8 files are as they were made\n"
    assert package_main(["verify", str(dist.folder)]) == 0
    shard = dist.folder / "params" / "shard.bin"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:700] + bytes([whole[700] ^ 1]) + whole[701:])
    done = on_the_board()
    assert (done.returncode, done.stdout) == (1, "params/shard.bin: FAILED\n")
    assert "files are damaged" in done.stderr
    capsys.readouterr()
    assert package_main(["verify", str(dist.folder)]) == 1
    assert "params/shard.bin: differs from the manifest" in capsys.readouterr().out
    (dist.folder / "no text \udcff").touch()
    assert package_main(["verify", str(dist.folder)]) == 1
    assert "no text \\udcff: is not in the manifest" in capsys.readouterr().out
    with pytest.raises(UserError, match="a folder has none"):
        package_main(["verify", str(dist.folder), "--sha256", "0" * 64])


def test_folder_is_written_again_only_when_something_differs(dist: Dist) -> None:
    first = write_dist(dist).stat().st_mtime_ns
    assert write_dist(dist).stat().st_mtime_ns == first
    (dist.folder / "left-over").write_text("", encoding="utf-8")
    changed = replace(dist, about={**ABOUT, "vlen": 128})
    manifest = json.loads(write_dist(changed).read_text(encoding="utf-8"))
    assert manifest["vlen"] == 128
    assert not (dist.folder / "left-over").exists()
    damaged = dist.folder / "params" / "shard.bin"
    damaged.write_bytes(b"x")
    write_dist(changed)
    assert damaged.read_bytes() == bytes(range(256)) * 5


def test_bill_of_materials_is_valid_and_names_everything(dist: Dist) -> None:
    write_dist(dist)
    text = (dist.folder / SBOM).read_text(encoding="utf-8")
    assert sbom_problem(text) == ""
    bill = json.loads(text)
    by_name = {component["name"]: component for component in bill["components"]}
    assert by_name["tvm"]["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    urls = [patch["diff"]["url"] for patch in by_name["tvm"]["pedigree"]["patches"]]
    assert urls == [f"patches/tvm/{n}.patch#sha256={d * 64}" for n, d in (("a", "0"), ("b", "1"))]
    assert by_name["params/shard.bin"]["type"] == "file"
    assert "timestamp" not in bill["metadata"]
    assert sbom_problem(text.replace('"file"', '"thing"')) != ""
    assert sbom_problem("{") != ""


def test_bill_changes_with_its_parts_alone() -> None:
    whole = Part("M", "R", "MIT", shipped=True)
    parts = [Part("a", "1", "", shipped=True), Part("b", "2", "Some licence", shipped=False)]
    one, same = render_sbom(whole, parts, []), render_sbom(whole, parts, [])
    assert one == same
    other = render_sbom(whole, [parts[0], replace(parts[1], version="3")], [])
    assert json.loads(one)["serialNumber"] != json.loads(other)["serialNumber"]


def test_packages_of_a_build_are_followed_to_the_last() -> None:
    found = {part.name: part for part in build_packages(PROJECT, [], frozenset())}
    assert {"cyclonedx-python-lib", "numpy", "markupsafe", "jsonschema"} <= set(found)
    assert found["markupsafe"].purl == f"pkg:pypi/markupsafe@{found['markupsafe'].version}"
    without = [part.name for part in found.values() if not part.licence]
    assert without == []
    assert not any(part.shipped for part in found.values())


def test_tarball_does_not_depend_on_the_user_who_packs_it(dist: Dist, tmp_path: Path) -> None:
    write_dist(dist)
    (first,) = (target.read_bytes() for target in package([dist.folder], tmp_path / "one"))
    other = make_dist(tmp_path / "elsewhere, with another näme")
    before = os.umask(0o077)
    try:
        write_dist(other)
        os.utime(other.folder / "runner", (1, 1))
        (second,) = (target.read_bytes() for target in package([other.folder], tmp_path / "two"))
    finally:
        os.umask(before)
    assert first == second
    findings, table = verify_tarball(tmp_path / "one" / "mlc-rvv-R-T-M.tar")
    assert findings == []
    assert table["inputs"]["upstreams"] == ORIGIN


def test_library_loses_its_dates_and_keeps_its_order(tmp_path: Path) -> None:
    def library(name: str, mtime: int) -> Path:
        with tarfile.open(tmp_path / name, "w") as archive:
            for member in ("lib1.o", "devc.o"):
                info = tarfile.TarInfo(member)
                info.size, info.mtime, info.uname = 4, mtime, name
                archive.addfile(info, io.BytesIO(member[:4].encode()))
        return tmp_path / name

    one, two = normalised_tar(library("a", 1)), normalised_tar(library("b", 2_000_000_000))
    assert one == two
    with tarfile.open(fileobj=io.BytesIO(one)) as archive:
        assert archive.getnames() == ["lib1.o", "devc.o"]


def test_folder_that_was_changed_is_not_packed(dist: Dist, tmp_path: Path) -> None:
    write_dist(dist)
    (dist.folder / "runner").write_bytes(b"\x7fELG")
    (dist.folder / "more").write_bytes(b"")
    with pytest.raises(LabError) as caught:
        package([dist.folder], tmp_path)
    assert "runner: differs from the manifest" in caught.value.what
    assert "more: is not in the manifest" in caught.value.what
    with pytest.raises(UserError, match="there is no folder") as caught:
        package_main([str(tmp_path / "nosuch")])
    assert "verify TARBALL" in caught.value.remedy
    with pytest.raises(UserError, match="cannot read") as caught:
        package_main(["verify", str(tmp_path / "nosuch.tar")])
    assert "dist/*.tar" in caught.value.remedy
    with pytest.raises(UserError, match=f"holds no {MANIFEST}"):
        package([tmp_path], tmp_path)
    with pytest.raises(UserError, match="no finished model"):
        package_main(["--project", str(tmp_path / "params")])


def test_artefact_of_unknown_patches_is_not_packed(dist: Dist, tmp_path: Path) -> None:
    write_dist(replace(dist, about={**ABOUT, "inputs": {"upstreams": {}}}))
    with pytest.raises(LabError, match="does not list the patches"):
        package([dist.folder], tmp_path)


def test_a_model_with_a_wrong_answer_is_not_packed(
    dist: Dist, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor anything beside it, nor in silence an older one under its name."""
    write_dist(dist)
    write_dist(replace(dist, folder=dist.folder.with_name("A")))
    project = ["--project", str(tmp_path)]
    assert package_main(project) == 0
    older = tmp_path / "dist" / f"{TOP}.tar"
    capsys.readouterr()
    before = older.read_bytes()
    other = older.with_name("mlc-rvv-R-T-A.tar")
    other.unlink()
    # README.md, which goes with run.sh, always has a verdict.
    files = {name: path for name, path in dist.files.items() if name != "run.sh"}
    for verdict in ("wrong", None):
        write_dist(replace(dist, about={**ABOUT, "verdict": verdict}, files=files))
        with pytest.raises(UserError, match="T/M is not packed: ") as caught:
            package_main(project)
        assert f"{older} is from an earlier build" in caught.value.what
        assert "nox -s model" in caught.value.remedy
        assert older.read_bytes() == before
        assert not other.exists()
        assert package_main(["verify", str(dist.folder)]) == (verdict == "wrong")
    said = capsys.readouterr().out
    assert "its answer was wrong" in said and "do not use it" in said
    assert "does not say whether its answer is right" in said


def test_verify_says_that_an_answer_was_not_compared(
    dist: Dist, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dist(replace(dist, about={**ABOUT, "verdict": "unchecked"}))
    assert package_main(["verify", str(dist.folder)]) == 0
    assert "its answer was not compared with a reference" in capsys.readouterr().out
    assert "**not compared**" in (dist.folder / "README.md").read_text(encoding="utf-8")


def test_objects_have_a_tarball_of_their_own(dist: Dist, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "library.tar", "w") as archive:
        archive.add(tmp_path / "built", "lib0.o")
    made = hashlib.sha256(dist.files["runner"].read_bytes()).hexdigest()
    objects = replace(
        dist,
        folder=dist.folder.with_name("M-objects"),
        files={"model.tar": tmp_path / "library.tar", "relink.sh": SCRIPT},
        about={**ABOUT, "runner": made},
    )
    for one in (dist, objects):
        write_dist(one)
    both = package([dist.folder], tmp_path)
    assert [target.name for target in both] == [f"{TOP}.tar", f"{TOP}-objects.tar"]
    assert package(finished(tmp_path / "dist"), tmp_path) == both
    found = [verify_tarball(target) for target in both]
    assert [findings for findings, _ in found] == [[], []]
    names = [{entry["path"] for entry in table["files"]} for _, table in found]
    assert {"model.tar", "relink.sh"} <= names[1] - names[0]
    readme = (dist.folder / "README.md").read_text(encoding="utf-8")
    assert "LGPL 2.1" in readme and both[1].name in readme
    # Of another build, after a run that was ended between the two.
    write_dist(replace(objects, about={**ABOUT, "runner": "0" * 64}))
    with pytest.raises(LabError, match="M-objects is of another build than"):
        package([dist.folder], tmp_path)


@pytest.fixture
def tarball(dist: Dist, tmp_path: Path) -> Path:
    write_dist(dist)
    return package([dist.folder], tmp_path / "packed")[0]


Change = Callable[[dict[str, tuple[tarfile.TarInfo, bytes]]], None]


def rewrite(tarball: Path, change: Change) -> Path:
    """The tarball after somebody's changes."""
    with tarfile.open(tarball) as archive:
        members = {m.name: (m, archive.extractfile(m).read()) for m in archive}  # type: ignore[union-attr]
    change(members)
    with tarfile.open(tarball, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, (info, data) in members.items():
            info.name, info.size = name.rstrip("+"), len(data) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(data))
    return tarball


TOP = "mlc-rvv-R-T-M"


def plain(data: bytes, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo("x")
    info.mode = 0o644
    for name, value in fields.items():
        setattr(info, name, value)
    return info, data


def change_byte(members: dict[str, tuple[tarfile.TarInfo, bytes]]) -> None:
    info, data = members[f"{TOP}/params/shard.bin"]
    members[f"{TOP}/params/shard.bin"] = info, data[:-1] + b"!"


def tell_otherwise(members: dict[str, tuple[tarfile.TarInfo, bytes]]) -> None:
    info, data = members[f"{TOP}/{MANIFEST}"]
    members[f"{TOP}/{MANIFEST}"] = info, data.replace(b'"target": "T"', b'"target": "U"')


def drop_licence(members: dict[str, tuple[tarfile.TarInfo, bytes]]) -> None:
    info, data = members[f"{TOP}/{SBOM}"]
    text = data.replace(b'"type": "application"', b'"type": "thing"')
    assert text != data
    members[f"{TOP}/{SBOM}"] = info, text


HOSTILE: dict[str, tuple[Change, str]] = {
    "byte": (change_byte, "params/shard.bin: differs from the manifest"),
    "missing": (lambda m: m.pop(f"{TOP}/runner") and None, "runner: is missing"),
    "extra": (lambda m: m.update({f"{TOP}/x": plain(b"x")}), "x: is not in the manifest"),
    "twice": (lambda m: m.update({f"{TOP}/runner+": plain(b"")}), "runner: occurs twice"),
    "up": (lambda m: m.update({f"{TOP}/../../x": plain(b"x")}), "its path leaves the folder"),
    "absolute": (lambda m: m.update({"/etc/x": plain(b"x")}), "its path leaves the folder"),
    "beside": (lambda m: m.update({"other/x": plain(b"x")}), f"it lies outside {TOP}/"),
    "dotted": (lambda m: m.update({f"{TOP}/./x": plain(b"")}), "not written plainly"),
    "no text": (lambda m: m.update({f"{TOP}/a\udcff": plain(b"")}), "not written plainly"),
    "newline": (lambda m: m.update({f"{TOP}/a\nb": plain(b"")}), "not written plainly"),
    "setuid": (lambda m: m.update({f"{TOP}/x": plain(b"", mode=0o4755)}), "its mode is 4755"),
    "link": (
        lambda m: m.update({f"{TOP}/x": plain(b"", type=tarfile.SYMTYPE, linkname="/etc/x")}),
        "it is not a plain file",
    ),
    "device": (
        lambda m: m.update({f"{TOP}/x": plain(b"", type=tarfile.CHRTYPE)}),
        "it is not a plain file",
    ),
    "owner": (
        lambda m: m.update({f"{TOP}/x": plain(b"", uname="somebody")}),
        "its header differs from those that package writes",
    ),
    "told otherwise": (tell_otherwise, f"{MANIFEST}: it changed after it was written"),
    "no manifest": (lambda m: m.pop(f"{TOP}/{MANIFEST}") and None, f"{MANIFEST}: is missing"),
    "no bill": (lambda m: m.pop(f"{TOP}/{SBOM}") and None, f"{SBOM}: is missing"),
    "bad bill": (drop_licence, f"{SBOM}: is not valid CycloneDX"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_changed_tarball_is_refused(tarball: Path, kind: str) -> None:
    change, message = HOSTILE[kind]
    findings, _ = verify_tarball(rewrite(tarball, change))
    assert any(message in str(finding) for finding in findings), [*map(str, findings)]


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"[]",
        b'{"schema": 1}',
        b'{"schema": 2, "files": [{}]}',
        b"[" * 100_000,
        b"\xff",
        b'{"schema": 2, "\\ud800": 1}',
    ],
)
def test_malformed_manifest_is_said_to_be_one(tarball: Path, text: bytes) -> None:
    def change(members: dict[str, tuple[tarfile.TarInfo, bytes]]) -> None:
        members[f"{TOP}/{MANIFEST}"] = members[f"{TOP}/{MANIFEST}"][0], text

    findings, table = verify_tarball(rewrite(tarball, change))
    assert table == {}
    assert any(finding.path == MANIFEST for finding in findings)


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(place=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255), cut=st.booleans())
def test_no_single_byte_can_change_unseen(
    tarball: Path, tmp_path: Path, place: float, bits: int, cut: bool
) -> None:
    data = bytearray(tarball.read_bytes())
    with tarfile.open(tarball) as archive:
        last = archive.getmembers()[-1]
    used = last.offset_data + last.size
    at = int(place * used)
    data[at] ^= bits
    changed = tmp_path / "changed.tar"
    changed.write_bytes(data[: at + 1] if cut else data)
    try:
        findings, _ = verify_tarball(changed)
    except UserError:
        return
    assert findings


def test_verify_speaks_plainly_and_exits_with_0_1_2(
    tarball: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["package", "verify", str(tarball)]) == 0
    assert "good: M Q T R, 9 files; its answer is the reference's" in capsys.readouterr().out
    assert run(["package", "verify", str(rewrite(tarball, change_byte))]) == 1
    wrong = "wrong: params/shard.bin: differs from the manifest: 1280 bytes"
    assert wrong in capsys.readouterr().out
    tarball.write_bytes(b"no tar")
    environment = {**os.environ, "COLUMNS": "200"}
    for path in (tarball, tarball.with_name("nothing")):
        done = subprocess.run(
            [sys.executable, "-m", "crosslab", "package", "verify", str(path)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert str(path) in done.stderr and "Traceback" not in done.stderr


def test_verify_compares_with_the_hash_that_was_told(
    tarball: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sha256 = hashlib.sha256(tarball.read_bytes()).hexdigest()
    assert run(["package", "verify", str(tarball), "--sha256", sha256.upper()]) == 0
    assert f"{sha256}: equal to --sha256" in capsys.readouterr().out
    # Whole in itself, and not the one that was meant.
    assert run(["package", "verify", str(tarball), "--sha256", "0" * 64]) == 1
    assert f"its sha256 is {sha256}" in capsys.readouterr().out
    with pytest.raises(UserError, match="64 hexadecimal digits"):
        run(["package", "verify", str(tarball), "--sha256", sha256[1:]])


def test_run_script_hands_the_prompt_to_the_runner(dist: Dist) -> None:
    write_dist(dist)
    runner = dist.folder / "runner"
    runner.write_text('#!/bin/sh\nprintf "[%s]" "$@"\n', encoding="utf-8")
    for words in (['What is "$HOME" * `x`?'], [""], ["*"], ["serving"], ["--", "serv"]):
        for name, cwd in (("./run.sh", dist.folder), ("M/run.sh", dist.folder.parent)):
            done = run_script(cwd, name, *words, "--json")
            assert f"[--prompt][{words[-1]}][--json]" in done.stdout


def run_script(
    cwd: Path, name: str, *words: str, emulator: str = "env"
) -> subprocess.CompletedProcess[str]:
    about = {**os.environ, "MLC_RVV_EMULATOR": emulator}
    return subprocess.run(
        [name, *words], cwd=cwd, env=about, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("serv", "did you mean serve?"),  # a letter is missing,
        ("chaat", "did you mean chat?"),  # added,
        ("Bench", "did you mean bench?"),  # wrong,
        ("verfiy", "did you mean verify?"),  # swapped
        ("--max-new", "options come after the prompt"),
        ("--", "the prompt is missing"),
    ],
)
def test_run_script_refuses_what_is_no_prompt(word: str, said: str) -> None:
    done = run_script(RUN.parent, "./run.sh", word)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    if "did you mean" in said:
        assert f"./run.sh -- '{word}'" in done.stderr


def test_run_script_prints_its_usage() -> None:
    asked, bare = (run_script(RUN.parent, "./run.sh", *words) for words in (["--help"], []))
    assert asked.stdout == bare.stderr != ""
    assert (asked.returncode, asked.stderr) == (0, "")
    assert (bare.returncode, bare.stdout) == (2, "")


@pytest.mark.skipif(bool([*Path("/proc/sys/fs/binfmt_misc").glob("*riscv64*")]), reason="it runs")
@pytest.mark.skipif(platform.machine() == "riscv64", reason="this is a board")
def test_run_script_names_the_emulator_on_a_pc(dist: Dist) -> None:
    write_dist(replace(dist, about={**ABOUT, "zvfh": True}))
    for word in ("hello", "chat", "serve", "bench"):
        done = run_script(dist.folder, "./run.sh", word, emulator="")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"this computer is {platform.machine()}" in done.stderr
        # QEMU 7.2 (Debian 12) refuses the later spelling.
        assert re.findall('vlen=128,vext_spec=v1.0,(.*)"', done.stderr) == [
            "Zfh=true",
            "zfh=true,zvfh=true",
        ]
