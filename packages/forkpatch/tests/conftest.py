# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forklab import FILES, ForkLab, Repo, copy_of, git

from groundwork.interrupts import heed_interrupts
from groundwork.ramdisk import RamDisk, mounting

heed_interrupts()

MEMORY = Path("/dev/shm")
ROOM = 1 << 30  # bytes; the tests of one process need a tenth


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder for the tests' files, in memory where it can be.

    Removing thousands of git's small files from a disk takes longer than all that is tested. To
    look at what a test left, set PYTEST_DEBUG_TEMPROOT: the files then are where it says, and stay.
    """
    usable = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    usable = usable and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    usable = usable and shutil.disk_usage(MEMORY).free > ROOM
    if not usable or "PYTEST_DEBUG_TEMPROOT" in os.environ:
        yield tmp_path_factory.mktemp("scratch")
        return
    with tempfile.TemporaryDirectory(prefix="forkpatch-tests-", dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def tmp_path(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder; temporary files of what is tested are beside it."""
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)
    folder = Path(tempfile.mkdtemp(prefix="test-", dir=scratch))
    yield folder
    if scratch.parent == MEMORY:
        shutil.rmtree(folder, ignore_errors=True)


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
    monkeypatch.setenv("FORKPATCH_COMMAND", "forkpatch")
    # A fork's tests here need no plugin of this environment's, which take a second to import.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "wheels").mkdir()
    return place


@pytest.fixture(scope="session")
def template(scratch: Path) -> Path:
    """An upstream with tag v1.0, a fork of it whose lock is complete, and the cache of that."""
    folder = Path(tempfile.mkdtemp(prefix="template-", dir=scratch))
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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., RamDisk]]:
    """Makes a file system of a size named as in ``64k``, at a path; skips where it may not."""
    with mounting(tmp_path / "disk", pytest.skip) as mount:
        yield mount
