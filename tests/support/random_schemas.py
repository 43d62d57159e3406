# SPDX-License-Identifier: Apache-2.0
"""Random JSON Schemas of the kinds that the JSON Schema test suite has."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

Schema = dict[str, Any]
PATTERNS = (
    "^[a-z]{2,5}$",
    "^(red|green|blue)$",
    "^\\d{3}-\\d{4}$",
    "[A-F0-9]+",
    "^a+b?c*$",
    "^\\w+@\\w+\\.(com|org)$",
    '^[^"\\\\]{1,4}$',
    "^é[à-ü]$",
)
FORMATS = ("date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "hostname", "duration")
NAMES = ("name", "age", "tags", "a b", "é", "x-y", "$k", 'q"t', "back\\slash", "0")
VALUES: tuple[Any, ...] = (
    *("red", "", "é\n", 'a"b', 0, -3, 2.5, 1e3, True, False, None),
    *([1, "x"], {"k": [None]}, {}, []),
)


def a_schema(random: Random, depth: int = 3) -> Schema:
    """A schema with parts nested up to ``depth`` deep; some cannot be expressed as a grammar."""
    kinds = [_integer, _number, _string, _enum, _constant, _plain]
    if depth > 0:
        kinds += [_object, _object, _array, _tuple, _any_of, _types, _reference, _map, _all_of]
        kinds += [_beside]
    schema = random.choice(kinds)(random, depth - 1)
    if random.random() < 0.2:
        schema |= {"title": "T", "description": "what it is", "default": None}
    return schema


def _plain(random: Random, _: int) -> Schema:
    return random.choice([{"type": "boolean"}, {"type": "null"}, {"type": "integer"}, {}])


def _bounds(random: Random, value: Callable[[int, int], Any], low: str, high: str) -> Schema:
    least = value(-1000, 900)
    bounds = {}
    if random.random() < 0.7:
        bounds[low] = least
    if random.random() < 0.7:
        bounds[high] = least + value(2, 100)
    return bounds


def _integer(random: Random, _: int) -> Schema:
    names = random.choice([("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")])
    schema = {"type": "integer", **_bounds(random, random.randint, *names)}
    if random.random() < 0.2:
        schema["multipleOf"] = random.choice([1, 2, 7, 0.5])
    return schema


def _number(random: Random, _: int) -> Schema:
    names = random.choice([("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")])

    def real(low: int, high: int) -> float:
        return round(random.uniform(low, high), random.randint(0, 3))

    return {"type": "number", **_bounds(random, real, *names)}


def _string(random: Random, _: int) -> Schema:
    low = random.randint(0, 4)
    lengths = {"minLength": low, "maxLength": low + random.randint(0, 8)}
    return {
        "type": "string",
        **random.choice(
            [
                {},
                lengths,
                {"pattern": random.choice(PATTERNS)},
                {"format": random.choice(FORMATS)},
                {"pattern": "^a", "minLength": 3},
            ]
        ),
    }


def _enum(random: Random, _: int) -> Schema:
    schema: Schema = {"enum": random.sample(VALUES, random.randint(1, 4))}
    if random.random() < 0.2:
        schema["type"] = ["string", "integer", "null", "object"]
    return schema


def _constant(random: Random, _: int) -> Schema:
    return {"const": random.choice(VALUES)}


def _object(random: Random, depth: int) -> Schema:
    names = random.sample(NAMES, random.randint(0, 4))
    schema: Schema = {
        "type": "object",
        "properties": {name: a_schema(random, depth) for name in names},
        "required": [name for name in names if random.random() < 0.6],
    }
    if random.random() < 0.4:
        schema["additionalProperties"] = random.choice([True, False, a_schema(random, 0)])
    if random.random() < 0.1:
        schema["required"].append("only required")
    if random.random() < 0.1:
        schema["minProperties"] = random.randint(0, 2)
    if random.random() < 0.1:
        schema["maxProperties"] = random.randint(len(schema["required"]), 5)
    if random.random() < 0.1:
        del schema["type"]
    return schema


def _map(random: Random, depth: int) -> Schema:
    values = a_schema(random, depth)
    return random.choice(
        [
            {"type": "object", "additionalProperties": values},
            {"type": "object", "patternProperties": {"^[a-z]{1,3}$": values}},
            {"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}},
            {"type": "object", "maxProperties": 2},
            {"type": "object"},
        ]
    )


def _array(random: Random, depth: int) -> Schema:
    low = random.randint(0, 2)
    schema: Schema = {"type": "array", "items": a_schema(random, depth)}
    if random.random() < 0.8:
        schema |= {"minItems": low, "maxItems": low + random.randint(0, 3)}
    if random.random() < 0.1:
        schema["uniqueItems"] = random.random() < 0.5
    if random.random() < 0.1:
        del schema["items"]
    return schema


def _tuple(random: Random, depth: int) -> Schema:
    items = [a_schema(random, depth) for _ in range(random.randint(1, 3))]
    return {"type": "array", "prefixItems": items, "items": random.choice([False, {}])}


def _beside(random: Random, depth: int) -> Schema:
    """A schema with more keywords beside those of its parts, as MCP's servers write tools."""
    schema = random.choice([_object, _object, _array, _types])(random, depth)
    names = list(schema.get("properties", NAMES))
    more = {"properties": {"more": a_schema(random, 0)}, "required": ["more"]}
    parts: list[Schema] = [
        {"required": random.sample(names, min(1, len(names)))},
        {"properties": {name: a_schema(random, 0) for name in names[:1]}},
        {"type": schema.get("type", "object")},
        {"type": ["object", "null"], **more},
        {"minItems": 1},
        _object(random, 0),
    ]
    chosen = random.sample(parts, random.randint(1, 3))
    return {**schema, random.choice(["anyOf", "anyOf", "allOf", "oneOf"]): chosen}


def _any_of(random: Random, depth: int) -> Schema:
    parts = [a_schema(random, depth) for _ in range(random.randint(1, 3))]
    return {random.choice(["anyOf", "anyOf", "oneOf"]): parts}


def _all_of(random: Random, depth: int) -> Schema:
    return {"allOf": [a_schema(random, depth)]}


def _types(random: Random, _: int) -> Schema:
    types = random.sample(["string", "integer", "number", "boolean", "null", "array"], 2)
    return {"type": types, "maxLength": 4, "maximum": 7, "maxItems": 2}


def _reference(random: Random, depth: int) -> Schema:
    # Its definitions are put at the top by `whole`.
    return {"$ref": random.choice(["#/$defs/leaf", "#/$defs/tree"])}


def whole(random: Random) -> Schema:
    """A schema with the definitions that its parts name."""
    tree = {
        "type": "object",
        "properties": {
            "leaf": {"$ref": "#/$defs/leaf"},
            "more": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1},
        },
        "required": ["leaf"],
        "additionalProperties": False,
    }
    return a_schema(random) | {"$defs": {"leaf": a_schema(random, 0), "tree": tree}}
