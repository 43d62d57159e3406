# SPDX-License-Identifier: Apache-2.0
"""28 hand-written cases: 19 in which git's merge is wrong, and 9 in which it is right.

Files are written with ``|`` between lines. Each case has a body of seven calls, mostly in two
places; the patch changes the fourth call where the body stands first.
"""

from __future__ import annotations

from collections.abc import Iterator

from misplacement import MisplacementCase


def _body(indent: int, call: str = "{}();") -> str:
    """The lines that twins share: seven calls of which the patch changes the fourth."""
    return "|".join(" " * indent + call.format(f"step{number}") for number in range(7))


C, C2, C4 = _body(2), _body(4), _body(6)
P4, P8 = _body(4, "{}()"), _body(8, "{}()")
JSON = _body(4, '"{}": 1,')
YAML = _body(6, "- run: {}")
KEYS, CALLS = _body(0, "{} = on"), _body(2, "{}()")
LIST, RULES, MAKE = _body(0, "- {}"), _body(2, "{}: none;"), _body(0, "\t{}")
ROWS = _body(2, "{},")

#: Name, suffix, file before, upstream's file, another file that is new; the result is not right.
WRONG = (
    (
        "a method moves to another class, a twin stays",
        ".py",
        f"class A:|    def go(self):|{P8}|class B:|    x = 1",
        f"class A:|    def old(self):|{P8}|class B:|    x = 1|    def go(self):|{P8}",
        "",
    ),
    (
        "two methods exchange names",
        ".py",
        f"class A:|    def go(self):|{P8}||    def run(self):|{P8}",
        f"class A:|    def run(self):|{P8}||    def go(self):|{P8}",
        "",
    ),
    (
        "the overload of int is removed",
        ".cc",
        f"void go(int x) {{|{C}|}}||void go(long x) {{|{C}|}}",
        f"void go(long x) {{|{C}|}}",
        "",
    ),
    (
        "a function moves to another namespace",
        ".cc",
        f"namespace a {{|void go() {{|{C}|}}|}}|namespace b {{|}}",
        f"namespace a {{|void was() {{|{C}|}}|}}|namespace b {{|void go() {{|{C}|}}|}}",
        "",
    ),
    (
        "branches of a condition change places",
        ".c",
        f"#ifdef A|void go(void) {{|{C}|}}|#else|void go(void) {{|{C}|}}|#endif",
        f"#ifndef A|void go(void) {{|{C}|}}|#else|void go(void) {{|{C}|}}|#endif",
        "",
    ),
    (
        "cases of the second switch change places",
        ".c",
        f"int go(int x) {{|  switch (x) {{|    case A:|{C4}|    case B:|{C4}|  }}|"
        f"  switch (y) {{|    case A:|      u();|    case B:|      v();|  }}|}}",
        f"int go(int x) {{|  switch (x) {{|    case B:|{C4}|    case A:|{C4}|  }}|"
        f"  switch (y) {{|    case A:|      u();|    case B:|      v();|  }}|}}",
        "",
    ),
    (
        "two tests exchange names",
        ".js",
        f"describe(() => {{|  it('one', () => {{|{C2}|  }});|  it('two', () => {{|{C2}|  }});|}});",
        f"describe(() => {{|  it('two', () => {{|{C2}|  }});|  it('one', () => {{|{C2}|  }});|}});",
        "",
    ),
    (
        "a method gets another receiver, a twin stays",
        ".go",
        f"func (a *A) Go() {{|{C}|}}",
        f"func (a *A) Old() {{|{C}|}}||func (b *B) Go() {{|{C}|}}",
        f"package x||func (a *A) Go() {{|{C}|}}",
    ),
    (
        "two implementations exchange types",
        ".rs",
        f"impl Go for A {{|fn go() {{|{C4}|}}|}}||impl Go for B {{|fn go() {{|{C4}|}}|}}",
        f"impl Go for B {{|fn go() {{|{C4}|}}|}}||impl Go for A {{|fn go() {{|{C4}|}}|}}",
        "",
    ),
    (
        "a function moves to another file, a twin stays",
        ".ts",
        f"export function go() {{|{C}|}}",
        f"export function legacyGo() {{|{C}|}}",
        f"import x;||export function go() {{|{C}|}}",
    ),
    (
        "two objects exchange keys",
        ".json",
        f'{{|  "one": {{|{JSON}|  }},|  "two": {{|{JSON}|  }}|}}',
        f'{{|  "two": {{|{JSON}|  }},|  "one": {{|{JSON}|  }}|}}',
        "",
    ),
    (
        "two jobs exchange names",
        ".yaml",
        f"one:|    steps:|{YAML}|two:|    steps:|{YAML}",
        f"two:|    steps:|{YAML}|one:|    steps:|{YAML}",
        "",
    ),
    (
        "a table moves to another file, a twin stays",
        ".toml",
        f"[tool.one]|{KEYS}",
        f"[tool.was]|{KEYS}",
        f"[project]|x = 1||[tool.one]|{KEYS}",
    ),
    (
        "two statements exchange tables",
        ".sql",
        f"select|{ROWS}|  1 from one;|select|{ROWS}|  1 from two;",
        f"select|{ROWS}|  1 from two;|select|{ROWS}|  1 from one;",
        "",
    ),
    (
        "the first of two lists is removed",
        ".md",
        f"# One||{LIST}||# Two||{LIST}||# End",
        f"# Two||{LIST}||# End",
        "",
    ),
    (
        "the first of two rules is removed",
        ".css",
        f"@media a {{|.x {{|{RULES}|}}|}}|@media b {{|.x {{|{RULES}|}}|}}",
        f"@media b {{|.x {{|{RULES}|}}|}}",
        "",
    ),
    (
        "two registrations exchange names",
        ".py",
        f"@add('one')|def _(x):|{P4}||@add('two')|def _(x):|{P4}",
        f"@add('two')|def _(x):|{P4}||@add('one')|def _(x):|{P4}",
        "",
    ),
    (
        "a target moves behind its twin, and gets a third before it",
        ".mk",
        f"one:|{MAKE}|two:|{MAKE}|end:",
        f"three:|{MAKE}|two:|{MAKE}|one:|{MAKE}|end:",
        "",
    ),
    (
        "branches change places",
        ".cmake",
        f"if(ONE)|{CALLS}|elseif(TWO)|{CALLS}|endif()",
        f"if(TWO)|{CALLS}|elseif(ONE)|{CALLS}|endif()",
        "",
    ),
)

#: Name, suffix, file before, upstream's file; git's merge is right.
RIGHT = (
    (
        "a twin is put before a class",
        ".java",
        f"class X {{|  class A {{|    void go() {{|{C4}|    }}|  }}|}}",
        f"class X {{|  class Old {{|    void go() {{|{C4}|    }}|  }}|  class A {{|"
        f"    void go() {{|{C4}|    }}|  }}|}}",
    ),
    (
        "the condition around a file changes",
        ".c",
        f"#if A|void go(void) {{|{C}|}}|#endif",
        f"#if A && B|void go(void) {{|{C}|}}|#endif",
    ),
    (
        "blocks without names are counted otherwise",
        ".cmake",
        f"if(X)|endif()|if(W)|{CALLS}|endif()",
        f"if(X)|endif()|if(X)|endif()|if(W)|{CALLS}|endif()",
    ),
    (
        "a namespace is renamed",
        ".cc",
        f"namespace a {{|void go() {{|{C}|}}|}}",
        f"namespace b {{|void go() {{|{C}|}}|}}",
    ),
    ("a function is renamed", ".py", f"def go():|{P4}", f"def went():|{P4}"),
    (
        "the head of a block changes",
        ".c",
        f"void go(void) {{|  if(x) {{|{C2}|  }}|}}",
        f"void go(void) {{|  if(x && y) {{|{C2}|  }}|}}",
    ),
    (
        "a part of a function becomes one",
        ".py",
        f"def go(x):|    x = 1|{P4}|    return x",
        f"def go(x):|    x = 1|    part()|    return x||def part():|{P4}",
    ),
    (
        "a function gets a parameter",
        ".c",
        f"void go(int x)|{{|{C}|}}",
        f"void go(int x, int y)|{{|{C}|}}",
    ),
    ("a job is renamed", ".yml", f"one:|    steps:|{YAML}", f"uno:|    steps:|{YAML}"),
)


def heldout() -> Iterator[MisplacementCase]:
    """All cases; ``right`` is what git's merge gives in the last nine, and None in the others."""
    for name, suffix, base, new, elsewhere in WRONG:
        yield _case(name, suffix, base, new, None, elsewhere)
    for name, suffix, base, new in RIGHT:
        yield _case(name, suffix, base, new, "step333".join(new.rsplit("step3", 1)))


def _patched(text: str) -> str:
    return text.replace("step3", "step333", 1)


def _case(
    name: str, suffix: str, base: str, new: str, right: str | None, elsewhere: str = ""
) -> MisplacementCase:
    texts = (base, _patched(base), new, right, elsewhere)
    first, patched, later, good, other = (
        None if text is None else text.replace("|", "\n") + "\n" if text else "" for text in texts
    )
    assert first and patched and later and other is not None
    return MisplacementCase("", suffix, "held out", name, first, patched, later, good, other)
