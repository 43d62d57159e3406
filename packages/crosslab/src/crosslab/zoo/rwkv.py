# SPDX-License-Identifier: Apache-2.0
"""RWKV 5 and 6 in PyTorch: the zoo's reference, as transformers has neither.

Source: Eagle and Finch (Peng et al., 2024, arXiv:2404.05892). A head has a state S [value, key].
Of a token's receptance r, key k, value v and decay w, with a bonus u,

    out = (S + v (u * k)') r;    S = S * w' + v k'

The weights have the names and shapes of the published files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn.functional import group_norm, layer_norm

EPSILON = 1e-5
HEAD_DIVISOR = 8
# Ranks of version 6's products for mixes and decays, up to a width of 2048.
MIX, DECAY = 32, 64
FULL = {"g": "gate", "k": "key", "v": "value", "r": "receptance"}


class Rwkv:
    """A model of version 5 or 6.

    Args:
        config: fields of the published ``config.json``.

    Attributes:
        mixes: names of the weights that mix the feed-forward layer's key and receptance.
    """

    mixes: tuple[str, str]

    def __init__(self, config: Any) -> None:
        self.config = config
        self.heads = config.hidden_size // config.head_size
        hidden = config.hidden_size
        norms = ["rwkv.ln_out", "rwkv.blocks.0.pre_ln"]
        embedding = (config.vocab_size, hidden)
        shapes: dict[str, tuple[int, ...]] = {
            "rwkv.embeddings.weight": embedding,
            "head.weight": embedding,
        }
        for block in (f"rwkv.blocks.{n}" for n in range(config.num_hidden_layers)):
            norms += [f"{block}.{name}" for name in ("ln1", "ln2", "attention.ln_x")]
            products = ("receptance", "key", "value", "gate", "output")
            own: dict[str, tuple[int, ...]] = {
                f"attention.{name}.weight": (hidden, hidden) for name in products
            }
            own["feed_forward.key.weight"] = (config.intermediate_size, hidden)
            own["feed_forward.value.weight"] = (hidden, config.intermediate_size)
            own["feed_forward.receptance.weight"] = (hidden, hidden)
            own |= {f"feed_forward.{name}": (1, 1, hidden) for name in self.mixes}
            shapes |= {f"{block}.{name}": shape for name, shape in own.items()}
            shapes |= {f"{block}.{name}": shape for name, shape in self.more_shapes().items()}
        shapes |= {f"{name}.{part}": (hidden,) for name in norms for part in ("weight", "bias")}
        self.weights = {name: torch.zeros(shape) for name, shape in shapes.items()}

    @staticmethod
    def config_class(**fields: Any) -> Any:
        """Return an object with these fields, in place of a config class of transformers."""
        return SimpleNamespace(**fields)

    def eval(self) -> Rwkv:
        """Return the model, which has no other mode."""
        return self

    def to(self, dtype: Any) -> Rwkv:
        """Return the model, which is float32."""
        assert dtype is torch.float32
        return self

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Yield name and values of each weight."""
        yield from self.weights.items()

    def save_pretrained(self, folder: Path, **_: Any) -> None:
        """Write the weights to ``model.safetensors``."""
        folder.mkdir(exist_ok=True)
        save_file(self.weights, folder / "model.safetensors")

    def __call__(self, tokens: Any, **_: Any) -> Any:
        """Return the logits [1, tokens, vocab] of a text."""
        x = self.weights["rwkv.embeddings.weight"][tokens[0]]
        x = self._norm(x, "rwkv.blocks.0.pre_ln")
        for number in range(self.config.num_hidden_layers):
            block = f"rwkv.blocks.{number}"
            x = x + self._attention(self._norm(x, f"{block}.ln1"), f"{block}.attention")
            x = x + self._feed_forward(self._norm(x, f"{block}.ln2"), f"{block}.feed_forward")
        logits = self._product(self._norm(x, "rwkv.ln_out"), "head")
        return SimpleNamespace(logits=logits[None])

    def _norm(self, x: Any, name: str) -> Any:
        weight, bias = (self.weights[f"{name}.{part}"] for part in ("weight", "bias"))
        return layer_norm(x, x.shape[-1:], weight, bias, EPSILON)

    def _product(self, x: Any, name: str) -> Any:
        return x @ self.weights[f"{name}.weight"].T

    def _attention(self, x: Any, name: str) -> Any:
        before = torch.cat([torch.zeros_like(x[:1]), x[:-1]])
        inputs, decay = self.mix(x, before, name)
        r, k, v = (
            self._product(inputs[part], f"{name}.{product}").unflatten(-1, (self.heads, -1))
            for part, product in (("r", "receptance"), ("k", "key"), ("v", "value"))
        )
        bonus = self.weights[f"{name}.time_faaaa"]
        state = torch.zeros(self.heads, self.config.head_size, self.config.head_size)
        rows = []
        for t in range(len(x)):
            added = v[t, :, :, None] * k[t, :, None, :]
            rows.append(((state + bonus[:, None] * added) @ r[t, :, :, None])[..., 0])
            state = state * decay[t, :, None] + added
        out = torch.stack(rows).flatten(1) / HEAD_DIVISOR
        weight, bias = (self.weights[f"{name}.ln_x.{part}"] for part in ("weight", "bias"))
        out = group_norm(out, self.heads, weight, bias, EPSILON)
        gate = torch.nn.functional.silu(self._product(inputs["g"], f"{name}.gate"))
        return self._product(out * gate, f"{name}.output")

    def _feed_forward(self, x: Any, name: str) -> Any:
        before = torch.cat([torch.zeros_like(x[:1]), x[:-1]])
        key, receptance = (self.mixed(x, before, f"{name}.{mix}") for mix in self.mixes)
        squared = torch.relu(self._product(key, f"{name}.key")) ** 2
        gate = torch.sigmoid(self._product(receptance, f"{name}.receptance"))
        return gate * self._product(squared, f"{name}.value")

    def more_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights that the version adds to a block, by name in the block."""
        raise NotImplementedError

    def mix(self, x: Any, before: Any, name: str) -> tuple[dict[str, Any], Any]:
        """Mix tokens x [tokens, hidden] with those before, by the weights of the part ``name``.

        Returns:
            the inputs of r, k, v and g, and the decays [tokens, heads, d].
        """
        raise NotImplementedError

    def mixed(self, x: Any, before: Any, name: str) -> Any:
        """Mix tokens with those before them: fixed weights of this name are the tokens' shares."""
        share = self.weights[name][0]
        return x * share + before * (1 - share)


