# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from forklab import FILES, ForkLab, Repo, copy_of, git


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and cache of the test's own, and no package index."""
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "wheels").mkdir()
    return place


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An upstream with tag v1.0, a fork of it whose lock is complete, and the cache of that."""
    folder = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "home/cache"))
        repo = Repo.create(folder / "upstream", FILES)
        git(repo.path, "tag", "-a", "-m", "one", "v1.0")
        (folder / "fork").mkdir()
        ForkLab(folder / "fork", folder / "home", repo).locked()
    return folder


@pytest.fixture
def lab(
    tmp_path: Path,
    home: Path,
    template: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> ForkLab:
    """A fork of an upstream with tag v1.0, whose lock is complete; the repository is at 1.0."""
    lab = copy_of(template, tmp_path, monkeypatch)
    lab.capsys = capsys
    return lab
