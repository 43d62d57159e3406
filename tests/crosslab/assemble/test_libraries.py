# SPDX-License-Identifier: Apache-2.0
"""The pinned libraries of the runner."""

from __future__ import annotations

import re

from support.shared_builds import CACHE

from crosslab.assemble.libraries import HTTPLIB, licences, llama_cpp_sources, read_library


def test_the_lock_has_the_version_of_the_carried_library() -> None:
    (header,) = llama_cpp_sources(CACHE).glob("**/httplib.h")
    found = re.findall(r'^#define CPPHTTPLIB_VERSION "(.+)"$', header.read_text(), re.MULTILINE)
    assert found == [read_library(HTTPLIB).version]


def test_every_library_has_a_licence_text() -> None:
    assert all(path.stat().st_size > 100 for path in licences(CACHE).values())
