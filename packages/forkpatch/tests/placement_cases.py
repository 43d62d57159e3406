# SPDX-License-Identifier: Apache-2.0
"""Generated cases of placement: a patch, upstream's change, and the tree that is right.

    python packages/forkpatch/tests/placement_cases.py --count 5000 --seed 7

A case is made from records with a name and some fields, written in one of many formats. The patch
edits one record. Upstream copies, moves, exchanges, renames or edits records and files. The right
tree follows from the records, so a program judges every result:

- *right*: the patch gives the right tree, or is dropped where upstream has its change;
- *right stop*: it stops, and the case has no single right tree;
- *git conflicts, or is wrong*: it stops where a right tree exists, and git does not find it;
- *false stop*: it stops although git finds the right tree;
- *wrong*: another tree, or a drop, without a stop. The exit code is then 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count
from pathlib import Path

from forklab import Link

from forkpatch.git.calls import Git, init_repository
from forkpatch.git.objects import Changes, Commit, TreeFile, list_tree, read_blobs, write_commits
from forkpatch.model.patchfile import parse_patch
from forkpatch.rebase.merging import merge_patches, merge_tree
from forkpatch.safety import SYMLINK_MODE
from forkpatch.series.mailbox import export_commits
from forkpatch.symbols.newbase import NewBase
from forkpatch.tree.fork import PatchStep

Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Format:
    """A kind of file that holds records.

    Attributes:
        name: the line with a record's name; empty when ``start`` has the name.
        field: another line; ``KEY``, ``VALUE`` and ``NAME`` are replaced.
        start: the lines before a record's fields.
        end: the lines after them.
        between: text between two records; it is appended to all but the last.
        last: text that the last field of a record lacks at its end.
    """

    kind: str
    suffix: str
    field: str
    name: str = ""
    start: str = ""
    end: str = ""
    top: str = ""
    bottom: str = ""
    between: str = ""
    last: str = ""


FORMATS = (
    Format(
        *(
            "JSON objects",
            ".json",
            '      "KEY": VALUE,',
            '      "name": "NAME",',
            "    {",
            "    }",
        ),
        *('{\n  "version": 1,\n  "list": [', '  ],\n  "end": true\n}', ",", ","),
    ),
    Format(
        *(
            "YAML items",
            ".yaml",
            "    KEY: VALUE",
            "    name: NAME",
            "  -",
            "",
            "version: 1\nlist:",
        ),
        "end: true",
    ),
    Format(
        *("documents of Kubernetes", ".yml", "  KEY: VALUE", "  name: NAME"),
        *("kind: Service\nspec:", "---"),
    ),
    Format(
        *("structs of Go", ".go", "\t\tKey: VALUE,", '\t\tName: "NAME",', "\t{", "\t},"),
        *("package list\n\nvar list = []Item{", "}\n\nfunc Last() Item {\n\treturn list[0]\n}"),
    ),
    Format(
        *("initializers of C", ".c", "\t\t.KEY = VALUE,", '\t\t.name = "NAME",', "\t{", "\t},"),
        *("#include <list.h>\n\nstatic struct item list[] = {", "};"),
    ),
    Format(
        *("objects of JavaScript", ".js", "    KEY: VALUE,", '    name: "NAME",', "  {", "  },"),
        *("export const list = [", "];"),
    ),
    Format(
        *("objects of TypeScript", ".ts", "    KEY: VALUE,", "    name: 'NAME',", "  {", "  },"),
        *("const list: Item[] = [", "];\n\nexport default list;"),
    ),
    Format(
        *("structs of Rust", ".rs", "        KEY: VALUE,", '        name: "NAME",', "    Item {"),
        *("    },", "pub const LIST: &[Item] = &[", "];"),
    ),
    Format(
        *("dictionaries of Python", ".py", '        "KEY": VALUE,', '        "name": "NAME",'),
        *("    {", "    },", "import os\n\nLIST = [", "]\n\n\ndef last():\n    return LIST[-1]"),
    ),
    Format(
        *("calls of Python", ".py", "    key=VALUE,", '    name="NAME",', "add(", ")"),
        *("from items import add\n", "\nprint(len(items))"),
    ),
    Format(
        *("chains of a builder", ".java", "            .key(VALUE)", '            .add("NAME")'),
        *("", "", "class Build {\n    Items run() {\n        return new Items()"),
        "            .done();\n    }\n}",
    ),
    Format(
        *("flat statements", ".c", "\tit.KEY = VALUE;", '\tadd(&it, "NAME");'),
        *("", "", "int run(void)\n{\n\tstruct item it;", "\treturn 0;\n}"),
    ),
    Format(
        *("servers of nginx", ".conf", "        KEY VALUE;", "        server_name NAME;"),
        *("    server {", "    }", "http {\n    gzip on;", "}"),
    ),
    Format(
        *("elements of XML", ".xml", "    <KEY>VALUE</KEY>", "    <name>NAME</name>", "  <item>"),
        *("  </item>", "<list>", "</list>"),
    ),
    Format(*("tables of TOML", ".toml", "KEY = VALUE", 'name = "NAME"', "[[item]]", "", "v = 1")),
    Format(
        *(
            "statements of SQL",
            ".sql",
            "  KEY = VALUE,",
            "  name = 'NAME'",
            "insert into items set",
        ),
        *("  last = 0;", "begin;", "commit;"),
    ),
    Format("sections of ini", ".ini", "KEY = VALUE", "", "[NAME]", "", "; items"),
    Format(
        *("functions of C", ".c", "\tset(x, KEY, VALUE);", "", "int NAME(struct x *x)\n{"),
        *("\treturn 0;\n}\n", "#include <x.h>\n"),
    ),
    Format(
        *("functions of Python", ".py", "    x.KEY = VALUE", "", "def NAME(x):"),
        *("    return x\n\n", "import os\n\n"),
    ),
    Format(
        *("methods of Go", ".go", "\tx.Set(KEY, VALUE)", "", "func (x *X) NAME() error {"),
        *("\treturn nil\n}\n", "package x\n"),
    ),
    Format(
        *("methods of a class", ".ts", "    this.KEY = VALUE;", "", "  NAME() {", "  }"),
        *("class X {", "}"),
    ),
    Format("rules of CSS", ".css", "  KEY: VALUEpx;", "", ".NAME {", "}\n"),
    Format(
        "cases of a shell", ".sh", "    KEY=VALUE", "", "  NAME)", "    ;;", "case $1 in", "esac"
    ),
    Format("resources", ".tf", "  KEY = VALUE", "", 'resource "box" "NAME" {', "}\n"),
    Format("sections of Markdown", ".md", "- KEY is VALUE", "", "## NAME\n", ""),
    Format("tests of Zig", ".zig", "    try step(KEY, VALUE);", "", 'test "NAME" {', "}\n"),
    Format("sets of Nix", ".nix", "    KEY = VALUE;", "", "  NAME = build {", "  };", "{", "}"),
    Format(
        *("clauses of Elixir", ".ex", "    put(x, :KEY, VALUE)", "", "  def run(:NAME, x) do"),
        *("  end\n", "defmodule X do", "end"),
    ),
    Format("messages", ".proto", "  int32 KEY = VALUE;", "", "message NAME {", "}\n"),
    Format(
        *("jobs", ".yml", "      - run: set KEY VALUE", "", "  NAME:\n    runs-on: ubuntu"),
        *("", "on: push\njobs:"),
    ),
    Format(
        *("rules of media", ".css", "    KEY: VALUEpx;", "", "@media NAME {\n  .box {"),
        "  }\n}",
    ),
    Format(
        *("environments of LaTeX", ".tex", "  \\item KEY is VALUE", "", "\\begin{list}[NAME]"),
        "\\end{list}\n",
    ),
    Format("targets of make", ".mk", "\tset KEY VALUE", "", "NAME: all", "", "all:"),
    Format("branches of CMake", ".cmake", "  set(KEY VALUE)", "", "if(NAME)", "endif()"),
    Format("options of Kconfig", ".kconfig", "\tKEY VALUE", "", "config NAME", ""),
    Format("nodes", ".dts", "\t\tKEY = <VALUE>;", "", "\tNAME: box@1 {", "\t};\n", "/ {", "};"),
    Format("functions of assembly", ".S", "\tli\tKEY, VALUE", "", "NAME:", "\tret\n", "\t.text"),
    Format("modules of Verilog", ".v", "  assign KEY = VALUE;", "", "module NAME;", "endmodule\n"),
    Format("hosts", ".conf", "    KEY VALUE", "", "Host NAME", ""),
    Format("stanzas", ".control", "KEY: VALUE", "", "Package: NAME", "", between="\n"),
    Format("entries of BibTeX", ".bib", "KEY = {VALUE},", "", "@book{NAME,", "}"),
    Format("messages of gettext", ".po", 'msgid "KEY"\nmsgstr "VALUE"', "", "#: NAME"),
    Format("entries of LDIF", ".ldif", "KEY: VALUE", "cn: NAME", "objectClass: box"),
    Format("rows of CSV", ".csv", "NAME,KEY,VALUE", "", "NAME,name,NAME"),
    Format("equations of Haskell", ".hs", "NAME (Key s) = VALUE * s", "", "NAME :: Box -> Int"),
    Format("blocks of PHP", ".php", "set(KEY, VALUE);", "", "begin(NAME);", "end();", "<?php"),
)
_CODE = (".c", ".go", ".java", ".js", ".py", ".rs", ".ts")
#: Numbers that are written as words.
_WORDS = {-1: "fast", -2: "slow"}
_KEYS = ("port", "tls", "path", "retries", "timeout", "weight", "depth")


@dataclass(frozen=True)
class Entry:
    """A record: its name, its fields, and the number of fields before its name."""

    name: str
    fields: tuple[tuple[str, int], ...]
    name_at: int

    def named(self, name: str) -> Entry:
        """Return the record under another name."""
        return replace(self, name=name)

    def having(self, key: str, value: int | None) -> Entry:
        """Return the record with a field set, added at its end, or removed."""
        if key not in dict(self.fields):
            assert value is not None
            return replace(self, fields=(*self.fields, (key, value)))
        pairs = ((k, value if k == key else v) for k, v in self.fields)
        return replace(self, fields=tuple((k, v) for k, v in pairs if v is not None))


Records = tuple[Entry, ...]
Tree = Mapping[str, Records | Link]


def written(form: Format, records: Sequence[Entry]) -> bytes:
    """Return a file of some records."""
    parts = [form.top] if form.top else []
    for number, entry in enumerate(records):
        lines = [
            form.field.replace("KEY", k).replace("Key", k.title()).replace("key", k)
            for k, _ in entry.fields
        ]
        lines = [
            line.replace("VALUE", _WORDS.get(v, str(v))).replace("NAME", entry.name)
            for line, (_, v) in zip(lines, entry.fields, strict=True)
        ]
        if form.name:
            lines.insert(entry.name_at, form.name.replace("NAME", entry.name))
        lines[-1] = lines[-1].removesuffix(form.last) if form.last else lines[-1]
        block = [form.start.replace("NAME", entry.name), *lines, form.end]
        text = "\n".join(part for part in block if part)
        if form.start == "  -":  # the first field stands in the line of the dash
            text = text.replace("  -\n    ", "  - ", 1)
        parts.append(text + (form.between if number < len(records) - 1 else ""))
    return ("\n".join([*parts, *([form.bottom] if form.bottom else [])]) + "\n").encode()


@dataclass(frozen=True)
class PlacementCase:
    """A patch, upstream's change, and the right result.

    Attributes:
        old: the old tree.
        patched: the old tree with the patch.
        new: upstream's new tree.
        rights: all trees that are right; empty when a person must choose.
        may_stop: True when a stop is right, too.
    """

    name: str
    old: Files
    patched: Files
    new: Files
    rights: tuple[Files, ...]
    may_stop: bool


@dataclass(frozen=True)
class _Draft:
    """A case as records by path, before they are written."""

    old: Tree
    patched: Tree
    new: Tree
    rights: tuple[Tree, ...]
    may_stop: bool = False


@dataclass(frozen=True)
class _Plan:
    """The choices of a case.

    Attributes:
        path: the patched file.
        records: its records; ``target`` is the index of the patched one.
        edit: returns a record with the patch's change.
        other: records of another file.
        is_alike: True when all records have the same fields.
        is_named: True when a record's first line has its name.
    """

    path: str
    records: Records
    target: int
    edit: Callable[[Entry], Entry]
    other: Records
    suffix: str
    is_alike: bool
    is_named: bool

    @property
    def entry(self) -> Entry:
        """The record that the patch edits."""
        return self.records[self.target]

    def around(self, *entries: Entry) -> Records:
        """Return the records with others in the place of the patched one."""
        return (*self.records[: self.target], *entries, *self.records[self.target + 1 :])

    def draft(
        self, new: Tree, *rights: Tree, old: Tree | None = None, patched: Tree | None = None
    ) -> _Draft:
        """Return a case; the trees of the usual patch are the defaults."""
        before: Tree = {self.path: self.records} if old is None else old
        after = {**before, self.path: self.around(self.edit(self.entry))}
        return _Draft(before, after if patched is None else patched, new, rights)

    def perhaps(self, new: Tree, right: Tree) -> _Draft:
        """Return a case in which a stop is right, too, among records that read alike."""
        return replace(self.draft(new, right), may_stop=self.is_alike)


def _copied(plan: _Plan, *parts: str) -> _Draft:
    """A copy with another name, before or after the record."""
    copy = plan.entry.named("admin")
    order = {"copy": copy, "real": plan.entry}
    now = plan.around(*(order[part] for part in parts))
    right = plan.around(
        *(plan.edit(e) if e is plan.entry else e for e in (order[p] for p in parts))
    )
    return plan.draft({plan.path: now}, {plan.path: right})


def copy_before(plan: _Plan) -> _Draft:
    """Upstream puts a copy with another name before the record."""
    return _copied(plan, "copy", "real")


def copy_after(plan: _Plan) -> _Draft:
    """Upstream puts a copy with another name after the record."""
    return _copied(plan, "real", "copy")


def copies_around(plan: _Plan) -> _Draft:
    """Upstream puts copies before and after the record."""
    return _copied(plan, "copy", "real", "copy")


def twin_stays(plan: _Plan) -> _Draft:
    """The record moves to a new file; a twin of another name is left in its place."""
    there = f"src/moved{plan.suffix}"
    rest = plan.around(plan.entry.named("legacy"))
    return plan.draft(
        {plan.path: rest, there: (plan.entry,)},
        {plan.path: rest, there: (plan.edit(plan.entry),)},
    )


def twin_stays_and_there_was_a_file(plan: _Plan) -> _Draft:
    """The record moves to a file that was there; a twin of another name is left."""
    there = f"src/other{plan.suffix}"
    rest = plan.around(plan.entry.named("legacy"))
    return plan.draft(
        {plan.path: rest, there: (*plan.other, plan.entry)},
        {plan.path: rest, there: (*plan.other, plan.edit(plan.entry))},
        old={plan.path: plan.records, there: plan.other},
    )


def moved(plan: _Plan) -> _Draft:
    """The record moves to the other end of its file."""
    rest = plan.around()
    ends = (plan.entry, *rest) if plan.target else (*rest, plan.entry)
    right = tuple(plan.edit(e) if e is plan.entry else e for e in ends)
    return plan.draft({plan.path: ends}, {plan.path: right})


def exchanged(plan: _Plan) -> _Draft:
    """Two records of a file change places."""
    other = (plan.target + 1) % len(plan.records)
    now = list(plan.records)
    now[plan.target], now[other] = now[other], now[plan.target]
    right = tuple(plan.edit(e) if e is plan.entry else e for e in now)
    return plan.draft({plan.path: tuple(now)}, {plan.path: right})


def files_exchanged(plan: _Plan) -> _Draft:
    """Two files exchange their names."""
    there = f"src/other{plan.suffix}"
    twin = tuple(entry.named(f"{entry.name}_b") for entry in plan.records)
    return plan.draft(
        {plan.path: twin, there: plan.records},
        {plan.path: twin, there: plan.around(plan.edit(plan.entry))},
        old={plan.path: plan.records, there: twin},
    )


def legacy_twin(plan: _Plan) -> _Draft:
    """A twin keeps the record's text; upstream edits the real record where the patch does."""
    edited = plan.entry
    for key, value in plan.edit(plan.entry).fields:
        if (key, value) not in plan.entry.fields:
            edited = edited.having(key, value + 5)
    for key, value in plan.entry.fields:
        if key not in dict(plan.edit(plan.entry).fields):
            edited = edited.having(key, value + 5)
    return plan.draft({plan.path: plan.around(plan.entry.named("legacy"), edited)})


