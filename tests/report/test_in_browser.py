# SPDX-License-Identifier: Apache-2.0
"""The report in a headless Chromium: it loads clean, fits a phone, prints, and axe accepts it."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="the report's plots need matplotlib")

from facts import project
from support.clients.browser import axe, started  # noqa: F401 - the fixture browser

from report.__main__ import main

PHONE, DESK = 390, 1200


@pytest.fixture(scope="module", params=["full", "bare"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page with every part there, and with every part missing that can be."""
    root = project(tmp_path_factory.mktemp("report"))
    if request.param == "bare":
        shutil.rmtree(root / "out")
        shutil.rmtree(root / "dist")
    assert main(["--root", str(root)]) == 0
    return (root / "out" / "report.html").as_uri()


def _open(browser: Any, address: str, width: int, **more: Any) -> tuple[Any, list[str]]:
    page = browser.new_page(viewport={"width": width, "height": 844}, offline=True, **more)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda asked: asked.url == address or said.append(f"asked {asked.url}"))
    page.goto(address)
    return page, said


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_loads_fits_and_is_accessible(browser: Any, address: str, width: int, scheme: str) -> None:
    page, said = _open(browser, address, width, color_scheme=scheme)
    assert page.title() == "mlc-rvv: report"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = axe.Axe().run(page)
    assert found.response["passes"], "axe looked at nothing"
    assert "color-contrast" in {rule["id"] for rule in found.response["passes"]}
    assert found.violations_count == 0, found.generate_report()
    page.close()
    said = [line for line in said if not line.startswith("asked data:")]
    assert not said


def test_tables_and_plots_are_seen(browser: Any, address: str) -> None:
    page, _ = _open(browser, address, DESK)
    for element in page.query_selector_all("table, figure svg, section"):
        box = element.bounding_box()
        assert box is not None
        assert box["width"] > 100
        assert box["height"] > 20
    drawn = page.evaluate("document.querySelectorAll('figure svg').length")
    tables = page.evaluate("document.querySelectorAll('table').length")
    missing = page.evaluate("document.querySelectorAll('p.missing').length")
    assert (drawn, tables, missing) in {(1, 9, 0), (0, 2, 8)}
    page.close()


def test_themes_differ_and_paper_is_white(browser: Any, address: str) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    page, _ = _open(browser, address, DESK, color_scheme="dark")
    assert page.evaluate(colour) == "rgb(13, 17, 23)"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(colour) == "rgb(255, 255, 255)"
    page.close()
