# SPDX-License-Identifier: Apache-2.0
"""Recognition of causal attention in an exported language model, for a paged KV cache.

The functions rewrite the graph in place: attention reads keys and values from the cache, the
embedding of tokens leaves the graph, and the head reads only the last row.
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
# Operators that repeat heads of keys for several heads of queries.
REPEATING = RESHAPES | {"unsqueeze.default", "expand.default"}
# A mask's number at or below this hides the key.
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
    """Mark attention that reads a paged cache, in the graph; a converter replaces the call."""
    raise NotImplementedError


def last_row(x: Any) -> Any:
    """Mark the last row of x [1, n, width], in the graph; a converter replaces the call."""
    raise NotImplementedError


def page_attention(program: Any, cases: Sequence[Mapping[str, Any]]) -> AttentionSizes:
    """Replace every attention of a program by one that reads a paged cache; return its sizes.

    Args:
        program: torch's ``ExportedProgram``; the function changes its graph.
        cases: inputs by name, for each length at which masks are checked.

    Raises:
        UserError: the program has no attention, attention is not causal, or layers differ in size.
    """
    graph = program.graph
    calls = [n for n in graph.nodes if n.op == "call_function" and n.target.__name__ == ATTENTION]
    if not calls:
        raise UserError(
            "--paged: the model calls no scaled_dot_product_attention",
            remedy=f"call torch.nn.functional's; {UNPAGED}",
        )
    known: set[Any] = set()
    for node in calls:
        # Layers usually share a mask.
        mask = (_argument(node, 3, "attn_mask"), bool(_argument(node, 5, "is_causal")))
        if mask not in known:
            _check_causal(program, node, cases)
        known.add(mask)
    sources = _unrepeated(program, calls, cases[0])
    sizes = set()
    for layer, node in enumerate(calls):
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
    return AttentionSizes(len(calls), *sizes.pop())


def _argument(node: Any, position: int, name: str) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name)


def _check_causal(program: Any, node: Any, cases: Sequence[Mapping[str, Any]]) -> None:
    """Refuse an attention whose mask does not hide exactly the later keys.

    Raises:
        UserError: the attention has no such mask, or its queries are not [1, heads, n, width].
    """
    mask, causal = _argument(node, 3, "attn_mask"), bool(_argument(node, 5, "is_causal"))
    prefix = f"--paged: attention in {place_of(node)}"
    shape = node.args[0].meta["val"].shape
    if len(shape) != 4 or int(shape[0]) != 1:
        raise UserError(f"{prefix} has queries of shape {list(shape)}, not [1, heads, n, width]")
    if mask is None and not causal and shape[2] != 1:
        raise UserError(f"{prefix} sees later tokens: it has no mask", remedy=UNPAGED)
    if mask is None:
        return
    if _reads_values(mask, TOKENS):
        raise UserError(f"{prefix} has a mask that depends on the tokens' values", remedy=UNPAGED)
    for inputs in cases:
        if not is_causal(evaluate(program, [mask], inputs)[mask], causal):
            raise UserError(
                f"{prefix} has a mask that does not hide exactly the later of "
                f"{inputs[TOKENS].shape[1]} tokens",
                remedy=UNPAGED,
            )


def is_causal(mask: Any, also_causal: bool = False) -> bool:
    """Return True if a mask [..., n, n], true or 0 for visible keys, hides just the later keys.

    With ``also_causal``, the operator itself hides them: the mask need only show the other keys.
    """
    seen = mask if mask.dtype == torch.bool else mask == 0
    hidden = ~mask if mask.dtype == torch.bool else mask <= HIDDEN
    lower = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    return bool(seen[..., lower].all()) and (also_causal or bool(hidden[..., ~lower].all()))


def _ancestors(nodes: Iterable[Any]) -> set[Any]:
    known: set[Any] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in known:
            known.add(node)
            pending += node.all_input_nodes
    return known


def _reads_values(node: Any, name: str) -> bool:
    """Return True if a node is computed from more of the input ``name`` than its sizes."""
    return node.name == name or any(
        source.name == name
        for ancestor in _ancestors([node])
        if ancestor.op != "call_function" or ancestor.target.__name__ != "sym_size.int"
        for source in ancestor.all_input_nodes
    )


def evaluate(program: Any, nodes: Sequence[Any], inputs: Mapping[str, Any]) -> dict[Any, Any]:
    """Compute the values of some nodes of an exported program with torch.

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
                value = inputs.get(node.name)
                values[node] = stored[specs[node.name]] if value is None else value
            elif node.op == "get_attr":
                values[node] = getattr(program.graph_module, node.target)
            else:
                args, kwargs = (
                    map_arg(arguments, values.__getitem__) for arguments in (node.args, node.kwargs)
                )
                values[node] = node.target(*args, **kwargs)
    return {node: values[node] for node in nodes}


def _unrepeated(
    program: Any, attentions: Sequence[Any], inputs: Mapping[str, Any]
) -> dict[Any, tuple[Any, Any]]:
    """Return each attention's nodes of keys and values before their heads are repeated."""
    chains = {node: [_chain(link) for link in node.args[1:3]] for node in attentions}
    nodes = {link for pair in chains.values() for chain in pair for link in chain}
    values = evaluate(program, list(nodes), inputs)
    unrepeated = {}
    for node, pair in chains.items():
        sources = [next(s for s in c if _repeats(values[s], values[c[-1]])) for c in pair]
        fewer = {int(s.meta["val"].shape[1]) for s in sources}
        unrepeated[node] = (sources[0], sources[1]) if len(fewer) == 1 else tuple(node.args[1:3])
    return unrepeated


def _chain(node: Any) -> list[Any]:
    """Return the nodes that repeat or reshape a source, from the source to ``node``."""
    chain = [node]
    while node.op == "call_function" and node.target.__name__ in REPEATING:
        node = node.args[0]
        chain.insert(0, node)
    return chain


def _repeats(source: Any, repeated: Any) -> bool:
    """Return True if ``repeated`` is ``source`` [1, heads, n, width] with each head repeated."""
    if source.dim() != 4 or source.shape[2:] != repeated.shape[2:]:
        return False
    times, rest = divmod(repeated.shape[1], source.shape[1])
    return not rest and torch.equal(source.repeat_interleave(times, 1), repeated)


def cut_embedding(program: Any) -> str:
    """Make a program read rows of its embedding in place of token ids.

    Returns:
        name of the embedding's weight [vocab, width] in the graph.

    Raises:
        UserError: operators other than a single embedding read the tokens.
    """
    tokens = next(n for n in program.graph.nodes if n.op == "placeholder" and n.name == TOKENS)
    # GPT-2 reshapes its tokens to the shape that they already have.
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
    """Make a program's head read only the last row.

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
