# SPDX-License-Identifier: Apache-2.0
"""Outcomes of the survey, and tables of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from groundwork.files import atomic_write_json

# Begin of a line with an outcome on the surveying process's standard output.
MARK = "survey: "

# Kinds of cases, in words.
KINDS = {
    "module": "modules of torch.nn",
    "operator": "operators",
    "architecture": "architectures",
    "onnx": "tests of ONNX's backends",
    "onnx-architecture": "architectures that torch exports to ONNX",
}

# Largest allowed difference of an output, relative to the largest value of torch's output.
TOLERANCE = 1e-5


class Verdict(StrEnum):
    """The result of a case; FAILED is a refusal without a name: the project's fault or TVM's."""

    RIGHT = "right"
    REFUSED = "refused"
    WRONG = "wrong"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """A case and its result.

    Attributes:
        name: of the case.
        kind: one of KINDS.
        verdict: on the outputs.
        error: largest difference, relative to an output's largest value.
        share: part of the multiply-adds that kernels do; None if the case was not compiled.
        told: text of the refusal or fault, or a note.
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
    def reason(self) -> str:
        """The last words of a refusal, behind the operator's name and place."""
        return self.told.strip().splitlines()[-1].rpartition(": ")[2]

    @property
    def line(self) -> str:
        """The outcome as a line of text."""
        share = f"{self.share:7.1%}" if self.share is not None else "      -"
        note = " ".join(self.told.split())[:160]
        return (
            f"{self.name:28} {self.verdict:8} {self.error:8.1e} {share} {self.seconds:6.1f} s"
            f"  {note}"
        ).rstrip()


@dataclass
class Report:
    """A file of outcomes.

    Attributes:
        file: rewritten after each outcome.
        made_from: digest of everything that outcomes depend on.
        outcomes: by name.
    """

    file: Path
    made_from: str
    outcomes: dict[str, Outcome]

    @classmethod
    def read(cls, file: Path, made_from: str) -> Report:
        """Return the report in a file; an empty report if absent or if ``made_from`` differs."""
        try:
            table = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            table = {}
        same = table.get("made_from") == made_from
        if table and not same:
            print(f"{file} is of other sources or another torch: all cases are run again")
        outcomes = [Outcome(**entry) for entry in table.get("outcomes", ())] if same else []
        return cls(file, made_from, {entry.name: entry for entry in outcomes})

    def add(self, outcome: Outcome) -> None:
        """Add an outcome and write the file."""
        self.outcomes[outcome.name] = outcome
        outcomes = [asdict(entry) for entry in self.outcomes.values()]
        atomic_write_json(self.file, {"made_from": self.made_from, "outcomes": outcomes})

    @property
    def faults(self) -> list[Outcome]:
        """The outcomes that are wrong, or failed without a name."""
        return [o for o in self.outcomes.values() if o.verdict in (Verdict.WRONG, Verdict.FAILED)]

    def summary(self) -> str:
        """Return a Markdown table of the right, refused and wrong cases of each kind."""
        lines = [
            "| | cases | right | refused by name | wrong | failed | largest error | seconds |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for kind, title in KINDS.items():
            if outcomes := [outcome for outcome in self.outcomes.values() if outcome.kind == kind]:
                lines.append(f"| {' | '.join([title, *_cells(outcomes)])} |")
        return "\n".join(lines)

    def table(self) -> str:
        """Return a Markdown table of the verdicts on architectures and on modules' settings."""
        lines = []
        for kind, title in KINDS.items():
            groups = dict[str, list[Outcome]]()
            for outcome in self.outcomes.values():
                if outcome.kind == kind:
                    groups.setdefault(outcome.subject, []).append(outcome)
            lines += ["", f"| {title} | verdict | largest error | on kernels | seconds |"]
            lines.append("|---|---|---|---|---|")
            lines += [_row(name, outcomes) for name, outcomes in groups.items()]
        return "\n".join(lines[1:])


def _row(name: str, outcomes: Sequence[Outcome]) -> str:
    count = Counter(outcome.verdict for outcome in outcomes)
    verdict = ", ".join(v if len(count) == 1 else f"{n} {v}" for v, n in count.items())
    if len(outcomes) == 1 and count[Verdict.REFUSED]:
        verdict += f": {outcomes[0].reason}"
    shares = [outcome.share for outcome in outcomes if outcome.share is not None]
    share = f"{min(shares):.1%}" if shares else ""
    error = f"{max(outcome.error for outcome in outcomes):.1e}" if count[Verdict.RIGHT] else ""
    return f"| {name} | {verdict} | {error} | {share} | {sum(o.seconds for o in outcomes):.1f} |"


def _cells(outcomes: Collection[Outcome]) -> list[str]:
    count = Counter(entry.verdict for entry in outcomes)
    right = count[Verdict.RIGHT]
    worst = max((entry.error for entry in outcomes if entry.verdict == Verdict.RIGHT), default=0.0)
    return [
        str(len(outcomes)),
        f"{right} ({right / len(outcomes):.1%})",
        *(str(count[entry]) for entry in (Verdict.REFUSED, Verdict.WRONG, Verdict.FAILED)),
        f"{worst:.1e}",
        f"{sum(entry.seconds for entry in outcomes):.0f}",
    ]
