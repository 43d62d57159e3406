# SPDX-License-Identifier: Apache-2.0
"""Replacements that ``check`` inspects: shadowed functions, changed signatures and imports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from forkpatch.inspect.signatures import departures, imported_names, signatures
from forkpatch.model.overlays import SHADOW_FORM, SHADOWS, Shadow, read_shadows
from forkpatch.symbols.outline import outline
from forkpatch.tree.fork import Fork, TreePlan

_KEEP = "keep upstream's parameters; give what is new by keyword, with a default"


#: Path and line of the file to correct, the mistake, and its fix.
Mismatch = tuple[Path, int, str, str]


def mismatches(fork: Fork, plan: TreePlan) -> Iterator[Mismatch]:
    """Yield the replacements of a planned tree that upstream's callers cannot call as before."""
    folder = fork.overlay_folder(plan.upstream)
    shadows = read_shadows(folder)
    yield from _shadowed(fork, plan, shadows)
    yield from _patched(fork, plan)
    yield from _unlisted(plan, shadows, folder / SHADOWS)


def not_compared(plan: TreePlan) -> Iterator[str]:
    """Yield a note for each patched Python file that is too large for :func:`mismatches`."""
    for path, base in plan.base.items():
        if path.endswith(".py") and (why := outline(path, base).why_not_parsed):
            yield f"{why}: its functions and imports were not compared with upstream's"


def _shadowed(fork: Fork, plan: TreePlan, shadows: tuple[Shadow, ...]) -> Iterator[Mismatch]:
    """Yield shadows whose replacement is missing or has another signature, or excuses nothing."""
    table = fork.overlay_folder(plan.upstream) / SHADOWS
    paths = {shadow.path for shadow in shadows if shadow.path.endswith(".py")}
    contents_here = plan.pristine.read(paths)
    versions = fork.lock.versions(plan.upstream.name).values()
    trees = [fork.cache.find(other.tree) for other in versions if other != plan.upstream]
    elsewhere = [tree.read(paths) for tree in trees if tree]
    lacking = len(elsewhere) < len(trees)  # check notes each missing tree
    for shadow in shadows:
        file = plan.overlays.get(shadow.by)
        if file is None:
            what = f"{shadow.symbol}: there is no overlay {shadow.by}"
            yield table, shadow.line, what, "name the overlay that takes its place"
            continue
        original = signatures(contents_here.get(shadow.path, b"")).get(shadow.symbol)
        if original is None:
            continue  # not a Python function, or removed, which the record reports
        ours = signatures(file.data)
        name = shadow.instead or shadow.symbol
        if name not in ours:
            what = f"{shadow.by} has no function {name}"
            other = min(ours, key=lambda one: one.startswith("_"), default="NAME")  # a public one
            fix = f'define it, or name the function that callers use: instead = "{other}"'
            yield table, shadow.line, what, fix
            continue
        if shadow.instead:
            continue  # upstream's callers never call the other name
        others = tuple(
            signature_there
            for contents in elsewhere
            if (signature_there := signatures(contents.get(shadow.path, b"")).get(shadow.symbol))
        )
        for excused in shadow.defaults:
            if not lacking and not any(excused in item.defaults for item in (original, *others)):
                what = f"{shadow.symbol}: no version of upstream has a default of {excused}"
                yield table, shadow.line, what, "take it out of defaults"
        if lacking and shadow.defaults:  # a missing version may have these defaults
            others += (ours[name],)
        path = fork.overlay_folder(plan.upstream) / shadow.by
        for departure in departures(original, ours[name], others, frozenset(shadow.defaults)):
            at = _line(file.data, name)
            yield path, at, f"{name} of {plan.upstream}: {departure}", _KEEP


def _patched(fork: Fork, plan: TreePlan) -> Iterator[Mismatch]:
    """Yield the functions whose patched signature no longer fits upstream's callers."""
    for step in plan.steps.values():
        patch = step.patch
        folder = fork.settings.patches / plan.upstream.name / (patch.home or plan.upstream.version)
        for diff in patch.files:
            base, after = plan.base.get(diff.old or ""), step.commit.changes.get(diff.new or "")
            if base is None or after is None or not _is_module(diff.old or "", base):
                continue
            before, now = signatures(step.before[diff.old or ""]), signatures(after.data)
            for name, original in signatures(base).items():
                ours = now.get(name)
                if ours is None or ours == before.get(name):
                    continue
                for departure in departures(original, ours):
                    what = f"{diff.new}: {name}: {departure}"
                    yield folder / patch.name, diff.patch_line, what, _KEEP


def _unlisted(plan: TreePlan, shadows: tuple[Shadow, ...], table: Path) -> Iterator[Mismatch]:
    """Yield names that a patched file imports from an overlay instead of from upstream."""
    listed = {(shadow.path, shadow.symbol, shadow.by) for shadow in shadows}
    modules = [path for path, base in plan.base.items() if _is_module(path, base)]
    final = plan.weave.changes(paths=modules) if modules else {}
    for path in modules:
        base, after = plan.base[path], final.get(path)
        if after is None:
            continue
        originals, ours = imported_names(path, base), imported_names(path, after.data)
        for name in originals.keys() & ours.keys():
            if originals[name] == ours[name]:
                continue
            ending = f"/{ours[name]}"
            by = next((path for path in plan.overlays if f"/{path}".endswith(ending)), "")
            if by and not any(
                symbol == name and overlay == by and place.endswith(originals[name])
                for place, symbol, overlay in listed
            ):
                what = f"{path} takes {name} from {by} and no longer from {originals[name]}"
                fix = f"add a [[shadow]] to {SHADOWS}: {SHADOW_FORM}"
                yield table, 1, what, fix


def _is_module(path: str, data: bytes) -> bool:
    """Return True for a Python module that is not too large for a parser."""
    return path.endswith(".py") and outline(path, data).is_parsed


def _line(data: bytes, name: str) -> int:
    """Return the line, from 1, of a function's definition; 1 without one."""
    start = f"def {name.rpartition('.')[2]}(".encode()
    lines = data.splitlines()
    return next((row for row, line in enumerate(lines, 1) if line.strip().startswith(start)), 1)