def legacy_twin_near(plan: _Plan) -> _Draft:
    """A twin keeps the record's text; upstream edits the real record near the patch's line."""
    changed = plan.edit(plan.entry).fields
    near = [key for key, value in plan.entry.fields if (key, value) in changed]
    edited = plan.entry.having(near[0], 77)
    now = plan.entry.named("legacy"), edited
    right = plan.entry.named("legacy"), plan.edit(edited)
    return plan.draft({plan.path: plan.around(*now)}, {plan.path: plan.around(*right)})


def removed(plan: _Plan) -> _Draft:
    """Upstream removes the record; a person must drop the patch."""
    return plan.draft({plan.path: plan.around()})


def renamed(plan: _Plan) -> _Draft:
    """Upstream gives the record another name; among records that read alike, a stop is right."""
    now = plan.entry.named("newname")
    return plan.perhaps({plan.path: plan.around(now)}, {plan.path: plan.around(plan.edit(now))})


def others_edited(plan: _Plan) -> _Draft:
    """Upstream edits the other records only."""

    def edited(entry: Entry) -> Entry:
        return entry if entry is plan.entry else entry.having("depth", 9)

    now = tuple(edited(entry) for entry in plan.records)
    right = tuple(plan.edit(e) if e is plan.entry else edited(e) for e in plan.records)
    return plan.draft({plan.path: now}, {plan.path: right})


