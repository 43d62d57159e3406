# SPDX-License-Identifier: Apache-2.0
"""Upstream's callers can call what takes the place of a function: the verb check sees to it."""

from __future__ import annotations

import pytest
from forklab import CORE, ForkLab, git, message

from forkpatch.inspect.signatures import departures, signatures

CORE_PATH = "python/calc/core.py"
OVERLAY = "python/calc/fast.py"


@pytest.mark.parametrize(
    ("theirs", "ours", "found"),
    [
        ("a, b=1", "a, b=1", ""),
        ("a, b=1", "a, b=1, *, c=2", ""),
        ("a", "a, *, c", "c is new and has no default"),
        ("a", "a, c", "c is new and has no default"),
        ("a", "a, c=1", "c is new and can be given by position"),
        ("a, b", "b, a", "it takes (b, a) by position, upstream's (a, b)"),
        ("a, b", "a, *, b", "it takes (a) by position, upstream's (a, b)"),
        ("a, b", "a", "it takes (a) by position, upstream's (a, b)"),
        ("a", "a, /", "a cannot be given by name"),
        ("a, b=1", "a, b", "b has no default, upstream's has 1"),
        ("a, b=1", "a, b=2", "the default of b is 2, upstream's 1"),
        ("a, b", "a, b=2", ""),
        ("a, *, b=1", "a, b=1", ""),
        ("a, *, b=1", "a", "it does not take b"),
        ("*args", "", "it does not take *args"),
        ("*args", "*rest", ""),
        ("a, **kwargs", "a, **kwargs", ""),
    ],
)
def test_departures_of_a_signature(theirs: str, ours: str, found: str) -> None:
    one, other = (
        signatures(f"def f({given}):\n    pass\n".encode())["f"] for given in (theirs, ours)
    )
    assert departures(one, other) == ((found,) if found else ())


def test_a_parameter_may_stand_where_another_version_has_it() -> None:
    old, new, ours = (
        signatures(f"def f({given}): pass".encode())["f"]
        for given in ("a", "a, size=8", "a, size=PICKED, *, tile=None")
    )
    assert departures(old, ours, (new,)) == ()
    assert departures(old, ours) == ("size is new and can be given by position",)
    assert departures(new, ours) == ("the default of size is PICKED, upstream's 8",)
    assert departures(new, ours, (), frozenset({"size"})) == ()


def test_a_method_stays_what_it_is() -> None:
    text = b"class A:\n    @staticmethod\n    def f(a): pass\n    async def g(self): pass\n"
    found = signatures(text)
    assert set(found) == {"A.f", "A.g"}
    plain = signatures(text.replace(b"    @staticmethod\n", b"").replace(b"async ", b""))
    assert departures(found["A.f"], plain["A.f"]) == (
        "it is a plain function, upstream's staticmethod",
    )
    assert departures(found["A.g"], plain["A.g"]) == ("it is a plain function, upstream's async",)


@pytest.fixture
def shadowing(lab: ForkLab) -> ForkLab:
    """A fork whose overlay takes the place of ``mul``, and whose patch changes ``add``."""
    (lab.root / "tests").mkdir()
    (lab.root / "tests/test_x.py").write_text("def test_x():\n    pass\n")
    overlay(lab, "def mul(a, b, *, tile=8):\n    return a * b\n")
    (lab.overlays / "shadows.toml").write_text(
        "# what is replaced\n[[shadow]]\n"
        f'path = "{CORE_PATH}"\nsymbol = "mul"\nby = "{OVERLAY}"\nwhy = "speed"\n'
    )
    lab.ok("lock", "--mirror", f"calc={lab.repo.path}")
    return lab


def overlay(lab: ForkLab, text: str) -> None:
    path = lab.overlays / OVERLAY
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def patched(lab: ForkLab, files: dict[str, bytes | None]) -> None:
    lab.add_patch("turn.patch", lab.repo.patch(files, message("Turn a function")))


