# SPDX-License-Identifier: Apache-2.0
"""Cases of upstream changes after which git puts a patch into another place than it was made for.

A case has two twins: pieces of code with the same lines and other heads (overloads, methods of two
classes, branches of ``#if``, tables, cases of a switch, ...). A patch changes a line of the first;
upstream swaps them, removes or moves one, or puts a third beside them. The text that a right merge
gives follows from how the case is made, so that every result can be judged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

PATH = "src/code"


@dataclass(frozen=True)
class Twins:
    """Two pieces of code that differ in their heads, or tails, alone, and a third that is free.

    Attributes:
        kind: what they are.
        heads: heads of the first, the second and a third twin.
        tails: what ends each.
        line: a line of their bodies; ``{n}`` is a number.
        around: what stands before and after both.
    """

    kind: str
    heads: tuple[str, str, str]
    tails: tuple[str, str, str]
    line: str
    around: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class MisplacementCase:
    """A patch of one file, and what upstream makes of the file.

    Attributes:
        base: the file before the patch.
        patched: the file after it.
        new: upstream's new file.
        right: what a right merge gives; None when there is no right place any more.
        elsewhere: another file that is new upstream, or changed; empty without one.
        elsewhere_before: that file before; empty when it is new.
    """

    language: str
    suffix: str
    kind: str
    change: str
    base: str
    patched: str
    new: str
    right: str | None
    elsewhere: str = ""
    elsewhere_before: str = ""

    @property
    def name(self) -> str:
        return f"{self.language}: {self.kind}: {self.change}"

    @property
    def path(self) -> str:
        return f"{PATH}{self.suffix}"


@dataclass(frozen=True)
class Tongue:
    """A language: its suffix, its twins, a comment, and a function that stands between."""

    suffix: str
    comment: str
    filler: str
    twins: tuple[Twins, ...]


def _braced(kind: str, line: str, *heads: str, tail: str = "}", around: str = "") -> Twins:
    """Twins whose heads are patterns of ``one``, ``two`` and ``three``, or three heads."""
    if len(heads) == 1:
        heads = _of_names(heads[0])
    before, _, after = around.partition("|")
    first, second, third = heads
    return Twins(kind, (first, second, third), _of_names(tail), line, (before, after))


def _of_names(pattern: str) -> tuple[str, str, str]:
    first, second, third = (pattern.replace("NAME", name) for name in ("one", "two", "three"))
    return first, second, third


_C_LINE = "\tx = step(x, {n});"
_C = (
    _braced(
        "labels",
        _C_LINE,
        "NAME:",
        tail="\treturn -1;",
        around="int run(int x)\n{|\treturn x;\n}",
    ),
    _braced("functions", _C_LINE, "int NAME(int x)\n{"),
    _braced("functions with attributes", _C_LINE, "__attribute__((noinline)) int NAME(int x)\n{"),
    _braced("macros that define system calls", _C_LINE, "SYSCALL_DEFINE1(NAME, int, x)\n{"),
    _braced("macros that define tests", _C_LINE, "TEST(suite, NAME)\n{"),
    _braced("arrays", "\t{ {n}, 7 },", "static const struct op NAME[] = {", tail="};"),
    _braced("structs", "\tint field{n};", "struct NAME {", tail="};"),
    _braced(
        "branches of #if",
        _C_LINE,
        *(f"#{test}\nint take(int x)\n{{" for test in ("ifdef A", "ifndef A", "ifdef B")),
        tail="}\n#endif",
    ),
    _braced(
        "cases of a switch",
        "\t\tx = step(x, {n});",
        "\tcase NAME:",
        tail="\t\tbreak;",
        around="int run(int x)\n{\n\tswitch (x) {|\t}\n\treturn x;\n}",
    ),
    _braced(
        "blocks",
        "\t\tx = step(x, {n});",
        "\tif (x == NAME) {",
        tail="\t}",
        around="int run(int x)\n{|\treturn x;\n}",
    ),
    _braced("macros", "\tx = step(x, {n}); \\", "#define NAME(x) do { \\", tail="} while (0)"),
    _braced(
        "loops named at their end",
        "\t\tx = step(x, {n});",
        "\tdo {",
        tail="\t} while (NAME);",
        around="int run(int x)\n{|\treturn x;\n}",
    ),
    _braced(
        "unions named at their end",
        "\t\tint field{n};",
        "\tunion {",
        tail="\t} NAME;",
        around="struct all {|};",
    ),
)
_CPP_LINE = "  x = step(x, {n});"
_CPP = (
    _braced(
        "functions under requirements",
        _CPP_LINE,
        "template <typename T>\n  requires NAME<T>\nT take(T x) {",
    ),
    _braced("functions", _CPP_LINE, "int NAME(int x) {"),
    _braced(
        "overloads", _CPP_LINE, *(f"int take({of} x) {{" for of in ("int", "long", "const Box&"))
    ),
    _braced(
        "qualifiers",
        _CPP_LINE,
        *(f"int Box::take(int x){how} {{" for how in ("", " const", " &&")),
    ),
    _braced("methods outside of their classes", _CPP_LINE, "int NAME::take(int x) {"),
    _braced(
        "methods in their classes",
        "  " + _CPP_LINE,
        "class NAME {\n  int take(int x) {",
        tail="  }\n};",
    ),
    _braced(
        "functions of namespaces", _CPP_LINE, "namespace NAME {\nint take(int x) {", tail="}\n}"
    ),
    _braced(
        "templates",
        _CPP_LINE,
        *(f"template <{of}>\nint take(T x) {{" for of in ("typename T", "int N", "class T, int N")),
    ),
    _braced("tests", _CPP_LINE, "TEST(Suite, NAME) {"),
    _braced("attributes", _CPP_LINE, "[[nodiscard]] int NAME(int x) {"),
    _braced("operators", _CPP_LINE, *(f"Box operator{sign}(Box x) {{" for sign in "+-*")),
    _braced("arrays", "  {{n}, 7},", "constexpr Op NAME[] = {", tail="};"),
    _braced(
        "branches of #if",
        _CPP_LINE,
        *(f"#if {test}\nint take(int x) {{" for test in ("A", "!A", "B")),
        tail="}\n#endif",
    ),
    _braced(
        "cases of a switch",
        "      x = step(x, {n});",
        "    case NAME:",
        tail="      break;",
        around="int run(int x) {\n  switch (x) {|  }\n  return x;\n}",
    ),
    _braced("lambdas", _CPP_LINE, "auto NAME = [](int x) {", tail="};"),
)
_PYTHON_LINE = "    x = step(x, {n})"
_PYTHON = (
    _braced("calls named at their end", "    a{n}=7,", "call(", tail='    name="NAME",\n)'),
    _braced(
        "functions under decorators",
        _PYTHON_LINE,
        '@register("NAME")\ndef _(x):',
        tail="    return x",
    ),
    _braced(
        "functions of types", _PYTHON_LINE, "@take.register\ndef _(x: NAME):", tail="    return x"
    ),
    _braced(
        "conditions over lines",
        "    " + _PYTHON_LINE,
        "    if (x\n            and NAME(x)):",
        tail="        x = done(x)",
        around="def run(x):|    return x",
    ),
    _braced("functions", _PYTHON_LINE, "def NAME(x):", tail="    return x"),
    _braced(
        "methods",
        "    " + _PYTHON_LINE,
        "class NAME:\n    def take(self, x):",
        tail="        return x",
    ),
    _braced("decorated functions", _PYTHON_LINE, "@cached\ndef NAME(x):", tail="    return x"),
    _braced("coroutines", _PYTHON_LINE, "async def NAME(x):", tail="    return x"),
    _braced(
        "accessors of a property",
        "    " + _PYTHON_LINE,
        *(
            f"    @{how}\n    def size(self, x=0):"
            for how in ("property", "size.setter", "size.deleter")
        ),
        tail="        return x",
        around="class Box:|    kind = 1",
    ),
    _braced(
        "functions under conditions",
        "    " + _PYTHON_LINE,
        "if NAME:\n    def take(x):",
        tail="        return x",
    ),
    _braced(
        "functions in functions",
        "    " + _PYTHON_LINE,
        "def NAME():\n    def take(x):",
        tail="        return x\n    return take",
    ),
    _braced("tables", '    "key{n}": 7,', "NAME = {", tail="}"),
    _braced(
        "blocks",
        "    " + _PYTHON_LINE,
        "    if x == NAME:",
        tail="        stop(x)",
        around="def run(x):|    return x",
    ),
)
_JAVA_LINE = "    x = step(x, {n});"
_IN_CLASS = "class Box {|}"
_JAVA = (
    _braced("methods", _JAVA_LINE, "  int NAME(int x) {", tail="  }", around=_IN_CLASS),
    _braced(
        "overloads",
        _JAVA_LINE,
        *(f"  int take({of} x) {{" for of in ("int", "long", "Box")),
        tail="  }",
        around=_IN_CLASS,
    ),
    _braced("methods of classes", _JAVA_LINE, "class NAME {\n  int take(int x) {", tail="  }\n}"),
    _braced(
        "methods with annotations",
        _JAVA_LINE,
        "  @Override\n  public int NAME(int x) {",
        tail="  }",
        around=_IN_CLASS,
    ),
    _braced(
        "methods of inner classes",
        "  " + _JAVA_LINE,
        "  static class NAME {\n    int take(int x) {",
        tail="    }\n  }",
        around=_IN_CLASS,
    ),
    _braced(
        "constructors",
        _JAVA_LINE,
        *(f"  Box({of} x) {{" for of in ("int", "long", "String")),
        tail="  }",
        around=_IN_CLASS,
    ),
    _braced("arrays", "    {n},", "  static final int[] NAME = {", tail="  };", around=_IN_CLASS),
    _braced(
        "cases of a switch",
        "        x = step(x, {n});",
        "      case NAME:",
        tail="        break;",
        around="class Box {\n  int run(int x) {\n    switch (x) {|    }\n    return x;\n  }\n}",
    ),
    _braced(
        "methods of interfaces",
        _JAVA_LINE,
        "interface NAME {\n  default int take(int x) {",
        tail="  }\n}",
    ),
)
_JS_LINE = "  x = step(x, {n});"
_JS = (
    _braced(
        "calls over lines",
        "    x = step(x, {n});",
        '  it(\n    "NAME",\n    () => {',
        tail="    }\n  );",
        around='describe("all", () => {|});',
    ),
    _braced("functions", _JS_LINE, "function NAME(x) {"),
    _braced("methods", "  " + _JS_LINE, "class NAME {\n  take(x) {", tail="  }\n}"),
    _braced("arrow functions", _JS_LINE, "const NAME = (x) => {", tail="};"),
    _braced("functions of a prototype", _JS_LINE, "Box.prototype.NAME = function (x) {", tail="};"),
    _braced(
        "methods of an object",
        "  " + _JS_LINE,
        "  NAME: function (x) {",
        tail="  },",
        around="const box = {|};",
    ),
    _braced(
        "accessors",
        "  " + _JS_LINE,
        *(f"  {how} size(x) {{" for how in ("get", "set", "static")),
        tail="  }",
        around="class Box {|}",
    ),
    _braced("tables", "  key{n}: 7,", "const NAME = {", tail="};"),
    _braced(
        "tests",
        "  " + _JS_LINE,
        '  it("NAME", (x) => {',
        tail="  });",
        around='describe("box", () => {|});',
    ),
    _braced(
        "cases of a switch",
        "      x = step(x, {n});",
        "    case NAME:",
        tail="      break;",
        around="function run(x) {\n  switch (x) {|  }\n  return x;\n}",
    ),
)
_TS = (
    _braced("functions", _JS_LINE, "export function NAME(x: number): number {"),
    _braced("methods", "  " + _JS_LINE, "class NAME {\n  take(x: number): number {", tail="  }\n}"),
    _braced("arrow functions", _JS_LINE, "export const NAME = (x: number) => {", tail="};"),
    _braced(
        "functions of namespaces",
        _JS_LINE,
        "namespace NAME {\nexport function take(x: number) {",
        tail="}\n}",
    ),
    _braced("interfaces", "  field{n}: number;", "interface NAME {"),
    _braced("enumerations", "  Field{n} = 7,", "enum NAME {"),
    _braced(
        "accessors",
        "  " + _JS_LINE,
        *(f"  {how} size(x: number) {{" for how in ("get", "set", "static")),
        tail="  }",
        around="class Box {|}",
    ),
    _braced(
        "members that hold functions",
        "  " + _JS_LINE,
        "  NAME = (x: number) => {",
        tail="  };",
        around="class Box {|}",
    ),
    _braced(
        "tests",
        "  " + _JS_LINE,
        '  it("NAME", (x: number) => {',
        tail="  });",
        around='describe("box", () => {|});',
    ),
)
_GO_LINE = "\tx = step(x, {n})"
_GO = (
    _braced("functions", _GO_LINE, "func NAME(x int) int {", tail="\treturn x\n}"),
    _braced("methods", _GO_LINE, "func (b *NAME) Take(x int) int {", tail="\treturn x\n}"),
    _braced(
        "methods of generic types",
        _GO_LINE,
        "func (b NAME[T]) Take(x int) int {",
        tail="\treturn x\n}",
    ),
    _braced("tables", '\t"key{n}": 7,', "var NAME = map[string]int{"),
    _braced("structs", "\tField{n} int", "type NAME struct {"),
    _braced(
        "subtests",
        "\t\tx = step(x, {n})",
        '\tt.Run("NAME", func(t *testing.T) {',
        tail="\t})",
        around="func TestBox(t *testing.T) {|}",
    ),
    _braced(
        "cases of a switch",
        "\t\tx = step(x, {n})",
        "\tcase NAME:",
        tail="\t\tstop(x)",
        around="func run(x int) int {\n\tswitch x {|\t}\n\treturn x\n}",
    ),
    _braced(
        "blocks",
        "\t\tx = step(x, {n})",
        "\tif x == NAME {",
        tail="\t}",
        around="func run(x int) int {|\treturn x\n}",
    ),
)
_RUST_LINE = "    x = step(x, {n});"
_RUST = (
    _braced(
        "blocks under cfg",
        "        x = step(x, {n});",
        '    #[cfg(feature = "NAME")]\n    {',
        tail="    }",
        around="fn run(mut x: i32) {|}",
    ),
    _braced("functions", _RUST_LINE, "fn NAME(x: i32) -> i32 {", tail="    x\n}"),
    _braced(
        "methods",
        "    " + _RUST_LINE,
        "impl NAME {\n    fn take(&self, x: i32) -> i32 {",
        tail="        x\n    }\n}",
    ),
    _braced(
        "methods of a trait",
        "    " + _RUST_LINE,
        "impl Take for NAME {\n    fn take(&self, x: i32) -> i32 {",
        tail="        x\n    }\n}",
    ),
    _braced(
        "functions of modules",
        "    " + _RUST_LINE,
        "mod NAME {\n    fn take(x: i32) -> i32 {",
        tail="        x\n    }\n}",
    ),
    _braced(
        "functions under cfg",
        _RUST_LINE,
        *(f"#[cfg({when})]\nfn take(x: i32) -> i32 {{" for when in ("unix", "windows", "test")),
        tail="    x\n}",
    ),
    _braced("tests", _RUST_LINE, "#[test]\nfn NAME() {"),
    _braced("arrays", "    ({n}, 7),", "static NAME: [Op; 9] = [", tail="];"),
    _braced("structs", "    field{n}: i32,", "struct NAME {"),
    _braced(
        "arms of a match",
        "            x = step(x, {n});",
        "        Kind::NAME => {",
        tail="        }",
        around="fn run(x: i32) {\n    match x {|    }\n}",
    ),
)

# Languages without a grammar: lines alone tell places apart.
_RUBY = (
    _braced(
        "methods",
        "    x = step(x, {n})",
        "  def NAME(x)",
        tail="    x\n  end",
        around="class Box|end",
    ),
    _braced("blocks", "    x = step(x, {n})", '  it "NAME" do', tail="  end", around="top do|end"),
)
_SQL = (_braced("queries named at their end", "  field{n},", "select", tail="  last from NAME;"),)
_TOML = (_braced("tables", "field{n} = 7", "[tool.NAME]", tail="last = 1"),)

TONGUES: dict[str, Tongue] = {
    "C": Tongue(".c", "/* {} */", "int between(void)\n{\n\treturn 0;\n}", _C),
    "C++": Tongue(".cc", "// {}", "int between() {\n  return 0;\n}", _CPP),
    "Python": Tongue(".py", "# {}", "def between():\n    return 0", _PYTHON),
    "Java": Tongue(".java", "// {}", "class Between {\n}", _JAVA),
    "JavaScript": Tongue(".js", "// {}", "function between() {\n  return 0;\n}", _JS),
    "TypeScript": Tongue(".ts", "// {}", "function between(): number {\n  return 0;\n}", _TS),
    "Go": Tongue(".go", "// {}", "func between() int {\n\treturn 0\n}", _GO),
    "Rust": Tongue(".rs", "// {}", "fn between() -> i32 {\n    0\n}", _RUST),
    "Ruby": Tongue(".rb", "# {}", "def between()\n  0\nend", _RUBY),
    "SQL": Tongue(".sql", "-- {}", "select between from none;", _SQL),
    "TOML": Tongue(".toml", "# {}", "[between]\nnone = 0", _TOML),
}


@dataclass(frozen=True)
class _Parts:
    """Two twins' texts, and what upstream may put in their places."""

    first: str
    patched: str
    second: str
    second_edited: str
    third: str
    comment: str