def one_added(plan: _Plan) -> _Draft:
    """Upstream adds a record with other fields at the start of the file."""
    more = Entry("fresh", (("colour", 4), ("shape", 6)), 0)
    right = (more, *plan.around(plan.edit(plan.entry)))
    return plan.draft({plan.path: (more, *plan.records)}, {plan.path: right})


def file_renamed(plan: _Plan) -> _Draft:
    """Upstream renames the file."""
    there = f"src/renamed{plan.suffix}"
    return plan.draft({there: plan.records}, {there: plan.around(plan.edit(plan.entry))})


def file_renamed_and_twin(plan: _Plan) -> _Draft:
    """Upstream renames the file, and a twin with other names takes the old name."""
    there = f"src/renamed{plan.suffix}"
    twin = tuple(entry.named(f"{entry.name}_b") for entry in plan.records)
    return plan.draft(
        {there: plan.records, plan.path: twin},
        {there: plan.around(plan.edit(plan.entry)), plan.path: twin},
    )


def folder_moved(plan: _Plan) -> _Draft:
    """Upstream renames the folder in which the patch edits a file."""
    old = {plan.path: plan.records, f"src/more{plan.suffix}": plan.other}
    new = {f"lib/{path.partition('/')[2]}": value for path, value in old.items()}
    right = {**new, f"lib/main{plan.suffix}": plan.around(plan.edit(plan.entry))}
    return plan.draft(new, right, old=old)


