# SPDX-License-Identifier: Apache-2.0
"""Results of the survey, and the table of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from groundwork.files import atomic_write_json

# Begin of a line in which the surveying process gives an outcome.
MARK = "survey: "

# Kinds of cases, in words.
KINDS = {"module": "modules of torch.nn", "architecture": "architectures"}

# Largest difference of an output, as a part of the largest of torch's.
TOLERANCE = 1e-5


class Verdict(StrEnum):
    """Result of a case; FAILED is a refusal without a name: our fault or TVM's."""

    RIGHT = "right"
    REFUSED = "refused"
    WRONG = "wrong"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """A case and its result.

    Attributes:
        name: of the case.
        kind: "module" or "architecture".
        verdict: on the outputs.
        error: largest difference in relation to an output's largest value.
        share: part of the multiply-adds that kernels do; None where nothing was compiled.
        told: the refusal, or the fault.
        seconds: from export to the comparison.
    """

    name: str
    kind: str
    verdict: Verdict
    error: float = 0.0
    share: float | None = None
    told: str = ""
    seconds: float = 0.0

    @property
    def subject(self) -> str:
        """The module without the number of its setting, or the architecture."""
        return self.name.rpartition(" ")[0] if self.kind == "module" else self.name

    @property
    def line(self) -> str:
        """One line of text."""
        share = f"{self.share:7.1%}" if self.share is not None else "      -"
        told = " ".join(self.told.split())[:160]
        return (
            f"{self.name:28} {self.verdict:8} {self.error:8.1e} {share} {self.seconds:6.1f} s"
            f"  {told}"
        ).rstrip()


@dataclass
class Report:
    """A file of outcomes.

    Attributes:
        file: it is written after each outcome.
        made_from: digest of what outcomes depend on.
        outcomes: by name.
    """

    file: Path
    made_from: str
    outcomes: dict[str, Outcome]

    @classmethod
    def read(cls, file: Path, made_from: str) -> Report:
        """The report of a file; an empty one if it is absent, or made from something else."""
        try:
            table = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            table = {}
        same = table.get("made_from") == made_from
        if table and not same:
            print(f"{file} is of other sources or another torch: all cases are run again")
        found = [Outcome(**one) for one in table.get("outcomes", ())] if same else []
        return cls(file, made_from, {one.name: one for one in found})

    def add(self, outcome: Outcome) -> None:
        """Take an outcome, and write the file."""
        self.outcomes[outcome.name] = outcome
        outcomes = [asdict(one) for one in self.outcomes.values()]
        atomic_write_json(self.file, {"made_from": self.made_from, "outcomes": outcomes})

    @property
    def faults(self) -> list[Outcome]:
        """Outcomes that are wrong, or failed without a name."""
        return [
            one for one in self.outcomes.values() if one.verdict in (Verdict.WRONG, Verdict.FAILED)
        ]

    def summary(self) -> str:
        """A table in Markdown: how many of each kind are right, refused, wrong."""
        lines = [
            "| | cases | right | refused by name | wrong | failed | largest error | seconds |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for kind, title in KINDS.items():
            if found := [one for one in self.outcomes.values() if one.kind == kind]:
                lines.append(f"| {' | '.join([title, *_cells(found)])} |")
        return "\n".join(lines)

    def table(self) -> str:
        """A table in Markdown: what became of each architecture, and of each module's settings."""
        lines = []
        for kind, title in KINDS.items():
            groups = dict[str, list[Outcome]]()
            for one in self.outcomes.values():
                if one.kind == kind:
                    groups.setdefault(one.subject, []).append(one)
            lines += ["", f"| {title} | verdict | largest error | on kernels | seconds |"]
            lines.append("|---|---|---|---|---|")
            lines += [_row(name, found) for name, found in groups.items()]
        return "\n".join(lines[1:])


def _row(name: str, found: Sequence[Outcome]) -> str:
    count = Counter(one.verdict for one in found)
    verdict = ", ".join(v if len(count) == 1 else f"{n} {v}" for v, n in count.items())
    shares = [one.share for one in found if one.share is not None]
    share = f"{min(shares):.1%}" if shares else ""
    error = f"{max(one.error for one in found):.1e}" if count[Verdict.RIGHT] else ""
    return f"| {name} | {verdict} | {error} | {share} | {sum(o.seconds for o in found):.1f} |"


def _cells(outcomes: Collection[Outcome]) -> list[str]:
    count = Counter(one.verdict for one in outcomes)
    right = count[Verdict.RIGHT]
    worst = max((one.error for one in outcomes if one.verdict == Verdict.RIGHT), default=0.0)
    return [
        str(len(outcomes)),
        f"{right} ({right / len(outcomes):.1%})",
        *(str(count[one]) for one in (Verdict.REFUSED, Verdict.WRONG, Verdict.FAILED)),
        f"{worst:.1e}",
        f"{sum(one.seconds for one in outcomes):.0f}",
    ]
