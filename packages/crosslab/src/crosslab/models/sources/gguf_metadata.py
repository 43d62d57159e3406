# SPDX-License-Identifier: Apache-2.0
"""The metadata of a GGUF file, as variables of the expressions in gguf_families.toml."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from jinja2 import StrictUndefined, UndefinedError, nodes
from jinja2.nativetypes import NativeEnvironment

from crosslab.errors import UserError

MOST = 1e9  # above every size of a model
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
_environment = NativeEnvironment(undefined=StrictUndefined)


class Metadata:
    """The fields of a GGUF file that describe its model.

    Attributes:
        file: name of the file, for messages.
        architecture: value of ``general.architecture``.
        type: value of ``general.type``; empty in older files.
        fields: other fields of the architecture, by name without the architecture.

    Args:
        file: name of the file.
        fields: the file's metadata by name, as plain values.
        tensors: shape of each tensor by name, rows first.
    """

    def __init__(
        self, file: str, fields: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.file, self.architecture = file, str(fields.get("general.architecture"))
        self.type = str(fields.get("general.type", ""))
        start = f"{self.architecture}."
        own = {k.removeprefix(start): v for k, v in fields.items() if k.startswith(start)}
        self.fields = {name: _as_written(name, value) for name, value in own.items()}
        self._variables: dict[str, Any] = {"attention": {}, "rope": {"scaling": {}}, "ssm": {}}
        for key, value in self.fields.items():
            *path, last = key.split(".")
            table = self._variables
            for part in path:
                table = table.setdefault(part, {})
                if not isinstance(table, dict):
                    raise self.wrong(key)
            table[last] = value
        rows = tensors.get(EMBEDDING, (0,))[0]
        self._variables |= {"vocab": rows, "tied": HEAD not in tensors, "tensors": tensors}

    def __getitem__(self, expression: str) -> Any:
        """Return the value of an expression of gguf_families.toml, with the fields as variables.

        Raises:
            UserError: the file lacks a field of the expression, or has one of a wrong type.
        """
        return self._value(expression)

    def of_layer(self, expression: str, layer: int) -> Any:
        """Return the value of an expression with the variable ``layer``, a layer's number.

        Raises:
            UserError: see :meth:`__getitem__`.
        """
        return self._value(expression, layer=layer)

    def _value(self, expression: str, **more: int) -> Any:
        try:
            value = _compiled(expression)(**self._variables, **more)
            if _is_undefined(value):
                raise UndefinedError
            return value
        except UndefinedError as error:
            needed = used_in(expression, optional=False)
            missing = next(name for name in needed if name not in self.fields)
            raise UserError(f"{self.file} lacks the field {self.architecture}.{missing}") from error
        except (TypeError, ValueError, ArithmeticError) as error:
            raise self.wrong_in(expression) from error

    def positive(self, expression: str) -> Any:
        """Return the value of an expression that is a positive number, a truth value or None.

        Raises:
            UserError: see :meth:`__getitem__`; or the value is something else.
        """
        value = self[expression]
        number = type(value) in (int, float) and 0 < value < MOST
        if number or value is None or isinstance(value, bool):
            return value
        raise self.wrong_in(expression)

    def wrong_in(self, expression: str) -> UserError:
        """Return the error for the first field of an expression that the file has."""
        return self.wrong(next((n for n in used_in(expression) if n in self.fields), expression))

    def wrong(self, field: str) -> UserError:
        """Return the error for a field with a wrong value."""
        value = str(self.fields.get(field))[:40]
        return UserError(
            f"{self.file}: {self.architecture}.{field} has the wrong value {value!r}",
            remedy="download the file again, and compare its sha256 with its publisher's",
        )


# Fields that a file may hold for each layer; here all layers have the same.
_OF_LAYERS = (
    *("feed_forward_length", "expert_feed_forward_length", "expert_used_count"),
    *("attention.head_count", "attention.head_count_kv"),
)


def _as_written(name: str, value: Any) -> Any:
    if name in _OF_LAYERS and isinstance(value, list) and value:
        first = value[0]
        value = first if value.count(first) == len(value) else value
    # Stored as float32: 9.99999975e-06 is the number that was written as 1e-05.
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _is_undefined(value: Any) -> bool:
    """True if a value, or one in its tables and lists, is of a field that the file lacks."""
    if isinstance(value, dict | list):
        return any(map(_is_undefined, value.values() if isinstance(value, dict) else value))
    return isinstance(value, StrictUndefined)


@cache
def _compiled(expression: str) -> Any:
    return _environment.compile_expression(expression, undefined_to_none=False)


@cache
def used_in(expression: str, *, optional: bool = True) -> tuple[str, ...]:
    """Return the dotted names of fields and variables in an expression, each once.

    Args:
        expression: an expression of the table.
        optional: also return names that the expression has a default for.
    """
    tree = _environment.parse(f"{{{{ {expression} }}}}")
    named = [_dotted(node) for node in tree.find_all((nodes.Getattr, nodes.Name))]
    names = [n for n in named if not any(other.startswith(f"{n}.") for other in named)]
    filters = [f for f in tree.find_all(nodes.Filter) if f.name == "default" and f.node]
    defaults = {_dotted(f.node) for f in filters if isinstance(f.node, nodes.Getattr | nodes.Name)}
    return tuple(dict.fromkeys(n for n in names if optional or n not in defaults))


def _dotted(node: nodes.Node) -> str:
    if isinstance(node, nodes.Getattr):
        return f"{_dotted(node.node)}.{node.attr}"
    return node.name if isinstance(node, nodes.Name) else ""