def new_file_in_moved_folder(plan: _Plan) -> _Draft:
    """The patch adds a file to a folder that upstream renames."""
    old = {plan.path: plan.records, f"src/more{plan.suffix}": plan.other}
    new = {f"lib/{path.partition('/')[2]}": value for path, value in old.items()}
    added = (Entry("added", (("colour", 4), ("shape", 6)), 0),)
    patched = {**old, f"src/added{plan.suffix}": added}
    return plan.draft(new, {**new, f"lib/added{plan.suffix}": added}, old=old, patched=patched)


def both_add_a_field(plan: _Plan) -> _Draft:
    """Patch and upstream add a field of the same name to the record, at two places."""
    first, second = (
        plan.entry.having("extra", 1),
        replace(
            plan.entry, fields=(("extra", 2), *plan.entry.fields), name_at=plan.entry.name_at + 1
        ),
    )
    patched = {plan.path: plan.around(first)}
    return plan.draft({plan.path: plan.around(second)}, patched=patched)


def both_add_a_record(plan: _Plan) -> _Draft:
    """Patch and upstream add a record of the same name, at both ends of the file."""
    ours = Entry("extra", (("colour", 1), ("shape", 2)), 0)
    theirs = Entry("extra", (("colour", 3), ("depth", 2)), 0)
    patched = {plan.path: (*plan.records, ours)}
    return plan.draft({plan.path: (theirs, *plan.records)}, patched=patched)


def both_add_a_file(plan: _Plan) -> _Draft:
    """Patch and upstream add a file of the same name in two folders."""
    theirs, old = Entry("extra", (("colour", 3), ("shape", 2)), 0), {plan.path: plan.records}
    ours = theirs.having("colour", 1)
    patched = {**old, f"src/extra{plan.suffix}": (ours,)}
    return plan.draft({**old, f"src/lib/extra{plan.suffix}": (theirs,)}, old=old, patched=patched)


def taken(plan: _Plan) -> _Draft:
    """Upstream made the patch's change."""
    now = {plan.path: plan.around(plan.edit(plan.entry))}
    return plan.draft(now, now)


def taken_and_moved(plan: _Plan) -> _Draft:
    """Upstream made the patch's change, and adds a record at the start of the file."""
    more = Entry("fresh", (("colour", 4), ("shape", 6)), 0)
    now = {plan.path: (more, *plan.around(plan.edit(plan.entry)))}
    return plan.draft(now, now)


def taken_elsewhere(plan: _Plan) -> _Draft:
    """Upstream made the patch's change in a copy of another name, and removed the record."""
    now = {plan.path: plan.around(plan.edit(plan.entry.named("admin")))}
    return plan.perhaps(now, now)


def taken_by_a_twin(plan: _Plan) -> _Draft:
    """Upstream adds a copy that has the patch's change; the record itself is as before."""
    twin = plan.edit(plan.entry).named("admin")
    now, right = plan.around(twin, plan.entry), plan.around(twin, plan.edit(plan.entry))
    return plan.draft({plan.path: now}, {plan.path: right})