#: The twins in upstream's file, without and with the patch; None when there is no right place.
Change = Callable[[_Parts], tuple[list[str], list[str] | None]]

CHANGES: dict[str, Change] = {
    "nothing but a comment above": lambda p: (
        [p.comment, p.first, p.second],
        [p.comment, p.patched, p.second],
    ),
    "both change places": lambda p: ([p.second, p.first], [p.second, p.patched]),
    "the first is removed": lambda p: ([p.second], None),
    "the first is removed, the second edited": lambda p: ([p.second_edited], None),
    "the first moves to another file": lambda p: ([p.second], None),
    "the first moves behind others": lambda p: (
        [p.second, p.third, p.first],
        [p.second, p.third, p.patched],
    ),
    "a third is put before both": lambda p: (
        [p.third, p.first, p.second],
        [p.third, p.patched, p.second],
    ),
    "a third takes the first one's place": lambda p: ([p.third, p.second], None),
    "a third comes and both change places": lambda p: (
        [p.third, p.second, p.first],
        [p.third, p.second, p.patched],
    ),
    "the second is removed": lambda p: ([p.first], [p.patched]),
    "both change places below a comment": lambda p: (
        [p.comment, p.second, p.comment, p.first],
        [p.comment, p.second, p.comment, p.patched],
    ),
}
_EDITS = ("a line is changed", "a line is added", "a line is removed")


