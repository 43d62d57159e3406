# SPDX-License-Identifier: Apache-2.0
"""The objects of the runner's own sources."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from crosslab.assemble import link
from crosslab.assemble.runtime import Runtime
from crosslab.errors import LabError
from crosslab.host.toolchain import Machine, find_native


def test_sources_that_change_while_they_are_compiled_leave_no_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, cache = tmp_path / "runner", tmp_path / "cache"
    shutil.copytree(link.RUNNER_SOURCES, sources)

    def compile_objects(*_: object, **__: object) -> None:
        with (sources / "input" / "log.cc").open("a", encoding="utf-8") as file:
            file.write("// another line\n")

    monkeypatch.setattr(link, "RUNNER_SOURCES", sources)
    monkeypatch.setattr(link, "compile_objects", compile_objects)
    monkeypatch.setattr(link, "template_folders", lambda _: {})
    monkeypatch.setattr(link, "runner_tables", lambda _: sources)
    runtime = Runtime(tmp_path / "runtime", Machine.HOST, (), (), ())
    request = link.LinkRequest(runtime, find_native(), server=False)
    with pytest.raises(LabError, match="changed while it was compiled"):
        link.link_runner(request, cache)
    assert not list(cache.glob("runner-objects-*"))
