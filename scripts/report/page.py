# SPDX-License-Identifier: Apache-2.0
"""The page: every section in its order, rendered into one file."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from report import fork, measures
from report.blocks import Section
from report.evidence import Evidence, as_missing, gather

TEMPLATES = Path(__file__).with_name("templates")


def sections(root: Path) -> list[Section]:
    """Every section of the page for the project at ``root``, missing ones among them."""
    with (root / "VERSIONS.lock").open("rb") as stream:
        lock = tomllib.load(stream)
    found = gather(root)
    return [
        _section(measures.answer, found["answer"]),
        _section(measures.ladder, found["bench"]),
        _section(measures.host, found["host"]),
        _releases(root, lock, found),
        _section(fork.drift, found["record"]),
        _section(fork.applicability, found["map"]),
        _section(measures.families, found["zoo"]),
        _section(measures.cost, found["cost"]),
        _section(measures.artefacts, found["artefacts"]),
    ]


def _section(make: Callable[[Evidence], Section], evidence: Evidence) -> Section:
    """The section; shown as missing when its file was written in another form."""
    try:
        return make(evidence)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        return make(as_missing(evidence, f"not in the form that the page reads ({error!r})"))


def _releases(root: Path, lock: Mapping[str, Any], found: Mapping[str, Evidence]) -> Section:
    necessity = found["necessity"]
    return _section(lambda status: fork.releases(root, lock, status, necessity), found["status"])


def render(parts: Sequence[Section]) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    return environment.get_template("page.html.j2").render(sections=parts, style=style)