def make_case(language: str, twins: Twins, change: str, seed: int) -> MisplacementCase:
    """One case; ``seed`` chooses the lengths and what the patch does to which line."""
    chosen, tongue = random.Random(f"{seed} {language} {twins.kind} {change}"), TONGUES[language]
    numbers = chosen.sample(range(10, 99), chosen.randint(7, 11))
    lines = [twins.line.replace("{n}", str(number)) for number in numbers]
    at, edit = chosen.randrange(3, len(lines) - 3), chosen.choice(_EDITS)
    new = twins.line.replace("{n}", str(chosen.randint(100, 999)))
    edited = {
        _EDITS[0]: [*lines[:at], new, *lines[at + 1 :]],
        _EDITS[1]: [*lines[:at], new, *lines[at:]],
        _EDITS[2]: [*lines[:at], *lines[at + 1 :]],
    }[edit]

    def piece(which: int, body: list[str]) -> str:
        return "\n".join([twins.heads[which], *body, twins.tails[which]])

    first, second, third = (piece(which, lines) for which in range(3))
    comment = tongue.comment.format("what follows was looked over")
    changed = twins.line.replace("{n}", "5555")
    far = [changed, *lines[1:]] if at > 3 else [*lines[:-1], changed]
    parts = _Parts(first, piece(0, edited), second, piece(1, far), third, comment)
    upstream, right = CHANGES[change](parts)
    gap = "\n\n" if chosen.random() < 0.5 else "\n"
    fillers = [tongue.filler.replace("between", f"between{number}") for number in range(2)]

    def file(pieces: list[str]) -> str:
        before, after = twins.around
        inner = gap.join(filter(None, [before, *pieces, after]))
        return "\n\n".join([fillers[0], inner, fillers[1]]) + "\n"

    return MisplacementCase(
        language,
        tongue.suffix,
        f"{twins.kind}, {edit}",
        change,
        file([first, second]),
        file([parts.patched, second]),
        file(upstream),
        file(right) if right is not None else None,
        first + "\n" if "another file" in change else "",
    )


