# SPDX-License-Identifier: Apache-2.0
"""Set-up of every run: the patched TVM tree before the wheel, marks, shared fixtures."""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from support.patched_trees import trees as patched_trees

from groundwork.interrupts import heed_interrupts
from groundwork.ramdisk import RamDisk, mounting

if TYPE_CHECKING:
    from crosslab.host.toolchain import Toolchain

pytest_plugins = ["support.durations"]

TREES = patched_trees()
# Tests of packages that need neither trees nor toolchain: of the session `unit`, and of --all.
UNIT = tuple(f"packages/{name}/tests" for name in ("accelerator-study", "forkpatch", "groundwork"))
# Marks of tests that get a fixture, directly or through another one.
MARKS = {
    "emulator": "emulator",
    **dict.fromkeys(("browser", "build_for_host", "sanitizers"), "slow"),
}


def _native_libraries() -> Path | None:
    """Directory of the wheel's native libraries, which serve the patched tree as they are."""
    for entry in sys.path:
        libraries = Path(entry) / "tvm" / "lib"
        if any(libraries.glob("libtvm_runtime*")):
            return libraries
    return None


def _use_patched_tvm() -> None:
    python, libraries = TREES / "tvm" / "python", _native_libraries()
    if libraries is None or not (python / "tvm" / "__init__.py").is_file():
        return
    os.environ.setdefault("TVM_LIBRARY_PATH", str(libraries))
    sys.path.insert(0, str(python))


def _multiply_on_one_core() -> None:
    """Leave the other cores to other tests: numpy's threads spin while they wait for one another.

    Set before numpy is imported; processes that tests start inherit it.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _run_on_any_core() -> None:
    """Keep TVM from tying this process to the first core when a test sets a number of threads.

    All that the later tests start would be tied to it, too: compilers, emulators.
    """
    os.environ.setdefault("TVM_BIND_THREADS", "0")


def _draw_at_any_speed() -> None:
    """Let hypothesis fail no test for its time: the machine may be busy."""
    with suppress(ImportError):
        from hypothesis import HealthCheck, settings  # noqa: PLC0415

        slow = [HealthCheck.too_slow]
        settings.register_profile("any speed", deadline=None, suppress_health_check=slow)
        settings.load_profile("any speed")


_use_patched_tvm()
_multiply_on_one_core()
_draw_at_any_speed()
_run_on_any_core()
heed_interrupts()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for both tiers."""
    parser.addoption("--all", action="store_true", help="run the thorough tests, too")


def pytest_configure(config: pytest.Config) -> None:
    """Add the packages of the session ``unit`` for ``--all``, if no path is named."""
    if config.option.all and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        config.args += UNIT


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Name the packages that a run without paths and ``--all`` leaves out."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.option.all:
        return []
    return [f"not run: {', '.join(UNIT)} (nox -s unit, or --all)"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by the fixtures that they get; leave out what is not asked for.

    Files with slow tests come first, so that no core has to wait for one of them in the end.
    """
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        for fixture, mark in MARKS.items():
            if fixture in fixtures:
                item.add_marker(mark)
    # A test that is named by itself is asked for.
    thorough = config.option.all or any("::" in word for word in config.args)
    for mark, asked in (("long", False), ("survey", False), ("thorough", thorough)):
        if not asked and mark not in config.option.markexpr:
            left_out = {item for item in items if item.get_closest_marker(mark)}
            config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))
            items[:] = [item for item in items if item not in left_out]
    marks = ("emulator", "slow")
    slow = {item.path for item in items if any(map(item.get_closest_marker, marks))}
    items.sort(key=lambda item: item.path not in slow)


# The fixtures below import what they need: forkpatch's tests run where crosslab's dependencies are
# not installed.


@pytest.fixture(scope="session")
def emulator() -> None:
    """Skip where no emulator is installed."""
    from support.shared_builds import need_emulator  # noqa: PLC0415

    need_emulator()


@pytest.fixture(scope="session")
def counting_emulator(emulator: None) -> None:
    """Skip where no emulator loads plugins."""
    from support.shared_builds import need_emulator  # noqa: PLC0415

    need_emulator(plugins=True)


@pytest.fixture(scope="session")
def sanitizers() -> Toolchain:
    """The compiler of this machine, where it comes with the sanitizers' libraries."""
    from support.shared_builds import sanitizing  # noqa: PLC0415

    return sanitizing()


@pytest.fixture(scope="session")
def host_runner(sanitizers: Toolchain) -> Path:
    """The tiny model's runner for this machine, with sanitizers."""
    from support import shared_builds, tiny_runner  # noqa: PLC0415

    from crosslab.assemble.link import link_runner  # noqa: PLC0415

    return link_runner(tiny_runner.host_request(), shared_builds.CACHE)


@pytest.fixture(scope="session")
def trees() -> Path:
    """Directory of the patched trees, `tvm` and perhaps `mlc-llm`."""
    return TREES


@pytest.fixture(scope="session")
def tvm(trees: Path) -> ModuleType:
    """The package tvm of the patched tree."""
    python = trees / "tvm" / "python"
    if not (python / "tvm" / "__init__.py").is_file():
        pytest.skip(f"no patched TVM in {python}: run `nox -s apply_patches`")
    if "TVM_LIBRARY_PATH" not in os.environ:
        pytest.skip("no native TVM libraries: install the pinned apache-tvm wheel")
    module = importlib.import_module("tvm")
    origin = Path(str(module.__file__)).resolve()
    assert origin.is_relative_to(python), f"tvm is {origin}, not that of {python}"
    return module


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., RamDisk]]:
    """Makes a file system of a size named as in ``64k``, at a path; skips where it may not."""
    with mounting(tmp_path / "disk", pytest.skip) as mount:
        yield mount


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
) -> Generator[None, object, object]:
    """Close with how many tests were skipped for which reason."""
    result = yield
    reports = terminalreporter.stats.get("skipped", [])
    texts = (r.longrepr[2] if isinstance(r.longrepr, tuple) else str(r.longrepr) for r in reports)
    reasons = Counter(text.removeprefix("Skipped: ").splitlines()[0] for text in texts)
    if reasons:
        terminalreporter.section(f"{reasons.total()} skipped, by reason")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:4} {reason}")
    return result


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of one folder: pip's own, without the network."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder
