# SPDX-License-Identifier: Apache-2.0
"""Plant small mistakes in our Python, one at a time, and show which tests notice them.

A run with coverage finds the tests that execute each line; a mistake in a line is shown to these
tests alone, first to those of the quick tier. No file is changed: an import hook hands the changed
source to pytest and to the processes that it starts. CONTRIBUTING.md shows a command.
"""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from groundwork.command_line import Parser
from groundwork.errors import USER_MISTAKE

ROOT = Path(__file__).resolve().parents[1]
# The settings and marks of the root, for the tests of packages, too.
SETTINGS = (f"-c{ROOT / 'pyproject.toml'}", f"--rootdir={ROOT}", "-p", "no:cacheprovider")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-n", "0", *SETTINGS)
SECONDS = 120  # of one test: a mistake may make a loop endless
PASSED, UNKNOWN, NONE = 0, 4, 5  # exit codes of pytest; a crash has another one
HOOK = """
import importlib.machinery, json, linecache, os
with open(os.environ["MLC_RVV_MUTANT"], encoding="utf-8") as stream:
    path, text = json.load(stream)
linecache.cache[path] = len(text), None, text.splitlines(keepends=True), path
original = importlib.machinery.SourceFileLoader.get_code
def get_code(self, name):
    if os.path.realpath(self.path) != path:
        return original(self, name)
    return compile(text, self.path, "exec", dont_inherit=True)
importlib.machinery.SourceFileLoader.get_code = get_code
"""
OTHER_BOUND = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OTHER_SIGN = {ast.Add: ast.Sub, ast.Sub: ast.Add}


