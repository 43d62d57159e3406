# SPDX-License-Identifier: Apache-2.0
"""Results of the survey, and the table of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from groundwork.files import atomic_write_json

# Begin of a line in which the surveying process gives an outcome.
MARK = "survey: "

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
        convolves: some of the multiply-adds are of convolutions.
        told: the refusal, or the fault.
        seconds: from export to the comparison.
        board: the verdict in the emulator; empty where it was not asked for.
    """

    name: str
    kind: str
    verdict: Verdict
    error: float = 0.0
    share: float | None = None
    convolves: bool = False
    told: str = ""
    seconds: float = 0.0
    board: str = ""

    @property
    def line(self) -> str:
        """One line of text."""
        share = f"{self.share:7.1%}" if self.share is not None else "      -"
        told = " ".join(self.told.split())[:160]
        board = f"  riscv64: {self.board}" if self.board else ""
        return (
            f"{self.name:28} {self.verdict:8} {self.error:8.1e} {share} {self.seconds:6.1f} s"
            f"{board}  {told}"
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
            one
            for one in self.outcomes.values()
            if one.verdict in (Verdict.WRONG, Verdict.FAILED) or one.board == Verdict.WRONG
        ]

    def summary(self) -> str:
        """A table in Markdown: how many of each kind are right, refused, wrong."""
        lines = [
            "| | cases | right | refused by name | wrong | failed | largest error | seconds |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for kind, title in (("module", "modules of torch.nn"), ("architecture", "architectures")):
            if found := [one for one in self.outcomes.values() if one.kind == kind]:
                lines.append(f"| {' | '.join([title, *_cells(found)])} |")
        boards = Counter(one.board for one in self.outcomes.values() if one.board)
        told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(boards.items()))
        return "\n".join([*lines, *([f"\nof these in the emulator: {told}"] if told else [])])

    def convolutions(self) -> str:
        """A table in Markdown: kernels' share in each architecture that has convolutions."""
        found = [o for o in self.outcomes.values() if o.kind == "architecture" and o.convolves]
        lines = ["| architecture | multiply-adds on kernels |", "|---|---|"]
        for one in sorted(found, key=lambda one: one.share or 0.0):
            lines.append(f"| {one.name} | {one.share or 0.0:.1%} |")
        return "\n".join(lines)


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
