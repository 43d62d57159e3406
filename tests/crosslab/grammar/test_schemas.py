# SPDX-License-Identifier: Apache-2.0
"""Answers that the grammar of a JSON Schema allows are valid for the schema."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest
from support import random_schemas, text_probe

from crosslab.tokenizer.device_tokenizer import pack

MOST = 20_000  # tokens of an answer by chance


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grammar") / "tokenizer.bin"
    path.write_bytes(pack(text_probe.trained("gpt2")))
    return path


def answers(probe: Path, table: Path, schemas: Sequence[Any], *mode: str) -> list[Any]:
    lines = "".join(f"{json.dumps(schema)}\n" for schema in schemas)
    command = [str(probe), str(table), "1", str(MOST), *mode]
    done = subprocess.run(
        command, input=lines, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    given = [json.loads(line) for line in done.stdout.rstrip("\n").split("\n")]
    assert mode or [answer for answer in given if answer.get("fault")] == []
    return given


def test_random_answers_are_valid(probe: Path, table: Path) -> None:
    random = Random(36)
    schemas = [random_schemas.whole(random) for _ in range(600)]
    given = answers(probe, table, schemas)
    valid = 0
    for schema, answer in zip(schemas, given, strict=True):
        if "field" in answer:
            assert answer["field"].startswith("schema")
            continue
        assert answer["done"], schema
        jsonschema.Draft202012Validator(schema).validate(json.loads(answer["text"]))
        valid += 1
    assert valid >= 500


DIGIT = {"enum": [1, 2]}


def marked(mark: Any, *, required: Sequence[str] = ("kind",)) -> dict[str, Any]:
    """The schema of an object whose property says of which kind it is, as pydantic writes it."""
    properties = {"kind": {"type": "string", **mark}, "size": DIGIT}
    return {"type": "object", "properties": properties, "required": [*required]}


def one_of(*parts: dict[str, Any]) -> dict[str, Any]:
    """Of schemas behind references; the field is before the definitions."""
    names = [f"#/$defs/{number}" for number in range(len(parts))]
    kinds = {"discriminator": {"propertyName": "kind"}, "oneOf": [{"$ref": n} for n in names]}
    defs = {"$defs": {str(number): part for number, part in enumerate(parts)}}
    return {"type": "object", "properties": {"it": kinds}, "required": ["it"], **defs}


A, B = {"const": "a"}, {"enum": ["b", "c"]}
EXPRESSED: list[Any] = [
    one_of(marked(A), marked(B)),
    one_of({"type": "null"}, {"enum": ["a"], "type": "string"}),
    {"definitions": {"a": DIGIT}, "$defs": {"a": A}, "items": {"$ref": "#/definitions/a"}}
    | {"type": "array", "maxItems": 2},
    {"definitions": {"a": DIGIT, "b": {"$ref": "#/definitions/a"}}, "$ref": "#/definitions/b"},
    {"type": "object", "properties": {"a": DIGIT, "b": DIGIT}, "additionalProperties": False}
    | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"allOf": [{"$ref": "#/$defs/a"}, {"required": ["b"], "properties": {"b": DIGIT}}]}
    | {"$defs": {"a": {"type": "object", "properties": {"a": DIGIT}, "required": ["a"]}}},
    {"type": "object", "$defs": {"a": marked(A), "b": marked(B)}}
    | {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]},
    {"type": ["string", "null"], "anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]},
    {"allOf": [{"type": "string", "minLength": 1}, {"minLength": 2, "maxLength": 4}]},
    {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}], "minimum": 3, "maximum": 12},
    # As zod writes a value that never occurs.
    {"anyOf": [{"not": {}}, DIGIT]},
    {"type": "object", "properties": {"a": DIGIT, "b": {"not": {}}, "not": DIGIT}},
    {"anyOf": [{"type": "string", "pattern": "^a{3}$"}, {"type": "null"}], "format": "int32"},
    {},
    True,
    {"minimum": 3},
    {"required": ["a"]},
    {"type": "object", "required": ["b"], "properties": {"a": {"type": "null"}}}
    | {"additionalProperties": {"const": 3}},
    {"enum": ["a", 2, None], "type": ["string", "null"]},
    {"enum": [3.0], "type": "integer"},
    {"type": "array", "maxItems": 1},
    {"type": "string", "pattern": '^[^"]{3}$'},
    {"type": "string", "pattern": "^[à-ÿ]{3}$"},
    {"type": "string", "format": "int32"},
    {"oneOf": [{"type": "string", "maxLength": 3}, {"type": ["integer", "null"]}]},
    {"type": "number", "minimum": 3, "maximum": 3},
    {"enum": [1e300, 3], "type": "integer"},
    {"enum": [2**63 - 1, -(2**63), {"a": [2**53 + 1]}]},
    {"type": "object", "propertyNames": {"minLength": 2, "maxLength": 3}},
    {"$defs": {"a b": {"type": "null"}}, "items": {"$ref": "#/$defs/a b"}, "maxItems": 1},
    {"$defs": {"é|x": {"type": "null"}}, "items": {"$ref": "#/$defs/é|x"}, "maxItems": 1},
]


def test_what_a_schema_leaves_open_is_allowed(probe: Path, table: Path) -> None:
    # Answers to some kinds only: other types are allowed, too.
    given = answers(probe, table, [schema for schema in EXPRESSED for _ in range(5)])
    for number, answer in enumerate(given):
        schema = EXPRESSED[number // 5]
        assert answer.get("done"), (schema, answer)
        jsonschema.Draft202012Validator(schema).validate(json.loads(answer["text"]))


LETTERS = [chr(code) for code in (*range(0x80, 0x100), 0x100, 0x7FF, 0x800, 0xFFFD, 0x10000)]


@pytest.mark.parametrize("follows", ["e", "F", "0", "g"])
def test_letters_before_hexadecimal_digits_are_kept(probe: Path, table: Path, follows: str) -> None:
    words = [f"a{letter}{follows}" for letter in LETTERS]
    schemas: list[Any] = [{"const": word} for word in words]
    schemas += [
        {"type": "object", "properties": {word: {"type": "null"}}, "required": [word]}
        for word in words
    ]
    schemas += [{"enum": words[at : at + 20]} for at in range(0, len(words), 20)]
    for schema, answer in zip(schemas, answers(probe, table, schemas), strict=True):
        assert answer.get("done"), (schema, answer)
        jsonschema.Draft202012Validator(schema).validate(json.loads(answer["text"]))


AB = {"type": "object", "properties": {"a": DIGIT, "b": DIGIT}}
# What a grammar leaves to the check of the answer; "" is the schema itself.
UNGUIDED: list[tuple[Any, list[str]]] = [
    ({"type": "array", "items": DIGIT, "maxItems": 3, "uniqueItems": True}, [".uniqueItems"]),
    ({"type": "array", "items": DIGIT, "maxItems": 3, "contains": A}, [".contains"]),
    ({"type": "string", "pattern": "^a+$", "maxLength": 3}, [""]),
    ({"type": "string", "format": "uuid", "minLength": 1}, [""]),
    ({"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 2}, [""]),
    ({"type": "string", "enum": ["a", "b"], "not": {"const": "a"}}, [".not"]),
    ({**AB, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, [""]),
    ({**AB, "dependentRequired": {"a": ["b"]}}, [".dependentRequired"]),
    ({**AB, "dependentSchemas": {"not": {"required": ["b"]}}}, [".dependentSchemas"]),
    (
        {**AB, "allOf": [{"if": {"required": [x]}, "then": {"required": ["a"]}} for x in "ab"]},
        [f".allOf.{number}.{name}" for number in range(2) for name in ("if", "then")],
    ),
    ({**AB, "propertyNames": {"pattern": "^[a-b]$"}}, [".propertyNames"]),
    ({"type": "object", "additionalProperties": DIGIT, "minProperties": 2}, [".minProperties"]),
    (
        {"$ref": "#/$defs/a", "maxLength": 3, "$defs": {"a": {"enum": ["a", "1234"]}}},
        [".maxLength"],
    ),
    (
        {"type": "object", "properties": {"a": False, "b": DIGIT}, "additionalProperties": DIGIT},
        [".properties.a"],
    ),
]


def test_what_no_grammar_expresses_is_left_to_the_check(probe: Path, table: Path) -> None:
    schemas = [schema for schema, _ in UNGUIDED for _ in range(8)]
    faulty = 0
    for number, answer in enumerate(answers(probe, table, schemas, "unguided")):
        schema, fields = UNGUIDED[number // 8]
        assert answer.get("unguided") == [f"schema{field}" for field in fields], (schema, answer)
        fits = jsonschema.Draft202012Validator(schema).is_valid(json.loads(answer["text"]))
        assert fits == (answer["fault"] == ""), (schema, answer)
        faulty += not fits
    assert 0 < faulty < len(schemas) / 2
    strict = answers(probe, table, [schema for schema, _ in UNGUIDED])
    assert [answer.get("field") for answer in strict] == [
        f"schema{fields[0]}" for _, fields in UNGUIDED
    ]


REFUSED: list[tuple[Any, str]] = [
    (3, ""),
    (False, ""),
    ({"not": {}}, ""),
    ({"not": {"const": 1}}, ".not"),
    ({"items": {"if": {}}}, ".items.if"),
    ({"properties": {"a": {"uniqueItems": True}}}, ".properties.a.uniqueItems"),
    ({"anyOf": [{"multipleOf": 2}], "multipleOf": 3, "type": "integer"}, ".multipleOf"),
    (
        {"anyOf": [{"properties": {"b": {}}}], "additionalProperties": False},
        ".additionalProperties",
    ),
    (
        {"$defs": {"a": {}}, "anyOf": [{"$ref": "#/$defs/a", "maximum": 2}], "minimum": 3},
        ".anyOf.0.maximum",
    ),
    ({"$ref": "#", "type": "object"}, ".type"),
    ({"anyOf": [{"$ref": "#/~2"}], "type": "object"}, ".type"),
    ({"$ref": "#/$defs/none"}, ".$ref"),
    ({"$ref": "https://example.org/schema"}, ".$ref"),
    ({"$ref": "#"}, ""),
    ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, ""),
    ({"allOf": [{"type": "object"}, {"not": {"const": 1}}]}, ".not"),
    ({"allOf": [{"type": "array"}, {"uniqueItems": True}]}, ".uniqueItems"),
    ({"properties": {"a": False}, "additionalProperties": DIGIT}, ".properties.a"),
    ({"allOf": [{"type": "string"}, {"minLength": -1}]}, ".minLength"),
    ({"allOf": [{"type": "string"}, {"$id": "a"}]}, ".allOf.1.$id"),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}, ""),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ""),
    (one_of(marked(A), marked({"enum": ["b", "a"]})), ""),
    (one_of(marked(A), marked(B, required=())), ""),
    (one_of(marked(A), {**marked(B), "type": ["object", "null"]}), ""),
    (one_of(marked(A), {"$ref": "#/$defs/2"}), ".$defs.1.$ref"),
    ({"type": "number", "multipleOf": 0.1}, ""),
    ({"type": "string", "pattern": 'a"b'}, ".pattern"),
    ({"type": "string", "pattern": "a\nb"}, ".pattern"),
    ({"type": "string", "pattern": "\\\\d"}, ".pattern"),
    ({"type": "string", "pattern": "\\u0022"}, ".pattern"),
    ({"type": "string", "pattern": "(?!a)b"}, ""),
    ({"type": "string", "pattern": "(a"}, ""),
    ({"type": "string", "pattern": "^([a-z]{1,40}-?){1,40}$"}, ".pattern"),
    ({"type": "string", "pattern": "a", "maxLength": 3}, ""),
    ({"type": "string", "format": "iri"}, ".format"),
    ({"enum": list(range(501))}, ".enum"),
    ({"enum": [1], "type": "string"}, ".enum"),
    ({"properties": {"a": {}}, "patternProperties": {"b": {}}}, ".patternProperties"),
    ({"properties": {str(n): {} for n in range(1001)}}, ".properties.999"),
    ({"additionalProperties": False, "required": ["a"]}, ".required"),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-9}, ".exclusiveMaximum"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, ".maximum"),
    ({"type": "number", "exclusiveMinimum": 3, "maximum": 3}, ".maximum"),
    ({"type": "integer", "minimum": 1e300}, ".minimum"),
    ({"items": {"anyOf": []}}, ".items.anyOf"),
    ({"oneOf": []}, ".oneOf"),
    ({"enum": []}, ".enum"),
    ({"propertyNames": {"minLength": 2}, "additionalProperties": False}, ".propertyNames"),
    ({"type": "string", "pattern": "\\ud800"}, ".pattern"),
    ({"type": "string", "pattern": "[\\u{dfff}]"}, ".pattern"),
    ({"type": "array", "minItems": -1}, ".minItems"),
    ({"items": {"maxItems": 2**64 - 1}}, ".items.maxItems"),
    ({"type": "string", "maxLength": 2.5}, ".maxLength"),
    ({"type": []}, ".type"),
    ({"const": 2**63}, ".const"),
    ({"enum": ["a", {"a": [2**64 - 1]}]}, ".enum"),
]


@pytest.mark.parametrize(("schema", "field"), REFUSED)
def test_what_cannot_be_expressed_is_named(
    probe: Path, table: Path, schema: Any, field: str
) -> None:
    (answer,) = answers(probe, table, [schema])
    assert answer.get("field") == f"schema{field}", answer
