# SPDX-License-Identifier: Apache-2.0
"""Causal attention of an exported language model, recognised for a paged KV cache.

The graph is rewritten in place: an attention reads its keys and values from the cache, the
embedding of tokens leaves the graph, and the head reads the last row alone where that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.node import map_arg

from crosslab.errors import UserError
from torchroad.conversion.operators import place_of

TOKENS, POSITIONS = "input_ids", "position_ids"
ATTENTION = "scaled_dot_product_attention.default"
RESHAPES = frozenset(
    f"{name}.default" for name in ("clone", "view", "_unsafe_view", "reshape", "contiguous")
)
# Operators between heads of keys and the same heads repeated for several queries each.
REPEATING = RESHAPES | {"unsqueeze.default", "expand.default"}
# A number added to a score below which the key is hidden.
HIDDEN = -1e30
UNPAGED = "leave out --paged: the model then runs without a cache"


@dataclass(frozen=True)
class AttentionSizes:
    """Sizes of the attention of all layers.

    Attributes:
        layers: calls of attention.
        heads: of queries.
        kv_heads: of keys and values.
        head_dim: width of a head.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int


def paged_attention(query: Any, key: Any, value: Any, *, layer: int, scale: float) -> Any:
    """Stands in the graph for attention that reads a paged cache; a converter knows it."""
    raise NotImplementedError


def last_row(x: Any) -> Any:
    """Stands in the graph for the last row of x [1, n, width]; a converter knows it."""
    raise NotImplementedError


def page_attention(program: Any, cases: Sequence[Mapping[str, Any]]) -> AttentionSizes:
    """Let every attention of a program read a paged cache.

    Args:
        program: torch's ``ExportedProgram``; its graph is changed.
        cases: inputs by name, of each length that masks are looked at for.

    Raises:
        UserError: there is no attention, or one is not causal, or layers differ in their sizes.
    """
    graph = program.graph
    found = [n for n in graph.nodes if n.op == "call_function" and n.target.__name__ == ATTENTION]
    if not found:
        raise UserError(
            "--paged: the model calls no scaled_dot_product_attention",
            remedy=f"call torch.nn.functional's; {UNPAGED}",
        )
    known: set[Any] = set()
    for node in found:
        # Layers mostly share one mask.
        mask = (_argument(node, 3, "attn_mask"), bool(_argument(node, 5, "is_causal")))
        if mask not in known:
            _check_causal(program, node, cases)
        known.add(mask)
    sources = _unrepeated(program, found, cases[0])
    sizes = set()
    for layer, node in enumerate(found):
        query, key, value = node.args[0], *sources[node]
        width = int(query.meta["val"].shape[3])
        sizes.add((int(query.meta["val"].shape[1]), int(key.meta["val"].shape[1]), width))
        scale = _argument(node, 6, "scale") or width**-0.5
        with graph.inserting_before(node):
            paged = graph.call_function(
                paged_attention, (query, key, value), {"layer": layer, "scale": float(scale)}
            )
        paged.meta = dict(node.meta)
        node.replace_all_uses_with(paged)
        graph.erase_node(node)
    if len(sizes) > 1:
        raise UserError(
            f"--paged: layers differ in (heads, heads of keys, width of a head): {sorted(sizes)}",
            remedy=UNPAGED,
        )
    graph.eliminate_dead_code()
    return AttentionSizes(len(found), *sizes.pop())


def _argument(node: Any, place: int, name: str) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name)


def _check_causal(program: Any, node: Any, cases: Sequence[Mapping[str, Any]]) -> None:
    """Make sure that an attention hides the later keys and no others.

    Raises:
        UserError: it does not.
    """
    mask, causal = _argument(node, 3, "attn_mask"), bool(_argument(node, 5, "is_causal"))
    told = f"--paged: attention in {place_of(node)}"
    shape = node.args[0].meta["val"].shape
    if len(shape) != 4 or int(shape[0]) != 1:
        raise UserError(f"{told} has queries of shape {list(shape)}, not [1, heads, n, width]")
    if mask is None and not causal and shape[2] != 1:
        raise UserError(f"{told} sees later tokens: it has no mask", remedy=UNPAGED)
    if mask is None:
        return
    if _reads_values(mask, TOKENS):
        raise UserError(f"{told} has a mask that depends on the tokens' values", remedy=UNPAGED)
    for inputs in cases:
        if not is_causal(evaluate(program, [mask], inputs)[mask], causal):
            raise UserError(
                f"{told} has a mask that does not hide exactly the later of "
                f"{inputs[TOKENS].shape[1]} tokens",
                remedy=UNPAGED,
            )


def is_causal(mask: Any, also_causal: bool = False) -> bool:
    """True if a mask [..., n, n], true or 0 where a key is seen, hides just the later keys."""
    seen = mask if mask.dtype == torch.bool else mask == 0
    hidden = ~mask if mask.dtype == torch.bool else mask <= HIDDEN
    lower = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    return bool(seen[..., lower].all()) and (also_causal or bool(hidden[..., ~lower].all()))


