# SPDX-License-Identifier: Apache-2.0
"""Names and signatures of definitions, read from their nodes in the syntax tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from forkpatch.symbols.grammars import Grammar

_FUNCTION_TYPES = re.compile(r"function|method|constructor|static_initializer")
_FUNCTION_VALUES = ("arrow_function", "function_expression", "generator_function")
_ACCESSOR = re.compile(r"^@(?:[\w.]+\.(?:setter|deleter|getter|register)\b.*|.*\boverload)$")
_ACCESSOR_WORDS = ("get", "set", "static")
_SPACES_AROUND_SIGNS = re.compile(r"\s*([^\w\s])\s*")


@dataclass(frozen=True)
class Described:
    """Name and extent of a definition.

    Attributes:
        name: its name without scopes; a C++ one may have scopes of its own (``Pool::take``).
        signature: types of its parameters, and qualifiers; empty where names are not overloaded,
            or a macro makes them of its arguments (``TEST(S,Zap)``).
        conditions: attributes that choose between it and its twins (``cfg(unix)``, ``@x.setter``).
        first: the node at which it begins: a decorator or attribute, or itself.
        last: the row of its last line, from 0.
        is_function: True when what it holds is local to it.
    """

    name: str
    signature: str
    conditions: tuple[str, ...]
    first: Node
    last: int
    is_function: bool


def described(node: Node, grammar: Grammar, *, in_function: bool) -> Described | None:
    """Name and extent of a definition; None when the node is not a definition.

    A value (a variable, a table) is one when it spans several lines outside of functions, or
    holds a function.
    """
    # A grammar may let a node run on to the line after it.
    last = node.end_point[0] - (node.end_point[1] == 0 and node.end_point[0] > node.start_point[0])
    is_value = node.type in grammar.values
    holds_function = grammar.holds_functions and _holds_function(node)
    if is_value and (in_function or last == node.start_point[0]) and not holds_function:
        return None
    if is_value and _is_part(node):
        return None
    if node.type.endswith("_specifier") and node.child_by_field_name("body") is None:
        return None
    declarator = _function_declarator(node)
    if node.type == "compound_statement":
        return _after_macro(node, last)
    name = _name(node, declarator)
    if not name:
        return None
    is_macro = declarator is not None and node.child_by_field_name("type") is None
    signature = ""
    if grammar.overloads or (is_macro and grammar.preprocessed):
        signature = _signature(node, declarator)
    if grammar.preprocessed and node.type in ("declaration", "preproc_def", "preproc_function_def"):
        signature += ";" if node.type == "declaration" and declarator else ""
        name = name if node.type == "declaration" else f"#define {name}"
    if is_macro and _makes_name(node, name):
        name, signature = name + signature, ""
    is_function = bool(_FUNCTION_TYPES.search(node.type)) or holds_function
    first, conditions = _beginning(node)
    return Described(name, signature, conditions, first, last, is_function)


def _makes_name(node: Node, name: str) -> bool:
    """True for a function without a type that is no constructor: a macro makes its name."""
    in_class = node.parent is not None and node.parent.type == "field_declaration_list"
    return node.type == "function_definition" and not in_class and "::" not in name


def _is_part(node: Node) -> bool:
    """True for a value inside of another statement's expression, which has a name of its own."""
    parent = node.parent
    if node.type == "assignment_expression":
        return parent is None or parent.type != "expression_statement"
    if node.type in ("compound_statement", "expression_statement"):
        # Of C alone: at the top of a file, under the preprocessor, or in a namespace.
        top = ("translation_unit", "declaration_list", "ERROR")
        return parent is None or not (parent.type in top or parent.type.startswith("preproc"))
    return node.type == "pair" and not _holds_function(node)


def _holds_function(node: Node) -> bool:
    value = node.child_by_field_name("value") or node.child_by_field_name("right")
    return value is not None and value.type in _FUNCTION_VALUES


def _after_macro(node: Node, last: int) -> Described | None:
    """A body that follows a macro's call, as in ``SYSCALL_DEFINE1(close, int, fd) {``."""
    head = node.prev_named_sibling
    if head is None or head.type == "comment" or head.end_point[0] < node.start_point[0] - 1:
        return None
    text = _squeezed(_text(head))
    name, bracket, rest = text.partition("(")
    return Described(name + bracket + rest.rstrip(";"), "", (), head, last, is_function=True)


def _name(node: Node, declarator: Node | None) -> str:
    match node.type:
        case "impl_item":
            parts = (_field(node, key) for key in ("trait", "type"))
            name = f"impl {' for '.join(_text(part) for part in parts if part)}"
        case "method_declaration" if receiver := _field(node, "receiver"):
            own = re.sub(r"^\(\s*(?:\w+\s+)?\*?\s*|\s*\)$", "", _text(receiver))
            name = f"{own.partition('[')[0]}.{_text(_field(node, 'name'))}"
        case "static_initializer":
            name = "static"
        case "expression_statement" | "macro_invocation":
            name = _text(node).partition("{")[0].partition("\n")[0].rstrip(";")
        case _ if declarator is not None and declarator.type == "operator_cast":
            name = f"operator {_text(_field(declarator, 'type'))}"
        case _ if declarator is not None:
            name = _text(_field(declarator, "declarator"))
        case _:
            name = _named(node)
    return _squeezed(name)