def generated(language: str, count: int) -> Iterator[MisplacementCase]:
    """Cases of one language: every kind of twins with every change, in an order that mixes them."""
    every = [(twins, change) for twins in TONGUES[language].twins for change in CHANGES]
    random.Random(language).shuffle(every)
    for number in range(count):
        twins, change = every[number % len(every)]
        yield make_case(language, twins, change, number // len(every))


#: Twins and changes that stand for one way each in which git's merge goes wrong.
NAMED = (
    ("C", "functions", "both change places"),
    ("C", "functions with attributes", "the first is removed"),
    ("C", "macros that define system calls", "both change places"),
    ("C", "macros that define tests", "the first is removed"),
    ("C", "arrays", "both change places"),
    ("C", "structs", "the first moves behind others"),
    ("C", "branches of #if", "both change places"),
    ("C", "cases of a switch", "both change places"),
    ("C", "blocks", "the first is removed"),
    ("C++", "overloads", "both change places"),
    ("C++", "qualifiers", "the first is removed"),
    ("C++", "methods outside of their classes", "both change places"),
    ("C++", "functions of namespaces", "the first moves to another file"),
    ("C++", "templates", "both change places"),
    ("C++", "tests", "a third takes the first one's place"),
    ("Python", "methods", "both change places"),
    ("Python", "accessors of a property", "both change places"),
    ("Python", "functions in functions", "the first is removed"),
    ("Python", "tables", "both change places"),
    ("Java", "overloads", "both change places"),
    ("Java", "methods of inner classes", "the first is removed"),
    ("JavaScript", "accessors", "both change places"),
    ("JavaScript", "tests", "the first is removed"),
    ("TypeScript", "methods", "both change places"),
    ("Go", "methods", "both change places"),
    ("Go", "subtests", "the first is removed"),
    ("Rust", "methods of a trait", "both change places"),
    ("Rust", "functions under cfg", "the first is removed"),
    ("C", "labels", "both change places"),
    ("C++", "functions under requirements", "both change places"),
    ("Python", "functions under decorators", "both change places"),
    ("Python", "functions of types", "the first is removed"),
    ("Python", "conditions over lines", "both change places"),
    ("JavaScript", "calls over lines", "both change places"),
    ("Rust", "blocks under cfg", "the first is removed"),
    ("Ruby", "methods", "both change places"),
    ("C", "loops named at their end", "both change places"),
    ("C", "unions named at their end", "the first moves behind others"),
    ("Python", "calls named at their end", "the first is removed, the second edited"),
    ("SQL", "queries named at their end", "a third comes and both change places"),
    ("TOML", "tables", "the first is removed"),
)


def named() -> Iterator[MisplacementCase]:
    """The cases of :data:`NAMED`."""
    for language, kind, change in NAMED:
        twins = next(one for one in TONGUES[language].twins if one.kind == kind)
        case = make_case(language, twins, change, 0)
        yield replace(case, kind=kind)
