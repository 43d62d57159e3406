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
        name: the definition's name without its scopes; a C++ name may contain scopes
            (``Pool::take``).
        signature: types of the parameters, and qualifiers; empty in a language without overloads,
            and for a function whose name a macro makes from its arguments (``TEST(S,Zap)``).
        conditions: attributes that choose between definitions of the same name (``cfg(unix)``,
            ``@x.setter``).
        first: the node at which the definition begins: its first decorator or attribute, else its
            own node.
        last: the row of the definition's last line, from 0.
        is_function: True when the definitions inside are local to this definition.
    """

    name: str
    signature: str
    conditions: tuple[str, ...]
    first: Node
    last: int
    is_function: bool


def described(node: Node, grammar: Grammar, *, in_function: bool) -> Described | None:
    """Return name and extent of a definition; None when the node is not a definition.

    A value (a variable, a table) is a definition when it holds a function, or spans several lines
    outside of functions.
    """
    # In some grammars a node ends at the beginning of the line after its text.
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
    in_class = node.parent is not None and node.parent.type == "field_declaration_list"
    is_function_body = node.type == "function_definition" and not in_class
    if is_macro and is_function_body and "::" not in name:  # it has no type, and is no constructor
        name, signature = name + signature, ""
    is_function = bool(_FUNCTION_TYPES.search(node.type)) or holds_function
    first, conditions = _beginning(node)
    return Described(name, signature, conditions, first, last, is_function)


def _is_part(node: Node) -> bool:
    """True for a value inside the expression of another statement, which has its own name."""
    parent = node.parent
    if node.type == "assignment_expression":
        return parent is None or parent.type != "expression_statement"
    return node.type == "pair" and not _holds_function(node)


def _holds_function(node: Node) -> bool:
    value = node.child_by_field_name("value") or node.child_by_field_name("right")
    return value is not None and value.type in _FUNCTION_VALUES


def _after_macro(node: Node, last: int) -> Described | None:
    """Describe a body after a macro's call, as in ``DEFINE1(close, int) {``; None for another."""
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
            receiver_type = re.sub(r"^\(\s*(?:\w+\s+)?\*?\s*|\s*\)$", "", _text(receiver))
            name = f"{receiver_type.partition('[')[0]}.{_text(_field(node, 'name'))}"
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
    """Return the text of the innermost name of a node."""
    named = next((part for key in _NAME_FIELDS if (part := _field(node, key))), None)
    while named is not None and (inner := _field(named, "declarator") or _field(named, "name")):
        if named.type in ("template_type", "qualified_identifier"):
            break
        named = inner
    return _anonymous(node) if named is None else _text(named)


_NAME_FIELDS = ("name", "key", "property", "left", "declarator")


def _anonymous(node: Node) -> str:
    """Return the kind of a type without a name; empty when its variable or typedef names it."""
    if node.type.endswith("_specifier"):
        if node.parent is not None and node.parent.type in ("declaration", "type_definition"):
            return ""  # the parent is the symbol
        return f"({node.type.removesuffix('_specifier')})"
    return "(anonymous)" if node.type == "namespace_definition" else ""


def _function_declarator(node: Node) -> Node | None:
    """Return the declarator of a C or C++ function; None for any other node."""
    current = _field(node, "declarator")
    while current is not None and current.type not in ("function_declarator", "operator_cast"):
        current = _field(current, "declarator") or _first_child(current, "declarator")
    return current


def _signature(node: Node, declarator: Node | None) -> str:
    """Return template parameters, parameter types and qualifiers of a function."""
    if declarator is not None and declarator.type == "operator_cast":
        return "()"
    parameters = _field(declarator or node, "parameters")
    value = _field(node, "value")
    if parameters is None and value is not None and value.type in _FUNCTION_VALUES:
        parameters = _field(value, "parameters")
    if parameters is None:
        return ""
    types = ",".join(_parameter_type(part) for part in parameters.named_children if not _idle(part))
    qualifiers = _after_parameters(parameters) if declarator else ""
    return f"{_template(node)}({types}){qualifiers}"


def _idle(node: Node) -> bool:
    """Return True for a comment."""
    return node.type == "comment" or node.type.endswith("_comment")


def _after_parameters(parameters: Node) -> str:
    """Return the qualifiers after a function's parameters, each after a blank."""
    following, qualifiers = parameters.next_sibling, []
    while following is not None:
        if following.type in ("type_qualifier", "ref_qualifier"):
            qualifiers.append(_text(following))
        following = following.next_sibling
    return "".join(f" {word}" for word in qualifiers)


def _template(node: Node) -> str:
    """Return the parameters of a template without their names."""
    parent = node.parent
    if parent is None or parent.type != "template_declaration":
        return ""
    listed = _field(parent, "parameters")
    types = [_parameter_type(parameter) for parameter in listed.named_children] if listed else []
    return f"<{','.join(types)}>"


def _parameter_type(node: Node) -> str:
    """Return the text of a parameter without its name and its default."""
    if not node.is_named or node.type in ("variadic_parameter", "receiver_parameter"):
        return _squeezed(_text(node))
    skipped = set(_parameter_name(node))
    default = _field(node, "default_value") or _field(node, "value")
    if default is not None:
        skipped.add(default.id)
    if node.type == "spread_parameter":
        skipped |= {part.id for part in node.named_children if part.type == "variable_declarator"}
    if node.type == "type_parameter_declaration":
        return "typename"
    words = [word for word in _leaves(node, skipped) if word not in ("=", "final", ":")]
    return _squeezed(" ".join(words)) or "any"


def _parameter_name(node: Node) -> Iterator[int]:
    """Yield the id of the node that holds a parameter's name."""
    for key in ("name", "pattern"):
        if named := _field(node, key):
            yield named.id
            return
    named = _field(node, "declarator")
    while named is not None:
        inner = _field(named, "declarator") or _first_child(named, "declarator", "identifier")
        if inner is None:
            if named.type == "identifier":
                yield named.id
            return
        named = inner


def _leaves(node: Node, skipped: set[int]) -> Iterator[str]:
    """Yield the texts of a node's leaves, without skipped nodes, comments and annotations."""
    if node.id in skipped or _idle(node) or node.type in ("marker_annotation", "annotation"):
        return
    if not node.child_count:
        yield _text(node)
    for child in node.children:
        yield from _leaves(child, skipped)


def _beginning(node: Node) -> tuple[Node, tuple[str, ...]]:
    """Return the first node of a definition, and the attributes that choose the definition."""
    parent = node.parent
    wrappers = ("decorated_definition", "template_declaration", "export_statement")
    first, chosen = node, list[str]()
    while parent is not None and parent.type in wrappers:
        first = parent
        if parent.type == "decorated_definition":
            texts = (_squeezed(_text(decorator)) for decorator in parent.named_children[:-1])
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
    """Return the first child whose type ends with one of ``endings``; None without a match."""
    return next((child for child in node.named_children if child.type.endswith(endings)), None)


def _field(node: Node, name: str) -> Node | None:
    """Return the child of a node in the field ``name``; None without it."""
    return node.child_by_field_name(name)


def _text(node: Node | None) -> str:
    """Return the text of a node; empty for None."""
    return (node.text or b"").decode("utf-8", "replace") if node else ""


def _squeezed(text: str) -> str:
    """Return a text with a single blank between words and none beside signs."""
    return _SPACES_AROUND_SIGNS.sub(r"\1", " ".join(text.split()))