def taken_in_part(plan: _Plan) -> _Draft:
    """The patch edits two records; upstream has the change of one."""
    other = (plan.target + 1) % len(plan.records)
    both = tuple(
        plan.edit(e) if n in (plan.target, other) else e for n, e in enumerate(plan.records)
    )
    one = tuple(plan.edit(e) if n == other else e for n, e in enumerate(plan.records))
    return plan.draft({plan.path: one}, {plan.path: both}, patched={plan.path: both})


def deleted_and_renamed(plan: _Plan) -> _Draft:
    """The patch deletes a file that upstream renames, and edits another one."""
    gone, there = f"src/gone{plan.suffix}", f"lib/there{plan.suffix}"
    old = {plan.path: plan.records, gone: plan.other}
    new = {plan.path: plan.records, there: plan.other}
    after = {plan.path: plan.records}
    return plan.draft(new, after, old=old, patched=after)


def deleted_and_edited(plan: _Plan) -> _Draft:
    """The patch deletes a file that upstream edits and renames."""
    gone, there = f"src/gone{plan.suffix}", f"lib/there{plan.suffix}"
    edited = (plan.other[0].having("depth", 9).having("weight", 99), *plan.other[1:])
    old = {plan.path: plan.records, gone: plan.other}
    new = {plan.path: plan.records, there: edited}
    after = {plan.path: plan.records}
    return plan.draft(new, after, old=old, patched=after)


def file_split(plan: _Plan) -> _Draft:
    """The file is split: the record and those after it get a file of their own."""
    there = f"src/second{plan.suffix}"
    first, second = plan.records[: plan.target], plan.records[plan.target :]
    moved_on = (plan.edit(plan.entry), *second[1:])
    return plan.draft({plan.path: first, there: second}, {plan.path: first, there: moved_on})


def files_joined(plan: _Plan) -> _Draft:
    """Another file is joined to the record's file, before its records."""
    gone = f"src/other{plan.suffix}"
    return plan.draft(
        {plan.path: (*plan.other, *plan.records)},
        {plan.path: (*plan.other, *plan.around(plan.edit(plan.entry)))},
        old={plan.path: plan.records, gone: plan.other},
    )


def joined_to_another(plan: _Plan) -> _Draft:
    """The record's file is joined to another one, behind its records."""
    there = f"src/other{plan.suffix}"
    return plan.draft(
        {there: (*plan.other, *plan.records)},
        {there: (*plan.other, *plan.around(plan.edit(plan.entry)))},
        old={plan.path: plan.records, there: plan.other},
    )


def turned_round(plan: _Plan) -> _Draft:
    """The records stand in the opposite order."""
    right = tuple(plan.edit(e) if e is plan.entry else e for e in reversed(plan.records))
    return plan.draft({plan.path: plan.records[::-1]}, {plan.path: right})


def names_exchanged(plan: _Plan) -> _Draft:
    """Two records exchange their names; a stop is right, too, as their fields stay."""
    other = (plan.target + 1) % len(plan.records)
    now = list(plan.records)
    now[plan.target] = plan.entry.named(plan.records[other].name)
    now[other] = plan.records[other].named(plan.entry.name)
    right = [*now]
    right[other] = plan.edit(now[other])
    return replace(plan.draft({plan.path: tuple(now)}, {plan.path: tuple(right)}), may_stop=True)


def doubled(plan: _Plan) -> _Draft:
    """The record stands twice, under its own name; a person must choose."""
    return plan.draft({plan.path: plan.around(plan.entry, plan.entry)})


def joined_with_the_next(plan: _Plan) -> _Draft:
    """The next record takes the fields that the patch edits, and the record goes."""
    other = plan.records[(plan.target + 1) % len(plan.records)]
    fields = tuple((f"{key}_of_{plan.entry.name}", value) for key, value in plan.entry.fields)
    joined = replace(other, fields=(*other.fields, *fields))
    now = (joined if entry is other else entry for entry in plan.around())
    return plan.draft({plan.path: tuple(now)})


def copied_to_a_version(plan: _Plan) -> _Draft:
    """A copy of the file, in which each record differs a little, gets a path of its own."""
    there = f"src/v2/main{plan.suffix}"
    copy = tuple(entry.having("colour", 4) for entry in plan.records)
    right = plan.around(plan.edit(plan.entry))
    return plan.draft({plan.path: plan.records, there: copy}, {plan.path: right, there: copy})


def old_version_kept(plan: _Plan) -> _Draft:
    """The file moves to a path for the old version; a new one of other records takes its place."""
    there = f"src/v1/main{plan.suffix}"
    fresh = tuple(Entry(e.name, (("colour", 4), ("shape", 6)), 0) for e in plan.records)
    right = plan.around(plan.edit(plan.entry))
    return plan.draft({plan.path: fresh, there: plan.records}, {plan.path: fresh, there: right})


def all_edited(plan: _Plan) -> _Draft:
    """Upstream adds the same field to all records."""

    def edited(entry: Entry) -> Entry:
        name_at = entry.name_at + (entry.name_at > 0)
        return replace(entry, fields=(("colour", 4), *entry.fields), name_at=name_at)

    now = [edited(entry) for entry in plan.records]
    right = [*now]
    right[plan.target] = edited(plan.edit(plan.entry))
    return plan.draft({plan.path: tuple(now)}, {plan.path: tuple(right)})


def both_add_a_word(plan: _Plan) -> _Draft:
    """Patch and upstream add a key with words as values; code and jobs may do a thing twice."""
    ours = plan.entry.having("mode", -1)
    name_at = plan.entry.name_at + (plan.entry.name_at > 0)
    theirs = replace(plan.entry, fields=(("mode", -2), *plan.entry.fields), name_at=name_at)
    both = replace(theirs, fields=(*theirs.fields, ("mode", -1)))
    patched = {plan.path: plan.around(ours)}
    draft = plan.draft({plan.path: plan.around(theirs)}, patched=patched)
    is_code = plan.suffix in (*_CODE, ".yml")
    return (
        replace(draft, rights=({plan.path: plan.around(both)},), may_stop=True)
        if is_code
        else draft
    )


