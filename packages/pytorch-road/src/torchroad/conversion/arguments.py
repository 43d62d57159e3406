# SPDX-License-Identifier: Apache-2.0
"""Arguments of torch's operators, and the type of their converters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# A converter accepts a node of torch's graph and TVM's importer, and returns a Relax variable.
Converter = Callable[[Any, Any], Any]


def argument(node: Any, importer: Any, place: int, name: str, default: Any = None) -> Any:
    """Return an argument by position or name, a node as its variable; ``default`` if absent."""
    if len(node.args) > place:
        return importer._retrieve_args(node.args[place])
    if name in node.kwargs:
        return importer._retrieve_args(node.kwargs[name])
    return default