@dataclass(frozen=True)
class Mutant:
    """A mistake in one line: an expression from byte ``at`` on is replaced."""

    path: Path
    line: int
    kind: str
    before: str
    after: str
    at: int

    def source(self) -> str:
        """Return the file's text with the mistake."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        old, end = lines[self.line - 1], self.at + len(self.before.encode())
        lines[self.line - 1] = old[: self.at] + self.after.encode() + old[end:]
        return b"".join(lines).decode()

    def __str__(self) -> str:
        place = f"{self.path.relative_to(ROOT)}:{self.line}"
        return f"{place}: {self.kind}: {self.before}  ->  {self.after}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield the mistakes that can be made in the bodies of a file's functions."""
    lines = path.read_bytes().splitlines()
    every = ast.walk(ast.parse(path.read_bytes()))
    bodies = [node for node in every if isinstance(node, ast.FunctionDef)]
    nodes = {node for body in bodies for part in body.body for node in ast.walk(part)}
    # Python 3.11 has wrong columns for the parts of an f-string.
    nodes -= {part for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    expressions = [node for node in nodes if isinstance(node, ast.expr | ast.Expr)]
    for node in sorted(expressions, key=lambda node: (node.lineno, node.col_offset)):
        if node.lineno == node.end_lineno:
            before = lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()
            for kind, after in _mistakes(node):
                if after != before:
                    yield Mutant(path, node.lineno, kind, before, after, node.col_offset)


def _mistakes(node: ast.expr | ast.Expr) -> Iterator[tuple[str, str]]:
    """Yield kind and new source of the mistakes in one expression or statement."""
    match node:
        # A text is not subtracted.
        case ast.BinOp(left, op, right) if type(op) in OTHER_SIGN and "'" not in ast.unparse(node):
            yield "sign", ast.unparse(ast.BinOp(left, OTHER_SIGN[type(op)](), right))
        case ast.Compare(left, [op], right) if type(op) in OTHER_BOUND:
            yield "bound", ast.unparse(ast.Compare(left, [OTHER_BOUND[type(op)]()], right))
        case ast.Constant(int(value)) if not isinstance(value, bool):
            yield "off by one", str(value + 1)
        case ast.Expr(ast.Call()):
            yield "dropped call", "pass"
        case ast.Call(ast.Name("min" | "max")):
            return  # in any order
        case ast.Call(function, [first, second, *others], keywords) if not any(
            isinstance(one, ast.Starred) for one in (first, second)
        ):
            swapped = ast.Call(function, [second, first, *others], keywords)
            yield "swapped argument", ast.unparse(swapped)


def choose(found: list[Mutant], seed: int, count: int) -> list[Mutant]:
    """Shuffle mistakes, and return up to ``count`` of them, of each kind about as many."""
    random.Random(seed).shuffle(found)
    kinds = (
        [one for one in found if one.kind == kind]
        for kind in dict.fromkeys(one.kind for one in found)
    )
    return [one for ones in zip_longest(*kinds) for one in ones if one][:count]


class Coverage:
    """The tests that execute each line, and their tier."""

    def __init__(self, sources: Sequence[Path], tests: Sequence[str], folder: Path) -> None:
        settings, report = folder / "settings", folder / "lines.json"
        settings.write_text("[json]\nshow_contexts = true\n", encoding="utf-8")
        folders = [path if path.is_dir() else path.parent for path in sources]
        options = [*(f"--cov={path}" for path in folders), "--cov-context=test"]
        options += [f"--cov-config={settings}", f"--cov-report=json:{report}"]
        variables = {**os.environ, "COVERAGE_FILE": str(folder / "data")}
        command = [*PYTEST, "--all", *options, *tests]
        if subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode:
            raise SystemExit("mutants: the tests must pass without a mistake")
        if not report.exists():
            raise SystemExit("mutants: the tests execute none of the sources; name others: --tests")
        files = json.loads(report.read_text(encoding="utf-8"))["files"].items()
        self.lines = {(ROOT / name).resolve(): table["contexts"] for name, table in files}
        tables = (tests for table in self.lines.values() for tests in table.values())
        self.breadth = Counter(context for tests in tables for context in tests)
        command = [*PYTEST, "--collect-only", *tests]
        listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        self.quick = {line for line in listed.stdout.splitlines() if "::" in line}

    def tests(self, mutant: Mutant) -> list[str]:
        """List the tests that execute a mutant's line, those of few lines first."""
        contexts = self.lines.get(mutant.path, {}).get(str(mutant.line), [])
        narrow = sorted(filter(None, contexts), key=lambda context: self.breadth[context])
        return list(dict.fromkeys(context.rpartition("|")[0] for context in narrow))


def notices(mutant: Mutant, tests: Sequence[str], folder: Path) -> bool:
    """Run tests with a mistake until one fails; return whether one did."""
    changed, listed = folder / "mutant.json", folder / "tests.txt"
    changed.write_text(json.dumps([str(mutant.path), mutant.source()]))
    listed.write_text("\n".join(tests), encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": path, "MLC_RVV_MUTANT": str(changed)}

    def run(*options: str, **more: str) -> int:
        command, env = [*PYTEST, *options, f"@{listed}"], {**os.environ, **more}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=False)
        return done.returncode

    code = run("-x", f"--timeout={SECONDS}", **variables)
    # A test is unknown if its file cannot be imported: by the mistake, unless it is so without.
    return run("--collect-only") == PASSED if code == UNKNOWN else code not in (PASSED, NONE)


def main() -> int:
    """Plant the mistakes; print for each the first tier whose tests notice it."""
    parser = Parser(prog="mutants.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="of the choice (%(default)s)")
    parser.add_argument("--count", type=int, default=50, help="number of mistakes (%(default)s)")
    for option, what in (("--sources", "files or folders to change"), ("--tests", "tests to run")):
        parser.add_argument(option, nargs="+", required=True, metavar="PATH", help=what)
    options = parser.parse_args()
    sources = [Path(path).resolve() for path in options.sources]
    if missing := [str(path) for path in sources if not path.exists()]:
        print(f"mutants: no such file or folder: {', '.join(missing)}", file=sys.stderr)
        return USER_MISTAKE
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        (folder / "sitecustomize.py").write_text(HOOK, encoding="utf-8")
        coverage = Coverage(sources, options.tests, folder)
        files = sorted({file for path in sources for file in (path, *path.rglob("*.py"))})
        possible = [one for file in files if file.is_file() for one in mutants_of(file)]
        executed = [one for one in possible if coverage.tests(one)]
        caught = Counter[str]()
        for mutant in choose(executed, options.seed, options.count):
            tests = coverage.tests(mutant)
            quick = [test for test in tests if test in coverage.quick]
            tiers = {"quick": quick, "thorough": [test for test in tests if test not in quick]}
            noticed = (t for t, few in tiers.items() if few and notices(mutant, few, folder))
            tier = next(noticed, "no test")
            caught[tier] += 1
            print(f"{tier:8} of {len(tests):4} tests  {mutant}", flush=True)
    print(f"\n{len(possible)} mistakes are possible; tests execute {len(executed)} of them")
    print(f"noticed of {caught.total()}: {dict(caught)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