def _rewritten(plan: _Plan) -> Entry:
    return replace(plan.entry, fields=tuple((f"{k}_of", v + 100) for k, v in plan.entry.fields))


def rewritten_after_a_twin(plan: _Plan) -> _Draft:
    """The record keeps its name alone, and a twin before it has the old text."""
    twin = plan.entry.named("legacy")
    return plan.draft({plan.path: plan.around(twin, _rewritten(plan))})


def rewritten_before_a_twin(plan: _Plan) -> _Draft:
    """The record keeps its name alone, and a twin behind it has the old text."""
    twin = plan.entry.named("legacy")
    return plan.draft({plan.path: plan.around(_rewritten(plan), twin)})


def deleted_and_moved(plan: _Plan) -> _Draft:
    """The patch removes the record, which upstream moves to the other end of the file."""
    rest = plan.around()
    ends = (plan.entry, *rest) if plan.target else (*rest, plan.entry)
    return plan.draft({plan.path: ends}, {plan.path: rest}, patched={plan.path: rest})


def deleted_and_moved_out(plan: _Plan) -> _Draft:
    """The patch removes the record, which upstream moves to another file."""
    rest, there = plan.around(), f"src/moved{plan.suffix}"
    return plan.draft({plan.path: rest, there: (plan.entry,)}, patched={plan.path: rest})


def taken_with_another_value(plan: _Plan) -> _Draft:
    """Upstream made the patch's change with another value; a twin before it has the old text.

    A change without a value is then upstream.
    """
    edited = plan.edit(plan.entry)
    fields = tuple((key, 556 if value == 555 else value) for key, value in edited.fields)
    theirs = replace(edited, fields=fields)
    new: Tree = {plan.path: plan.around(plan.entry.named("legacy"), theirs)}
    draft = plan.draft(new)
    return replace(draft, rights=(new,), may_stop=True) if theirs == edited else draft


def copies_in_two_files(plan: _Plan) -> _Draft:
    """The record moves to two files."""
    there = {f"src/{name}{plan.suffix}": (plan.entry,) for name in ("one", "two")}
    return plan.draft({plan.path: plan.around(), **there})


def vendored(plan: _Plan) -> _Draft:
    """A copy of the file stays as it is; upstream removes the record from the file itself."""
    there = {f"vendor/main{plan.suffix}": plan.records}
    return plan.draft({plan.path: plan.around(), **there}, old={plan.path: plan.records, **there})


def both_add_a_number(plan: _Plan) -> _Draft:
    """Patch and upstream give two new fields one number; numbers of messages are names."""
    ours, name_at = plan.entry.having("mode", 99), plan.entry.name_at + (plan.entry.name_at > 0)
    theirs = replace(plan.entry, fields=(("extra", 99), *plan.entry.fields), name_at=name_at)
    both = replace(theirs, fields=(*theirs.fields, ("mode", 99)))
    right: Tree = {plan.path: plan.around(both)}
    patched = {plan.path: plan.around(ours)}
    draft = plan.draft({plan.path: plan.around(theirs)}, patched=patched)
    return draft if plan.suffix == ".proto" else replace(draft, rights=(right,), may_stop=True)


def both_add_a_record_to_a_folder(plan: _Plan) -> _Draft:
    """Patch and upstream add a short record of one name to two files of a folder.

    Functions of C and Go then clash.
    """
    there, extra = f"src/other{plan.suffix}", Entry("extra", (("colour", 1),), 0)
    old: Tree = {plan.path: plan.records, there: plan.other}
    patched: Tree = {**old, plan.path: (*plan.records, extra)}
    theirs = (*plan.other, extra.having("colour", 2))
    draft = plan.draft({**old, there: theirs}, old=old, patched=patched)
    if plan.is_named and plan.suffix in (".c", ".go"):
        return draft
    return replace(draft, rights=({**patched, there: theirs},), may_stop=True)


def both_add_a_like_file(plan: _Plan) -> _Draft:
    """Patch and upstream add files that differ in their paths and a field."""
    ours = Entry("extra", (("colour", 1), ("shape", 2), ("size", 3), ("age", 4), ("wind", 5)), 0)
    old: Tree = {plan.path: plan.records}
    patched: Tree = {**old, f"src/extra{plan.suffix}": (ours,)}
    new: Tree = {**old, f"lib/more{plan.suffix}": (ours.having("age", 44),)}
    return plan.draft(new, old=old, patched=patched)


def both_remove_one_of_two(plan: _Plan) -> _Draft:
    """A record stands twice in a file; patch and upstream remove one each."""
    first = plan.records[: plan.target], plan.records[plan.target :]
    old = (*first[0], plan.entry, plan.other[0], *first[1])
    ours = (*first[0], plan.other[0], *first[1])
    theirs = (*first[0], plan.entry, plan.other[0], *first[1][1:])
    return plan.draft({plan.path: theirs}, old={plan.path: old}, patched={plan.path: ours})


def both_remove_one_of_two_fields(plan: _Plan) -> _Draft:
    """A field stands twice in a record; patch and upstream remove one each."""
    fields = plan.entry.fields
    both = replace(plan.entry, fields=(("tag", 9), *fields, ("tag", 9)))
    ours = replace(plan.entry, fields=both.fields[1:])
    theirs = replace(both, fields=both.fields[:-1])
    old, patched, new = ({plan.path: plan.around(one)} for one in (both, ours, theirs))
    return plan.draft(new, old=old, patched=patched)


