# SPDX-License-Identifier: Apache-2.0
"""The archives that runner/cmake downloads are those that the locks pin."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
CMAKE = "".join(
    (PROJECT / "runner" / "cmake" / name).read_text("utf-8")
    for name in ("libraries.cmake", "tvm.cmake")
)


def test_packages_of_python_have_the_hashes_of_uv_lock() -> None:
    lock = (PROJECT / "uv.lock").read_text("utf-8")
    urls = dict(re.findall(r'url = "(https://[^"]+)", hash = "sha256:(\w+)"', lock))
    found = re.findall(
        r"set\(file (\S+)\)\s+fetch\(\w+ \$\{index\}/(\S+)/\$\{file\}\s+(\w{64})", CMAKE
    )
    assert [name for name, *_ in found] == [
        "nlohmann_json-3.12.0-py3-none-any.whl",
        "apache_tvm_ffi-0.1.14.post1.tar.gz",
    ]
    for name, place, sha256 in found:
        assert urls[f"https://files.pythonhosted.org/packages/{place}/{name}"] == sha256


def test_other_archives_are_read_from_versions_lock() -> None:
    lock = tomllib.loads((PROJECT / "VERSIONS.lock").read_text("utf-8"))
    for section, name in re.findall(r'read_pin\(file (\w+)\."?([\w.]+?)"? file\)', CMAKE):
        assert lock[section][name]["file"].endswith(".tar.gz")
        assert len(lock[section][name]["sha256"]) == 64
