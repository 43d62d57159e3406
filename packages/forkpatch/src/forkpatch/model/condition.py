# SPDX-License-Identifier: Apache-2.0
"""Conditions of patches: the options with which a patch of a series is applied.

``NAME.patch [linux bsd]`` is applied with at least one of these options, ``NAME.patch [!windows]``
without any of them, as Debian's control files write architectures.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from forkpatch.errors import PatchError
from forkpatch.safety import check_name

#: The option with which every patch is applied, whatever its condition.
EVERY = "all"


@dataclass(frozen=True)
class Condition:
    """A condition; without an option it always holds.

    Attributes:
        options: the options that it names.
        negated: it holds without any of them, not with one of them.
    """

    options: tuple[str, ...] = ()
    negated: bool = False

    def __str__(self) -> str:
        sign = "!" if self.negated else ""
        return f"[{' '.join(f'{sign}{one}' for one in self.options)}]" if self.options else ""

    def holds(self, chosen: Collection[str]) -> bool:
        """True if a patch with this condition is applied with the chosen options."""
        if not self.options or EVERY in chosen:
            return True
        return self.negated is not any(one in chosen for one in self.options)


ALWAYS = Condition()


def parse_condition(text: str, where: str) -> Condition:
    """The condition that is written ``[linux bsd]`` or ``[!windows]``.

    Raises:
        PatchError: it has another form.
    """
    words = text[1:-1].split() if text.startswith("[") and text.endswith("]") else []
    negated = [word.startswith("!") for word in words]
    if not words or len(set(negated)) > 1:
        raise PatchError(
            f"{where}: {text} is not a condition",
            remedy="write [ONE OTHER] for a patch that is applied with one of these options, or"
            " [!ONE !OTHER] for one that is applied with none of them",
        )
    names = tuple(check_name(word.removeprefix("!"), f"{where}: option") for word in words)
    if EVERY in names:
        raise PatchError(f"{where}: {EVERY} is not an option", remedy="it chooses every patch")
    return Condition(names, negated[0])
