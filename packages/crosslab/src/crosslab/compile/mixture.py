# SPDX-License-Identifier: Apache-2.0
"""The feed-forward layer of a mixture of experts in ``tvm.relax.frontend.nn``.

Rows are ordered by expert, so that a kernel multiplies all rows of an expert at once, and reads no
weights of an expert without rows. A single token takes the same way as a prompt.
"""

from __future__ import annotations

from typing import Any

from tvm import te
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.script import tirx as T  # noqa: N812 - the script's parser wants this name

from crosslab.compile.overlaypass import load_op
from crosslab.models.config import LlamaConfig

DTYPE, INDEX = "float32", "int32"


class Experts(nn.Module):  # type: ignore[misc]
    """A linear layer of each expert, with the weights [experts, out, in] of all."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter((experts, outputs, inputs), DTYPE)

    def forward(self, x: Any, indptr: Any) -> Any:
        """Map x [rows, in] to [rows, out]; rows indptr[e] to indptr[e + 1] are of expert e."""
        return load_op("experts_on_cpu").experts(x, self.weight, indptr)


class Mixture(nn.Module):  # type: ignore[misc]
    """Gated feed-forward layers, of which a token takes those that the gate scores highest.

    Args:
        config: sizes of the model.
        gate: linear layer from states to a score for each expert.
    """

    def __init__(self, config: LlamaConfig, gate: Any) -> None:
        super().__init__()
        self.experts, self.chosen, self.shares = config.experts, config.chosen, config.shares
        self.gate = gate
        self.moe_gate_up_proj = Experts(config.experts, config.hidden, 2 * config.intermediate)
        self.moe_down_proj = Experts(config.experts, config.intermediate, config.hidden)

    def forward(self, x: Any) -> Any:
        """Map states x [batch, rows, hidden] to feed-forward outputs of the same shape."""
        batch, rows, hidden = x.shape
        tokens = batch * rows
        scores = op.softmax(op.reshape(self.gate(x), (tokens, self.experts)), axis=-1)
        weights, places, tokens_of, indptr = self._choice(scores)
        ordered = op.take(op.reshape(x, (tokens, hidden)), tokens_of, axis=0)
        gate, up = op.split(self.moe_gate_up_proj(ordered, indptr), 2, axis=-1)
        gated = op.silu(gate) * up * weights
        mixed = self.moe_down_proj(gated, indptr)
        mixed = op.tensor_expr_op(_sums, "sum_of_experts", [mixed, places])
        return op.reshape(mixed, (batch, rows, hidden))

    def _choice(self, scores: Any) -> list[Any]:
        """Choose experts by scores [tokens, experts].

        Returns:
            weights [rows, 1] of the chosen experts, their rows' places [tokens, chosen], the token
            [rows] of each place, and indptr [experts + 1]: the places of each expert.
        """
        rows = scores.shape[0] * self.chosen
        shapes = [[rows, 1], [scores.shape[0], self.chosen], [rows], [self.experts + 1]]
        dtypes = [DTYPE, INDEX, INDEX, INDEX]
        out = [nn.Tensor.placeholder(s, d) for s, d in zip(shapes, dtypes, strict=True)]
        function = _choice_of_experts(self.experts, self.chosen, self.shares)
        chosen: list[Any] = op.tensor_ir_op(function, "choice_of_experts", [scores], out)
        return chosen


def _sums(y: Any, places: Any) -> Any:
    """Return the tensor expression of the sum of each token's rows of y."""
    tokens, chosen = places.shape

    def total(token: Any, column: Any) -> Any:
        first, *others = (y[places[token, i], column] for i in range(int(chosen)))
        return sum(others, first)

    return te.compute((tokens, y.shape[1]), total, name="sum_of_experts")


def _choice_of_experts(experts: int, chosen: int, shares: bool) -> Any:
    """Return the TIR function that chooses experts, and orders the tokens' rows by expert.

    Among equal scores it chooses the first. Weights are the scores; if ``shares``, divided by
    the sum of a token's.
    """

    @T.prim_func(private=True, s_tir=True)  # type: ignore[untyped-decorator]
    def choose(  # type: ignore[no-untyped-def]
        var_scores: T.handle,
        var_weights: T.handle,
        var_places: T.handle,
        var_tokens: T.handle,
        var_indptr: T.handle,
    ):
        T.func_attr({"op_pattern": 8, "tirx.noalias": True, "tirx.is_scheduled": True})
        tokens, rows = T.int64(), T.int64()
        scores = T.match_buffer(var_scores, (tokens, experts), DTYPE)
        weights = T.match_buffer(var_weights, (rows, 1), DTYPE)
        places = T.match_buffer(var_places, (tokens, chosen), INDEX)
        token_of = T.match_buffer(var_tokens, (rows,), INDEX)
        indptr = T.match_buffer(var_indptr, (experts + 1,), INDEX)
        with T.sblock("choice"):
            T.reads(scores[:, :])
            T.writes(weights[:, :], places[:, :], token_of[:], indptr[:])
            left = T.sblock_alloc_buffer((experts,), DTYPE)
            next_place = T.sblock_alloc_buffer((experts,), INDEX)
            best = T.sblock_alloc_buffer((1,), INDEX)
            total = T.sblock_alloc_buffer((1,), DTYPE)
            for e in T.serial(experts + 1):
                indptr[e] = 0
            for t in T.serial(tokens):
                for e in T.serial(experts):
                    left[e] = scores[t, e]
                for i in T.serial(chosen):
                    best[0] = 0
                    for e in T.serial(experts):
                        if left[e] > left[best[0]]:
                            best[0] = e
                    places[t, i] = best[0]
                    indptr[best[0] + 1] = indptr[best[0] + 1] + 1
                    # Scores are not negative.
                    left[best[0]] = T.float32(-1)
            for e in T.serial(experts):
                indptr[e + 1] = indptr[e + 1] + indptr[e]
                next_place[e] = indptr[e]
            for t in T.serial(tokens):
                total[0] = T.float32(0 if shares else 1)
                if shares:
                    for i in T.serial(chosen):
                        total[0] = total[0] + scores[t, places[t, i]]
                for i in T.serial(chosen):
                    best[0] = places[t, i]
                    places[t, i] = next_place[best[0]]
                    weights[next_place[best[0]], 0] = scores[t, best[0]] / total[0]
                    token_of[next_place[best[0]]] = T.Cast(INDEX, t)
                    next_place[best[0]] = next_place[best[0]] + 1

    return choose
