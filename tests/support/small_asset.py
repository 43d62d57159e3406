# SPDX-License-Identifier: Apache-2.0
"""A model so small that its wheel is made on the spot."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from crosslab.models.sources.pins import Asset

_ABOUT = {
    "tiny_model-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
    "tiny_model-1.0.dist-info/WHEEL": (
        "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    ),
    "tiny_model-1.0.dist-info/RECORD": "",
}


def small_asset(index: Path, weights: bytes = b"weights") -> Asset:
    """Put the wheel into a folder that pip uses as its index; return its pins."""
    wheel = index / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in (("tiny_model/weights.gguf", weights), *_ABOUT.items()):
            archive.writestr(zipfile.ZipInfo(name), content)  # without the time of day
    return Asset(
        name="tiny",
        package="tiny-model",
        version="1.0",
        file=wheel.name,
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_model/weights.gguf",
        member_sha256=hashlib.sha256(weights).hexdigest(),
    )
