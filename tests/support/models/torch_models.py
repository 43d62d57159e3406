# SPDX-License-Identifier: Apache-2.0
"""Small models of PyTorch with random weights: an encoder, a vision transformer, a convnet.

Each function is a factory for ``nox -s torch``. The file needs torch alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WORDS, LONGEST, WIDTH = 100, 64, 64


class EncoderLayer(nn.Module):
    """A layer as BERT has it: norms after attention and feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, rows, width = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, rows, self.heads, width // self.heads).transpose(1, 2)

        parts = (split(part(x)) for part in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask)
        x = self.first(x + self.out(mixed.transpose(1, 2).reshape(batch, rows, width)))
        return self.second(x + self.narrow(nn.functional.gelu(self.wide(x))))


class Encoder(nn.Module):
    """An encoder like BERT; a mask says which tokens are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList([EncoderLayer(WIDTH, 4) for _ in range(2)])

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, mask[:, None, None, :].bool())
        return x, torch.tanh(x[:, 0])


class VisionLayer(nn.Module):
    """A layer as ViT has it: norms before attention, which is written out, and feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(approximate="tanh"), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, width = x.shape
        of_heads = self.qkv(self.first(x)).reshape(batch, rows, 3, self.heads, -1)
        query, key, value = of_heads.permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5
        mixed = scores.softmax(-1) @ value
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, rows, width))
        return x + self.feed(self.second(x))


class Vision(nn.Module):
    """A small vision transformer: patches of 8 x 8, a class token."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 17, width))
        self.layers = nn.Sequential(VisionLayer(width, 3), VisionLayer(width, 3))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


class DecoderLayer(nn.Module):
    """A layer as Llama has it: grouped heads, rotary embeddings, a gate; without norms."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.value = (nn.Linear(width, kv_heads * self.head) for _ in range(2))
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
        _, rows, width = x.shape

        def split(y: Tensor, heads: int) -> Tensor:
            return y.view(1, rows, heads, self.head).transpose(1, 2)

        def turn(y: Tensor) -> Tensor:
            first, second = y.chunk(2, -1)
            return y * angles.cos() + torch.cat([-second, first], -1) * angles.sin()

        query, key = turn(split(self.query(x), self.heads)), turn(split(self.key(x), self.kv_heads))
        times = self.heads // self.kv_heads
        value = split(self.value(x), self.kv_heads).repeat_interleave(times, 1)
        mixed = nn.functional.scaled_dot_product_attention(
            query, key.repeat_interleave(times, 1), value, attn_mask=mask
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(1, rows, width))
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Decoder(nn.Module):
    """A language model; with a window, a token sees so many before it, else all."""

    def __init__(self, window: int = 0) -> None:
        super().__init__()
        self.window = window
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([DecoderLayer(WIDTH, 4, 2) for _ in range(2)])
        self.head = nn.Linear(WIDTH, WORDS)
        self.register_buffer("speeds", 100.0 ** -torch.arange(0, 1, 2 * 4 / WIDTH))

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        rows = input_ids.shape[1]
        mask = torch.ones(rows, rows, dtype=torch.bool).tril()
        if self.window:
            mask = mask & torch.ones(rows, rows, dtype=torch.bool).triu(1 - self.window)
        angles = position_ids[:, None, :, None] * self.speeds
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x, torch.cat([angles, angles], -1), mask)
        return self.head(x)


class Cached(nn.Module):
    """A language model of one layer, whose keys and values are inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(
        self, ids: Tensor, places: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows, x = ids.shape[1], self.words(ids)
        query, key, value = (
            part(x).view(1, rows, 4, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        keys, values = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        mask = torch.arange(keys.shape[2])[None] <= places[:, None]
        mixed = nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        x = x + mixed.transpose(1, 2).reshape(1, rows, WIDTH)
        return self.head(x), places[-1:] + 1, keys, values


class Spectrum(nn.Module):
    """A model with an operator that nobody converts."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(16, 16), _Fourier())

    def forward(self, x: Tensor) -> Tensor:
        return self.filter(x)


class ScaledSum(nn.Module):
    """A product by a matrix that is not transposed, added with factors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, 128))
        self.bias = nn.Parameter(torch.randn(128))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight, beta=0.5, alpha=-2)


class _Fourier(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(x).abs()


class Recurrent(nn.Module):
    """An LSTM with its states; a deep one with directions and projections; a GRU; an RNN."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.deep = nn.LSTM(16, 32, 2, bidirectional=True, proj_size=8)
        self.gru = nn.GRU(16, 32, 2, batch_first=True, bidirectional=True)
        self.rnn = nn.RNN(16, 32, nonlinearity="relu")

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        made, (hidden, cell) = self.lstm(x)
        return made, hidden, cell, self.deep(x)[0], self.gru(x)[0], self.rnn(x)[0]


def encoder() -> tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]:
    """The encoder, a padded sentence, and its length, which may vary."""
    torch.manual_seed(0)
    mask = torch.ones(1, 16, dtype=torch.int64)
    mask[:, 12:] = 0
    inputs = (torch.randint(0, WORDS, (1, 16)), mask)
    return Encoder(), inputs, {"ids": {1: "n"}, "mask": {1: "n"}}


def vision() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The vision transformer and an image of noise."""
    torch.manual_seed(0)
    return Vision(), (torch.randn(1, 3, 32, 32),)


def convnet() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A convolutional network with batch norms, as a trained one has them, and an image."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(64, 10),
    )
    for layer in model:
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.running_mean)
            nn.init.uniform_(layer.running_var, 0.5, 2)
    return model, (torch.randn(1, 3, 32, 32),)


def decoder(window: int = 0) -> tuple[nn.Module, dict[str, Tensor], dict[str, Any]]:
    """The language model and a prompt, whose length may vary."""
    torch.manual_seed(0)
    inputs = {"input_ids": torch.randint(0, WORDS, (1, 6)), "position_ids": torch.arange(6)[None]}
    return Decoder(window), inputs, {name: {1: "n"} for name in inputs}


def windowed() -> tuple[nn.Module, dict[str, Tensor], dict[str, Any]]:
    """The same, whose tokens see 8 before them."""
    return decoder(8)


def cached() -> tuple[nn.Module, tuple[Tensor, ...], dict[str, Any], dict[str, int]]:
    """The one with a cache of 4 tokens, and 6 more; what it gives is what it takes next."""
    torch.manual_seed(0)
    past = [torch.randn(1, 4, 4, WIDTH // 4) for _ in range(2)]
    inputs = (torch.randint(0, WORDS, (1, 6)), torch.arange(4, 10), *past)
    dynamic = {"ids": {1: "n"}, "places": {0: "n"}, "keys": {2: "m"}, "values": {2: "m"}}
    return Cached(), inputs, dynamic, {"ids": 0, "places": 1, "keys": 2, "values": 3}


def perceptron() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A linear layer and its activation: the least that shows each pass at work."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU()), (torch.randn(8, 64),)


def recurrent() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Layers with a state, over three steps of two sequences."""
    torch.manual_seed(1)
    return Recurrent(), (torch.randn(2, 3, 16),)


def many_steps() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A layer over 100 steps, whose errors would add up."""
    torch.manual_seed(2)
    return nn.LSTM(8, 16, batch_first=True), (torch.randn(1, 100, 8),)


def scaled_sum() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Inputs of 16 rows."""
    torch.manual_seed(5)
    return ScaledSum(), (torch.randn(16, 256),)


def spectrum() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A model that cannot be imported."""
    return Spectrum(), (torch.randn(2, 16),)


def nothing() -> int:
    """No model."""
    return 0