def link_to_a_renamed_file(plan: _Plan) -> _Draft:
    """The patch adds a link to a file that upstream renames."""
    link = {"lib/link": Link(f"../{plan.path}".encode())}
    there: Tree = {f"src/there{plan.suffix}": plan.records}
    old: Tree = {plan.path: plan.records}
    return plan.draft(there, old=old, patched={**old, **link})


def link_of_upstream_to_a_removed_file(plan: _Plan) -> _Draft:
    """Upstream adds a link to a file that the patch removes."""
    link, gone = {"lib/link": Link(f"../src/gone{plan.suffix}".encode())}, f"src/gone{plan.suffix}"
    rest: Tree = {plan.path: plan.records}
    old: Tree = {**rest, gone: plan.other}
    return plan.draft({**old, **link}, old=old, patched=rest)


def longer_beside_a_twin(plan: _Plan) -> _Draft:
    """The record gets a last field, before which a separator may come; a twin has the old text."""
    longer, twin = plan.entry.having("colour", 9), plan.entry.named("legacy")
    fields = (*plan.edit(plan.entry).fields, ("colour", 9))
    return plan.draft(
        {plan.path: plan.around(twin, longer)},
        {plan.path: plan.around(twin, replace(longer, fields=fields))},
    )


def renamed_and_moved(plan: _Plan) -> _Draft:
    """Upstream renames the record and moves it behind another, which keeps its name."""
    other = (plan.target + 1) % len(plan.records)
    now = [entry for entry in plan.records if entry is not plan.entry]
    real = plan.entry.named("newname")
    at = now.index(plan.records[other]) + 1
    right = [*now[:at], plan.edit(real), *now[at:]]
    return plan.perhaps(
        {plan.path: (*now[:at], real, *now[at:])},
        {plan.path: tuple(right)},
    )


def _beside_a_namesake(plan: _Plan, name_at: int) -> _Draft:
    other = replace(_rewritten(plan), fields=_rewritten(plan).fields[1:], name_at=name_at)
    return plan.draft({plan.path: plan.around(other, plan.entry.named("newname"))})


def renamed_beside_a_namesake(plan: _Plan) -> _Draft:
    """Upstream renames the record; before it, another one takes its name, as its first line."""
    return _beside_a_namesake(plan, 0)


def renamed_beside_a_late_namesake(plan: _Plan) -> _Draft:
    """Upstream renames the record; before it, another one takes its name, as its second line."""
    return _beside_a_namesake(plan, 1)


UPSTREAM = (
    *(copy_before, copy_after, copies_around, twin_stays, twin_stays_and_there_was_a_file),
    *(moved, exchanged, files_exchanged, legacy_twin, legacy_twin_near, removed, renamed),
    *(others_edited, one_added, file_renamed, file_renamed_and_twin, folder_moved),
    *(new_file_in_moved_folder, both_add_a_field, both_add_a_record, both_add_a_file, taken),
    *(taken_and_moved, taken_elsewhere, taken_by_a_twin, taken_in_part, deleted_and_renamed),
    *(deleted_and_edited, file_split, files_joined, joined_to_another, turned_round),
    *(names_exchanged, doubled, joined_with_the_next, copied_to_a_version, old_version_kept),
    *(all_edited, both_add_a_word, rewritten_after_a_twin, rewritten_before_a_twin),
    *(deleted_and_moved, deleted_and_moved_out, taken_with_another_value, copies_in_two_files),
    *(vendored, both_add_a_number, both_add_a_record_to_a_folder, both_add_a_like_file),
    *(both_remove_one_of_two, both_remove_one_of_two_fields, link_to_a_renamed_file),
    *(link_of_upstream_to_a_removed_file, longer_beside_a_twin, renamed_and_moved),
    *(renamed_beside_a_namesake, renamed_beside_a_late_namesake),
)


def _set(entry: Entry, key: str) -> Entry:
    return entry.having(key, 555)


def _drop(entry: Entry, key: str) -> Entry:
    return entry.having(key, None)


def _add(entry: Entry, key: str) -> Entry:
    at = [name for name, _ in entry.fields].index(key) + 1
    fields = (*entry.fields[:at], ("limit", 555), *entry.fields[at:])
    name_at = entry.name_at + (1 if entry.name_at >= at and entry.name_at > 0 else 0)
    return replace(entry, fields=fields, name_at=name_at)


_EDITS = (_set, _drop, _add)


def cases(number: int, seed: int, only: str = "") -> Iterator[PlacementCase]:
    """Yield cases; every kind of upstream change and format comes in turn.

    ``only`` names a kind of upstream change or of format, or both, as in a case's name.
    """
    every = ((f, u, u.__name__) for f in FORMATS for u in UPSTREAM)
    pairs = [(f, u) for f, u, k in every if only in ("", f.kind, k, f"{f.kind}: {k}")]
    chance = random.Random(seed)
    chance.shuffle(pairs)
    found = 0
    for turn in count():
        form, upstream = pairs[turn % len(pairs)]
        if found == number:
            return
        if case := _case(form, upstream, chance, turn):
            found += 1
            yield case


