# SPDX-License-Identifier: Apache-2.0
"""``run.sh pull``: the download of another artefact, interrupted, damaged, and hostile."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from crosslab.artifact.dist import RUN

NAME = "mlc-rvv-R-T-other"
TOOLS = ["sh", "tar", "sha256sum", "wc", "ls", "mkdir", "rm", "mv", "cat", "dirname"]


def tarball(files: dict[str, bytes], *tops: str) -> bytes:
    out = io.BytesIO()
    sums = "".join(f"{hashlib.sha256(text).hexdigest()}  {name}\n" for name, text in files.items())
    with tarfile.open(fileobj=out, mode="w") as archive:
        for top in tops:
            for name, text in {**files, "SHA256SUMS": sums.encode()}.items():
                member = tarfile.TarInfo(f"{top}/{name}")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))
    return out.getvalue()


WHOLE = tarball({"runner": bytes(range(256)) * 4000, "params/shard.bin": b"weights" * 1000}, NAME)


class Site(ThreadingHTTPServer):
    """A site with one file, which cuts a number of answers after some bytes."""

    content = WHOLE
    cuts = 0
    asked = 0
    ranges = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{NAME}.tar"


class Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        site = self.server
        site.asked += 1
        begin = 0
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if found and site.ranges:
            begin = int(found[1])
        rest = site.content[begin:]
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(site.content) - 1}/*")
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if site.cuts > 0:
            site.cuts -= 1
            rest = rest[: len(site.content) // 40]
        self.wfile.write(rest)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(params=["curl", "wget"])
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of artefacts, with one of the two programs for downloads."""
    for tool in [*TOOLS, request.param]:
        path = shutil.which(tool)
        if path is None:
            pytest.skip(f"{tool} is not installed")
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / tool).symlink_to(path)
    (tmp_path / "models/first").mkdir(parents=True)
    shutil.copy(RUN, tmp_path / "models/first/run.sh")
    return tmp_path / "models"


def pull(board: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "first/run.sh", "pull", *words],
        cwd=board,
        env={"PATH": str(board.parent / "bin")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def held(board: Path) -> list[str]:
    return sorted(path.name for path in board.iterdir())


def test_an_interrupted_download_goes_on(board: Path, site: Site) -> None:
    # wget itself goes on after a cut, later each time.
    site.cuts = cuts = 30 if (board.parent / "bin/curl").exists() else 1
    while not (board / NAME).exists():
        done = pull(board, site.url)
        assert done.returncode == 0 or "type the command again, and it goes on" in done.stderr
        assert site.asked <= cuts + 1
    assert site.asked == cuts + 1
    assert held(board) == ["first", NAME]
    assert (board / NAME / "runner").read_bytes() == bytes(range(256)) * 4000
    again = pull(board, site.url)
    assert again.returncode == 2
    assert "is there already" in again.stderr


def test_a_site_without_ranges_sends_the_whole_file_again(board: Path, site: Site) -> None:
    site.cuts, site.ranges = 1, False
    while not (board / NAME).exists():
        pull(board, site.url)
        assert site.asked <= 3
    assert held(board) == ["first", NAME]


def test_the_hash_of_the_tarball_is_compared(board: Path, site: Site) -> None:
    for word in ("0" * 63, "sha256:" + "0" * 57, ""):
        mistyped = pull(board, site.url, word)
        assert (mistyped.returncode, site.asked, held(board)) == (2, 0, ["first"])
        assert "64 hexadecimal digits" in mistyped.stderr
    wrong = pull(board, site.url, "0" * 64)
    assert (wrong.returncode, held(board)) == (1, ["first"])
    assert "another SHA-256" in wrong.stderr
    assert pull(board, site.url, hashlib.sha256(WHOLE).hexdigest()).returncode == 0


@pytest.mark.parametrize(
    "content",
    [
        WHOLE[:300_000] + b"?" + WHOLE[300_001:],
        WHOLE[: len(WHOLE) // 2],
        b"<html>not found</html>",
        tarball({"runner": b"x"}, "elsewhere"),
        tarball({"runner": b"x"}, NAME, "second"),
    ],
    ids=["flipped", "cut", "page", "folder", "two-folders"],
)
def test_a_damaged_download_is_deleted(board: Path, site: Site, content: bytes) -> None:
    site.content = content
    done = pull(board, site.url)
    assert (done.returncode, held(board)) == (1, ["first"])
    assert "the download is damaged" in done.stderr


def test_a_kill_after_the_download_is_survived(board: Path, site: Site) -> None:
    (board / f".{NAME}.tar.whole").write_bytes(WHOLE)
    (board / f".{NAME}.new").mkdir()
    assert pull(board, site.url).returncode == 0
    assert (site.asked, held(board)) == (0, ["first", NAME])


def test_an_older_tarball_beside_it_is_not_the_download(board: Path, site: Site) -> None:
    older = tarball({"runner": b"older"}, NAME)
    (board / f"{NAME}.tar").write_bytes(older)
    assert pull(board, site.url, hashlib.sha256(WHOLE).hexdigest()).returncode == 0
    assert (board / NAME / "runner").read_bytes() == bytes(range(256)) * 4000
    assert (board / f"{NAME}.tar").read_bytes() == older


@pytest.mark.parametrize(
    "url",
    [
        "other.tar",
        "ftp://host/x.tar",
        "http://host/",
        "http://host/model.zip",
        "http://host/x.tar?key=1",
        "http://host/..tar",
        "http://host/a b.tar",
    ],
)
def test_a_url_without_a_tarball_is_refused(tmp_path: Path, url: str) -> None:
    done = subprocess.run(
        ["sh", str(RUN), "pull", url], env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "URL" in done.stderr
