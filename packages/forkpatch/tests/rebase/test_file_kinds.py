# SPDX-License-Identifier: Apache-2.0
"""Patches of files that the generator does not write: empty, of other line ends, of other paths."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from forklab import Link
from placement_cases import Files, Outcome, PlacementCase, judged

LINES = [f"line {number} has word{number}" for number in range(30)]
OURS = [*LINES[:5], "patched", *LINES[6:]]
THEIRS = [*LINES[:20], "of upstream", *LINES[21:]]
BOTH = [*OURS[:20], "of upstream", *OURS[21:]]


def data(lines: Sequence[str], feed: str = "\n", end: str = "\n") -> bytes:
    return (feed.join(lines) + end).encode()


def merged(path: str, feed: str = "\n", end: str = "\n", new_path: str = "") -> PlacementCase:
    """Return a case in which both sides edit a file, and upstream may rename it."""
    old, patched, new, right = (data(lines, feed, end) for lines in (LINES, OURS, THEIRS, BOTH))
    new_path = new_path or path
    return case({path: old}, {path: patched}, {new_path: new}, {new_path: right})


def case(old: Files, patched: Files, new: Files, *rights: Files) -> PlacementCase:
    return PlacementCase("", old, patched, new, rights, may_stop=False)


INIT, OTHER = {"a/__init__.py": b""}, {"b/__init__.py": b""}
CODE = {"a/code.py": data(LINES)}
EMPTY = {"main.py": b""}
MERGED = {
    "CRLF": merged("a.txt", "\r\n", "\r\n"),
    "no line feed at the end": merged("a.py", end=""),
    "path that is not ASCII": merged("gr\u00f6\u00dfe/\u65e5 \u672c.c"),
    "path like an option": merged("-q.c"),
    "renamed": merged("gr\u00f6\u00dfe.c", new_path="ma\u00df.c"),
    "filled empty file": case(
        {**EMPTY, **CODE},
        {"main.py": b"import os\n", **CODE},
        {**EMPTY, "a/code.py": data(THEIRS)},
        {"main.py": b"import os\n", "a/code.py": data(THEIRS)},
    ),
    "empty file in two folders": case(
        CODE, {**CODE, **INIT}, {**CODE, **OTHER}, {**CODE, **INIT, **OTHER}
    ),
    "retargeted link in a moved folder": case(
        {"lib/link": Link(b"real"), "lib/real": b"1\n", **CODE},
        {"lib/link": Link(b"../a/code.py"), "lib/real": b"1\n", **CODE},
        {"core/link": Link(b"real"), "core/real": b"1\n", **CODE},
        {"core/link": Link(b"../a/code.py"), "core/real": b"1\n", **CODE},
    ),
}
STOPPED = {
    "both fill an empty file": case(
        EMPTY, {"main.py": b"import os\n"}, {"main.py": b"import re\n"}
    ),
    "emptied": case(CODE, {"a/code.py": b""}, {"a/code.py": data(THEIRS)}),
    "file in two folders": case(
        CODE, {**CODE, "a/tool.py": b"import os\n"}, {**CODE, "b/tool.py": b"import re\n"}
    ),
    "other line ends": case(
        CODE, {"a/code.py": data(OURS)}, {"a/code.py": data(LINES, "\r\n", "\r\n")}
    ),
    "retargeted link in a folder that moves deeper": case(
        {"lib/link": Link(b"real"), "lib/real": b"1\n", **CODE},
        {"lib/link": Link(b"../a/code.py"), "lib/real": b"1\n", **CODE},
        {"lib/core/link": Link(b"real"), "lib/core/real": b"1\n", **CODE},
    ),
    "link through a link that upstream removes": case(
        {"now": Link(b"a"), **CODE},
        {"now": Link(b"a"), "lib/link": Link(b"../now/code.py"), **CODE},
        CODE,
    ),
}


@pytest.mark.parametrize("name", MERGED)
def test_patch_of_an_unusual_file_is_merged(name: str) -> None:
    assert [outcome for _, outcome in judged([MERGED[name]])] == [Outcome.RIGHT]


@pytest.mark.parametrize("name", STOPPED)
def test_clash_in_an_unusual_file_stops(name: str) -> None:
    assert [outcome for _, outcome in judged([STOPPED[name]])] == [Outcome.STOPPED]
