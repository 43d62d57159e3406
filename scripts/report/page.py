# SPDX-License-Identifier: Apache-2.0
"""The page: every section in order, rendered into one file."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jinja2

from report import fork, measures
from report.blocks import Content, Section
from report.evidence import Evidence, gather

TEMPLATES = Path(__file__).with_name("templates")
# Errors of a part whose files have another form than expected.
MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError)


@dataclass(frozen=True)
class ReportSection:
    """A section that shows a kind of result; ``make`` need not check the results' form."""

    title: str
    make: Callable[[Evidence], Content]
    lead: str

    def section(self, key: str, evidence: Evidence) -> Section:
        """Return the section, which is missing without results of the expected form."""
        why, body = evidence.why, Content()
        try:
            body = self.make(evidence) if evidence.found else body
        except MALFORMED as error:
            why = f"{', '.join(evidence.found)}: not in the form that the page reads ({error!r})"
        return Section(key, self.title, self.lead, evidence.command, why, body)


# By the key of the results in evidence.SOURCES.
PARTS = {
    "answer": ReportSection(
        "The answer", measures.answer, "A real model, run under emulation and checked."
    ),
    "bench": ReportSection(
        "The ladder of speed",
        measures.ladder,
        "Guest instructions in millions, all of them and weighted by LMUL; they repeat exactly."
        " Cycles are of a core's pipeline, then (serial / vec-serial), in millions.",
    ),
    "host": ReportSection(
        "On the host",
        measures.host,
        "The same patches on the host's own CPU, upstream and ours in one run.",
    ),
    "record": ReportSection(
        "Symbol drift",
        fork.drift,
        "Each hunk's function on the pinned base, and each upstream function that an overlay"
        " takes the place of, compared with the recorded one.",
    ),
    "map": ReportSection(
        "Applicability map",
        fork.applicability,
        "Every set of patches tried on every version of its upstream.",
    ),
    "zoo": ReportSection(
        "Model families",
        measures.families,
        "Small random models in the shape of the real ones, compared with transformers.",
    ),
    "cost": ReportSection(
        "Cost on an accelerator",
        measures.cost,
        "Estimated latency and energy on PE arrays, for the models as they are compiled.",
    ),
    "artefacts": ReportSection(
        "Artefacts", measures.artefacts, "Files of each distribution, with sha256."
    ),
}
RELEASES_AT = list(PARTS).index("record")  # index of the section of several results


def sections(root: Path) -> list[Section]:
    """Return every section of the page for the project at ``root``, also missing sections."""
    with (root / "VERSIONS.lock").open("rb") as stream:
        lock = tomllib.load(stream)
    results = gather(root)
    known = results["status"], results["necessity"]
    try:
        releases = fork.releases(root, lock, *known)
    except MALFORMED:
        releases = fork.releases(root, lock, *(replace(evidence, found={}) for evidence in known))
    parts = [part.section(key, results[key]) for key, part in PARTS.items()]
    return [*parts[:RELEASES_AT], releases, *parts[RELEASES_AT:]]


def render(parts: Sequence[Section]) -> str:
    """Return the page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    return environment.get_template("page.html.j2").render(sections=parts, style=style)
