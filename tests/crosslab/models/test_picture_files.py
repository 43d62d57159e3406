# SPDX-License-Identifier: Apache-2.0
"""The runner's decoder and its preparation of pictures, beside Pillow's and the reference's."""

from __future__ import annotations

import importlib
import json
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import shared_builds, text_probe

from crosslab.host.toolchain import Toolchain
from crosslab.models.pictures import FILTERS, Pixels, prepare, sample_picture, write_png

SIDE = 28
# Colours stay whole numbers.
PLAIN: dict[str, Any] = {"scale": 1.0, "mean": [0.0] * 3, "deviation": [1.0] * 3}
# The largest difference of a colour that two decoders of a JPEG file make of it, of 255.
JPEG_BOUND = 6


@pytest.fixture(scope="module")
def probe(sanitizers: Toolchain) -> Path:
    return text_probe.build_probe(sanitizers, shared_builds.CACHE, "picture_probe")


def run(
    probe: Path, file: Path, shortest: int = SIDE, filter_: str = "bicubic"
) -> subprocess.CompletedProcess[bytes]:
    how = {**PLAIN, "shortest": shortest, "filter": filter_, "size": SIDE}
    how |= {"token": 9, "tokens": 4, "bytes": 64}
    command = [str(probe), str(file), json.dumps(how)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False)


def prepared(probe: Path, file: Path, *how: Any) -> Pixels:
    done = run(probe, file, *how)
    assert done.returncode == 0, done.stderr
    return np.frombuffer(done.stdout, np.uint8).reshape(3, SIDE, SIDE)


@pytest.mark.parametrize("filter_", FILTERS)
@pytest.mark.parametrize(
    ("height", "width", "shortest"),
    [(45, 70, SIDE), (28, 28, SIDE), (500, 333, 30), (1, 900, SIDE), (300, 3, 57), (33, 31, 32)],
)
def test_the_board_prepares_as_the_reference(
    probe: Path, tmp_path: Path, height: int, width: int, shortest: int, filter_: str
) -> None:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3)).astype("u1")
    write_png(pixels, tmp_path / "picture.png")
    about = {**PLAIN, "shortest": shortest, "filter": filter_}
    wanted = prepare(pixels, about, SIDE)
    ours = prepared(probe, tmp_path / "picture.png", shortest, filter_)
    np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("RGB", {}),
        ("RGBA", {}),
        ("L", {}),
        ("LA", {}),
        ("P", {}),
        ("1", {}),
        ("RGB", {"quality": 95}),
        ("RGB", {"quality": 60, "progressive": True}),
        ("RGB", {"quality": 90, "subsampling": 0}),
        ("L", {"quality": 90}),
    ],
)
def test_files_are_decoded_as_by_pillow(
    probe: Path, tmp_path: Path, mode: str, options: dict[str, Any]
) -> None:
    image = importlib.import_module("PIL.Image")
    kind = "JPEG" if options else "PNG"
    image.fromarray(sample_picture()).convert(mode).save(tmp_path / "file", kind, **options)
    with image.open(tmp_path / "file") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    wanted = prepare(pixels, {**PLAIN, "shortest": SIDE, "filter": "bicubic"}, SIDE)
    apart = np.abs(prepared(probe, tmp_path / "file") - wanted)
    assert apart.max() <= (JPEG_BOUND if options else 0)


def _exif(value: int, order: str) -> bytes:
    """Exif data with two tags, in one of the two orders of bytes."""
    mark = b"II" if order == "<" else b"MM"
    tags = struct.pack(f"{order}HHIHH", 0x0112, 3, 1, value, 0)
    other = struct.pack(f"{order}HHII", 0x0100, 4, 1, 6)
    head = mark + struct.pack(f"{order}HIH", 42, 8, 2)
    return b"Exif\0\0" + head + other + tags + bytes(4)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("value", range(10))
def test_pictures_of_a_turned_camera_are_upright(
    probe: Path, tmp_path: Path, value: int, order: str
) -> None:
    """Two values that mean nothing, too."""
    image, turned = (importlib.import_module(f"PIL.{name}") for name in ("Image", "ImageOps"))
    file = tmp_path / "file"
    image.fromarray(sample_picture()).save(file, "JPEG", quality=95, exif=_exif(value, order))
    with image.open(file) as picture:
        pixels = np.asarray(turned.exif_transpose(picture))
    wanted = prepare(pixels, {**PLAIN, "shortest": SIDE, "filter": "bicubic"}, SIDE)
    apart = np.abs(prepared(probe, file) - wanted)
    assert apart.max() <= JPEG_BOUND
    data = file.read_bytes()
    end = data.index(b"Exif") + len(_exif(value, order))
    for length in range(2, end, 7):  # a file that ends within its Exif data
        file.write_bytes(data[:length])
        assert run(probe, file).returncode == 2


def _png(width: int, height: int, rows: bytes, depth: int = 8, colour: int = 2) -> bytes:
    file = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">2I5B", width, height, depth, colour, 0, 0, 0)
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")):
        file += struct.pack(">I", len(data)) + kind + data
        file += struct.pack(">I", zlib.crc32(kind + data))
    return file


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (b"", "is not a PNG or JPEG file"),
        (b"GIF89a\x01\x00\x01\x00\x00\x00\x00;", "is not a PNG or JPEG file"),
        (_png(4, 4, b"\0" * 52)[:60], "is damaged"),
        (_png(4, 4, b"\0" * 12), "is damaged"),
        (_png(5000, 5000, b"\0"), "has 5000 x 5000 pixels"),
        # A few bytes that are inflated to 400 MB.
        (_png(4, 4, b"\0" * (400 << 20)), "takes more than 192 MiB"),
        (_png(4096, 4096, b"\0", 16, 6), "takes more than 192 MiB"),
    ],
)
def test_bad_files_are_refused(probe: Path, tmp_path: Path, file: bytes, why: str) -> None:
    (tmp_path / "file").write_bytes(file)
    done = run(probe, tmp_path / "file")
    assert done.returncode == 2
    assert why in done.stderr.decode()


def test_an_empty_chunk_changes_nothing(probe: Path, tmp_path: Path) -> None:
    plain = _png(4, 4, b"\0\1\2\3\4\5\6\7\10\11\12\13\14" * 4)
    empty = struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    data = plain.index(b"IDAT") - 4
    (tmp_path / "plain").write_bytes(plain)
    (tmp_path / "empty").write_bytes(plain[:data] + empty + plain[data:])
    assert np.array_equal(*(prepared(probe, tmp_path / name) for name in ("plain", "empty")))
