# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that writes down each test as it begins and ends, a line of JSON each.

It is copied beside upstream's tests and imports none of our modules, so that the tests cannot
reach them. Each line is written at once: the file is valid after a crash or an interrupt,
and tests that have an outcome are not run again.

Lines: ``{"collected": [ids]}``, ``{"begun": id}``, ``{"test": id, "outcome": ..., "reason": ...,
"seconds": ...}`` and ``{"uncollected": outcome, "reason": ...}``, when the file as a whole cannot
be collected.
"""

from __future__ import annotations

import json
import os
from typing import Any

_RECORD = os.environ.get("FORKPATCH_RECORD", "")
_REASON = 2000  # characters kept of a failure
_begun: dict[str, dict[str, Any]] = {}

if _RECORD:
    exec(os.environ.get("FORKPATCH_BEFORE", ""))  # statements of the fork's own file


def _write(line: dict[str, Any]) -> None:
    with open(_RECORD, "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(json.dumps(line) + "\n")


def _done() -> set[str]:
    if not os.path.exists(_RECORD):  # noqa: PTH110
        return set()
    done = set()
    with open(_RECORD, encoding="utf-8") as file:  # noqa: PTH123
        for line in file:
            try:
                done.add(json.loads(line)["test"])
            except (ValueError, KeyError):  # another line, or one that a dying process left
                continue
    return done


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Note all tests; leave out those that have an outcome, and those that were not asked for."""
    only = os.environ.get("FORKPATCH_ONLY", "")
    done = _done() | {item.nodeid for item in items if only not in item.nodeid}
    _write({"collected": [item.nodeid for item in items]})
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = [item for item in items if item.nodeid not in done]


pytest_collection_modifyitems.pytest_impl = {"trylast": True}  # type: ignore[attr-defined]


def pytest_collectreport(report: Any) -> None:
    """Note why a file cannot be collected."""
    if report.outcome != "passed":
        _write({"uncollected": report.outcome, "reason": _reason(report)})


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note that a test begins."""
    _begun[nodeid] = {"test": nodeid, "outcome": "passed", "reason": "", "seconds": 0.0}
    _write({"begun": nodeid})


def pytest_runtest_logreport(report: Any) -> None:
    """Put the outcomes of set-up, call and tear-down together."""
    line = _begun[report.nodeid]
    line["seconds"] = round(line["seconds"] + report.duration, 2)
    if report.outcome == "failed":
        line["outcome"] = "failed"
    elif report.outcome == "skipped" and line["outcome"] == "passed":
        line["outcome"] = "expected failure" if hasattr(report, "wasxfail") else "skipped"
    if report.outcome != "passed" and not line["reason"]:
        line["reason"] = _reason(report)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Note a test's outcome."""
    _write(_begun.pop(nodeid))


def _reason(report: Any) -> str:
    said = report.longrepr
    if isinstance(said, tuple):  # a skip: file, line, reason
        return str(said[-1])
    crash = getattr(said, "reprcrash", None)
    return str(crash.message if crash is not None else said)[-_REASON:].strip()
