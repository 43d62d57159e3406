# SPDX-License-Identifier: Apache-2.0
"""Full names of symbols in each language that is parsed."""

from __future__ import annotations

import pytest

from forkpatch.symbols.outline import MODULE, Outline, bare_name

SOURCES = {
    "a.c": (
        b"#ifdef A\nint f(void)\n{\n}\n#else\nint f(void)\n{\n}\n#endif\n"
        b"SYSCALL_DEFINE1(close, int, fd)\n{\n\treturn 0;\n}\nstatic const int t[] = {\n\t1,\n};\n",
        {
            "f [A]": (2, 4),
            "f [!A]": (6, 8),
            "SYSCALL_DEFINE1(close,int,fd)": (10, 13),
            "t": (14, 16),
        },
    ),
    "a.h": (
        b"#ifndef A_H\n#define A_H\nnamespace n {\ntemplate <typename T>\nstruct S {\n"
        b"  int f(int x) const { return 1; }\n  operator int() { return 2; }\n};\n}\n#endif\n",
        {
            "n": (3, 9),
            "n::S": (4, 8),
            "n::S::f(int) const": (6, 6),
            "n::S::operator int()": (7, 7),
        },
    ),
    "a.py": (
        b"T = {\n    1: 2,\n}\n\n\nclass B:\n    @property\n    def f(self):\n        pass\n\n"
        b"    @f.setter\n    def f(self, x):\n        pass\n\n\n"
        b"if T:\n\n    def g():\n        pass\n",
        {
            "T": (1, 3),
            "B": (6, 13),
            "B.f": (7, 9),
            "B.f [@f.setter]": (11, 13),
            "g [if T:]": (18, 19),
        },
    ),
    "A.java": (
        b"class A {\n  @Override\n  int f(final int x, String... y) {\n    return 1;\n  }\n"
        b"  int f(long x) {\n    return 2;\n  }\n}\n",
        {"A": (1, 9), "A.f(int,String...)": (2, 5), "A.f(long)": (6, 8)},
    ),
    "a.js": (
        b"class A {\n  get x() {\n  }\n  set x(v) {\n  }\n}\nA.prototype.y = function () {\n};\n",
        {"A": (1, 6), "A.x [get]": (2, 3), "A.x [set]": (4, 5), "A.prototype.y": (7, 8)},
    ),
    "a.ts": (
        b"namespace N {\nexport function f(x: string, y = 1): void {\n}\n}\n",
        {"N": (1, 4), "N.f(string,any)": (2, 3)},
    ),
    "a.go": (
        b"package a\n\nfunc (b *Box[T]) Put(x int) {\n}\n\nfunc Put(x int) {\n}\n",
        {"Box.Put": (3, 4), "Put": (6, 7)},
    ),
    "a.rs": (
        b"#[cfg(unix)]\nfn f() {\n}\nimpl Take for Box<T> {\n    fn f(&self) {\n    }\n}\n",
        {
            "f [cfg(unix)]": (1, 3),
            "impl Take for Box<T>": (4, 7),
            "impl Take for Box<T>::f": (5, 6),
        },
    ),
}


@pytest.mark.parametrize("path", SOURCES)
def test_names_have_scopes_signatures_and_conditions(path: str) -> None:
    data, expected = SOURCES[path]
    symbols = Outline(path, data).symbols
    found = {name: (one.first, one.last) for name, one in symbols.items() if name != MODULE}
    assert found == expected


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("net::Pool::take(std::vector<int>, int (*)(int)) const [CONFIG_NET]", "take"),
        ("Box.put.inner#2", "inner"),
        ("static int run(void)", "run"),
        ("see the notes.", "notes"),
        (".", "."),
        ("impl Take for Box<T>::f", "f"),
        (MODULE, MODULE),
    ],
)
def test_bare_name_of_any_symbol(symbol: str, name: str) -> None:
    assert bare_name(symbol) == name