def _case(
    form: Format, upstream: Callable[[_Plan], _Draft], chance: random.Random, turn: int
) -> PlacementCase | None:
    """Return a case; None when the choices give no patch or no change of upstream."""
    size, alike = chance.choice((3, 4, 7)), chance.random() < 0.7
    order, where = chance.choice((0, 1, 2)), chance.choice((0, 1, 2))
    fields = _KEYS[:size]
    name_at = (0, size // 2, size)[order] if form.name else 0
    names, other = ("web", "shop", "mail", "data")[: chance.choice((2, 3, 4))], ("log", "auth")
    steps = (0, 0) if alike else (1, 10)
    records, others = (
        tuple(
            Entry(n, tuple((k, 10 + i + row * steps[1]) for i, k in enumerate(fields)), name_at)
            for row, n in enumerate(group, start)
        )
        for group, start in ((names, 0), (other, 5))
    )
    target, key = (0, len(names) // 2, len(names) - 1)[where], chance.choice(fields)
    edit = chance.choice(_EDITS)
    path = f"src/main{form.suffix}"
    plan = _Plan(
        path,
        records,
        target,
        lambda e: edit(e, key),
        others,
        form.suffix,
        alike and bool(form.start or form.end),
        "NAME" in form.start,
    )
    draft = upstream(plan)
    trees = [draft.old, draft.patched, draft.new, *draft.rights]
    old, patched, new, *rights = (
        {p: v if isinstance(v, Link) else written(form, v) for p, v in tree.items()}
        for tree in trees
    )
    if old in (patched, new):
        return None
    label = ("first", "middle", "last")[order] if form.name else "first"
    name = f"{turn}: {form.kind}: {upstream.__name__}: {edit.__name__[1:]} {key} of {names[target]}"
    name += f", {len(names)} {'alike' if alike else 'unlike'}, name {label}"
    return PlacementCase(name, old, patched, new, tuple(rights), draft.may_stop)


class Outcome(StrEnum):
    """The outcome of a case."""

    RIGHT = "right"
    STOPPED = "right stop"
    CONFLICT = "git conflicts, or is wrong"
    FALSE_STOP = "false stop"
    WRONG = "WRONG"


def judged(every: Sequence[PlacementCase]) -> Iterator[tuple[PlacementCase, Outcome]]:
    """Yield each case with its outcome."""
    with tempfile.TemporaryDirectory(prefix="placement-") as folder:
        git = init_repository(Path(folder) / "repo.git")
        trees = [
            tree
            for number, case in enumerate(every)
            for tree in ({"spacer": b"%d" % number}, case.old, case.patched)
        ]
        ids = _written(git, "refs/heads/old", trees)
        news = _written(git, "refs/heads/new", [case.new for case in every])
        patches = export_commits(Path(folder) / "repo.git/objects", ids[1:])[1::3]
        for case, *each, patch in zip(every, ids[1::3], ids[2::3], news, patches, strict=True):
            yield case, _outcome(git, case, each, patch.data)


def _written(git: Git, ref: str, trees: Sequence[Files]) -> list[str]:
    """Write a chain of commits with some trees; return their ids."""
    commits = [
        Commit(b"Change %d\n" % number, b"Ada <ada@example.org>", changes=_changes(before, after))
        for number, (before, after) in enumerate(zip([{}, *trees], trees, strict=False))
    ]
    return write_commits(git, ref, commits)


def _changes(before: Files, after: Files) -> Changes:
    changed = {
        path: TreeFile(SYMLINK_MODE if isinstance(data, Link) else "100644", data)
        for path, data in after.items()
        if before.get(path) != data
    }
    return {**dict.fromkeys(path for path in before if path not in after), **changed}


def _outcome(git: Git, case: PlacementCase, ids: Sequence[str], patch: bytes) -> Outcome:
    old, patched, new = ids
    after = {**dict.fromkeys(case.old, b""), **case.patched}
    step = PatchStep(parse_patch(patch, "x.patch"), Commit(b""), case.old, after)
    moves, errors = merge_patches(git, new, [(step, patched)], NewBase(git, new, old))
    if moves:
        (move,) = moves
        merged = {**case.new, **move.after}
        files = {
            path: merged[path] for path in merged if path in move.after or path not in move.here
        }
        return Outcome.RIGHT if files in case.rights else Outcome.WRONG
    if not case.rights or case.may_stop:
        return Outcome.STOPPED
    tree = git.text("rev-parse", f"{new}^{{tree}}")
    tree = merge_tree(git, tree, patched) if errors else ""
    listed = list_tree(git, tree) if tree else {}
    blobs = read_blobs(git, (oid for _, oid in listed.values()))
    is_right = {path: blobs[oid] for path, (_, oid) in listed.items()} in case.rights
    return Outcome.FALSE_STOP if is_right else Outcome.CONFLICT


def main(arguments: Sequence[str]) -> int:
    """Print the outcomes by kind of upstream change; return 1 when a case is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="cases (300)")
    parser.add_argument("--seed", type=int, default=1, help="of the choices (1)")
    parser.add_argument(
        "--only", default="", help="a kind of upstream change, a FORMAT, or FORMAT: KIND (all)"
    )
    parser.add_argument("--list", action="store_true", help="name wrong cases and false stops")
    options = parser.parse_args(arguments)
    start, drawn = time.perf_counter(), cases(options.count, options.seed, options.only)
    rows = list(judged(list(drawn)))
    counts = Counter((case.name.split(": ")[2], outcome) for case, outcome in rows)
    print(f"| upstream's change | {' | '.join(Outcome)} |\n|---|{'---|' * len(Outcome)}")
    for kind in [*sorted({kind for kind, _ in counts}), "all"]:
        cells = (
            sum(n for (k, o), n in counts.items() if o is one and kind in (k, "all"))
            for one in Outcome
        )
        print(f"| {kind} | {' | '.join(map(str, cells))} |")
    print(f"\n{options.count} cases of seed {options.seed} in {time.perf_counter() - start:.0f} s.")
    listed = (Outcome.WRONG, Outcome.FALSE_STOP)
    if options.list:
        print(*(f"{outcome}: {case.name}" for case, outcome in rows if outcome in listed), sep="\n")
    return int(any(outcome is Outcome.WRONG for _, outcome in rows))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