def _named(node: Node) -> str:
    found = next((part for key in _NAME_FIELDS if (part := _field(node, key))), None)
    while found is not None and (inner := _field(found, "declarator") or _field(found, "name")):
        if found.type in ("template_type", "qualified_identifier"):
            break
        found = inner
    return _anonymous(node) if found is None else _text(found)


_NAME_FIELDS = ("name", "key", "property", "left", "declarator")


def _anonymous(node: Node) -> str:
    """A type without a name has the name of its variable or typedef; else its kind."""
    if node.type.endswith("_specifier"):
        if node.parent is not None and node.parent.type in ("declaration", "type_definition"):
            return ""  # the parent is the symbol
        return f"({node.type.removesuffix('_specifier')})"
    return "(anonymous)" if node.type == "namespace_definition" else ""


def _function_declarator(node: Node) -> Node | None:
    """The declarator of a C or C++ function; None of anything else."""
    found = _field(node, "declarator")
    while found is not None and found.type not in ("function_declarator", "operator_cast"):
        found = _field(found, "declarator") or _first_child(found, "declarator")
    return found


def _signature(node: Node, declarator: Node | None) -> str:
    if declarator is not None and declarator.type == "operator_cast":
        return "()"
    parameters = _field(declarator or node, "parameters")
    value = _field(node, "value")
    if parameters is None and value is not None and value.type in _FUNCTION_VALUES:
        parameters = _field(value, "parameters")
    if parameters is None:
        return ""
    types = ",".join(_parameter_type(one) for one in parameters.named_children if not _idle(one))
    after = _after_parameters(parameters) if declarator else ""
    return f"{_template(node)}({types}){after}"


def _idle(node: Node) -> bool:
    return node.type == "comment" or node.type.endswith("_comment")


def _after_parameters(parameters: Node) -> str:
    following, found = parameters.next_sibling, []
    while following is not None:
        if following.type in ("type_qualifier", "ref_qualifier"):
            found.append(_text(following))
        following = following.next_sibling
    return "".join(f" {word}" for word in found)


def _template(node: Node) -> str:
    """The parameters of a template with their names taken out."""
    parent = node.parent
    if parent is None or parent.type != "template_declaration":
        return ""
    listed = _field(parent, "parameters")
    types = [_parameter_type(one) for one in listed.named_children] if listed else []
    return f"<{','.join(types)}>"


def _parameter_type(node: Node) -> str:
    """A parameter without its name and its default."""
    if not node.is_named or node.type in ("variadic_parameter", "receiver_parameter"):
        return _squeezed(_text(node))
    skipped = set(_parameter_name(node))
    default = _field(node, "default_value") or _field(node, "value")
    if default is not None:
        skipped.add(default.id)
    if node.type == "spread_parameter":
        skipped |= {one.id for one in node.named_children if one.type == "variable_declarator"}
    if node.type == "type_parameter_declaration":
        return "typename"
    words = [word for word in _leaves(node, skipped) if word not in ("=", "final", ":")]
    return _squeezed(" ".join(words)) or "any"


def _parameter_name(node: Node) -> Iterator[int]:
    for key in ("name", "pattern"):
        if found := _field(node, key):
            yield found.id
            return
    found = _field(node, "declarator")
    while found is not None:
        inner = _field(found, "declarator") or _first_child(found, "declarator", "identifier")
        if inner is None:
            if found.type == "identifier":
                yield found.id
            return
        found = inner


def _leaves(node: Node, skipped: set[int]) -> Iterator[str]:
    if node.id in skipped or _idle(node) or node.type in ("marker_annotation", "annotation"):
        return
    if not node.child_count:
        yield _text(node)
    for child in node.children:
        yield from _leaves(child, skipped)


def _beginning(node: Node) -> tuple[Node, tuple[str, ...]]:
    """The node at which a definition begins, and the attributes that choose it."""
    parent = node.parent
    wrappers = ("decorated_definition", "template_declaration", "export_statement")
    first, chosen = node, list[str]()
    while parent is not None and parent.type in wrappers:
        first = parent
        if parent.type == "decorated_definition":
            texts = (_squeezed(_text(one)) for one in parent.named_children[:-1])
            chosen += [text for text in texts if _ACCESSOR.match(text)]
        parent = parent.parent
    if node.type == "method_definition":
        chosen += [child.type for child in node.children if child.type in _ACCESSOR_WORDS]
    before = first.prev_named_sibling
    while before is not None and (before.type == "attribute_item" or _idle(before)):
        if before.type == "attribute_item":
            first, text = before, _squeezed(_text(before))
            if "cfg" in text:
                chosen.insert(0, text.removeprefix("#[").removesuffix("]"))
        before = before.prev_named_sibling
    return first, tuple(chosen)


def _first_child(node: Node, *endings: str) -> Node | None:
    return next((one for one in node.named_children if one.type.endswith(endings)), None)


def _field(node: Node, name: str) -> Node | None:
    return node.child_by_field_name(name)


def _text(node: Node | None) -> str:
    return (node.text or b"").decode("utf-8", "replace") if node else ""


def _squeezed(text: str) -> str:
    """Text with one blank between words and none beside signs."""
    return _SPACES_AROUND_SIGNS.sub(r"\1", " ".join(text.split()))
