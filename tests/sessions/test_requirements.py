# SPDX-License-Identifier: Apache-2.0
"""Python packages are installed by hash alone: uv.lock has them all, and others are refused."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sessions import PIP_OPTIONS, package_sources
from sessions.requirements import (
    BOOTSTRAP,
    ROOT,
    bootstrap_text,
    members,
    requirements,
    uv_command,
    versions_lock,
)

LOCK = versions_lock()
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]


def names(text: str) -> set[str]:
    return {line.partition("==")[0] for line in text.splitlines() if "==" in line.split(" ")[0]}


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_is_pinned_with_hashes(group: str) -> None:
    text = requirements([group], LOCK["default-release"])
    listed = (line for line in GROUPS[group] if isinstance(line, str))
    own = {member.name for member in members().values()}
    assert {canonicalize_name(Requirement(line).name) for line in listed} - own <= names(text)
    for entry in re.split(r"\n(?=\S)", text.strip()):
        assert re.match(r"\S+==\S+ .*--hash=sha256:[0-9a-f]{64}", entry, re.DOTALL), entry


@pytest.mark.parametrize("name", members())
def test_what_a_package_needs_is_pinned_but_not_the_packages_of_this_checkout(name: str) -> None:
    found = names(requirements([name], LOCK["default-release"]))
    own = {member.name for member in members().values()}
    listed = tomllib.loads((members()[name].folder / "pyproject.toml").read_text("utf-8"))
    wanted = {
        canonicalize_name(Requirement(x).name) for x in listed["project"].get("dependencies", [])
    }
    assert wanted - own <= found
    assert not found & own


@pytest.mark.parametrize("release", LOCK["releases"])
def test_a_release_brings_its_own_tvm(release: str) -> None:
    version = LOCK["releases"][release]["tvm"]
    files = LOCK["upstreams"]["tvm"]["versions"][version]["wheel"]["files"]
    text = requirements(["tvm"], release)
    (line,) = (line for line in text.splitlines() if line.startswith("apache-tvm=="))
    assert line.startswith(f"apache-tvm=={version} ")
    assert all(f"--hash=sha256:{file['sha256']}" in line for file in files)
    assert "apache-tvm-ffi" in names(text)
    assert "apache-tvm" not in names(requirements(["test"], release))


def test_a_group_of_a_release_replaces_the_group(tmp_path: Path) -> None:
    project = copy_of_project(tmp_path)
    group, normalised = "mlc-2026.08", "mlc-2026-08"
    replace(
        project / "pyproject.toml",
        ("[dependency-groups]\n", f'[dependency-groups]\n"{group}" = ["iniconfig"]\n'),
        (
            "[tool.uv]\n",
            f'[tool.uv]\nconflicts = [[{{ group = "mlc" }}, {{ group = "{group}" }}]]\n',
        ),
    )
    conflict = 'conflicts = [[\n    { package = "mlc-rvv-workspace", group = "mlc" },\n'
    conflict += f'    {{ package = "mlc-rvv-workspace", group = "{normalised}" }},\n]]\n\n'
    first = min(GROUPS)  # of the project; its packages have groups of their own
    pinned = f'{normalised} = [\n    {{ name = "iniconfig" }},\n]\n'
    replace(
        project / "uv.lock",
        ("[manifest]\n", conflict + "[manifest]\n"),
        *(
            (f"{table}\n{first} = [", f"{table}\n{pinned}{first} = [")
            for table in ("[package.dev-dependencies]", "[package.metadata.requires-dev]")
        ),
    )
    assert names(requirements(["mlc"], "2026.08", project)) == {"iniconfig"}
    assert {"requests", "tqdm"} <= names(requirements(["mlc"], "2026.10", project))


def test_only_the_public_index_is_in_the_lock() -> None:
    hosts = set(re.findall(r"https?://([^/\"]*)", (ROOT / "uv.lock").read_text(encoding="utf-8")))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}


def test_the_bootstrap_has_the_versions_of_the_lock() -> None:
    assert BOOTSTRAP.read_text(encoding="utf-8") == bootstrap_text()
    assert {"nox", "uv"} <= names(bootstrap_text())


def test_a_lock_that_is_out_of_date_is_an_error_with_the_next_command(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match=r"(?s)nothing.*nox -s lock"):
        requirements(["nothing"], LOCK["default-release"])
    project = copy_of_project(tmp_path)
    replace(
        project / "pyproject.toml",
        ('"ruff"]', '"leftpad"]'),
    )
    with pytest.raises(LookupError, match="refresh it with: nox -s lock"):
        requirements(["lint"], LOCK["default-release"], project)


def copy_of_project(folder: Path) -> Path:
    for name in ("pyproject.toml", "uv.lock", "VERSIONS.lock", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    for member in ROOT.glob("packages/*/pyproject.toml"):
        place = folder / member.relative_to(ROOT)
        place.parent.mkdir(parents=True)
        shutil.copy(member, place)
    return folder


def replace(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text, encoding="utf-8")


def make_wheel(folder: Path, text: str) -> str:
    """A wheel that needs another one; returns its sha256."""
    path = folder / "some_name-1.0-py3-none-any.whl"
    about = "Metadata-Version: 2.1\nName: some-name\nVersion: 1.0\nRequires-Dist: not-pinned\n"
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("some_name.py", text)
        archive.writestr("some_name-1.0.dist-info/METADATA", about)
        archive.writestr("some_name-1.0.dist-info/WHEEL", wheel)
        archive.writestr("some_name-1.0.dist-info/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


# The bootstrap installs nox with pip; uv installs all else.
INSTALLERS = ([sys.executable, "-m", "pip", "install"], [*uv_command(), "pip", "install"])


def install(
    installer: Sequence[str], folder: Path, sha256: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Install some-name to the empty folder ``site``."""
    shutil.rmtree(folder / "site", ignore_errors=True)
    listed = folder / "requirements.txt"
    marker = "sys_platform == 'linux'"
    listed.write_text(f"some-name==1.0 ; {marker} \\\n    --hash=sha256:{sha256}\n")
    command = [*installer, "--quiet", *PIP_OPTIONS, "--target", str(folder / "site")]
    return subprocess.run(
        [*command, "-r", str(listed)],
        env={**os.environ, "UV_NO_CACHE": "1", **more},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("installer", INSTALLERS, ids=["pip", "uv"])
def test_another_wheel_under_the_same_name_is_refused(installer: list[str], tmp_path: Path) -> None:
    pytest.importorskip("pip")
    installer = [*installer, "--no-index", "--find-links", str(tmp_path)]
    right = make_wheel(tmp_path, "GOOD = True\n")
    done = install(installer, tmp_path, right)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "some_name.py").is_file()
    make_wheel(tmp_path, "GOOD = False\n")
    done = install(installer, tmp_path, right)
    assert done.returncode == 1
    assert re.search("DO NOT MATCH THE HASHES|Hash mismatch", done.stderr)
    assert not (tmp_path / "site" / "some_name.py").exists()


