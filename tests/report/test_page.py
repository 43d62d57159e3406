# SPDX-License-Identifier: Apache-2.0
"""The report without a browser: what it holds, what it says is missing, what it refuses."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the report's plots need matplotlib")

from facts import FACTS, STUDY, project

from report.__main__ import main
from report.evidence import SOURCES, ResultFiles
from report.page import render, sections

ROOT = Path(__file__).resolve().parents[2]
STATUS, NECESSITY = SOURCES["status"].files, SOURCES["necessity"].files


class _Page(HTMLParser):
    """Ids, addresses and cells of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "action", "srcset", "data"):
                self.addresses.append(value or "")

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def _write(root: Path) -> str:
    assert main(["--root", str(root)]) == 0
    return (root / "out" / "report.html").read_text(encoding="utf-8")


def test_every_result_is_on_the_page(tmp_path: Path) -> None:
    page = _Page(_write(project(tmp_path)))
    for words in (
        "Yes & no.",
        "Say <b>hello</b> & more",
        "Is <i>this</i> escaped?",
        "right by the reference",
        "212.9 M instructions",
        "llama.cpp F32, as shipped",
        "57.00 / 51.50 on x60",
        "its bench",
        "18.1 x",
        "125.0",
        "4.50 x",
        "hello.patch: changed",
        "conflict: hello",
        "27c2e019d0ce",
        "logits differ",
        "18 of 20",
        "3.000",
        "5.000",
        "1/riscv64/tiny, verdict on its answer: unchecked",
        "ab" * 32,
        "needed",
    ):
        assert words in page.words, words
    assert "Missing." not in page.words


def test_what_was_not_counted_is_said_to_be_so(tmp_path: Path) -> None:
    root = project(tmp_path)
    path = root / "out" / "build_and_test.json"
    table = json.loads(path.read_text(encoding="utf-8"))
    table["counters"] = {"prefill": None, "decode_per_token": None}
    path.write_text(json.dumps(table), encoding="utf-8")
    assert _Page(_write(root)).words.count("not counted") == 2


def test_an_answer_that_was_not_compared_is_said_to_be_so(tmp_path: Path) -> None:
    root = project(tmp_path)
    path = root / "out" / "build_and_test.json"
    table = json.loads(path.read_text(encoding="utf-8"))
    unchecked = {**table, "checked": False, "reference_tokens": None, "max_logit_error": None}
    path.write_text(json.dumps(unchecked), encoding="utf-8")
    words = _Page(_write(root)).words
    assert "not compared" in words and "right by the reference" not in words


def test_peer_is_that_of_the_last_run(tmp_path: Path) -> None:
    root = project(tmp_path)
    assert _Page(_write(root)).words.count("llama.cpp F32") == 1
    path = root / "out" / "bench.json"
    rows = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps([row for row in rows if "layers" not in row]), encoding="utf-8")
    words = _Page(_write(root)).words
    assert "missing: nox -s bench -- --peer llama.cpp" in words
    assert not [word for word in words if "llama.cpp F32" in word]


def test_page_needs_nothing_else(tmp_path: Path) -> None:
    html = _write(project(tmp_path))
    page = _Page(html)
    assert len(page.ids) == len(set(page.ids))
    outside = [a for a in page.addresses if not a.startswith(("#", "data:"))]
    assert not outside
    assert {a[1:] for a in page.addresses if a.startswith("#")} <= set(page.ids)
    assert not re.search(r"@import|url\((?!#)|<script|<link rel=.stylesheet", html)


def test_same_results_give_the_same_bytes_in_another_process_and_folder(tmp_path: Path) -> None:
    pages = []
    for seed in ("1", "2"):
        root = project(tmp_path / seed)
        command = [sys.executable, "-m", "report", "--root", str(root)]
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT / "scripts")}
        subprocess.run(command, env=environment, check=True, capture_output=True)
        pages.append((root / "out" / "report.html").read_bytes())
    assert pages[0] == pages[1]


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_every_command_is_a_session(source: ResultFiles) -> None:
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    named = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    }
    assert source.session in named
    assert source.command.startswith(f"nox -s {source.session}")


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_missing_part_says_what_makes_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path)
    for path in tmp_path.glob(SOURCES[name].files):
        path.unlink()
    page = _Page(_write(tmp_path))
    assert any(SOURCES[name].command in words for words in page.words)
    if name not in ("status", "necessity"):
        assert "Missing." in page.words
        assert SOURCES[name].command in capsys.readouterr().out


@pytest.mark.parametrize("broken", ["{", '{"x": 1}', "[1]", '"text"', "null"])
def test_unreadable_part_is_missing(
    broken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path)
    names = [name for name in (*FACTS, STUDY) if name not in (STATUS, NECESSITY)]
    for name in (*names, STATUS, NECESSITY):
        (tmp_path / name).write_text(broken, encoding="utf-8")
    html = _write(tmp_path)
    assert html.count("Missing.") == len(names)
    assert "out/bench.json" in capsys.readouterr().out


def test_own_repository() -> None:
    """The committed patches make a page, whatever has been measured here."""
    page = _Page(render(sections(ROOT)))
    series = (ROOT / "patches" / "tvm" / "0.26.0" / "series").read_text(encoding="utf-8")
    patches = [line.strip() for line in series.splitlines() if line.strip().endswith(".patch")]
    assert patches
    assert {name.removesuffix(".patch") for name in patches} <= set(page.words)


def test_folder_without_lock_is_the_users_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--root", str(tmp_path)]) == 2
    assert "VERSIONS.lock" in capsys.readouterr().err


def test_output_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as caught:
        main(["--root", str(tmp_path), "--output", str(tmp_path / "file" / "x.html")])
    assert caught.value.code == 2
    assert "no file can be written in" in capsys.readouterr().err