class Rwkv5(Rwkv):
    """Version 5.2: fixed mixes and decays."""

    mixes = ("time_mix_key", "time_mix_receptance")

    def more_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of a block's mixes, decays and bonuses, by name."""
        vector, heads = (1, 1, self.config.hidden_size), (self.heads, self.config.head_size)
        shapes = {f"attention.time_mix_{name}": vector for name in FULL.values()}
        return {**shapes, "attention.time_decay": heads, "attention.time_faaaa": heads}

    def mix(self, x: Any, before: Any, name: str) -> tuple[dict[str, Any], Any]:
        """Mix by fixed weights; the decays are the same for all tokens."""
        decay = torch.exp(-torch.exp(self.weights[f"{name}.time_decay"]))
        inputs = {p: self.mixed(x, before, f"{name}.time_mix_{n}") for p, n in FULL.items()}
        return inputs, decay.expand(len(x), *decay.shape)


class Rwkv6(Rwkv):
    """Version 6: mixes and decays that depend on the token."""

    mixes = ("time_maa_k", "time_maa_r")

    def more_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of a block's mixes, decays, their low-rank products, and bonuses, by name."""
        hidden = self.config.hidden_size
        shapes = {f"attention.time_maa_{name}": (1, 1, hidden) for name in "xwkvrg"}
        return {
            **shapes,
            "attention.time_maa_w1": (hidden, 5 * MIX),
            "attention.time_maa_w2": (5, MIX, hidden),
            "attention.time_decay_w1": (hidden, DECAY),
            "attention.time_decay_w2": (DECAY, hidden),
            "attention.time_decay": (1, 1, hidden),
            "attention.time_faaaa": (self.heads, self.config.head_size),
        }

    def mix(self, x: Any, before: Any, name: str) -> tuple[dict[str, Any], Any]:
        """Mix by weights that depend on the token, as do the decays."""
        w1, w2 = (self.weights[f"{name}.time_maa_{part}"] for part in ("w1", "w2"))
        first = torch.tanh(self.mixed(x, before, f"{name}.time_maa_x") @ w1)
        parts = first.unflatten(-1, (5, MIX)).transpose(0, 1) @ w2
        inputs = {
            key: x + (before - x) * (self.weights[f"{name}.time_maa_{key}"][0] + part)
            for key, part in zip("wkvrg", parts, strict=True)
        }
        low = torch.tanh(inputs["w"] @ self.weights[f"{name}.time_decay_w1"])
        decay = self.weights[f"{name}.time_decay"][0] + low @ self.weights[f"{name}.time_decay_w2"]
        return inputs, torch.exp(-torch.exp(decay)).unflatten(-1, (self.heads, -1))

    def mixed(self, x: Any, before: Any, name: str) -> Any:
        """Mix tokens with those before them, whose shares the weights are."""
        return x + (before - x) * self.weights[name][0]