def _ancestors(nodes: Iterable[Any]) -> set[Any]:
    known: set[Any] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in known:
            known.add(node)
            waiting += node.all_input_nodes
    return known


def _reads_values(node: Any, name: str) -> bool:
    """True if a value depends on more of an input than its sizes."""
    return any(
        source.name == name
        for one in _ancestors([node])
        if one.op != "call_function" or one.target.__name__ != "sym_size.int"
        for source in one.all_input_nodes
    )


def evaluate(program: Any, nodes: Sequence[Any], inputs: Mapping[str, Any]) -> dict[Any, Any]:
    """Values of some nodes of an exported program, by torch itself.

    Args:
        program: torch's ``ExportedProgram``.
        nodes: of its graph.
        inputs: the model's inputs by name.
    """
    stored = {**program.state_dict, **program.constants}
    specs = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs}
    needed, values = _ancestors(nodes), dict[Any, Any]()
    with torch.no_grad():
        for node in program.graph.nodes:
            if node not in needed:
                continue
            if node.op == "placeholder":
                given = inputs.get(node.name)
                values[node] = stored[specs[node.name]] if given is None else given
            elif node.op == "get_attr":
                values[node] = getattr(program.graph_module, node.target)
            else:
                args, kwargs = (
                    map_arg(one, values.__getitem__) for one in (node.args, node.kwargs)
                )
                values[node] = node.target(*args, **kwargs)
    return {node: values[node] for node in nodes}


def _unrepeated(
    program: Any, found: Sequence[Any], inputs: Mapping[str, Any]
) -> dict[Any, tuple[Any, Any]]:
    """Keys and values of each attention before heads were repeated for several queries each."""
    chains = {node: [_chain(one) for one in node.args[1:3]] for node in found}
    nodes = {one for pair in chains.values() for chain in pair for one in chain}
    values = evaluate(program, list(nodes), inputs)
    made = {}
    for node, pair in chains.items():
        sources = [next(s for s in c if _repeats(values[s], values[c[-1]])) for c in pair]
        fewer = {int(s.meta["val"].shape[1]) for s in sources}
        made[node] = (sources[0], sources[1]) if len(fewer) == 1 else tuple(node.args[1:3])
    return made


def _chain(node: Any) -> list[Any]:
    """A node and those that it only repeats or reshapes, the first of them first."""
    chain = [node]
    while node.op == "call_function" and node.target.__name__ in REPEATING:
        node = node.args[0]
        chain.insert(0, node)
    return chain


def _repeats(source: Any, repeated: Any) -> bool:
    """True if a tensor [1, heads, n, width] has each head of another so many times in turn."""
    if source.dim() != 4 or source.shape[2:] != repeated.shape[2:]:
        return False
    times, rest = divmod(repeated.shape[1], source.shape[1])
    return not rest and torch.equal(source.repeat_interleave(times, 1), repeated)


def cut_embedding(program: Any) -> str:
    """Let a program take the rows of its embedding in place of token ids.

    Returns:
        name of the embedding's weight [vocab, width] in the graph.

    Raises:
        UserError: tokens are read by something else, too.
    """
    tokens = next(n for n in program.graph.nodes if n.op == "placeholder" and n.name == TOKENS)
    # GPT-2 gives its tokens the shape that they have.
    for node in list(tokens.users):
        reshaped = node.target.__name__ in RESHAPES
        if reshaped and node.meta["val"].shape == tokens.meta["val"].shape:
            node.replace_all_uses_with(tokens)
    program.graph.eliminate_dead_code()
    readers = [n for n in tokens.users if n.target.__name__ != "sym_size.int"]
    if [n.target.__name__ for n in readers] != ["embedding.default"]:
        listed = ", ".join(f"{n.target} in {place_of(n)}" for n in readers) or "nothing"
        raise UserError(
            f"--paged: one embedding alone must read {TOKENS}; it is read by: {listed}",
            remedy=UNPAGED,
        )
    embedding = readers[0]
    weight: str = embedding.args[0].name
    tokens.meta.update({k: embedding.meta[k] for k in ("val", "tensor_meta")})
    embedding.replace_all_uses_with(tokens)
    program.graph.erase_node(embedding)
    return weight


def keep_last_row(program: Any) -> None:
    """Let a program's head read the last of its rows alone.

    Raises:
        UserError: the output is not a linear layer's.
    """
    graph = program.graph
    logits = graph.output_node().args[0][0]
    if logits.op != "call_function" or logits.target.__name__ != "linear.default":
        raise UserError(
            f"--paged: the first output is made by {logits.target} in {place_of(logits)}, "
            "not by a linear layer, the model's head",
            remedy=UNPAGED,
        )
    rows = logits.args[0]
    with graph.inserting_before(logits):
        last = graph.call_function(last_row, (rows,))
    last.meta = dict(rows.meta)
    logits.replace_input_with(rows, last)