def test_uv_takes_packages_from_the_sources_of_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pip")
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_", "SSL_", "ALL_"))]:
        monkeypatch.delenv(name)
    settings = "[global]\nno-index = true\nfind-links =\n    /nowhere\n    {}\ncert = /c\n"
    settings += "[install]\nindex-url = https://name:password@host.example/simple\n"
    settings += "[download]\nproxy = http://other.example\n"
    (tmp_path / "pip.conf").write_text(settings.format(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://a.example https://b.example")
    monkeypatch.setenv("UV_INSECURE_HOST", "mine.example")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "host.example")
    package_sources.pip_settings.cache_clear()
    options, variables = package_sources.uv_sources(
        package_sources.pip_settings(Path(sys.executable))
    )
    assert options == [*package_sources.OPTIONS, "--no-index"]
    assert variables == {
        "UV_DEFAULT_INDEX": "https://name:password@host.example/simple",
        "UV_EXTRA_INDEX_URL": "https://a.example https://b.example",
        "UV_FIND_LINKS": f"/nowhere,{tmp_path}",
        "SSL_CERT_FILE": "/c",
    }
    (tmp_path / "pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {tmp_path}\n")
    package_sources.pip_settings.cache_clear()
    options, variables = package_sources.uv_sources(
        package_sources.pip_settings(Path(sys.executable))
    )
    right = make_wheel(tmp_path, "GOOD = True\n")
    installer = [*uv_command(), "pip", "install", *options]
    done = install(installer, tmp_path, right, **variables)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "some_name.py").is_file()