def found(lab: ForkLab) -> list[str]:
    lab.ok("record")
    done = lab.run("check", "--json", "-")
    return [f"{one['where']}: {one['what']}" for one in done.json["findings"]]


def test_check_compares_shadowed_functions(shadowing: ForkLab) -> None:
    assert found(shadowing) == []
    overlay(shadowing, '"""Fast."""\n\n\ndef mul(a, b, tile):\n    return a * b\n')
    assert found(shadowing) == [
        f"overlays/calc/{OVERLAY}:4: mul of calc 1.0: tile is new and has no default"
    ]


def test_check_knows_the_overlay_s_function(shadowing: ForkLab) -> None:
    overlay(shadowing, "def fast_mul(a, b, tile):\n    return a * b\n")
    assert found(shadowing) == [f"overlays/calc/shadows.toml:2: {OVERLAY} has no function mul"]
    table = shadowing.overlays / "shadows.toml"
    table.write_text(table.read_text() + 'instead = "fast_mul"\n')
    assert found(shadowing) == []
    table.write_text(table.read_text().replace("fast.py", "gone.py"))
    assert found(shadowing) == [
        "overlays/calc/shadows.toml:2: mul: there is no overlay python/calc/gone.py"
    ]


def test_check_wants_an_excuse_to_be_of_use(shadowing: ForkLab) -> None:
    table = shadowing.overlays / "shadows.toml"
    table.write_text(table.read_text() + 'defaults = { tile = "read from the target" }\n')
    assert found(shadowing) == [
        "overlays/calc/shadows.toml:2: mul: no version of upstream has a default of tile"
    ]
    # A version that is not in the cache may have it, and at that position.
    overlay(shadowing, "def mul(a, b, tile=8):\n    return a * b\n")
    assert len(found(shadowing)) == 2
    with (shadowing.root / "VERSIONS.lock").open("a") as lock:
        ids = f'commit = "{40 * "1"}"\ntree = "{40 * "2"}"\n'
        lock.write(f'\n[upstreams.calc.versions."2.0"]\n{ids}')
    done = shadowing.ok("check")
    assert "not checked: calc 2.0: the tree of calc 2.0 is not in the cache" in done.out + done.err


def test_check_compares_functions_that_a_patch_changes(shadowing: ForkLab) -> None:
    new = CORE.replace(b"def add(a, b):", b"def add(a, b, carry):")
    patched(shadowing, {CORE_PATH: new})
    assert found(shadowing) == [
        f"patches/calc/1.0/turn.patch:11: {CORE_PATH}: add: carry is new and has no default"
    ]


def test_check_sees_a_replacement_that_is_not_listed(shadowing: ForkLab) -> None:
    overlay(shadowing, "def mul(a, b):\n    return a * b\n\n\ndef add(a):\n    return a\n")
    start = b"from calc.core import sub\nfrom .fast import add, mul\n"
    patched(shadowing, {"python/calc/__init__.py": start})
    assert found(shadowing) == [
        "overlays/calc/shadows.toml:1: python/calc/__init__.py takes add from"
        " python/calc/fast.py and no longer from calc/core.py"
    ]


def test_a_malformed_table_is_refused(shadowing: ForkLab) -> None:
    table = shadowing.overlays / "shadows.toml"
    table.write_text(table.read_text() + "instead = 1\n")
    assert shadowing.run("record").code == 2


def test_file_that_is_too_large_to_compare_is_named(lab: ForkLab) -> None:
    large = CORE + b"\n" * 50_000
    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    lab.repo.commit({CORE_PATH: large}, "Grow")
    git(lab.repo.path, "tag", "-f", "v1.0")
    lab.locked()
    lab.change("sub.patch", {CORE_PATH: large.replace(b"def sub(a, b)", b"def sub(b, a)")})
    done = lab.run("check")
    why = f"{CORE_PATH} is above 4 MB or 50,000 lines"
    note = f"not checked: calc 1.0: {why}: its functions and imports were not compared"
    assert note in done.out
