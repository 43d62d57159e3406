# SPDX-License-Identifier: Apache-2.0
"""Models of one line each, as users write them, that TVM's importer takes for others.

Each factory's name says what is odd about it. The file needs torch alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...]]


class Computed(nn.Module):
    """A function of tensors as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def _made(function: Callable[..., Any], *inputs: Tensor) -> Made:
    return Computed(function), inputs


def _integers() -> Tensor:
    return torch.arange(-6, 6).reshape(3, 4)


def _mask(hidden_row: int) -> Tensor:
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    mask[hidden_row] = False
    return mask


def whole_numbers_with_others() -> Made:
    """Integers combined with other numbers, as in rotary embeddings."""
    return _made(lambda x: (x / 8.0, x * 0.5, x > 0.5, x.sin(), 1.5 - x), _integers())


def rounded_quotients() -> Made:
    """Integers by integers."""
    halved = "trunc"
    return _made(lambda x: (x // 3, x % 5, torch.div(x, 2, rounding_mode=halved)), _integers())


def rounded_quotients_of_floats() -> Made:
    """Quotients that are nearly whole, of both signs."""
    x = torch.tensor([1.0, 0.3, -0.7, 0.0, 7.0, -7.0, torch.inf, -torch.inf, torch.nan])
    y = torch.tensor([0.1, -0.1, 0.1, 2.0, -2.0, torch.inf, 2.0, 0.0, 1.0])
    return _made(lambda x, y: (x // y, x % y, x // 0.1, x % -0.1, 5.0 // y, 5.0 % y), x, y)


def factors_of_sums() -> Made:
    """Sums and differences with a factor of an operand."""

    def summed(x: Tensor, y: Tensor) -> Any:
        of_two = x.add(y, alpha=-0.5), x.sub(y, alpha=2), torch.rsub(x, y, alpha=2)
        return *of_two, torch.add(x, 3, alpha=2), torch.rsub(x, 3, alpha=2), x.add(x, alpha=3)

    return _made(summed, torch.randn(3, 4), _integers())


def clamped_integers() -> Made:
    """Bounds of integers, one of them missing."""
    return _made(lambda x: (x.clamp(min=1), x.clamp(max=2), x.clamp(-1, 1)), _integers())


def constants_of_another_type() -> Made:
    """Tensors made after a mask, in another type."""
    return _made(
        lambda x: (
            torch.zeros_like(x, dtype=torch.float32) + 0.5,
            torch.full_like(x, 2.5, dtype=torch.float32),
            torch.zeros_like(x, dtype=torch.float32).masked_fill(x, -torch.inf),
            torch.full((2, 2), -torch.inf),
        ),
        _integers() > 0,
    )


def last_of_an_axis() -> Made:
    """Places counted from the end."""
    return _made(lambda x: (x[:, -1], x[-2], x.select(-1, -4)), torch.randn(3, 4))


def sorted_places() -> Made:
    """Sorts, whose places are int64."""
    return _made(
        lambda x: (*x.sort(-1, descending=True), *x.topk(3), x.max(0).values), torch.randn(3, 8)
    )


def rows_without_a_key() -> Made:
    """Attention whose mask hides every key of a query."""
    attend = nn.functional.scaled_dot_product_attention
    x, mask = torch.randn(1, 2, 6, 16), _mask(2)
    added = torch.zeros(6, 6).masked_fill(~mask, -torch.inf)
    return _made(
        lambda x, m, a: (attend(x, x, x, attn_mask=m), attend(x, x, x, attn_mask=a)), x, mask, added
    )


class Attention(nn.Module):
    """Attention whose keys may have other batches than its queries."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(query, key, key)


def keys_of_all_batches() -> tuple[nn.Module, tuple[Tensor, ...], dict[str, dict[int, str]]]:
    return Attention(), (torch.randn(4, 2, 3, 8), torch.randn(1, 2, 5, 8)), {"query": {0: "n"}}


def keys_of_more_batches() -> Made:
    return Attention(), (torch.randn(1, 2, 3, 8), torch.randn(3, 2, 5, 8))


def attention_without_a_scale() -> Made:
    """A scale of nothing."""
    attend = nn.functional.scaled_dot_product_attention
    return _made(lambda x: attend(x, x, x, scale=0.0), torch.randn(1, 2, 6, 16))


def numbers_without_an_axis() -> Made:
    """Inputs and outputs of no axis."""
    return _made(lambda x, y: (x * y).sum(), torch.randn(2, 8), torch.tensor(2.5))


def largest_of_axes() -> Made:
    """Extremes, and what torch makes of them."""
    return _made(lambda x: (x.amax((0, 1)), x.amin(-1), x.logsumexp(-1)), torch.randn(2, 3, 8))


def places_from_the_end() -> Made:
    """An index that comes with the inputs, on one axis and on two."""
    places = torch.tensor([-1, 0, 2, -3])
    return _made(lambda x, i: (x[i], x[:, i], x[i, i + 1]), torch.randn(3, 4), places)


def places_on_several_axes() -> Made:
    """Some axes are left out: first, last, and in between."""
    row, column = torch.tensor([0, 1, -1]), torch.tensor([[2], [-4]])
    return _made(
        lambda x, i, j: (x[:, i, j], x[i, j], x[i, :, j], x[:, :, j], x[None, i]),
        *(torch.randn(3, 4, 5), row, column),
    )


def places_on_two_axes() -> Made:
    """The same indices on axes of different sizes, then on another axis, and of themselves."""

    def read(x: Tensor, i: Tensor) -> Any:
        copy = x.clone()
        copy[i, i] = 1.0
        return x[i, i], x[:, i], i[i], torch.take(i, i), copy, x[None].expand(3, 3, 6)[i, :, i]

    return _made(read, torch.randn(3, 6), torch.tensor([0, 2, -1]))


def bags_of_rows() -> Made:
    """Bags of different sizes, one of them empty, and a row that counts for none."""
    rows, begins = torch.tensor([3, 0, 3, 1, 1]), torch.tensor([0, 2, 2])
    table, bag = torch.randn(4, 6), nn.functional.embedding_bag

    def made(rows: Tensor, begins: Tensor, factors: Tensor) -> list[Tensor]:
        some = [bag(rows, table, begins, mode=m) for m in ("sum", "mean", "max")]
        some += [bag(rows, table, begins, mode=m, padding_idx=3) for m in ("mean", "max")]
        some.append(bag(rows, table, begins, mode="sum", per_sample_weights=factors))
        return [*some, bag(rows, table, begins, include_last_offset=True)]

    return _made(made, rows, begins, torch.randn(5))


def bags_at_a_step() -> Made:
    """Offsets that are a range: bags of five rows, of four rows, and a rest."""
    table = torch.randn(12, 6)

    def made(rows: Tensor) -> list[Tensor]:
        ranges = [torch.arange(0, end, step) for end, step in ((10, 5), (8, 4), (10, 4))]
        bag, begins = nn.functional.embedding_bag, torch.arange(0, 12, 5)
        ended = bag(rows, table, begins, mode="sum", include_last_offset=True)
        return [*(bag(rows, table, begins) for begins in ranges), ended]

    return _made(made, torch.arange(10))


def triangles() -> Made:
    """Places that are known before a run."""

    def made(x: Tensor) -> list[Tensor]:
        return [x[tuple(f(3, 4, 1))] for f in (torch.triu_indices, torch.tril_indices)]

    return _made(made, torch.randn(3, 4))


def places_of_a_table() -> Made:
    """Rows of a table by inputs."""
    return _made(nn.Embedding(9, 4), torch.tensor([[1, 8, 0]]))


def places_of_rows() -> Made:
    """A matrix of places for each column."""
    return _made(lambda x, i: x.gather(0, i), torch.randn(9, 3), torch.tensor([[1, 8, 0]]))


def places_of_bags() -> Made:
    """Two rows in each bag."""
    return _made(nn.EmbeddingBag(9, 4), torch.tensor([[1, 8]]))


def bags_by_offsets(*, ends: bool = False) -> Made:
    """Bags of two, one and two rows, or of two and three."""
    bags = nn.EmbeddingBag(9, 4, include_last_offset=ends)
    offsets = torch.tensor([0, 2, 5] if ends else [0, 2, 3])
    return _made(bags, torch.tensor([1, 8, 0, 3, 3]), offsets)


def bags_by_offsets_with_the_end() -> Made:
    """The last offset is the end of the last bag."""
    return bags_by_offsets(ends=True)


def places_that_are_written() -> Made:
    """Numbers are added where inputs say."""
    return _made(
        lambda x, i: torch.zeros(9, 3).scatter(0, i, x).scatter_add(0, i, x),
        *(torch.randn(2, 3), torch.tensor([[1, 8, 0], [2, 2, 3]])),
    )


def exponential_units() -> Made:
    """Below zero each has factors of its own."""
    functional = nn.functional
    return _made(
        lambda x: (functional.selu(x), functional.celu(x, 0.5), functional.elu(x, 2.0)),
        torch.randn(3, 8),
    )


def resized_images() -> Made:
    """Sizes that are no whole multiple of each other, and antialiasing."""
    resize = nn.functional.interpolate

    def sizes(x: Tensor) -> tuple[Tensor, ...]:
        return (
            resize(x, size=(7, 9)),
            resize(x, scale_factor=1.5),
            resize(x, scale_factor=0.5, mode="bilinear"),
            resize(x, size=(3, 4), mode="bilinear", antialias=True),
            resize(x, size=(9, 5), mode="bilinear", align_corners=True),
            resize(x, scale_factor=2.0, mode="bicubic"),
        )

    return _made(sizes, torch.randn(1, 2, 5, 7))


def pools_of_a_given_size() -> Made:
    """Sizes of which one is a whole multiple and the other is not."""
    f = nn.functional

    def pools(x: Tensor) -> tuple[Tensor, ...]:
        volumes = x.unsqueeze(0)
        return (
            f.adaptive_avg_pool2d(x, (4, 4)),
            f.adaptive_avg_pool3d(volumes, (1, 4, 4)),
            f.adaptive_max_pool2d(x, (4, 4)),
            f.adaptive_max_pool2d(x[0], (3, 1)),
            f.adaptive_max_pool3d(volumes, (2, 5, 6)),
        )

    return _made(pools, torch.randn(2, 3, 8, 6))


def averages_of_a_given_divisor() -> Made:
    average = nn.functional.avg_pool2d

    def averages(x: Tensor) -> tuple[Tensor, ...]:
        return (
            average(x, 3, 2, 1, divisor_override=4),
            average(x, (2, 3), ceil_mode=True, divisor_override=5),
            nn.functional.avg_pool3d(x.unsqueeze(0), 2, ceil_mode=True, divisor_override=3),
        )

    return _made(averages, torch.randn(2, 3, 8, 7))


def places_of_maxima() -> Made:
    return _made(
        lambda x: nn.functional.adaptive_max_pool2d(x, 2, return_indices=True),
        torch.randn(1, 2, 4, 6),
    )


def norm_of_groups_without_weights() -> Made:
    return nn.GroupNorm(2, 4, affine=False), (torch.randn(2, 4, 3, 3),)


def grid_of_points() -> Made:
    return _made(
        lambda x, grid: nn.functional.grid_sample(x, grid, align_corners=False),
        *(torch.randn(1, 2, 5, 7), torch.rand(1, 4, 4, 2)),
    )


class Normal(nn.Module):
    """Norms that take the mean and the variance from their input."""

    def __init__(self) -> None:
        super().__init__()
        batch = nn.BatchNorm2d(4, track_running_stats=False)
        norms = nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), batch, nn.LayerNorm([6, 6])
        self.norms = nn.ModuleList(norms)

    def forward(self, x: Tensor) -> Any:
        return [norm(x) for norm in self.norms]


def norms_of_large_means() -> Made:
    return Normal(), (torch.randn(2, 4, 6, 6) + 100,)


def variances() -> Made:
    def measured(x: Tensor) -> Any:
        pairs = (*torch.var_mean(x, 1), *torch.std_mean(x, (0, 1), correction=0))
        return *pairs, x.std(1, keepdim=True), x[:, :1].var(1)

    return _made(measured, torch.randn(3, 50) + 1000)


def functions_near_zero() -> Made:
    f = nn.functional
    functions = (torch.tanh, torch.expm1, torch.log1p, torch.erf, torch.sinh, torch.asinh)
    functions += (torch.atanh, f.elu, f.selu, f.celu, f.gelu, f.silu)
    return _made(lambda x: [function(x) for function in functions], 1e-5 * torch.randn(40))


def functions_far_below_zero() -> Made:
    f = nn.functional
    functions = (f.softplus, f.mish, lambda x: f.logsigmoid(-x), lambda x: torch.erfc(-x / 4))
    functions += (torch.cosh, lambda x: f.silu(x * 1e37))
    return _made(lambda x: [function(x) for function in functions], torch.randn(40) - 17)


def _with_nan(*shape: int) -> Tensor:
    x = torch.randn(shape)
    x.view(-1)[::5] = torch.nan
    return x


def functions_of_float64() -> Made:
    f = nn.functional
    names = ["sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "expm1", "log1p"]
    units = f.gelu, f.elu, f.selu, f.silu, f.softplus, partial(f.gelu, approximate="tanh")

    def computed(x: Tensor) -> Any:
        picture, size = x[:8].reshape(1, 1, 2, 4), (3, 3)
        resized = (
            f.interpolate(picture, size, mode="bilinear"),
            f.adaptive_avg_pool2d(picture, size),
        )
        averages = f.avg_pool2d(picture, 2, divisor_override=3), f.layer_norm(picture, (4,))
        functions = *(getattr(torch, name) for name in names), *units
        return *(function(x) for function in functions), *resized, *averages

    numbers = (-40.0, -2.5, -0.3, 0.0, 1e-9, 0.9, 1.5, 30.0, torch.nan, 1e9)
    return _made(computed, torch.tensor(numbers, dtype=torch.float64))


def not_a_number() -> Made:
    f = nn.functional

    def computed(x: Tensor) -> Any:
        parts = [f.relu(x), f.relu6(x), x.clamp(-1, 1), x.clamp(min=0), f.hardswish(x)]
        parts += [torch.maximum(x, -x.flip(0)), torch.minimum(x, x.flip(1)), f.softshrink(x)]
        parts += [x.amax(1), x.amin(0), x.max(), *x.max(1), *x.min(1), x.argmax(1), x.argmin(0)]
        parts += [f.max_pool1d(x, 2), f.adaptive_max_pool2d(x[None], 2), x != x, x == x]  # noqa: PLR0124
        parts += [x != 0, x != x.flip(0), x.count_nonzero(0), x.any(1), x.median(), *x.median(1)]
        parts += [torch.linalg.vector_norm(x, torch.inf, 1), (x - torch.inf) ** -0.5]
        orders = [x.sort(1)[0], x.topk(2)[0], x.cummax(1)[0], *x.double().sort(1)]
        return [*parts, *orders, x.double().argmin(0)]

    return _made(computed, _with_nan(6, 4))


def products_of_integers() -> Made:
    """Products beyond 32 bits, means in a given dtype, and integers as truth values."""

    def reduced(x: Tensor) -> Any:
        short = x.to(torch.uint8)
        products = x.prod(), x.prod(1), x.cumprod(0), short.prod(1, keepdim=True)
        means = x.mean(dtype=torch.float32), (x > 0).prod(0), x.sum().cumsum(0)
        return *products, *means, x.any(1), short.any(), short.any(0, keepdim=True), short.median()

    return _made(reduced, torch.tensor([[99999, -99999, 3], [200, 7, 0]], dtype=torch.int32))


def lengths() -> Made:
    def of(x: Tensor) -> Any:
        norm = torch.linalg.vector_norm
        orders = (-torch.inf, 0, 1, 2, 3)
        return [norm(x, order, 1, keepdim=order == 0) for order in orders]

    return _made(of, torch.tensor([[0.0, -3.0, 4.0], [0.0, 0.0, 1.0]]))


def axes_without_elements() -> Made:
    """Sums over no elements, results without elements, and both beside tensors that have some."""

    def of(x: Tensor, keys: Tensor) -> Any:
        none, f = x[:, :0], nn.functional
        products = none @ none.T, none[None] @ none.T, f.linear(none, x.new_ones(2, 0), x[0, :2])
        reduced = none.mean(1), (none > 0).any(1), (none > 0).all(1), none.std(correction=0)
        empty = none.cumsum(1), *none.sort(1), none.softmax(1), x[3:1]
        added = torch.addmm(x[:, :3], none, none.T), torch.einsum("ij,kj->ik", none, none)
        return *products, *reduced, *empty, *added, f.scaled_dot_product_attention(x, keys, keys)

    return _made(of, torch.randn(3, 8), torch.randn(0, 8))


def infinite_sides() -> Made:
    sides = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, 1e30, -3e38, 1e-30])
    return _made(lambda x: torch.hypot(x[:, None], x), sides)


def steps_in_memory() -> Made:
    return _made(
        lambda x: (x.as_strided((3, 4), (8, 2)), x.as_strided((2, 2, 3), (1, 8, 0), 5)),
        torch.randn(3, 8),
    )


def memory_of_a_view() -> Made:
    return _made(lambda x: x.t().as_strided((3, 8), (8, 1)), torch.randn(3, 8))


def powers_of_integers() -> Made:
    return _made(lambda x: 2**x, _integers().abs())


def orders() -> Made:
    def ordered(x: Tensor) -> Any:
        stable = torch.sort(x, dim=1, descending=True, stable=True)
        return *stable, *x.cummin(0), *x.cummax(1), *x.topk(3, largest=False), x.argmin()

    return _made(ordered, torch.randperm(42).reshape(6, 7).float())


def orders_of_short_integers() -> Made:
    """Integers of 8 and 16 bits, for which the runtime has no sort."""

    def ordered(x: Tensor) -> Any:
        dtypes = torch.int8, torch.uint8, torch.int16
        kinds = [x.to(dtype) for dtype in dtypes]
        sorts = [one for kind in kinds for one in (*kind.sort(stable=True), *kind.topk(2))]
        return *sorts, *(one.argmin() for one in kinds), *kinds[1].cummin(1)

    return _made(ordered, torch.tensor([[3, 200, 0, -7], [127, 128, 255, 1]]))


def axis_of_a_number() -> Made:
    """Tensors without axes, whose dimension torch calls 0 or -1."""

    def of(x: Tensor, place: Tensor) -> Any:
        orders = x.sort(), torch.sort(x, dim=0, stable=True), x.topk(1), x.kthvalue(1), x.median(0)
        extremes = x.max(0, True), x.min(-1), x.cummax(0), x.cummin(-1)
        reduced = (
            x.amax(0),
            x.argmin(0, True),
            x.any(0),
            x.sum(0),
            x.mean(0),
            x.std(0, correction=0),
        )
        powers = x.softmax(0), x.log_softmax(-1), x.logsumexp(0), x.logcumsumexp(0), x.cumsum(0)
        read = x.gather(0, place), x.index_select(0, place.reshape(1)), x.unsqueeze(-1)
        return *orders, *extremes, *reduced, *powers, *read, x.scatter(0, place, x + 1)

    def computed(*numbers: Tensor) -> Any:
        return [of(x, numbers[-1]) for x in numbers[:-1]]

    numbers = [torch.tensor(number) for number in (2.5, torch.nan, -torch.inf)]
    return _made(computed, *numbers, torch.tensor(0))


def descending_ranges() -> Made:
    def of(x: Tensor) -> Any:
        of_size = torch.arange(x.shape[0] - 1, -1, -1) + x
        ends = torch.arange(5, -2, -2) + x[0], torch.arange(3, 3, -1), torch.arange(0, -1e9, -3e8)
        return of_size, *ends, torch.arange(1.0, -1.0, -0.75) + x[0]

    return _made(of, torch.randn(4))


def larger_of_numbers() -> Made:
    """NaN beside a number."""

    def of(x: Tensor, y: Tensor) -> Any:
        whole = x.nan_to_num(0, 9, -9).int()
        return [
            (f(x, y), f(x[:, None], y), f(whole, y), f(x[:0], y[:0]))
            for f in (torch.fmax, torch.fmin)
        ]

    row = torch.tensor([torch.nan, 1.0, torch.inf, -torch.inf, torch.nan, -2.0])
    return _made(of, row, row.flip(0))


def products_with_a_vector() -> Made:
    """Sums with a product, whose first operand is ignored if its factor is 0."""

    def of(x: Tensor, matrix: Tensor, vector: Tensor) -> Any:
        nothing = torch.addmv(x, matrix[:, :0], vector[:0])
        ignored = torch.addmv(x * torch.nan, matrix, vector, beta=0)
        return torch.addmv(x, matrix, vector, beta=0.5, alpha=2), ignored, nothing

    return _made(of, torch.randn(3), torch.randn(3, 4), torch.randn(4))


def joined_dtypes() -> Made:
    def of(x: Tensor, y: Tensor) -> Any:
        return torch.cat([x, y]), torch.stack([x > 1, x]), torch.cat([y[:0], x, x.double()])

    return _made(of, torch.tensor([1, 2]), torch.tensor([0.5, torch.nan]))


def negated_bytes() -> Made:
    return _made(lambda x: (-x, -x[:0], -x[1]), torch.tensor([0, 1, 255], dtype=torch.uint8))


def truth_values() -> Made:
    def combined(x: Tensor) -> Any:
        a, b = x > 0, x > 1
        return a + b, a * b, a == b, a != b, a < b, a.any(), a.all(), (a & b).any(1), a.max(1)[0]

    return _made(combined, torch.randn(5, 6))


def moved_elements() -> Made:
    def moved(x: Tensor) -> Any:
        diagonals = x.diagonal(), x.diagonal(1), x.diagonal(-2, 1, 0)
        return x.roll(5), x.roll((1, 2), (0, 1)), *diagonals, x.trace(), x.unfold(1, 3, 2)

    return _made(moved, torch.randn(5, 8))


def replaced_parts() -> Made:
    """Elements of a diagonal, at steps in memory, and of rows, replaced or reduced."""

    def replaced(x: Tensor, places: Tensor, values: Tensor) -> Any:
        diagonals = x.diagonal_scatter(values[0, :5]), x.diagonal_scatter(values[0, :3], -2)
        stepped = torch.as_strided_scatter(x, values[:, :3], (2, 3), (8, 2), 1)
        reduced = [
            x.index_reduce(0, places, values, kind, include_self=own)
            for kind in ("prod", "mean", "amax", "amin")
            for own in (True, False)
        ]
        columns = x.index_reduce(1, places + 5, values[0, :2].expand(5, 2), "amax")
        of_planes = x.reshape(5, 2, 4).diagonal_scatter(x[:, :2], 0, 2, 1)
        return *diagonals, stepped, *reduced, columns, of_planes

    places = torch.tensor([2, 2])
    return _made(replaced, torch.randn(5, 8), places, torch.randn(2, 8))


def bits_of_numbers() -> Made:
    """Views in other dtypes, and the signs of zeros and NaNs."""

    def bits(x: Tensor) -> Any:
        whole, small = x.view(torch.int32), x.view(torch.uint8)
        views = (
            whole,
            small,
            small.view(torch.int64),
            whole.view(torch.float32),
            x[0].view(torch.int16),
        )
        signs = torch.signbit(x), torch.signbit(whole), torch.copysign(torch.ones_like(x), x)
        return *views, *signs, torch.signbit(x.double()), torch.signbit(x > 0)

    x = torch.tensor([[0.0, -0.0, 1.5, -torch.inf], [torch.nan, -2.0, 3e-42, 1e30]])
    x[1, 0] = torch.tensor(-0x400000, dtype=torch.int32).view(torch.float32)  # a negative NaN
    return _made(bits, x)


def sums_of_products() -> Made:
    """A sum of products of matrices, with factors."""

    def summed(x: Tensor, left: Tensor, right: Tensor) -> Any:
        ignored = torch.addbmm(x * torch.nan, left, right, beta=0)
        return torch.addbmm(x, left, right, beta=0.5, alpha=2), ignored

    return _made(summed, torch.randn(3, 5), torch.randn(2, 3, 4), torch.randn(2, 4, 5))


def lists_of_classes() -> Made:
    """Lists that a -1 ends; what follows it is no class."""
    lists = torch.tensor([[1, 2, -1, 0, 0], [-1, 3, 3, 1, 2], [3, 0, 1, 2, 4]])

    def losses(x: Tensor, lists: Tensor) -> Any:
        of = nn.functional.multilabel_margin_loss
        return of(x, lists), of(x, lists, reduction="none"), of(x[0], lists[0], reduction="sum")

    return _made(losses, torch.randn(3, 5), lists)


def shifts() -> Made:
    def shifted(x: Tensor) -> Any:
        unsigned = (x.abs() + 200).to(torch.uint8)
        signed = x << 2, x >> 1, x << x.abs(), x << 70, (-x) >> 70
        return *signed, unsigned >> 2, unsigned >> 8, unsigned << 8

    return _made(shifted, torch.randint(-9, 9, (12,)))


def written_elements() -> Made:
    def written(x: Tensor, places: Tensor, rows: Tensor, values: Tensor) -> Any:
        copies = [x.clone() for _ in range(3)]
        copies[0][rows] = 2.0
        copies[1][:, rows] = values[:, :2]
        copies[2][x > 0] = 3.0
        reduced = [
            x.scatter_reduce(1, places, values, kind, include_self=own)
            for kind in ("sum", "prod", "mean", "amax", "amin")
            for own in (True, False)
        ]
        return *copies, *reduced, x.masked_scatter(x > 0, values), x.index_add(0, rows, values[:2])

    places, rows = torch.randint(0, 5, (4, 3)), torch.tensor([1, 3])
    return _made(written, torch.randn(4, 5), places, rows, torch.randn(4, 5))


def written_by_a_reduction() -> Made:
    """Integers, float64, NaN, and the reductions of scatter itself."""

    def written(x: Tensor, places: Tensor, values: Tensor) -> Any:
        kinds, own = ("sum", "prod", "mean", "amax", "amin"), (True, False)
        return [
            *(
                x.to(dtype).scatter_reduce(1, places, values.to(dtype), kind, include_self=itself)
                for dtype in (torch.int64, torch.int8, torch.float64)
                for kind in kinds
                for itself in own
            ),
            *(
                x.scatter(1, places, y, reduce=kind)
                for y in (values, 2.5)
                for kind in ("add", "multiply")
            ),
            values.double().log().scatter_reduce(1, places, values.double(), "amax"),
        ]

    places = torch.tensor([[0, 2, 2], [1, 1, 2]])
    values = torch.tensor([[-3.0, 4.0, 5.0], [7.0, -9.0, 0.0]])
    return _made(written, torch.arange(-6.0, 6.0).reshape(3, 4), places, values)


def written_parts() -> Made:
    """Fewer indices than elements on the other axes, too."""

    def written(x: Tensor, places: Tensor) -> Any:
        added = x.scatter_add(1, places, x), x.scatter_reduce(0, places, x, "amax")
        put = x.put(places - 1, places.float()), x.put(places % 2, places.float(), accumulate=True)
        none = x.put(places[:0], places[:0].float()), x.scatter(0, places[:0], 1.0, reduce="add")
        return x.scatter(-1, places, x[:2, :1, :2]), x.scatter(1, places, 7.0), *added, *put, *none

    return _made(written, torch.randn(3, 4, 5), torch.tensor([[[0, 2]], [[2, 1]]]))


def points_of_a_grid() -> Made:
    modes, paddings = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")

    def read(x: Tensor, grid: Tensor) -> Any:
        return [
            nn.functional.grid_sample(x, grid, mode=m, padding_mode=p, align_corners=corners)
            for m in modes
            for p in paddings
            for corners in (True, False)
        ]

    # As many points as elements: the shape shows nothing.
    return _made(read, torch.randn(1, 2, 2, 2), torch.randn(1, 2, 2, 2))


def points_of_a_volume() -> Made:
    def read(x: Tensor, grid: Tensor) -> Tensor:
        return nn.functional.grid_sample(x, grid, padding_mode="border", align_corners=True)

    return _made(read, torch.randn(1, 2, 3, 4, 5), torch.randn(1, 2, 3, 2, 3))


class Placed(nn.Module):
    """Adds a table of positions in front of a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Buffer(torch.randn(1, 32, 8))
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + self.table[:, : x.size(1)])


def table_of_positions() -> tuple[nn.Module, tuple[Tensor, ...], dict[str, dict[int, str]]]:
    return Placed(), (torch.randn(2, 10, 8),), {"x": {1: "n"}}


class Sliced(nn.Module):
    """Reads parts of an axis that varies."""

    def forward(self, x: Tensor) -> Any:
        orders = *x.sort(1), *x.topk(2), x.argmax(1)
        return x[:, 1:] * 2, x[:, ::2] * 2, x[:, -1:] + 1, x.std(1), x.roll(1, 1), *orders


def parts_of_an_axis() -> tuple[nn.Module, tuple[Tensor, ...], dict[str, dict[int, str]]]:
    return Sliced(), (torch.randn(2, 10),), {"x": {1: "n"}}


def several_that_vary() -> tuple[nn.Module, tuple[Tensor, ...], dict[str, dict[int, str]]]:
    """Inputs of ``*inputs``."""
    module, inputs = _made(torch.add, torch.randn(2, 10), torch.randn(1, 10))
    return module, inputs, {"inputs_0": {1: "n"}, "inputs_1": {1: "n"}}


def resized_by_a_factor() -> tuple[nn.Module, tuple[Tensor, ...], dict[str, dict[int, str]]]:
    module, inputs = _made(partial(nn.functional.interpolate, scale_factor=2), torch.randn(1, 2, 4))
    return module, inputs, {"inputs_0": {2: "n"}}


def branch_of_torch() -> Made:
    double, half = (lambda x: x * 2), (lambda x: x / 2)
    return _made(lambda x: torch.cond(x.sum() > 0, double, half, (x,)), torch.randn(2, 8))


class Counter(nn.Module):
    """A model that keeps something between calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + self.calls


def counter() -> Made:
    return Counter(), (torch.randn(2, 3),)


def halves() -> Made:
    return nn.Linear(8, 4).half(), (torch.randn(2, 8).half(),)


def short_inside() -> Made:
    return _made(lambda x: (x.bfloat16() * 2).float(), torch.randn(2, 8))


def random_numbers() -> Made:
    return _made(lambda x: x + torch.randn_like(x), torch.randn(2, 8))


def random_attention() -> Made:
    attend = nn.functional.scaled_dot_product_attention
    return _made(lambda x: attend(x, x, x, dropout_p=0.5), torch.randn(1, 2, 6, 16))


def branch() -> Made:
    return _made(lambda x: x * 2 if x.sum() > 0 else -x, torch.randn(2, 8))


def chosen_by_a_library() -> Made:
    """A function of torch that looks at values."""
    of = nn.functional.gaussian_nll_loss
    return _made(lambda x: of(x, x, x.abs()), torch.randn(2, 8))


def without_inputs() -> Made:
    return _made(lambda: torch.ones(3))


def number_as_output() -> Made:
    return _made(lambda x: (x * 2, x.shape[1]), torch.randn(2, 8))


def one_row() -> tuple[nn.Module, Sequence[Tensor], dict[str, Any]]:
    return nn.Linear(8, 4), (torch.randn(1, 8),), {"input": {0: "n"}}


def axis_that_is_not_there() -> tuple[nn.Module, Sequence[Tensor], dict[str, Any]]:
    return nn.Linear(8, 4), (torch.randn(3, 8),), {"input": {5: "n"}}


def fails() -> Made:
    return nn.Linear(8, 4), (torch.randn(2, 9),)


def division_by_nothing() -> Made:
    return _made(lambda x: x / 0, torch.randn(2, 8))


def counts() -> Made:
    one_hot = nn.functional.one_hot

    def count(x: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        weighted = torch.bincount(places, x[0], minlength=9)
        histograms = torch.histc(x, 5), torch.histc(x, bins=4, min=-1, max=1)
        signs = torch.copysign(x, torch.tensor([1.0, -1.0, 0.0, -0.0, 2.0, -2.0]))
        scaled = torch.ldexp(x, torch.tensor([3]))
        whole = one_hot(places, 9), torch.bincount(places, minlength=9)
        return *whole, weighted, *histograms, signs, scaled

    return _made(count, torch.randn(3, 6), torch.tensor([0, 8, 3, 3, 1, 8]))


def places_of_classes() -> Made:
    one_hot = nn.functional.one_hot
    return _made(lambda places: one_hot(places, 9), torch.tensor([0, 8, 3]))


def places_that_are_counted() -> Made:
    return _made(lambda places: torch.bincount(places, minlength=9), torch.tensor([0, 8, 3]))


def packed_sequence() -> Made:
    layer = nn.GRU(4, 5, batch_first=True)

    def read(x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)[0]

    return _made(read, torch.randn(2, 6, 4), torch.tensor([6, 4]))


class Unused(nn.Module):
    """A layer that the model does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def weights_without_use() -> Made:
    return Unused(), (torch.randn(3, 4),)


def leaves() -> Made:
    raise SystemExit(3)


def sizes_as_a_list() -> tuple[nn.Module, Sequence[Tensor], Any]:
    return nn.Linear(8, 4), (torch.randn(3, 8),), {"input": ["n"]}


def feeds_as_a_list() -> tuple[nn.Module, Sequence[Tensor], dict[str, Any], Any]:
    return nn.Linear(8, 8), (torch.randn(3, 8),), {}, [0]


def nested_inputs() -> tuple[nn.Module, Any]:
    return Computed(lambda pair: pair[0] + pair[1]), ((torch.randn(3), torch.randn(3)),)


def sparse_input() -> Made:
    return nn.Linear(8, 4), (torch.randn(3, 8).to_sparse(),)


def complex_input() -> Made:
    return Computed(lambda x: x.real + 1), (torch.randn(3, dtype=torch.complex64),)


class MaskBesideIndex(nn.Module):
    """Writes where a mask of columns is true, in some rows."""

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        written = x.clone()
        written[rows, x[0] > 0] = 2.0
        return written


def values_at_a_mask() -> Made:
    x = torch.arange(6.0) - 2
    return Computed(lambda x, v: torch.index_put(x, (x > 0,), v)), (x, torch.ones(3))


def mask_beside_index() -> Made:
    x = torch.arange(12.0).reshape(3, 4) - 5
    return MaskBesideIndex(), (x, torch.tensor([[0], [2]]))
