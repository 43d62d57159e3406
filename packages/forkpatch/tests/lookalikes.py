# SPDX-License-Identifier: Apache-2.0
"""Lookalikes: a block of a file, and one with another name that upstream leaves in its place.

There are 22 kinds of file, most of them without a grammar. For each, a patch changes one line of
a block; upstream moves the block to another file, new or not, and keeps a twin of it under another
name; or it exchanges two blocks, or removes the first; or it only renames the block, and git's
merge is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from misplacement import MisplacementCase


@dataclass(frozen=True)
class Look:
    """A kind of file.

    Attributes:
        head: the lines before a block's body; ``NAME`` is the block's name.
        line: a line of the body; ``{n}`` is a number.
        tail: the lines after it.
        top: the first lines of the file.
        end: its last lines.
    """

    kind: str
    suffix: str
    head: str
    line: str
    tail: str = ""
    top: str = ""
    end: str = ""

    def block(self, name: str, fourth: int = 41, rest: int = 0) -> str:
        """The text of a block of seven lines; the patch changes the fourth."""
        numbers = [11 + rest, 23 + rest, 37 + rest, fourth, 53 + rest, 67 + rest, 79 + rest]
        body = [self.line.replace("{n}", str(number)) for number in numbers]
        return "\n".join(filter(None, [self.head, *body, self.tail])).replace("NAME", name)

    def file(self, *blocks: str) -> str:
        """A file of blocks."""
        return "\n".join(filter(None, [self.top, *blocks, self.end])) + "\n"


LOOKS = (
    Look("tests of C++", ".cc", "TEST(Suite, NAME) {", "  check({n}, f({n}));", "}\n"),
    Look("system calls", ".c", "SYSCALL_DEFINE2(NAME, int, a, int, b)\n{", "\tgo({n}, a);", "}\n"),
    Look("registrations", ".cpp", "REGISTER_IMPL(ops, NAME, m) {", '  m.impl("op{n}", f);', "}\n"),
    Look("jobs", ".yml", "  NAME:\n    steps:", "      - run: step {n}", top="jobs:"),
    Look("functions of CMake", ".cmake", "function(NAME)", "  add_step({n})", "endfunction()\n"),
    Look("stages", ".dockerfile", "FROM base AS NAME", "RUN step {n}"),
    Look("sections of LaTeX", ".tex", "\\section{NAME}", "Fact {n} is \\emph{known}."),
    Look(
        *("cells of a notebook", ".ipynb", '  {\n   "id": "NAME",\n   "source": ['),
        *(
            '    "step({n})",',
            '    "end()"\n   ]\n  },',
            '{\n "cells": [',
            '  {"id": "last"}\n ]\n}',
        ),
    ),
    Look("rules of CSS", ".css", ".NAME {", "  --space-{n}: {n}px;", "}\n"),
    Look("targets of Starlark", ".bzl", "rule(", '    "src{n}.c",', '    name = "NAME",\n)\n'),
    Look("sections of ini", ".ini", "[NAME]", "key{n} = on"),
    Look(
        *("methods of C#", ".cs", "    public int NAME(int x)\n    {", "        x = Step(x, {n});"),
        *("        return x;\n    }\n", "class Box\n{", "}"),
    ),
    Look("targets of make", ".mk", "NAME: all", "\tstep {n}"),
    Look("functions of a shell", ".sh", "NAME() {", "  step {n}", "}\n"),
    Look("functions of Lua", ".lua", "function M.NAME(x)", "  x = step(x, {n})", "end\n"),
    Look("functions of Kotlin", ".kt", "fun NAME(x: Int): Int {", "    step(x, {n})", "}\n"),
    Look("sections of Markdown", ".md", "## NAME\n", "- Fact {n} is known."),
    Look(
        "parts of HTML",
        ".html",
        '<div id="NAME">',
        "  <p>Fact {n}</p>",
        "</div>",
        "<body>",
        "</body>",
    ),
    Look(
        "elements of XML",
        ".xml",
        '  <set name="NAME">',
        '    <v n="{n}"/>',
        "  </set>",
        "<a>",
        "</a>",
    ),
    Look("messages", ".proto", "message NAME {", "  int32 field{n} = {n};", "}\n"),
    Look("resources", ".tf", 'resource "box" "NAME" {', "  size{n} = {n}", "}\n"),
    Look("queries", ".sql", "create view NAME as select", "  field{n},", "  last from all_rows;\n"),
)


def lookalikes() -> Iterator[MisplacementCase]:
    """Five cases for each kind of file: git puts the change into the twin, which is wrong."""
    for look in LOOKS:
        zap, hop, old = (look.block(name) for name in ("Zap", "Hop", "OldZap"))
        patched, other = look.block("Zap", 555), look.block("Other", 143, 100)
        single, double = (
            (look.file(zap, *more), look.file(patched, *more)) for more in ((), (hop,))
        )
        base = MisplacementCase(look.kind, look.suffix, "twins", "", *single, "", None)
        yield replace(
            base, change="moves to a new file", new=look.file(old), elsewhere=look.file(zap)
        )
        yield replace(
            base,
            change="moves to a file that was there",
            new=look.file(old),
            elsewhere=look.file(other, zap),
            elsewhere_before=look.file(other),
        )
        first, _, others = zap.partition(look.line.replace("{n}", "11"))
        moved = first + look.line.replace("{n}", "900") + others
        yield replace(
            base,
            change="is edited and moves to a file that was there, further in",
            new=look.file(look.block("OldZap", 41, 0).replace("79", "978")),
            elsewhere="".join(f"  {line}\n" for line in look.file(other, moved).splitlines()),
            elsewhere_before=look.file(other),
        )
        base = MisplacementCase(look.kind, look.suffix, "twins", "", *double, look.file(hop), None)
        yield replace(base, change="is removed")
        new, right = look.file(hop, zap), look.file(hop, patched)
        yield replace(base, change="change places", new=new, right=right)


def renamed() -> Iterator[MisplacementCase]:
    """A case for each kind of file in which git's merge is right: the block has another name."""
    for look in LOOKS:
        texts = (look.block("Zap"), look.block("Zap", 555), look.block("NewZap"))
        right = look.file(look.block("NewZap", 555))
        files = (look.file(text) for text in texts)
        elsewhere = look.file(look.block("Other", 143, 100))
        yield MisplacementCase(
            look.kind, look.suffix, "block", "is renamed", *files, right, elsewhere
        )
