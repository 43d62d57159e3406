# SPDX-License-Identifier: Apache-2.0
"""Conditions of patches: the options with which a patch of a series is applied.

``NAME.patch [linux bsd]`` is applied with at least one of these options, ``NAME.patch [!windows]``
without any of them, as in the architectures of Debian's control files.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from forkpatch.errors import PatchError
from forkpatch.safety import check_name

#: The option with which every patch is applied, regardless of conditions.
EVERY = "all"


@dataclass(frozen=True)
class Condition:
    """A condition on the chosen options; without options it always holds.

    Attributes:
        options: the options in the condition.
        negated: True if the condition holds without these options, False if it holds with one of
            them.
    """

    options: tuple[str, ...] = ()
    negated: bool = False

    def __str__(self) -> str:
        sign = "!" if self.negated else ""
        return f"[{' '.join(f'{sign}{option}' for option in self.options)}]" if self.options else ""

    def holds(self, chosen: Collection[str]) -> bool:
        """Return True if the condition holds with the chosen options."""
        if not self.options or EVERY in chosen:
            return True
        return self.negated is not any(option in chosen for option in self.options)


ALWAYS = Condition()


def parse_condition(text: str, where: str) -> Condition:
    """Return the condition of a text ``[linux bsd]`` or ``[!windows]``.

    Raises:
        PatchError: the text is not a condition.
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
